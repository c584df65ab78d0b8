//! The certificate authorities that the host trusts: a PEM bundle in, the certificates that TLS can use out.
//!
//! The TLS library takes a bundle whole or ends the program, so each certificate's outer shape is checked here first and an
//! odd one is left out. Trust itself is decided by the library alone.

use std::fs;
use std::path::{Path, PathBuf};

use aws_smithy_types::base64;

/// Where the distributions keep the bundle: Debian, RHEL and Amazon Linux, SUSE, Alpine.
const BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RootsError {
    #[error("no CA bundle found ({}): install ca-certificates or set [aws] ca_bundle (in ParallelCluster's file [slurm_ec2] ca_bundle)", BUNDLES.join(", "))]
    Missing,
    #[error("cannot read the CA bundle {path}: {why}")]
    Unreadable { path: PathBuf, why: String },
    #[error("the CA bundle {path} holds no usable certificate")]
    Empty { path: PathBuf },
}

/// PEM text of all usable certificates of `bundle`, or of the host's own bundle.
pub(super) fn load(bundle: Option<&Path>) -> Result<String, RootsError> {
    let path = match bundle {
        Some(path) => path,
        None => BUNDLES.iter().map(Path::new).find(|path| path.is_file()).ok_or(RootsError::Missing)?,
    };
    let bytes = fs::read(path).map_err(|error| RootsError::Unreadable { path: path.into(), why: error.to_string() })?;
    let (kept, left_out) = usable(&String::from_utf8_lossy(&bytes));
    if left_out > 0 {
        tracing::debug!(path = %path.display(), left_out, "certificates of the CA bundle that TLS cannot use");
    }
    if kept.is_empty() { Err(RootsError::Empty { path: path.into() }) } else { Ok(kept) }
}

/// The usable certificates, and how many were not.
fn usable(text: &str) -> (String, usize) {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let (mut kept, mut left_out, mut rest) = (String::new(), 0, text);
    while let Some((_, after)) = rest.split_once(BEGIN) {
        let Some((body, tail)) = after.split_once(END) else {
            left_out += 1;
            break;
        };
        rest = tail;
        let packed: String = body.split_whitespace().collect();
        if base64::decode(&packed).is_ok_and(|der| is_certificate(&der).is_some()) {
            kept.push_str(BEGIN);
            kept.push_str(body);
            kept.push_str(END);
            kept.push('\n');
        } else {
            left_out += 1;
        }
    }
    (kept, left_out)
}

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const BOOLEAN: u8 = 0x01;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;

/// RFC 5280, 4.1: an X.509 version 3 certificate, or version 1 (no version field, no extensions), and nothing behind it.
fn is_certificate(der: &[u8]) -> Option<()> {
    let (certificate, rest) = take(der, SEQUENCE)?;
    let (to_be_signed, outer) = take(certificate, SEQUENCE)?;
    let (algorithm, outer) = take(outer, SEQUENCE)?;
    let (signature, outer) = take(outer, BIT_STRING)?;
    // The leading byte counts the unused bits of the last one.
    if !rest.is_empty() || !outer.is_empty() || signature.first() != Some(&0) {
        return None;
    }
    let (version, fields) = match take(to_be_signed, VERSION) {
        Some((version, fields)) => (Some(take(version, INTEGER)?.0), fields),
        None => (None, to_be_signed),
    };
    let (serial, fields) = take(fields, INTEGER)?;
    let (inner_algorithm, fields) = take(fields, SEQUENCE)?;
    let (_issuer, fields) = take(fields, SEQUENCE)?;
    let (validity, fields) = take(fields, SEQUENCE)?;
    let (_subject, fields) = take(fields, SEQUENCE)?;
    let (_key, fields) = take(fields, SEQUENCE)?;
    if serial.is_empty() || validity.is_empty() || inner_algorithm != algorithm {
        return None;
    }
    match version {
        None if fields.is_empty() => Some(()),
        Some([2]) => extensions_are_sound(take(fields, EXTENSIONS)?),
        _ => None,
    }
}

fn extensions_are_sound((wrapped, behind): (&[u8], &[u8])) -> Option<()> {
    let (mut list, rest) = take(wrapped, SEQUENCE)?;
    if !behind.is_empty() || !rest.is_empty() {
        return None;
    }
    let mut seen: Vec<&[u8]> = Vec::new();
    while !list.is_empty() {
        let (extension, tail) = take(list, SEQUENCE)?;
        list = tail;
        let (id, parts) = take(extension, OBJECT_ID)?;
        let parts = match take(parts, BOOLEAN) {
            // DER writes no default value, so a flag that is there is true.
            Some(([0xff], parts)) => parts,
            Some(_) => return None,
            None => parts,
        };
        let (value, rest) = take(parts, OCTET_STRING)?;
        // Of those that the library opens, each is a sequence but key usage (2.5.29.15).
        let opened = matches!(id, [0x55, 0x1d, 17 | 19 | 30 | 31 | 37]);
        if !rest.is_empty() || seen.contains(&id) || (opened && take(value, SEQUENCE)?.1 != [0u8; 0]) {
            return None;
        }
        seen.push(id);
    }
    Some(())
}

/// One DER element with `tag`: its content and what follows.
fn take(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (first, rest) = input.split_first()?;
    let (short, rest) = rest.split_first()?;
    if *first != tag {
        return None;
    }
    let (length, rest) = match *short {
        short @ 0..=0x7f => (usize::from(short), rest),
        0x81 => {
            let (length, rest) = rest.split_first()?;
            (usize::from(*length), rest)
        }
        0x82 => {
            let (length, rest) = rest.split_at_checked(2)?;
            (usize::from(length[0]) << 8 | usize::from(length[1]), rest)
        }
        _ => return None,
    };
    // DER: the shortest form.
    let shortest = match *short {
        0x81 => length > 0x7f,
        0x82 => length > 0xff,
        _ => true,
    };
    if shortest { rest.split_at_checked(length) } else { None }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// ISRG Root X2, a public root of Let's Encrypt (https://letsencrypt.org/certificates/).
    const ROOT: &str = include_str!("../../tests/data/ec2/root.pem");

    fn der(pem: &str) -> Vec<u8> {
        let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        base64::decode(body).unwrap()
    }

    fn pem(der: &[u8]) -> String {
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", base64::encode(der))
    }

    #[test]
    fn the_good_is_kept_and_the_bad_left_out() {
        let good = der(ROOT);
        let mut longer = good.clone();
        longer.push(0);
        let text = format!(
            "# a comment\n{ROOT}junk\n{}{}-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\nAA",
            pem(&longer),
            pem(&good[..good.len() - 1]),
        );
        let (kept, left_out) = usable(&text);
        assert_eq!(kept.matches("BEGIN CERTIFICATE").count(), 1);
        assert_eq!(left_out, 4);
        assert_eq!(der(&kept), good);
    }

    #[test]
    fn no_cut_or_changed_length_passes_or_panics() {
        let good = der(ROOT);
        assert!(is_certificate(&good).is_some());
        for end in 0..good.len() {
            assert!(is_certificate(&good[..end]).is_none(), "cut at {end}");
        }
        for at in 0..good.len() {
            for value in [0x00, 0x30, 0x7f, 0x80, 0x82, 0xff] {
                let mut changed = good.clone();
                changed[at] = value;
                let _ = is_certificate(&changed);
            }
        }
    }

    #[test]
    fn a_bundle_without_certificates_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = load(Some(file.path())).unwrap_err();
        assert_eq!(error, RootsError::Empty { path: file.path().into() });
        assert!(load(Some(Path::new("/nowhere.pem"))).unwrap_err().to_string().contains("/nowhere.pem"));
    }
}

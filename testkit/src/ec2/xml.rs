//! Answers as EC2 writes them. Values in, XML text out. Hand-written, since an answer to a large launch is a
//! megabyte and the benchmark's client shares the processor with this endpoint.

use std::fmt::Write as _;

const HEAD: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

/// An error as EC2 answers it.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: u16,
    pub(crate) code: String,
    pub(crate) message: String,
}

impl ApiError {
    pub(crate) fn new(status: u16, code: &str, message: impl Into<String>) -> Self {
        ApiError { status, code: code.to_owned(), message: message.into() }
    }

    /// HTTP 400.
    pub(crate) fn client(code: &str, message: impl Into<String>) -> Self {
        ApiError::new(400, code, message)
    }

    pub(crate) fn body(&self, request_id: &str) -> String {
        format!(
            "{HEAD}<Response><Errors><Error><Code>{}</Code><Message>{}</Message></Error></Errors>\
             <RequestID>{request_id}</RequestID></Response>",
            escape(&self.code),
            escape(&self.message)
        )
    }
}

/// Wraps `inner` into the answer of `action`.
pub(crate) fn answer(action: &str, request_id: &str, inner: &str) -> String {
    let mut out = String::with_capacity(inner.len() + 256);
    let _ = write!(
        out,
        "{HEAD}<{action}Response xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
         <requestId>{request_id}</requestId>{inner}</{action}Response>"
    );
    out
}

/// `<name>escaped value</name>`.
pub(crate) fn element(out: &mut String, name: &str, value: &str) {
    let _ = write!(out, "<{name}>{}</{name}>", escape(value));
}

/// Text as it may stand between tags.
pub(crate) fn escape(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.contains(['&', '<', '>', '"', '\r']) {
        return text.into();
    }
    text.chars()
        .fold(String::with_capacity(text.len() + 16), |mut out, c| {
            match c {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                '"' => out.push_str("&quot;"),
                '\r' => out.push_str("&#13;"),
                c => out.push(c),
            }
            out
        })
        .into()
}

/// Milliseconds since the epoch as EC2 prints them: whole seconds, `2026-11-29T16:00:00.000Z`.
pub(crate) fn time(ms: u64) -> String {
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(ms / 1000);
    humantime::format_rfc3339_millis(at).to_string()
}

/// Base64, as GetConsoleOutput wraps its text.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |w, b| (w << 8) | u32::from(*b)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let letter = ALPHABET[(word >> (18 - 6 * digit)) as usize & 63] as char;
            out.push(if digit <= chunk.len() { letter } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_every_length() {
        let pairs = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (text, code) in pairs {
            assert_eq!(base64(text.as_bytes()), code);
        }
    }

    #[test]
    fn errors_are_escaped() {
        let body = ApiError::client("A<B", "x & \"y\"").body("r-1");
        assert!(body.contains("<Code>A&lt;B</Code><Message>x &amp; &quot;y&quot;</Message>"), "{body}");
        assert!(body.ends_with("<RequestID>r-1</RequestID></Response>"));
    }

    #[test]
    fn times_are_whole_seconds() {
        assert_eq!(time(1_764_432_000_999), "2025-11-29T16:00:00.000Z");
    }
}

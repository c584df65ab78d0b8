//! Slurm's version: the answer of `scontrol --version` in, questions about what this version takes out.
//!
//! The questions live here and nowhere else, so that "which version can do X" is answered in one place.
//! Compares numbers only; never guesses a version from behaviour.

use std::fmt;

/// `slurm 22.05.8` → 22, 5, 8. Ordered as released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Version {
    pub(crate) major: u16,
    pub(crate) minor: u16,
    pub(crate) patch: u16,
}

impl Version {
    pub(crate) const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch }
    }

    /// From the one line that `scontrol --version` prints: `slurm 24.11.5`, Debian's `slurm-wlm 22.05.8`, and also
    /// `slurm 23.11.0-0rc1` or `slurm 26.05.4pre1`, where what follows the digits is dropped.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.split_whitespace().find_map(|word| {
            let mut parts = word.splitn(3, '.');
            let major = parts.next()?.parse().ok()?;
            let minor = leading_number(parts.next()?)?;
            let patch = parts.next().map_or(Some(0), leading_number)?;
            Some(Self { major, minor, patch })
        })
    }

    fn at_least(self, major: u16, minor: u16, patch: u16) -> bool {
        self >= Self::new(major, minor, patch)
    }

    /// `scontrol update … InstanceId=` exists (23.11; 22.05 drops the whole request; slurm-facts D.1).
    pub(crate) fn takes_instance_id(self) -> bool {
        self.at_least(23, 11, 0)
    }

    /// `InstanceId=a,b` is dealt out to the nodes one by one. Before 25.11.6 the text `a,b` lands on every node.
    pub(crate) fn takes_instance_id_list(self) -> bool {
        self.at_least(25, 11, 6)
    }

    /// `scontrol update … ResumeAfter=` exists (slurm-facts D.1).
    pub(crate) fn takes_resume_after(self) -> bool {
        self.at_least(23, 11, 0)
    }

    /// A registering slurmd sets NodeAddr and NodeHostName by itself, and both go back to the node's name when it
    /// is powered down (slurm-facts D.4). Before: only with `SlurmctldParameters=cloud_reg_addrs`.
    pub(crate) fn registration_sets_address(self) -> bool {
        self.at_least(23, 11, 0)
    }

    /// A node given up while it configures a job needs an address that resolves, or slurmctld stands still for about
    /// ten seconds per node. Seen on 22.05.8, not on 24.11.5; 23.02 was not tried, and an address costs nothing.
    pub(crate) fn needs_dummy_address(self) -> bool {
        !self.at_least(23, 11, 0)
    }

    /// Powered-down cloud nodes are invisible to `scontrol show` without `PrivateData=cloud` (slurm-facts F).
    pub(crate) fn hides_powered_down_nodes(self) -> bool {
        !self.at_least(23, 2, 0)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}.{:02}.{}", self.major, self.minor, self.patch)
    }
}

fn leading_number(text: &str) -> Option<u16> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_scontrol_prints() {
        for (text, version) in [
            (include_str!("../../tests/data/scontrol/22.05.8/version.txt"), Version::new(22, 5, 8)),
            ("slurm-wlm 24.11.5\n", Version::new(24, 11, 5)),
            ("slurm 23.11.0-0rc1\n", Version::new(23, 11, 0)),
            ("slurm 26.05.4pre1", Version::new(26, 5, 4)),
            ("slurm 20.02", Version::new(20, 2, 0)),
        ] {
            assert_eq!(Version::parse(text), Some(version), "{text:?}");
        }
        for text in ["", "slurm", "slurm 24", "slurm x.y.z", "slurm 24.x.1", "slurm 24.11.x", "slurm 999999.1.1"] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
        assert_eq!(Version::new(22, 5, 8).to_string(), "22.05.8");
    }

    #[test]
    fn what_each_version_takes() {
        //   version               id     list   after  registers dummy
        for (version, id, list, after, registers, dummy) in [
            (Version::new(22, 5, 8), false, false, false, false, true),
            (Version::new(23, 2, 9), false, false, false, false, true),
            (Version::new(23, 11, 0), true, false, true, true, false),
            (Version::new(24, 11, 5), true, false, true, true, false),
            (Version::new(25, 11, 5), true, false, true, true, false),
            (Version::new(25, 11, 6), true, true, true, true, false),
            (Version::new(26, 5, 0), true, true, true, true, false),
        ] {
            assert_eq!(version.takes_instance_id(), id, "{version}");
            assert_eq!(version.takes_instance_id_list(), list, "{version}");
            assert_eq!(version.takes_resume_after(), after, "{version}");
            assert_eq!(version.registration_sets_address(), registers, "{version}");
            assert_eq!(version.needs_dummy_address(), dummy, "{version}");
        }
    }
}

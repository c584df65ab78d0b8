//! Which file systems the state folder may be on: a path in, the name of a network file system out, or none.
//!
//! On a network file system `flock` may be local to each machine or missing, and a replaced file may be seen late.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The kernel's numbers (statfs(2), linux/magic.h, and the file systems' own sources for those outside the kernel).
const NETWORK: &[(u32, &str)] = &[
    (0x0000_6969, "nfs"),
    (0x0000_517B, "smb"),
    (0xFF53_4D42, "cifs"),
    (0xFE53_4D42, "smb2"),
    (0x0000_564C, "ncp"),
    (0x5346_414F, "afs"),
    (0x6B41_4653, "afs"),
    (0x7375_7245, "coda"),
    (0x0102_1997, "9p"),
    (0x00C3_6400, "ceph"),
    (0x0BD0_0BD0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x1983_0326, "beegfs"),
    (0x2003_0528, "orangefs"),
    (0xAAD7_AAEA, "panfs"),
    (0x7461_636F, "ocfs2"),
    (0x0116_1970, "gfs2"),
    (0x786F_4256, "vboxsf"),
    (0xBACB_ACBC, "vmhgfs"),
];

const FUSE: u32 = 0x6573_5546;

/// FUSE file systems that keep their data on this machine; every other one (gluster, ceph, sshfs, s3, virtiofs …) is taken for a
/// network file system.
const LOCAL_FUSE: &[&str] = &["fuseblk", "fuse.fuse-overlayfs", "fuse.bindfs"];

/// The name of the network file system that holds `path`; `None` = a local one.
pub(crate) fn network(path: &Path) -> io::Result<Option<String>> {
    let magic = nix::sys::statfs::statfs(path)?.filesystem_type().0;
    // The field is a signed word whose upper half some kernels fill with the sign.
    let magic = (magic & 0xFFFF_FFFF) as u32;
    if magic != FUSE {
        return Ok(kind_of(magic).map(str::to_owned));
    }
    let device = fs::metadata(path)?.dev();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let kind = mount_kind(&mounts, nix::sys::stat::major(device), nix::sys::stat::minor(device)).unwrap_or("fuse");
    Ok((!LOCAL_FUSE.contains(&kind)).then(|| kind.to_owned()))
}

fn kind_of(magic: u32) -> Option<&'static str> {
    NETWORK.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

/// The type of the mount with this device number, from the text of `/proc/self/mountinfo` (proc(5)).
fn mount_kind(mounts: &str, major: u64, minor: u64) -> Option<&str> {
    let device = format!("{major}:{minor}");
    mounts.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        (mount.split(' ').nth(2)? == device).then(|| source.split(' ').next())?
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_and_names() {
        assert_eq!(kind_of(0x6969), Some("nfs"));
        for local in [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630] {
            assert_eq!(kind_of(local), None, "ext4, xfs, btrfs, tmpfs, overlayfs");
        }
        let mut numbers: Vec<u32> = NETWORK.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), NETWORK.len());
    }

    #[test]
    fn a_fuse_mount_is_known_by_its_type() {
        let mounts = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
                      40 27 0:44 / /mnt/g rw,nosuid shared:3 - fuse.glusterfs host:/vol rw\n\
                      41 27 8:1 / /mnt/n rw - fuseblk /dev/sda1 rw\n";
        assert_eq!(mount_kind(mounts, 0, 44), Some("fuse.glusterfs"));
        assert_eq!(mount_kind(mounts, 8, 1), Some("fuseblk"));
        assert_eq!(mount_kind(mounts, 0, 4), None);
    }

    #[test]
    fn a_temporary_folder_is_local() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(network(dir.path()).unwrap(), None);
    }
}

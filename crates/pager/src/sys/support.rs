//! What kernel and privileges allow.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use rustix::mm::UserfaultfdFlags;

use super::uffd::{Features, Uffd, agree};

/// How a userfaultfd can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `/dev/userfaultfd`, to which file permissions give access (Linux 6.1).
    Device,
    /// The system call: `CAP_SYS_PTRACE`, or `vm.unprivileged_userfaultfd` is 1.
    Call,
    /// The system call for faults in user space alone (Linux 5.11). A system call or a guest of KVM that touches a missing page
    /// fails then.
    UserModeOnly,
}

/// What kernel and privileges of this process allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Support {
    /// The best way to a descriptor; `None` if there is none.
    pub way: Option<Way>,
    /// What the kernel's userfaultfd can do.
    pub features: Features,
    /// Why `/dev/userfaultfd` cannot be used.
    device: Option<Errno>,
    /// Why the system call cannot be used.
    call: Option<Errno>,
    /// The kernel's release, if others may be able to change clean pages under it.
    doubtful: Option<String>,
}

/// `USERFAULTFD_IOC_NEW`.
const NEW: Opcode = opcode::none(linux_raw_sys::general::USERFAULTFD_IOC as u8, 0);

impl Way {
    fn open(self, flags: UserfaultfdFlags) -> rustix::io::Result<OwnedFd> {
        match self {
            Way::Device => from_device(flags),
            // SAFETY: a new descriptor changes no memory until something is registered.
            Way::Call => unsafe { rustix::mm::userfaultfd(flags) },
            Way::UserModeOnly => {
                let only =
                    UserfaultfdFlags::from_bits_retain(linux_raw_sys::general::UFFD_USER_MODE_ONLY);
                // SAFETY: as above.
                unsafe { rustix::mm::userfaultfd(flags | only) }
            }
        }
    }
}

fn from_device(flags: UserfaultfdFlags) -> rustix::io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;

    let device = open(
        "/dev/userfaultfd",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // SAFETY: the opcode takes the flags as a number and gives a new descriptor.
    let fd = unsafe {
        libc::ioctl(
            std::os::fd::AsRawFd::as_raw_fd(&device),
            NEW as _,
            flags.bits() as libc::c_ulong,
        )
    };
    match fd {
        // SAFETY: the kernel has just made it for us.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

impl Support {
    /// Asks the kernel. Some system calls.
    pub fn probe() -> Support {
        let flags = UserfaultfdFlags::CLOEXEC;
        let mut support = Support {
            way: None,
            features: Features::NONE,
            device: None,
            call: None,
            doubtful: None,
        };
        let release = rustix::system::uname();
        let release = release.release().to_string_lossy();
        if is_doubtful(&release) {
            support.doubtful = Some(release.into_owned());
        }
        for way in [Way::Device, Way::Call, Way::UserModeOnly] {
            match way
                .open(flags)
                .and_then(|fd| agree(fd.as_fd(), Features::NONE))
            {
                Ok(features) => {
                    support.way = Some(way);
                    support.features = features;
                    return support;
                }
                Err(error) if way == Way::Device => support.device = Some(error),
                Err(error) => support.call = Some(error),
            }
        }
        support
    }

    /// Whether clean pages can be one copy for all who map them ([`CleanPages`](crate::CleanPages)).
    pub fn can_share(&self) -> bool {
        let both = Features::MISSING_SHMEM.or(Features::MINOR_SHMEM);
        self.way.is_some() && self.features.contain(both)
    }

    /// Whether the kernel keeps clean pages from being changed by other processes that map them. Linux 5.14 to 5.19 may not: unless a fix was
    /// taken over, a process changes what all others read by Dirty Pipe (CVE-2022-0847, fixed in 5.16.11 and 5.15.25), or by writing with force to what it has
    /// mapped (CVE-2022-2590, from 5.16 on, fixed in 6.0). Where distributions have taken
    /// the fixes over, the release does not tell.
    pub fn can_offer(&self) -> bool {
        self.can_share() && self.doubtful.is_none()
    }

    /// Why clean pages are not offered to other processes, if this kernel is the reason.
    pub(crate) fn doubt(&self) -> Option<String> {
        let release = self.doubtful.as_ref()?;
        Some(format!(
            "Linux {release} may let other processes change clean pages (CVE-2022-0847, CVE-2022-2590): they are not offered to any. Use Linux 6.0 or later, or, if this kernel has both fixes or you trust those processes, `handoff::offer_in_spite`"
        ))
    }

    /// A descriptor with these features.
    pub(crate) fn open(&self, wanted: Features, nonblocking: bool) -> Result<Uffd, Errno> {
        let Some(way) = self.way else {
            return Err(self.call.unwrap_or(Errno::PERM));
        };
        let mut flags = UserfaultfdFlags::CLOEXEC;
        flags.set(UserfaultfdFlags::NONBLOCK, nonblocking);
        Uffd::new(way.open(flags)?, wanted)
    }

    /// What is missing and what to do about it, a sentence each; empty if nothing is.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        match self.way {
            None => missing.push(format!(
                "userfaultfd is not available: {}; {}. Allow it by one of: running as root; `setfacl -m u:USER:rw /dev/userfaultfd`; `sysctl vm.unprivileged_userfaultfd=1`",
                Because("/dev/userfaultfd", self.device),
                Because("userfaultfd(2)", self.call),
            )),
            Some(Way::UserModeOnly) => missing.push(
                "userfaultfd serves faults of user space alone here: a system call or a KVM guest that touches a missing page fails with EFAULT. Allow the rest by `setfacl -m u:USER:rw /dev/userfaultfd`, `sysctl vm.unprivileged_userfaultfd=1`, or as root".to_owned(),
            ),
            Some(_) => {}
        }
        if self.way.is_some() {
            for (feature, name, without) in [
                (
                    Features::SIGBUS,
                    "SIGBUS (Linux 4.14)",
                    "the engine `inline` cannot be used",
                ),
                (
                    Features::MINOR_SHMEM,
                    "MINOR of shared memory (Linux 5.14)",
                    "clean pages are copied for each mapping instead of being one copy",
                ),
                (
                    Features::POISON,
                    "POISON (Linux 6.6)",
                    "lost pages are made inaccessible instead, which only works for memory of this process",
                ),
                (
                    Features::MOVE,
                    "MOVE (Linux 6.8)",
                    "huge pages are copied in pieces of 4 KiB",
                ),
            ] {
                if !self.features.contain(feature) {
                    missing.push(format!("this kernel's userfaultfd lacks {name}: {without}"));
                }
            }
        }
        if self.can_share() {
            missing.extend(self.doubt());
        }
        missing
    }
}

/// Whether a kernel of this release has clean pages (5.14), and defects by which others change them (until 5.19). Of one that cannot be read
/// nothing is said.
fn is_doubtful(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse::<u32>().ok();
    matches!((next(), next()), (Some(5), Some(14..=19)))
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.way {
            Some(Way::Device) => f.write_str("userfaultfd by /dev/userfaultfd")?,
            Some(Way::Call) => f.write_str("userfaultfd by its system call")?,
            Some(Way::UserModeOnly) => f.write_str("userfaultfd for user space alone")?,
            None => f.write_str("no userfaultfd")?,
        }
        for missing in self.missing() {
            write!(f, "; {missing}")?;
        }
        Ok(())
    }
}

struct Because(&'static str, Option<Errno>);

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(error) => write!(f, "{}: {}", self.0, std::io::Error::from(error)),
            None => write!(f, "{}: usable", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Support {
        Support {
            way: None,
            features: Features::NONE,
            device: Some(Errno::ACCESS),
            call: Some(Errno::PERM),
            doubtful: None,
        }
    }

    #[test]
    fn who_may_not_is_told_how_to() {
        let text = refused().to_string();
        for word in [
            "/dev/userfaultfd: Permission denied",
            "userfaultfd(2): Operation not permitted",
            "setfacl",
            "vm.unprivileged_userfaultfd=1",
        ] {
            assert!(text.contains(word), "{word} in: {text}");
        }
    }

    #[test]
    fn old_kernels_are_told_apart() {
        let old = Support {
            way: Some(Way::UserModeOnly),
            features: Features::SIGBUS,
            device: None,
            call: None,
            doubtful: None,
        };
        let missing = old.missing();
        assert_eq!(missing.len(), 4, "{missing:?}");
        assert!(missing[0].contains("EFAULT") && missing[1].contains("MINOR"));
        assert!(missing[2].contains("POISON") && missing[3].contains("MOVE"));
        assert!(!old.can_share());
    }

    #[test]
    fn kernels_that_may_let_others_change_clean_pages_are_known_by_their_release() {
        for release in [
            "5.14.0-427.el9.x86_64",
            "5.15.0-1064-aws",
            "5.16",
            "5.19.17",
            "5.18-rc3",
            "5.17+",
        ] {
            assert!(is_doubtful(release), "{release}");
        }
        for release in [
            "5.13.19",
            "5.4.0",
            "5.20.1",
            "5.140.1",
            "6.0",
            "6.15.3",
            "4.18.0",
            "15.14.0",
            "5",
            "5.",
            "5..14",
            "",
            "-5.14",
            "five.fourteen",
            "5.99999999999999999999",
        ] {
            assert!(!is_doubtful(release), "{release}");
        }
    }

    #[test]
    fn clean_pages_are_shared_but_not_offered_where_others_may_change_them() {
        let mut support = Support {
            way: Some(Way::Call),
            features: Features::MISSING_SHMEM.or(Features::MINOR_SHMEM),
            ..refused()
        };
        assert!(support.can_share() && support.can_offer() && support.doubt().is_none());
        support.doubtful = Some("5.15.7".to_owned());
        assert!(support.can_share() && !support.can_offer());
        let text = support.to_string();
        for word in ["Linux 5.15.7", "CVE-2022-2590", "offer_in_spite"] {
            assert!(text.contains(word), "{word} in: {text}");
        }
        // Who cannot share has no such trouble.
        support.features = Features::NONE;
        assert!(!support.can_offer() && !support.to_string().contains("CVE"));
    }
}

//! Where the host's page is: a file that somebody names, or a device that QEMU calls `ivshmem-plain`.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use amdahl_phantom_page::{Foreign, ForeignError, ForeignPage, OpenError};

use crate::host::{Follower, Silence};
use crate::reading::HostReading;

/// PCI devices as the kernel shows them.
const DEVICES: &str = "/sys/bus/pci/devices";
/// Vendor and device of ivshmem, as text of sysfs.
const IVSHMEM: (&str, &str) = ("0x1af4", "0x1110");
/// Its shared memory is BAR 2.
const RESOURCE: &str = "resource2";
/// Between two attempts to open what could not be used.
const RETRY_NS: u64 = 1_000_000_000;

/// The page that the host of this guest publishes, if there is one.
#[derive(Debug)]
pub struct HostPage {
    candidates: Vec<PathBuf>,
    is_named: bool,
    /// The one that is followed, by its number among the candidates.
    open: Option<(usize, ForeignPage)>,
    /// Why none is, of the candidate that came nearest.
    trouble: Option<(usize, ForeignError)>,
    retry_ns: u64,
    follower: Follower,
}

impl HostPage {
    /// The one at `path`.
    ///
    /// # Errors
    /// When it cannot be opened. What is in it is looked at later, again and again.
    pub fn named(path: &Path) -> Result<HostPage, OpenError> {
        let mut page = HostPage::among(vec![path.to_owned()], true);
        page.open = Some((0, open(path)?));
        Ok(page)
    }

    /// That of any device of this machine that may have one; `None` where there is no such device.
    pub fn found() -> Option<HostPage> {
        HostPage::found_below(Path::new(DEVICES))
    }

    fn found_below(devices: &Path) -> Option<HostPage> {
        let says = |file: PathBuf, word: &str| {
            fs::read_to_string(file).is_ok_and(|text| text.trim_end() == word)
        };
        let entries = fs::read_dir(devices).ok()?.flatten();
        let mut candidates: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|device| {
                says(device.join("vendor"), IVSHMEM.0) && says(device.join("device"), IVSHMEM.1)
            })
            .map(|device| device.join(RESOURCE))
            .collect();
        candidates.sort();
        (!candidates.is_empty()).then(|| HostPage::among(candidates, false))
    }

    fn among(candidates: Vec<PathBuf>, is_named: bool) -> HostPage {
        HostPage {
            candidates,
            is_named,
            open: None,
            trouble: None,
            retry_ns: 0,
            follower: Follower::default(),
        }
    }

    /// Looks at it, at `now_ns` of our clock.
    pub(crate) fn look(&mut self, now_ns: u64) -> Option<HostReading> {
        if self.open.is_none() && now_ns >= self.retry_ns {
            self.retry_ns = now_ns.saturating_add(RETRY_NS);
            self.choose();
        }
        if let Some((i, page)) = &self.open {
            let seen = page.read();
            self.follower.look(now_ns, seen);
            if let Err(error @ ForeignError::Open(_)) = seen {
                // Another may have come in its place.
                self.trouble = Some((*i, error));
                self.open = None;
                self.retry_ns = now_ns.saturating_add(RETRY_NS);
            }
        }
        self.follower.reading()
    }

    /// Opens the first candidate that is a page.
    fn choose(&mut self) {
        self.trouble = None;
        for (i, path) in self.candidates.iter().enumerate() {
            let tried = open(path)
                .map_err(ForeignError::Open)
                .and_then(|page| match page.read() {
                    Err(error @ ForeignError::Open(_)) => Err(error),
                    _ => Ok(page),
                });
            match tried {
                Ok(page) => {
                    self.follower = Follower::default();
                    self.open = Some((i, page));
                    return;
                }
                Err(error) => {
                    let is_foreign = |error| error == ForeignError::Open(OpenError::NoMagic);
                    if self.trouble.is_none_or(|(_, before)| is_foreign(before)) {
                        self.trouble = Some((i, error));
                    }
                }
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        let of_open = self.open.as_ref().map(|(i, _)| *i);
        let i = of_open.or(self.trouble.map(|(i, _)| i)).unwrap_or(0);
        &self.candidates[i]
    }

    /// What it said last, if it is used.
    ///
    /// # Errors
    /// Why it is not used.
    pub fn fresh(&self) -> Result<Foreign, Silence> {
        match (&self.open, self.trouble) {
            (None, Some((_, error))) => Err(Silence::Unreadable(error)),
            _ => self.follower.fresh(),
        }
    }

    /// Nobody has named it, and the device serves something else.
    pub fn is_something_else(&self) -> bool {
        !self.is_named && self.fresh().err() == Some(Silence::Unreadable(OpenError::NoMagic.into()))
    }
}

fn open(path: &Path) -> Result<ForeignPage, OpenError> {
    // A path with a zero in it leads nowhere.
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| OpenError::NotFound)?;
    ForeignPage::open(&path)
}

#[cfg(test)]
mod tests {
    use amdahl_phantom_page::{Cpus, Publisher, Snapshot, Source};

    use super::*;

    const MS: u64 = 1_000_000;

    fn tick(ticks: u64) -> Snapshot {
        Snapshot {
            time_ns: 1,
            ticks,
            tick_us: 20_000,
            window_us: 100_000,
            runnable: Cpus::whole(2),
            allowed: 4,
            ..Snapshot::default()
        }
    }

    fn device(devices: &Path, address: &str, (vendor, device): (&str, &str)) -> PathBuf {
        let folder = devices.join(address);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("vendor"), format!("{vendor}\n")).unwrap();
        fs::write(folder.join("device"), format!("{device}\n")).unwrap();
        folder.join(RESOURCE)
    }

    #[test]
    fn the_device_that_has_a_page_is_found_also_when_it_comes_late() {
        let folder = tempfile::tempdir().unwrap();
        assert!(HostPage::found_below(&folder.path().join("none")).is_none());
        device(folder.path(), "0000:00:00.0", (IVSHMEM.0, "0x1000"));
        device(folder.path(), "0000:00:01.0", ("0x8086", IVSHMEM.1));
        assert!(HostPage::found_below(folder.path()).is_none());
        let foreign = device(folder.path(), "0000:00:02.0", IVSHMEM);
        fs::write(&foreign, [b'x'; 4096]).unwrap();
        let path = device(folder.path(), "0000:00:03.0", IVSHMEM);
        fs::write(&path, [0; 8192]).unwrap();
        let mut page = HostPage::found_below(folder.path()).unwrap();
        assert_eq!(page.look(100 * MS), None);
        assert!(page.is_something_else(), "{page:?}");

        let mut publisher = Publisher::keeping(&path, Source::Proc).unwrap();
        publisher.publish(tick(1));
        assert_eq!(page.look(200 * MS), None, "not tried again yet");
        assert_eq!(page.look(1100 * MS), None, "not known to live yet");
        assert_eq!(page.fresh(), Err(Silence::Unchanged));
        publisher.publish(tick(2));
        assert!(page.look(1200 * MS).is_some());
        assert_eq!(page.path(), path);
        assert_eq!(page.fresh().unwrap().writer, std::process::id());
        drop(publisher);
        assert_eq!(page.look(1300 * MS), None);
        assert!(!page.is_something_else());
    }

    #[test]
    fn a_named_page_must_be_a_file_and_may_be_anything() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        assert_eq!(HostPage::named(&path).err(), Some(OpenError::NotFound));
        assert_eq!(
            HostPage::named(folder.path()).err(),
            Some(OpenError::NotAPage)
        );
        fs::write(&path, [1; 4096]).unwrap();
        let mut page = HostPage::named(&path).unwrap();
        assert_eq!(page.look(100 * MS), None);
        assert_eq!(
            page.fresh(),
            Err(Silence::Unreadable(OpenError::NoMagic.into()))
        );
        assert!(!page.is_something_else());
    }
}

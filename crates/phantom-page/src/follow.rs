//! The page of a process over time: it may come late, or be another one later.

use core::fmt;

use crate::reader::{Finder, Reader};
use crate::snapshot::Snapshot;

/// Where there is no page that is fresh, one is sought no more often than this.
const SEEK_NS: u64 = 1_000_000_000;

/// The page of this process, sought again where none is fresh.
pub struct Followed {
    finder: Finder,
    reader: Option<Reader>,
    /// When it was sought last, if it was.
    sought_ns: Option<u64>,
}

impl Followed {
    /// Nothing is sought yet.
    pub fn new(finder: Finder) -> Followed {
        Followed {
            finder,
            reader: None,
            sought_ns: None,
        }
    }

    /// Whether a page was found, fresh or not.
    pub fn is_found(&self) -> bool {
        self.reader.is_some()
    }

    /// What the page says at `now_ns`, for which [`coarse_now_ns`](crate::coarse_now_ns) is good enough, if it is fresh. If it
    /// is not, or there is none, it is sought, once a second at most: some system calls.
    pub fn read(&mut self, now_ns: u64) -> Option<Snapshot> {
        let Followed {
            finder,
            reader,
            sought_ns,
        } = self;
        read(reader, sought_ns, now_ns, || finder.find().ok())
    }
}

impl fmt::Debug for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Followed")
            .field("finder", &self.finder)
            .field("reader", &self.reader)
            .finish()
    }
}

fn read(
    reader: &mut Option<Reader>,
    sought_ns: &mut Option<u64>,
    now_ns: u64,
    find: impl FnOnce() -> Option<Reader>,
) -> Option<Snapshot> {
    let fresh = |reader: &Option<Reader>| reader.as_ref()?.read_fresh(now_ns).ok();
    let is_due = |sought_ns| now_ns.saturating_sub(sought_ns) >= SEEK_NS;
    let snapshot = fresh(reader);
    if snapshot.is_some() || !sought_ns.is_none_or(is_due) {
        return snapshot;
    }
    *sought_ns = Some(now_ns);
    // Where none is found, the writer of the old one may come back.
    *reader = find().or(reader.take());
    fresh(reader)
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use std::cell::Cell;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use crate::{Publisher, Source};

    /// A page was sought once, when it was first wanted: one that came later, or was made anew, was never read.
    #[test]
    fn a_page_that_comes_late_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        let sought = Cell::new(0);
        let (mut reader, mut sought_ns) = (None, None);
        let mut ticks = |now_ns| {
            let find = || {
                sought.set(sought.get() + 1);
                Reader::open(&name).ok()
            };
            read(&mut reader, &mut sought_ns, now_ns, find).map(|snapshot| snapshot.ticks)
        };
        let publish = |time_ns, ticks| {
            let mut publisher = Publisher::create(&path, Source::Proc).unwrap();
            publisher.publish(Snapshot {
                time_ns,
                ticks,
                tick_us: 100_000,
                window_us: 100_000,
                allowed: 16,
                ..Snapshot::default()
            });
            publisher
        };
        let at = |ms: u64| 1_000_000_000_000 + ms * 1_000_000;
        assert_eq!(ticks(at(0)), None);
        let first = publish(at(100), 1);
        assert_eq!((ticks(at(999)), sought.get()), (None, 1));
        assert_eq!((ticks(at(1_000)), sought.get()), (Some(1), 2));
        // Its writer is gone, and another one has come.
        drop(first);
        assert_eq!((ticks(at(1_500)), sought.get()), (None, 2));
        assert_eq!((ticks(at(2_500)), sought.get()), (None, 3));
        let _second = publish(at(3_400), 2);
        assert_eq!((ticks(at(3_499)), sought.get()), (None, 3));
        assert_eq!((ticks(at(3_500)), sought.get()), (Some(2), 4));
        assert_eq!((ticks(at(4_400)), sought.get()), (Some(2), 4));
    }
}

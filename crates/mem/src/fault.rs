//! Page faults by kind and by the code that met them.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::mapping::Backing;
use crate::spaces::Region;
use crate::tally::{Tallies, Tally};

/// Why the processor could not go on, as its error code tells (x86-64).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reason {
    /// There was a page; what was done with it was not allowed.
    pub present: bool,
    /// It was written to.
    pub write: bool,
    /// Instructions were fetched.
    pub fetch: bool,
}

/// A page fault that was handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// When it was done, monotonic nanoseconds.
    pub at: u64,
    /// How long it took, with what it waited for.
    pub ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// CPU at the end.
    pub cpu: u32,
    /// Address that was used.
    pub address: u64,
    /// Unknown where the processor's error code is not to be had.
    pub reason: Option<Reason>,
    /// It read from a device, or was handled at the second attempt.
    pub is_major: bool,
    /// In a system call of this number, which used memory of the program.
    pub syscall: Option<u32>,
    /// Hash of the code.
    pub place: u32,
    /// Small pages of the memory that was allocated for it, 0 if none was: it mapped what was there. Unknown where the
    /// kernel does not tell.
    pub allocated: Option<u64>,
}

impl Fault {
    /// Small pages that were placed by a fault of this kind, on the node of its CPU if no policy says otherwise: the first use
    /// of memory, or of a copy of one's own. Where the kernel does not tell what it allocated, first uses count as
    /// one page each, of whatever size.
    pub fn placed(&self, kind: Kind) -> u64 {
        match (kind, self.allocated) {
            (Kind::FirstTouch | Kind::Shmem | Kind::CopyOnWrite, Some(pages)) => pages,
            (Kind::FirstTouch | Kind::Shmem, None) => 1,
            _ => 0,
        }
    }
}

/// What a fault did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// Memory without a file was used for the first time. Where the error code is not known,
    /// copies on writing are among these.
    FirstTouch,
    /// A page of a file that was in memory already was mapped.
    FileMinor,
    /// A page of a file was read from its device.
    FileMajor,
    /// A page of shared memory was used for the first time by this process.
    Shmem,
    /// A page was read from a swap device, or waited for (userfaultfd, a busy page).
    SwapIn,
    /// A page of a hugetlb pool.
    Hugetlb,
    /// A page was copied on writing: after fork, or of a file that is mapped privately.
    CopyOnWrite,
    /// A page of a shared mapping was written to for the first time, which is noted.
    WriteNotify,
    /// Another thread had made the page available meanwhile, or the TLB was behind.
    Raced,
    /// In no mapping that is known.
    Unknown,
}

impl Kind {
    /// All there are.
    pub const ALL: [Kind; 10] = [
        Kind::FirstTouch,
        Kind::FileMinor,
        Kind::FileMajor,
        Kind::Shmem,
        Kind::SwapIn,
        Kind::Hugetlb,
        Kind::CopyOnWrite,
        Kind::WriteNotify,
        Kind::Raced,
        Kind::Unknown,
    ];

    /// Stable name.
    pub fn id(self) -> &'static str {
        match self {
            Kind::FirstTouch => "first-touch",
            Kind::FileMinor => "file-minor",
            Kind::FileMajor => "file-major",
            Kind::Shmem => "shmem",
            Kind::SwapIn => "swap-in",
            Kind::Hugetlb => "hugetlb",
            Kind::CopyOnWrite => "copy-on-write",
            Kind::WriteNotify => "write-notify",
            Kind::Raced => "raced",
            Kind::Unknown => "unknown",
        }
    }
}

/// Where faults are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// What they did; `None` only for what was folded.
    pub kind: Option<Kind>,
    /// Process.
    pub pid: u32,
    /// Code.
    pub place: u32,
    /// System call they were part of.
    pub syscall: Option<u32>,
}

/// Places that are told apart; those with the least time are folded into one of their kind.
const SITES_MAX: usize = 1 << 14;
/// Pages remembered to see that two threads fault on the same one.
const RECENT: usize = 1 << 12;

/// What the pages of a site were of.
pub type Object = Arc<str>;

/// Faults of a recording, added up.
#[derive(Clone, Debug)]
pub struct Faults {
    page: u64,
    sites: Tallies<Site>,
    kinds: FxHashMap<Kind, Tally>,
    objects: FxHashMap<Site, Object>,
    recent: Box<[Recent]>,
}

/// The last fault on a page that fell into this slot.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    pid: u32,
    tid: u32,
    page: u64,
    at: u64,
    write: bool,
}

impl Faults {
    /// None yet; pages have `page` bytes.
    pub fn new(page: u64) -> Faults {
        Faults {
            page: page.max(1),
            sites: Tallies::new(SITES_MAX),
            kinds: FxHashMap::default(),
            objects: FxHashMap::default(),
            recent: vec![Recent::default(); RECENT].into(),
        }
    }

    /// Adds a fault in `region`. Faults come in the order of their ends; constant time.
    pub fn add(&mut self, fault: &Fault, region: Option<&Region>) -> Kind {
        let mut kind = kind(fault, region);
        if self.is_raced(fault) {
            kind = Kind::Raced;
        }
        let site = Site {
            kind: Some(kind),
            pid: fault.pid,
            place: fault.place,
            syscall: fault.syscall,
        };
        self.kinds.entry(kind).or_default().add(fault.ns);
        let folded = self.sites.add(site, fault.ns, |site| Site {
            kind: site.kind,
            ..Site::default()
        });
        if folded {
            let sites = &self.sites;
            self.objects.retain(|site, _| sites.get(site).is_some());
        }
        if let Some(region) = region {
            self.objects
                .entry(site)
                .or_insert_with(|| Arc::clone(&region.name));
        }
        kind
    }

    /// Counts and times by kind.
    pub fn kinds(&self) -> impl Iterator<Item = (Kind, Tally)> + '_ {
        Kind::ALL
            .into_iter()
            .filter_map(|kind| Some((kind, *self.kinds.get(&kind)?)))
    }

    /// Counts and times by place, those with the most time first.
    pub fn sites(&self) -> Vec<(Site, Tally, Option<&Object>)> {
        let sites = self.sites.sorted();
        let object = |site: &Site| self.objects.get(site);
        sites
            .into_iter()
            .map(|(site, tally)| (site, tally, object(&site)))
            .collect()
    }

    /// The page was made available by another thread between begin and end of this fault.
    fn is_raced(&mut self, fault: &Fault) -> bool {
        let page = fault.address / self.page;
        let hash = (page ^ u64::from(fault.pid) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let recent = &mut self.recent[(hash >> 52) as usize & (RECENT - 1)];
        let write = fault.reason.is_some_and(|reason| reason.write);
        let is_same = (recent.pid, recent.page) == (fault.pid, page) && recent.tid != fault.tid;
        let began = fault.at.saturating_sub(fault.ns);
        let raced = is_same
            && !fault.is_major
            && (began..=fault.at).contains(&recent.at)
            && recent.write >= write;
        *recent = Recent {
            pid: fault.pid,
            tid: fault.tid,
            page,
            at: fault.at,
            write,
        };
        raced
    }
}

fn kind(fault: &Fault, region: Option<&Region>) -> Kind {
    let reason = fault.reason.unwrap_or_default();
    let Some(region) = region else {
        return Kind::Unknown;
    };
    if region.backing == Backing::Hugetlb {
        return Kind::Hugetlb;
    }
    if reason.present && !reason.write {
        // What is there may be read: the entry was not seen in time.
        return Kind::Raced;
    }
    if reason.present {
        let notified = region.is_shared && region.backing == Backing::File;
        return match (notified, region.is_shared) {
            (true, _) => Kind::WriteNotify,
            (false, true) => Kind::Raced,
            (false, false) => Kind::CopyOnWrite,
        };
    }
    match (region.backing, fault.is_major) {
        (Backing::File, true) => Kind::FileMajor,
        (Backing::File, false) if reason.write && !region.is_shared => Kind::CopyOnWrite,
        (Backing::File, false) => Kind::FileMinor,
        (_, true) => Kind::SwapIn,
        (Backing::Shmem, false) => Kind::Shmem,
        _ => Kind::FirstTouch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn region(backing: Backing, is_shared: bool) -> Region {
        Region {
            start: 0,
            end: u64::MAX,
            backing,
            is_shared,
            name: "x".into(),
        }
    }

    fn fault(present: bool, write: bool) -> Fault {
        let reason = Some(Reason {
            present,
            write,
            fetch: false,
        });
        Fault {
            reason,
            ..Fault::default()
        }
    }

    #[test]
    fn kinds_are_told_by_mapping_and_error_code() {
        let of = |fault: &Fault, backing, is_shared| kind(fault, Some(&region(backing, is_shared)));
        let anonymous = Backing::Anonymous;
        assert_eq!(of(&fault(false, true), anonymous, false), Kind::FirstTouch);
        assert_eq!(of(&fault(true, true), anonymous, false), Kind::CopyOnWrite);
        assert_eq!(of(&fault(true, false), anonymous, false), Kind::Raced);
        assert_eq!(
            of(&fault(false, false), Backing::File, false),
            Kind::FileMinor
        );
        assert_eq!(
            of(&fault(false, true), Backing::File, false),
            Kind::CopyOnWrite
        );
        assert_eq!(
            of(&fault(true, true), Backing::File, true),
            Kind::WriteNotify
        );
        assert_eq!(
            of(&fault(false, true), Backing::File, true),
            Kind::FileMinor
        );
        assert_eq!(of(&fault(false, true), Backing::Shmem, true), Kind::Shmem);
        assert_eq!(
            of(&fault(false, true), Backing::Hugetlb, false),
            Kind::Hugetlb
        );
        let major = Fault {
            is_major: true,
            ..fault(false, false)
        };
        assert_eq!(of(&major, Backing::File, true), Kind::FileMajor);
        assert_eq!(of(&major, anonymous, false), Kind::SwapIn);
        assert_eq!(kind(&major, None), Kind::Unknown);
    }

    #[test]
    fn memory_is_placed_by_who_uses_it_first_not_by_who_maps_it() {
        let fault = |allocated| Fault {
            allocated,
            ..Fault::default()
        };
        let huge = fault(Some(512));
        for kind in [Kind::FirstTouch, Kind::Shmem, Kind::CopyOnWrite] {
            assert_eq!(huge.placed(kind), 512);
            // The page of zeros, a page of another process, a hint to NUMA balancing.
            assert_eq!(fault(Some(0)).placed(kind), 0);
        }
        // Read ahead; allocated and thrown away.
        assert_eq!(huge.placed(Kind::FileMajor), 0);
        assert_eq!(huge.placed(Kind::Raced), 0);
        let unknown = fault(None);
        let placed = Kind::ALL.map(|kind| unknown.placed(kind));
        assert_eq!(placed, [1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn the_second_of_two_threads_on_a_page_raced() {
        let region = region(Backing::Anonymous, false);
        let mut faults = Faults::new(4096);
        let at = |tid, at, ns, address| Fault {
            tid,
            at,
            ns,
            address,
            pid: 1,
            ..fault(false, true)
        };
        assert_eq!(
            faults.add(&at(1, 100, 50, 4096), Some(&region)),
            Kind::FirstTouch
        );
        assert_eq!(
            faults.add(&at(2, 120, 60, 4100), Some(&region)),
            Kind::Raced
        );
        // Another page, and one that began later (it was given back meanwhile).
        assert_eq!(
            faults.add(&at(2, 125, 60, 8192), Some(&region)),
            Kind::FirstTouch
        );
        assert_eq!(
            faults.add(&at(1, 300, 10, 4096), Some(&region)),
            Kind::FirstTouch
        );
        let kinds: Vec<_> = faults
            .kinds()
            .map(|(kind, tally)| (kind, tally.count))
            .collect();
        assert_eq!(kinds, [(Kind::FirstTouch, 3), (Kind::Raced, 1)]);
        assert_eq!(faults.sites()[0].2.map(|name| &**name), Some("x"));
    }

    #[test]
    fn many_places_are_folded_and_none_is_lost() {
        let region = region(Backing::Anonymous, false);
        let mut faults = Faults::new(4096);
        let count = 3 * SITES_MAX as u64;
        for i in 0..count {
            let fault = Fault {
                place: i as u32,
                ns: 1,
                at: i,
                address: i << 12,
                ..fault(false, true)
            };
            faults.add(&fault, Some(&region));
        }
        let sites = faults.sites();
        assert!(sites.len() <= SITES_MAX + 1);
        assert_eq!(
            sites.iter().map(|(_, tally, _)| tally.count).sum::<u64>(),
            count
        );
        assert!(faults.objects.len() <= 2 * SITES_MAX);
    }

    proptest! {
        #[test]
        fn kinds_and_places_agree(events in proptest::collection::vec(
            (any::<u64>(), any::<u64>(), 0u32..4, 0u64..1 << 14, any::<[bool; 4]>()), 0..100)) {
            let mut faults = Faults::new(4096);
            for &(at, ns, tid, address, [present, write, is_major, known]) in &events {
                let fault = Fault { at, ns, tid, address, is_major, ..fault(present, write) };
                let region = region(Backing::Anonymous, false);
                faults.add(&fault, known.then_some(&region));
            }
            let by_kind: u64 = faults.kinds().map(|(_, tally)| tally.count).sum();
            let by_site: u64 = faults.sites().iter().map(|(_, tally, _)| tally.count).sum();
            prop_assert_eq!((by_kind, by_site), (events.len() as u64, events.len() as u64));
        }
    }
}

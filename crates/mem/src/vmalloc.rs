//! Address ranges that the kernel maps for itself (vmalloc): thread stacks, modules, BPF, tables.
//!
//! Ranges are freed lazily: their translations stay in all TLBs until a purge, which interrupts all
//! CPUs. Many short-lived ranges therefore cost everybody.

use crate::tally::{Tallies, Tally};

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A range was looked for.
    Alloc {
        /// Process in whose context.
        pid: u32,
        /// System call, if in one.
        syscall: Option<u32>,
        /// Bytes.
        bytes: u64,
        /// There was none.
        failed: bool,
    },
    /// A range was given back, its translations not yet.
    Free {
        /// Pages that wait for a purge.
        lazy_pages: u64,
    },
    /// Translations were removed from all TLBs.
    Purge {
        /// Ranges that became free.
        ranges: u64,
        /// Bytes of addresses from the first to the last.
        bytes: u64,
    },
}

/// Who allocates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// Process.
    pub pid: u32,
    /// System call.
    pub syscall: Option<u32>,
}

/// Processes and calls that are told apart.
const SITES_MAX: usize = 1 << 12;

/// Events added up.
#[derive(Clone, Debug)]
pub struct Vmalloc {
    /// Ranges allocated.
    pub allocs: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Ranges that were refused.
    pub failed: u64,
    /// Ranges given back.
    pub frees: u64,
    /// Most pages that waited for a purge.
    pub lazy_pages_max: u64,
    /// Purges, each of which interrupts all CPUs.
    pub purges: u64,
    /// Ranges that they freed.
    pub purged: u64,
    /// By site; the "times" of these tallies are bytes.
    sites: Tallies<Site>,
}

impl Default for Vmalloc {
    fn default() -> Vmalloc {
        Vmalloc {
            allocs: 0,
            bytes: 0,
            failed: 0,
            frees: 0,
            lazy_pages_max: 0,
            purges: 0,
            purged: 0,
            sites: Tallies::new(SITES_MAX),
        }
    }
}

impl Vmalloc {
    /// Adds an event. Constant time.
    pub fn add(&mut self, event: Event) {
        match event {
            Event::Alloc {
                pid,
                syscall,
                bytes,
                failed,
            } => {
                if failed {
                    self.failed += 1;
                    return;
                }
                self.allocs += 1;
                self.bytes = self.bytes.saturating_add(bytes);
                let tally = Tally {
                    count: 1,
                    ns: bytes,
                    max_ns: bytes,
                };
                self.sites
                    .merge(Site { pid, syscall }, tally, |_| Site::default());
            }
            Event::Free { lazy_pages } => {
                self.frees += 1;
                self.lazy_pages_max = self.lazy_pages_max.max(lazy_pages);
            }
            Event::Purge { ranges, .. } => {
                self.purges += 1;
                self.purged = self.purged.saturating_add(ranges);
            }
        }
    }

    /// Who allocated: count, bytes, largest; most bytes first.
    pub fn sites(&self) -> impl Iterator<Item = (Site, u64, u64, u64)> {
        let sites = self.sites.sorted().into_iter();
        sites.map(|(site, tally)| (site, tally.count, tally.ns, tally.max_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_added_up() {
        let mut all = Vmalloc::default();
        let alloc = |pid, bytes, failed| Event::Alloc {
            pid,
            syscall: Some(56),
            bytes,
            failed,
        };
        for event in [
            alloc(1, 100, false),
            alloc(2, 1000, false),
            alloc(1, 50, false),
            alloc(1, 1 << 40, true),
            Event::Free { lazy_pages: 8 },
            Event::Free { lazy_pages: 3 },
            Event::Purge {
                ranges: 2,
                bytes: 1 << 30,
            },
        ] {
            all.add(event);
        }
        assert_eq!((all.allocs, all.bytes, all.failed), (3, 1150, 1));
        assert_eq!(
            (all.frees, all.lazy_pages_max, all.purges, all.purged),
            (2, 8, 1, 2)
        );
        let sites: Vec<_> = all.sites().collect();
        assert_eq!((sites[0].0.pid, sites[0].2), (2, 1000));
        assert_eq!((sites[1].1, sites[1].2, sites[1].3), (2, 150, 100));
    }
}

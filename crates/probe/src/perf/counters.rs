//! Counters of a workload: how often something happened, without samples.

use std::io;
use std::os::fd::OwnedFd;

use perf_event_open_sys::bindings as b;

use super::{enable, open};

/// What is counted, in user code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Counted {
    /// Instructions.
    Instructions,
    /// Loads that missed the TLB of data.
    DataLoadMisses,
    /// Stores that missed the TLB of data.
    DataStoreMisses,
    /// Fetches that missed the TLB of instructions.
    FetchMisses,
}

impl Counted {
    /// All there are.
    pub const ALL: [Counted; 4] = [
        Counted::Instructions,
        Counted::DataLoadMisses,
        Counted::DataStoreMisses,
        Counted::FetchMisses,
    ];

    /// Type and number of the event.
    fn event(self) -> (u32, u64) {
        let misses = |cache: u32, operation: u32| {
            let result = b::PERF_COUNT_HW_CACHE_RESULT_MISS;
            (
                b::PERF_TYPE_HW_CACHE,
                u64::from(cache | operation << 8 | result << 16),
            )
        };
        let (data, code) = (b::PERF_COUNT_HW_CACHE_DTLB, b::PERF_COUNT_HW_CACHE_ITLB);
        let (read, write) = (
            b::PERF_COUNT_HW_CACHE_OP_READ,
            b::PERF_COUNT_HW_CACHE_OP_WRITE,
        );
        match self {
            Counted::Instructions => (b::PERF_TYPE_HARDWARE, b::PERF_COUNT_HW_INSTRUCTIONS.into()),
            Counted::DataLoadMisses => misses(data, read),
            Counted::DataStoreMisses => misses(data, write),
            Counted::FetchMisses => misses(code, read),
        }
    }
}

/// Whose events are counted.
#[derive(Clone, Copy, Debug)]
pub enum Whose<'a> {
    /// Of these threads and all that come of them.
    Threads(&'a [u32]),
    /// Of everybody on these CPUs.
    Cpus(&'a [u32]),
}

/// A count, and for how long (in nanoseconds, over all threads) it was wanted and counted: where
/// there are too few counters they take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Events.
    pub value: u64,
    /// Time enabled.
    pub enabled: u64,
    /// Time running.
    pub running: u64,
}

/// Counters that run from when they are opened until they are dropped.
pub struct Counters {
    events: Vec<(Counted, Vec<OwnedFd>)>,
}

impl Counters {
    /// Opens those that this machine has.
    ///
    /// # Errors
    /// Where there is none for instructions: `ENOENT` or `EOPNOTSUPP` without hardware counters
    /// (many virtual machines), `EACCES` where they are for privileged users. `EMFILE` where there are too many threads.
    pub fn open(whose: Whose<'_>) -> io::Result<Counters> {
        let mut events = Vec::new();
        for counted in Counted::ALL {
            let opened: io::Result<Vec<OwnedFd>> = match whose {
                Whose::Threads(tids) => tids
                    .iter()
                    .filter_map(|&tid| match one(counted, tid as i32, -1) {
                        // It has ended meanwhile.
                        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
                        opened => Some(opened),
                    })
                    .collect(),
                Whose::Cpus(cpus) => {
                    let each = cpus.iter().map(|&cpu| one(counted, -1, cpu as i32));
                    each.collect()
                }
            };
            match opened {
                Ok(opened) => events.push((counted, opened)),
                Err(error) if counted == Counted::Instructions => return Err(error),
                Err(error) if is_not_had(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Counters { events })
    }

    /// What was counted so far. What there is no counter for is not in it.
    pub fn read(&self) -> Vec<(Counted, Count)> {
        let sum = |events: &[OwnedFd]| {
            let counts = events.iter().filter_map(|event| count(event).ok());
            counts.fold(Count::default(), |sum, more| Count {
                value: sum.value.saturating_add(more.value),
                enabled: sum.enabled.saturating_add(more.enabled),
                running: sum.running.saturating_add(more.running),
            })
        };
        let all = self.events.iter();
        all.map(|(counted, events)| (*counted, sum(events)))
            .collect()
    }
}

/// Some processors do not have all. Whatever else is the matter is told.
fn is_not_had(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV)
    )
}

fn one(counted: Counted, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    let (kind, config) = counted.event();
    let mut attr = b::perf_event_attr {
        type_: kind,
        config,
        read_format: (b::PERF_FORMAT_TOTAL_TIME_ENABLED | b::PERF_FORMAT_TOTAL_TIME_RUNNING).into(),
        ..Default::default()
    };
    attr.set_disabled(1);
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    attr.set_inherit(u64::from(cpu < 0));
    let event = open(&mut attr, pid, cpu)?;
    enable(&event, true)?;
    Ok(event)
}

fn count(event: &OwnedFd) -> io::Result<Count> {
    let mut bytes = [0; 24];
    rustix::io::read(event, &mut bytes[..])?;
    let word = |at: usize| {
        let word = bytes[at * 8..at * 8 + 8].try_into();
        u64::from_ne_bytes(word.expect("eight bytes"))
    };
    Ok(Count {
        value: word(0),
        enabled: word(1),
        running: word(2),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lack of descriptors was taken for one of the processor: misses of the TLB were missing without a word.
    #[test]
    fn only_what_the_processor_does_not_have_is_done_without() {
        let is_not_had = |errno| is_not_had(&io::Error::from_raw_os_error(errno));
        assert!(is_not_had(libc::ENOENT) && is_not_had(libc::EOPNOTSUPP));
        assert!(!is_not_had(libc::EMFILE) && !is_not_had(libc::EACCES));
    }

    #[test]
    fn our_own_instructions_are_counted_where_there_are_counters() {
        let me = [rustix::thread::gettid().as_raw_nonzero().get() as u32];
        let counters = match Counters::open(Whose::Threads(&me)) {
            Ok(counters) => counters,
            Err(error) => return println!("SKIPPED: hardware counters: {error}"),
        };
        let counts = counters.read();
        assert_eq!(counts[0].0, Counted::Instructions);
        assert!(counts[0].1.value > 0 || counts[0].1.running == 0);
    }
}

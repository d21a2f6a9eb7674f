//! What an event costs here: two threads hand a byte to and fro on one CPU, with the hooks and without.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::thread::{CpuSet, Pid, sched_setaffinity};

use crate::clock;

/// Exchanges in one round, of about 5 µs.
const EXCHANGES: u32 = 256;
/// Rounds with the hooks, and as many without: the fastest of each is not disturbed by others.
const ROUNDS: u32 = 6;
/// In a loop of two threads all that the hooks need is in the nearest caches. Under programs it is not, and they displace
/// what is the program's: half as much again is a guess, and one in the program's favour.
const IN_PROGRAMS: f64 = 1.5;
/// Neither more nor less is believed.
const PLAUSIBLE_NS: std::ops::RangeInclusive<f64> = 50.0..=2000.0;
/// What is taken for it where it cannot be measured.
pub const USUAL_NS: f64 = 250.0;

/// Two threads that exchange bytes on `cpu` when told to.
pub struct Pair {
    pub tids: [u32; 2],
    go: Sender<()>,
    took: Receiver<u64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Pair {
    /// They sleep until the first round.
    pub fn new(cpu: u32) -> io::Result<Pair> {
        let (mut here, mut there) = UnixStream::pair()?;
        let (go, gone) = mpsc::channel::<()>();
        let (give, took) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let tell_too = tell.clone();
        let asking = std::thread::Builder::new().name("amdahl-ask".into());
        let asking = asking.spawn(move || {
            let _ = tell.send(confine(cpu));
            let mut byte = [0];
            while gone.recv().is_ok() {
                let begun = clock::monotonic();
                for _ in 0..EXCHANGES {
                    if here
                        .write_all(&byte)
                        .and_then(|()| here.read_exact(&mut byte))
                        .is_err()
                    {
                        return;
                    }
                }
                let _ = give.send(clock::monotonic() - begun);
            }
        })?;
        let answering = std::thread::Builder::new().name("amdahl-answer".into());
        let answering = answering.spawn(move || {
            let _ = tell_too.send(confine(cpu));
            let mut byte = [0];
            // Until the other one has gone.
            while there.read_exact(&mut byte).is_ok() && there.write_all(&byte).is_ok() {}
        })?;
        let tid = || {
            told.recv()
                .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        };
        Ok(Pair {
            tids: [tid()?, tid()?],
            go,
            took,
            threads: vec![asking, answering],
        })
    }

    /// Nanoseconds that a round took.
    pub fn round(&self) -> Option<u64> {
        self.go.send(()).ok()?;
        self.took.recv().ok()
    }

    /// Ends both.
    pub fn end(self) {
        drop(self.go);
        for thread in self.threads {
            // It has nothing to tell.
            let _ = thread.join();
        }
    }
}

/// Confines the calling thread; its id.
fn confine(cpu: u32) -> io::Result<u32> {
    let mut cpus = CpuSet::new();
    let cpu = cpu as usize;
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    cpus.set(cpu);
    sched_setaffinity(None, &cpus)?;
    let tid: Pid = rustix::thread::gettid();
    Ok(tid.as_raw_nonzero().get() as u32)
}

/// The fastest rounds with the hooks and without, and the events of all with them.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    with_ns: u64,
    without_ns: u64,
    events: u64,
    rounds: u32,
}

impl Rounds {
    /// Has `pair` work in turns: `turn` attaches the hooks or detaches them, and tells how many events there were so far.
    pub fn measure<E>(
        pair: &Pair,
        mut turn: impl FnMut(bool) -> Result<u64, E>,
    ) -> Result<Option<Rounds>, E> {
        let mut rounds = Rounds {
            with_ns: u64::MAX,
            without_ns: u64::MAX,
            events: 0,
            rounds: 0,
        };
        for _ in 0..ROUNDS {
            let before = turn(true)?;
            let with = pair.round();
            let after = turn(false)?;
            let (Some(with), Some(without)) = (with, pair.round()) else {
                return Ok(None);
            };
            rounds.with_ns = rounds.with_ns.min(with);
            rounds.without_ns = rounds.without_ns.min(without);
            rounds.events += after.saturating_sub(before);
            rounds.rounds += 1;
        }
        Ok(Some(rounds))
    }

    /// What an event costs in programs.
    pub fn event_ns(self) -> Option<f64> {
        let events = self.events as f64 / f64::from(self.rounds.max(1));
        let more = self.with_ns.checked_sub(self.without_ns)? as f64;
        let event_ns = more / events * IN_PROGRAMS;
        PLAUSIBLE_NS.contains(&event_ns).then_some(event_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_belongs_to_the_events() {
        let rounds = Rounds {
            with_ns: 1_400_000,
            without_ns: 1_200_000,
            events: 6000,
            rounds: 6,
        };
        assert_eq!(rounds.event_ns(), Some(200.0 * IN_PROGRAMS));
        let none = Rounds {
            events: 0,
            ..rounds
        };
        assert_eq!(none.event_ns(), None);
        let disturbed = Rounds {
            with_ns: 1_000_000,
            ..rounds
        };
        assert_eq!(disturbed.event_ns(), None);
    }

    #[test]
    fn a_pair_works_when_told_to_and_ends() {
        let cpus = rustix::thread::sched_getaffinity(None).expect("an affinity");
        let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| cpus.is_set(cpu));
        let pair = Pair::new(cpu.expect("a CPU") as u32).expect("two threads");
        assert_ne!(pair.tids[0], pair.tids[1]);
        let (mut events, mut attached) = (0, Vec::new());
        let rounds = Rounds::measure(&pair, |on| {
            attached.push(on);
            events += u64::from(!on) * 1000;
            Ok::<u64, ()>(events)
        });
        let rounds = rounds.expect("no error").expect("all rounds");
        assert_eq!(rounds.events, 1000 * u64::from(ROUNDS));
        assert_eq!(attached, [true, false].repeat(ROUNDS as usize));
        assert!(rounds.without_ns > 0);
        pair.end();
    }
}

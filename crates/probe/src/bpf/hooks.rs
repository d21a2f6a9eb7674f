//! Programs that are attached in windows only, changed over by the thread that drains the rings.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use aya::Ebpf;

use super::duty::{Duty, HookBudget, Turn};
use super::error::{RecorderError, chain};
use super::programs::{Held, Tracepoint, tracepoint};
use super::windows::Gap;
use super::wire::Rings;
use crate::clock;

/// What is attached in windows, and what as soon as there are gaps.
pub struct Hooks {
    windowed: Vec<OwnedFd>,
    at_gaps: Vec<OwnedFd>,
    /// Closing them detaches.
    window: Vec<OwnedFd>,
    gaps: Vec<OwnedFd>,
}

impl Hooks {
    /// Attaches those of `loaded` that are attached in windows.
    pub fn attach(bpf: &mut Ebpf, loaded: &[&'static Tracepoint]) -> Result<Hooks, RecorderError> {
        let mut programs = |held: Held| -> Result<Vec<OwnedFd>, RecorderError> {
            let wanted = loaded.iter().filter(|tracepoint| tracepoint.held == held);
            wanted
                .map(|wanted| {
                    let failed = |why: String| RecorderError::Attach {
                        hook: wanted.hook.to_owned(),
                        why,
                    };
                    let program = tracepoint(bpf, wanted.program).map_err(failed)?;
                    let fd = program.fd().map_err(|error| failed(chain(&error)))?;
                    let fd = fd.as_fd().try_clone_to_owned();
                    fd.map_err(|error| failed(error.to_string()))
                })
                .collect()
        };
        let (windowed, at_gaps) = (programs(Held::InWindows)?, programs(Held::SinceGaps)?);
        let window = attach_all(&windowed).map_err(|error| RecorderError::Attach {
            hook: "sched_switch".to_owned(),
            why: error.to_string(),
        })?;
        Ok(Hooks {
            windowed,
            at_gaps,
            window,
            gaps: Vec::new(),
        })
    }
}

/// A recording that keeps to a budget.
pub struct Windows {
    hooks: Hooks,
    duty: Duty,
    cpus: Vec<u32>,
}

impl Windows {
    /// The first window, on `cpus`, is open since `now`.
    pub fn new(hooks: Hooks, budget: HookBudget, cpus: &[u32], rings: &Rings, now: u64) -> Windows {
        Windows {
            hooks,
            duty: Duty::new(budget, cpus.len(), now, rings.written(cpus)),
            cpus: cpus.to_vec(),
        }
    }

    /// Ends a window or a gap, if it is time for that.
    pub fn look(&mut self, rings: &Rings, gaps: &mut Vec<Gap>) {
        let (now, before) = (clock::monotonic(), clock::thread_cpu());
        let Some(turn) = self.duty.look(now, rings.written(&self.cpus)) else {
            return;
        };
        let done = match turn {
            Turn::Off => self.close(gaps),
            Turn::On => self.open(rings, gaps).map(|()| true),
        };
        // What the kernel does to its code interrupts the other CPUs about as long as it keeps this one busy.
        let cost = (clock::thread_cpu() - before) as f64 * CHANGE_CPUS;
        self.duty.changed(clock::monotonic(), cost);
        if !matches!(done, Ok(true)) {
            self.duty.put_off();
        }
    }

    /// Whether the window has ended. The first one goes on a while: what is attached for gaps must have been there when a thread
    /// passed it whose last switch comes in a gap, or that thread would be believed to live.
    fn close(&mut self, gaps: &mut Vec<Gap>) -> io::Result<bool> {
        if self.hooks.gaps.is_empty() && !self.hooks.at_gaps.is_empty() {
            self.hooks.gaps = attach_all(&self.hooks.at_gaps)?;
            return Ok(false);
        }
        gaps.push(Gap {
            from: clock::monotonic(),
            to: u64::MAX,
        });
        self.hooks.window.clear();
        Ok(true)
    }

    fn open(&mut self, rings: &Rings, gaps: &mut [Gap]) -> io::Result<()> {
        // Counters that were read at a switch in the window before have gone on.
        rings.begin_window();
        self.hooks.window = attach_all(&self.hooks.windowed)?;
        if let Some(gap) = gaps.last_mut() {
            gap.to = clock::monotonic();
        }
        Ok(())
    }

    /// When to look again at the latest.
    pub fn next(&self) -> u64 {
        self.duty.next()
    }
}

/// CPUs that are busy with a change while one makes it.
const CHANGE_CPUS: f64 = 2.0;

/// All, or none.
fn attach_all(programs: &[OwnedFd]) -> io::Result<Vec<OwnedFd>> {
    programs
        .iter()
        .map(|program| open(program.as_fd()))
        .collect()
}

#[repr(C)]
struct RawTracepointAttr {
    name: u64,
    program: u32,
    pad: u32,
    cookie: u64,
}

const BPF_RAW_TRACEPOINT_OPEN: libc::c_long = 17;

/// Attaches a program to the tracepoint that it was loaded for. As aya does it, but from any thread.
fn open(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let attr = RawTracepointAttr {
        name: 0,
        program: program.as_raw_fd() as u32,
        pad: 0,
        cookie: 0,
    };
    // SAFETY: attr is the prefix of union bpf_attr for this command, without a name to read.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_RAW_TRACEPOINT_OPEN,
            &raw const attr,
            size_of::<RawTracepointAttr>(),
        )
    };
    match i32::try_from(rc) {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

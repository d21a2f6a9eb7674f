//! perf events: what overflows, rings of records, and samples of a workload without BPF.
//!
//! [`sampling`] opens the events that trigger the programs of [`crate::bpf`]; [`SideBandRing`]
//! tells which file was mapped where. [`Sampler`] needs neither privileges nor BPF: it opens
//! events on the workload alone, and how much they tell depends on what the kernel allows
//! ([`View`]).

mod cost;
mod counters;
mod ring;
mod sample;
mod sampler;
mod samples;
mod side_band;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use perf_event_open_sys as sys;
use sys::bindings as b;

pub use cost::{interruption_ns, one_in, rate_within};
pub use counters::{Count, Counted, Counters, Whose};
pub use sampler::{FAULTS_PER_SAMPLE, LeftOut, RING_BYTES, Rate, Sampler, View};
pub use side_band::{SideBand, SideBandRing};

/// What makes a sampling event overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Cycles, user and kernel.
    Cycles,
    /// User instructions.
    UserInstructions,
    /// A software clock, where there is no hardware counter.
    Clock,
    /// Page faults, at their beginning.
    PageFaults,
    /// Page faults that needed no disk, at their end.
    MinorFaults,
    /// Page faults that needed one, at their end.
    MajorFaults,
}

/// Ends each record of a ring; side-band records tell the time there.
const SAMPLE_ID: b::perf_event_sample_format =
    b::PERF_SAMPLE_TID | b::PERF_SAMPLE_TIME | b::PERF_SAMPLE_CPU | b::PERF_SAMPLE_IDENTIFIER;

fn open(attr: &mut b::perf_event_attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    attr.size = size_of::<b::perf_event_attr>() as u32;
    // SAFETY: attr is valid for the call, which only reads it.
    let fd = unsafe {
        sys::perf_event_open(attr, pid, cpu, -1, u64::from(b::PERF_FLAG_FD_CLOEXEC) as _)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A disabled event with one overflow per `period`.
fn overflowing(counter: Counter, period: u64) -> b::perf_event_attr {
    let mut attr = b::perf_event_attr::default();
    let (kind, config) = match counter {
        Counter::Cycles => (b::PERF_TYPE_HARDWARE, b::PERF_COUNT_HW_CPU_CYCLES),
        Counter::UserInstructions => (b::PERF_TYPE_HARDWARE, b::PERF_COUNT_HW_INSTRUCTIONS),
        Counter::Clock => (b::PERF_TYPE_SOFTWARE, b::PERF_COUNT_SW_CPU_CLOCK),
        Counter::PageFaults => (b::PERF_TYPE_SOFTWARE, b::PERF_COUNT_SW_PAGE_FAULTS),
        Counter::MinorFaults => (b::PERF_TYPE_SOFTWARE, b::PERF_COUNT_SW_PAGE_FAULTS_MIN),
        Counter::MajorFaults => (b::PERF_TYPE_SOFTWARE, b::PERF_COUNT_SW_PAGE_FAULTS_MAJ),
    };
    attr.type_ = kind;
    attr.config = config.into();
    attr.set_exclude_kernel(u64::from(counter == Counter::UserInstructions));
    attr.__bindgen_anon_1.sample_period = period;
    attr.set_disabled(1);
    attr.set_exclude_hv(1);
    attr
}

/// Opens a disabled sampling event on `cpu` for all threads, one overflow per `period`.
pub fn sampling(counter: Counter, period: u64, cpu: u32) -> io::Result<OwnedFd> {
    open(&mut overflowing(counter, period), -1, cpu as i32)
}

/// Opens a disabled event that happens whenever any process comes to `offset` of a file of code, by a probe that the kernel puts there.
/// `cpu` is any that is online.
pub fn in_file(path: &CStr, offset: u64, cpu: u32) -> io::Result<OwnedFd> {
    let mut attr = b::perf_event_attr::default();
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let kind = kind.trim().parse();
    attr.type_ = kind.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    attr.__bindgen_anon_3.uprobe_path = path.as_ptr().expose_provenance() as u64;
    attr.__bindgen_anon_4.probe_offset = offset;
    attr.set_disabled(1);
    open(&mut attr, -1, cpu as i32)
}

/// Lets `program` run at each overflow of `event`.
pub fn set_program(event: &OwnedFd, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open; the call takes the program's number by value.
    let rc = unsafe { sys::ioctls::SET_BPF(event.as_raw_fd(), program.as_raw_fd() as u32) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Lets an event overflow once in `period` from now on. Events that others inherited keep theirs.
pub fn set_period(event: &OwnedFd, period: u64) -> io::Result<()> {
    let address = (&raw const period).expose_provenance() as u64;
    // SAFETY: the descriptor is an open perf event; the kernel reads a u64 at the address, which is that of a local one.
    if unsafe { sys::ioctls::PERIOD(event.as_raw_fd(), address) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Whether an event could not be opened because this process (`EMFILE`), or the whole system (`ENFILE`), may open no more
/// files; otherwise it is one that this machine does not have or allow.
pub fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Starts or stops an event.
pub fn enable(event: &OwnedFd, on: bool) -> io::Result<()> {
    // SAFETY: the descriptor is an open perf event; no pointers are passed.
    let rc = unsafe {
        if on {
            sys::ioctls::ENABLE(event.as_raw_fd(), 0)
        } else {
            sys::ioctls::DISABLE(event.as_raw_fd(), 0)
        }
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// What an event has counted, in all that inherited it.
fn count_of(event: &OwnedFd) -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::io::read(event, &mut bytes[..])?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Reads a record's fields; what is not there is `None`.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_ne_bytes(self.bytes(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.bytes(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.bytes(8)?.try_into().ok()?))
    }
}

/// A record's type, its flags, and what follows them.
fn header(record: &[u8]) -> Option<(u32, u32, Fields<'_>)> {
    let mut fields = Fields(record);
    let (kind, misc, _size) = (fields.u32()?, fields.u16()?, fields.u16()?);
    Some((kind, misc.into(), fields))
}

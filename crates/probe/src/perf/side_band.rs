//! What happened to address spaces, as the kernel reports it beside samples.

use std::io;
use std::os::fd::OwnedFd;

use perf_event_open_sys::bindings as b;

use super::ring::Ring;
use super::{SAMPLE_ID, enable, header, open};

/// A change of some process's address space, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SideBand {
    /// A file was mapped executable; if all mappings are wanted, anything was mapped.
    Map {
        /// Monotonic nanoseconds.
        ts: u64,
        /// Process.
        pid: u32,
        /// Address and length in bytes.
        start: u64,
        /// Length.
        len: u64,
        /// Offset in the file.
        file_offset: u64,
        /// Of the file, as `stat` tells it; 0 if unknown.
        device: u64,
        /// Of the file; 0 if unknown.
        inode: u64,
        /// File, or a name in brackets or slashes.
        path: String,
        /// It may be executed.
        executable: bool,
        /// Writes are seen by others.
        shared: bool,
    },
    /// A process replaced its program.
    Exec {
        /// Monotonic nanoseconds.
        ts: u64,
        /// Process.
        pid: u32,
    },
    /// A process was made by another.
    Fork {
        /// Monotonic nanoseconds.
        ts: u64,
        /// Parent process.
        parent: u32,
        /// Child process.
        pid: u32,
    },
    /// The first thread of a process ended; others of it may live on.
    Exit {
        /// Monotonic nanoseconds.
        ts: u64,
        /// Process.
        pid: u32,
    },
    /// Records were lost.
    Lost(u64),
}

impl SideBand {
    /// When; 0 of what was lost.
    pub fn ts(&self) -> u64 {
        match self {
            SideBand::Map { ts, .. }
            | SideBand::Exec { ts, .. }
            | SideBand::Fork { ts, .. }
            | SideBand::Exit { ts, .. } => *ts,
            SideBand::Lost(_) => 0,
        }
    }

    /// Its memory.
    pub(crate) fn bytes_held(&self) -> usize {
        let path = match self {
            SideBand::Map { path, .. } => path.len(),
            _ => 0,
        };
        size_of::<SideBand>() + path
    }
}

/// The ring of one CPU's side band.
pub struct SideBandRing {
    event: OwnedFd,
    ring: Ring,
}

impl SideBandRing {
    /// Opens the side band of `cpu` for all processes, `pages` (a power of two) of 4 KiB. It tells
    /// of executable mappings, or of all.
    pub fn open(cpu: u32, pages: usize, all_maps: bool) -> io::Result<SideBandRing> {
        let mut attr = b::perf_event_attr {
            type_: b::PERF_TYPE_SOFTWARE,
            config: b::PERF_COUNT_SW_DUMMY.into(),
            sample_type: SAMPLE_ID.into(),
            ..Default::default()
        };
        attr.set_disabled(1);
        report(&mut attr);
        attr.set_mmap_data(u64::from(all_maps));
        let event = open(&mut attr, -1, cpu as i32)?;
        let ring = Ring::new(&event, pages)?;
        Ok(SideBandRing { event, ring })
    }

    /// Starts or stops it.
    pub fn enable(&self, on: bool) -> io::Result<()> {
        enable(&self.event, on)
    }

    /// The share of it that waits to be taken out.
    pub fn fill(&self) -> f64 {
        self.ring.fill()
    }

    /// Appends what has arrived.
    pub fn drain(&self, out: &mut Vec<SideBand>) {
        self.ring.drain(|record| out.extend(parse(record)));
    }
}

/// Makes an event report mappings, programs and forks, by the monotonic clock.
pub(super) fn report(attr: &mut b::perf_event_attr) {
    attr.set_mmap(1);
    attr.set_mmap2(1);
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
    attr.set_sample_id_all(1);
    attr.set_use_clockid(1);
    attr.clockid = libc::CLOCK_MONOTONIC;
}

/// Bytes of [`SAMPLE_ID`]: process and thread, time, CPU, identifier.
const TRAILER: usize = 32;

/// One record that ends with [`SAMPLE_ID`].
pub(super) fn parse(record: &[u8]) -> Option<SideBand> {
    let (kind, misc, mut fields) = header(record)?;
    let mut trailer = fields;
    let body = fields.0.len().checked_sub(TRAILER)?;
    trailer.bytes(body + 8)?;
    let ts = trailer.u64()?;
    match kind {
        b::PERF_RECORD_MMAP2 => {
            let (pid, _tid) = (fields.u32()?, fields.u32()?);
            let (start, len, file_offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
            // Device, inode and its generation, or a build id; protection, flags, the name.
            let (major, minor) = (fields.u32()?, fields.u32()?);
            let inode = fields.u64()?;
            fields.bytes(8)?;
            let has_inode = misc & b::PERF_RECORD_MISC_MMAP_BUILD_ID == 0;
            let device = libc::makedev(major, minor);
            let (protection, flags) = (fields.u32()?, fields.u32()?);
            let name = fields.bytes(body.checked_sub(64)?)?;
            let name = name.split(|&byte| byte == 0).next().unwrap_or(name);
            Some(SideBand::Map {
                ts,
                pid,
                start,
                len,
                file_offset,
                device: if has_inode { device } else { 0 },
                inode: if has_inode { inode } else { 0 },
                path: String::from_utf8_lossy(name).into_owned(),
                executable: protection & libc::PROT_EXEC as u32 != 0,
                shared: flags & libc::MAP_SHARED as u32 != 0,
            })
        }
        b::PERF_RECORD_COMM if misc & b::PERF_RECORD_MISC_COMM_EXEC != 0 => Some(SideBand::Exec {
            ts,
            pid: fields.u32()?,
        }),
        b::PERF_RECORD_FORK => {
            let (pid, parent) = (fields.u32()?, fields.u32()?);
            (pid != parent).then_some(SideBand::Fork { ts, parent, pid })
        }
        b::PERF_RECORD_EXIT => {
            let (pid, _parent, tid) = (fields.u32()?, fields.u32()?, fields.u32()?);
            (pid == tid).then_some(SideBand::Exit { ts, pid })
        }
        b::PERF_RECORD_LOST => {
            let _id = fields.u64()?;
            Some(SideBand::Lost(fields.u64()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let trailer = [[0; 8], 77u64.to_ne_bytes(), [0; 8], [0; 8]].concat();
        let size = (8 + body.len() + trailer.len()) as u16;
        let header = [
            &kind.to_ne_bytes()[..],
            &misc.to_ne_bytes(),
            &size.to_ne_bytes(),
        ];
        [&header.concat(), body, &trailer].concat()
    }

    #[test]
    fn records_are_read() {
        let mut map = vec![];
        for word in [5u32, 6] {
            map.extend(word.to_ne_bytes());
        }
        let access = 5 | 1 << 32; // readable and executable, shared
        for word in [0x1000u64, 0x2000, 0x3000, 2 << 32 | 1, 9, 0, access] {
            map.extend(word.to_ne_bytes());
        }
        map.extend(b"/bin/x\0\0");
        let told = SideBand::Map {
            ts: 77,
            pid: 5,
            start: 0x1000,
            len: 0x2000,
            file_offset: 0x3000,
            device: libc::makedev(1, 2),
            inode: 9,
            path: "/bin/x".to_owned(),
            executable: true,
            shared: true,
        };
        assert_eq!(parse(&record(b::PERF_RECORD_MMAP2, 0, &map)), Some(told));
        let exec = record(
            b::PERF_RECORD_COMM,
            b::PERF_RECORD_MISC_COMM_EXEC as u16,
            &map,
        );
        assert_eq!(parse(&exec), Some(SideBand::Exec { ts: 77, pid: 5 }));
        let of_thread = |tid: u32| {
            let words = [5u32, 1, tid, 1, 0, 0].map(u32::to_ne_bytes);
            parse(&record(b::PERF_RECORD_EXIT, 0, &words.concat()))
        };
        assert_eq!(of_thread(5), Some(SideBand::Exit { ts: 77, pid: 5 }));
        assert_eq!(of_thread(6), None);
        let lost = record(b::PERF_RECORD_LOST, 0, &map[..16]);
        assert_eq!(parse(&lost), Some(SideBand::Lost(0x1000)));
    }

    #[test]
    fn broken_records_are_ignored() {
        for len in 0..120 {
            let mut record = vec![0u8; len];
            assert_eq!(parse(&record), None);
            for kind in 0..20 {
                if len > 0 {
                    record[0] = kind;
                    parse(&record);
                }
            }
        }
    }
}

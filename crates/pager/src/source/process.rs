//! Memory of another process as a source.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use rustix::io::{Errno, pread};

use super::file::next_content;
use super::{Extent, Source, SourceError, there};
use crate::PAGE;
use crate::sys::mapping::addresses_of;

/// How many pages are asked of at once: what fits on any stack.
const ASKED: usize = 512;
/// In an entry of `pagemap`: the page is there, or in swap.
const HAS_PAGE: u64 = 1 << 63 | 1 << 62;

/// Memory of another process, which stands still meanwhile: what it changes arrives in either state.
///
/// Needs `/proc` and the right to trace the process (the same user and `kernel.yama.ptrace_scope`, or `CAP_SYS_PTRACE`), both when it is made.
/// The memory is that of then: if the process ends or becomes another program, it is [gone](SourceError::Gone), whatever has its number or its
/// addresses afterwards.
///
/// What the process has never touched is zeros, which are not read, so that it takes no memory there by that. Of shared memory the kernel tells so only
/// to root (`CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE`); otherwise its holes are read, and the kernel fills them with zeros.
#[derive(Clone, Debug)]
pub struct ProcessSource {
    /// Of the process's memory, which this keeps apart from any that comes later; or why there is none.
    memory: Result<Arc<File>, Errno>,
    /// Where it can be told what has never been touched.
    layout: Option<Arc<Layout>>,
    start: u64,
    len: u64,
}

#[derive(Debug)]
struct Layout {
    pagemap: File,
    /// In rising order.
    parts: Vec<Part>,
}

/// Memory in which a page that is not there is zeros.
#[derive(Debug)]
struct Part {
    addresses: Range<u64>,
    /// Of shared memory, and where it begins in it.
    file: Option<(File, u64)>,
}

impl Layout {
    fn of(pid: u32, wanted: Range<u64>) -> io::Result<Layout> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        let smaps = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
        let is_wanted = |mapping: &Mapped| {
            mapping.addresses.start < wanted.end && wanted.start < mapping.addresses.end
        };
        let part = |mapping: Mapped| {
            let addresses = mapping.addresses;
            let Some(offset) = mapping.shared_from else {
                let file = None;
                return Some(Part { addresses, file });
            };
            let (from, to) = (addresses.start, addresses.end);
            let file = File::open(format!("/proc/{pid}/map_files/{from:x}-{to:x}")).ok()?;
            let file = Some((file, offset));
            Some(Part { addresses, file })
        };
        let parts = mapped(&smaps).filter(is_wanted).filter_map(part).collect();
        Ok(Layout { pagemap, parts })
    }

    fn extent(&self, address: u64, len: u64) -> Extent {
        let content = |len| Extent {
            len,
            is_zero: false,
        };
        let after = self
            .parts
            .partition_point(|part| part.addresses.end <= address);
        let part = match self.parts.get(after) {
            Some(part) if part.addresses.start <= address => part,
            Some(part) => return content(len.min(part.addresses.start - address)),
            None => return content(len),
        };
        let len = len.min(part.addresses.end - address);
        match &part.file {
            Some((file, offset)) => {
                let at = offset + (address - part.addresses.start);
                // Behind the end nothing can be touched.
                let data = |at: u64| {
                    let data = next_content(file, at);
                    data.map_or(u64::MAX, |data| data / PAGE as u64 * PAGE as u64)
                };
                let zeros = data(at).saturating_sub(at);
                if zeros > 0 {
                    return Extent {
                        len: zeros.min(len),
                        is_zero: true,
                    };
                }
                // Where it ends is found by looking at all of it; so page by page, and not further than is asked.
                let pages = (len / PAGE as u64).min(ASKED as u64);
                let mut after = (1..pages).map(|page| at + page * PAGE as u64);
                let end = after.find(|at| data(*at) > *at);
                content(end.map_or(len.min(pages.max(1) * PAGE as u64), |end| end - at))
            }
            None => {
                let pages = (len / PAGE as u64).clamp(1, ASKED as u64) as usize;
                let mut entries = [0; ASKED * 8];
                let entries = &mut entries[..pages * 8];
                let read = pread(&self.pagemap, &mut *entries, address / PAGE as u64 * 8);
                let entries = entries[..read.unwrap_or(0)].chunks_exact(8);
                let mut is_zero = entries.map(|entry| {
                    let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
                    entry & HAS_PAGE == 0
                });
                let Some(first) = is_zero.next() else {
                    // The process has ended: reading tells.
                    return content(len);
                };
                let alike = 1 + is_zero.take_while(|is_zero| *is_zero == first).count();
                Extent {
                    len: len.min((alike * PAGE) as u64),
                    is_zero: first,
                }
            }
        }
    }
}

/// A mapping in which what has never been touched is zeros.
#[derive(Debug, PartialEq, Eq)]
struct Mapped {
    addresses: Range<u64>,
    /// Shared: the offset in its file.
    shared_from: Option<u64>,
}

/// Those of the text of `smaps`. Not those whose missing pages somebody else brings (userfaultfd), of devices, or of hugetlb.
fn mapped(smaps: &str) -> impl Iterator<Item = Mapped> {
    const OTHERS: [&str; 6] = ["um", "ui", "io", "pf", "mm", "ht"];
    let mut last = None;
    smaps.lines().filter_map(move |line| {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let is_others = flags
                .split_ascii_whitespace()
                .any(|flag| OTHERS.contains(&flag));
            return last.take().filter(|_| !is_others);
        }
        let mut words = line.split_ascii_whitespace();
        let (addresses, kind) = (addresses_of(words.next()?)?, words.next()?);
        let offset = u64::from_str_radix(words.next()?, 16).ok()?;
        let (_device, inode) = (words.next()?, words.next()?);
        let name = words.next();
        let is_plain = name
            .is_none_or(|name| name == "[heap]" || name == "[stack]" || name.starts_with("[anon:"));
        let shared_from = kind.ends_with('s').then_some(offset);
        let is_known = shared_from.is_some() || inode == "0" && is_plain;
        last = is_known.then_some(Mapped {
            addresses,
            shared_from,
        });
        None
    })
}

impl ProcessSource {
    /// `len` bytes from address `start` of process `pid`. If it cannot be read, each read says why. Reads `smaps`, in which the kernel counts all pages of
    /// the process: O(pages).
    pub fn new(pid: u32, start: u64, len: u64) -> ProcessSource {
        // Before its memory: if it becomes another program in between, nothing is told of that one.
        let is_aligned = start.is_multiple_of(PAGE as u64);
        let layout = is_aligned
            .then(|| Layout::of(pid, start..start.saturating_add(len)))
            .and_then(Result::ok);
        let memory = File::open(format!("/proc/{pid}/mem"));
        let memory = memory
            .map(Arc::new)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        ProcessSource {
            memory,
            layout: layout.map(Arc::new),
            start,
            len,
        }
    }
}

impl Source for ProcessSource {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let memory = match &self.memory {
            Ok(memory) => memory,
            Err(Errno::NOENT | Errno::SRCH) => {
                return Err(SourceError::Gone("there is no such process"));
            }
            Err(errno) => {
                return Err(SourceError::Io {
                    operation: "open(/proc/PID/mem)",
                    errno: *errno,
                });
            }
        };
        let into = there(self.len, offset, into)?;
        let mut done = 0;
        while done < into.len() {
            let address = self.start.wrapping_add(offset + done as u64);
            match pread(memory, &mut into[done..], address) {
                Ok(0) => return Err(SourceError::Gone("the process has ended")),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(SourceError::Io {
                        operation: "pread(/proc/PID/mem)",
                        errno,
                    });
                }
            }
        }
        Ok(())
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        match &self.layout {
            Some(layout) if offset < self.len => layout.extent(self.start + offset, len),
            _ => Extent {
                len,
                is_zero: false,
            },
        }
    }

    fn is_signal_safe(&self) -> bool {
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Backing, Mapping};

    /// What is there of memory whose pages 3, 4 and 9 of 16 were touched.
    fn found(memory: &Mapping) -> Vec<(bool, usize)> {
        let start = memory.as_ptr().addr() as u64;
        let source = ProcessSource::new(std::process::id(), start, memory.len() as u64);
        let (mut at, mut found) = (0, Vec::new());
        while at < memory.len() {
            let extent = source.extent(at as u64, (memory.len() - at) as u64);
            let pages = extent.len as usize / PAGE;
            match found.last_mut() {
                Some((is_zero, count)) if *is_zero == extent.is_zero => *count += pages,
                _ => found.push((extent.is_zero, pages)),
            }
            at += extent.len as usize;
        }
        found
    }

    #[test]
    fn what_was_never_touched_is_zeros_that_nobody_reads() {
        for backing in [Backing::Small, Backing::Shared] {
            let memory = Mapping::new(16 * PAGE, backing).unwrap();
            for page in [3, 4, 9] {
                memory.write(page * PAGE, &[1]);
            }
            let runs = found(&memory);
            match backing {
                Backing::Shared if runs == [(false, 16)] => {
                    println!("SKIPPED: holes of shared memory are told to root alone");
                }
                _ => assert_eq!(
                    runs,
                    [(true, 3), (false, 2), (true, 4), (false, 1), (true, 6)]
                ),
            }
        }
    }

    #[test]
    fn a_copy_of_all_of_it_takes_no_memory_there() {
        let support = crate::Support::probe();
        if support.way.is_none() {
            println!("SKIPPED: {support}");
            return;
        }
        for backing in [Backing::Small, Backing::Shared] {
            let theirs = Mapping::new(4 << 20, backing).unwrap();
            theirs.write(700 * PAGE, &[7]);
            let before = found(&theirs);
            if backing == Backing::Shared && before.len() == 1 {
                println!("SKIPPED: holes of shared memory are told to root alone");
                continue;
            }
            let start = theirs.as_ptr().addr() as u64;
            let source = ProcessSource::new(std::process::id(), start, theirs.len() as u64);
            let ours = Arc::new(Mapping::new(theirs.len(), Backing::Small).unwrap());
            let builder = crate::Pager::builder().mapping(&ours, 0);
            let pager = builder.source(Arc::new(source)).start().unwrap();
            assert_eq!(pager.fill(), 0);
            let mut bytes = [1; 2];
            ours.read(700 * PAGE, &mut bytes[..1]);
            ours.read(699 * PAGE, &mut bytes[1..]);
            assert_eq!(bytes, [7, 0]);
            assert_eq!(found(&theirs), before);
        }
    }

    #[test]
    fn memory_that_others_bring_is_not_taken_for_zeros() {
        let text = "1000-3000 rw-p 00000000 00:00 0 \nRss: 4 kB\nVmFlags: rd wr mr mw me ac \n\
            3000-4000 rw-p 00000000 00:00 0 \nVmFlags: rd wr um ac \n\
            4000-5000 rw-p 00000000 00:00 0 [heap]\nVmFlags: rd wr \n\
            5000-6000 r--p 00000000 00:00 0 [vvar]\nVmFlags: rd pf \n\
            6000-7000 r--p 00000000 00:00 0 [vdso]\nVmFlags: rd \n\
            7000-8000 rw-p 00001000 08:01 77 /usr/lib/a\nVmFlags: rd wr \n\
            8000-9000 rw-s 00002000 00:01 5 /memfd:vm (deleted)\nVmFlags: rd wr sh \n\
            9000-a000 rw-s 00000000 00:01 6 /memfd:vm (deleted)\nVmFlags: rd wr ui \nVmFlags: rd\n-\n";
        let found: Vec<_> = mapped(text).collect();
        let of = |addresses: Range<u64>, shared_from| Mapped {
            addresses,
            shared_from,
        };
        let all = [
            of(0x1000..0x3000, None),
            of(0x4000..0x5000, None),
            of(0x8000..0x9000, Some(0x2000)),
        ];
        assert_eq!(found, all);
    }
}

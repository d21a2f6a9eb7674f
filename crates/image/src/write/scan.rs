//! What is in a group of pages: the part of packing that all threads do at once.

use parking_lot::Mutex;

use crate::identity::group_digest;
use crate::layout::{GROUP_BYTES, PAGE_BYTES, PageKind};
use crate::sections::PageRun;
use crate::{Image, Result};

/// Buffers that are used again.
#[derive(Default)]
pub(super) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    pub fn take(&self) -> Vec<u8> {
        let free = self.0.lock().pop();
        free.unwrap_or_else(|| vec![0; GROUP_BYTES as usize])
    }

    pub fn give_back(&self, buffer: Vec<u8>) {
        self.0.lock().push(buffer);
    }
}

/// Pages and what they are.
pub(super) struct Scanned {
    /// At least as many pages as there are kinds.
    pub buffer: Vec<u8>,
    pub kinds: Vec<PageKind>,
    /// One for each page; of no meaning unless it has content.
    pub hashes: Vec<u64>,
    pub digest: [u8; 32],
}

/// All pages in `buffer`, which are those of `runs` one after the other.
pub(super) fn scan(
    buffer: Vec<u8>,
    runs: &[PageRun],
    base: Option<&Image>,
    buffers: &Buffers,
) -> Result<Scanned> {
    let pages: u64 = runs.iter().map(|run| run.count).sum();
    let content = buffer.chunks_exact(PAGE_BYTES).take(pages as usize);
    let mut kinds: Vec<PageKind> = content
        .clone()
        .map(|page| match is_zero(page) {
            true => PageKind::Zero,
            false => PageKind::Data,
        })
        .collect();
    if let Some(base) = base {
        let mut below = buffers.take();
        let (mut kinds, mut buffer) = (&mut kinds[..], &buffer[..]);
        for run in runs {
            let (here, kinds_after) = kinds.split_at_mut(run.count as usize);
            let (now, buffer_after) = buffer.split_at(run.count as usize * PAGE_BYTES);
            compare(base, run, here, now, &mut below)?;
            (kinds, buffer) = (kinds_after, buffer_after);
        }
        buffers.give_back(below);
    }
    let hash = |(page, kind): (&[u8], &PageKind)| match kind {
        PageKind::Data => twox_hash::XxHash3_64::oneshot(page),
        PageKind::Absent | PageKind::Zero => 0,
    };
    let hashes = content.clone().zip(&kinds).map(hash).collect();
    // Neighbours in one piece: the hash works on many kibibytes at once.
    let stretches = kinds.chunk_by(|a, b| a == b).scan(0, |at, stretch| {
        let from = *at;
        *at += stretch.len() * PAGE_BYTES;
        Some((stretch[0], &buffer[from..*at]))
    });
    let with_content = stretches.filter(|(kind, _)| *kind == PageKind::Data);
    let digest = group_digest(&kinds, with_content.map(|(_, stretch)| stretch));
    Ok(Scanned {
        buffer,
        kinds,
        hashes,
        digest,
    })
}

/// What is scanned when a whole group is known to be zeros.
pub(super) fn scan_hole(buffer: Vec<u8>, pages: u64) -> Scanned {
    let kinds = vec![PageKind::Zero; pages as usize];
    let digest = group_digest(&kinds, std::iter::empty());
    let hashes = vec![0; pages as usize];
    Scanned {
        buffer,
        kinds,
        hashes,
        digest,
    }
}

/// Pages that are as in the base become absent.
fn compare(
    base: &Image,
    run: &PageRun,
    kinds: &mut [PageKind],
    now: &[u8],
    below: &mut [u8],
) -> Result<()> {
    let end = (run.first + run.count).min(base.pages());
    for part in base.runs(run.first..end) {
        let (pages, kind) = part?;
        let slots = (pages.start - run.first) as usize..(pages.end - run.first) as usize;
        match kind {
            PageKind::Absent => {}
            PageKind::Zero => {
                for kind in kinds[slots]
                    .iter_mut()
                    .filter(|kind| **kind == PageKind::Zero)
                {
                    *kind = PageKind::Absent;
                }
            }
            PageKind::Data => {
                let bytes = slots.start * PAGE_BYTES..slots.end * PAGE_BYTES;
                let below = &mut below[..bytes.len()];
                base.read(pages.start * PAGE_BYTES as u64, below)?;
                let now = now[bytes].chunks_exact(PAGE_BYTES);
                let both = now.zip(below.chunks_exact(PAGE_BYTES));
                for (kind, (now, below)) in kinds[slots].iter_mut().zip(both) {
                    if now == below {
                        *kind = PageKind::Absent;
                    }
                }
            }
        }
    }
    Ok(())
}

fn is_zero(page: &[u8]) -> bool {
    // A whole line at a time: the compiler makes vector instructions of it.
    let line = |line: &[u8]| line.iter().fold(0, |all, byte| all | byte) == 0;
    page.chunks(64).all(line)
}

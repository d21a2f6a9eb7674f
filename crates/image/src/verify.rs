//! All that is in an image, checked: every checksum, every compressed cluster, and that it is the memory it says it is.

use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::identity::{IdentityHasher, group_digest};
use crate::layer::Layer;
use crate::layout::{Entry, GROUP_PAGES, PAGE_BYTES, PageKind};
use crate::threads::{self, InOrder, Progress, Watcher};
use crate::{Error, Image, Result, sections};

/// How an image is verified.
#[derive(Clone, Debug, Default)]
pub struct Verify {
    threads: Option<u32>,
}

/// A part of an image that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The layer's file.
    pub path: PathBuf,
    /// Pages of the memory that cannot be read because of it; `None` where no page is.
    pub pages: Option<Range<u64>>,
    /// What is wrong.
    pub what: String,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Clusters that were unpacked.
    pub clusters: u64,
    /// Pages that were looked at, those of all layers.
    pub pages: u64,
    /// Everything that is wrong; of runs of pages and of clusters the first [`DAMAGES_MAX`](Verified::DAMAGES_MAX).
    pub damages: Vec<Damage>,
    /// Pages that cannot be read, those of all runs.
    pub damaged_pages: u64,
    /// All was looked at; otherwise `watch` ended it, and what is here is what was found until then.
    pub is_complete: bool,
}

impl Verified {
    /// Runs of pages that are told one by one.
    pub const DAMAGES_MAX: usize = 1000;

    /// All was looked at, and nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.is_complete && self.damages.is_empty()
    }
}

/// A group's digest, or what is wrong with its pages.
struct Checked {
    pages: u64,
    digest: Option<[u8; 32]>,
    damages: Vec<(Range<u64>, String)>,
    zero_pages: u64,
    absent_pages: u64,
}

impl Verify {
    /// A thread for each CPU.
    pub fn new() -> Verify {
        Verify::default()
    }

    /// Threads, at most one for each CPU that may be used.
    pub fn threads(mut self, threads: u32) -> Verify {
        self.threads = Some(threads);
        self
    }

    /// Reads all of the image and of its bases. It goes on where something is wrong.
    ///
    /// # Errors
    /// When no threads can be started. What is wrong with the image is no error but the answer, and so is what was found
    /// until `watch` ended it.
    pub fn run(
        &self,
        image: &Arc<Image>,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Verified> {
        let mut verified = Verified::default();
        match self.all(image, watch, &mut verified) {
            Ok(()) => verified.is_complete = true,
            Err(Error::Interrupted) => {}
            Err(error) => return Err(error),
        }
        Ok(verified)
    }

    fn all(
        &self,
        image: &Arc<Image>,
        watch: &mut Watcher<'_>,
        verified: &mut Verified,
    ) -> Result<()> {
        let pool = threads::pool(self.threads)?;
        let bytes = |layer: &Layer| layer.header.memory_bytes;
        let total: u64 = image.layers().iter().map(bytes).sum();
        let mut done_bytes = 0;
        for (at, layer) in image.layers().iter().enumerate() {
            let tell = |verified: &mut Verified, pages: Option<Range<u64>>, what: String| {
                let count = pages.as_ref().map_or(0, |pages| pages.end - pages.start);
                verified.damaged_pages += count;
                if verified.damages.len() < Verified::DAMAGES_MAX {
                    let path = layer.path.clone();
                    verified.damages.push(Damage { path, pages, what });
                }
            };
            let of_all = |verified: &mut Verified, what: String| {
                // Not one of very many: always told.
                let path = layer.path.clone();
                verified.damages.push(Damage {
                    path,
                    pages: None,
                    what,
                });
            };
            let seen = Arc::new(Seen::new(layer.header.clusters()));
            let mut flying: InOrder<Checked> = InOrder::new(false);
            let mut identity = Some(IdentityHasher::new(layer.header.base));
            let (mut given, mut zero_pages, mut absent_pages) = (0, 0, 0);
            loop {
                while given < layer.header.groups()
                    && flying.len() < pool.threads() as usize * 2 + 2
                {
                    let (image, seen, group) = (Arc::clone(image), Arc::clone(&seen), given);
                    flying.give(&pool, move || check_group(&image, at, group, &seen));
                    given += 1;
                }
                let Some(checked) = flying.take() else {
                    break;
                };
                zero_pages += checked.zero_pages;
                absent_pages += checked.absent_pages;
                match (&mut identity, checked.digest) {
                    (Some(identity), Some(digest)) => identity.add(&digest),
                    _ => identity = None,
                }
                for (pages, what) in checked.damages {
                    tell(verified, Some(pages), what);
                }
                verified.pages += checked.pages;
                done_bytes = (done_bytes + GROUP_PAGES * PAGE_BYTES as u64).min(total);
                threads::tell(watch, done_bytes, Some(total))?;
            }
            verified.clusters += layer.header.clusters();
            for cluster in (0..layer.header.clusters()).filter(|cluster| !seen.has(*cluster)) {
                threads::tell(watch, done_bytes, Some(total))?;
                let mut plain = vec![0; layer.header.plain_bytes(cluster)];
                if let Err(error) = layer.read_cluster(cluster, &mut plain) {
                    tell(verified, None, error.to_string());
                }
            }
            if let Err(error) = sections::check(layer) {
                of_all(verified, error.to_string());
            }
            let is = identity.map(|identity| identity.finish(layer.header.memory_bytes));
            if is.is_some_and(|is| is != layer.header.identity) {
                let what = "its memory is not the one of its identity";
                of_all(verified, format!("{}: {what}", layer.path.display()));
            }
            if is.is_some()
                && (zero_pages, absent_pages)
                    != (layer.header.zero_pages, layer.header.absent_pages)
            {
                let what = "the header counts zero or absent pages otherwise";
                of_all(verified, format!("{}: {what}", layer.path.display()));
            }
        }
        Ok(())
    }
}

/// Clusters of one piece.
const PIECE_CLUSTERS: u64 = 1 << 18;

/// Which clusters were read, in pieces that are allocated when one of theirs is: the header's word allocates little.
struct Seen(Box<[OnceLock<Box<[AtomicU64]>>]>);

impl Seen {
    fn new(clusters: u64) -> Seen {
        let pieces = clusters.div_ceil(PIECE_CLUSTERS);
        Seen((0..pieces).map(|_| OnceLock::new()).collect())
    }

    fn add(&self, cluster: u64) {
        let words = PIECE_CLUSTERS / 64;
        let piece = self.0[(cluster / PIECE_CLUSTERS) as usize]
            .get_or_init(|| (0..words).map(|_| AtomicU64::new(0)).collect());
        let word = &piece[(cluster % PIECE_CLUSTERS / 64) as usize];
        word.fetch_or(1 << (cluster % 64), Ordering::Relaxed);
    }

    fn has(&self, cluster: u64) -> bool {
        let piece = self.0[(cluster / PIECE_CLUSTERS) as usize].get();
        piece.is_some_and(|piece| {
            let word = &piece[(cluster % PIECE_CLUSTERS / 64) as usize];
            word.load(Ordering::Relaxed) & 1 << (cluster % 64) != 0
        })
    }
}

/// All pages of one group of one layer.
fn check_group(image: &Image, at: usize, group: u64, seen: &Seen) -> Checked {
    let layer = &image.layers()[at];
    let header = &layer.header;
    let pages = header.group_pages(group);
    let first = group * GROUP_PAGES;
    let mut checked = Checked {
        pages,
        digest: None,
        damages: Vec::new(),
        zero_pages: 0,
        absent_pages: 0,
    };
    let entries: Result<Vec<Entry>> = (first..first + pages)
        .map(|page| layer.entry(page))
        .collect();
    let entries = match entries {
        Ok(entries) => entries,
        Err(error) => {
            checked
                .damages
                .push((first..first + pages, error.to_string()));
            return checked;
        }
    };
    let kind = |entry: &Entry| match entry {
        Entry::Absent => PageKind::Absent,
        Entry::Zero => PageKind::Zero,
        Entry::Stored(_) => PageKind::Data,
    };
    let kinds: Vec<PageKind> = entries.iter().map(kind).collect();
    let count = |kind: PageKind| kinds.iter().filter(|is| **is == kind).count() as u64;
    (checked.zero_pages, checked.absent_pages) = (count(PageKind::Zero), count(PageKind::Absent));
    let cluster_pages = header.cluster_pages();
    let mut contents = Vec::with_capacity(count(PageKind::Data) as usize * PAGE_BYTES);
    let mut plain = Vec::new();
    let mut have: Option<(u64, Option<String>)> = None;
    for (page, entry) in (first..).zip(&entries) {
        let Entry::Stored(number) = *entry else {
            continue;
        };
        let cluster = number / cluster_pages;
        if !matches!(&have, Some((there, _)) if *there == cluster) {
            seen.add(cluster);
            plain.resize(header.plain_bytes(cluster), 0);
            let read = layer.read_cluster(cluster, &mut plain);
            have = Some((cluster, read.err().map(|error| error.to_string())));
        }
        let from = (number % cluster_pages) as usize * PAGE_BYTES;
        match &have {
            Some((_, Some(wrong))) => match checked.damages.last_mut() {
                Some((pages, what)) if pages.end == page && what == wrong => pages.end += 1,
                _ => checked.damages.push((page..page + 1, wrong.clone())),
            },
            _ => contents.extend_from_slice(&plain[from..from + PAGE_BYTES]),
        }
    }
    if checked.damages.is_empty() {
        checked.digest = Some(group_digest(&kinds, std::iter::once(&contents[..])));
    }
    checked
}

//! The restore of a snapshot: how long until a guest that needs a part of its memory gives its first answer.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{plain, warm_up, word_at};
use crate::filling::THREADS;
use crate::{BLOCK, Backing, CleanPages, Error, FileSource, Mapping, PAGE, Pager, WorkingSet};

/// How memory is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restore {
    /// The whole image is read before the guest begins, by as many threads as a pager fetches a set by.
    Whole,
    /// The same by one thread, as VMMs read a snapshot.
    WholeByOne,
    /// The usual handler: one descriptor, one reader, copies of 4 KiB when they are touched.
    Plain,
    /// The pager, which knows nothing of what will be touched.
    Demand,
    /// The pager, which has fetched the recorded working set before the guest begins: exactly what the guest touches then.
    Recorded,
    /// The same, of [`CleanPages`] that nobody has used before.
    Clean,
    /// The same, of clean pages that another VM has used.
    CleanAgain,
}

const UNREADABLE: Error = Error::Config("the image's file cannot be read");

/// Pages that are touched one after the other.
const RUN: usize = 16;

/// An image in memory, as a file whose pages the kernel has, and a part of it that a guest needs.
pub struct Image {
    /// The file, mapped.
    memory: Mapping,
    file: File,
    /// First pages of the runs that are touched, in their order.
    runs: Vec<usize>,
    set: WorkingSet,
    /// One copy for those who share it.
    clean: Option<Arc<CleanPages>>,
}

impl Image {
    /// So many bytes, of whole huge pages, none zero. The guest needs `permille` of it, in runs of 64 KiB anywhere.
    ///
    /// # Errors
    /// No memory.
    pub fn new(bytes: usize, permille: usize) -> Result<Image, Error> {
        let bytes = bytes.next_multiple_of(BLOCK).max(BLOCK);
        let memory = Mapping::new(bytes, Backing::Shared)?;
        let mut page = [0; PAGE];
        for at in (0..bytes).step_by(PAGE) {
            for (nth, word) in page.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(&word_at(at + nth * 8).to_ne_bytes());
            }
            memory.write(at, &page);
        }
        let file: OwnedFd = memory
            .file()
            .ok_or(Error::Config("shared memory has a file"))?
            .try_clone()
            .map_err(|_| Error::Config("no descriptor is left"))?;
        let mut runs: Vec<usize> = (0..bytes / PAGE).step_by(RUN).collect();
        let mut state = 1u64;
        for last in (1..runs.len()).rev() {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            runs.swap(last, (state >> 33) as usize % (last + 1));
        }
        runs.truncate((runs.len() * permille).div_ceil(1000));
        let mut rising = runs.clone();
        rising.sort_unstable();
        let pages = rising.iter().flat_map(|first| *first..first + RUN);
        Ok(Image {
            set: WorkingSet::from_pages(pages.map(|page| page as u64)),
            memory,
            file: File::from(file),
            runs,
            clean: None,
        })
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Bytes that the guest needs.
    pub fn needed_bytes(&self) -> usize {
        self.runs.len() * RUN * PAGE
    }

    fn source(&self) -> Result<FileSource, Error> {
        let source = self.file.try_clone().and_then(FileSource::of);
        source.map_err(|_| UNREADABLE)
    }

    /// Restores it once; how long from the beginning until the guest has touched all that it needs.
    ///
    /// # Errors
    /// What the way needs is not there: says what.
    ///
    /// # Panics
    /// If a page does not hold its content.
    pub fn restore(&mut self, how: Restore) -> Result<Duration, Error> {
        match how {
            Restore::Whole | Restore::WholeByOne => warm_up(self.bytes())?,
            _ => warm_up(self.needed_bytes())?,
        }
        match how {
            Restore::Whole | Restore::WholeByOne => {
                let begun = Instant::now();
                let memory = Mapping::new(self.bytes(), Backing::Huge)?;
                // SAFETY: the mapping is this function's alone, and as long.
                let into = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), memory.len()) };
                let cpus = thread::available_parallelism().map_or(1, usize::from);
                let threads = match how {
                    Restore::WholeByOne => 1,
                    _ => cpus.min(THREADS),
                };
                let part = into.len().div_ceil(threads);
                let part = part.next_multiple_of(BLOCK);
                let read = &|number: usize, into: &mut [u8]| {
                    let mut blocks = into.chunks_mut(BLOCK).enumerate();
                    blocks.try_for_each(|(nth, block)| {
                        let at = number * part + nth * BLOCK;
                        self.file.read_exact_at(block, at as u64)
                    })
                };
                let read = thread::scope(|scope| {
                    let parts = into.chunks_mut(part).enumerate();
                    let all: Vec<_> = parts
                        .map(|(number, into)| scope.spawn(move || read(number, into)))
                        .collect();
                    let mut all = all.into_iter();
                    all.all(|one| one.join().is_ok_and(|read| read.is_ok()))
                });
                if !read {
                    return Err(UNREADABLE);
                }
                Ok(self.answer(&memory, begun))
            }
            Restore::Plain => {
                let begun = Instant::now();
                let memory = Arc::new(Mapping::new(self.bytes(), Backing::Small)?);
                let _plain = plain::Plain::start(&memory, self.memory.as_ptr())?;
                Ok(self.answer(&memory, begun))
            }
            Restore::Demand | Restore::Recorded => {
                let begun = Instant::now();
                let memory = Arc::new(Mapping::new(self.bytes(), Backing::Huge)?);
                let source = Arc::new(self.source()?);
                let builder = Pager::builder().mapping(&memory, 0).source(source);
                let pager = builder.start()?;
                if how == Restore::Recorded {
                    pager.prefetch(&self.set);
                }
                Ok(self.answer(&memory, begun))
            }
            Restore::Clean => {
                self.clean = None;
                let begun = Instant::now();
                let source = Arc::new(self.source()?);
                let clean = Arc::new(CleanPages::new(source, self.bytes() as u64)?);
                let took = self.restore_clean(&clean, begun);
                self.clean = Some(clean);
                took
            }
            Restore::CleanAgain => {
                if self.clean.is_none() {
                    self.restore(Restore::Clean)?;
                }
                let clean = Arc::clone(self.clean.as_ref().expect("left by the first"));
                self.restore_clean(&clean, Instant::now())
            }
        }
    }

    fn restore_clean(&self, clean: &Arc<CleanPages>, begun: Instant) -> Result<Duration, Error> {
        let memory = Arc::new(clean.map(0, self.bytes())?);
        let pager = Pager::builder().mapping(&memory, 0).clean(clean).start()?;
        pager.prefetch(&self.set);
        Ok(self.answer(&memory, begun))
    }

    /// What the guest does until it answers; how long ago that began.
    fn answer(&self, memory: &Mapping, begun: Instant) -> Duration {
        for &first in &self.runs {
            for page in first..first + RUN {
                let at = page * PAGE;
                // SAFETY: within the mapping.
                let found = unsafe { memory.as_ptr().add(at).cast::<u64>().read_volatile() };
                assert_eq!(found, word_at(at), "page at {at}");
            }
        }
        begun.elapsed()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Support;

    #[test]
    fn every_way_restores_what_the_guest_needs() {
        let support = Support::probe();
        let mut image = Image::new(16 << 20, 100).unwrap();
        assert_eq!(image.needed_bytes(), 26 * RUN * PAGE);
        for how in [
            Restore::Whole,
            Restore::WholeByOne,
            Restore::Plain,
            Restore::Demand,
            Restore::Recorded,
            Restore::CleanAgain,
            Restore::Clean,
            Restore::CleanAgain,
        ] {
            if !matches!(how, Restore::Whole | Restore::WholeByOne) && support.way.is_none() {
                println!("SKIPPED {how:?}: {support}");
                continue;
            }
            assert!(!image.restore(how).unwrap().is_zero(), "{how:?}");
        }
        // Nothing but that was brought, and once.
        if let Some(clean) = &image.clean {
            assert_eq!(clean.pages_fetched() as usize, 26 * RUN);
        }
    }
}

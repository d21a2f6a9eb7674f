//! Packs memory into an image: scanned and compressed on all threads, put together on one, so that the same memory gives
//! the same bytes whatever the number of threads.

mod clusters;
mod duplicates;
pub(crate) mod file;
mod index;
mod scan;

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use tempfile::SpooledTempFile;

use crate::codec::Compression;
use crate::identity::IdentityHasher;
use crate::layout::{
    CLUSTER_BITS, Entry, GROUP_BYTES, GROUP_PAGES, Header, LAYERS_MAX, MEMORY_BYTES_MAX,
    NAME_BYTES_MAX, PAGE_BYTES, PageKind,
};
use crate::sections::{Additions, PageRun, Region};
use crate::store::{Sink, Store};
use crate::threads::{self, InOrder, Progress, Watcher};
use crate::{Error, Identity, Image, Result};

use clusters::{Clusters, SPOOL_BYTES};
use duplicates::Duplicates;
use file::{Partial, is_same_file};
use index::Index;
use scan::{Buffers, Scanned, scan, scan_hole};

/// Cluster size unless another one is asked for; chosen by measurement, see DESIGN.md.
pub const CLUSTER_BYTES: usize = 16 << 10;

/// Memory that is to be packed.
pub enum Input {
    /// Can be read at any place: by all threads at once, without holes, and its working set first.
    Stored(Arc<dyn Store>),
    /// Comes once, from its beginning to its end.
    Stream(Box<dyn Read + Send>),
}

/// How memory is packed.
#[derive(Clone, Default)]
pub struct Pack {
    compression: Compression,
    cluster_bytes: Option<usize>,
    threads: Option<u32>,
    base: Option<Arc<Image>>,
    additions: Additions,
}

/// What was packed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packed {
    /// Which memory it is.
    pub identity: Identity,
    /// Bytes of the memory.
    pub memory_bytes: u64,
    /// Bytes of the image.
    pub file_bytes: u64,
    /// Pages that are zero.
    pub zero_pages: u64,
    /// Pages that are as in the base.
    pub absent_pages: u64,
    /// Pages with content.
    pub data_pages: u64,
    /// Pages that are stored, each content once.
    pub stored_pages: u64,
}

impl Pack {
    /// Zstandard at level 1, clusters of 16 KiB, a thread for each CPU.
    pub fn new() -> Pack {
        Pack::default()
    }

    /// What clusters are compressed with.
    pub fn compression(mut self, compression: Compression) -> Pack {
        self.compression = compression;
        self
    }

    /// Bytes of a cluster: a power of two from 4 KiB to 1 MiB. A larger one packs better and costs more for one page.
    pub fn cluster_bytes(mut self, bytes: usize) -> Pack {
        self.cluster_bytes = Some(bytes);
        self
    }

    /// Threads, at most one for each CPU that may be used.
    pub fn threads(mut self, threads: u32) -> Pack {
        self.threads = Some(threads);
        self
    }

    /// Stores only pages that are otherwise than in this image.
    pub fn base(mut self, base: Arc<Image>) -> Pack {
        self.base = Some(base);
        self
    }

    /// Pages that a restored program needs first, in that order. They are kept with the image, and if the input is
    /// [stored](Input::Stored) they are the first in it, so that they are read in one piece.
    pub fn working_set(mut self, runs: Vec<PageRun>) -> Pack {
        self.additions.working_set = runs;
        self
    }

    /// Guest addresses of the memory.
    pub fn regions(mut self, regions: Vec<Region>) -> Pack {
        self.additions.regions = regions;
        self
    }

    /// Anything else, up to 1 MiB.
    pub fn metadata(mut self, metadata: Vec<u8>) -> Pack {
        self.additions.metadata = metadata;
        self
    }

    /// Packs into a file, which appears when it is whole and on the disk; a file of that name is replaced.
    ///
    /// `watch` is told now and then, and may end it.
    ///
    /// # Errors
    /// When the input is no memory (not whole pages, too large), something cannot be read or written, or `watch` ended it.
    /// There is no new file then.
    pub fn file(
        &self,
        input: Input,
        path: impl AsRef<Path>,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Packed> {
        let path = path.as_ref();
        if let Some(base) = &self.base {
            let same = |layer: &crate::layer::Layer| is_same_file(&layer.path, path);
            if let Some(layer) = base.layers().iter().find(|layer| same(layer)) {
                let what = format!("{}: is the base itself", layer.path.display());
                return Err(Error::input(what));
            }
        }
        let partial = Partial::create(path)?;
        let spool = || tempfile::spooled_tempfile_in(SPOOL_BYTES, partial.folder());
        let packed = self.write(input, partial.file(), partial.path(), &spool, watch)?;
        partial.commit()?;
        Ok(packed)
    }

    /// Packs into something else. What is in it is no image until this has returned without an error.
    ///
    /// # Errors
    /// As [`file`](Pack::file).
    pub fn sink(
        &self,
        input: Input,
        sink: &dyn Sink,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Packed> {
        let spool = || tempfile::spooled_tempfile(SPOOL_BYTES);
        self.write(input, sink, Path::new("the image"), &spool, watch)
    }

    fn write(
        &self,
        input: Input,
        sink: &dyn Sink,
        path: &Path,
        spool: &dyn Fn() -> SpooledTempFile,
        watch: &mut Watcher<'_>,
    ) -> Result<Packed> {
        let cluster_bytes = self.cluster_bytes.unwrap_or(CLUSTER_BYTES);
        let cluster_bits = cluster_bytes.trailing_zeros() as u8;
        if !cluster_bytes.is_power_of_two() || !CLUSTER_BITS.contains(&cluster_bits) {
            return Err(Error::input(format!(
                "clusters of {cluster_bytes} bytes: a power of two from 4096 to 1048576 is needed"
            )));
        }
        let depth = self.base.as_ref().map_or(0, |base| base.layers().len());
        if depth >= LAYERS_MAX {
            return Err(Error::TooDeep {
                path: path.to_owned(),
                layers: depth + 1,
                max: LAYERS_MAX,
            });
        }
        let pool = threads::pool(self.threads)?;
        let base = self.base.as_ref().map(|base| base.identity());
        let mut assembly = Assembly {
            path,
            duplicates: Duplicates::new(),
            clusters: Clusters::new(sink, path, &pool, self.compression, cluster_bytes, spool()),
            index: Index::new(spool()),
            identity: IdentityHasher::new(base),
        };
        let scanner = Scanner {
            base: self.base.clone(),
            buffers: Arc::default(),
            scans: InOrder::new(false),
            most: pool.threads() as usize * 2 + 2,
            pool: &pool,
        };
        let memory_bytes = match input {
            Input::Stored(store) => {
                let memory_bytes = store.len().map_err(read_failed)?;
                check_size(memory_bytes)?;
                // Before an hour is spent on it.
                self.additions.check(memory_bytes)?;
                scanner.stored(
                    store,
                    memory_bytes,
                    &self.additions.working_set,
                    &mut assembly,
                    watch,
                )?;
                memory_bytes
            }
            Input::Stream(stream) => {
                // What cannot be in any memory, before an hour is spent on it; the rest when its size is known.
                self.additions.check(MEMORY_BYTES_MAX)?;
                let memory_bytes = scanner.stream(stream, &mut assembly, watch)?;
                self.additions.check(memory_bytes)?;
                memory_bytes
            }
        };
        let stored_pages = assembly.clusters.stored();
        let (end, mut blocks) = assembly.clusters.finish()?;
        let mut index = assembly.index;
        let mut header = Header {
            cluster_bits,
            depth: depth as u8,
            sections: 0,
            memory_bytes,
            file_bytes: 0,
            stored_pages,
            tables: index.tables_len,
            index_offset: end.next_multiple_of(PAGE_BYTES as u64),
            zero_pages: index.zero_pages,
            absent_pages: index.absent_pages,
            directory_crc: crc32c::crc32c(&index.directory),
            sections_crc: 0,
            identity: assembly.identity.finish(memory_bytes),
            base,
            base_name: self.base_name(),
        };
        let (sections, count, crc) = self.additions.encode(header.sections_offset());
        (header.sections, header.sections_crc) = (count, crc);
        let mut tail = Tail {
            sink,
            path,
            at: end,
        };
        tail.pad_to(header.index_offset)?;
        tail.copy(&mut blocks)?;
        tail.copy(&mut index.tables)?;
        tail.pad_to(header.directory_offset())?;
        tail.write(&index.directory)?;
        tail.pad_to(header.sections_offset())?;
        tail.write(&sections)?;
        header.file_bytes = tail.at;
        // An input that was interrupted ends like one that is complete.
        threads::tell(watch, memory_bytes, Some(memory_bytes))?;
        // Last: without it the file is no image.
        let written = sink.write_all_at(&header.encode(), 0);
        written.map_err(|error| Error::io("write", path, error))?;
        Ok(Packed {
            identity: header.identity,
            memory_bytes,
            file_bytes: header.file_bytes,
            zero_pages: header.zero_pages,
            absent_pages: header.absent_pages,
            data_pages: header.pages() - header.zero_pages - header.absent_pages,
            stored_pages,
        })
    }

    /// What the base is called: a hint for who looks for it.
    fn base_name(&self) -> String {
        let layer = self.base.as_ref().map(|base| &base.layers()[0]);
        let name = layer.and_then(|layer| layer.path.file_name()?.to_str());
        let name = name.filter(|name| name.len() <= NAME_BYTES_MAX);
        name.unwrap_or_default().to_owned()
    }
}

fn read_failed(error: io::Error) -> Error {
    Error::io("read", Path::new("the memory"), error)
}

fn check_size(memory_bytes: u64) -> Result<()> {
    if memory_bytes > MEMORY_BYTES_MAX {
        return Err(Error::input(format!(
            "a memory of {memory_bytes} bytes: an image can have {MEMORY_BYTES_MAX}"
        )));
    }
    if !memory_bytes.is_multiple_of(PAGE_BYTES as u64) {
        return Err(Error::input(format!(
            "the memory has {memory_bytes} bytes, which is not a multiple of {PAGE_BYTES} \
             (is it complete? truncate --size=%{PAGE_BYTES} FILE appends zeros)"
        )));
    }
    Ok(())
}

/// Has pages looked at by all threads.
struct Scanner<'a> {
    base: Option<Arc<Image>>,
    buffers: Arc<Buffers>,
    scans: InOrder<Result<Scanned>>,
    most: usize,
    pool: &'a amdahl_pool::Pool,
}

impl Scanner<'_> {
    fn stored(
        mut self,
        store: Arc<dyn Store>,
        memory_bytes: u64,
        working_set: &[PageRun],
        assembly: &mut Assembly<'_>,
        watch: &mut Watcher<'_>,
    ) -> Result<()> {
        // Pages that are met again in their groups are found as duplicates then.
        let mut first = parts(working_set);
        let mut ahead = || first.pop_front();
        self.run(&store, &mut ahead, &mut |scanned| {
            threads::tell(watch, 0, Some(memory_bytes))?;
            assembly.store(scanned)?;
            Ok(())
        })?;
        let pages = memory_bytes / PAGE_BYTES as u64;
        let mut page = 0;
        let mut groups = || {
            let count = (pages - page).min(GROUP_PAGES);
            let run = PageRun { first: page, count };
            page += count;
            (count > 0).then(|| vec![run])
        };
        let mut done_bytes = 0;
        self.run(&store, &mut groups, &mut |scanned| {
            threads::tell(watch, done_bytes, Some(memory_bytes))?;
            done_bytes += (scanned.kinds.len() * PAGE_BYTES) as u64;
            assembly.add(scanned)
        })
    }

    fn run(
        &mut self,
        store: &Arc<dyn Store>,
        parts: &mut dyn FnMut() -> Option<Vec<PageRun>>,
        take: &mut dyn FnMut(&Scanned) -> Result<()>,
    ) -> Result<()> {
        loop {
            while self.scans.len() < self.most
                && let Some(part) = parts()
            {
                let (store, base) = (Arc::clone(store), self.base.clone());
                let buffers = Arc::clone(&self.buffers);
                self.scans.give(self.pool, move || {
                    let mut buffer = buffers.take();
                    if let ([run], None) = (&part[..], &base)
                        && store
                            .is_hole(run.first * PAGE_BYTES as u64, run.count * PAGE_BYTES as u64)
                    {
                        return Ok(scan_hole(buffer, run.count));
                    }
                    let mut rest = &mut buffer[..];
                    for run in &part {
                        let (now, after) = rest.split_at_mut(run.count as usize * PAGE_BYTES);
                        let read = store.read_exact_at(now, run.first * PAGE_BYTES as u64);
                        read.map_err(read_failed)?;
                        rest = after;
                    }
                    scan(buffer, &part, base.as_deref(), &buffers)
                });
            }
            if !self.take(take)? {
                return Ok(());
            }
        }
    }

    /// Hands the oldest on, if there is one.
    fn take(&mut self, take: &mut dyn FnMut(&Scanned) -> Result<()>) -> Result<bool> {
        let Some(scanned) = self.scans.take() else {
            return Ok(false);
        };
        let scanned = scanned?;
        take(&scanned)?;
        self.buffers.give_back(scanned.buffer);
        Ok(true)
    }

    fn stream(
        mut self,
        mut stream: Box<dyn Read + Send>,
        assembly: &mut Assembly<'_>,
        watch: &mut Watcher<'_>,
    ) -> Result<u64> {
        let mut memory_bytes = 0;
        loop {
            let mut buffer = self.buffers.take();
            let len = fill(&mut *stream, &mut buffer[..GROUP_BYTES as usize])?;
            let first = memory_bytes / PAGE_BYTES as u64;
            memory_bytes += len as u64;
            threads::tell(watch, memory_bytes, None)?;
            let is_last = (len as u64) < GROUP_BYTES;
            if is_last || memory_bytes >= MEMORY_BYTES_MAX {
                check_size(memory_bytes)?;
            }
            if len > 0 {
                let count = (len / PAGE_BYTES) as u64;
                let (base, buffers) = (self.base.clone(), Arc::clone(&self.buffers));
                let run = PageRun { first, count };
                self.scans.give(self.pool, move || {
                    scan(buffer, &[run], base.as_deref(), &buffers)
                });
            }
            while self.scans.is_ready() || is_last || self.scans.len() >= self.most {
                if !self.take(&mut |scanned| assembly.add(scanned))? {
                    return Ok(memory_bytes);
                }
            }
        }
    }
}

/// Fills the buffer unless the stream ends.
fn fill(stream: &mut dyn Read, buffer: &mut [u8]) -> Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match stream.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(read_failed(error)),
        }
    }
    Ok(len)
}

/// Runs of pages in pieces of no more than a group.
fn parts(runs: &[PageRun]) -> VecDeque<Vec<PageRun>> {
    let mut parts = VecDeque::new();
    let (mut part, mut room) = (Vec::new(), GROUP_PAGES);
    for run in runs {
        let mut run = *run;
        while run.count > 0 {
            let count = run.count.min(room);
            let first = run.first;
            part.push(PageRun { first, count });
            run.first += count;
            run.count -= count;
            room -= count;
            if room == 0 {
                parts.push_back(std::mem::take(&mut part));
                room = GROUP_PAGES;
            }
        }
    }
    if !part.is_empty() {
        parts.push_back(part);
    }
    parts
}

/// Puts together what threads have scanned, in order.
struct Assembly<'a> {
    path: &'a Path,
    duplicates: Duplicates,
    clusters: Clusters<'a>,
    index: Index,
    identity: IdentityHasher,
}

impl Assembly<'_> {
    /// The next group.
    fn add(&mut self, scanned: &Scanned) -> Result<()> {
        let entries = self.store(scanned)?;
        self.identity.add(&scanned.digest);
        let failed = |error| Error::io("write a temporary file for", self.path, error);
        self.index.add(&entries).map_err(failed)
    }

    /// Stores what is not there yet.
    fn store(&mut self, scanned: &Scanned) -> Result<Vec<Entry>> {
        let pages = scanned.buffer.chunks_exact(PAGE_BYTES);
        let pages = pages.zip(scanned.kinds.iter().zip(&scanned.hashes));
        pages
            .map(|(page, (kind, hash))| match kind {
                PageKind::Absent => Ok(Entry::Absent),
                PageKind::Zero => Ok(Entry::Zero),
                PageKind::Data => self.number(page, *hash).map(Entry::Stored),
            })
            .collect()
    }

    fn number(&mut self, page: &[u8], hash: u64) -> Result<u64> {
        for number in self.duplicates.find(hash) {
            if self.clusters.is(number, page)? {
                return Ok(number);
            }
        }
        let number = self.clusters.store(page)?;
        self.duplicates.insert(hash, number);
        Ok(number)
    }
}

/// What comes behind the clusters.
struct Tail<'a> {
    sink: &'a dyn Sink,
    path: &'a Path,
    at: u64,
}

impl Tail<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sink
            .write_all_at(bytes, self.at)
            .map_err(|error| Error::io("write", self.path, error))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Zeros, less than a page of them.
    fn pad_to(&mut self, offset: u64) -> Result<()> {
        let zeros = [0; PAGE_BYTES];
        self.write(&zeros[..(offset - self.at) as usize])
    }

    fn copy(&mut self, from: &mut SpooledTempFile) -> Result<()> {
        let failed = |error| Error::io("read a temporary file for", self.path, error);
        from.seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut part = vec![0; 1 << 16];
        loop {
            match from.read(&mut part) {
                Ok(0) => return Ok(()),
                Ok(len) => self.write(&part[..len])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

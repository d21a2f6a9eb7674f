//! The whole memory again, as a file with holes or as a stream.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::layout::{GROUP_BYTES, GROUP_PAGES, PAGE_BYTES, PageKind};
use crate::store::Sink;
use crate::threads::{self, InOrder, Progress, Watcher};
use crate::write::file::{Partial, is_same_file};
use crate::{Error, Image, Result};

/// How an image is unpacked.
#[derive(Clone, Debug, Default)]
pub struct Unpack {
    threads: Option<u32>,
}

impl Unpack {
    /// A thread for each CPU.
    pub fn new() -> Unpack {
        Unpack::default()
    }

    /// Threads, at most one for each CPU that may be used.
    pub fn threads(mut self, threads: u32) -> Unpack {
        self.threads = Some(threads);
        self
    }

    /// Writes the memory into a file, with holes where it is zero. The file appears when it is whole and on the disk.
    ///
    /// # Errors
    /// When `path` is a file of the image itself, something cannot be read, is damaged, or cannot be written, or `watch`
    /// ended it. There is no new file then.
    pub fn file(
        &self,
        image: &Arc<Image>,
        path: impl AsRef<Path>,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<()> {
        let path = path.as_ref();
        if let Some(layer) = image
            .layers()
            .iter()
            .find(|layer| is_same_file(&layer.path, path))
        {
            return Err(Error::input(format!(
                "{}: is the image itself or a base of it; name another file for the memory",
                layer.path.display()
            )));
        }
        let partial = Partial::create(path)?;
        let name = partial.path().to_owned();
        let failed = |error| Error::io("write", partial.path(), error);
        let file = partial.file();
        file.set_len(image.memory_bytes()).map_err(failed)?;
        let file = Arc::new(file.try_clone().map_err(failed)?);
        let work = move |image: &Image, group: u64, buffer: &mut [u8]| {
            for run in image.runs(group_pages(image, group)) {
                let (pages, kind) = run?;
                if kind == PageKind::Data {
                    let buffer = &mut buffer[..(pages.end - pages.start) as usize * PAGE_BYTES];
                    let offset = pages.start * PAGE_BYTES as u64;
                    image.read(offset, buffer)?;
                    let written = file.write_all_at(buffer, offset);
                    written.map_err(|error| Error::io("write", &name, error))?;
                }
            }
            Ok(())
        };
        self.run(image, work, &mut |_| Ok(()), watch)?;
        partial.commit()
    }

    /// Writes the memory into a stream.
    ///
    /// # Errors
    /// As [`file`](Unpack::file); a part may have been written then.
    pub fn stream(
        &self,
        image: &Arc<Image>,
        to: &mut dyn Write,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<()> {
        let work = |image: &Image, group: u64, buffer: &mut [u8]| {
            let pages = group_pages(image, group);
            let len = (pages.end - pages.start) as usize * PAGE_BYTES;
            image.read(pages.start * PAGE_BYTES as u64, &mut buffer[..len])
        };
        let failed = |error| Error::io("write", Path::new("the memory"), error);
        let mut write = |bytes: &[u8]| to.write_all(bytes).map_err(failed);
        self.run(image, work, &mut write, watch)?;
        to.flush().map_err(failed)
    }

    /// `work` for each group on all threads, `take` what is in its buffer afterwards in order.
    fn run(
        &self,
        image: &Arc<Image>,
        work: impl Fn(&Image, u64, &mut [u8]) -> Result<()> + Send + Sync + 'static,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
        watch: &mut Watcher<'_>,
    ) -> Result<()> {
        let pool = threads::pool(self.threads)?;
        let work = Arc::new(work);
        let buffers: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let mut flying: InOrder<Result<Vec<u8>>> = InOrder::new(false);
        let total = image.memory_bytes();
        let groups = image.pages().div_ceil(GROUP_PAGES);
        let (mut given, mut done_bytes) = (0, 0);
        loop {
            while given < groups && flying.len() < pool.threads() as usize * 2 + 2 {
                let (image, work) = (Arc::clone(image), Arc::clone(&work));
                let (group, buffers) = (given, Arc::clone(&buffers));
                flying.give(&pool, move || {
                    let kept = buffers.lock().pop();
                    let mut buffer = kept.unwrap_or_else(|| vec![0; GROUP_BYTES as usize]);
                    work(&image, group, &mut buffer)?;
                    Ok(buffer)
                });
                given += 1;
            }
            let Some(buffer) = flying.take() else {
                return Ok(());
            };
            let buffer = buffer?;
            let len = (total - done_bytes).min(GROUP_BYTES);
            take(&buffer[..len as usize])?;
            buffers.lock().push(buffer);
            done_bytes += len;
            threads::tell(watch, done_bytes, Some(total))?;
        }
    }
}

fn group_pages(image: &Image, group: u64) -> std::ops::Range<u64> {
    let first = group * GROUP_PAGES;
    first..(first + GROUP_PAGES).min(image.pages())
}

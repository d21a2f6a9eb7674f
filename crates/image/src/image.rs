//! An image with its bases: memory that can be read at any page by any number of threads.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cache::ClusterCache;
use crate::chain;
use crate::layer::Layer;
use crate::layout::{Codec, Entry, GROUP_PAGES, LAYERS_MAX, PAGE_BYTES, PageKind};
use crate::sections::{self, PageRun, Region};
use crate::shelf::{Files, Shelf};
use crate::store::Store;
use crate::{Error, Identity, Result};

/// Cluster cache of an image that was opened without one.
const CACHE_BYTES: usize = 32 << 20;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// No layer knows it: it reads as zeros.
    Absent,
    /// It is all zeros.
    Zero,
    /// In a cluster.
    Stored {
        /// Of which layer: 0 is the image itself, 1 its base, ...
        layer: usize,
        /// The cluster's number in that layer.
        cluster: u64,
        /// First byte of the page in the unpacked cluster.
        offset: u32,
    },
}

/// An image, open for reading. All methods may be called by any number of threads at once.
pub struct Image {
    /// The image itself, its base, the base of that, ...
    layers: Vec<Layer>,
    cache: Arc<ClusterCache>,
}

/// How an image is opened.
#[derive(Clone, Default)]
pub struct OpenOptions {
    bases: Vec<PathBuf>,
    cache: Option<Arc<ClusterCache>>,
    cache_bytes: Option<usize>,
}

impl OpenOptions {
    /// A base of the image, or of one of its bases: looked at before the folder of the image is.
    pub fn base(mut self, path: impl Into<PathBuf>) -> OpenOptions {
        self.bases.push(path.into());
        self
    }

    /// Memory for unpacked clusters \[default: 32 MiB\].
    pub fn cache_bytes(mut self, bytes: usize) -> OpenOptions {
        self.cache_bytes = Some(bytes);
        self
    }

    /// A cache that is shared with other images.
    pub fn cache(mut self, cache: Arc<ClusterCache>) -> OpenOptions {
        self.cache = Some(cache);
        self
    }

    /// Opens the image and all of its bases.
    ///
    /// # Errors
    /// When a file cannot be read, is damaged or of an unknown version, or a base is missing or another one. What is not
    /// needed yet is not checked yet: see [`Verify`](crate::Verify).
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Image> {
        self.open_on(&Files, path)
    }

    /// The same for an image that is elsewhere, with its bases beside it: an object store, for example.
    ///
    /// # Errors
    /// As [`open`](OpenOptions::open).
    pub fn open_on(&self, shelf: &dyn Shelf, path: impl AsRef<Path>) -> Result<Image> {
        let path = path.as_ref();
        let store = shelf.open(path);
        let store = store.map_err(|error| Error::io("open", path, error))?;
        let layers = chain::resolve(shelf, Layer::open(store, path)?, &self.bases)?;
        Ok(self.assemble(layers))
    }

    /// Opens layers that are no files: the image itself first, then its bases in their order.
    ///
    /// # Errors
    /// As [`open`](OpenOptions::open).
    pub fn open_stores(&self, stores: Vec<Box<dyn Store>>) -> Result<Image> {
        let stores = stores.into_iter().enumerate();
        let layers: Result<Vec<Layer>> = stores
            .take(LAYERS_MAX + 1)
            .map(|(i, store)| Layer::open(store, Path::new(&format!("layer {i}"))))
            .collect();
        let layers = layers?;
        chain::check(&layers)?;
        Ok(self.assemble(layers))
    }

    fn assemble(&self, layers: Vec<Layer>) -> Image {
        let cache = self.cache.clone().unwrap_or_else(|| {
            let largest = layers.iter().map(|layer| layer.header.cluster_bytes());
            let bytes = self.cache_bytes.unwrap_or(CACHE_BYTES);
            Arc::new(ClusterCache::new(
                bytes,
                largest.max().unwrap_or(PAGE_BYTES),
            ))
        });
        Image { layers, cache }
    }
}

/// A layer's page: which cluster, and which page of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Absent,
    Zero,
    Stored { layer: usize, number: u64 },
}

impl Image {
    /// Opens an image; its bases must lie beside it.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Image> {
        OpenOptions::default().open(path)
    }

    /// How to open an image otherwise.
    pub fn options() -> OpenOptions {
        OpenOptions::default()
    }

    /// Bytes of the memory, a multiple of [`PAGE_BYTES`].
    pub fn memory_bytes(&self) -> u64 {
        self.layers[0].header.memory_bytes
    }

    /// Pages of the memory.
    pub fn pages(&self) -> u64 {
        self.layers[0].header.pages()
    }

    /// Which memory it is.
    pub fn identity(&self) -> Identity {
        self.layers[0].header.identity
    }

    pub(crate) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// O(1) for each layer that does not know the page.
    #[inline]
    fn find(&self, page: u64) -> Result<Found> {
        for (i, layer) in self.layers.iter().enumerate() {
            // What lies below a layer counts up to the end of its memory.
            if page >= layer.header.pages() {
                break;
            }
            match layer.entry(page)? {
                Entry::Absent => {}
                Entry::Zero => return Ok(Found::Zero),
                Entry::Stored(number) => return Ok(Found::Stored { layer: i, number }),
            }
        }
        Ok(Found::Absent)
    }

    /// Where a page is: O(1) for each layer, some nanoseconds once the tables of its 2 MiB were read.
    ///
    /// # Errors
    /// When the page is not inside of the memory, or its part of the index cannot be read or is damaged.
    pub fn place(&self, page: u64) -> Result<Place> {
        self.inside(page.saturating_mul(PAGE_BYTES as u64), PAGE_BYTES as u64)?;
        Ok(match self.find(page)? {
            Found::Absent => Place::Absent,
            Found::Zero => Place::Zero,
            Found::Stored { layer, number } => {
                let pages = self.layers[layer].header.cluster_pages();
                Place::Stored {
                    layer,
                    cluster: number / pages,
                    offset: (number % pages) as u32 * PAGE_BYTES as u32,
                }
            }
        })
    }

    /// Whether a page has content.
    ///
    /// # Errors
    /// As [`place`](Image::place).
    pub fn kind(&self, page: u64) -> Result<PageKind> {
        Ok(match self.place(page)? {
            Place::Absent => PageKind::Absent,
            Place::Zero => PageKind::Zero,
            Place::Stored { .. } => PageKind::Data,
        })
    }

    /// The pages of a range as runs of one kind, in order, without gaps.
    ///
    /// An error, as of [`place`](Image::place), is the last that comes.
    pub fn runs(&self, pages: Range<u64>) -> Runs<'_> {
        Runs { image: self, pages }
    }

    fn kind_here(&self, page: u64) -> Result<PageKind> {
        Ok(match self.find(page)? {
            Found::Absent => PageKind::Absent,
            Found::Zero => PageKind::Zero,
            Found::Stored { .. } => PageKind::Data,
        })
    }

    /// Its kind, if all layers together know it for the whole group that begins at `page`.
    fn uniform(&self, page: u64) -> Option<PageKind> {
        let group = page / GROUP_PAGES;
        for layer in &self.layers {
            let pages = layer.header.pages();
            if page >= pages {
                break;
            }
            // It ends within the group, the memory does not.
            if page + GROUP_PAGES > pages && pages < self.pages() {
                return None;
            }
            match layer.is_uniform(group)? {
                Entry::Zero => return Some(PageKind::Zero),
                _ => continue,
            }
        }
        Some(PageKind::Absent)
    }

    /// The pages around `page` that come with it at no further cost: neighbours in memory that are neighbours in its
    /// cluster. `page` alone where it has no content.
    ///
    /// # Errors
    /// As [`place`](Image::place).
    pub fn nearby(&self, page: u64) -> Result<Range<u64>> {
        self.inside(page.saturating_mul(PAGE_BYTES as u64), PAGE_BYTES as u64)?;
        let Found::Stored { layer, number } = self.find(page)? else {
            return Ok(page..page + 1);
        };
        let cluster_pages = self.layers[layer].header.cluster_pages();
        let slot = number % cluster_pages;
        let (mut first, mut end) = (page, page + 1);
        while page - first < slot && first > 0 {
            let number = number - (page - first) - 1;
            if self.find(first - 1)? != (Found::Stored { layer, number }) {
                break;
            }
            first -= 1;
        }
        while end - page < cluster_pages - slot && end < self.pages() {
            let number = number + (end - page);
            if self.find(end)? != (Found::Stored { layer, number }) {
                break;
            }
            end += 1;
        }
        Ok(first..end)
    }

    fn inside(&self, offset: u64, len: u64) -> Result<()> {
        let page = PAGE_BYTES as u64;
        let memory_bytes = self.memory_bytes();
        let end = offset.checked_add(len);
        if offset.is_multiple_of(page)
            && len.is_multiple_of(page)
            && end.is_some_and(|end| end <= memory_bytes)
        {
            return Ok(());
        }
        Err(Error::Range {
            offset,
            len,
            memory_bytes,
        })
    }

    /// Fills `buf` with the memory from `offset` on; both in whole pages. What is absent reads as zeros.
    ///
    /// A page costs the reading and unpacking of its cluster unless that is in the cache; whole clusters in order go straight
    /// into `buf`. Nothing is allocated once the thread and the cache have the memory they need.
    ///
    /// # Errors
    /// When the range is not inside of the memory, or something cannot be read or is damaged; `buf` has any content then.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inside(offset, buf.len() as u64)?;
        let end = (offset + buf.len() as u64) / PAGE_BYTES as u64;
        let mut page = offset / PAGE_BYTES as u64;
        let mut rest = buf;
        while page < end {
            let found = self.find(page)?;
            let Found::Stored { layer, number } = found else {
                let (zeros, after) = rest.split_at_mut(PAGE_BYTES);
                zeros.fill(0);
                (rest, page) = (after, page + 1);
                continue;
            };
            let cluster_pages = self.layers[layer].header.cluster_pages();
            let room = (cluster_pages - number % cluster_pages).min(end - page);
            let mut pages = 1;
            while pages < room {
                let number = number + pages;
                if self.find(page + pages)? != (Found::Stored { layer, number }) {
                    break;
                }
                pages += 1;
            }
            let (now, after) = rest.split_at_mut(pages as usize * PAGE_BYTES);
            self.read_stored(&self.layers[layer], number, now)?;
            (rest, page) = (after, page + pages);
        }
        Ok(())
    }

    /// Stored pages of one cluster.
    fn read_stored(&self, layer: &Layer, number: u64, to: &mut [u8]) -> Result<()> {
        let cluster_pages = layer.header.cluster_pages();
        let cluster = number / cluster_pages;
        let from = (number % cluster_pages) as usize * PAGE_BYTES;
        if to.len() == layer.header.plain_bytes(cluster) && !self.cache.has(layer, cluster) {
            return layer.read_cluster(cluster, to);
        }
        self.cache.copy(layer, cluster, from, to)
    }

    /// The pages that a restored program needs first, in that order; empty if none were recorded.
    ///
    /// # Errors
    /// When the section cannot be read or is damaged.
    pub fn working_set(&self) -> Result<Vec<PageRun>> {
        sections::working_set(&self.layers[0])
    }

    /// Which guest addresses the memory has; empty if that was not said.
    ///
    /// # Errors
    /// When the section cannot be read or is damaged.
    pub fn regions(&self) -> Result<Vec<Region>> {
        sections::regions(&self.layers[0])
    }

    /// What the writer had to say, in a form of his own; empty if nothing.
    ///
    /// # Errors
    /// When the section cannot be read or is damaged.
    pub fn metadata(&self) -> Result<Vec<u8>> {
        sections::metadata(&self.layers[0])
    }

    /// What the headers of the layers say, the image itself first. O(layers).
    pub fn info(&self) -> Vec<LayerInfo> {
        let info = |layer: &Layer| {
            let header = &layer.header;
            let data_pages = header.pages() - header.zero_pages - header.absent_pages;
            LayerInfo {
                path: layer.path.clone(),
                identity: header.identity,
                base: header.base,
                memory_bytes: header.memory_bytes,
                file_bytes: header.file_bytes,
                cluster_bytes: header.cluster_bytes() as u64,
                pages: header.pages(),
                zero_pages: header.zero_pages,
                absent_pages: header.absent_pages,
                data_pages,
                stored_pages: header.stored_pages,
                clusters: header.clusters(),
                packed_bytes: header.index_offset - crate::layout::HEADER_BYTES as u64,
            }
        };
        self.layers.iter().map(info).collect()
    }

    /// How many clusters of the image itself are stored in which way, from the whole of its index of clusters.
    ///
    /// # Errors
    /// When that index cannot be read or is damaged.
    pub fn codecs(&self) -> Result<Vec<(Codec, u64)>> {
        let layer = &self.layers[0];
        let mut counts = [Codec::Plain, Codec::Zstd, Codec::Lz4].map(|codec| (codec, 0));
        for cluster in 0..layer.header.clusters() {
            let codec = layer.cluster(cluster)?.codec;
            for (counted, count) in &mut counts {
                *count += u64::from(*counted == codec);
            }
        }
        Ok(counts.into_iter().filter(|(_, count)| *count > 0).collect())
    }
}

/// What is in one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerInfo {
    /// Its file.
    pub path: PathBuf,
    /// Which memory it is.
    pub identity: Identity,
    /// Which memory lies below.
    pub base: Option<Identity>,
    /// Bytes of the memory.
    pub memory_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of an unpacked cluster.
    pub cluster_bytes: u64,
    /// Pages of the memory.
    pub pages: u64,
    /// Pages of which it says that they are zero.
    pub zero_pages: u64,
    /// Pages of which it says nothing.
    pub absent_pages: u64,
    /// Pages with content.
    pub data_pages: u64,
    /// Pages that are stored; fewer where some are equal.
    pub stored_pages: u64,
    /// Clusters.
    pub clusters: u64,
    /// Bytes of all packed clusters with what lies between them and the index.
    pub packed_bytes: u64,
}

/// Runs of pages of one kind.
pub struct Runs<'a> {
    image: &'a Image,
    pages: Range<u64>,
}

impl Iterator for Runs<'_> {
    type Item = Result<(Range<u64>, PageKind)>;

    fn next(&mut self) -> Option<Self::Item> {
        let Range { start, end } = self.pages.clone();
        if start >= end {
            return None;
        }
        if end > self.image.pages() {
            self.pages.end = start;
            let page = PAGE_BYTES as u64;
            return Some(Err(Error::Range {
                offset: start.saturating_mul(page),
                len: (end - start).saturating_mul(page),
                memory_bytes: self.image.memory_bytes(),
            }));
        }
        let run = self.run(start, end);
        self.pages.start = match &run {
            Ok((pages, _)) => pages.end,
            Err(_) => end,
        };
        Some(run)
    }
}

impl Runs<'_> {
    fn run(&self, start: u64, end: u64) -> Result<(Range<u64>, PageKind)> {
        let kind = self.image.kind_here(start)?;
        let mut at = start + 1;
        while at < end {
            if at.is_multiple_of(GROUP_PAGES)
                && let Some(uniform) = self.image.uniform(at)
            {
                if uniform != kind {
                    break;
                }
                at = (at + GROUP_PAGES).min(end);
                continue;
            }
            if self.image.kind_here(at)? != kind {
                break;
            }
            at += 1;
        }
        Ok((start..at, kind))
    }
}

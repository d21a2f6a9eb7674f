//! Stored pages in clusters: packed on all threads, written in order, and compared with when a page seems to be one of them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use amdahl_pool::Pool;
use tempfile::SpooledTempFile;

use crate::codec::{Compression, Packer, Unpacker};
use crate::layout::{
    BLOCK_CLUSTERS, Cluster, Codec, HEADER_BYTES, PAGE_BYTES, STORED_PAGES_MAX, encode_block,
    u32_at, u64_at,
};
use crate::store::Sink;
use crate::threads::InOrder;
use crate::{Error, Result};

/// What is packed at a time.
const BATCH_BYTES: usize = 256 << 10;
/// Unpacked batches that are kept, to be compared with.
const KEPT_BYTES: usize = 64 << 20;
/// Clusters that are kept when they were read again to be compared with.
const READ_AGAIN_BYTES: usize = 16 << 20;
/// Of an index, before it goes to a temporary file.
pub(super) const SPOOL_BYTES: usize = 64 << 20;

/// A packed batch.
struct Batch {
    packed: Vec<u8>,
    clusters: Vec<(Codec, u32, u32)>,
}

/// A cluster that was read again.
type ReadAgain = Option<(u64, Vec<u8>)>;

/// Takes pages that are to be stored.
pub(super) struct Clusters<'a> {
    sink: &'a dyn Sink,
    path: &'a Path,
    pool: &'a Pool,
    compression: Compression,
    cluster_bytes: usize,
    batch_bytes: usize,
    /// The batch that is filled.
    open: Vec<u8>,
    /// Batches before it that are still at hand; the last ones of these are not written yet.
    kept: VecDeque<Arc<Vec<u8>>>,
    flying: InOrder<io::Result<Batch>>,
    flying_max: usize,
    /// Pages so far.
    stored: u64,
    /// Where the next cluster goes.
    offset: u64,
    /// Clusters of the block that is filled.
    block: Vec<Cluster>,
    blocks: SpooledTempFile,
    blocks_len: u64,
    read_again: Vec<ReadAgain>,
    unpacker: Unpacker,
}

thread_local! {
    static PACKER: RefCell<Option<(Compression, Packer)>> = const { RefCell::new(None) };
}

fn pack(compression: Compression, cluster_bytes: usize, plain: &[u8]) -> io::Result<Batch> {
    PACKER.with_borrow_mut(|kept| {
        let packer = match kept {
            Some((of, packer)) if *of == compression => packer,
            _ => &mut kept.insert((compression, Packer::new(compression)?)).1,
        };
        let mut batch = Batch {
            packed: Vec::with_capacity(plain.len() / 2),
            clusters: Vec::with_capacity(plain.len().div_ceil(cluster_bytes)),
        };
        for cluster in plain.chunks(cluster_bytes) {
            let (codec, stored) = packer.pack(cluster)?;
            let crc = crc32c::crc32c(stored);
            batch.packed.extend_from_slice(stored);
            batch.clusters.push((codec, stored.len() as u32, crc));
        }
        Ok(batch)
    })
}

impl<'a> Clusters<'a> {
    pub fn new(
        sink: &'a dyn Sink,
        path: &'a Path,
        pool: &'a Pool,
        compression: Compression,
        cluster_bytes: usize,
        spool: SpooledTempFile,
    ) -> Clusters<'a> {
        let batch_bytes = BATCH_BYTES.max(cluster_bytes);
        Clusters {
            sink,
            path,
            pool,
            compression,
            cluster_bytes,
            batch_bytes,
            open: Vec::with_capacity(batch_bytes),
            kept: VecDeque::new(),
            flying: InOrder::new(true),
            flying_max: pool.threads() as usize * 8 + 8,
            stored: 0,
            offset: HEADER_BYTES as u64,
            block: Vec::new(),
            blocks: spool,
            blocks_len: 0,
            read_again: (0..(READ_AGAIN_BYTES / cluster_bytes).max(4))
                .map(|_| None)
                .collect(),
            unpacker: Unpacker::new(),
        }
    }

    /// Pages so far.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Stores a page; its number.
    pub fn store(&mut self, page: &[u8]) -> Result<u64> {
        if self.stored >= STORED_PAGES_MAX {
            return Err(Error::input(
                "more than 16 TiB of different pages: make it several images",
            ));
        }
        self.open.extend_from_slice(page);
        self.stored += 1;
        if self.open.len() == self.batch_bytes {
            self.close_batch();
            while self.flying.is_ready() || self.flying.len() > self.flying_max {
                self.write_next()?;
            }
        }
        Ok(self.stored - 1)
    }

    fn close_batch(&mut self) {
        let next = Vec::with_capacity(self.batch_bytes);
        let plain = Arc::new(std::mem::replace(&mut self.open, next));
        let (compression, cluster_bytes) = (self.compression, self.cluster_bytes);
        let work = Arc::clone(&plain);
        self.flying
            .give(self.pool, move || pack(compression, cluster_bytes, &work));
        self.kept.push_back(plain);
    }

    /// Waits for the oldest batch and writes it.
    fn write_next(&mut self) -> Result<()> {
        let Some(batch) = self.flying.take() else {
            return Ok(());
        };
        let failed = |error| Error::io("pack for", self.path, error);
        let batch = batch.map_err(failed)?;
        self.write(&batch.packed)?;
        let mut offset = self.offset - batch.packed.len() as u64;
        for (codec, stored_bytes, crc) in batch.clusters {
            self.block.push(Cluster {
                offset,
                stored_bytes,
                codec,
                crc,
            });
            offset += u64::from(stored_bytes);
            if self.block.len() as u64 == BLOCK_CLUSTERS {
                self.close_block()?;
            }
        }
        let kept_max = self.flying.len() + KEPT_BYTES / self.batch_bytes;
        while self.kept.len() > kept_max {
            self.kept.pop_front();
        }
        Ok(())
    }

    fn close_block(&mut self) -> Result<()> {
        let bytes = encode_block(self.blocks_len, &self.block);
        self.blocks
            .write_all(&bytes)
            .map_err(|error| Error::io("write a temporary file for", self.path, error))?;
        self.blocks_len += 1;
        self.block.clear();
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sink
            .write_all_at(bytes, self.offset)
            .map_err(|error| Error::io("write", self.path, error))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Whether the stored page has this content: decided by the content.
    pub fn is(&mut self, number: u64, page: &[u8]) -> Result<bool> {
        let batch_pages = (self.batch_bytes / PAGE_BYTES) as u64;
        // Counted back from the open batch, the number of which is that of all that came before.
        let back = (self.stored - self.open.len() as u64 / PAGE_BYTES as u64) / batch_pages;
        let back = (back).checked_sub(number / batch_pages);
        let from = (number % batch_pages) as usize * PAGE_BYTES;
        let plain = match back {
            None | Some(0) => Some(&self.open),
            Some(back) => {
                let at = self.kept.len().checked_sub(back as usize);
                at.map(|at| &*self.kept[at])
            }
        };
        if let Some(plain) = plain {
            return Ok(plain[from..from + PAGE_BYTES] == *page);
        }
        let cluster_pages = (self.cluster_bytes / PAGE_BYTES) as u64;
        let from = (number % cluster_pages) as usize * PAGE_BYTES;
        let plain = self.again(number / cluster_pages)?;
        Ok(plain[from..from + PAGE_BYTES] == *page)
    }

    /// A whole cluster that was written long ago.
    fn again(&mut self, cluster: u64) -> Result<&[u8]> {
        let slot = (cluster % self.read_again.len() as u64) as usize;
        if !matches!(&self.read_again[slot], Some((there, _)) if *there == cluster) {
            let place = self.place(cluster)?;
            let failed = |error| Error::io("read again", self.path, error);
            let mut stored = vec![0; place.stored_bytes as usize];
            self.sink
                .read_exact_at(&mut stored, place.offset)
                .map_err(failed)?;
            let mut plain = match self.read_again[slot].take() {
                Some((_, plain)) => plain,
                None => vec![0; self.cluster_bytes],
            };
            // A disk that does not keep what it was given must not make two pages one.
            if crc32c::crc32c(&stored) != place.crc
                || !self.unpacker.unpack(place.codec, &stored, &mut plain)
            {
                return Err(Error::Damaged {
                    path: self.path.to_owned(),
                    offset: place.offset,
                    what: "cluster that was just written",
                });
            }
            self.read_again[slot] = Some((cluster, plain));
        }
        match &self.read_again[slot] {
            Some((_, plain)) => Ok(plain),
            None => unreachable!("it was filled above"),
        }
    }

    fn place(&mut self, cluster: u64) -> Result<Cluster> {
        let block = cluster / BLOCK_CLUSTERS;
        let slot = (cluster % BLOCK_CLUSTERS) as usize;
        if block == self.blocks_len {
            return Ok(self.block[slot]);
        }
        let mut entry = [0; 16];
        let at = block * crate::layout::BLOCK_BYTES as u64 + slot as u64 * 16;
        let blocks = &mut self.blocks;
        let read = blocks
            .seek(SeekFrom::Start(at))
            .and_then(|_| blocks.read_exact(&mut entry))
            .and_then(|()| blocks.seek(SeekFrom::End(0)));
        read.map_err(|error| Error::io("read a temporary file for", self.path, error))?;
        let word = u32_at(&entry, 8);
        Ok(Cluster {
            offset: u64_at(&entry, 0),
            stored_bytes: word & 0xff_ffff,
            codec: match word >> 24 {
                0 => Codec::Plain,
                1 => Codec::Zstd,
                _ => Codec::Lz4,
            },
            crc: u32_at(&entry, 12),
        })
    }

    /// Writes what is left; where the clusters end, and their blocks.
    pub fn finish(mut self) -> Result<(u64, SpooledTempFile)> {
        if !self.open.is_empty() {
            self.close_batch();
        }
        while self.flying.len() > 0 {
            self.write_next()?;
        }
        if !self.block.is_empty() {
            self.close_block()?;
        }
        Ok((self.offset, self.blocks))
    }
}

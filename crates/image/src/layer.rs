//! One image file: its index, read piece by piece, and its clusters.
//!
//! Nothing that the file says is believed before it is checked: the header and the directory when the file is opened, a
//! table or a block of clusters when it is first used, a cluster each time it is read.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::codec::Unpacker;
use crate::layout::{
    BLOCK_BYTES, BLOCK_CLUSTERS, Cluster, Codec, DIRECTORY_ENTRY_BYTES, Entry, GROUP_PAGES, Group,
    HEADER_BYTES, Header, HeaderFault, TABLE_BYTES, u32_at,
};
use crate::store::Store;
use crate::{Error, Result};

type Table = Box<[u32]>;
type Block = Box<[Cluster]>;
/// Some blocks, of which none is read yet: a file's word for how many there are allocates little.
type Blocks = Box<[OnceLock<Block>]>;

/// Blocks of one piece.
const PIECE_BLOCKS: u64 = 1024;

/// One image file.
pub(crate) struct Layer {
    store: Box<dyn Store>,
    pub path: PathBuf,
    pub header: Header,
    directory: Vec<Group>,
    tables: Box<[OnceLock<Table>]>,
    blocks: Box<[OnceLock<Blocks>]>,
    /// Tells layers apart in a cache that several images share.
    pub key: u64,
}

/// Memory of a thread, for clusters on their way.
struct Scratch {
    stored: Vec<u8>,
    unpacker: Unpacker,
}

impl Scratch {
    const fn new() -> Scratch {
        Scratch {
            stored: Vec::new(),
            unpacker: Unpacker::new(),
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
}

static KEYS: AtomicU64 = AtomicU64::new(0);

/// Reads and checks the header.
pub(crate) fn read_header(store: &dyn Store, path: &Path) -> Result<Header> {
    let failed = |error| Error::io("read", path, error);
    let file_bytes = store.len().map_err(failed)?;
    let mut bytes = [0; HEADER_BYTES];
    match store.read_exact_at(&mut bytes, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(Error::NotAnImage {
                path: path.to_owned(),
            });
        }
        Err(error) => return Err(failed(error)),
    }
    Header::decode(&bytes, file_bytes).map_err(|fault| {
        let path = path.to_owned();
        match fault {
            HeaderFault::NotAnImage => Error::NotAnImage { path },
            HeaderFault::Unsupported(what) => Error::Unsupported { path, what },
            HeaderFault::Damaged(offset, what) => Error::Damaged { path, offset, what },
        }
    })
}

fn lazily<T>(count: u64) -> Box<[OnceLock<T>]> {
    (0..count).map(|_| OnceLock::new()).collect()
}

impl Layer {
    pub fn open(store: Box<dyn Store>, path: &Path) -> Result<Layer> {
        let header = read_header(&*store, path)?;
        let mut layer = Layer {
            store,
            path: path.to_owned(),
            directory: Vec::new(),
            tables: Box::default(),
            blocks: Box::default(),
            key: KEYS.fetch_add(1, Ordering::Relaxed),
            header,
        };
        layer.directory = layer.read_directory()?;
        let is_table = |group: &&Group| matches!(group, Group::Table(..));
        // Before memory is taken for them by the header's word.
        if layer.directory.iter().filter(is_table).count() as u64 != layer.header.tables {
            return Err(layer.damaged(64, "number of tables"));
        }
        layer.tables = lazily(layer.header.tables);
        layer.blocks = lazily(layer.header.blocks().div_ceil(PIECE_BLOCKS));
        Ok(layer)
    }

    pub(crate) fn damaged(&self, offset: u64, what: &'static str) -> Error {
        let path = self.path.clone();
        Error::Damaged { path, offset, what }
    }

    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.store.read_exact_at(buf, offset).map_err(|error| {
            // It was long enough when it was opened.
            match error.kind() {
                io::ErrorKind::UnexpectedEof => self.damaged(offset, "end of the file"),
                _ => Error::io("read", &self.path, error),
            }
        })
    }

    /// Grows as it is read: a length in the header alone allocates nothing.
    fn read_directory(&self) -> Result<Vec<Group>> {
        let header = &self.header;
        let mut directory = Vec::new();
        let mut part = vec![0; 1 << 16];
        let (mut crc, mut group) = (0, 0);
        while group < header.groups() {
            let groups = (header.groups() - group).min((part.len() / DIRECTORY_ENTRY_BYTES) as u64);
            let bytes = &mut part[..groups as usize * DIRECTORY_ENTRY_BYTES];
            let offset = header.directory_offset() + group * DIRECTORY_ENTRY_BYTES as u64;
            self.read(bytes, offset)?;
            crc = crc32c::crc32c_append(crc, bytes);
            for entry in bytes.chunks_exact(DIRECTORY_ENTRY_BYTES) {
                let decoded = Group::decode(entry, header.group_pages(group), header);
                let wrong = || self.damaged(offset, "entry of the directory");
                directory.push(decoded.ok_or_else(wrong)?);
                group += 1;
            }
        }
        match crc == header.directory_crc {
            true => Ok(directory),
            false => Err(self.damaged(header.directory_offset(), "checksum of the directory")),
        }
    }

    /// What the index says of a page of the memory.
    #[inline]
    pub fn entry(&self, page: u64) -> Result<Entry> {
        // The memory of a layer above may be larger, and the last group is not whole.
        if page >= self.header.pages() {
            return Ok(Entry::Absent);
        }
        let slot = (page % GROUP_PAGES) as usize;
        let group = page / GROUP_PAGES;
        match self.directory.get(group as usize) {
            None | Some(Group::Absent) => Ok(Entry::Absent),
            Some(Group::Zero) => Ok(Entry::Zero),
            Some(Group::Run(first)) => Ok(Entry::Stored(u64::from(*first) + slot as u64)),
            Some(Group::Table(table, crc)) => {
                Ok(Entry::decode(self.table(*table, *crc, group)?[slot]))
            }
        }
    }

    /// The whole group is of one kind without content.
    pub fn is_uniform(&self, group: u64) -> Option<Entry> {
        match self.directory.get(group as usize) {
            None | Some(Group::Absent) => Some(Entry::Absent),
            Some(Group::Zero) => Some(Entry::Zero),
            _ => None,
        }
    }

    #[inline]
    fn table(&self, table: u32, crc: u32, group: u64) -> Result<&Table> {
        let place = &self.tables[table as usize];
        match place.get() {
            Some(table) => Ok(table),
            None => self.read_table(place, table, crc, group),
        }
    }

    #[cold]
    fn read_table<'a>(
        &self,
        place: &'a OnceLock<Table>,
        table: u32,
        crc: u32,
        group: u64,
    ) -> Result<&'a Table> {
        let mut bytes = [0; TABLE_BYTES];
        let offset = self.header.table_offset(u64::from(table));
        self.read(&mut bytes, offset)?;
        if crc32c::crc32c(&bytes) != crc {
            return Err(self.damaged(offset, "checksum of a table of pages"));
        }
        let entries: Table = bytes
            .chunks_exact(4)
            .map(|entry| u32_at(entry, 0))
            .collect();
        let inside = |entry: &u32| match Entry::decode(*entry) {
            Entry::Stored(number) => number < self.header.stored_pages,
            Entry::Absent | Entry::Zero => true,
        };
        let (pages, behind) = entries.split_at(self.header.group_pages(group) as usize);
        if !pages.iter().all(inside) || behind.iter().any(|entry| *entry != 0) {
            return Err(self.damaged(offset, "number in a table of pages"));
        }
        Ok(place.get_or_init(|| entries))
    }

    /// Where a cluster is.
    #[inline]
    pub fn cluster(&self, cluster: u64) -> Result<Cluster> {
        let block = cluster / BLOCK_CLUSTERS;
        let piece = self.blocks[(block / PIECE_BLOCKS) as usize].get_or_init(|| {
            let first = block - block % PIECE_BLOCKS;
            lazily((self.header.blocks() - first).min(PIECE_BLOCKS))
        });
        let place = &piece[(block % PIECE_BLOCKS) as usize];
        let found = match place.get() {
            Some(found) => found,
            None => self.read_block(place, block)?,
        };
        Ok(found[(cluster % BLOCK_CLUSTERS) as usize])
    }

    #[cold]
    fn read_block<'a>(&self, place: &'a OnceLock<Block>, block: u64) -> Result<&'a Block> {
        let mut bytes = [0; BLOCK_BYTES];
        let offset = self.header.block_offset(block);
        self.read(&mut bytes, offset)?;
        let found = crate::layout::decode_block(&bytes, block, &self.header)
            .ok_or_else(|| self.damaged(offset, "checksum of a table of clusters"))?;
        Ok(place.get_or_init(|| found))
    }

    /// Reads, checks and unpacks a cluster into `plain`, which has its size.
    pub fn read_cluster(&self, cluster: u64, plain: &mut [u8]) -> Result<()> {
        let found = self.cluster(cluster)?;
        let check = |stored: &[u8]| match crc32c::crc32c(stored) == found.crc {
            true => Ok(()),
            false => Err(self.damaged(found.offset, "checksum of a cluster")),
        };
        if found.codec == Codec::Plain {
            // Its length was checked with the block: that of `plain`.
            self.read(plain, found.offset)?;
            return check(plain);
        }
        // Taken out: the store may itself read an image on this thread.
        let mut scratch = SCRATCH.replace(Scratch::new());
        let read = self.read_packed(&found, &mut scratch, plain, check);
        SCRATCH.set(scratch);
        read
    }

    fn read_packed(
        &self,
        found: &Cluster,
        scratch: &mut Scratch,
        plain: &mut [u8],
        check: impl Fn(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let len = found.stored_bytes as usize;
        if scratch.stored.len() < len {
            // Less than a cluster, by the check of the block.
            scratch.stored.resize(len, 0);
        }
        let stored = &mut scratch.stored[..len];
        self.read(stored, found.offset)?;
        check(stored)?;
        match scratch.unpacker.unpack(found.codec, stored, plain) {
            true => Ok(()),
            false => Err(self.damaged(found.offset, "compressed cluster")),
        }
    }
}

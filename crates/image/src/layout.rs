//! The bytes of the format, without any I/O: FORMAT.md as code.

use crate::Identity;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Pages of a group, of which the directory has one entry: 2 MiB.
pub(crate) const GROUP_PAGES: u64 = 512;
/// Bytes of a group.
pub(crate) const GROUP_BYTES: u64 = GROUP_PAGES * PAGE_BYTES as u64;
/// Most memory that an image can have: 64 TiB.
pub const MEMORY_BYTES_MAX: u64 = 1 << 46;
/// Most different pages that one layer can have: 16 TiB less two pages.
pub const STORED_PAGES_MAX: u64 = u32::MAX as u64 - 1;
/// Most layers that can lie on each other.
pub const LAYERS_MAX: usize = 32;
/// Smallest and largest cluster, as powers of two.
pub(crate) const CLUSTER_BITS: std::ops::RangeInclusive<u8> = 12..=20;

pub(crate) const HEADER_BYTES: usize = 4096;
pub(crate) const TABLE_BYTES: usize = GROUP_PAGES as usize * 4;
pub(crate) const DIRECTORY_ENTRY_BYTES: usize = 16;
pub(crate) const BLOCK_BYTES: usize = 4096;
pub(crate) const BLOCK_CLUSTERS: u64 = 255;
pub(crate) const SECTION_ENTRY_BYTES: usize = 32;
/// Most sections of an image.
pub(crate) const SECTIONS_MAX: u32 = 64;
/// Longest name of a base.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// What an image begins with. Like PNG's: shows a transfer that took it for text, and is no text itself.
pub const MAGIC: [u8; 8] = *b"\x89AMI\r\n\x1a\n";
const VERSION: u32 = 1;
/// Features that a reader must know: none yet.
const KNOWN_INCOMPATIBLE: u64 = 0;

/// What a layer knows of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PageKind {
    /// Nothing: the base knows, or nobody does, and then it reads as zeros.
    Absent = 0,
    /// It is all zeros.
    Zero = 1,
    /// It has content.
    Data = 2,
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn up(offset: u64) -> u64 {
    offset.next_multiple_of(PAGE_BYTES as u64)
}

/// The first 4096 bytes of an image.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Header {
    pub cluster_bits: u8,
    /// Layers below.
    pub depth: u8,
    pub sections: u32,
    pub memory_bytes: u64,
    pub file_bytes: u64,
    pub stored_pages: u64,
    pub tables: u64,
    pub index_offset: u64,
    pub zero_pages: u64,
    pub absent_pages: u64,
    pub directory_crc: u32,
    pub sections_crc: u32,
    pub identity: Identity,
    pub base: Option<Identity>,
    pub base_name: String,
}

/// Why a header is not accepted.
#[derive(Debug, PartialEq)]
pub(crate) enum HeaderFault {
    NotAnImage,
    Unsupported(String),
    Damaged(u64, &'static str),
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let to = &mut bytes[..];
        put(to, 0, &MAGIC);
        put(to, 8, &VERSION.to_le_bytes());
        put(to, 12, &(HEADER_BYTES as u32).to_le_bytes());
        put(to, 32, &[12, self.cluster_bits, 9, self.depth]);
        put(to, 36, &self.sections.to_le_bytes());
        for (i, value) in [
            self.memory_bytes,
            self.file_bytes,
            self.stored_pages,
            self.tables,
            self.index_offset,
            self.zero_pages,
            self.absent_pages,
        ]
        .iter()
        .enumerate()
        {
            put(to, 40 + 8 * i, &value.to_le_bytes());
        }
        put(to, 96, &self.directory_crc.to_le_bytes());
        put(to, 100, &self.sections_crc.to_le_bytes());
        put(to, 104, &self.identity.0);
        put(to, 136, &self.base.map_or([0; 32], |base| base.0));
        put(to, 168, &(self.base_name.len() as u16).to_le_bytes());
        put(to, 170, self.base_name.as_bytes());
        let crc = crc32c::crc32c(&to[..4092]);
        put(to, 4092, &crc.to_le_bytes());
        bytes
    }

    /// Checks all that can be known from the header and the file's real length.
    pub fn decode(bytes: &[u8; HEADER_BYTES], file_bytes: u64) -> Result<Header, HeaderFault> {
        use HeaderFault::{Damaged, NotAnImage, Unsupported};
        if bytes[..8] != MAGIC {
            return Err(NotAnImage);
        }
        // Before anything is believed; versions to come keep magic, version and checksum where they are.
        if u32_at(bytes, 4092) != crc32c::crc32c(&bytes[..4092]) {
            return Err(Damaged(0, "checksum of the header"));
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(Unsupported(format!("image of version {version}")));
        }
        let unknown = u64_at(bytes, 16) & !KNOWN_INCOMPATIBLE;
        if unknown != 0 {
            return Err(Unsupported(format!("image with features {unknown:#x}")));
        }
        let (page_bits, cluster_bits, group_bits) = (bytes[32], bytes[33], bytes[34]);
        if page_bits != 12 || group_bits != 9 || !CLUSTER_BITS.contains(&cluster_bits) {
            return Err(Unsupported(format!(
                "image with pages of 2^{page_bits}, clusters of 2^{cluster_bits} bytes, groups of 2^{group_bits} pages"
            )));
        }
        let number = |i: usize| u64_at(bytes, 40 + 8 * i);
        let identity = |at: usize| Identity(std::array::from_fn(|i| bytes[at + i]));
        let base = Some(identity(136)).filter(|base| base.0 != [0; 32]);
        let name_len = usize::from(bytes[168]) | usize::from(bytes[169]) << 8;
        let base_name = bytes
            .get(170..170 + name_len)
            .filter(|_| name_len <= NAME_BYTES_MAX)
            .and_then(|name| std::str::from_utf8(name).ok())
            .ok_or(Damaged(168, "name of the base"))?
            .to_owned();
        let header = Header {
            cluster_bits,
            depth: bytes[35],
            sections: u32_at(bytes, 36),
            memory_bytes: number(0),
            file_bytes: number(1),
            stored_pages: number(2),
            tables: number(3),
            index_offset: number(4),
            zero_pages: number(5),
            absent_pages: number(6),
            directory_crc: u32_at(bytes, 96),
            sections_crc: u32_at(bytes, 100),
            identity: identity(104),
            base,
            base_name,
        };
        header.check(file_bytes)?;
        Ok(header)
    }

    fn check(&self, file_bytes: u64) -> Result<(), HeaderFault> {
        let demand = |holds: bool, at: u64, what: &'static str| match holds {
            true => Ok(()),
            false => Err(HeaderFault::Damaged(at, what)),
        };
        demand(
            usize::from(self.depth) < LAYERS_MAX && (self.depth == 0) == self.base.is_none(),
            35,
            "number of layers",
        )?;
        demand(self.sections <= SECTIONS_MAX, 36, "number of sections")?;
        demand(
            self.memory_bytes <= MEMORY_BYTES_MAX
                && self.memory_bytes.is_multiple_of(PAGE_BYTES as u64),
            40,
            "size of the memory",
        )?;
        demand(
            self.file_bytes == file_bytes && file_bytes <= i64::MAX as u64,
            48,
            "length of the file, which is not as it was written",
        )?;
        demand(
            self.stored_pages <= STORED_PAGES_MAX,
            56,
            "number of stored pages",
        )?;
        demand(self.tables <= self.groups(), 64, "number of tables")?;
        // All numbers are bounded by now, so that no sum can overflow.
        demand(
            self.index_offset >= HEADER_BYTES as u64
                && self.index_offset <= file_bytes
                && self.index_offset.is_multiple_of(PAGE_BYTES as u64)
                && self.sections_offset() + u64::from(self.sections) * SECTION_ENTRY_BYTES as u64
                    <= file_bytes,
            72,
            "place of the index",
        )?;
        let known = self.zero_pages.checked_add(self.absent_pages);
        demand(
            known.is_some_and(|known| known <= self.pages()),
            80,
            "number of zero pages",
        )
    }

    pub fn pages(&self) -> u64 {
        self.memory_bytes / PAGE_BYTES as u64
    }

    pub fn groups(&self) -> u64 {
        self.pages().div_ceil(GROUP_PAGES)
    }

    /// Pages of the group: fewer than usual only in the last one.
    pub fn group_pages(&self, group: u64) -> u64 {
        (self.pages() - group * GROUP_PAGES).min(GROUP_PAGES)
    }

    pub fn cluster_pages(&self) -> u64 {
        1 << (self.cluster_bits - 12)
    }

    pub fn cluster_bytes(&self) -> usize {
        1 << self.cluster_bits
    }

    pub fn clusters(&self) -> u64 {
        self.stored_pages.div_ceil(self.cluster_pages())
    }

    /// Bytes that the cluster has when it is unpacked: fewer than usual only in the last one.
    pub fn plain_bytes(&self, cluster: u64) -> usize {
        let pages = self.cluster_pages();
        (self.stored_pages - cluster * pages).min(pages) as usize * PAGE_BYTES
    }

    pub fn blocks(&self) -> u64 {
        self.clusters().div_ceil(BLOCK_CLUSTERS)
    }

    pub fn block_offset(&self, block: u64) -> u64 {
        self.index_offset + block * BLOCK_BYTES as u64
    }

    pub fn table_offset(&self, table: u64) -> u64 {
        self.block_offset(self.blocks()) + table * TABLE_BYTES as u64
    }

    pub fn directory_offset(&self) -> u64 {
        up(self.table_offset(self.tables))
    }

    pub fn sections_offset(&self) -> u64 {
        up(self.directory_offset() + self.groups() * DIRECTORY_ENTRY_BYTES as u64)
    }
}

/// What the pages of a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Nothing is known of any of them.
    Absent,
    /// All are zero.
    Zero,
    /// They are stored pages one after the other, from this one.
    Run(u32),
    /// A table of this number tells, which has this checksum.
    Table(u32, u32),
}

impl Group {
    pub fn encode(self) -> [u8; DIRECTORY_ENTRY_BYTES] {
        let (kind, value, crc) = match self {
            Group::Absent => (0, 0, 0),
            Group::Zero => (1, 0, 0),
            Group::Run(first) => (2, first, 0),
            Group::Table(table, crc) => (3, table, crc),
        };
        let mut bytes = [0; DIRECTORY_ENTRY_BYTES];
        put(&mut bytes, 0, &u64::from(value).to_le_bytes());
        put(&mut bytes, 8, &crc.to_le_bytes());
        bytes[12] = kind;
        bytes
    }

    /// The entry of a group of `pages`, if it fits the header.
    pub fn decode(bytes: &[u8], pages: u64, header: &Header) -> Option<Group> {
        let (value, crc) = (u64_at(bytes, 0), u32_at(bytes, 8));
        match (bytes[12], &bytes[13..16]) {
            (0, [0, 0, 0]) => Some(Group::Absent),
            (1, [0, 0, 0]) => Some(Group::Zero),
            (2, [0, 0, 0]) if value.checked_add(pages)? <= header.stored_pages => {
                Some(Group::Run(value as u32))
            }
            (3, [0, 0, 0]) if value < header.tables => Some(Group::Table(value as u32, crc)),
            _ => None,
        }
    }
}

/// An entry of a table: a stored page, or that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Absent,
    Zero,
    Stored(u64),
}

impl Entry {
    pub fn encode(self) -> u32 {
        match self {
            Entry::Absent => 0,
            Entry::Zero => 1,
            // At most STORED_PAGES_MAX - 1.
            Entry::Stored(number) => number as u32 + 2,
        }
    }

    pub fn decode(value: u32) -> Entry {
        match value {
            0 => Entry::Absent,
            1 => Entry::Zero,
            stored => Entry::Stored(u64::from(stored) - 2),
        }
    }
}

/// How a cluster is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// As it is.
    Plain,
    /// A Zstandard frame.
    Zstd,
    /// An LZ4 block.
    Lz4,
}

/// Where a cluster is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    pub offset: u64,
    pub stored_bytes: u32,
    pub codec: Codec,
    pub crc: u32,
}

impl Cluster {
    pub fn encode(&self) -> [u8; 16] {
        let codec = match self.codec {
            Codec::Plain => 0,
            Codec::Zstd => 1,
            Codec::Lz4 => 2u32,
        };
        let mut bytes = [0; 16];
        put(&mut bytes, 0, &self.offset.to_le_bytes());
        put(
            &mut bytes,
            8,
            &(self.stored_bytes | codec << 24).to_le_bytes(),
        );
        put(&mut bytes, 12, &self.crc.to_le_bytes());
        bytes
    }

    /// The entry of a cluster of `plain_bytes`, if it fits the header.
    fn decode(bytes: &[u8], plain_bytes: usize, header: &Header) -> Option<Cluster> {
        let (offset, word) = (u64_at(bytes, 0), u32_at(bytes, 8));
        let stored_bytes = word & 0xff_ffff;
        let codec = match word >> 24 {
            0 if stored_bytes as usize == plain_bytes => Codec::Plain,
            1 if (stored_bytes as usize) < plain_bytes => Codec::Zstd,
            2 if (stored_bytes as usize) < plain_bytes => Codec::Lz4,
            _ => return None,
        };
        let end = offset.checked_add(u64::from(stored_bytes))?;
        let inside = offset >= HEADER_BYTES as u64 && end <= header.index_offset;
        let crc = u32_at(bytes, 12);
        inside.then_some(Cluster {
            offset,
            stored_bytes,
            codec,
            crc,
        })
    }
}

/// A block of clusters with its number and checksum.
pub(crate) fn encode_block(block: u64, clusters: &[Cluster]) -> [u8; BLOCK_BYTES] {
    let mut bytes = [0; BLOCK_BYTES];
    for (entry, cluster) in bytes.chunks_exact_mut(16).zip(clusters) {
        entry.copy_from_slice(&cluster.encode());
    }
    put(&mut bytes, 4080, &block.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..4092]);
    put(&mut bytes, 4092, &crc.to_le_bytes());
    bytes
}

/// The clusters of a block, if its checksum, its number and all of them are right.
pub(crate) fn decode_block(
    bytes: &[u8; BLOCK_BYTES],
    block: u64,
    header: &Header,
) -> Option<Box<[Cluster]>> {
    if u32_at(bytes, 4092) != crc32c::crc32c(&bytes[..4092]) || u64_at(bytes, 4080) != block {
        return None;
    }
    let first = block * BLOCK_CLUSTERS;
    let last = (first + BLOCK_CLUSTERS).min(header.clusters());
    (first..last)
        .zip(bytes.chunks_exact(16))
        .map(|(cluster, entry)| Cluster::decode(entry, header.plain_bytes(cluster), header))
        .collect()
}

//! The parts of an ELF file that unwinding and naming need.
//!
//! Sections are read, not memory-mapped: a linker that truncates a mapped file
//! kills the reader with SIGBUS, and a build is a workload like any other. Only
//! 64-bit little-endian files are understood. Everything in a file is untrusted.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use lzma_rust2::XzReader;
use object::LittleEndian;
use object::elf::{self, FileHeader64, Rela64, SectionHeader64, Sym64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, SectionTable};
use object::read::{CompressedData, CompressionFormat, ReadCache, SectionIndex};

use super::pclntab;

const LE: LittleEndian = LittleEndian;
/// No section larger than this is read.
const SECTION_BYTES_MAX: u64 = 1 << 30;
/// Nor are relocations, where functions of others are looked for.
const RELOCATIONS_BYTES_MAX: u64 = 1 << 26;
/// No more is unpacked of a `.gnu_debugdata`.
const PACKED_BYTES_MAX: u64 = 1 << 27;
/// Memory for it, its dictionary above all. `xz -9` takes 64 MiB.
const UNPACKING_KIB_MAX: u32 = 128 << 10;
const SECTIONS_MAX: usize = 1 << 16;
const SEGMENTS_MAX: usize = 1 << 12;
/// Segments and FDEs are handled by 32-bit offsets from the lowest address.
pub(super) const SPAN_MAX: u64 = 1 << 32;

/// Where the bytes of a module come from.
#[derive(Debug)]
pub(super) enum Bytes {
    File(FileBytes),
    Memory(Cursor<Arc<[u8]>>),
}

/// A file that is read here and there, a few bytes at a time: names of sections and their headers, which lie together.
#[derive(Debug)]
pub(super) struct FileBytes {
    pub(super) file: File,
    at: u64,
    /// The last block that was read, and where it begins.
    block: Vec<u8>,
    block_at: u64,
}

impl FileBytes {
    const BLOCK: usize = 4096;

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.len() >= FileBytes::BLOCK {
            let read = self.file.read_at(buffer, self.at)?;
            self.at += read as u64;
            return Ok(read);
        }
        let offset = (self.at % FileBytes::BLOCK as u64) as usize;
        let block_at = self.at - offset as u64;
        // The last block of a file is short, and one that was not whole for another reason is read again.
        if block_at != self.block_at || offset >= self.block.len() {
            self.block.resize(FileBytes::BLOCK, 0);
            let read = self.file.read_at(&mut self.block, block_at);
            self.block.truncate(*read.as_ref().unwrap_or(&0));
            self.block_at = block_at;
            read?;
        }
        let there = self.block.get(offset..).unwrap_or_default();
        let read = there.len().min(buffer.len());
        buffer[..read].copy_from_slice(&there[..read]);
        self.at += read as u64;
        Ok(read)
    }
}

impl Bytes {
    pub(super) fn file(file: File) -> Bytes {
        Bytes::File(FileBytes {
            file,
            at: 0,
            block: Vec::new(),
            block_at: 0,
        })
    }

    pub(super) fn memory(bytes: Arc<[u8]>) -> Bytes {
        Bytes::Memory(Cursor::new(bytes))
    }
}

impl Read for Bytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Bytes::File(file) => file.read(buffer),
            Bytes::Memory(memory) => memory.read(buffer),
        }
    }
}

impl Seek for Bytes {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Bytes::File(FileBytes { file, at, .. }) => {
                let to = match to {
                    SeekFrom::Start(to) => Some(to),
                    SeekFrom::Current(by) => at.checked_add_signed(by),
                    SeekFrom::End(by) => file.metadata()?.len().checked_add_signed(by),
                };
                *at = to.ok_or(io::ErrorKind::InvalidInput)?;
                Ok(*at)
            }
            Bytes::Memory(memory) => memory.seek(to),
        }
    }
}

type Data<'a> = &'a ReadCache<Bytes>;
type Header = FileHeader64<LittleEndian>;

/// A loadable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) offset: u64,
    pub(super) file_len: u64,
    pub(super) address: u64,
    pub(super) memory_len: u64,
    pub(super) executable: bool,
}

/// What is read of every module once.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    pub(super) segments: Vec<Segment>,
    pub(super) build_id: Vec<u8>,
    /// File name and CRC-32 of the separate debug file.
    pub(super) debug_link: Option<(Vec<u8>, u32)>,
    pub(super) has_debug_info: bool,
    pub(super) has_symbol_table: bool,
}

impl Layout {
    /// The address that the file states for this offset; code is preferred where
    /// pages are mapped twice.
    pub(super) fn address_of_offset(&self, offset: u64) -> Option<u64> {
        const PAGE_MASK: u64 = 0xfff;
        let holds = |segment: &&Segment| {
            let end = segment.offset.saturating_add(segment.file_len);
            (segment.offset & !PAGE_MASK) <= offset && offset < end
        };
        let mut holding = self.segments.iter().filter(holds);
        let first = holding.next()?;
        let segment = if first.executable {
            first
        } else {
            holding.find(|segment| segment.executable).unwrap_or(first)
        };
        Some(
            segment
                .address
                .wrapping_add(offset.wrapping_sub(segment.offset)),
        )
    }

    /// The offset in the file of this address, and how many bytes of its segment follow.
    pub(super) fn offset_of_address(&self, address: u64) -> Option<(u64, u64)> {
        self.segments
            .iter()
            .filter(|segment| segment.executable)
            .find_map(|segment| {
                let into = address.checked_sub(segment.address)?;
                let left = segment
                    .file_len
                    .checked_sub(into)
                    .filter(|&left| left > 0)?;
                Some((segment.offset.checked_add(into)?, left))
            })
    }

    /// The executable segment around an address.
    pub(super) fn code_around(&self, address: u64) -> Option<Range<u64>> {
        self.segments
            .iter()
            .filter(|segment| segment.executable)
            .find_map(|segment| {
                let range = segment.address..segment.address.checked_add(segment.file_len)?;
                range.contains(&address).then_some(range)
            })
    }

    /// Addresses from the lowest to the highest, if they span less than 4 GiB.
    pub(super) fn span(&self) -> Option<Range<u64>> {
        let low = self.segments.iter().map(|segment| segment.address).min()?;
        let high = self
            .segments
            .iter()
            .map(|segment| segment.address.saturating_add(segment.memory_len))
            .max()?;
        (high - low < SPAN_MAX).then_some(low..high)
    }
}

/// Unwind tables, owned.
#[derive(Clone, Debug, Default)]
pub(super) struct UnwindTables {
    pub(super) text: Option<Range<u64>>,
    pub(super) got: Option<Range<u64>>,
    pub(super) eh_frame: Option<(Range<u64>, Arc<[u8]>)>,
    pub(super) eh_frame_hdr: Option<(Range<u64>, Arc<[u8]>)>,
    pub(super) debug_frame: Option<Arc<[u8]>>,
}

impl UnwindTables {
    pub(super) fn bytes(&self) -> usize {
        let len = |table: &Option<(Range<u64>, Arc<[u8]>)>| {
            table.as_ref().map_or(0, |(_, bytes)| bytes.len())
        };
        len(&self.eh_frame)
            + len(&self.eh_frame_hdr)
            + self.debug_frame.as_ref().map_or(0, |bytes| bytes.len())
    }
}

/// A symbol of a function, its name as an index into the string table.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawSymbol {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) name: u32,
    pub(super) binding: u8,
}

/// Function symbols with their string table.
#[derive(Debug, Default)]
pub(super) struct RawSymbols {
    pub(super) symbols: Vec<RawSymbol>,
    pub(super) strings: Box<[u8]>,
    /// They are only the exported ones.
    pub(super) dynamic: bool,
}

impl RawSymbols {
    fn extend(&mut self, more: RawSymbols) {
        if more.symbols.is_empty() {
            return;
        }
        // Tables are smaller than a quarter of what the index reaches.
        let base = self.strings.len() as u32;
        let moved = |symbol: RawSymbol| RawSymbol {
            name: symbol.name.saturating_add(base),
            ..symbol
        };
        self.symbols.extend(more.symbols.into_iter().map(moved));
        self.strings = [&*self.strings, &*more.strings].concat().into();
        self.dynamic &= more.dynamic;
    }
}

/// An open ELF file.
pub(super) struct Elf<'a> {
    data: Data<'a>,
    header: &'a Header,
    sections: SectionTable<'a, Header, Data<'a>>,
}

impl<'a> Elf<'a> {
    /// Reads the headers. `None` when it is not a file that we understand.
    pub(super) fn parse(data: Data<'a>) -> Option<Elf<'a>> {
        let header = Header::parse(data).ok()?;
        if !header.is_little_endian() || !header.is_class_64() {
            return None;
        }
        // A file without section headers, or with damaged ones, can still be located.
        let sections = match header.shnum(LE, data) {
            Ok(count) if count <= SECTIONS_MAX => header.sections(LE, data).unwrap_or_default(),
            _ => SectionTable::default(),
        };
        Some(Elf {
            data,
            header,
            sections,
        })
    }

    pub(super) fn layout(&self) -> Layout {
        let mut layout = Layout {
            segments: self.segments(),
            build_id: self.build_id(),
            ..Layout::default()
        };
        if let Some(section) = self.section(b".gnu_debuglink") {
            layout.debug_link = self.bytes(section).and_then(debug_link);
        }
        layout.has_debug_info = [&b".debug_info"[..], b".zdebug_info"]
            .iter()
            .any(|name| self.section(name).is_some());
        layout.has_symbol_table = self
            .sections
            .iter()
            .any(|section| section.sh_type(LE) == elf::SHT_SYMTAB);
        layout
    }

    fn segments(&self) -> Vec<Segment> {
        if self
            .header
            .phnum(LE, self.data)
            .is_ok_and(|count| count > SEGMENTS_MAX)
        {
            return Vec::new();
        }
        let headers = self
            .header
            .program_headers(LE, self.data)
            .unwrap_or_default();
        headers
            .iter()
            .filter(|header| header.p_type(LE) == elf::PT_LOAD)
            .map(|header| Segment {
                offset: header.p_offset(LE),
                file_len: header.p_filesz(LE),
                address: header.p_vaddr(LE),
                memory_len: header.p_memsz(LE),
                executable: header.p_flags(LE) & elf::PF_X != 0,
            })
            .collect()
    }

    /// The build id, or nothing.
    pub(super) fn build_id(&self) -> Vec<u8> {
        let Some(section) = self.section(b".note.gnu.build-id") else {
            return Vec::new();
        };
        if section.sh_size(LE) > 4096 {
            return Vec::new();
        }
        let Ok(Some(mut notes)) = section.notes(LE, self.data) else {
            return Vec::new();
        };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == elf::ELF_NOTE_GNU && note.n_type(LE) == elf::NT_GNU_BUILD_ID {
                return note.desc().to_vec();
            }
        }
        Vec::new()
    }

    pub(super) fn unwind_tables(&self) -> UnwindTables {
        let range = |name: &[u8]| self.section(name).map(address_range);
        let table = |name: &[u8]| {
            let section = self.section(name)?;
            Some((address_range(section), Arc::from(self.bytes(section)?)))
        };
        let mut tables = UnwindTables {
            text: range(b".text"),
            got: range(b".got"),
            eh_frame: table(b".eh_frame"),
            eh_frame_hdr: table(b".eh_frame_hdr"),
            debug_frame: None,
        };
        if tables
            .eh_frame
            .as_ref()
            .is_none_or(|(_, bytes)| bytes.len() <= 8)
        {
            // A linker without input leaves a lone terminator.
            (tables.eh_frame, tables.eh_frame_hdr) = (None, None);
            tables.debug_frame = self
                .section(b".debug_frame")
                .and_then(|section| self.decompressed(section));
        }
        tables
    }

    /// The symbol table. Where there is none, what names functions of stripped files: the
    /// exported symbols, those that were packed into `.gnu_debugdata`, the tables of Go.
    pub(super) fn symbols(&self) -> RawSymbols {
        let table = |kind| {
            let mut sections = self.sections.iter();
            self.symbol_table(sections.find(|section| section.sh_type(LE) == kind)?)
        };
        if let Some(symbols) = table(elf::SHT_SYMTAB) {
            return symbols;
        }
        let mut symbols = RawSymbols {
            dynamic: true,
            ..table(elf::SHT_DYNSYM).unwrap_or_default()
        };
        for more in [self.packed_symbols(), self.go_functions()] {
            symbols.extend(more.unwrap_or_default());
        }
        symbols
    }

    /// MiniDebugInfo: an ELF file with nothing but a symbol table, compressed, as Fedora and
    /// its relatives leave it in all they strip.
    fn packed_symbols(&self) -> Option<RawSymbols> {
        let packed = self.bytes(self.section(b".gnu_debugdata")?)?;
        let mut plain = Vec::new();
        XzReader::new_mem_limit(packed, false, UNPACKING_KIB_MAX)
            .take(PACKED_BYTES_MAX)
            .read_to_end(&mut plain)
            .ok()?;
        let plain = ReadCache::new(Bytes::memory(plain.into()));
        let inner = Elf::parse(&plain)?;
        let mut sections = inner.sections.iter();
        inner.symbol_table(sections.find(|section| section.sh_type(LE) == elf::SHT_SYMTAB)?)
    }

    /// The functions of a program of Go 1.18 or newer, by its own table.
    pub(super) fn go_functions(&self) -> Option<RawSymbols> {
        let names: [&[u8]; 2] = [b".gopclntab", b".data.rel.ro.gopclntab"];
        let table = names.into_iter().find_map(|name| self.section(name))?;
        let is_code = |address: &u64| {
            self.sections.iter().any(|section| {
                section.sh_flags(LE) & u64::from(elf::SHF_EXECINSTR) != 0
                    && address_range(section).contains(address)
            })
        };
        let text = self
            .pointer(table, pclntab::TEXT_START)
            .filter(is_code)
            .or_else(|| {
                let module = self.section(b".go.module")?;
                self.pointer(module, pclntab::TEXT_START_IN_MODULE)
                    .filter(is_code)
            })
            // That of C code comes first where there is any.
            .or_else(|| Some(self.section(b".text")?.sh_addr(LE)))?;
        pclntab::functions(self.bytes(table)?, text)
    }

    /// The pointer at an offset of a section: what the file says, or what the dynamic linker
    /// will put there.
    fn pointer(&self, section: &'a SectionHeader64<LittleEndian>, at: usize) -> Option<u64> {
        let stated = self.bytes(section)?.get(at..)?.first_chunk::<8>()?;
        let stated = u64::from_le_bytes(*stated);
        if stated != 0 {
            return Some(stated);
        }
        let address = section.sh_addr(LE).checked_add(at as u64)?;
        self.relocations(SECTION_BYTES_MAX)
            .flat_map(|(_, entries)| entries)
            .find(|entry| entry.r_offset.get(LE) == address)
            .map(|entry| entry.r_addend.get(LE) as u64)
    }

    /// Sections of at most `bytes_max` with what the dynamic linker is to fill in.
    fn relocations(
        &self,
        bytes_max: u64,
    ) -> impl Iterator<
        Item = (
            &'a SectionHeader64<LittleEndian>,
            &'a [Rela64<LittleEndian>],
        ),
    > {
        let sections = self.sections.iter().filter(move |section| {
            section.sh_type(LE) == elf::SHT_RELA && section.sh_size(LE) <= bytes_max
        });
        sections.filter_map(|section| Some((section, section.data_as_array(LE, self.data).ok()?)))
    }

    /// Where the dynamic linker puts the addresses of the functions that `wanted` says are, by name: the entries of the
    /// GOT.
    pub(super) fn imports<T>(&self, wanted: impl Fn(&[u8]) -> Option<T>) -> Vec<(u64, T)> {
        let mut found = Vec::new();
        for (section, entries) in self.relocations(RELOCATIONS_BYTES_MAX) {
            let linked = |link: u32| self.sections.section(SectionIndex(link as usize)).ok();
            let Some(table) = linked(section.sh_link(LE)) else {
                continue;
            };
            if table.sh_type(LE) != elf::SHT_DYNSYM || table.sh_size(LE) > SECTION_BYTES_MAX {
                continue;
            }
            let symbols = table.data_as_array(LE, self.data);
            let strings = linked(table.sh_link(LE)).and_then(|strings| self.bytes(strings));
            let (Ok(symbols), Some(strings)) = (symbols, strings) else {
                continue;
            };
            let symbols: &[Sym64<LittleEndian>] = symbols;
            found.extend(entries.iter().filter_map(|entry| {
                let symbol = symbols.get(entry.r_sym(LE, false) as usize)?;
                let name = strings.get(symbol.st_name.get(LE) as usize..)?;
                let end = name.iter().position(|&byte| byte == 0)?;
                Some((entry.r_offset.get(LE), wanted(&name[..end])?))
            }));
        }
        found
    }

    fn symbol_table(&self, section: &'a SectionHeader64<LittleEndian>) -> Option<RawSymbols> {
        if section.sh_size(LE) > SECTION_BYTES_MAX {
            return None;
        }
        let entries: &[Sym64<LittleEndian>] = section.data_as_array(LE, self.data).ok()?;
        let strings = self
            .sections
            .section(SectionIndex(section.sh_link(LE) as usize))
            .ok()?;
        let strings: Box<[u8]> = self.bytes(strings)?.into();
        let executable: Vec<bool> = self
            .sections
            .iter()
            .map(|section| section.sh_flags(LE) & u64::from(elf::SHF_EXECINSTR) != 0)
            .collect();
        let symbols = entries
            .iter()
            .filter(|entry| {
                let code = executable.get(usize::from(entry.st_shndx.get(LE))).copied();
                match entry.st_type() {
                    // Large section numbers are kept aside, in a table that is not worth reading.
                    elf::STT_FUNC | elf::STT_GNU_IFUNC => {
                        code.unwrap_or(entry.st_shndx.get(LE) == elf::SHN_XINDEX)
                    }
                    // Labels of assembly code.
                    elf::STT_NOTYPE => code == Some(true),
                    _ => false,
                }
            })
            .map(|entry| RawSymbol {
                address: entry.st_value.get(LE),
                size: entry.st_size.get(LE),
                name: entry.st_name.get(LE),
                binding: entry.st_bind(),
            })
            .collect();
        Some(RawSymbols {
            symbols,
            strings,
            dynamic: false,
        })
    }

    fn section(&self, name: &[u8]) -> Option<&'a SectionHeader64<LittleEndian>> {
        self.sections
            .section_by_name(LE, name)
            .map(|(_, section)| section)
    }

    fn bytes(&self, section: &'a SectionHeader64<LittleEndian>) -> Option<&'a [u8]> {
        if section.sh_size(LE) > SECTION_BYTES_MAX {
            return None;
        }
        section
            .data(LE, self.data)
            .ok()
            .filter(|bytes| !bytes.is_empty())
    }

    fn decompressed(&self, section: &'a SectionHeader64<LittleEndian>) -> Option<Arc<[u8]>> {
        let bytes = self.bytes(section)?;
        let Some((header, offset, len)) = section.compression(LE, self.data).ok()? else {
            return Some(bytes.into());
        };
        let format = match header.ch_type.get(LE) {
            elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
            elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
            _ => return None,
        };
        let uncompressed_size = header.ch_size.get(LE);
        if uncompressed_size > SECTION_BYTES_MAX.min(len.saturating_mul(1 << 10)) {
            return None;
        }
        let data = bytes.get(bytes.len().checked_sub(usize::try_from(len).ok()?)?..)?;
        debug_assert!(offset >= section.sh_offset(LE));
        let plain = CompressedData {
            format,
            data,
            uncompressed_size,
        }
        .decompress()
        .ok()?;
        Some(plain.as_ref().into())
    }
}

fn address_range(section: &SectionHeader64<LittleEndian>) -> Range<u64> {
    let start = section.sh_addr(LE);
    start..start.saturating_add(section.sh_size(LE))
}

/// Splits `.gnu_debuglink`: a name, zeros up to a multiple of four, a CRC-32.
fn debug_link(section: &[u8]) -> Option<(Vec<u8>, u32)> {
    let len = section.iter().position(|&byte| byte == 0)?;
    let crc = section.get(len / 4 * 4 + 4..)?.first_chunk::<4>()?;
    Some((section[..len].to_vec(), u32::from_le_bytes(*crc)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn own_executable() -> Vec<u8> {
        let mut head = Vec::new();
        File::open("/proc/self/exe")
            .unwrap()
            .take(4 << 20)
            .read_to_end(&mut head)
            .unwrap();
        head
    }

    #[test]
    fn own_executable_has_code_and_tables() {
        let cache = ReadCache::new(Bytes::file(File::open("/proc/self/exe").unwrap()));
        let elf = Elf::parse(&cache).unwrap();
        let layout = elf.layout();
        assert!(layout.segments.iter().any(|segment| segment.executable));
        assert!(elf.unwind_tables().eh_frame.is_some());
        assert!(!elf.symbols().symbols.is_empty());
        let code = layout
            .segments
            .iter()
            .find(|segment| segment.executable)
            .unwrap();
        assert_eq!(layout.address_of_offset(code.offset), Some(code.address));
        assert_eq!(
            layout.offset_of_address(code.address),
            Some((code.offset, code.file_len))
        );
    }

    #[test]
    fn debug_links_are_split() {
        assert_eq!(debug_link(b"abc\0\x01\0\0\0"), Some((b"abc".to_vec(), 1)));
        assert_eq!(
            debug_link(b"abcd\0\0\0\0\x02\0\0\0"),
            Some((b"abcd".to_vec(), 2))
        );
        assert_eq!(debug_link(b"abcd"), None);
        assert_eq!(debug_link(b"abc\0"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_file_reads_like_its_bytes(
            len in 0_usize..20_000,
            reads in prop::collection::vec((0_u64..21_000, 0_usize..9_000), 1..40),
        ) {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
            let mut file = tempfile::tempfile().unwrap();
            std::io::Write::write_all(&mut file, &bytes).unwrap();
            let mut file = Bytes::file(file);
            let mut memory = Bytes::memory(bytes.into());
            for (at, len) in reads {
                let mut all = [Vec::new(), Vec::new()];
                for (bytes, read) in [&mut file, &mut memory].into_iter().zip(&mut all) {
                    bytes.seek(SeekFrom::Start(at)).unwrap();
                    bytes.take(len as u64).read_to_end(read).unwrap();
                }
                prop_assert_eq!(&all[0], &all[1]);
            }
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            crate::symbol::fuzz::elf(&bytes);
        }

        #[test]
        fn damaged_files_are_read(
            damage in prop::collection::vec((0_usize..4096, any::<u8>()), 1..20),
            keep in 64_usize..(4 << 20),
        ) {
            let mut bytes = own_executable();
            bytes.truncate(keep);
            for (at, byte) in damage {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            crate::symbol::fuzz::elf(&bytes);
        }
    }
}

//! What an ELF file tells the dynamic loader.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use object::elf;
use object::read::StringTable;
use object::read::elf::{Dyn as _, FileHeader, ProgramHeader as _, SectionHeader as _, Sym as _};
use object::{Endianness, FileKind, ReadRef};

/// Longest list of libraries that is read; real ones have some dozens.
const ENTRIES_MAX: usize = 4096;
/// Longest list of folders.
const FOLDERS_MAX: usize = 256;
/// Names of a symbol table that are looked at.
const SYMBOLS_MAX: usize = 1 << 22;
/// Largest table that is read: of symbols, or of their names. Browsers with debug information have some hundred MiB.
const TABLE_BYTES_MAX: u64 = 1 << 30;

/// For which machine code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    /// `e_machine`: 62 is x86-64, 183 is arm64.
    pub number: u16,
    /// Words of 64 bits.
    pub is_64: bool,
    /// The order of bytes.
    pub is_little: bool,
}

impl Machine {
    /// The one that this code was compiled for.
    pub const fn here() -> Machine {
        Machine {
            number: if cfg!(target_arch = "x86_64") {
                elf::EM_X86_64
            } else if cfg!(target_arch = "aarch64") {
                elf::EM_AARCH64
            } else {
                elf::EM_NONE
            },
            is_64: cfg!(target_pointer_width = "64"),
            is_little: cfg!(target_endian = "little"),
        }
    }

    /// Its name, as far as it is a usual one.
    pub fn name(self) -> &'static str {
        match self.number {
            elf::EM_X86_64 if self.is_64 => "x86-64",
            elf::EM_X86_64 => "x32",
            elf::EM_386 => "i386",
            elf::EM_AARCH64 => "arm64",
            elf::EM_ARM => "arm",
            elf::EM_RISCV => "RISC-V",
            elf::EM_PPC64 => "POWER",
            elf::EM_S390 => "s390",
            _ => "another machine",
        }
    }
}

/// What is read of a program or library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elf {
    /// For which machine.
    pub machine: Machine,
    /// A program or library, not an object file or core dump.
    pub is_loadable: bool,
    /// `PT_INTERP`: the loader of a program that is linked dynamically.
    pub interpreter: Option<String>,
    /// `DT_NEEDED`, in order.
    pub needed: Vec<String>,
    /// `DT_RPATH`, folder by folder.
    pub rpath: Vec<String>,
    /// `DT_RUNPATH`, folder by folder.
    pub runpath: Vec<String>,
    /// `DT_SONAME`.
    pub soname: Option<String>,
    /// Names in the dynamic symbol table that it gives to others, of those asked for.
    pub exported: BTreeSet<String>,
    /// Names that it wants from others, of those asked for.
    pub wanted: BTreeSet<String>,
    /// Names that it defines for itself alone, of those asked for; empty if it is stripped.
    pub private: BTreeSet<String>,
    /// Versions of symbols that it offers.
    pub versions: BTreeSet<String>,
    /// Versions that it wants, by the name of the library that is to have them: without one of them the loader does not
    /// start the program.
    pub versions_wanted: BTreeMap<String, BTreeSet<String>>,
    /// Names that it wants in a version of a library, by the library's name, of those asked for. What it can do without
    /// (a weak symbol) is not here.
    pub names_wanted: BTreeMap<String, BTreeSet<String>>,
}

/// Why a file is no program or library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElfError {
    /// It is something else.
    #[error("it is not an ELF file")]
    NotElf,
    /// It begins as one, but what follows is damaged.
    #[error("it is a damaged ELF file: {0}")]
    Damaged(String),
}

impl From<object::Error> for ElfError {
    fn from(error: object::Error) -> ElfError {
        ElfError::Damaged(error.to_string())
    }
}

impl Elf {
    /// Reads `data`; of the names of symbols, those that `keep` answers true for.
    ///
    /// # Errors
    /// [`ElfError`] where it is no ELF file or its tables lie outside of it. Damaged symbol
    /// tables alone are no error: there are no names then.
    pub fn parse<'data, R: ReadRef<'data>>(
        data: R,
        keep: &dyn Fn(&str) -> bool,
    ) -> Result<Elf, ElfError> {
        match FileKind::parse(data) {
            Ok(FileKind::Elf64) => of::<elf::FileHeader64<Endianness>, R>(data, keep),
            Ok(FileKind::Elf32) => of::<elf::FileHeader32<Endianness>, R>(data, keep),
            _ => Err(ElfError::NotElf),
        }
    }

    /// A program that the kernel starts without a loader.
    pub fn is_static(&self) -> bool {
        self.interpreter.is_none()
    }
}

fn of<'data, H, R>(data: R, keep: &dyn Fn(&str) -> bool) -> Result<Elf, ElfError>
where
    H: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let mut elf = Elf {
        machine: Machine {
            number: header.e_machine(endian),
            is_64: header.is_type_64(),
            is_little: header.is_little_endian(),
        },
        is_loadable: matches!(header.e_type(endian), elf::ET_EXEC | elf::ET_DYN),
        interpreter: None,
        needed: Vec::new(),
        rpath: Vec::new(),
        runpath: Vec::new(),
        soname: None,
        exported: BTreeSet::new(),
        wanted: BTreeSet::new(),
        private: BTreeSet::new(),
        versions: BTreeSet::new(),
        versions_wanted: BTreeMap::new(),
        names_wanted: BTreeMap::new(),
    };
    let segments = header.program_headers(endian, data)?;
    for segment in segments {
        if let Some(interpreter) = segment.interpreter(endian, data)? {
            elf.interpreter = Some(lossy(interpreter));
        }
    }
    for segment in segments {
        if let Some(dynamic) = segment.dynamic(endian, data)? {
            read_dynamic::<H, R>(dynamic, segments, endian, data, &mut elf)?;
            break;
        }
    }
    // What a linker leaves out or a packer has damaged is not needed for running.
    let mut sources = BTreeMap::new();
    let _ = read_versions::<H, R>(header, endian, data, &mut elf, &mut sources);
    let _ = read_symbols::<H, R>(header, endian, data, keep, &sources, &mut elf);
    Ok(elf)
}

fn read_dynamic<'data, H, R>(
    dynamic: &'data [H::Dyn],
    segments: &[H::ProgramHeader],
    endian: Endianness,
    data: R,
    elf: &mut Elf,
) -> Result<(), ElfError>
where
    H: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let entries = || {
        dynamic
            .iter()
            .take_while(|entry| entry.tag32(endian) != Some(elf::DT_NULL))
    };
    let value = |tag| {
        let entry = entries().find(|entry| entry.tag32(endian) == Some(tag))?;
        Some(entry.d_val(endian).into())
    };
    let Some(address) = value(elf::DT_STRTAB) else {
        return Ok(());
    };
    let size = value(elf::DT_STRSZ).unwrap_or(0);
    // The loader has it in memory; here it is where its segment is in the file.
    let offset = segments
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
        .find_map(|segment| {
            let within = address.checked_sub(segment.p_vaddr(endian).into())?;
            let is_inside = within < segment.p_filesz(endian).into();
            is_inside.then(|| within.checked_add(segment.p_offset(endian).into()))?
        })
        .ok_or_else(|| ElfError::Damaged("its names lie outside of it".to_owned()))?;
    let strings = StringTable::new(data, offset, offset.saturating_add(size));
    let text = |entry: &H::Dyn| -> Result<String, ElfError> {
        let at = u32::try_from(entry.d_val(endian).into()).unwrap_or(u32::MAX);
        strings
            .get(at)
            .map(lossy)
            .map_err(|()| ElfError::Damaged("a name lies outside of it".to_owned()))
    };
    let folders = |list: String| -> Vec<String> {
        let folders = list.split(':').take(FOLDERS_MAX);
        folders.map(str::to_owned).collect()
    };
    for entry in entries().take(ENTRIES_MAX) {
        match entry.tag32(endian) {
            Some(elf::DT_NEEDED) => elf.needed.push(text(entry)?),
            Some(elf::DT_SONAME) => elf.soname = Some(text(entry)?),
            Some(elf::DT_RPATH) => elf.rpath = folders(text(entry)?),
            Some(elf::DT_RUNPATH) => elf.runpath = folders(text(entry)?),
            _ => {}
        }
    }
    Ok(())
}

/// The library that is to have a version, by the number that the file gives to it.
type Sources = BTreeMap<u16, Rc<str>>;

fn read_symbols<'data, H, R>(
    header: &H,
    endian: Endianness,
    data: R,
    keep: &dyn Fn(&str) -> bool,
    sources: &Sources,
    elf: &mut Elf,
) -> object::Result<()>
where
    H: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let sections = header.sections(endian, data)?;
    // By the place in the dynamic table.
    let versions = sections
        .iter()
        .filter(|section| section.sh_size(endian).into() <= TABLE_BYTES_MAX)
        .find_map(|section| section.gnu_versym(endian, data).ok().flatten())
        .map_or(&[][..], |(versions, _)| versions);
    for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
        let Some(section) = sections
            .iter()
            .find(|section| section.sh_type(endian) == kind)
        else {
            continue;
        };
        // A table that lies outside of the file is as good as none; one that is too large is not read, of whatever it is.
        let is_small =
            |section: &H::SectionHeader| section.sh_size(endian).into() <= TABLE_BYTES_MAX;
        let names = sections.section(section.link(endian));
        if !is_small(section) || !names.as_ref().is_ok_and(|names| is_small(names)) {
            continue;
        }
        let Ok(symbols) = sections.symbols(endian, data, kind) else {
            continue;
        };
        let Ok(names) = names.and_then(|names| names.data(endian, data)) else {
            continue;
        };
        // All at once: `data` may be a file that is read piece by piece.
        let names = StringTable::new(names, 0, names.len() as u64);
        for (at, symbol) in symbols.iter().take(SYMBOLS_MAX).enumerate() {
            let Ok(name) = symbol.name(endian, names) else {
                continue;
            };
            let Ok(name) = std::str::from_utf8(name) else {
                continue;
            };
            if name.is_empty() || !keep(name) {
                continue;
            }
            let is_wanted = symbol.is_undefined(endian);
            if is_wanted
                && kind == elf::SHT_DYNSYM
                && symbol.st_bind() != elf::STB_WEAK
                && let Some(version) = versions.get(at)
                && let Some(library) = sources.get(&(version.0.get(endian) & elf::VERSYM_VERSION))
            {
                let names = elf.names_wanted.entry(library.to_string()).or_default();
                names.insert(name.to_owned());
            }
            let names = match (is_wanted, kind) {
                (true, _) => &mut elf.wanted,
                (false, elf::SHT_DYNSYM) => &mut elf.exported,
                (false, _) => &mut elf.private,
            };
            names.insert(name.to_owned());
        }
    }
    let exported = &elf.exported;
    elf.private.retain(|name| !exported.contains(name));
    Ok(())
}

fn read_versions<'data, H, R>(
    header: &H,
    endian: Endianness,
    data: R,
    elf: &mut Elf,
    sources: &mut Sources,
) -> object::Result<()>
where
    H: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let sections = header.sections(endian, data)?;
    if let Some((mut all, names)) = sections.gnu_verdef(endian, data)? {
        let names = sections.strings(endian, data, names)?;
        while let Some((_, mut parts)) = all.next()? {
            // The first is its name, what follows are those that it comes after.
            if let Some(part) = parts.next()?
                && elf.versions.len() < ENTRIES_MAX
            {
                elf.versions.insert(lossy(part.name(endian, names)?));
            }
        }
    }
    if let Some((mut all, names)) = sections.gnu_verneed(endian, data)? {
        let names = sections.strings(endian, data, names)?;
        let mut left = ENTRIES_MAX;
        while let Some((library, mut versions)) = all.next()? {
            let of = lossy(library.file(endian, names)?);
            let source: Rc<str> = of.as_str().into();
            let wanted = elf.versions_wanted.entry(of).or_default();
            while let Some(version) = versions.next()? {
                let is_weak = version.vna_flags.get(endian) & elf::VER_FLG_WEAK != 0;
                left -= 1;
                if left == 0 {
                    return Ok(());
                }
                sources.insert(
                    version.vna_other.get(endian) & elf::VERSYM_VERSION,
                    source.clone(),
                );
                if !is_weak {
                    wanted.insert(lossy(version.name(endian, names)?));
                }
            }
        }
    }
    Ok(())
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_elf_file_is_told() {
        for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0; 64]] {
            assert_eq!(Elf::parse(bytes, &|_| true), Err(ElfError::NotElf));
        }
    }

    #[test]
    fn reads_this_very_program() {
        let bytes = std::fs::read(std::env::current_exe().expect("a path")).expect("readable");
        let elf = Elf::parse(&*bytes, &|name| name == "malloc").expect("an ELF file");
        assert_eq!(elf.machine, Machine::here());
        assert!(elf.is_loadable && elf.exported.is_empty());
        if cfg!(target_env = "gnu") {
            assert!(!elf.is_static());
            assert!(elf.needed.iter().any(|name| name == "libc.so.6"));
            assert!(elf.wanted.contains("malloc"));
            assert!(elf.names_wanted["libc.so.6"].contains("malloc"));
            let versions = &elf.versions_wanted["libc.so.6"];
            assert!(
                versions
                    .iter()
                    .any(|version| version.starts_with("GLIBC_2.")),
                "{versions:?}"
            );
        }
    }

    #[test]
    fn damage_is_an_error_or_less_is_known() {
        let bytes = std::fs::read(std::env::current_exe().expect("a path")).expect("readable");
        let mut short = bytes[..bytes.len().min(4096)].to_vec();
        // Whatever is cut off: no panic.
        for len in (0..short.len()).step_by(61) {
            let _ = Elf::parse(&short[..len], &|_| true);
        }
        for at in (16..short.len()).step_by(7) {
            short[at] = 0xff;
            let _ = Elf::parse(&*short, &|_| true);
        }
    }
}

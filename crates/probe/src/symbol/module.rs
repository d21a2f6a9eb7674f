//! The files that code comes from, each opened once, whatever the number of
//! processes that map it.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amdahl_contain::contained;
use amdahl_speedup::spin::Known;
use object::read::ReadCache;
use rustc_hash::FxHashMap;

use super::demangle::demangle;
use super::elf::{Bytes, Elf, Layout, UnwindTables};
use super::maps::{Found, MappedPath, Mapping, Place};
use super::symtab::SymbolTable;
use super::{debug_file, fde, vdso};

/// Distinct files; further ones are not told apart by content.
const MODULES_MAX: usize = 1 << 15;
/// Files kept open so that they can be read after they are deleted.
const FILES_HELD_MAX: usize = 192;
/// Symbol and unwind tables kept; the least recently used ones go first.
const TABLE_BYTES_MAX: usize = 512 << 20;
/// What the kernel adds to the path of a file that no longer has it.
const DELETED: &str = " (deleted)";

/// Names a module for the life of a [`Symbolizer`](super::Symbolizer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub(super) u32);

impl ModuleId {
    /// Memory of which nothing is known.
    pub const UNKNOWN: ModuleId = ModuleId(0);
}

/// What tells that a path still leads to the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    len: u64,
    changed: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Identity {
        Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            changed: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// A file as the kernel names it where it is mapped: path, device and inode, whose numbers some file systems do not tell those
/// who ask for the file by its path.
type Mapped = (MappedPath, u64, u64);

/// What was found for it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    module: ModuleId,
    /// Not only a file that has its path now.
    is_certain: bool,
}

/// Where the bytes of a module are.
#[derive(Debug)]
enum Origin {
    File {
        identity: Identity,
        /// A path of this process's own mount namespace.
        path: PathBuf,
        held: Option<File>,
    },
    Memory(Arc<[u8]>),
    /// It could not be opened.
    Nowhere,
}

/// What a module is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Elf,
    /// Generated code of the process that once was `pid`.
    Jit {
        pid: u32,
    },
    Unknown,
}

/// A table that is read when it is first asked for.
#[derive(Debug)]
enum Lazy<T> {
    NotRead,
    Missing,
    Read {
        table: Arc<T>,
        bytes: usize,
        used: u64,
    },
}

/// Functions of other modules by the address where the dynamic linker puts theirs; only those that mean something in a loop that waits.
pub(super) type Imports = FxHashMap<u64, Known>;

/// A file, the vDSO, or the generated code of one process.
#[derive(Debug)]
pub(super) struct Module {
    /// As shown to people.
    pub(super) path: Arc<str>,
    pub(super) kind: Kind,
    pub(super) layout: Layout,
    origin: Origin,
    symbols: Lazy<SymbolTable>,
    tables: Lazy<UnwindTables>,
    debug_file: Option<Option<PathBuf>>,
    imports: Option<Arc<Imports>>,
}

/// All modules of a run.
#[derive(Debug)]
pub(super) struct Modules {
    modules: Vec<Module>,
    by_identity: FxHashMap<Identity, ModuleId>,
    by_mapped: FxHashMap<Mapped, Seen>,
    /// Now and later files may take the places of those that are mapped: seconds and nanoseconds.
    begun: (i64, i64),
    /// Files that were never seen, by path.
    unseen: FxHashMap<MappedPath, ModuleId>,
    jit: FxHashMap<u64, ModuleId>,
    vdso: Option<ModuleId>,
    files_held: usize,
    table_bytes: usize,
    clock: u64,
}

impl Modules {
    pub(super) fn new() -> Modules {
        let unknown = Module::new("".into(), Kind::Unknown, Layout::default(), Origin::Nowhere);
        Modules {
            modules: vec![unknown],
            by_identity: FxHashMap::default(),
            by_mapped: FxHashMap::default(),
            begun: now(),
            unseen: FxHashMap::default(),
            jit: FxHashMap::default(),
            vdso: None,
            files_held: 0,
            table_bytes: 0,
            clock: 0,
        }
    }

    pub(super) fn get(&self, id: ModuleId) -> &Module {
        &self.modules[id.0 as usize]
    }

    /// Module and slide of a mapping. Opens the file when it is new, through the
    /// process while that lives.
    pub(super) fn place(&mut self, pid: u32, found: &Found, mapping: &Mapping) -> Place {
        if let Some(place) = mapping.place.get() {
            return *place;
        }
        let place = self.locate(pid, found, mapping);
        *mapping.place.get_or_init(|| place)
    }

    fn locate(&mut self, pid: u32, found: &Found, mapping: &Mapping) -> Place {
        let unslid = |module| Place { module, slide: 0 };
        let id = match mapping.path.as_os_str().as_encoded_bytes() {
            b"[vdso]" => self.vdso(),
            b"[vsyscall]" | b"[uprobes]" => return unslid(ModuleId::UNKNOWN),
            path if is_anonymous(path) => return unslid(self.jit(found.space.id, pid)),
            path => match self.file(pid, found.maybe_alive, mapping) {
                Some(id) => id,
                // A memfd that is no ELF file holds generated code.
                None if path.starts_with(b"/memfd:") => {
                    return unslid(self.jit(found.space.id, pid));
                }
                None => self.named_only(&mapping.path),
            },
        };
        let stated = self
            .get(id)
            .layout
            .address_of_offset(mapping.file_offset)
            .unwrap_or(mapping.file_offset);
        Place {
            module: id,
            slide: mapping.start.wrapping_sub(stated),
        }
    }

    fn file(&mut self, pid: u32, maybe_alive: bool, mapping: &Mapping) -> Option<ModuleId> {
        let path = MappedPath(mapping.path.clone());
        let mapped = (path, mapping.device, mapping.inode);
        if let Some(seen) = self.by_mapped.get(&mapped) {
            // The process is gone, and its mount namespace may be: the file that was last seen under this path is the best
            // guess. Otherwise: while a file is open no other gets its number, so only its bytes can have changed, and a look
            // at the open file tells. Paths below processes that end meanwhile are dear to look up.
            if !maybe_alive || (seen.is_certain && self.get(seen.module).is_unchanged()) {
                return Some(seen.module);
            }
        }
        let (shown, deleted) = match mapping
            .path
            .to_str()
            .and_then(|path| path.strip_suffix(DELETED))
        {
            Some(path) => (Path::new(path), true),
            None => (&*mapping.path, false),
        };
        let mut candidates = Vec::with_capacity(3);
        if maybe_alive {
            // The very file, whatever has the name now.
            candidates.push(
                format!(
                    "/proc/{pid}/map_files/{:x}-{:x}",
                    mapping.start, mapping.end
                )
                .into(),
            );
            if !deleted && let Ok(below_root) = shown.strip_prefix("/") {
                candidates.push(Path::new(&format!("/proc/{pid}/root")).join(below_root));
            }
        }
        if !deleted {
            candidates.push(shown.to_owned());
        }
        let (module, is_certain) = candidates.iter().enumerate().find_map(|(nth, candidate)| {
            let (identity, named_at) = regular(candidate)?;
            let is_mapped = maybe_alive && nth == 0;
            let is_certain =
                identity.inode == mapping.inode && (is_mapped || identity.device == mapping.device);
            // Inodes alone do not tell: some file systems show a mapping by another one than the file.
            let is_other = mapping.inode != 0 && identity.inode != mapping.inode;
            if is_other && named_at >= self.begun {
                // It has taken the place of the one that is mapped.
                return None;
            }
            if let Some(&id) = self.by_identity.get(&identity) {
                return Some((id, is_certain));
            }
            let file = open(candidate)?;
            let identity = Identity::of(&file.metadata().ok()?);
            let layout = with_elf(Bytes::file(file.try_clone().ok()?), |elf| elf.layout())?;
            let held = (self.files_held < FILES_HELD_MAX).then_some(file);
            self.files_held += usize::from(held.is_some());
            let origin = Origin::File {
                identity,
                path: shown.to_owned(),
                held,
            };
            let id = self.push(Module::new(
                shown.to_string_lossy().into(),
                Kind::Elf,
                layout,
                origin,
            ))?;
            self.by_identity.insert(identity, id);
            Some((id, is_certain))
        })?;
        self.by_mapped.insert(mapped, Seen { module, is_certain });
        Some(module)
    }

    fn vdso(&mut self) -> ModuleId {
        if let Some(id) = self.vdso {
            return id;
        }
        let bytes = vdso::own();
        let layout = bytes
            .clone()
            .and_then(|bytes| with_elf(Bytes::memory(bytes), |elf| elf.layout()));
        let origin = bytes.map_or(Origin::Nowhere, Origin::Memory);
        let module = Module::new(
            "[vdso]".into(),
            Kind::Elf,
            layout.unwrap_or_default(),
            origin,
        );
        let id = self.push(module).unwrap_or(ModuleId::UNKNOWN);
        self.vdso = Some(id);
        id
    }

    fn jit(&mut self, space: u64, pid: u32) -> ModuleId {
        if let Some(&id) = self.jit.get(&space) {
            return id;
        }
        let module = Module::new(
            "[jit]".into(),
            Kind::Jit { pid },
            Layout::default(),
            Origin::Nowhere,
        );
        let Some(id) = self.push(module) else {
            return ModuleId::UNKNOWN;
        };
        self.jit.insert(space, id);
        id
    }

    fn named_only(&mut self, path: &Arc<Path>) -> ModuleId {
        let path = MappedPath(path.clone());
        if let Some(&id) = self.unseen.get(&path) {
            return id;
        }
        let module = Module::new(
            path.0.to_string_lossy().into(),
            Kind::Elf,
            Layout::default(),
            Origin::Nowhere,
        );
        let Some(id) = self.push(module) else {
            return ModuleId::UNKNOWN;
        };
        self.unseen.insert(path, id);
        id
    }

    fn push(&mut self, module: Module) -> Option<ModuleId> {
        if self.modules.len() >= MODULES_MAX {
            return None;
        }
        self.modules.push(module);
        Some(ModuleId(self.modules.len() as u32 - 1))
    }

    /// The functions of a module; of its debug file where it is stripped.
    pub(super) fn symbols(&mut self, id: ModuleId) -> Option<Arc<SymbolTable>> {
        self.clock += 1;
        let module = &mut self.modules[id.0 as usize];
        if matches!(module.symbols, Lazy::NotRead) {
            module.symbols = match module.read_symbols() {
                Some(table) => Lazy::read(table, SymbolTable::bytes),
                None => Lazy::Missing,
            };
            self.table_bytes += module.symbols.bytes();
            self.evict(id);
        }
        self.modules[id.0 as usize].symbols.get(self.clock)
    }

    /// The unwind tables of a module.
    pub(super) fn tables(&mut self, id: ModuleId) -> Option<Arc<UnwindTables>> {
        self.clock += 1;
        let module = &mut self.modules[id.0 as usize];
        if matches!(module.tables, Lazy::NotRead) {
            module.tables = match module
                .bytes()
                .and_then(|bytes| with_elf(bytes, |elf| elf.unwind_tables()))
            {
                Some(table) => Lazy::read(table, UnwindTables::bytes),
                None => Lazy::Missing,
            };
            self.table_bytes += module.tables.bytes();
            self.evict(id);
        }
        self.modules[id.0 as usize].tables.get(self.clock)
    }

    /// Addresses of the function around `address`, by symbol or by unwind table.
    pub(super) fn function_range(
        &mut self,
        id: ModuleId,
        address: u64,
    ) -> Option<std::ops::Range<u64>> {
        let named = self
            .symbols(id)
            .and_then(|symbols| Some(symbols.range(symbols.find(address)?)));
        named.or_else(|| fde::function_range(&*self.tables(id)?, address))
    }

    /// What a module has of functions of others.
    pub(super) fn imports(&mut self, id: ModuleId) -> Arc<Imports> {
        let module = &mut self.modules[id.0 as usize];
        if module.imports.is_none() {
            let known = |name: &[u8]| Known::of(&demangle(name));
            let found = module
                .bytes()
                .and_then(|bytes| with_elf(bytes, |elf| elf.imports(known)));
            let found: Imports = found.into_iter().flatten().collect();
            module.imports = Some(Arc::new(found));
        }
        module.imports.clone().unwrap_or_default()
    }

    /// A path under which another reader finds the file with debug information.
    pub(super) fn debug_info_path(&mut self, id: ModuleId) -> Option<PathBuf> {
        let module = &mut self.modules[id.0 as usize];
        if module.layout.has_debug_info {
            module.readable_path()
        } else {
            module.debug_file()
        }
    }

    /// Reads code from the file.
    pub(super) fn read_code(&self, id: ModuleId, range: std::ops::Range<u64>) -> Option<Vec<u8>> {
        let module = self.get(id);
        read_code(&module.bytes()?, &module.layout, range)
    }

    /// Forgets tables until they fit, but not those of `keep`.
    fn evict(&mut self, keep: ModuleId) {
        while self.table_bytes > TABLE_BYTES_MAX {
            let oldest = self
                .modules
                .iter_mut()
                .enumerate()
                .filter(|(index, _)| *index != keep.0 as usize)
                .filter_map(|(_, module)| Some((module.last_use()?, module)))
                .min_by_key(|(used, _)| *used);
            let Some((_, module)) = oldest else { return };
            self.table_bytes -= module.symbols.bytes() + module.tables.bytes();
            module.symbols.forget();
            module.tables.forget();
        }
    }
}

impl<T> Lazy<T> {
    fn read(table: T, size: impl Fn(&T) -> usize) -> Lazy<T> {
        let bytes = size(&table);
        Lazy::Read {
            table: Arc::new(table),
            bytes,
            used: 0,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Lazy::Read { bytes, .. } => *bytes,
            _ => 0,
        }
    }

    fn get(&mut self, now: u64) -> Option<Arc<T>> {
        match self {
            Lazy::Read { table, used, .. } => {
                *used = now;
                Some(table.clone())
            }
            _ => None,
        }
    }

    fn forget(&mut self) {
        if matches!(self, Lazy::Read { .. }) {
            *self = Lazy::NotRead;
        }
    }

    fn used(&self) -> Option<u64> {
        match self {
            Lazy::Read { used, .. } => Some(*used),
            _ => None,
        }
    }
}

impl Module {
    fn new(path: Arc<str>, kind: Kind, layout: Layout, origin: Origin) -> Module {
        Module {
            path,
            kind,
            layout,
            origin,
            symbols: Lazy::NotRead,
            tables: Lazy::NotRead,
            debug_file: None,
            imports: None,
        }
    }

    /// The last component of the path, whether or not the file is still there.
    pub(super) fn file_name(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.strip_suffix(DELETED).unwrap_or(name)
    }

    fn last_use(&self) -> Option<u64> {
        self.symbols.used().max(self.tables.used())
    }

    fn bytes(&self) -> Option<Bytes> {
        match &self.origin {
            Origin::Memory(bytes) => Some(Bytes::memory(bytes.clone())),
            Origin::File {
                held: Some(file), ..
            } => Some(Bytes::file(file.try_clone().ok()?)),
            Origin::File { identity, path, .. } => {
                let file = open(path)?;
                (Identity::of(&file.metadata().ok()?) == *identity).then_some(Bytes::file(file))
            }
            Origin::Nowhere => None,
        }
    }

    /// The file is held open and its bytes are those that were read.
    fn is_unchanged(&self) -> bool {
        matches!(&self.origin, Origin::File { identity, held: Some(file), .. }
            if file.metadata().is_ok_and(|now| Identity::of(&now) == *identity))
    }

    /// A path that leads to the same bytes.
    fn readable_path(&self) -> Option<PathBuf> {
        let Origin::File {
            identity,
            path,
            held,
        } = &self.origin
        else {
            return None;
        };
        if regular(path).is_some_and(|(found, _)| found == *identity) {
            return Some(path.clone());
        }
        use std::os::fd::AsRawFd;
        let file = held.as_ref()?;
        (Identity::of(&file.metadata().ok()?) == *identity)
            .then(|| format!("/proc/self/fd/{}", file.as_raw_fd()).into())
    }

    fn debug_file(&mut self) -> Option<PathBuf> {
        if self.debug_file.is_none() {
            let found = match &self.origin {
                Origin::File { path, .. } => debug_file::find(path, &self.layout),
                _ => None,
            };
            self.debug_file = Some(found);
        }
        self.debug_file.clone().flatten()
    }

    fn read_symbols(&mut self) -> Option<SymbolTable> {
        let separate = if self.layout.has_symbol_table {
            None
        } else {
            self.debug_file()
        };
        let separate = separate.and_then(|path| {
            let table = with_elf(Bytes::file(open(&path)?), |elf| {
                SymbolTable::new(elf.symbols())
            })?;
            (table.bytes() > 0).then_some(table)
        });
        separate.or_else(|| with_elf(self.bytes()?, |elf| SymbolTable::new(elf.symbols())))
    }
}

/// Generated code and the like: no file of this name holds the bytes.
fn is_anonymous(path: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 6] = [
        b"[",
        b"//anon",
        b"/dev/",
        b"/SYSV",
        b"/anon_hugepage",
        b"anon_inode:",
    ];
    path.is_empty() || PREFIXES.iter().any(|prefix| path.starts_with(prefix))
}

/// Identity of a regular file. Nothing else is opened: a FIFO would block.
/// A file and when it was created, renamed or changed last.
fn regular(path: &Path) -> Option<(Identity, (i64, i64))> {
    let metadata = std::fs::metadata(path).ok()?;
    let named_at = (metadata.ctime(), metadata.ctime_nsec());
    metadata
        .is_file()
        .then(|| (Identity::of(&metadata), named_at))
}

/// By the clock of files, which is a tick behind.
fn now() -> (i64, i64) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    (now.tv_sec, now.tv_nsec)
}

pub(super) fn open(path: &Path) -> Option<File> {
    regular(path)?;
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .ok()
}

/// Code by its address in a file, as far as its segment goes.
pub(super) fn read_code(
    bytes: &Bytes,
    layout: &Layout,
    range: std::ops::Range<u64>,
) -> Option<Vec<u8>> {
    let (offset, left) = layout.offset_of_address(range.start)?;
    let mut code = vec![0; usize::try_from((range.end - range.start).min(left)).ok()?];
    match bytes {
        Bytes::File(bytes) => bytes.file.read_exact_at(&mut code, offset).ok()?,
        Bytes::Memory(memory) => {
            let from = usize::try_from(offset).ok()?;
            let to = from.checked_add(code.len())?;
            code.copy_from_slice(memory.get_ref().get(from..to)?);
        }
    }
    Some(code)
}

/// Reads something of an ELF file. A library that panics on damage must not take the
/// analysis of a whole run with it.
pub(super) fn with_elf<T>(bytes: Bytes, read: impl Fn(&Elf<'_>) -> T) -> Option<T> {
    contained(|| {
        let cache = ReadCache::new(bytes);
        let elf = Elf::parse(&cache)?;
        Some(read(&elf))
    })
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::super::maps::Space;
    use super::*;
    use std::sync::OnceLock;

    /// A mapping of the file, of a process that is gone but not known to be.
    fn place(modules: &mut Modules, path: &Path, metadata: &Metadata) -> Place {
        let mapping = Mapping {
            start: 0x1000,
            end: 0x2000,
            file_offset: 0,
            device: metadata.dev(),
            inode: metadata.ino(),
            path: path.into(),
            place: OnceLock::new(),
        };
        let found = Found {
            space: Arc::new(Space::default()),
            maybe_alive: true,
        };
        modules.place(u32::MAX, &found, &mapping)
    }

    #[test]
    fn the_name_of_a_deleted_file_is_that_which_it_had() {
        let mut modules = Modules::new();
        for path in ["/nowhere/it", "/nowhere/it (deleted)"] {
            let module = modules.named_only(&Path::new(path).into());
            assert_eq!(modules.get(module).file_name(), "it");
            assert_eq!(&*modules.get(module).path, path);
        }
    }

    #[test]
    fn a_file_is_known_by_its_numbers_until_its_bytes_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::copy("/bin/true", &path).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        let mut modules = Modules::new();
        let first = place(&mut modules, &path, &metadata);
        assert!(modules.symbols(first.module).is_some());
        assert_eq!(place(&mut modules, &path, &metadata), first);
        // Nothing leads there any more, as for the processes of a build that deletes its programs.
        let aside = folder.path().join("aside");
        std::fs::rename(&path, &aside).unwrap();
        assert_eq!(place(&mut modules, &path, &metadata), first);
        // The same file with other bytes.
        std::fs::rename(&aside, &path).unwrap();
        let mut bytes = std::fs::read("/bin/false").unwrap();
        bytes.push(0);
        std::fs::write(&path, bytes).unwrap();
        let now = std::fs::metadata(&path).unwrap();
        assert_eq!(now.ino(), metadata.ino());
        let second = place(&mut modules, &path, &metadata);
        assert_ne!(second.module, first.module);
        // Another file of that name has another number.
        std::fs::rename(&path, &aside).unwrap();
        std::fs::copy("/bin/true", &path).unwrap();
        let other = std::fs::metadata(&path).unwrap();
        let third = place(&mut modules, &path, &other);
        assert_ne!(third.module, second.module);
        assert_eq!(place(&mut modules, &path, &now), second);
    }
}

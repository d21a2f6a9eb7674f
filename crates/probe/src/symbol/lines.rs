//! Inlined functions and lines from DWARF, kernel names from kallsyms: blazesym on a
//! thread of its own.
//!
//! The thread makes the [`Symbolizer`](super::Symbolizer) `Send`, keeps a panic over
//! damaged debug information away from the analysis, and gives back all memory of
//! parsed DWARF when it is replaced.

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use blazesym::symbolize::source::{Elf, Kernel, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use blazesym::{Error, MaybeDefault};

/// Debug information of gigabytes takes this long; what takes longer is damaged.
const PATIENCE: Duration = Duration::from_secs(120);
/// Files whose parsed debug information is kept.
const FILES_MAX: usize = 64;

/// A function at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Location {
    /// As written in the file, mangled.
    pub(super) name: String,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
}

/// What one address stands for: innermost inlined function first, the function that
/// has the code last. Empty when nothing is known.
pub(super) type Locations = Vec<Location>;

enum Query {
    Elf { path: PathBuf, addresses: Vec<u64> },
    Kernel { addresses: Vec<u64> },
}

struct Request {
    query: Query,
    reply: Sender<Vec<Locations>>,
}

/// The thread, started when first asked.
#[derive(Default)]
pub(super) struct Lines {
    worker: Option<Sender<Request>>,
    files: Vec<PathBuf>,
    failed: Vec<PathBuf>,
}

impl Lines {
    /// Functions and lines at addresses as stated in the ELF file. As many answers as
    /// addresses.
    pub(super) fn elf(&mut self, path: PathBuf, addresses: Vec<u64>) -> Vec<Locations> {
        let count = addresses.len();
        if self.failed.contains(&path) {
            return vec![Vec::new(); count];
        }
        if !self.files.contains(&path) {
            if self.files.len() >= FILES_MAX {
                // The old thread ends with its channel and frees what it parsed.
                *self = Lines {
                    failed: std::mem::take(&mut self.failed),
                    ..Lines::default()
                };
            }
            self.files.push(path.clone());
        }
        self.ask(
            Query::Elf {
                path: path.clone(),
                addresses,
            },
            count,
        )
        .unwrap_or_else(|| {
            self.failed.push(path);
            vec![Vec::new(); count]
        })
    }

    /// Kernel functions, without lines. As many answers as addresses.
    pub(super) fn kernel(&mut self, addresses: Vec<u64>) -> Vec<Locations> {
        let count = addresses.len();
        self.ask(Query::Kernel { addresses }, count)
            .unwrap_or_else(|| vec![Vec::new(); count])
    }

    fn ask(&mut self, query: Query, count: usize) -> Option<Vec<Locations>> {
        let worker = match &self.worker {
            Some(worker) => worker,
            None => self.worker.insert(start()?),
        };
        let (reply, answer) = channel();
        let answer = worker
            .send(Request { query, reply })
            .ok()
            .and_then(|()| answer.recv_timeout(PATIENCE).ok());
        if answer.is_none() {
            self.worker = None;
            self.files.clear();
        }
        answer.filter(|answer| answer.len() == count)
    }
}

/// Whether the kernel shows this process the addresses of its functions.
pub fn kernel_names_are_readable() -> bool {
    std::fs::File::open("/proc/kallsyms")
        .is_ok_and(|kallsyms| has_an_address(std::io::BufReader::new(kallsyms)))
}

/// Where addresses are hidden, all are 0. The first few can be 0 otherwise, too: on x86-64 before
/// Linux 6.15 they are offsets of variables that each CPU has.
fn has_an_address(kallsyms: impl BufRead) -> bool {
    let mut lines = kallsyms.lines().take(1000).map_while(Result::ok);
    lines.any(|line| {
        let address = line.split(' ').next().unwrap_or_default();
        address.bytes().any(|digit| digit != b'0')
    })
}

fn start() -> Option<Sender<Request>> {
    let (worker, requests) = channel();
    std::thread::Builder::new()
        .name("amdahl-symbols".into())
        .spawn(move || serve(&requests))
        .ok()?;
    Some(worker)
}

fn serve(requests: &Receiver<Request>) {
    // Names are demangled by us, with bounds.
    let symbolizer = Symbolizer::builder().enable_demangling(false).build();
    while let Ok(Request { query, reply }) = requests.recv() {
        let answer = match query {
            Query::Elf { path, addresses } => {
                let source = Source::Elf(Elf::new(path));
                // One of a function in several parts has no address here.
                all(
                    symbolizer.symbolize(&source, Input::VirtOffset(&addresses)),
                    addresses.len(),
                    |_| false,
                )
            }
            Query::Kernel { addresses } => {
                // Addresses that the kernel hides are all zero, and then the last symbol matches.
                let is_hidden = |symbol: &Sym<'_>| symbol.addr == 0;
                // The DWARF of a vmlinux takes seconds and gigabytes; a name is enough.
                let kernel = Kernel {
                    vmlinux: MaybeDefault::None,
                    debug_syms: false,
                    ..Kernel::default()
                };
                all(
                    symbolizer.symbolize(&Source::Kernel(kernel), Input::AbsAddr(&addresses)),
                    addresses.len(),
                    is_hidden,
                )
            }
        };
        // The asker may have lost patience.
        let _ = reply.send(answer);
    }
}

/// Those that are not `unknown`.
fn all(
    symbols: Result<Vec<Symbolized<'_>>, Error>,
    count: usize,
    unknown: impl Fn(&Sym<'_>) -> bool,
) -> Vec<Locations> {
    let Ok(symbols) = symbols else {
        return vec![Vec::new(); count];
    };
    let known = |symbol: &Symbolized<'_>| {
        let symbol = symbol.as_sym().filter(|&symbol| !unknown(symbol))?;
        Some(locations(symbol))
    };
    let each = symbols.iter();
    each.map(|symbol| known(symbol).unwrap_or_default())
        .collect()
}

fn locations(symbol: &Sym<'_>) -> Locations {
    let outer = location(&symbol.name, symbol.code_info.as_deref());
    let inlined = symbol
        .inlined
        .iter()
        .map(|inlined| location(&inlined.name, inlined.code_info.as_ref()));
    let mut locations: Locations = std::iter::once(outer).chain(inlined).collect();
    locations.reverse();
    locations
}

fn location(name: &str, code: Option<&CodeInfo<'_>>) -> Location {
    Location {
        name: name.to_owned(),
        file: code.map(|code| code.to_path().to_string_lossy().into_owned()),
        line: code.and_then(|code| code.line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hidden_only_if_all_are_zero() {
        let hidden = "0000000000000000 A fixed_percpu_data\n0000000000000000 T _text\n";
        let readable = "0000000000000000 A fixed_percpu_data\nffffffff81000000 T _text\n";
        assert!(!has_an_address(hidden.as_bytes()));
        assert!(has_an_address(readable.as_bytes()));
    }
}

//! Which names a runtime gives to programs, in which versions, beside those of GCC's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use object::Endianness;
use object::elf::{FileHeader64, SHT_DYNSYM};
use object::read::elf::{FileHeader as _, Sym as _};

/// A name in a version, as programs bind to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    /// `OMP_3.0`.
    pub version: String,
    /// `omp_init_lock`.
    pub name: String,
    /// What new programs are linked to (`@@`), not kept for old ones only (`@`).
    pub is_default: bool,
}

/// Families that our runtime leaves out, and why.
const EXCEPTED: &[(&str, &str)] = &[
    ("OACC_", "OpenACC"),
    ("GOACC_", "what compiled OpenACC code calls"),
    ("GOMP_PLUGIN_", "for plug-ins of offload devices"),
];

/// There is no device: these do their work on the host, as GCC's does without one.
const ON_THE_HOST: &[&str] = &["GOMP_target", "GOMP_offload", "omp_target_"];

/// Why a family is left out.
fn excepted(symbol: &Symbol) -> Option<&'static str> {
    let family = EXCEPTED
        .iter()
        .find(|(prefix, _)| symbol.version.starts_with(prefix));
    family.map(|&(_, why)| why)
}

/// What `library` exports under versions.
///
/// # Errors
/// A text for the user where it cannot be read.
pub fn exported(library: &Path) -> Result<BTreeSet<Symbol>, String> {
    let failed = |why: String| format!("{}: {why}", library.display());
    let bytes = std::fs::read(library).map_err(|error| failed(error.to_string()))?;
    read(&bytes).map_err(|error| failed(error.to_string()))
}

fn read(bytes: &[u8]) -> object::Result<BTreeSet<Symbol>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let symbols = sections.symbols(endian, bytes, SHT_DYNSYM)?;
    let versions = sections.versions(endian, bytes)?.unwrap_or_default();
    let mut found = BTreeSet::new();
    for (index, symbol) in symbols.enumerate() {
        if symbol.is_undefined(endian) || symbol.st_bind() == object::elf::STB_LOCAL {
            continue;
        }
        let name = String::from_utf8_lossy(symbol.name(endian, symbols.strings())?).into_owned();
        let version_index = versions.version_index(endian, index);
        let version = match versions.version(version_index)? {
            Some(version) => String::from_utf8_lossy(version.name()).into_owned(),
            None => String::new(),
        };
        // The versions themselves are listed as well.
        if name == version || name.is_empty() {
            continue;
        }
        found.insert(Symbol {
            version,
            name,
            is_default: !version_index.is_hidden(),
        });
    }
    Ok(found)
}

/// Of GCC's names, those that ours must have and has not.
pub fn missing(reference: &BTreeSet<Symbol>, ours: &BTreeSet<Symbol>) -> Vec<Symbol> {
    reference
        .iter()
        .filter(|symbol| excepted(symbol).is_none() && !ours.contains(symbol))
        .cloned()
        .collect()
}

/// The table in `docs/`.
pub fn table(reference: &BTreeSet<Symbol>, ours: &BTreeSet<Symbol>) -> String {
    let mut text = String::from(
        "# Names of libgomp\n\n\
         Every name that Debian 12's libgomp.so.1 (GCC 12) gives to programs, and what ours does with it. Made by\n\
         `amdahl-conformance symbols GCCS OURS --write docs/libgomp-symbols.md`; a test keeps it true. `@@` is what new programs\n\
         are linked to, `@` is kept for old ones.\n\n\
         Left out as a whole: ",
    );
    let families: Vec<String> = EXCEPTED
        .iter()
        .map(|(prefix, why)| {
            let count = reference
                .iter()
                .filter(|symbol| symbol.version.starts_with(prefix))
                .count();
            format!("`{prefix}*` ({why}; {count} names)")
        })
        .collect();
    let _ = writeln!(text, "{}.\n", families.join(", "));
    let _ = writeln!(text, "| version | name | ours |\n|---|---|---|");
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for symbol in reference.iter().filter(|symbol| excepted(symbol).is_none()) {
        let is_on_host = ON_THE_HOST
            .iter()
            .any(|prefix| symbol.name.starts_with(prefix));
        let state = match (ours.contains(symbol), is_on_host) {
            (true, false) => "implemented",
            (true, true) => "on the host",
            (false, _) => "absent",
        };
        *counts.entry(state).or_default() += 1;
        let mark = if symbol.is_default { "@@" } else { "@" };
        let _ = writeln!(
            text,
            "| {mark}{} | `{}` | {state} |",
            symbol.version, symbol.name
        );
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    let _ = writeln!(text, "\nTogether: {}.", counts.join(", "));
    let more: Vec<String> = ours
        .iter()
        .filter(|symbol| !reference.contains(symbol))
        .map(|symbol| {
            let mark = if symbol.is_default { "@@" } else { "@" };
            format!("`{}{mark}{}`", symbol.name, symbol.version)
        })
        .collect();
    if !more.is_empty() {
        let _ = writeln!(text, "\nBeyond GCC 12: {}.", more.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, version: &str, is_default: bool) -> Symbol {
        Symbol {
            version: version.to_owned(),
            name: name.to_owned(),
            is_default,
        }
    }

    #[test]
    fn a_name_counts_only_in_its_version_and_with_its_mark() {
        let reference = BTreeSet::from([
            symbol("omp_init_lock", "OMP_1.0", false),
            symbol("omp_init_lock", "OMP_3.0", true),
            symbol("acc_wait", "OACC_2.0", true),
            symbol("GOMP_target", "GOMP_4.0", true),
        ]);
        let ours = BTreeSet::from([
            symbol("omp_init_lock", "OMP_1.0", true),
            symbol("omp_init_lock", "OMP_3.0", true),
            symbol("GOMP_target", "GOMP_4.0", true),
            symbol("omp_of_later", "OMP_6.0", true),
        ]);
        let lacks = missing(&reference, &ours);
        assert_eq!(lacks, [symbol("omp_init_lock", "OMP_1.0", false)]);
        let table = table(&reference, &ours);
        for line in [
            "| @OMP_1.0 | `omp_init_lock` | absent |",
            "| @@OMP_3.0 | `omp_init_lock` | implemented |",
            "| @@GOMP_4.0 | `GOMP_target` | on the host |",
            "Together: 1 absent, 1 implemented, 1 on the host.",
            "Beyond GCC 12: `omp_init_lock@@OMP_1.0`, `omp_of_later@@OMP_6.0`.",
        ] {
            assert!(table.contains(line), "{line}\n{table}");
        }
        assert!(!table.contains("acc_wait"));
    }

    #[test]
    fn reads_gccs_own() {
        let path = Path::new("/usr/lib/x86_64-linux-gnu/libgomp.so.1");
        if !path.exists() {
            println!("SKIPPED: there is no {}", path.display());
            return;
        }
        let symbols = exported(path).expect("a library");
        for wanted in [
            symbol("GOMP_parallel", "GOMP_4.0", true),
            symbol("omp_init_lock", "OMP_1.0", false),
            symbol("omp_init_lock", "OMP_3.0", true),
            symbol("omp_get_num_threads_", "OMP_1.0", true),
        ] {
            assert!(symbols.contains(&wanted), "{wanted:?}");
        }
        assert!(symbols.iter().all(|symbol| symbol.name != symbol.version));
    }
}

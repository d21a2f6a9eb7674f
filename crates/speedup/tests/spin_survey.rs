//! Which loops of real programs are taken for spin loops: a survey to be read by a person.
//!
//! ```text
//! SPIN_SURVEY=/usr/bin/git:/lib/x86_64-linux-gnu/libc.so.6 \
//!     cargo test --release -p amdahl-speedup --test spin_survey -- --ignored --nocapture
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use amdahl_speedup::spin::{Arch, Code, Place, SpinDetector};
use object::{Architecture, Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

/// Functions by address; where there are no symbols, whole sections.
struct Program {
    arch: Arch,
    functions: BTreeMap<u64, (String, Vec<u8>)>,
}

fn program(data: &[u8]) -> Program {
    let file = object::File::parse(data).expect("an ELF file");
    let arch = match file.architecture() {
        Architecture::X86_64 => Arch::X86_64,
        Architecture::Aarch64 => Arch::Aarch64,
        other => panic!("code for {other:?}"),
    };
    let texts: Vec<(u64, &[u8])> = file
        .sections()
        .filter(|section| section.kind() == SectionKind::Text)
        .filter_map(|section| Some((section.address(), section.data().ok()?)))
        .collect();
    let bytes = |address: u64, size: u64| {
        texts.iter().find_map(|(start, data)| {
            let from = usize::try_from(address.checked_sub(*start)?).ok()?;
            data.get(from..from.checked_add(usize::try_from(size).ok()?)?)
        })
    };
    let mut functions = BTreeMap::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        if symbol.kind() == SymbolKind::Text
            && symbol.size() > 0
            && let Some(code) = bytes(symbol.address(), symbol.size())
        {
            let name = symbol.name().unwrap_or("?").to_owned();
            functions
                .entry(symbol.address())
                .or_insert((name, code.to_vec()));
        }
    }
    // Code without symbols: the gaps, in windows.
    for (start, data) in &texts {
        let mut address = *start;
        while address < start + data.len() as u64 {
            let before = functions.range(..=address).next_back();
            if let Some((known, (_, code))) = before
                && known + code.len() as u64 > address
            {
                address = known + code.len() as u64;
                continue;
            }
            let next = functions
                .range(address..)
                .next()
                .map_or(u64::MAX, |(next, _)| *next);
            let len = (next - address)
                .min(start + data.len() as u64 - address)
                .min(4096);
            let code = bytes(address, len).unwrap_or_default().to_vec();
            functions.insert(address, (format!("?{address:x}"), code));
            address += len.max(1);
        }
    }
    Program { arch, functions }
}

#[test]
#[ignore = "prints what it finds in the programs of SPIN_SURVEY"]
fn survey() {
    let paths = std::env::var("SPIN_SURVEY").expect("SPIN_SURVEY=file[:file...]");
    let verbose = std::env::var_os("SPIN_SURVEY_ALL").is_some();
    for path in paths.split(':') {
        let Program { arch, functions } = program(&std::fs::read(path).expect("readable"));
        let fetch = |_: u64, address: u64| {
            let (start, (_, bytes)) = functions.range(..=address).next_back()?;
            (address < start + bytes.len() as u64).then(|| Code {
                start: *start,
                bytes: bytes.clone(),
                known: None,
            })
        };
        let mut detector = SpinDetector::new(arch);
        let (mut asked, mut spinning, mut found) = (0u64, 0u64, 0);
        let mut took: Vec<Duration> = Vec::new();
        let mut slowest = (Duration::ZERO, 0);
        for (&start, (name, bytes)) in &functions {
            let mut runs: Vec<(u64, u64)> = Vec::new();
            for ip in starts(arch, bytes, start) {
                let before = Instant::now();
                let spins = detector.in_spin_loop(Place { module: 0, ip }, fetch);
                let this = before.elapsed();
                took.push(this);
                slowest = slowest.max((this, ip));
                asked += 1;
                if spins {
                    spinning += 1;
                    match runs.last_mut() {
                        Some((_, to)) if *to + 16 > ip => *to = ip,
                        _ => runs.push((ip, ip)),
                    }
                }
            }
            found += runs.len();
            if verbose || !runs.is_empty() {
                let runs: Vec<String> = runs
                    .iter()
                    .map(|(a, b)| format!("{a:x}..{b:x} (+{:x}..{:x})", a - start, b - start))
                    .collect();
                println!("{name} {start:x} [{}]: {}", bytes.len(), runs.join(", "));
            }
        }
        took.sort_unstable();
        println!(
            "{path}: {} functions, {asked} instructions, {spinning} in {found} spin loops; \
             a verdict takes {:?} (median), {:?} (mean), {:?} at most, at {:x}",
            functions.len(),
            took.get(took.len() / 2).copied().unwrap_or_default(),
            took.iter().sum::<Duration>() / (asked as u32).max(1),
            slowest.0,
            slowest.1,
        );
    }
}

/// Addresses of the instructions.
fn starts(arch: Arch, bytes: &[u8], start: u64) -> Vec<u64> {
    match arch {
        Arch::X86_64 => {
            iced_x86::Decoder::with_ip(64, bytes, start, iced_x86::DecoderOptions::NONE)
                .iter()
                .map(|insn| insn.ip())
                .collect()
        }
        _ => (start..).step_by(4).take(bytes.len() / 4).collect(),
    }
}

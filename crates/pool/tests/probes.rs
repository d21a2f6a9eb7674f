#![cfg(all(not(loom), any(target_arch = "x86_64", target_arch = "aarch64")))]
//! The tracepoints that README.md promises are in programs that use the pool: in this one.

use std::collections::BTreeMap;

use amdahl_pool::Pool;
use object::{Object, ObjectSection};

/// A probe of `.note.stapsdt`.
struct Probe {
    at: u64,
    provider: String,
    name: String,
    arguments: usize,
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// The notes' layout is that of <https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation>: the place of the instruction, a
/// base, a semaphore, and three texts.
fn probes(mut notes: &[u8]) -> Vec<Probe> {
    let mut probes = vec![];
    while !notes.is_empty() {
        let (name_len, len, kind) = (word(notes, 0), word(notes, 4), word(notes, 8));
        let begin = 12 + name_len.next_multiple_of(4);
        assert_eq!((&notes[12..12 + name_len], kind), (&b"stapsdt\0"[..], 3));
        let note = &notes[begin..begin + len];
        let texts: Vec<String> = note[24..]
            .split(|&byte| byte == 0)
            .map(|text| String::from_utf8(text.to_vec()).unwrap())
            .collect();
        probes.push(Probe {
            at: u64::from_le_bytes(note[..8].try_into().unwrap()),
            provider: texts[0].clone(),
            name: texts[1].clone(),
            arguments: texts[2].split_whitespace().count(),
        });
        notes = &notes[begin + len.next_multiple_of(4)..];
    }
    probes
}

#[test]
fn all_probes_are_there() {
    // Else nothing of it would be linked.
    let pool = Pool::builder().threads_max(1).build().unwrap();
    assert_eq!(pool.spawn(|| 7).join().unwrap(), 7);
    let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let file = object::File::parse(&*file).unwrap();
    let notes = file.section_by_name(".note.stapsdt").expect("probes");
    let text = file.section_by_name(".text").expect("code");
    let mut found: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for probe in probes(notes.data().unwrap()) {
        if probe.provider != "amdahl_pool" {
            continue;
        }
        let code = text.address()..text.address() + text.size();
        assert!(
            code.contains(&probe.at),
            "{} at {:#x}",
            probe.name,
            probe.at
        );
        found.entry(probe.name).or_default().push(probe.arguments);
    }
    for arguments in found.values_mut() {
        // Code that is there twice has its probes twice.
        arguments.dedup();
    }
    let expected = [
        ("cpus", 3),
        ("offline", 1),
        ("sleep", 1),
        ("steal", 1),
        ("wake", 1),
    ];
    let expected = expected.map(|(name, arguments)| (name.to_owned(), vec![arguments]));
    assert_eq!(found, expected.into());
}

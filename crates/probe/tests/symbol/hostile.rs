//! Nothing that a process contains makes the symbolizer panic.

use std::path::Path;

use amdahl_probe::symbol::{MapEvent, RawStack, Symbolizer};
use proptest::prelude::*;

use crate::target::compile;

/// A few real files and some that are none, at few places, so that they overlap.
fn mapping() -> impl Strategy<Value = (u64, u64, u64, &'static str)> {
    let paths = [
        "/proc/self/exe",
        "/etc/passwd",
        "/no/such/file",
        "/dev/zero",
        "/memfd:code (deleted)",
        "//anon",
        "[vdso]",
        "[vsyscall]",
        "",
        "/proc/self/root/../exe (deleted)",
    ];
    let start = prop_oneof![0_u64..0x10_0000, any::<u64>()];
    let len = prop_oneof![0_u64..0x10_0000, any::<u64>()];
    let offset = prop_oneof![0_u64..0x100_0000, any::<u64>()];
    (start, len, offset, prop::sample::select(paths.to_vec()))
}

/// Words of a stack: addresses of code, of the stack, and anything.
fn word(sp: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        0_u64..0x10_0000,
        (0_u64..4096).prop_map(move |offset| sp.wrapping_add(offset)),
        any::<u64>()
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_stack_over_any_mappings_is_unwound(
        mappings in prop::collection::vec(mapping(), 0..8),
        (sp, words) in any::<u64>().prop_flat_map(|sp| (Just(sp), prop::collection::vec(word(sp), 0..200))),
        ip in prop_oneof![0_u64..0x10_0000, any::<u64>()],
        bp in 0_u64..4096,
        cut in 0_usize..8,
    ) {
        // No process has this id, so nothing is read from /proc.
        let pid = u32::MAX;
        let mut symbolizer = Symbolizer::new();
        symbolizer.maps_mut().exec(0, pid);
        for (start, len, file_offset, path) in mappings {
            let path = Path::new(path);
            symbolizer.maps_mut().map(&MapEvent { ts: 1, pid, start, len, file_offset, device: 0, inode: 0, path, executable: true });
        }
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(bytes.len().saturating_sub(cut));
        let stack = RawStack { pid, ts: 2, ip, sp, bp: sp.wrapping_add(bp), user_stack: &bytes, ..RawStack::default() };
        let unwound = symbolizer.unwind(&stack);
        prop_assert_eq!(unwound.addresses[0], ip);
        prop_assert_eq!(unwound.addresses.len(), unwound.points.len());
        prop_assert_eq!(&symbolizer.locate(pid, 2, &unwound.addresses), &unwound.points);
        let named = symbolizer.names(&unwound.points, &[]);
        prop_assert_eq!(named.user.len(), unwound.points.len());
        for &point in &unwound.points {
            if let Some(code) = symbolizer.code_at(point) {
                prop_assert!(code.start <= code.ip && code.ip < code.start + code.bytes.len() as u64);
            }
        }
    }
}

/// Damaged copies of a program with all kinds of tables, asked for everything.
#[test]
fn damaged_files_are_named_and_unwound() {
    let folder = tempfile::tempdir().unwrap();
    let command = ["gcc", "-O2", "-g", "-static", "-pthread"];
    let Some(program) = compile(folder.path(), &command, "chain.c", "whole") else {
        return;
    };
    let whole = std::fs::read(program).unwrap();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for round in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..1 << (round % 12) {
            // The headers are at the ends, the tables between.
            let at = match next() % 3 {
                0 => next() as usize % 4096,
                1 => bytes.len() - 1 - next() as usize % 8192,
                _ => next() as usize % bytes.len(),
            };
            bytes[at] = next() as u8;
        }
        if round % 5 == 4 {
            bytes.truncate(next() as usize % bytes.len());
        }
        let path = folder.path().join(format!("damaged{round}"));
        std::fs::write(&path, &bytes).unwrap();
        let mut symbolizer = Symbolizer::new();
        let pid = u32::MAX;
        let (start, len) = (0x5555_0000_0000, bytes.len() as u64);
        symbolizer.maps_mut().exec(0, pid);
        symbolizer.maps_mut().map(&MapEvent {
            ts: 1,
            pid,
            start,
            len,
            file_offset: 0,
            device: 0,
            inode: 0,
            path: &path,
            executable: true,
        });
        let addresses: Vec<u64> = (0..200).map(|_| start + next() % len).collect();
        let copy: Vec<u8> = addresses
            .iter()
            .flat_map(|address| address.to_le_bytes())
            .collect();
        for &ip in &addresses {
            let stack = RawStack {
                pid,
                ts: 2,
                ip,
                sp: 0x7000,
                bp: 0x7040,
                user_stack: &copy,
                ..RawStack::default()
            };
            let unwound = symbolizer.unwind(&stack);
            symbolizer.names(&unwound.points, &[]);
            symbolizer.code(pid, ip);
        }
        let stack = symbolizer.resolve_full(pid, &addresses[..20], &[]);
        assert!(stack.user.len() >= 20);
    }
}

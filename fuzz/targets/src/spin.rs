//! Machine code of measured programs.

use amdahl_speedup::spin::{Arch, Code, in_spin_loop, in_spin_loop_with};

const START: u64 = 0x40_0000;

/// Where the instruction is (two bytes), how long the first function is (one byte, in units of
/// eight), then code: the first function, and after it what it may call.
pub(crate) fn spin(bytes: &[u8]) {
    let [low, high, len, code @ ..] = bytes else {
        return;
    };
    let (own, others) = code.split_at((usize::from(*len) * 8).min(code.len()));
    let ip = START.wrapping_add(u64::from(u16::from_le_bytes([*low, *high])));
    for arch in [Arch::X86_64, Arch::Aarch64] {
        let alone = in_spin_loop(arch, own, START, ip);
        if ip >= START + own.len() as u64 {
            assert!(!alone, "an instruction outside of the code is in no loop");
        }
        in_spin_loop_with(arch, own, START, ip, &mut |address| {
            let offset = usize::try_from(address.checked_sub(START)?).ok()?;
            // Inside the others, and any address at all for some.
            let bytes = others.get(offset..).unwrap_or(others);
            (!bytes.is_empty()).then(|| Code {
                start: address,
                bytes: bytes.to_vec(),
                known: None,
            })
        });
        // At the very ends of the address space.
        for start in [0, u64::MAX - own.len() as u64 / 2, u64::MAX] {
            in_spin_loop(arch, own, start, start.wrapping_add(u64::from(*low)));
        }
    }
}

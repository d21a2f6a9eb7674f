//! What the machine code around a sample tells: whether it is in a spin loop, and whether a system call has just returned.

use amdahl_speedup::spin::{Arch, Code, Place, Shared, SpinDetector};
use rustc_hash::FxHashMap;

use super::wire::{CODE_BYTES, Stack};
use crate::symbol::{CodePoint, Symbolizer};

/// Frames from the innermost one on in which a spin loop is looked for.
const PLACES_MAX: usize = 8;

/// Whether the thread whose sample `raw` is, at `points`, spins.
pub(super) fn is_spinning(
    spins: &mut SpinDetector,
    symbols: &mut Symbolizer,
    points: &[CodePoint],
    raw: &Stack,
) -> bool {
    let Some(&innermost) = points.first() else {
        return false;
    };
    let generated = symbols.is_generated(innermost).then_some(innermost);
    let modules = modules(points);
    spins.is_spinning(&places(points), |module, address| {
        let point = CodePoint {
            address,
            ..*modules.get(&module)?
        };
        let known = symbols.known_at(point);
        if let Some(code) = code_of_file(symbols, point) {
            return Some(Code { known, ..code });
        }
        if known.is_some() {
            // The pointer to a function, not code.
            return Some(Code {
                start: address,
                bytes: Vec::new(),
                known,
            });
        }
        generated_code(generated?, point, raw)
    })
}

/// Which values of the thread at `points` others have a part in.
pub(super) fn shared(
    spins: &mut SpinDetector,
    symbols: &mut Symbolizer,
    points: &[CodePoint],
) -> Shared {
    let modules = modules(points);
    spins.shared(&places(points), |module, address| {
        let point = CodePoint {
            address,
            ..*modules.get(&module)?
        };
        code_of_file(symbols, point)
    })
}

/// A point of each module.
fn modules(points: &[CodePoint]) -> FxHashMap<u64, CodePoint> {
    let points = points.iter();
    points.map(|point| (place(*point).module, *point)).collect()
}

fn code_of_file(symbols: &mut Symbolizer, point: CodePoint) -> Option<Code> {
    let code = symbols.code_at(point)?;
    Some(Code {
        start: code.start,
        bytes: code.bytes.to_vec(),
        known: None,
    })
}

/// Generated code around `point`, as it was when the sample `raw` was taken at `innermost`.
fn generated_code(innermost: CodePoint, point: CodePoint, raw: &Stack) -> Option<Code> {
    let start = innermost.address.wrapping_sub(CODE_BYTES as u64 / 2);
    let is_in = point.module == innermost.module
        && point.address.wrapping_sub(start) < raw.code.len() as u64;
    is_in.then(|| Code {
        start,
        bytes: raw.code.to_vec(),
        known: None,
    })
}

/// Whether the innermost instruction follows one that enters the kernel.
pub(super) fn is_after_system_call(symbols: &mut Symbolizer, points: &[CodePoint]) -> bool {
    let code = points.first().and_then(|&point| symbols.code_at(point));
    code.is_some_and(|code| follows_system_call(&code.bytes, code.ip.wrapping_sub(code.start)))
}

/// The same of the instruction at `offset`.
fn follows_system_call(code: &[u8], offset: u64) -> bool {
    let before = usize::try_from(offset)
        .ok()
        .and_then(|offset| code.get(..offset));
    match Arch::native() {
        // syscall
        Some(Arch::X86_64) => before.is_some_and(|before| before.ends_with(&[0x0f, 0x05])),
        // svc #0
        Some(Arch::Aarch64) => {
            before.is_some_and(|before| before.ends_with(&0xd400_0001_u32.to_le_bytes()))
        }
        _ => false,
    }
}

/// The innermost places of a stack: where it stood, and return addresses, of which the points are inside the calls.
fn places(points: &[CodePoint]) -> Vec<Place> {
    let points = points.iter().take(PLACES_MAX).enumerate();
    let places = points.map(|(depth, &point)| Place {
        ip: point.address.wrapping_add(u64::from(depth > 0)),
        ..place(point)
    });
    places.collect()
}

fn place(point: CodePoint) -> Place {
    let mut hasher = rustc_hash::FxHasher::default();
    std::hash::Hash::hash(&point.module, &mut hasher);
    Place {
        module: std::hash::Hasher::finish(&hasher),
        ip: point.address,
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::bpf::decode::{Decoded, Decoder};
    use crate::bpf::drain::Part;
    use crate::bpf::wire::stack_kind;
    use crate::perf::SideBand;

    /// It is in no file, and the process may be gone: no loop of Java's was seen to spin.
    #[test]
    fn generated_code_spins_as_other_code_does() {
        const PID: u32 = 1 << 30;
        const IP: u64 = 0x1_0480;
        // mov eax, [rdi]; test eax, eax; je back
        const POLLS: &[u8] = &[0x8b, 0x07, 0x85, 0xc0, 0x74, 0xfa];
        let spins = |code: &[u8], executable| {
            let mut part = Part::default();
            part.side_band = vec![SideBand::Map {
                ts: 1,
                pid: PID,
                start: 0x1_0000,
                len: 0x1000,
                file_offset: 0,
                device: 0,
                inode: 0,
                path: "//anon".to_owned(),
                executable,
                shared: false,
            }];
            part.stacks = vec![Stack {
                ts: 2,
                kind: stack_kind::TIME,
                pid: PID,
                ip: IP,
                user_mode: true,
                user: [IP].into(),
                code: code.into(),
                ..Stack::default()
            }];
            let mut decoded = Decoded::default();
            let ids = Decoder::new().name_stacks(&mut part, &mut decoded);
            decoded.stacks[ids[0].0 as usize].in_spin_loop
        };
        let mut code = vec![0x90; CODE_BYTES];
        code[CODE_BYTES / 2..][..POLLS.len()].copy_from_slice(POLLS);
        assert!(spins(&code, true));
        assert!(!spins(&[], true));
        assert!(!spins(&vec![0x90; CODE_BYTES], true));
        // What is not mapped as code is none.
        assert!(!spins(&code, false));
    }
}

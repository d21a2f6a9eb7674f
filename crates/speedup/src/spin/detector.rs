//! Verdicts on samples, remembered.

use rustc_hash::FxHashMap;

use super::callee::Callee;
use super::{Arch, Code, Shared, Within, in_spin_loop_with, shared_values};

/// Calls between a sampled instruction and the loop that are looked through.
const CALLERS_MAX: usize = 6;
/// The same for loops that keep values in registers.
const KEEPERS_MAX: usize = 3;

/// Where a thread was: an address in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Identifies the module, e.g. the index of a mapped file.
    pub module: u64,
    /// Address of an instruction, in the module's own address space.
    pub ip: u64,
}

/// Decides for samples whether they are in spin loops, each place once.
///
/// Code comes from a closure: `fetch(module, address)` gives the function (or
/// a window of some hundred bytes) that contains the address, or `None`.
/// The same closure is asked for functions that a loop calls and for the parts
/// of a function that lie elsewhere (`.cold`).
///
/// ```
/// use amdahl_speedup::spin::{Arch, Code, Place, SpinDetector};
/// // pause; jmp .-2
/// let code = Code { start: 0x1000, bytes: vec![0xf3, 0x90, 0xeb, 0xfc], known: None };
/// let mut detector = SpinDetector::new(Arch::X86_64);
/// let place = Place { module: 0, ip: 0x1002 };
/// assert!(detector.in_spin_loop(place, |_, _| Some(code.clone())));
/// // Known by now: nothing is fetched.
/// assert!(detector.in_spin_loop(place, |_, _| None));
/// ```
#[derive(Debug)]
pub struct SpinDetector {
    arch: Arch,
    spins: FxHashMap<Place, bool>,
    accessors: FxHashMap<Place, bool>,
    shared: FxHashMap<(Place, Within), Shared>,
}

impl SpinDetector {
    /// A detector for code of one architecture.
    pub fn new(arch: Arch) -> SpinDetector {
        SpinDetector {
            arch,
            spins: FxHashMap::default(),
            accessors: FxHashMap::default(),
            shared: FxHashMap::default(),
        }
    }

    /// Whether the instruction at `place` is in a spin loop of its own function.
    ///
    /// Memory grows with the number of different places.
    pub fn in_spin_loop(
        &mut self,
        place: Place,
        mut fetch: impl FnMut(u64, u64) -> Option<Code>,
    ) -> bool {
        let Place { module, ip } = place;
        let arch = self.arch;
        *self.spins.entry(place).or_insert_with(|| {
            fetch(module, ip).is_some_and(|code| {
                in_spin_loop_with(arch, &code.bytes, code.start, ip, &mut |target| {
                    fetch(module, target)
                })
            })
        })
    }

    /// Whether a thread with this call stack, innermost place first, spins.
    ///
    /// The outer places are return addresses. Besides loops in the innermost
    /// function this finds loops whose flag is read in a small function that
    /// the loop calls, as unoptimised code does: the innermost functions are then
    /// accessors (no loop, no store, no other call) or [`Known`](super::Known) by name, and their caller spins.
    pub fn is_spinning(
        &mut self,
        stack: &[Place],
        mut fetch: impl FnMut(u64, u64) -> Option<Code>,
    ) -> bool {
        for (depth, &place) in stack.iter().take(CALLERS_MAX + 1).enumerate() {
            if self.in_spin_loop(place, &mut fetch) {
                return true;
            }
            if depth == stack.len() - 1 || !self.is_accessor(place, &mut fetch) {
                return false;
            }
        }
        false
    }

    /// Which values of a thread with this call stack, innermost place first, others have a part in: see [`Shared`]. Those of callers are
    /// in registers that functions keep. `fetch` is that of [`is_spinning`](SpinDetector::is_spinning).
    pub fn shared(
        &mut self,
        stack: &[Place],
        mut fetch: impl FnMut(u64, u64) -> Option<Code>,
    ) -> Shared {
        let arch = self.arch;
        let mut all = Shared::default();
        for (depth, &place) in stack.iter().take(KEEPERS_MAX + 1).enumerate() {
            let Place { module, ip } = place;
            let within = match depth {
                0 => Within::LoopsOrFunction,
                _ => Within::Loops,
            };
            let shared = *self.shared.entry((place, within)).or_insert_with(|| {
                let Some(Code { start, bytes, .. }) = fetch(module, ip) else {
                    return Shared::default();
                };
                let mut callee = |target| fetch(module, target);
                shared_values(arch, &bytes, start, ip, within, &mut callee)
            });
            all = all.or(match depth {
                0 => shared,
                _ => shared.beyond_call(arch),
            });
        }
        all
    }

    fn is_accessor(
        &mut self,
        place: Place,
        fetch: &mut dyn FnMut(u64, u64) -> Option<Code>,
    ) -> bool {
        let Place { module, ip } = place;
        let arch = self.arch;
        *self.accessors.entry(place).or_insert_with(|| {
            fetch(module, ip).is_some_and(|code| {
                code.known.is_some()
                    || Callee::examine(arch, code.start, &mut |target| fetch(module, target))
                        .is_some()
            })
        })
    }
}

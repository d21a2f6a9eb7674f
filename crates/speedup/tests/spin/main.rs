//! Spin loops and loops that work, in the machine code of real compilers:
//! every instruction of every function is judged.

mod aarch64;
mod x86_64;

use amdahl_speedup::spin::{
    Arch, Code, Known, Place, SpinDetector, in_spin_loop, in_spin_loop_with,
};
use iced_x86::{Decoder, DecoderOptions};
use proptest::prelude::*;

/// A function.
pub struct Case {
    /// Function name.
    pub name: &'static str,
    /// With version and options.
    pub compiler: &'static str,
    /// What was compiled.
    pub source: &'static str,
    /// Address of the first byte.
    pub start: u64,
    /// Hexadecimal.
    pub code: &'static str,
    /// Functions that it calls: address, code.
    pub callees: &'static [(u64, &'static str)],
    /// Offsets of the first and the last instruction of each run of instructions
    /// that spin; none for a function that works.
    pub spins: &'static [(u64, u64)],
}

impl Case {
    fn functions(&self) -> Vec<Code> {
        let own = (self.start, self.code);
        std::iter::once(&own)
            .chain(self.callees)
            .map(|&(start, hex)| Code {
                start,
                bytes: bytes(hex),
                known: None,
            })
            .collect()
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .map(|digit| digit.to_digit(16).expect("a hexadecimal digit") as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn fetch(functions: &[Code], address: u64) -> Option<Code> {
    let holds = |code: &&Code| {
        address
            .checked_sub(code.start)
            .is_some_and(|offset| offset < code.bytes.len() as u64)
    };
    functions.iter().find(holds).cloned()
}

/// Offsets of the instructions.
fn offsets(arch: Arch, code: &[u8]) -> Vec<u64> {
    if arch == Arch::X86_64 {
        let decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
        decoder.into_iter().map(|insn| insn.ip()).collect()
    } else {
        (0..code.len() as u64).step_by(4).collect()
    }
}

/// Runs of instructions that spin, as in [`Case::spins`].
fn spins(arch: Arch, case: &Case) -> Vec<(u64, u64)> {
    let functions = case.functions();
    let code = &functions[0].bytes;
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let mut spun = false;
    for offset in offsets(arch, code) {
        let ip = case.start + offset;
        let spins = in_spin_loop_with(arch, code, case.start, ip, &mut |address| {
            fetch(&functions, address)
        });
        match runs.last_mut() {
            Some(run) if spins && spun => run.1 = offset,
            _ if spins => runs.push((offset, offset)),
            _ => {}
        }
        spun = spins;
    }
    runs
}

fn judge_all(arch: Arch, cases: &[Case], at_least: (usize, usize)) {
    let mut wrong = Vec::new();
    for case in cases {
        let found = spins(arch, case);
        if found != case.spins {
            wrong.push(format!(
                "{}|{} is {found:x?}, should be {:x?}: {}",
                case.name, case.compiler, case.spins, case.source,
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
    let spinning = cases.iter().filter(|case| !case.spins.is_empty()).count();
    assert!(spinning >= at_least.0 && cases.len() - spinning >= at_least.1);
}

#[test]
fn x86_64_code_is_judged_instruction_by_instruction() {
    judge_all(Arch::X86_64, x86_64::CASES, (30, 40));
}

#[test]
fn aarch64_code_is_judged_instruction_by_instruction() {
    judge_all(Arch::Aarch64, aarch64::CASES, (20, 30));
}

/// Fetches the functions of a case, all as one module.
fn detect(case: &Case) -> impl FnMut(u64, u64) -> Option<Code> {
    let functions = case.functions();
    move |_, address| fetch(&functions, address)
}

fn case<'a>(cases: &'a [Case], name: &str, compiler: &str) -> &'a Case {
    cases
        .iter()
        .find(|case| case.name == name && case.compiler == compiler)
        .expect("a case of this name")
}

#[test]
fn an_accessor_spins_only_if_its_caller_does() {
    for (arch, case) in [
        (
            Arch::X86_64,
            case(x86_64::CASES, "spin_accessor", "gcc 12.2 -O0"),
        ),
        (
            Arch::Aarch64,
            case(aarch64::CASES, "spin_accessor", "aarch64 gcc 12.2 -O0"),
        ),
    ] {
        let mut detector = SpinDetector::new(arch);
        let place = |ip| Place { module: 7, ip };
        let accessor = place(case.callees[0].0 + 4);
        let (first, last) = case.spins[0];
        let in_loop = place(case.start + last);
        let before_loop = place(case.start);
        assert!(first > 0);
        assert!(!detector.is_spinning(&[accessor], detect(case)));
        assert!(detector.is_spinning(&[accessor, in_loop], detect(case)));
        assert!(!detector.is_spinning(&[accessor, before_loop], detect(case)));
        assert!(!detector.is_spinning(&[], detect(case)));
    }
}

#[test]
fn work_called_from_a_spin_loop_is_work() {
    let spin = case(x86_64::CASES, "spin_atomic", "clang 14 -O2");
    let work = case(x86_64::CASES, "work_sum", "gcc 12.2 -O2");
    let functions = [spin.functions(), work.functions()].concat();
    let mut detector = SpinDetector::new(Arch::X86_64);
    let stack = [work.start, spin.start].map(|ip| Place { module: 0, ip });
    assert!(!detector.is_spinning(&stack, |_, address| fetch(&functions, address)));
    assert!(detector.is_spinning(&stack[1..], |_, address| fetch(&functions, address)));
}

#[test]
fn a_loop_that_calls_the_unknown_does_not_poll() {
    let case = case(x86_64::CASES, "spin_accessor", "gcc 12.2 -O2");
    let code = bytes(case.code);
    assert!(!in_spin_loop(Arch::X86_64, &code, case.start, case.start));
}

#[test]
fn a_place_is_fetched_once() {
    let case = case(x86_64::CASES, "spin_volatile", "gcc 12.2 -O2");
    let mut detector = SpinDetector::new(Arch::X86_64);
    let place = Place {
        module: 1,
        ip: case.start,
    };
    assert!(detector.in_spin_loop(place, detect(case)));
    assert!(detector.in_spin_loop(place, |_, _| unreachable!("known by now")));
    // The same address in another module is another place.
    assert!(!detector.in_spin_loop(Place { module: 2, ..place }, |_, _| None));
}

#[test]
fn a_window_that_starts_inside_an_instruction_will_do() {
    let case = case(x86_64::CASES, "spin_bounded_pause", "clang 14 -O2");
    let code = bytes(case.code);
    let (first, _) = case.spins[0];
    for cut in 0..first {
        let window = &code[cut as usize..];
        let start = case.start + cut;
        assert!(
            in_spin_loop(Arch::X86_64, window, start, case.start + first),
            "cut {cut}"
        );
    }
}

#[test]
fn a_loop_over_a_cold_part_elsewhere_is_one_loop() {
    // f: mov eax, [rdi]; test eax, eax; je f.cold; ret   f.cold: pause; jmp f
    let hot = Code {
        start: 0x1000,
        bytes: bytes("8b0785c00f84f60f0000c3"),
        known: None,
    };
    let cold = Code {
        start: 0x2000,
        bytes: bytes("f390e9f9efffff"),
        known: None,
    };
    let functions = [hot, cold];
    for (own, ip) in [(0, 0x1000), (0, 0x1004), (1, 0x2000), (1, 0x2002)] {
        let code: &Code = &functions[own];
        let mut fetch = |address| fetch(&functions, address);
        assert!(in_spin_loop_with(
            Arch::X86_64,
            &code.bytes,
            code.start,
            ip,
            &mut fetch
        ));
    }
    let mut fetch = |address| fetch(&functions, address);
    assert!(!in_spin_loop_with(
        Arch::X86_64,
        &functions[0].bytes,
        0x1000,
        0x100a,
        &mut fetch
    ));
}

/// Compilers load the address of a function once, before the loop that calls it.
#[test]
fn loops_that_call_through_a_register_are_judged_by_where_it_was_loaded() {
    const POINTER: u64 = 0x1000 + 8 + 0x100;
    let known = |address| {
        (address == POINTER).then(|| Code {
            start: address,
            bytes: Vec::new(),
            known: Some(Known::TryLock),
        })
    };
    let judged = |code: &str| {
        let code = bytes(&code.replace(' ', ""));
        in_spin_loop_with(Arch::X86_64, &code, 0x1000, 0x100d, &mut { known })
    };
    // push rbx; mov rbx, [rip + 0x100]; L: mov rdi, r12; call rbx; test eax, eax; jne L; pop rbx; ret
    assert!(judged("53 488b1d00010000 4c89e7 ffd3 85c0 75f7 5b c3"));
    // mov rbx, [rip + 0x200] there.
    assert!(!judged("53 488b1d00020000 4c89e7 ffd3 85c0 75f7 5b c3"));
    // mov rbx, [rsi + 0x100], which may be anything.
    assert!(!judged("53 488b9e00010000 4c89e7 ffd3 85c0 75f7 5b c3"));
    // ... pop rbx; mov rbx, rax; ret
    assert!(!judged(
        "53 488b1d00010000 4c89e7 ffd3 85c0 75f7 5b 4889c3 c3"
    ));
}

/// Functions of libraries are behind a PLT, whose code says nothing: that their loops wait was not seen.
#[test]
fn loops_that_call_a_known_function_of_a_library_are_judged() {
    const CLOCK: u64 = 0x9000;
    const TRY_LOCK: u64 = 0xa000;
    const YIELD: u64 = 0xb000;
    let known = |address| {
        let known = match address {
            CLOCK => Known::Clock,
            TRY_LOCK => Known::TryLock,
            YIELD => Known::Yield,
            _ => return None,
        };
        Some(Code {
            start: address,
            bytes: Vec::new(),
            known: Some(known),
        })
    };
    // gcc 12.2 -O2: name, code, where it calls (the distance is filled in), offsets of an instruction of the loop and of the call.
    for (source, code, (call, target), at, spins) in [
        (
            "while (pthread_mutex_trylock(m)) ;",
            "534889fb0f1f40004889dfe80000000085c075f45bc3",
            (0xb, TRY_LOCK),
            0x10,
            true,
        ),
        // -fno-plt: through the GOT.
        (
            "while (pthread_mutex_trylock(m)) ;",
            "534889fb0f1f40004889dfff150000000085c075f35bc3",
            (0xb, TRY_LOCK),
            0x11,
            true,
        ),
        (
            "do { if (*f) return 1; clock_gettime(CLOCK_MONOTONIC, &t); } while (t.tv_sec < end);",
            "4154554889f5534889fb4883ec104989e4eb180f1f4400004c89e6bf01000000e80000000048392c247d158b0385c074e74883c410b8010000005b5d415cc3",
            (0x20, CLOCK),
            0x2b,
            true,
        ),
        (
            "while (!*f) sched_yield();",
            "534889fbeb0f662e0f1f840000000000e8000000008b0385c074f55bc3",
            (0x10, YIELD),
            0x15,
            true,
        ),
        // Nobody else can end it.
        (
            "do clock_gettime(CLOCK_MONOTONIC, &t); while (t.tv_sec < end);",
            "55534889fb4883ec184889e50f1f40004889eebf01000000e80000000048391c247ced4883c4185b5dc3",
            (0x18, CLOCK),
            0x1d,
            false,
        ),
        (
            "while (pthread_mutex_trylock(m)) work_done++;",
            "534889fbeb12662e0f1f8400000000004883050000000000014889dfe80000000085c075ec5bc3",
            (0x1b, TRY_LOCK),
            0x20,
            false,
        ),
        (
            "do { *out = *out * 3 + 1; clock_gettime(CLOCK_MONOTONIC, &t); } while (t.tv_sec < end);",
            "4154554889fd534889f34883ec104989e40f1f8000000000488b034c89e6bf01000000488d4440014889 03e80000000048392c247ce24883c4105b5d415cc3",
            (0x2b, CLOCK),
            0x30,
            false,
        ),
    ] {
        let start = 0x1000;
        let mut code = bytes(&code.replace(' ', ""));
        let opcode = if code[call] == 0xe8 { 1 } else { 2 };
        let next = start + (call + opcode + 4) as u64;
        let distance = target.wrapping_sub(next) as u32;
        code[call + opcode..][..4].copy_from_slice(&distance.to_le_bytes());
        for ip in [start + at, start + call as u64] {
            let mut fetch = |address| known(address);
            let found = in_spin_loop_with(Arch::X86_64, &code, start, ip, &mut fetch);
            assert_eq!(found, spins, "{source} at {ip:x}");
            // What is called may be anything where nobody knows it.
            assert!(!in_spin_loop(Arch::X86_64, &code, start, ip), "{source}");
        }
        // Most samples are in the library.
        let place = |module, ip| Place { module, ip };
        let stack = [
            place(1, target),
            place(0, start + (call + opcode + 4) as u64),
        ];
        let own = Code {
            start,
            bytes: code,
            known: None,
        };
        let mut detector = SpinDetector::new(Arch::X86_64);
        let found = detector.is_spinning(&stack, |module, address| match module {
            0 if (start..start + 0x100).contains(&address) => Some(own.clone()),
            _ => known(address),
        });
        assert_eq!(found, spins, "{source}");
    }
}

#[test]
fn code_at_the_end_of_the_address_space_is_judged() {
    let code = bytes("8b0785c074fa");
    let start = u64::MAX - 5;
    assert!(in_spin_loop(Arch::X86_64, &code, start, start));
    assert!(!in_spin_loop(Arch::X86_64, &code, start, 0));
}

fn any_arch() -> impl Strategy<Value = Arch> {
    prop_oneof![Just(Arch::X86_64), Just(Arch::Aarch64)]
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        arch in any_arch(),
        code in prop::collection::vec(any::<u8>(), 0..300),
        start in any::<u64>(),
        offset in 0u64..400,
    ) {
        let ip = start.wrapping_add(offset);
        let spins = in_spin_loop(arch, &code, start, ip);
        prop_assert!(!spins || offset < code.len() as u64);
    }

    /// Short jumps, atomics, loads and PAUSE in random order make many loops.
    #[test]
    fn random_loops_never_panic(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "8b07", "85c0", "f390", "74e0", "75f0", "ebd0", "f00fb117", "8707", "48ffc0", "4883c708",
            "e800000000", "8b45f8", "8945f8", "c3", "50", "58", "8b04b7", "0f31", "7410", "eb08",
        ]), 1..60),
        offset in 0u64..200,
    ) {
        let code: Vec<u8> = pieces.iter().flat_map(|piece| bytes(piece)).collect();
        let functions = [Code { start: 0x1000, bytes: code.clone(), known: None }];
        let mut fetch = |address| fetch(&functions, address);
        let spins = in_spin_loop_with(Arch::X86_64, &code, 0x1000, 0x1000 + offset, &mut fetch);
        prop_assert!(!spins || offset < code.len() as u64);
    }

    #[test]
    fn arm_words_never_panic(
        words in prop::collection::vec(prop_oneof![
            any::<u32>(),
            (0u32..64).prop_map(|back| 0x5400_0000 | (0x7ffff - back) << 5 & 0xff_ffe0),
            (0u32..64).prop_map(|back| 0x3500_0000 | (0x7ffff - back) << 5 & 0xff_ffe0),
            (0u32..0x400).prop_map(|regs| 0x885f_fc00 | regs),
            (0u32..0x400).prop_map(|regs| 0x8802_fc00 | regs),
            (0u32..0x400).prop_map(|regs| 0xb940_0000 | regs),
        ], 1..120),
        at in 0usize..120,
    ) {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        in_spin_loop(Arch::Aarch64, &code, 0, 4 * at as u64);
    }

    #[test]
    fn outside_of_the_code_nothing_spins(arch in any_arch(), ip in any::<u64>()) {
        let code = bytes("f390ebfc3f2003d5ffffff17");
        prop_assume!(!(0x1000..0x100c).contains(&ip));
        prop_assert!(!in_spin_loop(arch, &code, 0x1000, ip));
    }
}

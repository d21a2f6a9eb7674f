//! Every fuzz target on inputs that are always the same: its seeds, each cut and damaged in many
//! ways, and noise. Finds little that a fuzzer would not, but runs wherever tests run.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use amdahl_fuzz_targets::{ALL, Target, target};

/// Inputs made for each target.
const INPUTS: usize = 3000;
/// Bytes of an input at most.
const BYTES_MAX: usize = 64 << 10;

/// SplitMix64 (Steele, Lea and Flood 2014): the same numbers everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// Numbers and words at which parsers break.
const TEXTS: [&[u8]; 18] = [
    b"0",
    b"-1",
    b"1e999",
    b"1e18",
    b"0.1",
    b"NaN",
    b"4294967295",
    b"4294967296",
    b"18446744073709551615",
    b"99999999999999999999999",
    b"null",
    b"{}",
    b"[]",
    b"\"\"",
    b"\xf0\x9f\x8e\x89",
    b"\xff",
    b"\0",
    b"\n",
];

fn damage(input: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let at = random.below(input.len());
    match random.below(9) {
        0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
        1 if !input.is_empty() => input[at] = random.next() as u8,
        2 => input.truncate(at),
        3 => {
            let len = random.below(16).min(input.len() - at);
            input.drain(at..at + len);
        }
        4 => {
            let len = random.below(9);
            let bytes = random.bytes(len);
            input.splice(at..at, bytes);
        }
        5 => {
            let text = random.pick(&TEXTS);
            input.splice(at..at, text.iter().copied());
        }
        // A number of the text becomes another one.
        6 => {
            let digits = |byte: &u8| byte.is_ascii_digit();
            if let Some(start) = input[at..].iter().position(digits).map(|skip| at + skip) {
                let len = input[start..]
                    .iter()
                    .take_while(|byte| digits(byte))
                    .count();
                let text = random.pick(&TEXTS);
                input.splice(start..start + len, text.iter().copied());
            }
        }
        // A word of a binary becomes an extreme one.
        7 => {
            let width = [1, 2, 4, 8][random.below(4)];
            if let Some(word) = input.get_mut(at..at + width) {
                word.fill(random.pick(&[&0_u8, &0xff, &0x7f, &0x80]).to_owned());
            }
        }
        _ => {
            let other = &seeds[random.below(seeds.len())];
            let from = random.below(other.len());
            let len = random.below(200).min(other.len() - from);
            input.splice(at..at, other[from..from + len].iter().copied());
        }
    }
    input.truncate(BYTES_MAX);
}

fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../seeds")
        .join(target.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} has no seeds", folder.display());
    paths
        .iter()
        .map(|path| fs::read(path).expect("a seed"))
        .collect()
}

fn try_one(target: &Target, input: &[u8], which: &str) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err() {
        let kept = std::env::temp_dir().join(format!("amdahl-fuzz-{}.bin", target.name));
        fs::write(&kept, input).expect("the input is kept");
        panic!(
            "{} fails on {which}, kept as {}",
            target.name,
            kept.display()
        );
    }
}

fn smoke(name: &str) {
    let target = target(name);
    let seeds = seeds(&target);
    for (number, seed) in seeds.iter().enumerate() {
        try_one(&target, seed, &format!("seed {number}"));
    }
    let mut random = Random(0x616d_6461_686c);
    for number in 0..INPUTS {
        let mut input = match number % 8 {
            0 => {
                let len = random.below(300);
                random.bytes(len)
            }
            _ => seeds[random.below(seeds.len())].clone(),
        };
        for _ in 0..=random.below(6) {
            damage(&mut input, &seeds, &mut random);
        }
        try_one(&target, &input, &format!("input {number}"));
    }
}

macro_rules! smoke {
    ($($name:ident)*) => {
        $(#[test] fn $name() { smoke(stringify!($name)); })*

        #[test]
        fn every_target_has_a_test_and_a_fuzzer() {
            let tested = [$(stringify!($name)),*];
            let all: Vec<&str> = ALL.iter().map(|target| target.name).collect();
            assert_eq!(all, tested);
            let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).expect("a manifest");
            for name in all {
                let file = format!("fuzz_targets/{name}.rs");
                let text = fs::read_to_string(fuzz.join(&file)).expect("a fuzzer");
                assert!(text.contains(&format!("target(\"{name}\")")), "{file}");
                assert!(manifest.contains(&file), "{file} is not in the manifest");
            }
        }
    };
}

smoke! {
    sim_workload rt_app
    result locks_result compare spin elf loader perf_map process_maps symbol_name stack_record sched_part sched_result
    preload_record cpu_set topology_text cgroup_files sysfs_files smaps
    memory_text mem_result
    cpu_mask histogram counter published_counter hashed_locks range_alloc range_layout range_lock range_map
    handoff clean_offer succession memory_image migration_frames migration_door offload_words page_frames
    openmp_environment phantom_page phantom_text samples
}

/// Seeds are what mutations begin with: they must get past the first check.
#[test]
fn seeds_are_taken_by_their_parsers() {
    for seed in seeds(&target("migration_frames")) {
        use amdahl_migrate::wire::{HEAD, Head, Message};
        let (head, payload) = seed.split_first_chunk::<HEAD>().expect("a head");
        let head = Head::of(head).expect("a head");
        let payload = &payload[..head.len];
        head.check(payload).expect("what was sent");
        Message::of(head.kind, payload).expect("a message");
    }
    let door = seeds(&target("migration_door")).concat();
    let asked = amdahl_migrate::door::Request::of_line;
    assert!(
        door.split(|byte| *byte == b'\n')
            .any(|line| asked(line).is_ok())
    );
    for seed in seeds(&target("result")) {
        amdahl_report::load::parse(&seed, "seed".into()).expect("a result");
    }
    for seed in seeds(&target("samples")) {
        let rows = amdahl_report::samples::read_from(bytes::Bytes::from(seed)).expect("rows");
        assert!(!rows.is_empty());
    }
    for seed in seeds(&target("sched_part")) {
        amdahl_sched::recording::read_part(seed).expect("a part");
    }
    for seed in seeds(&target("sched_result")) {
        amdahl_report::sched::load::parse(&seed, "seed".into()).expect("a result");
    }
    for seed in seeds(&target("loader")) {
        let (kind, bytes) = seed.split_first().expect("a kind");
        if *kind == 0 {
            let elf = amdahl_loader::Elf::parse(bytes, &|_| true).expect("an ELF file");
            assert!(!elf.needed.is_empty() && !elf.exported.is_empty());
        } else {
            let cache = amdahl_loader::Cache::parse(bytes).expect("a cache");
            assert!(!cache.is_empty());
        }
    }
    for seed in seeds(&target("preload_record")) {
        let record = amdahl_probe::unprivileged::preload::parse(&seed).expect("a record");
        assert!(!record.waits.is_empty() && !record.totals.is_empty());
    }
    for seed in seeds(&target("stack_record")) {
        let stack = amdahl_probe::bpf::wire::Stack::parse(&seed).expect("a record");
        assert!(!stack.kernel.is_empty() && !stack.user.is_empty() && !stack.bytes.is_empty());
        assert!(!stack.below.is_empty());
    }
    for seed in seeds(&target("cpu_set")) {
        let text = String::from_utf8(seed).expect("text");
        text.parse::<amdahl_topology::CpuSet>().expect("a list");
    }
    for seed in seeds(&target("openmp_environment")) {
        let lines = seed.split(|&byte| byte == b'\n');
        let pairs = lines.filter_map(|line| {
            let equals = line.iter().position(|&byte| byte == b'=')?;
            Some((&line[..equals], &line[equals + 1..]))
        });
        let (_, said) = amdahl_openmp::env::Settings::read(pairs, false);
        assert_eq!(said, [""; 0]);
    }
    for seed in seeds(&target("topology_text")) {
        let text = String::from_utf8(seed).expect("text");
        amdahl_topology::Topology::synthetic(&text).expect("a description");
    }
}

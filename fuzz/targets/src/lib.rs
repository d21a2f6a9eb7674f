//! What the fuzzers run: every parser of untrusted bytes, with what must hold afterwards.
//!
//! A [`Target`] takes any bytes at all and panics on a defect. The same functions run under
//! cargo-fuzz (`fuzz_targets/`) and, on inputs that are always the same, as an ordinary test.

mod counters;
mod door;
mod handoff;
mod image;
mod input;
mod loader;
mod machine;
#[path = "../../../crates/report/tests/markup/mod.rs"]
mod markup;
mod memory;
mod migration;
mod offload;
mod openmp;
mod pages;
mod phantom;
mod range_lock;
mod ranges;
mod recording;
mod result;
mod sim;
mod spin;
mod spread;

/// A parser under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: the fuzzer `fuzz_targets/NAME.rs` and the folder `seeds/NAME`.
    pub name: &'static str,
    /// Parses, and panics where a promise is broken.
    pub run: fn(&[u8]),
}

/// Looks up a target.
///
/// # Panics
/// When there is none of this name.
pub fn target(name: &str) -> Target {
    *ALL.iter()
        .find(|target| target.name == name)
        .unwrap_or_else(|| panic!("no target {name}"))
}

/// All targets.
pub const ALL: &[Target] = &[
    Target {
        name: "sim_workload",
        run: sim::workload,
    },
    Target {
        name: "rt_app",
        run: sim::rt_app,
    },
    Target {
        name: "result",
        run: result::result,
    },
    Target {
        name: "locks_result",
        run: result::locks,
    },
    Target {
        name: "compare",
        run: result::compare,
    },
    Target {
        name: "spin",
        run: spin::spin,
    },
    Target {
        name: "elf",
        run: amdahl_probe::symbol::fuzz::elf,
    },
    Target {
        name: "loader",
        run: loader::loader,
    },
    Target {
        name: "perf_map",
        run: amdahl_probe::symbol::fuzz::perf_map,
    },
    Target {
        name: "process_maps",
        run: amdahl_probe::symbol::fuzz::process_maps,
    },
    Target {
        name: "symbol_name",
        run: amdahl_probe::symbol::fuzz::symbol_name,
    },
    Target {
        name: "stack_record",
        run: recording::stack_record,
    },
    Target {
        name: "sched_part",
        run: recording::sched_part,
    },
    Target {
        name: "sched_result",
        run: result::sched,
    },
    Target {
        name: "preload_record",
        run: amdahl_probe::unprivileged::preload::fuzz,
    },
    Target {
        name: "cpu_set",
        run: machine::cpu_set,
    },
    Target {
        name: "topology_text",
        run: machine::topology_text,
    },
    Target {
        name: "cgroup_files",
        run: machine::cgroup_files,
    },
    Target {
        name: "sysfs_files",
        run: machine::sysfs_files,
    },
    Target {
        name: "smaps",
        run: memory::smaps,
    },
    Target {
        name: "memory_text",
        run: memory::memory_text,
    },
    Target {
        name: "mem_result",
        run: memory::mem_result,
    },
    Target {
        name: "cpu_mask",
        run: spread::cpu_mask,
    },
    Target {
        name: "histogram",
        run: spread::histogram,
    },
    Target {
        name: "counter",
        run: counters::counter,
    },
    Target {
        name: "published_counter",
        run: counters::published,
    },
    Target {
        name: "hashed_locks",
        run: spread::hashed_locks,
    },
    Target {
        name: "range_alloc",
        run: ranges::operations,
    },
    Target {
        name: "range_layout",
        run: ranges::layout,
    },
    Target {
        name: "range_lock",
        run: range_lock::lock,
    },
    Target {
        name: "range_map",
        run: range_lock::map,
    },
    Target {
        name: "handoff",
        run: handoff::message,
    },
    Target {
        name: "clean_offer",
        run: handoff::clean_offer,
    },
    Target {
        name: "succession",
        run: handoff::succession,
    },
    Target {
        name: "memory_image",
        run: image::memory_image,
    },
    Target {
        name: "migration_frames",
        run: migration::frames,
    },
    Target {
        name: "migration_door",
        run: door::lines,
    },
    Target {
        name: "offload_words",
        run: offload::words,
    },
    Target {
        name: "page_frames",
        run: pages::frames,
    },
    Target {
        name: "openmp_environment",
        run: openmp::environment,
    },
    Target {
        name: "phantom_page",
        run: phantom::page,
    },
    Target {
        name: "phantom_text",
        run: phantom::text,
    },
    Target {
        name: "samples",
        run: result::samples,
    },
];

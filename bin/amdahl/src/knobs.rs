//! The environment variables that tell programs their number of threads.

/// What a program takes that is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// The CPUs in its affinity mask; newer versions may know the quota of control groups as well.
    Affinity,
    /// The CPUs of the machine.
    Host,
    /// The CPUs in its affinity mask within the quota, in all versions that people use.
    Quota,
    /// One thread: telling it a number makes more of it.
    One,
}

/// One variable.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Its name.
    pub name: &'static str,
    /// What it is set to: `{cpus}` becomes the number.
    pub value: &'static str,
    /// What happens without it.
    pub takes: Takes,
    /// Threads that are never exceeded by default.
    pub at_most: u32,
    /// Variables that its reader takes instead if this one is not set: whoever sets them has said what he wants.
    pub falls_back_to: &'static [&'static str],
    /// Who starts several workers on this machine gives each its share of the CPUs by it, unless it is set.
    pub is_divided: bool,
}

const fn knob(name: &'static str, takes: Takes) -> Knob {
    Knob {
        name,
        value: "{cpus}",
        takes,
        at_most: u32::MAX,
        falls_back_to: &[],
        is_divided: false,
    }
}

/// One of those that joblib, Dask, Ray or `torchrun` divide.
const fn divided(name: &'static str, takes: Takes) -> Knob {
    Knob {
        is_divided: true,
        ..knob(name, takes)
    }
}

/// All that `amdahl scale` sets, and `amdahl run` where a program would take too many.
pub const KNOBS: &[Knob] = &[
    divided("OMP_NUM_THREADS", Takes::Affinity),
    Knob {
        falls_back_to: &["GOTO_NUM_THREADS", "OMP_NUM_THREADS"],
        ..divided("OPENBLAS_NUM_THREADS", Takes::Affinity)
    },
    Knob {
        falls_back_to: &["OMP_NUM_THREADS"],
        ..divided("MKL_NUM_THREADS", Takes::Affinity)
    },
    divided("BLIS_NUM_THREADS", Takes::One),
    Knob {
        // 8 in old versions.
        at_most: 16,
        falls_back_to: &["OMP_NUM_THREADS"],
        ..divided("NUMEXPR_NUM_THREADS", Takes::Host)
    },
    divided("NUMBA_NUM_THREADS", Takes::Affinity),
    knob("JULIA_NUM_THREADS", Takes::One),
    // Rust's own count knows the quota of both versions since 1.64.
    knob("POLARS_MAX_THREADS", Takes::Quota),
    knob("RAYON_NUM_THREADS", Takes::Affinity),
    knob("TOKIO_WORKER_THREADS", Takes::Affinity),
    // Knows the quota since Go 1.25.
    knob("GOMAXPROCS", Takes::Affinity),
    knob("CARGO_BUILD_JOBS", Takes::Quota),
    knob("CMAKE_BUILD_PARALLEL_LEVEL", Takes::One),
    knob("DOTNET_PROCESSOR_COUNT", Takes::Quota),
];

/// Replaces `{cpus}`.
pub fn fill(text: &str, threads: u32) -> String {
    text.replace("{cpus}", &threads.to_string())
}

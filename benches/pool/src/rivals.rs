//! Those who do the same: rayon, OpenMP, oneTBB, and the pool itself, behind one face.

use std::ops::Range;

use amdahl_pool::Pool;

/// A library that forks, joins and loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    Pool,
    Rayon,
    OpenMp,
    Tbb,
    /// Nobody: the calling thread does it all, and nothing but the work. What no library can do with less CPU time.
    Alone,
}

impl Rival {
    /// All but the pool; those that are not installed with how to get them.
    pub const OTHERS: [(Rival, Option<&str>); 3] = [
        (Rival::Rayon, None),
        (
            Rival::OpenMp,
            if cfg!(has_openmp) {
                None
            } else {
                Some("no C++ compiler with OpenMP: apt install g++")
            },
        ),
        (
            Rival::Tbb,
            if cfg!(has_tbb) {
                None
            } else {
                Some("no oneTBB: apt install libtbb-dev")
            },
        ),
    ];

    pub fn name(self) -> &'static str {
        match self {
            Rival::Pool => "pool",
            Rival::Rayon => "rayon",
            Rival::OpenMp => "OpenMP (libgomp)",
            Rival::Tbb => "oneTBB",
            Rival::Alone => "one thread",
        }
    }

    pub fn fib(self, n: u64) -> u64 {
        match self {
            Rival::Pool => Pool::global().run(|| fib_pool(n)),
            Rival::Rayon => fib_rayon(n),
            Rival::Alone => fib_alone(n),
            #[cfg(has_openmp)]
            // SAFETY: takes and gives integers.
            Rival::OpenMp => unsafe { c::openmp_fib(n) },
            #[cfg(has_tbb)]
            // SAFETY: as above.
            Rival::Tbb => unsafe { c::tbb_fib(n) },
            #[allow(unreachable_patterns)]
            _ => unreachable!("not installed"),
        }
    }

    pub fn sort(self, data: &mut [u64]) {
        match self {
            Rival::Pool => Pool::global().run(|| {
                sort(data, &|a, b| {
                    amdahl_pool::join(a, b);
                })
            }),
            Rival::Rayon => sort(data, &|a, b| {
                rayon::join(a, b);
            }),
            Rival::Alone => sort(data, &|a, b| {
                a();
                b();
            }),
            #[cfg(has_openmp)]
            // SAFETY: the slice's own pointer and length.
            Rival::OpenMp => unsafe { c::openmp_sort(data.as_mut_ptr(), data.len()) },
            #[cfg(has_tbb)]
            // SAFETY: as above.
            Rival::Tbb => unsafe { c::tbb_sort(data.as_mut_ptr(), data.len()) },
            #[allow(unreachable_patterns)]
            _ => unreachable!("not installed"),
        }
    }

    /// Those who have a sort of their own, or why it is not there.
    pub fn with_best_sort() -> [(Rival, Option<&'static str>); 3] {
        Self::OTHERS.map(|(rival, why)| match rival {
            Rival::OpenMp if why.is_none() && !cfg!(has_parallel_mode) => {
                (rival, Some("libstdc++ has no parallel mode here"))
            }
            _ => (rival, why),
        })
    }

    /// What [`best_sort`](Self::best_sort) is called.
    pub fn name_of_best_sort(self) -> &'static str {
        match self {
            Rival::Pool => "sort_best with the pool's join",
            Rival::Rayon => "rayon's par_sort_unstable",
            Rival::OpenMp => "libstdc++'s __gnu_parallel::sort",
            Rival::Tbb => "oneTBB's parallel_sort",
            Rival::Alone => "std's sort_unstable",
        }
    }

    /// As each sorts best: the libraries' own sorts, and the pool, which has none, by one for which it forks.
    pub fn best_sort(self, data: &mut [u64]) {
        match self {
            Rival::Pool => Pool::global().run(|| sort_best(data)),
            Rival::Rayon => {
                use rayon::slice::ParallelSliceMut;
                data.par_sort_unstable();
            }
            Rival::Alone => data.sort_unstable(),
            #[cfg(has_parallel_mode)]
            // SAFETY: the slice's own pointer and length.
            Rival::OpenMp => unsafe { c::openmp_best_sort(data.as_mut_ptr(), data.len()) },
            #[cfg(has_tbb)]
            // SAFETY: as above.
            Rival::Tbb => unsafe { c::tbb_best_sort(data.as_mut_ptr(), data.len()) },
            #[allow(unreachable_patterns)]
            _ => unreachable!("not installed"),
        }
    }

    /// Calls `work` for parts that together are `0..len`, `grain` at least.
    pub fn each(self, len: usize, grain: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
        match self {
            Rival::Pool => Pool::global().par_range(0..len, grain, work),
            Rival::Alone => work(0..len),
            Rival::Rayon => {
                use rayon::prelude::*;
                (0..len.div_ceil(grain))
                    .into_par_iter()
                    .for_each(|i| work(i * grain..len.min((i + 1) * grain)));
            }
            #[cfg(has_openmp)]
            // SAFETY: `piece` gets back what is passed here, which outlives the call.
            Rival::OpenMp => unsafe {
                c::openmp_loop(len, grain, c::piece, (&raw const work).cast())
            },
            #[cfg(has_tbb)]
            // SAFETY: as above.
            Rival::Tbb => unsafe { c::tbb_loop(len, grain, c::piece, (&raw const work).cast()) },
            #[allow(unreachable_patterns)]
            _ => unreachable!("not installed"),
        }
    }
}

fn fib_pool(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (a, b) = amdahl_pool::join(|| fib_pool(n - 1), || fib_pool(n - 2));
    a + b
}

fn fib_alone(n: u64) -> u64 {
    match n {
        0 | 1 => n,
        _ => fib_alone(n - 1) + fib_alone(n - 2),
    }
}

fn fib_rayon(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (a, b) = rayon::join(|| fib_rayon(n - 1), || fib_rayon(n - 2));
    a + b
}

/// Quicksort that divides without branches, and leaves parts that are worth no fork, or do not divide, to std's sort.
fn sort_best(data: &mut [u64]) {
    const LEAF: usize = 16_384;
    if data.len() <= LEAF {
        return data.sort_unstable();
    }
    let pivot = pseudo_median(data);
    let mut less = 0;
    for at in 0..data.len() {
        let value = data[at];
        data.swap(at, less);
        less += usize::from(value < pivot);
    }
    if less < data.len() / 16 || less > data.len() / 16 * 15 {
        return data.sort_unstable();
    }
    let (low, high) = data.split_at_mut(less);
    amdahl_pool::join(|| sort_best(low), || sort_best(high));
}

/// The median of 31 values from all over.
fn pseudo_median(data: &[u64]) -> u64 {
    const SEEN: usize = 31;
    let mut seen = [0; SEEN];
    for (n, value) in seen.iter_mut().enumerate() {
        *value = data[data.len() / SEEN * n];
    }
    seen.sort_unstable();
    seen[SEEN / 2]
}

type Halves<'a> = dyn Fn(&mut (dyn FnMut() + Send), &mut (dyn FnMut() + Send)) + Sync + 'a;

/// Quicksort as in `rivals.cpp`.
fn sort(data: &mut [u64], both: &Halves<'_>) {
    if data.len() <= 4096 {
        data.sort_unstable();
        return;
    }
    let (a, b) = split(data);
    both(&mut || sort(a, both), &mut || sort(b, both));
}

fn split(data: &mut [u64]) -> (&mut [u64], &mut [u64]) {
    let (a, b, c) = (data[0], data[data.len() / 2], data[data.len() - 1]);
    let pivot = a.min(b).max(a.max(b).min(c));
    let (mut i, mut j) = (0, data.len() - 1);
    loop {
        while data[i] < pivot {
            i += 1;
        }
        while data[j] > pivot {
            j -= 1;
        }
        if i >= j {
            let at = if i == j { j + 1 } else { i };
            return data.split_at_mut(at.min(data.len() - 1));
        }
        data.swap(i, j);
        i += 1;
        j -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sorts_sort() {
        let mixed = |len: u64| (0..len).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7);
        let inputs: [Vec<u64>; 5] = [
            mixed(100_000).collect(),
            (0..100_000).rev().collect(),
            vec![7; 100_000],
            mixed(100_000).map(|n| n % 3).collect(),
            vec![],
        ];
        for input in inputs {
            let mut sorted = input.clone();
            sorted.sort_unstable();
            let others = Rival::with_best_sort().into_iter();
            let others = others.filter(|(_, why)| why.is_none());
            for rival in others.map(|(rival, _)| rival).chain([Rival::Pool]) {
                let mut data = input.clone();
                rival.best_sort(&mut data);
                assert!(data == sorted, "{}", rival.name_of_best_sort());
            }
        }
    }
}

#[allow(dead_code)] // Without the libraries.
mod c {
    use std::ffi::c_void;
    use std::ops::Range;

    pub type Piece = unsafe extern "C" fn(*const c_void, usize, usize);

    /// Calls the closure that `with` points to.
    pub unsafe extern "C" fn piece(with: *const c_void, begin: usize, end: usize) {
        // SAFETY: `Rival::each` passes a pointer to such a reference, and waits.
        let work = unsafe { &*with.cast::<&(dyn Fn(Range<usize>) + Sync)>() };
        work(begin..end);
    }

    unsafe extern "C" {
        pub fn openmp_fib(n: u64) -> u64;
        pub fn openmp_sort(data: *mut u64, len: usize);
        pub fn openmp_best_sort(data: *mut u64, len: usize);
        pub fn openmp_loop(len: usize, grain: usize, call: Piece, with: *const c_void);
        pub fn tbb_fib(n: u64) -> u64;
        pub fn tbb_sort(data: *mut u64, len: usize);
        pub fn tbb_best_sort(data: *mut u64, len: usize);
        pub fn tbb_loop(len: usize, grain: usize, call: Piece, with: *const c_void);
    }
}

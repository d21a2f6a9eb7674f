//! Times of loops, side by side.

use std::hint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_figures::{Figure, Target, Unit};

use crate::Effort;

/// Something that is done many times.
pub struct Contender<'a> {
    pub name: &'static str,
    /// Does it so many times, on the thread with this number.
    pub run: Box<dyn Fn(usize, u64) + Sync + 'a>,
}

impl<'a> Contender<'a> {
    pub fn new(name: &'static str, run: impl Fn(usize, u64) + Sync + 'a) -> Self {
        Contender {
            name,
            run: Box::new(run),
        }
    }
}

/// What a loop took, in ns for each time around, in each round.
pub struct Times {
    name: &'static str,
    rounds: Vec<f64>,
}

/// Runs all of `contenders` on `threads` threads, each on a CPU of its own, in several rounds of which each has them all.
pub fn race(effort: &Effort, threads: usize, contenders: &[Contender]) -> Vec<Times> {
    let (rounds, slice) = match effort.quick {
        true => (5, Duration::from_millis(2)),
        false => (21, Duration::from_millis(15)),
    };
    let counts: Vec<u64> = contenders
        .iter()
        .map(|contender| {
            let trial = 20_000;
            once(threads, contender, trial);
            let each = once(threads, contender, trial);
            (slice.as_nanos() as f64 / each.max(0.05)) as u64
        })
        .collect();
    let mut times: Vec<Times> = contenders
        .iter()
        .map(|contender| Times {
            name: contender.name,
            rounds: Vec::new(),
        })
        .collect();
    for round in 0..rounds {
        // Another one begins each round, so that none always follows the same.
        for at in 0..contenders.len() {
            let at = (at + round) % contenders.len();
            let each = once(threads, &contenders[at], counts[at]);
            times[at].rounds.push(each);
        }
    }
    times
}

/// Nanoseconds of wall time for each time around, of each thread.
fn once(threads: usize, contender: &Contender, times: u64) -> f64 {
    let waiting = AtomicUsize::new(threads);
    let begin_together = |number: usize| {
        pin(number);
        waiting.fetch_sub(1, Ordering::AcqRel);
        while waiting.load(Ordering::Acquire) != 0 {
            hint::spin_loop();
        }
        let begun = Instant::now();
        (contender.run)(number, times);
        begun.elapsed()
    };
    let longest = thread::scope(|scope| {
        let all: Vec<_> = (0..threads)
            .map(|number| scope.spawn(move || begin_together(number)))
            .collect();
        all.into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .max()
    });
    longest.expect("a thread").as_nanos() as f64 / times as f64
}

fn pin(number: usize) {
    let allowed = amdahl_topology::allowed().expect("the affinity of this thread");
    let cpus: Vec<u32> = allowed.iter().collect();
    let one = [cpus[number % cpus.len()]].into_iter().collect();
    amdahl_topology::set_allowed(0, &one).expect("an allowed CPU");
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn named<'a>(times: &'a [Times], name: &str) -> &'a Times {
    let mut all = times.iter();
    all.find(|times| times.name == name).expect("a contender")
}

/// The median time of `name` as a row.
pub fn time(times: &[Times], name: &str, label: &str) -> Figure {
    let rounds = &named(times, name).rounds;
    Figure {
        name: format!("spread: {name}, {label}"),
        value: Ok(median(rounds.iter().copied())),
        unit: Unit::Ns,
        target: Target::Stated,
        versus: format!("median of {} rounds", rounds.len()),
    }
}

/// Rows of the times of all contenders, alone and with each number of threads up to `threads`.
pub fn stated(
    what: &str,
    effort: &Effort,
    threads: usize,
    contenders: &[Contender],
) -> Vec<Figure> {
    eprintln!("spread: {what}");
    let mut figures = Vec::new();
    for threads in 1..=threads {
        let times = race(effort, threads, contenders);
        let row = |c: &Contender| time(&times, c.name, &label(threads));
        figures.extend(contenders.iter().map(row));
    }
    figures
}

/// The median of the rounds' ratios as a row.
pub fn ratio(times: &[Times], of: &str, to: &str, label: &str, target: Target) -> Figure {
    ratio_to_fastest(times, of, &[to], label, target)
}

/// The same to the fastest in each round of several ways to do what the first of them does.
pub fn ratio_to_fastest(
    times: &[Times],
    of: &str,
    to: &[&str],
    label: &str,
    target: Target,
) -> Figure {
    let over = &named(times, of).rounds;
    let fastest = |round: usize| {
        let ways = to.iter().map(|name| named(times, name).rounds[round]);
        ways.fold(f64::INFINITY, f64::min)
    };
    let ratios = over.iter().enumerate().map(|(at, ns)| ns / fastest(at));
    Figure {
        name: format!("spread: {of} / {}, {label}", to[0]),
        value: Ok(median(ratios)),
        unit: Unit::Ratio,
        target,
        versus: format!("interleaved, median of {} ratios", over.len()),
    }
}

/// How many threads, in words.
pub fn label(threads: usize) -> String {
    match threads {
        1 => "1 thread".to_owned(),
        n => format!("{n} threads"),
    }
}

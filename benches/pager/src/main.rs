//! Measures the pager beside the usual handler, and beside what cannot be beaten.

mod restore;

use std::ops::ControlFlow;
use std::process::ExitCode;

use amdahl_figures::{Figure, Target, Unit};
use amdahl_pager::measure::{Findings, Mode, Plan, Reserved, SharedHugePages, measure, median};
use clap::Parser;

#[derive(Parser)]
#[command(
    about = "Measures the pager beside the usual handler of userfaultfd",
    after_help = "\
Examples:
  amdahl-bench-pager                 all figures
  amdahl-bench-pager restore         only those of restores
  amdahl-bench-pager --rounds 9      with less noise"
)]
struct Args {
    /// Which figures; all without
    #[arg(value_enum)]
    groups: Vec<Group>,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Be a process of the figure of many restores, at the socket that is the standard input
    #[arg(long, hide = true)]
    vm: bool,
    #[command(flatten)]
    output: amdahl_figures::Output,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Group {
    /// Threads that touch memory, by each engine
    Engines,
    /// The same memory made of other pages
    Backings,
    /// Images that are restored
    Restore,
}

const FAULTERS: [usize; 6] = [1, 2, 4, 16, 64, 160];
const MOST: usize = 160;
/// The most memory that the rows of throughput touch.
const MOST_MIB: usize = 2560;

fn main() -> ExitCode {
    let args = Args::parse();
    if args.vm {
        return restore::vm();
    }
    let is_wanted = |group| args.groups.is_empty() || args.groups.contains(&group);
    let mut figures = Vec::new();
    if is_wanted(Group::Engines) {
        let findings = match measure(&plan(args.rounds), |_, _| ControlFlow::Continue(())) {
            Ok(findings) => findings,
            Err(error) => {
                eprintln!("amdahl-bench-pager: {error}");
                return ExitCode::FAILURE;
            }
        };
        figures.extend(self::figures(&findings));
        figures.extend(throughput(args.rounds));
    }
    if is_wanted(Group::Backings) {
        figures.extend(backings(args.rounds));
    }
    if is_wanted(Group::Restore) {
        figures.extend(restore::figures(args.rounds));
    }
    let all_ok = args.output.finish("pager", &figures);
    args.output.exit_code("amdahl-bench-pager", all_ok)
}

fn plan(rounds: usize) -> Plan {
    Plan {
        modes: vec![
            Mode::Plain,
            Mode::Reader,
            Mode::ReaderCopy,
            Mode::HandedOver,
            Mode::Sharded,
            Mode::Inline,
            Mode::Floor,
            Mode::CopyHuge,
        ],
        faulters: FAULTERS.to_vec(),
        sequential_bytes: 640 << 20,
        random_bytes: 64 << 20,
        rounds,
    }
}

fn figures(findings: &Findings) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut row = |name: String, value: Option<f64>, target, versus: &str| {
        let skipped = || {
            let why = findings.cells.iter().find_map(|cell| cell.skipped.clone());
            why.unwrap_or_else(|| "not measured".to_owned())
        };
        figures.push(Figure {
            name,
            value: value.ok_or_else(skipped),
            unit: Unit::Ratio,
            target,
            versus: versus.to_owned(),
        });
    };
    for faulters in FAULTERS {
        for (mode, target) in [
            (Mode::Inline, Target::AtLeast(10.0)),
            (Mode::Sharded, Target::AtLeast(10.0)),
            (Mode::Reader, Target::Stated),
            (Mode::ReaderCopy, Target::Stated),
            (Mode::HandedOver, Target::Stated),
        ] {
            row(
                format!("sequential, memory per CPU-second: {mode}, {faulters} threads"),
                findings.ratio(faulters, mode, Mode::Plain, |cell| &cell.mb_per_cpu_s),
                target,
                "one descriptor, one reader, 4 KiB copies; median of rounds",
            );
        }
        row(
            format!(
                "sequential, CPU time by memcpy and first touch of 2 MiB: inline, {faulters} threads"
            ),
            findings.ratio(faulters, Mode::CopyHuge, Mode::Inline, |cell| {
                &cell.mb_per_cpu_s
            }),
            Target::AtMost(1.3),
            "the touching thread copies 2 MiB into fresh huge pages; median of rounds",
        );
    }
    row(
        "random, fault p50 by the floor's: inline, 1 thread".to_owned(),
        findings.ratio(1, Mode::Inline, Mode::Floor, |cell| &cell.p50_ns),
        Target::AtMost(1.2),
        "a bare SIGBUS handler that copies 4 KiB; median of rounds",
    );
    for (mode, target) in [
        (Mode::Inline, Target::AtLeast(10.0)),
        (Mode::Sharded, Target::AtLeast(10.0)),
        (Mode::ReaderCopy, Target::AtLeast(10.0)),
        (Mode::HandedOver, Target::AtLeast(10.0)),
    ] {
        row(
            format!("random, fault p99 of plain by ours: {mode}, {MOST} threads"),
            findings.ratio(MOST, Mode::Plain, mode, |cell| &cell.p99_ns),
            target,
            "one descriptor, one reader, 4 KiB copies; median of rounds",
        );
    }
    figures
}

/// Reserved huge pages, and shared memory with and without huge pages, which the machine is made to give.
fn backings(rounds: usize) -> Vec<Figure> {
    const THREADS: usize = 2;
    let plan = Plan {
        modes: vec![
            Mode::Plain,
            Mode::HugeTlb,
            Mode::Shared,
            Mode::SharedHuge,
            Mode::CopyHuge,
        ],
        faulters: vec![THREADS],
        sequential_bytes: 640 << 20,
        random_bytes: 0,
        rounds,
    };
    let reserved = Reserved::new(plan.sequential_bytes);
    let given = SharedHugePages::new();
    let findings = measure(&plan, |_, _| ControlFlow::Continue(()));
    let figure = |(one, other, target, versus): (Mode, Mode, Target, &str)| {
        let value = findings.as_ref().map_err(ToString::to_string);
        let value = value.and_then(|findings| {
            let per_cpu = findings.ratio(THREADS, one, other, |cell| &cell.mb_per_cpu_s);
            per_cpu.ok_or_else(|| match (one, &reserved, &given) {
                (Mode::HugeTlb, Err(why), _) | (Mode::SharedHuge, _, Err(why)) => why.clone(),
                _ => "not measured".to_owned(),
            })
        });
        Figure {
            name: format!(
                "sequential, memory per CPU-second by {other}'s: {one}, {THREADS} threads"
            ),
            value,
            unit: Unit::Ratio,
            target,
            versus: versus.to_owned(),
        }
    };
    let plain = "one descriptor, one reader, 4 KiB copies; median of rounds";
    let floor = "first touch of 2 MiB pages and memcpy, without any pager; median of rounds";
    let pages = "the same shared memory in pages of 4 KiB; median of rounds";
    [
        (Mode::HugeTlb, Mode::Plain, Target::AtLeast(10.0), plain),
        (Mode::SharedHuge, Mode::Plain, Target::AtLeast(10.0), plain),
        (Mode::Shared, Mode::Plain, Target::Stated, plain),
        (Mode::SharedHuge, Mode::Shared, Target::AtLeast(1.0), pages),
        (Mode::HugeTlb, Mode::CopyHuge, Target::Stated, floor),
    ]
    .map(figure)
    .into()
}

/// Threads that begin and end together leave CPUs idle at both ends, as the kernel's balancing will have it: so more memory than above.
fn throughput(rounds: usize) -> Vec<Figure> {
    let modes = [
        (Mode::Inline, Target::AtLeast(0.95)),
        (Mode::Sharded, Target::AtLeast(0.95)),
        // What VMs get that hand their memory over.
        (Mode::ReaderCopy, Target::AtLeast(0.95)),
        // What the machine makes of as many threads without any pager.
        (Mode::CopyHuge, Target::Stated),
    ];
    let findings = restore::image_mib().and_then(|mib| {
        let plan = Plan {
            modes: modes.map(|(mode, _)| mode).to_vec(),
            faulters: FAULTERS.to_vec(),
            sequential_bytes: mib.min(MOST_MIB) << 20,
            random_bytes: 0,
            rounds,
        };
        measure(&plan, |_, _| ControlFlow::Continue(())).map_err(|error| error.to_string())
    });
    let value = |mode| {
        let findings = findings.as_ref().map_err(String::clone)?;
        let speed = |faulters: usize| median(&findings.cell(mode, faulters)?.mb_per_s);
        let best = FAULTERS.into_iter().filter_map(speed).reduce(f64::max);
        let most = speed(MOST).zip(best).map(|(most, best)| most / best);
        most.ok_or_else(|| "not measured".to_owned())
    };
    let figure = |(mode, target)| Figure {
        name: format!("sequential, throughput of {MOST} threads by the best number's: {mode}"),
        value: value(mode),
        unit: Unit::Ratio,
        target,
        versus: "the best of 1, 2, 4, 16, 64, 160 threads; medians of rounds".to_owned(),
    };
    modes.map(figure).into()
}

//! `amdahl pager bench`: threads touch memory that arrives on demand, in all modes.

mod restore;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use amdahl_pager::measure::{
    Cell, Findings, Mode, Plan, Reserved, SharedHugePages, measure, median,
};
use amdahl_pager::{BLOCK, Support};
use serde::Serialize;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::pager::plot;
use crate::screen;

use restore::{Many, Restores};

/// Below the options.
pub const EXAMPLES: &str = "\
Examples:
  amdahl pager bench
  amdahl pager bench --faulters 1,16 --modes plain,sharded,inline
  amdahl pager bench --rounds 5 --memory 2048 --json > bench.json
  amdahl pager bench --faulters 1,2,4,16,64,160 --plot bench.svg

Modes: plain (one descriptor, one reader, 4 KiB: the usual handler), reader, reader-copy (copies, as into VMs),
handed-over (a descriptor that came through a socket, as serve gets it), sharded, inline, inline-copy, hugetlb (needs
--hugetlb, or vm.nr_hugepages), shared (memory of a memfd), shared-huge (needs --shared-huge, or shmem_enabled), and what
cannot be beaten: floor (a bare SIGBUS handler, 4 KiB copies), first-touch (4 KiB, no content), copy-huge (first touch of
2 MiB and memcpy), memcpy.

MB/s and MB per CPU-second are of sequential touch. Fault p50 and p99 are of random touch, and of faults alone: of
touches of pages that were not there, of which the kernel is asked before each. A fault of hugetlb brings 2 MiB, so
there are few of them. Each round runs all modes; figures are medians of the rounds, ratios medians of the rounds'
ratios.

Beside the modes: restores of an image, by the time until a guest's first answer (whole: all is read first; recorded: its
working set is; clean: into pages that all VMs share), and the memory that the pages of one image take in many processes.
For machines with more CPUs than this one: amdahl sim run paging.";

/// `amdahl pager bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of threads that touch memory
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 2, 4, 16, 64, 160], value_parser = clap::value_parser!(u32).range(1..=4096))]
    faulters: Vec<u32>,
    /// What to measure beside each other [default: all that this machine allows]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    modes: Vec<Mode>,
    /// Mebibytes that are touched sequentially; at least 2 for each thread. Twice as much is used
    #[arg(long, value_name = "MIB", default_value_t = 640, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    memory: u32,
    /// Mebibytes that are touched at random
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    random_memory: u32,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Mebibytes of an image that is restored, by several ways: how long until a guest that needs a tenth of it gives its first
    /// answer; 0: none [default: 256, or 0 with --modes]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    restore: Option<u32>,
    /// Processes that read one image of 64 MiB: what its pages take; 0: none [default: 50, or 0 with --modes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    vms: Option<u32>,
    /// Be one of these
    #[arg(long, hide = true)]
    be_vm: bool,
    /// Have the machine reserve the huge pages that mode hugetlb needs, as long as this runs; needs root
    #[arg(long)]
    hugetlb: bool,
    /// Have the system give shared memory the huge pages that mode shared-huge needs, as long as this runs; needs root
    #[arg(long)]
    shared_huge: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw the curves into this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
}

/// Measures and shows.
pub fn main(args: &Args) -> Result<u8, Failure> {
    if args.be_vm {
        return restore::vm()
            .map(|()| 1)
            .map_err(|error| Failure::result(error.to_string()));
    }
    let support = Support::probe();
    if support.way.is_none() {
        return Err(Failure::machine(support.missing().join("; ")));
    }
    let modes = match args.modes.is_empty() {
        true => Mode::ALL.to_vec(),
        false => args.modes.clone(),
    };
    let mib = |mib: u32| mib as usize * (BLOCK / 2);
    let plan = Plan {
        modes,
        faulters: args.faulters.iter().map(|n| *n as usize).collect(),
        sequential_bytes: mib(args.memory),
        random_bytes: mib(args.random_memory),
        rounds: args.rounds as usize,
    };
    let _reserved = match args.hugetlb {
        true => Some(Reserved::new(plan.content_bytes()).map_err(Failure::machine)?),
        false => None,
    };
    let _shared = match args.shared_huge {
        true => Some(SharedHugePages::new().map_err(Failure::machine)?),
        false => None,
    };
    // Before minutes are spent on what cannot be kept.
    let picture = match &args.plot {
        Some(path) => {
            let file = File::create(path).map_err(|error| not_written(path, &error))?;
            Some((path, file))
        }
        None => None,
    };
    let interrupt = Interrupt::catch();
    let mut meter = Meter::new(args.quiet);
    let findings = measure(&plan, |done, of| {
        meter.tell(done, of);
        match interrupt.asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    meter.end();
    let mut findings = findings.map_err(|error| Failure::machine(error.to_string()))?;
    let more = More::measure(args, &mut meter, &interrupt);
    findings.is_complete &= !interrupt.asked();
    meter.end();
    let text = match args.json {
        true => json(&plan, &findings, &more)?,
        false => table(&plan, &findings, &more, &support),
    };
    screen::print(&text)?;
    if let Some((path, mut file)) = picture {
        let drawn = plot::svg(&findings, &plan.faulters).map_err(Failure::machine)?;
        file.write_all(drawn.as_bytes())
            .map_err(|error| not_written(path, &error))?;
    }
    Ok(if findings.is_complete { 0 } else { 5 })
}

/// What is measured beside the modes, if it was wanted; or why it could not be.
#[derive(Default)]
struct More {
    restores: Option<Result<Restores, String>>,
    many: Option<Result<Many, String>>,
}

/// Of what many processes read.
const SHARED_BYTES: usize = 64 << 20;

impl More {
    fn measure(args: &Args, meter: &mut Meter, interrupt: &Interrupt) -> More {
        let by_default = |count| if args.modes.is_empty() { count } else { 0 };
        let mut more = More::default();
        let image = args.restore.unwrap_or(by_default(256)) as usize;
        if image > 0 && !interrupt.asked() {
            let (mut done, of) = (0, args.rounds as usize * restore::WAYS.len());
            more.restores = Some(restore::measure(image << 20, args.rounds as usize, || {
                meter.tell(done, of);
                done += 1;
                match interrupt.asked() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            }));
        }
        let vms = args.vms.unwrap_or(by_default(50));
        if vms > 0 && !interrupt.asked() {
            let many = restore::many(vms, SHARED_BYTES);
            more.many = Some(many.map_err(|error| error.to_string()));
        }
        more
    }

    fn text(&self) -> String {
        let restores = self.restores.as_ref().map(|restores| match restores {
            Ok(restores) => restores.text(),
            Err(why) => format!("SKIPPED restores: {why}\n"),
        });
        let many = self.many.as_ref().map(|many| match many {
            Ok(many) => many.text(),
            Err(why) => format!("SKIPPED many processes: {why}\n"),
        });
        restores.unwrap_or_default() + &many.unwrap_or_default()
    }
}

fn not_written(path: &Path, error: &std::io::Error) -> Failure {
    Failure::result(format!("{} cannot be written: {error}", path.display()))
}

/// The result as others read it.
#[derive(Serialize)]
struct Document<'a> {
    format: &'static str,
    is_complete: bool,
    rounds: usize,
    sequential_bytes: usize,
    random_bytes: usize,
    cells: Vec<Row<'a>>,
    restores: Option<&'a Restores>,
    many: Option<&'a Many>,
    skipped: Vec<&'a str>,
}

#[derive(Serialize)]
struct Row<'a> {
    mode: &'static str,
    meaning: &'static str,
    faulters: usize,
    mb_per_s: Option<f64>,
    mb_per_cpu_s: Option<f64>,
    mb_per_cpu_s_by_plain: Option<f64>,
    fault_ns_p50: Option<f64>,
    fault_ns_p99: Option<f64>,
    rounds: Rounds<'a>,
    skipped: Option<&'a str>,
}

#[derive(Serialize)]
struct Rounds<'a> {
    mb_per_s: &'a [f64],
    mb_per_cpu_s: &'a [f64],
    fault_ns_p50: &'a [f64],
    fault_ns_p99: &'a [f64],
}

fn by_plain(findings: &Findings, cell: &Cell) -> Option<f64> {
    findings.ratio(cell.faulters, cell.mode, Mode::Plain, |cell| {
        &cell.mb_per_cpu_s
    })
}

fn json(plan: &Plan, findings: &Findings, more: &More) -> Result<String, Failure> {
    let (restores, many) = (more.restores.as_ref(), more.many.as_ref());
    let failed = [
        restores.and_then(|restores| restores.as_ref().err()),
        many.and_then(|many| many.as_ref().err()),
    ];
    let document = Document {
        format: "amdahl.pager.bench/1",
        is_complete: findings.is_complete,
        rounds: plan.rounds,
        sequential_bytes: plan.sequential_bytes,
        random_bytes: plan.random_bytes,
        cells: findings
            .cells
            .iter()
            .map(|cell| Row {
                mode: cell.mode.name(),
                meaning: cell.mode.meaning(),
                faulters: cell.faulters,
                mb_per_s: median(&cell.mb_per_s),
                mb_per_cpu_s: median(&cell.mb_per_cpu_s),
                mb_per_cpu_s_by_plain: by_plain(findings, cell),
                fault_ns_p50: median(&cell.p50_ns),
                fault_ns_p99: median(&cell.p99_ns),
                rounds: Rounds {
                    mb_per_s: &cell.mb_per_s,
                    mb_per_cpu_s: &cell.mb_per_cpu_s,
                    fault_ns_p50: &cell.p50_ns,
                    fault_ns_p99: &cell.p99_ns,
                },
                skipped: cell.skipped.as_deref(),
            })
            .collect(),
        restores: restores.and_then(|restores| restores.as_ref().ok()),
        many: many.and_then(|many| many.as_ref().ok()),
        skipped: failed.into_iter().flatten().map(String::as_str).collect(),
    };
    serde_json::to_string_pretty(&document)
        .map(|text| text + "\n")
        .map_err(|error| Failure::result(error.to_string()))
}

fn table(plan: &Plan, findings: &Findings, more: &More, support: &Support) -> String {
    let mut text = String::new();
    // A mode may be skipped with one number of threads and not with another, or for another reason.
    let mut skipped: Vec<(Mode, &str, Vec<String>)> = Vec::new();
    for &faulters in &plan.faulters {
        let threads = if faulters == 1 { "thread" } else { "threads" };
        let _ = writeln!(
            text,
            "{faulters} faulting {threads}\n  {:<12} {:>9} {:>12} {:>9} {:>10} {:>10}",
            "mode", "MB/s", "MB/CPU-s", "by plain", "fault p50", "fault p99"
        );
        for cell in findings
            .cells
            .iter()
            .filter(|cell| cell.faulters == faulters)
        {
            if let Some(why) = &cell.skipped {
                let same = skipped
                    .iter_mut()
                    .find(|(mode, other, _)| *mode == cell.mode && other == why);
                match same {
                    Some((_, _, with)) => with.push(faulters.to_string()),
                    None => skipped.push((cell.mode, why, vec![faulters.to_string()])),
                }
                continue;
            }
            let figure =
                |values: &[f64]| median(values).map_or("-".to_owned(), |mb| format!("{mb:.0}"));
            let ratio =
                by_plain(findings, cell).map_or("-".to_owned(), |ratio| format!("{ratio:.2}x"));
            let _ = writeln!(
                text,
                "  {:<12} {:>9} {:>12} {:>9} {:>10} {:>10}",
                cell.mode.name(),
                figure(&cell.mb_per_s),
                figure(&cell.mb_per_cpu_s),
                ratio,
                duration(median(&cell.p50_ns)),
                duration(median(&cell.p99_ns)),
            );
        }
        text.push('\n');
    }
    text.push_str(&more.text());
    for (mode, why, with) in skipped {
        let _ = match with.len() == plan.faulters.len() {
            true => writeln!(text, "SKIPPED {mode}: {why}"),
            false => writeln!(
                text,
                "SKIPPED {mode} with {} threads: {why}",
                with.join(", ")
            ),
        };
    }
    for missing in support.missing() {
        let _ = writeln!(text, "{missing}");
    }
    if !findings.is_complete {
        text.push_str("Interrupted: medians of the rounds until then.\n");
    }
    text
}

fn duration(ns: Option<f64>) -> String {
    match ns {
        None => "-".to_owned(),
        Some(ns) if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        Some(ns) if ns >= 1e3 => format!("{:.2} us", ns / 1e3),
        Some(ns) => format!("{ns:.0} ns"),
    }
}

/// How far it has come, on a terminal.
struct Meter {
    is_shown: bool,
    begun: Instant,
    next: Duration,
}

impl Meter {
    fn new(quiet: bool) -> Meter {
        Meter {
            is_shown: !quiet && std::io::stderr().is_terminal(),
            begun: Instant::now(),
            next: Duration::ZERO,
        }
    }

    fn tell(&mut self, done: usize, of: usize) {
        let now = self.begun.elapsed();
        if self.is_shown && now >= self.next {
            self.next = now + Duration::from_millis(200);
            let mut err = anstream::stderr().lock();
            let seconds = now.as_secs();
            let _ = write!(err, "\r\x1b[Krun {} of {of}, {seconds} s", done + 1);
            let _ = err.flush();
        }
    }

    fn end(&self) {
        if self.is_shown {
            let _ = write!(anstream::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> (Plan, Findings) {
        let plan = Plan {
            modes: vec![Mode::Plain, Mode::Inline, Mode::HugeTlb],
            faulters: vec![16],
            sequential_bytes: 1 << 30,
            random_bytes: 1 << 20,
            rounds: 1,
        };
        let cell = |mode, mb: f64| Cell {
            mode,
            faulters: 16,
            mb_per_s: vec![mb],
            mb_per_cpu_s: vec![mb / 2.0],
            p50_ns: vec![1e6 / mb],
            p99_ns: vec![1e9 / mb],
            skipped: None,
        };
        let mut none = cell(Mode::HugeTlb, 1.0);
        none.skipped = Some("no huge pages".to_owned());
        let cells = vec![cell(Mode::Plain, 400.0), cell(Mode::Inline, 6000.0), none];
        let findings = Findings {
            cells,
            is_complete: true,
        };
        (plan, findings)
    }

    #[test]
    fn the_table_has_ratios_and_what_was_skipped() {
        let (plan, findings) = findings();
        let text = table(&plan, &findings, &More::default(), &Support::probe());
        let inline = text.lines().find(|line| line.contains("inline")).unwrap();
        let words: Vec<&str> = inline.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "inline", "6000", "3000", "15.00x", "167", "ns", "166.67", "us"
            ]
        );
        assert!(text.contains("SKIPPED hugetlb: no huge pages"), "{text}");
    }

    #[test]
    fn each_row_that_was_skipped_has_its_own_reason() {
        let (mut plan, mut findings) = findings();
        plan.faulters = vec![16, 64, 160];
        for (faulters, why) in [(64, "no huge pages"), (160, "no memory")] {
            let mut cell = findings.cells[2].clone();
            (cell.faulters, cell.skipped) = (faulters, Some(why.to_owned()));
            findings.cells.push(cell);
        }
        let text = table(&plan, &findings, &More::default(), &Support::probe());
        assert!(
            text.contains("SKIPPED hugetlb with 16, 64 threads: no huge pages"),
            "{text}"
        );
        assert!(
            text.contains("SKIPPED hugetlb with 160 threads: no memory"),
            "{text}"
        );
    }

    #[test]
    fn the_document_has_all_rounds() {
        let (plan, findings) = findings();
        let text = json(&plan, &findings, &More::default()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["format"], "amdahl.pager.bench/1");
        assert_eq!(value["cells"][1]["mb_per_cpu_s_by_plain"], 15.0);
        assert_eq!(value["cells"][1]["rounds"]["mb_per_s"][0], 6000.0);
        assert_eq!(value["cells"][2]["skipped"], "no huge pages");
    }
}

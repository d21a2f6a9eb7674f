//! Measures the pool beside its competitors.

mod crowded;
mod fork_join;
mod idle;
mod memory;
mod rivals;
mod rounds;
mod unplug;
mod wake;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(
    about = "Measures the pool beside rayon, tokio, oneTBB and OpenMP",
    after_help = "\
Examples:
  amdahl-bench-pool                 all figures
  amdahl-bench-pool fib loop        only those whose names contain one of the words"
)]
struct Args {
    /// Parts of names of figures; all without
    words: Vec<String>,
    #[command(flatten)]
    output: amdahl_figures::Output,
    /// Measures in the crowd that the parent has made
    #[arg(long, hide = true)]
    crowded: bool,
    /// Is the crowd
    #[arg(long, hide = true)]
    busy: bool,
    /// Measures without the right to raise priorities, which the parent has taken away, with so many bytes
    #[arg(long, hide = true, value_name = "BYTES")]
    without_nice: Option<usize>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.busy {
        loop {
            std::hint::spin_loop();
        }
    }
    if args.crowded {
        crowded::measure();
        return ExitCode::SUCCESS;
    }
    if let Some(bytes) = args.without_nice {
        return memory::measure_without_nice(bytes);
    }
    let wanted = |name: &str| amdahl_figures::is_wanted(&args.words, name);
    let mut figures = idle::figures(&wanted);
    figures.extend(fork_join::figures(&wanted));
    figures.extend(wake::figures(&wanted));
    figures.extend(crowded::figures(&wanted));
    figures.extend(memory::figures(&wanted));
    figures.extend(unplug::figures(&wanted));
    let all_ok = args.output.finish("pool", &figures);
    args.output.exit_code("amdahl-bench-pool", all_ok)
}

//! Measures the pool beside its competitors.

mod crowded;
mod fork_join;
mod idle;
mod memory;
mod rivals;
mod rounds;
mod wake;

use std::path::PathBuf;
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
    /// Folder for pool.json [default: bench/ beside the folder of this program]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Exit with 1 unless all figures are ok
    #[arg(long)]
    strict: bool,
    /// Measures in the crowd that the parent has made
    #[arg(long, hide = true)]
    crowded: bool,
    /// Is the crowd
    #[arg(long, hide = true)]
    busy: bool,
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
    let wanted = |name: &str| {
        args.words.is_empty() || args.words.iter().any(|word| name.contains(word.as_str()))
    };
    let mut figures = idle::figures(&wanted);
    figures.extend(fork_join::figures(&wanted));
    figures.extend(wake::figures(&wanted));
    figures.extend(crowded::figures(&wanted));
    figures.extend(memory::figures(&wanted));
    match amdahl_figures::finish("pool", &figures, args.out.as_deref()) {
        Ok(all_ok) => ExitCode::from(u8::from(args.strict && !all_ok)),
        Err(why) => {
            eprintln!("amdahl-bench-pool: {why}");
            ExitCode::FAILURE
        }
    }
}

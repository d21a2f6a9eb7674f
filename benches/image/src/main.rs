//! Measures memory images beside what people use today.

mod memory;
mod pages;
mod whole;

use std::path::Path;
use std::process::ExitCode;

use amdahl_figures::{Figure, Target, Unit};
use clap::Parser;

#[derive(Parser)]
#[command(
    about = "Measures memory images beside zstd, lz4, qcow2 and raw files, on the memory of real programs",
    after_help = "\
Examples:
  amdahl-bench-image                  all figures
  amdahl-bench-image 'random page'    only those whose names contain one of the words"
)]
struct Args {
    /// Parts of names of figures; all without
    words: Vec<String>,
    #[command(flatten)]
    output: amdahl_figures::Output,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let wanted = |name: &str| amdahl_figures::is_wanted(&args.words, name);
    // In memory, so that no disk is measured.
    let shm = Path::new("/dev/shm");
    let folder = match shm.is_dir() {
        true => tempfile::tempdir_in(shm),
        false => tempfile::tempdir(),
    };
    let folder = match folder {
        Ok(folder) => folder,
        Err(error) => {
            eprintln!("amdahl-bench-image: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut figures = Vec::new();
    for program in memory::PROGRAMS {
        match memory::dump(program, folder.path()) {
            Ok(memory) => {
                figures.extend(whole::figures(program, &memory, &wanted));
                figures.extend(pages::figures(program, &memory, &wanted));
            }
            Err(why) => figures.push(Figure {
                name: format!("memory: {program}"),
                value: Err(why),
                unit: Unit::Ratio,
                target: Target::Stated,
                versus: String::new(),
            }),
        }
    }
    let done = args.output.finish("image", &figures);
    for figure in &figures {
        eprintln!("{}: {}", figure.name, figure.versus);
    }
    args.output.exit_code("amdahl-bench-image", done)
}

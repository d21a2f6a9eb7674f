//! The command line of `amdahl run` as typed.

use clap::Args;

use crate::run::remedy;

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  amdahl run -- ./lu.C.x                    # what applies is loaded; one line says what
  amdahl run -- ./train.sh                  # and what the script starts
  amdahl run --dry-run -- python train.py   # what would be done, and why
  amdahl run --explain -- ./solver in.dat   # all of it on standard error, then the program
  amdahl run --with openmp --stats -- ./lu.C.x
  amdahl run --without threads -- make -j8
  amdahl run --dry-run --json -- ./solver | jq '.remedies[] | {remedy, outcome}'

The program takes the place of amdahl: its process id, exit status and signals are its own.
amdahl itself ends with 125 when it refuses, 126 when the program cannot be executed, 127 when there
is none. What is set in the environment already is never changed; lists of libraries are added to.";

/// `amdahl run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Only these remedies, even where it is not seen that the program needs them
    #[arg(long, value_name = "REMEDY", value_delimiter = ',', value_parser = remedy_name)]
    pub with: Vec<String>,
    /// All but these remedies
    #[arg(long, value_name = "REMEDY", value_delimiter = ',', value_parser = remedy_name)]
    pub without: Vec<String>,
    /// Print what would be done, and run nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print it as JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
    /// Say on standard error what each remedy did and why
    #[arg(long, conflicts_with = "dry_run")]
    pub explain: bool,
    /// Have the OpenMP runtime say on standard error at the end what it counted
    #[arg(long)]
    pub stats: bool,
    /// Nothing on standard error but failures
    #[arg(long, short, conflicts_with = "explain")]
    pub quiet: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}

fn remedy_name(text: &str) -> Result<String, String> {
    if remedy::ALL.iter().any(|remedy| remedy.name() == text) {
        return Ok(text.to_owned());
    }
    let all: Vec<String> = remedy::ALL
        .iter()
        .map(|remedy| format!("{} ({})", remedy.name(), remedy.about()))
        .collect();
    Err(format!("there are: {}", all.join("; ")))
}

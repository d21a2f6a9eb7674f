//! What is said of the threads of `amdahl-pool`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::{result, rows, sum};
use crate::tool::{Place, alone, bpf, skipped};
use crate::workload::in_some_try;

/// A program whose threads are in each state of a pool in turn; `None` where it was not built, or waits cannot be recorded.
fn states() -> Option<PathBuf> {
    bpf().map_err(skipped).ok()?;
    let folder = Path::new(env!("CARGO_BIN_EXE_amdahl")).with_file_name("examples");
    let program = folder.join("pool-states");
    if program.exists() {
        return Some(program);
    }
    skipped("the example pool-states is not built: cargo build -p amdahl --examples");
    None
}

/// All of them were futexes without a name, and taken for locks.
#[test]
fn waits_in_our_pool_have_names() {
    let _alone = alone();
    let Some(program) = states() else {
        return;
    };
    let place = Place::new();
    in_some_try(|| {
        let words = ["locks", "--json", "--quiet", "--"].map(OsStr::new);
        let command = [&words[..], &[program.as_os_str(), OsStr::new("1")]].concat();
        let found = result(&place.amdahl(command).ends_with(0));
        for (what, function) in [
            ("amdahl-pool message", "pool_states::wants_a_message"),
            ("amdahl-pool join", "pool_states::wants_a_result"),
            ("amdahl-pool join", "pool_states::wants_all"),
            ("amdahl-pool barrier", "pool_states::wants_a_range"),
        ] {
            if sum(&found, what, function).0 == 0 {
                return Err(format!("no {what} in {function}: {}", rows(&found)));
            }
        }
        let is_unnamed = |what: &str| what.starts_with("futex");
        match found.rows.iter().find(|row| is_unnamed(&row.what)) {
            Some(row) => Err(format!(
                "{} in {}: {}",
                row.what,
                row.site.symbol,
                rows(&found)
            )),
            None => Ok(()),
        }
    });
}

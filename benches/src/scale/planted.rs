//! Planted programs, whose causes are known: nothing of them may stay unexplained.

use serde::Serialize;

use super::sweep::{Options, Sweep};
use crate::stage::Stage;

/// One of each kind: nothing to blame, a lock, processes, a barrier, spinning, goroutines.
const CASES: [&str; 6] = [
    "c-perfect",
    "c-mutex",
    "c-pipes",
    "cpp-std_barrier",
    "rust-flag_spin",
    "go-channel",
];

/// What came of one.
#[derive(Serialize)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What the tool says of it.
    pub sweep: Sweep,
}

/// Builds them and runs the tool on each.
pub fn measure(stage: &Stage, options: &Options) -> Result<Vec<Case>, String> {
    if stage.cpus < 2 {
        return Err("the planted programs want two CPUs".to_owned());
    }
    let script = stage.root.join("planted/build.sh");
    let mut build = stage.command(&script.to_string_lossy());
    build.arg(&stage.planted);
    stage
        .run(&mut build)
        .map_err(|error| format!("cannot build the planted programs: {error}"))?;
    let run = |name: &'static str| {
        let binary = stage.planted.join(name).to_string_lossy().into_owned();
        // Its own account goes to standard error, which nobody reads when all is well.
        let sweep = Sweep::run(stage, options, &[binary, "{cpus}".to_owned()]);
        let sweep = sweep.map_err(|error| format!("{name}: {error}"))?;
        eprintln!("planted: {name}");
        Ok(Case { name, sweep })
    };
    CASES.into_iter().map(run).collect()
}

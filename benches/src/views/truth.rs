//! Whether the table of locks tells what planted programs measured themselves.

use amdahl_report::locks::{self, schema::LockRow};
use serde::{Deserialize, Serialize};

use crate::stage::Stage;
use amdahl_figures::{Figure, Target, Unit};

/// A family of planted waits: its name, what the table calls it, and where it is waited for.
pub type Family = (&'static str, &'static str, &'static str);

/// One in user space with and one without barging writers, one in the kernel.
pub const FAMILIES: [Family; 3] = [
    ("mutex", "pthread mutex", "want_mutex"),
    ("rwlock-write", "pthread rwlock (write)", "want_writing"),
    ("inode", "rwsem (write)", "want_inode"),
];
const DIFFERENCE: Target = Target::AtMost(0.05);

/// What the program says, and what the table says.
#[derive(Serialize)]
pub struct Agreement {
    family: &'static str,
    program: Truth,
    table: Truth,
}

/// Waits.
#[derive(Deserialize, Serialize)]
struct Truth {
    times: u64,
    seconds: f64,
}

fn first_cpu() -> Result<String, String> {
    let cpus = amdahl_topology::allowed().map_err(|error| error.to_string())?;
    let first = cpus.first().ok_or("no CPU is allowed")?;
    Ok(first.to_string())
}

/// Runs a family under `amdahl locks`.
pub fn measure(stage: &Stage, family: Family) -> Result<Agreement, String> {
    let (name, what, function) = family;
    let program = stage.scratch().join("families");
    let (source, out) = (
        stage.root.join("planted/locks/families.c"),
        stage.scratch().join("truth.json"),
    );
    let failed = |error: &dyn std::fmt::Display| format!("{name}: {error}");
    if !program.exists() {
        let mut gcc = stage.command("gcc");
        gcc.args(["-std=gnu11", "-O2", "-g", "-pthread", "-o"])
            .args([&program, &source]);
        stage.run(&mut gcc).map_err(|error| failed(&error))?;
    }
    // The program adds a line to it.
    let _ = std::fs::remove_file(&out);
    let result = stage.scratch().join("locks");
    let mut tool = stage.command(&stage.tool.to_string_lossy());
    tool.args(["locks", "--probe", "bpf", "--quiet", "--output"])
        .arg(&result)
        .arg("--");
    if name == "inode" {
        // On one CPU nobody spins while the owner runs, of which the kernel does not tell.
        tool.args(["taskset", "-c", &first_cpu()?]);
    }
    tool.arg(&program)
        .args([name, "200"])
        .env("PLANTED_OUT", &out);
    stage.run(&mut tool).map_err(|error| failed(&error))?;
    let told = std::fs::read(&out).map_err(|error| failed(&error))?;
    let found = result.join("result.json");
    let bytes = std::fs::read(&found).map_err(|error| failed(&error))?;
    let found = locks::parse(&bytes, found).map_err(|error| failed(&error))?;
    std::fs::remove_dir_all(&result).map_err(|error| failed(&error))?;
    let is_it = |row: &&LockRow| {
        row.what == what
            && (row.site.symbol.contains(function) || row.stack.iter().any(|f| f == function))
    };
    let rows: Vec<&LockRow> = found.rows.iter().filter(is_it).collect();
    Ok(Agreement {
        family: name,
        program: serde_json::from_slice(&told).map_err(|error| failed(&error))?,
        table: Truth {
            times: rows.iter().map(|row| row.times).sum(),
            seconds: rows.iter().map(|row| row.total_s).sum(),
        },
    })
}

/// How far they are apart.
pub fn figure((name, ..): Family, measured: &Result<Agreement, String>) -> Figure {
    let said = measured.as_ref().map_or_else(
        |_| String::new(),
        |Agreement { program, table, .. }| {
            format!(
                "; {} waits of {} that the program counted, {:.4} s of {:.4} s",
                table.times, program.times, table.seconds, program.seconds
            )
        },
    );
    Figure {
        name: format!("waits told / waits made: {name}"),
        value: measured
            .as_ref()
            .map(|found| (found.table.seconds / found.program.seconds - 1.0).abs())
            .map_err(Clone::clone),
        unit: Unit::Difference,
        target: DIFFERENCE,
        versus: format!("total wait in the table against the program's own clock{said}"),
    }
}

//! What the live view takes, and the bounds of a long recording.

use std::path::Path;

use serde::Serialize;

use crate::process::Background;
use crate::programs::hackbench_of;
use crate::stage::Stage;
use amdahl_figures::{Figure, Target, Unit};

/// CPU time of the live view / time, on one CPU.
const LIVE: Target = Target::Below(0.03);
/// What a long recording is allowed, and must keep to.
const MEMORY_MIB: u32 = 64;
const DISK_MIB: u32 = 16;
const HOUR_DISK_MIB: u32 = 256;
/// What the analysis of any length of recording may take.
const ANALYSIS_MIB: f64 = 256.0;
/// The rest of the tool: code, symbols of the kernel, the rings.
const BESIDES_MIB: f64 = 512.0;

/// The tabs of the live view, of which only the visible one records, and what they cost most with.
pub const VIEWS: [(&str, &str); 5] = [
    ("locks", "--tab locks"),
    ("locks with owners", "--tab locks --owner"),
    ("sched", "--tab sched"),
    ("mem", "--tab mem"),
    (
        "mem with holds, by mapping",
        "--tab mem --holds --by mapping",
    ),
];

/// The live view of a busy system.
#[derive(Serialize)]
pub struct Live {
    view: &'static str,
    cpu_s: f64,
    wall_s: f64,
}

/// A recording that lasts.
#[derive(Serialize)]
pub struct Long {
    wall_s: f64,
    events: u64,
    resident_bytes_max: u64,
    disk_bytes: u64,
    /// CPU time of the analysis, where nothing else is in it.
    cpu_s: Option<f64>,
}

fn busy(stage: &Stage) -> Result<Background, String> {
    // Ended long before it ends by itself.
    let words = hackbench_of(100_000_000);
    let mut command = stage.filled(&words);
    Background::start(&mut command).map_err(|error| format!("cannot start hackbench: {error}"))
}

/// Watches a busy system for a while, on a terminal of 80 x 24 characters that is drawn each second. Whoever makes the
/// terminal, `script`, counts as well.
pub fn top(stage: &Stage, view: &'static str, flags: &str, seconds: f64) -> Result<Live, String> {
    let load = busy(stage)?;
    let shown = format!(
        "stty cols 80 rows 24; exec \"$TOOL\" top --system {flags} --probe bpf --for {seconds}s"
    );
    let mut terminal = stage.command("script");
    terminal
        .args(["--quiet", "--return", "--command", &shown, "/dev/null"])
        .env("TOOL", &stage.tool)
        .env("TERM", "xterm-256color");
    let ended = stage.run(&mut terminal).map_err(|error| error.to_string());
    load.end();
    let ended = ended?;
    Ok(Live {
        view,
        cpu_s: ended.usage.user_s + ended.usage.system_s,
        wall_s: ended.wall_s,
    })
}

/// Its row.
pub fn top_figure(view: &str, measured: &Result<Live, String>) -> Figure {
    Figure {
        name: format!("live view, {view}: hackbench"),
        value: measured
            .as_ref()
            .map(|live| live.cpu_s / live.wall_s)
            .map_err(Clone::clone),
        unit: Unit::OneCpu,
        target: LIVE,
        versus: "CPU time of amdahl top --system on a terminal, its start included, / time"
            .to_owned(),
    }
}

/// Records a busy system for a while, with little memory and disk.
pub fn long(stage: &Stage, seconds: f64) -> Result<Long, String> {
    let load = busy(stage)?;
    let folder = stage.scratch().join("long");
    let mut tool = stage.command(&stage.tool.to_string_lossy());
    let (time, memory, disk) = (
        format!("{seconds}s"),
        MEMORY_MIB.to_string(),
        DISK_MIB.to_string(),
    );
    tool.args(["sched", "record", "--system", "--probe", "bpf", "--quiet"])
        .args(["--for", &time, "--memory", &memory, "--max-disk", &disk])
        .arg("--output")
        .arg(&folder);
    let ended = stage.run(&mut tool).map_err(|error| error.to_string());
    load.end();
    let ended = ended?;
    let failed = |error: &dyn std::fmt::Display| format!("the recording: {error}");
    let text = std::fs::read(folder.join("result.json")).map_err(|error| failed(&error))?;
    let result: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| failed(&error))?;
    let disk_bytes = size_of(&folder.join("events")).map_err(|error| failed(&error))?;
    Ok(Long {
        wall_s: ended.wall_s,
        events: result["totals"]["events"].as_u64().unwrap_or(0),
        resident_bytes_max: ended.usage.resident_bytes_max,
        disk_bytes,
        cpu_s: None,
    })
}

/// The views that are given an hour; the first writes its events.
pub const HOURS: [&str; 3] = ["sched", "locks", "mem"];

/// An hour at 100,000 events a second on 64 CPUs, made up, through what `view` does with it: `quick` is a minute of it. It takes
/// five to twenty minutes.
pub fn hour(stage: &Stage, view: &str, quick: bool) -> Result<Long, String> {
    let seconds: u64 = if quick { 60 } else { 3600 };
    let folder = stage.scratch().join(format!("hour-{view}"));
    std::fs::create_dir_all(&folder).map_err(|error| format!("the hour: {error}"))?;
    let count = stage.scratch().join("hour-events");
    let failed = |error: std::io::Error| format!("the hour: {error}");
    let own = std::env::current_exe().map_err(failed)?;
    let mut replay = stage.command(&own.to_string_lossy());
    replay
        .args(["replay", view, "--seconds", &seconds.to_string()])
        .args(["--max-disk", &HOUR_DISK_MIB.to_string(), "--folder"])
        .arg(&folder)
        .arg("--to")
        .arg(&count);
    let ended = stage.run(&mut replay).map_err(|error| error.to_string())?;
    let events = std::fs::read_to_string(&count).map_err(failed)?;
    let no_number = |error| format!("the hour's number of events: {error}");
    Ok(Long {
        wall_s: seconds as f64,
        events: events.parse().map_err(no_number)?,
        resident_bytes_max: ended.usage.resident_bytes_max,
        disk_bytes: size_of(&folder).map_err(failed)?,
        cpu_s: Some(ended.usage.user_s + ended.usage.system_s),
    })
}

fn size_of(folder: &Path) -> std::io::Result<u64> {
    let parts = std::fs::read_dir(folder)?;
    parts.map(|part| Ok(part?.metadata()?.len())).sum()
}

/// Rows of a recording that lasts, with the bounds of its memory and disk.
fn long_figures(
    what: &str,
    measured: &Result<Long, String>,
    memory: (f64, &str),
    disk_mib: u32,
) -> [Figure; 2] {
    const MIB: f64 = (1u32 << 20) as f64;
    let said = measured.as_ref().map_or_else(
        |_| String::new(),
        |long| {
            let rate = long.events as f64 / long.wall_s;
            let spent = long.cpu_s.map_or_else(String::new, |cpu_s| {
                let share = 100.0 * cpu_s / long.wall_s;
                format!(", made up and analysed in {cpu_s:.0} s of CPU time, {share:.1} % of it")
            });
            format!("; {} events, {rate:.0} a second{spent}", long.events)
        },
    );
    let figure = |name: &str, bytes: fn(&Long) -> u64, limit: f64, bound: &str| Figure {
        name: format!("{name}: {what}"),
        value: measured
            .as_ref()
            .map(|long| bytes(long) as f64 / MIB)
            .map_err(Clone::clone),
        unit: Unit::MiB,
        target: Target::AtMost(limit),
        versus: format!("{bound}{said}"),
    };
    [
        figure(
            "peak memory",
            |long| long.resident_bytes_max,
            memory.0,
            memory.1,
        ),
        figure(
            "disk",
            |long| long.disk_bytes,
            f64::from(disk_mib) * 1.25,
            &format!("a bound: --max-disk {disk_mib} and a part"),
        ),
    ]
}

/// All rows of recordings that last.
pub fn all_long_figures(
    recorded: &Result<Long, String>,
    hours: &[(&str, Result<Long, String>)],
) -> Vec<Figure> {
    let memory = f64::from(MEMORY_MIB) + BESIDES_MIB;
    let why = "a bound: --memory 64 and half a GiB for the rest of the tool";
    let recorded = long_figures("sched record, long", recorded, (memory, why), DISK_MIB);
    let mut all = recorded.to_vec();
    for (view, hour) in hours {
        let why = "a bound for the analysis";
        let name = format!("an hour of 100,000 events/s, {view}");
        let [memory, disk] = long_figures(&name, hour, (ANALYSIS_MIB, why), HOUR_DISK_MIB);
        all.push(memory);
        // The others keep no events.
        all.extend((*view == HOURS[0]).then_some(disk));
    }
    all
}

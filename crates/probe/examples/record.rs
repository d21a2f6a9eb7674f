//! Records one command on all CPUs and prints what was seen: `record -- CMD`.

use std::os::unix::process::CommandExt;
use std::process::Command;

use amdahl_probe::bpf::{Recorder, SCALE, Settings};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let cpus: Vec<u32> = (0..std::thread::available_parallelism().unwrap().get() as u32).collect();
    let settings = Settings {
        sample_hz: 997,
        ..Settings::new(&SCALE, cpus.clone())
    };
    let t = std::time::Instant::now();
    let mut recorder = Recorder::new(&settings).unwrap_or_else(|error| panic!("{error}"));
    eprintln!("loaded in {:?}", t.elapsed());
    let parts = recorder.begin(&cpus).unwrap();
    let me = std::process::id();
    recorder.add(me, me).unwrap();
    let mut command = Command::new(&args[0]);
    command.args(&args[1..]);
    // SAFETY: nothing is done between fork and exec.
    unsafe { command.pre_exec(|| Ok(())) };
    let t = std::time::Instant::now();
    let status = command.status().unwrap();
    let wall = t.elapsed();
    let counts = recorder.end().unwrap();
    for part in parts {
        eprintln!(
            "events {:?} stacks {} side {}",
            part.slots.iter().map(Vec::len).collect::<Vec<_>>(),
            part.stacks.len(),
            part.side_band.len(),
        );
    }
    eprintln!(
        "{status} {wall:?} lost {:?} {} instr {:?} cycles {:?} hw {}",
        counts.lost,
        counts.stacks_lost,
        counts.instructions,
        counts.cycles,
        recorder.samples_cycles()
    );
}

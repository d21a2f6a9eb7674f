//! CRIU: a process that was dumped into files is restored lazily from them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{Ends, PATIENCE, Result};

pub struct Restored {
    /// From when the daemon for its pages was started until that had brought all.
    pub total_s: f64,
    pub touches_us: Vec<f64>,
}

pub fn compile(folder: &Path) -> Result<PathBuf> {
    super::compile(folder, include_str!("../../guest/process.c"), &[])
}

/// `$CRIU`, or what is installed; whether it works with this kernel.
fn criu() -> Result<Command> {
    let program = std::env::var_os("CRIU").unwrap_or_else(|| "criu".into());
    let said = Command::new(&program)
        .arg("check")
        .output()
        .map_err(|error| format!("criu (apt-get install criu, or name one by $CRIU): {error}"))?;
    if !said.status.success() {
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        let why: Vec<&str> = said.lines().take(2).collect();
        let why = why.join("; ");
        return Err(format!(
            "this criu does not work with this kernel, name another one by $CRIU; criu check: {why}"
        )
        .into());
    }
    Ok(Command::new(program))
}

fn until(what: &str, child: &mut Child, done: impl Fn() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !done() {
        if begun.elapsed() > PATIENCE || child.try_wait()?.is_some() {
            return Err(format!("{what} did not come").into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn end(what: &str, log: &Path, child: &mut Child) -> Result<()> {
    let begun = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => {
                let log = fs::read_to_string(log).unwrap_or_default();
                let last = log.lines().last().unwrap_or("no word").to_owned();
                return Err(format!("{what}: {status}, {last}").into());
            }
            None if begun.elapsed() > PATIENCE => return Err(format!("{what} does not end").into()),
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Dumps the process, then restores it; `folder` is in memory and holds its program.
pub fn restore(folder: &Path, program: &Path) -> Result<Restored> {
    let images = folder.join("images");
    let _ = fs::remove_dir_all(&images);
    fs::create_dir(&images)?;
    let [ready, go, took] = ["ready", "go", "took"].map(|name| folder.join(name));
    for file in [&ready, &go, &took] {
        let _ = fs::remove_file(file);
    }
    let run = |what: &str| -> Result<Command> {
        let mut command = criu()?;
        command.arg(what).arg("-D").arg(&images);
        command.args(["-v1", "-o", &format!("{what}.log")]);
        command.stdin(Stdio::null());
        Ok(command)
    };
    let log = |what: &str| images.join(format!("{what}.log"));

    // A session of its own, or it could not be restored without a terminal's.
    let process = Command::new("setsid")
        .arg(program)
        .args([&ready, &go, &took])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut process = Ends(process, None);
    until("the process", &mut process.0, || ready.exists())?;
    let mut dump = run("dump")?
        .arg("-t")
        .arg(process.0.id().to_string())
        .spawn()?;
    end("criu dump", &log("dump"), &mut dump)?;
    // Its number is needed again.
    drop(process);
    fs::write(&go, "")?;

    let begun = Instant::now();
    let mut pages = Ends(run("lazy-pages")?.spawn()?, None);
    let socket = images.join("lazy-pages.socket");
    until("the socket of criu lazy-pages", &mut pages.0, || {
        socket.exists()
    })?;
    let mut restored = Ends(run("restore")?.arg("--lazy-pages").spawn()?, None);
    end("criu lazy-pages", &log("lazy-pages"), &mut pages.0)?;
    let total_s = begun.elapsed().as_secs_f64();
    end("criu restore", &log("restore"), &mut restored.0)?;
    let took = fs::read(&took)?;
    let took = took
        .chunks_exact(4)
        .map(|ns| u32::from_le_bytes(ns.try_into().expect("four bytes")));
    Ok(Restored {
        total_s,
        touches_us: took.map(|ns| f64::from(ns) / 1e3).collect(),
    })
}

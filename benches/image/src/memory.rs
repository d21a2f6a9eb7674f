//! Memory of real programs: started, filled, read by `/proc`, ended.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Programs, and what they are called in the figures.
pub const PROGRAMS: [&str; 2] = ["python", "java"];

/// Ends the program whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes the private writable memory of the program into a file of `folder`.
pub fn dump(program: &str, folder: &Path) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let mut command = match program {
        "python" => Command::new("python3"),
        _ => Command::new("java"),
    };
    match program {
        "python" => command.arg(source.join("heap.py")),
        _ => command
            .args(["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC"])
            .arg(source.join("Heap.java")),
    };
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let child = child
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let mut running = Running(child);
    let out = running.0.stdout.take().ok_or("no standard output")?;
    let mut line = String::new();
    let read = BufReader::new(out).read_line(&mut line);
    if read.is_err() || line.trim() != "ready" {
        return Err(format!("{program}: did not fill its memory"));
    }
    let path = folder.join(format!("{program}.mem"));
    read_memory(running.0.id(), &path).map_err(|error| format!("memory of {program}: {error}"))?;
    Ok(path)
}

fn read_memory(pid: u32, path: &Path) -> std::io::Result<()> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let mut file = File::create(path)?;
    let mut part = vec![0; 1 << 20];
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(rights)) = (words.next(), words.next()) else {
            continue;
        };
        let numbers = range
            .split_once('-')
            .map(|(start, end)| (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)));
        let (Some((Ok(start), Ok(end))), true) = (numbers, rights.starts_with("rw")) else {
            continue;
        };
        let mut at = start;
        while at < end {
            let len = (end - at).min(part.len() as u64) as usize;
            // What cannot be read, as a page of a device, has no place in an image.
            if memory.read_exact_at(&mut part[..len], at).is_ok() {
                file.write_all(&part[..len])?;
            }
            at += len as u64;
        }
    }
    Ok(())
}

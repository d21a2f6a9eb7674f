//! A PostgreSQL server of our own: in a temporary folder, in memory where there is room (on a disk that others use its runs take
//! once two seconds and once eighteen), on a Unix socket, as an unprivileged user.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::stage::Stage;

/// pgbench's scale: 100,000 accounts each, 16 MB on disk.
const SCALE: u32 = 10;
/// Many seconds: servers run long, and what a run begins with (sampling at its full rate, all events recorded) is not what it
/// costs.
const TRANSACTIONS: u32 = 48_000;
/// Name of the server's folder below the scratch folder.
const FOLDER: &str = "postgres";

/// Makes a database; returns the command that starts its server, has pgbench work, and stops it.
pub fn prepare(stage: &Stage) -> Result<Vec<String>, String> {
    let bin = programs().ok_or("there is no PostgreSQL server (package postgresql)")?;
    let folder = stage.memory().join(FOLDER);
    let script = folder.join("postgres.sh");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    clean_up(stage.memory());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir(&folder).map_err(failed)?;
    // The checkout may lie where other users cannot read.
    fs::copy(stage.root.join("benches/programs/postgres.sh"), &script).map_err(failed)?;
    let user = if rustix::process::geteuid().is_root() {
        let user = ["postgres", "nobody"].into_iter().find_map(user_and_group);
        let (user, group) = user.ok_or("there is no user to run the server")?;
        std::os::unix::fs::chown(&folder, Some(user), Some(group)).map_err(failed)?;
        Some((user, group))
    } else {
        None
    };
    let as_user = |command: &[&str]| -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        if let Some((user, group)) = user {
            let drop = [
                "setpriv",
                "--reuid",
                &user.to_string(),
                "--regid",
                &group.to_string(),
                "--clear-groups",
                // Changing the user clears it.
                "--pdeathsig",
                "TERM",
            ];
            words.extend(drop.map(str::to_owned));
        }
        words.extend(command.iter().map(|&word| word.to_owned()));
        words
    };
    let (bin, place) = (bin.to_string_lossy(), folder.to_string_lossy());
    let data = format!("{place}/data");
    let initdb = format!("{bin}/initdb");
    let run = |words: &[String]| {
        let mut command = stage.filled(words);
        command.current_dir(&folder);
        stage.run(&mut command).map_err(|error| error.to_string())
    };
    let create = [
        &*initdb,
        "-D",
        &data,
        "-U",
        "bench",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-sync",
    ];
    run(&as_user(&create))?;
    let settings = format!(
        "listen_addresses = ''\nunix_socket_directories = '{place}'\nmax_connections = {}\n\
         # Files in our folder, so that nothing is left beside it in /dev/shm.\n\
         dynamic_shared_memory_type = mmap\n\
         # So that runs are alike.\n\
         autovacuum = off\ncheckpoint_timeout = 1h\nmax_wal_size = 4GB\n",
        stage.cpus + 20
    );
    let path = folder.join("data/postgresql.conf");
    let mut text = fs::read_to_string(&path).map_err(failed)?;
    text.push_str(&settings);
    fs::write(&path, text).map_err(failed)?;
    let script = script.to_string_lossy();
    let run_script = |clients: &str, count: u32| {
        as_user(&["sh", &script, &bin, &place, clients, &count.to_string()])
    };
    run(&run_script("0", SCALE))?;
    Ok(run_script("{cpus}", TRANSACTIONS))
}

/// Removes the shared memory of a server that was killed. Its folder is the caller's.
pub fn clean_up(folder: &Path) {
    // Only a server that was killed leaves this file. Its seventh line: key and id of the
    // segment, by which a server knows that another one is still at work.
    let Ok(text) = fs::read_to_string(folder.join(FOLDER).join("data/postmaster.pid")) else {
        return;
    };
    let segment = text
        .lines()
        .nth(6)
        .and_then(|line| line.split_whitespace().nth(1));
    if let Some(id) = segment {
        // Gone already, if that fails.
        let _ = Command::new("ipcrm")
            .args(["-m", id])
            .stderr(Stdio::null())
            .status();
    }
}

/// The newest server's folder of programs.
fn programs() -> Option<PathBuf> {
    let is_complete = |bin: &PathBuf| {
        let names = ["postgres", "initdb", "pgbench", "pg_isready"];
        names.iter().all(|name| bin.join(name).is_file())
    };
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, bin)| is_complete(bin))
        .collect();
    found.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let newest = found.pop().map(|(_, bin)| bin);
    newest.or_else(|| std::env::split_paths(&path).find(is_complete))
}

/// Ids of a user and its group, from the local list of users.
fn user_and_group(name: &str) -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let mut ids = line.split(':').skip(2).map(str::parse);
    Some((ids.next()?.ok()?, ids.next()?.ok()?))
}

//! What Java's virtual machine (HotSpot) must be told so that its code has names.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use amdahl_report::schema::Notice;
use amdahl_speedup::event::{CallStack, StackTable, Tid};

/// The variable from which every HotSpot takes options.
pub const VARIABLE: &str = "JAVA_TOOL_OPTIONS";
/// Writes `/tmp/perf-PID.map` at the end (JDK 17 and later; others do not know the option).
const NAMES_AT_EXIT: &str = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions \
                             -XX:+DumpPerfMapAtExit";
/// Where they are.
const MAPS: &str = "/tmp";
/// What HotSpot calls the code that interprets: in every map of its, and in no other's.
const MARK: &str = " Interpreter\n";
const MAP_BYTES_MAX: u64 = 64 << 20;

const NOTICE: &str = "Java code has no names. For them: java -XX:+PreserveFramePointer \
     -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit (JDK 17 and later; amdahl scale passes \
     these unless --keep-env is given), or jcmd PID Compiler.perfmap before a running one is watched.";

/// The variable for runs that are looked into, if variables are set at all.
pub fn names_at_exit(env: &[(String, String)]) -> Option<(String, String)> {
    let (name, value) = env.iter().find(|(name, _)| name == VARIABLE)?;
    // Who asks for the map wants to keep it.
    let asks = value.contains("DumpPerfMapAtExit");
    (!asks).then(|| (name.clone(), format!("{value} {NAMES_AT_EXIT}")))
}

/// Removes the maps that `processes` wrote because we asked for them.
pub fn remove_maps(processes: &BTreeSet<Tid>, since: SystemTime) {
    for &pid in processes {
        remove_map(Path::new(MAPS), pid, since);
    }
}

/// The same after a `kill -9`, by the guard, which does not know which processes there were: the maps that this
/// user's processes wrote that began after it and are gone.
pub fn remove_maps_of_the_killed(since: SystemTime) {
    remove_maps_of_the_gone(Path::new(MAPS), std::process::id(), since);
}

fn remove_maps_of_the_gone(folder: &Path, after: Tid, since: SystemTime) {
    let me = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix("perf-")?.strip_suffix(".map"))
            .and_then(|pid| pid.parse::<Tid>().ok());
        let Some(pid) = pid.filter(|&pid| pid > after) else {
            continue;
        };
        let is_gone = !Path::new(&format!("/proc/{pid}")).exists();
        if is_gone && entry.metadata().is_ok_and(|about| about.uid() == me) {
            remove_map(folder, pid, since);
        }
    }
}

fn remove_map(folder: &Path, pid: Tid, since: SystemTime) {
    let path = folder.join(format!("perf-{pid}.map"));
    let is_ours = std::fs::symlink_metadata(&path).is_ok_and(|metadata| {
        let is_new = metadata.modified().is_ok_and(|changed| changed >= since);
        metadata.is_file() && is_new && metadata.len() <= MAP_BYTES_MAX
    });
    if is_ours && std::fs::read_to_string(&path).is_ok_and(|map| map.contains(MARK)) {
        let _ = std::fs::remove_file(path);
    }
}

/// What to do where a Java program ran and none of its own code could be named.
pub fn notice(stacks: &StackTable) -> Option<Notice> {
    let mut seen = Seen::default();
    stacks.iter().for_each(|stack| seen.see(stack));
    seen.notice()
}

/// What was seen of a Java program in call stacks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    machine: bool,
    named: bool,
    unnamed: bool,
}

impl Seen {
    /// Looks at one more.
    pub fn see(&mut self, stack: &CallStack) {
        for frame in &stack.user {
            self.machine |= frame.module.ends_with("/libjvm.so");
            let is_generated = frame.module == "[jit]";
            self.unnamed |= is_generated && frame.symbol == "[jit]";
            self.named |= is_generated && frame.symbol != "[jit]";
        }
    }

    /// What to do where none of its own code could be named.
    pub fn notice(self) -> Option<Notice> {
        (self.machine && self.unnamed && !self.named).then(|| Notice {
            code: "java-unnamed".to_owned(),
            text: NOTICE.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use amdahl_speedup::event::Frame;

    use super::*;

    #[test]
    fn code_without_names_is_told_of_where_a_virtual_machine_made_it() {
        let stack = |frames: &[(&str, &str)]| CallStack {
            user: frames
                .iter()
                .map(|&(symbol, module)| Frame {
                    symbol: symbol.to_owned(),
                    module: module.to_owned(),
                    ..Frame::default()
                })
                .collect(),
            ..CallStack::default()
        };
        let machine = stack(&[("JavaThread::run()", "/usr/lib/jvm/lib/server/libjvm.so")]);
        let unnamed = stack(&[("[jit]", "[jit]"), ("main", "/usr/bin/something")]);
        let named = stack(&[("Main.run", "[jit]")]);
        let is_told = |stacks: &[&CallStack]| {
            let mut seen = Seen::default();
            stacks.iter().for_each(|stack| seen.see(stack));
            seen.notice().is_some()
        };
        assert!(is_told(&[&unnamed, &machine]));
        assert!(!is_told(&[&unnamed, &machine, &named]), "some have names");
        assert!(!is_told(&[&unnamed]), "no Java");
        assert!(!is_told(&[&machine]), "none of its code");
    }

    #[test]
    fn only_maps_of_processes_that_began_later_and_are_gone_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let since = SystemTime::now() - Duration::from_secs(60);
        // No process has a number beyond 2^22.
        let (gone, earlier) = (5_000_000, 4_999_999);
        let map = format!("7f00 10{MARK}7f10 20 Main.run\n");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let ours = write(&format!("perf-{gone}.map"), &map);
        let kept = [
            write(&format!("perf-{earlier}.map"), &map),
            write(
                &format!("perf-{}.map", gone + 1),
                "7f00 10 somebody else's\n",
            ),
            write(&format!("perf-{}.map.old", gone + 2), &map),
            write("perf-x.map", &map),
        ];
        remove_maps_of_the_gone(folder.path(), earlier, since);
        assert!(!ours.exists());
        assert!(kept.iter().all(|path| path.exists()));

        let old = write(&format!("perf-{gone}.map"), &map);
        remove_maps_of_the_gone(
            folder.path(),
            earlier,
            SystemTime::now() + Duration::from_secs(60),
        );
        assert!(old.exists(), "written before");
        let alive = write(&format!("perf-{}.map", std::process::id()), &map);
        remove_maps_of_the_gone(folder.path(), 0, since);
        assert!(alive.exists(), "its process is alive");
    }
}

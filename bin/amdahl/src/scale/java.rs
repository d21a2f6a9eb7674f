//! What Java's virtual machine (HotSpot) must be told so that its code has names.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

use amdahl_speedup::event::{StackTable, Tid};

/// The variable from which every HotSpot takes options.
pub const VARIABLE: &str = "JAVA_TOOL_OPTIONS";
/// Writes `/tmp/perf-PID.map` at the end (JDK 17 and later; others do not know the option).
const NAMES_AT_EXIT: &str = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions \
                             -XX:+DumpPerfMapAtExit";
/// What HotSpot calls the code that interprets: in every map of its, and in no other's.
const MARK: &str = " Interpreter\n";
const MAP_BYTES_MAX: u64 = 64 << 20;

pub const NOTICE: &str = "Java code has no names. For them: java -XX:+PreserveFramePointer \
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
    for pid in processes {
        let path = format!("/tmp/perf-{pid}.map");
        let path = Path::new(&path);
        let is_ours = std::fs::symlink_metadata(path).is_ok_and(|metadata| {
            let is_new = metadata.modified().is_ok_and(|changed| changed >= since);
            metadata.is_file() && is_new && metadata.len() <= MAP_BYTES_MAX
        });
        if is_ours && std::fs::read_to_string(path).is_ok_and(|map| map.contains(MARK)) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A Java program ran, and none of its own code could be named.
pub fn is_unnamed(stacks: &StackTable) -> bool {
    let frames = || stacks.iter().flat_map(|stack| &stack.user);
    let generated = || frames().filter(|frame| frame.module == "[jit]");
    frames().any(|frame| frame.module.ends_with("/libjvm.so"))
        && generated().next().is_some()
        && generated().all(|frame| frame.symbol == "[jit]")
}

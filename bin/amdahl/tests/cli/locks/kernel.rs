//! Locks of the kernel.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use amdahl_report::locks::schema::{LockRow, LocksResult};
use amdahl_report::schema::Source;

use super::{
    Family, Truth, agree, holds, is_longest, is_made, is_of, ready, rows, sum, watch,
    watch_command, watch_under,
};
use crate::tool::{Place, alone, cpus, skipped};
use crate::workload::{READER, compiled, in_some_try};

/// One that the tests may use.
pub fn first_cpu() -> String {
    let cpus = amdahl_topology::allowed().expect("an affinity");
    cpus.first().expect("a CPU").to_string()
}

/// This kernel tells of contention.
pub(super) fn tells_of_its_locks(found: &LocksResult) -> bool {
    let lacks = |source: &Source| source.what == "kernel locks" && source.how == "missing";
    let tells = !found.sources.iter().any(lacks);
    if !tells {
        skipped("this kernel does not tell of its locks");
    }
    tells
}

/// Who looks at the memory of another process waits for two of its locks.
fn is_of_the_other(family: &str, row: &LockRow) -> bool {
    let is_looked_at = row.what == "mmap_lock (read)" && row.site.symbol == "process_vm_rw_core";
    family == "exec" && is_looked_at
}

/// Waits of a family of kernel locks are in the table for as long as the program says. The command is
/// started by the words of `before`.
fn is_told_in_kernel(
    before: &[&str],
    place: &Place,
    program: &Path,
    (family, what, function, holder): Family,
    thread: &str,
) {
    in_some_try(|| {
        let options = ["--owner", "--by", "stack"];
        let (truth, found) = watch_under(before, place, program, family, &options);
        if !tells_of_its_locks(&found) {
            return Ok(());
        }
        assert_eq!(found.events_lost, 0);
        is_made(&truth)?;
        // The holder may have waited for the waiter at times: of both only the sum is known.
        let told = || {
            let rows = found.rows.iter();
            rows.filter(|row| row.what == what || is_of_the_other(family, row))
        };
        let seconds = told().map(|row| row.total_s).sum();
        agree(&truth, seconds)
            .and_then(|()| is_longest(told(), found.p99_error, &truth))
            .map_err(|miss| format!("{family}: {miss}: {}", rows(&found)))?;
        // Stacks are dear, and not taken of each place at once.
        let named: f64 = told()
            .filter(|row| is_of(row, &row.what, function))
            .map(|row| row.total_s)
            .sum();
        let times: u64 = told().map(|row| row.times).sum();
        if times < truth.times || named < 0.5 * truth.seconds {
            let what = format!("{times} times of {}, {named} s named", truth.times);
            return Err(format!("{family}: {what}: {}", rows(&found)));
        }
        holds(&found, what, function, (thread, holder))
    });
}

#[test]
fn waits_for_kernel_locks_are_what_the_program_measured() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    // On one CPU nobody spins while the owner runs: of rwsems the kernel tells of waiters only once they
    // have given that up, and who woke whom is known.
    let on_one = ["taskset", "-c", &*first_cpu()];
    for family in [
        ("inode", "rwsem (write)", "want_inode", "hold_inode"),
        ("position", "mutex", "want_position", "hold_position"),
        ("mmap", "mmap_lock (write)", "want_mmap", "hold_mmap"),
        ("fault", "mmap_lock (read)", "want_hole", "hold_mmap"),
    ] {
        is_told_in_kernel(&on_one, &place, &program, family, "holder");
    }
    // Their waiters do not spin.
    for (family, thread) in [
        (("exec", "rwsem (read)", "want_process", ""), "true"),
        (
            (
                "listed",
                "percpu-rwsem (read)",
                "want_to_be_listed",
                "hold_list",
            ),
            "holder",
        ),
    ] {
        is_told_in_kernel(&[], &place, &program, family, thread);
    }
}

/// They come to the lock by the same functions of the kernel.
#[test]
fn lines_that_fault_alike_are_told_apart() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    in_some_try(|| {
        let on_one = ["taskset", "-c", &*first_cpu()];
        let (truth, found) = watch_under(
            &on_one,
            &place,
            &program,
            "fault-by-turns",
            &["--by", "stack"],
        );
        if !tells_of_its_locks(&found) {
            return Ok(());
        }
        is_made(&truth)?;
        let times = |function| sum(&found, "mmap_lock (read)", function).0;
        let (often, seldom) = (times("want_hole"), times("want_the_same_hole"));
        // A quarter and three quarters, but for rounds without a wait.
        if often < truth.times / 2 || seldom < truth.times / 8 || seldom > truth.times * 3 / 8 {
            return Err(format!("{often} and {seldom} times: {}", rows(&found)));
        }
        Ok(())
    });
}

/// Of who wants a per-CPU rwsem to write, and waits for readers, the kernel tells nothing.
#[test]
fn who_waits_for_the_readers_of_a_percpu_rwsem_is_told() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    if !Path::new("/sys/bus/event_source/devices/uprobe").exists() {
        return skipped("this kernel has no uprobes");
    }
    in_some_try(|| {
        let options = ["--by", "stack"];
        let (truth, found) = watch(&place, &program, "probed", &options);
        assert_eq!(found.events_lost, 0);
        is_made(&truth)?;
        // The first of those who come waits for a grace period instead.
        let [readers, grace] =
            ["percpu-rwsem (write)", "RCU"].map(|what| sum(&found, what, "want_to_probe"));
        if readers.0 < truth.times / 4 {
            return Err(format!(
                "{} of {}: {}",
                readers.0,
                truth.times,
                rows(&found)
            ));
        }
        agree(&truth, readers.1 + grace.1)
    });
}

/// Who reads of another process was told to wait for some rwsem.
#[test]
fn the_lock_of_another_address_space_has_its_name() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    let Some(reader) = compiled(&place, "reader", READER, &[]) else {
        return;
    };
    in_some_try(|| {
        let mut command = Command::new(&program);
        // It is killed long before.
        command.args(["mmap", "100000"]);
        let process = place.start(place.here(command));
        let file = format!("/proc/{}/cmdline", process.pid());
        let command = [reader.as_os_str(), OsStr::new(&file), OsStr::new("20")];
        let (line, found) = watch_command(&place, &command, &[]);
        drop(process);
        if !tells_of_its_locks(&found) {
            return Ok(());
        }
        let truth = Truth::of(&line);
        is_made(&truth)?;
        assert!(
            found.rows.iter().all(|row| row.what != "rwsem (read)"),
            "{}",
            rows(&found)
        );
        let of_it = found
            .rows
            .iter()
            .filter(|row| row.what == "mmap_lock (read)");
        let (times, seconds) = of_it.fold((0, 0.0), |(times, seconds), row| {
            (times + row.times, seconds + row.total_s)
        });
        // Beside them are those that were over before the reader slept, which are short.
        if times < truth.times {
            return Err(format!("{times} times of {}", truth.times));
        }
        agree(&truth, seconds)
    });
}

/// Who waits for a spin lock alone is told only where the hypervisor takes part in its waiting, which the kernel's log
/// says at its beginning: `None` where that is not there any more.
fn tells_who_spins_alone() -> Option<bool> {
    let ran = Command::new("dmesg").output().ok()?;
    let log = String::from_utf8_lossy(&ran.stdout).into_owned();
    let begins = log.contains("Linux version");
    begins.then(|| log.contains("PV spinlocks enabled"))
}

#[test]
fn waits_for_a_spin_lock_are_what_the_program_measured() {
    let _alone = alone();
    let Some((place, program)) = ready() else {
        return;
    };
    if cpus() < 2 {
        return skipped("who spins and who holds need a CPU each");
    }
    in_some_try(|| {
        let (truth, found) = watch(&place, &program, "spin", &[]);
        if !tells_of_its_locks(&found) {
            return Ok(());
        }
        assert_eq!(found.events_lost, 0);
        if truth.seconds < 0.01 {
            return Err(format!("it hardly waited: {} s", truth.seconds));
        }
        // Stacks are dear, and not taken of each place at once.
        let is_it = |row: &&LockRow| {
            let is_nameless = row.what == "spinlock" && row.stack.is_empty();
            is_nameless || is_of(row, "spinlock", "want_to_be_listed")
        };
        let told = || found.rows.iter().filter(is_it);
        let seconds: f64 = told().map(|row| row.total_s).sum();
        if seconds < 0.001 && tells_who_spins_alone() != Some(true) {
            skipped(
                "this kernel does not tell of who spins alone: its log has no \"PV spinlocks enabled\"",
            );
            return Ok(());
        }
        agree(&truth, seconds)?;
        is_longest(told(), found.p99_error, &truth)
    });
}

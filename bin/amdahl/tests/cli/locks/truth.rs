//! What planted programs say of their waits, against what the table has of them.

use amdahl_report::locks::schema::{LockRow, LocksResult};
use serde_json::Value;

/// What the program says of itself.
pub struct Truth {
    /// How often it waited.
    pub times: u64,
    /// For how long all together.
    pub seconds: f64,
    /// Of these, in run queues, of which nobody knows whether that was before a sleep.
    pub queued: f64,
    /// The longest, of programs that tell it.
    pub longest: Option<f64>,
}

impl Truth {
    pub fn of(said: &Value) -> Truth {
        Truth {
            times: said["times"].as_u64().expect("a count"),
            seconds: said["seconds"].as_f64().expect("seconds"),
            queued: said["queued"].as_f64().unwrap_or(0.0),
            longest: said["longest"].as_f64(),
        }
    }
}

/// It has waits of `what` in `function`.
pub fn is_of(row: &LockRow, what: &str, function: &str) -> bool {
    let names = || row.stack.iter().any(|frame| frame == function);
    row.what == what && (row.site.symbol.contains(function) || names())
}

/// Waits of `what` in `function`, of one row or several.
pub fn sum(found: &LocksResult, what: &str, function: &str) -> (u64, f64) {
    let rows = found.rows.iter().filter(|row| is_of(row, what, function));
    rows.fold((0, 0.0), |(times, seconds), row| {
        (times + row.times, seconds + row.total_s)
    })
}

pub fn rows(found: &LocksResult) -> String {
    let row = |row: &LockRow| format!("{} in {}: {}", row.what, row.site.symbol, row.times);
    found.rows.iter().map(row).collect::<Vec<_>>().join(", ")
}

/// Times agree within 5 % and what a preemption between two clocks takes.
pub fn agree(truth: &Truth, seconds: f64) -> Result<(), String> {
    is_near(seconds, truth.seconds, truth.queued)
}

/// The same of one time, of which the program was `queued` for some.
pub fn is_near(seconds: f64, measured: f64, queued: f64) -> Result<(), String> {
    let least = (measured - queued).min(measured);
    let error = (seconds - seconds.clamp(least, measured)).abs();
    if error <= 0.05 * measured + 0.004 {
        return Ok(());
    }
    Err(format!("{seconds} s of {measured}"))
}

/// The longest wait in these rows is that of the program. A percentile is none that is longer, and of less than
/// a hundred waits it is the longest of its row.
pub fn is_longest<'a>(
    rows: impl Iterator<Item = &'a LockRow>,
    p99_error: f64,
    truth: &Truth,
) -> Result<(), String> {
    let mut longest = 0.0_f64;
    for row in rows {
        let (max, p99) = (row.max_s, row.p99_s.expect("single waits"));
        assert!(row.mean_s <= max * (1.0 + 1e-9) && p99 <= max, "{row:?}");
        // A nanosecond is lost to the middle of a bucket.
        let is_max = p99 >= max * (1.0 - p99_error) - 1e-9;
        assert!(is_max || row.times >= 100, "{row:?}");
        longest = longest.max(max);
    }
    let measured = truth.longest.expect("the longest");
    is_near(longest, measured, truth.queued).map_err(|miss| format!("the longest: {miss}"))
}

/// Seconds of the waits of `what` in `function`, if they are as many as the program made.
pub fn seconds_of_all(
    found: &LocksResult,
    what: &str,
    function: &str,
    truth: &Truth,
) -> Result<f64, String> {
    let (times, seconds) = sum(found, what, function);
    if times == truth.times {
        return Ok(seconds);
    }
    Err(format!("{times} times of {}: {}", truth.times, rows(found)))
}

/// Who ended most of the waits of `what` in `function` is the planted holder.
pub fn holds(
    found: &LocksResult,
    what: &str,
    function: &str,
    by: (&str, &str),
) -> Result<(), String> {
    let of = |row: &&LockRow| is_of(row, what, function) && !row.owners.is_empty();
    let row = found.rows.iter().find(of);
    let row = row.ok_or_else(|| format!("{function}: nobody let it go on: {}", rows(found)))?;
    let owner = &row.owners[0];
    if owner.thread == by.0 && owner.site.symbol.contains(by.1) {
        return Ok(());
    }
    Err(format!("{function}: {owner:?}"))
}

/// Most of the waits of `what` in `function` ended in `releaser`, whichever thread that was.
pub fn are_released_in(
    found: &LocksResult,
    what: &str,
    function: &str,
    releaser: &str,
) -> Result<(), String> {
    let of = |row: &&LockRow| is_of(row, what, function);
    let owners = found.rows.iter().filter(of).flat_map(|row| &row.owners);
    let (mut there, mut all) = (0, 0);
    for owner in owners {
        all += owner.times;
        there += if owner.site.symbol.contains(releaser) {
            owner.times
        } else {
            0
        };
    }
    if 2 * there > all {
        return Ok(());
    }
    Err(format!("{there} of {all} ended in {releaser}"))
}

/// Where others have the CPUs, waiter and holder may never meet.
pub fn is_made(truth: &Truth) -> Result<(), String> {
    let waits = truth.times > 0;
    waits.then_some(()).ok_or("it never waited".to_owned())
}

/// Of each of several programs that wrote to one file.
pub fn truths(said: &str) -> Vec<Truth> {
    let of = |line| Truth::of(&serde_json::from_str(line).expect("a line"));
    said.lines().map(of).collect()
}

/// Of the odd turns and of the even ones.
pub fn truths_by_turns(said: &Value) -> (Truth, Truth) {
    let part = |part: &Value| Truth {
        longest: None,
        ..Truth::of(part)
    };
    let (all, odd) = (part(said), part(&said["odd"]));
    let even = Truth {
        times: all.times - odd.times,
        seconds: all.seconds - odd.seconds,
        queued: 0.0,
        longest: None,
    };
    (odd, even)
}

/// All waits of the planted threads, and no other. Of a program that `leaves` they last a little longer
/// than it can say: until each of its threads has been ended.
pub fn has_all(found: &LocksResult, truth: &Truth, leaves: bool) -> Result<(), String> {
    assert_eq!(found.events_lost, 0);
    let seconds = seconds_of_all(found, "pthread mutex", "want_the_room", truth)?;
    if leaves && seconds >= truth.seconds {
        return Ok(());
    }
    agree(truth, seconds)
}

/// The process's waits for its mutex are in the table, each of them and all their time.
pub fn has_all_of_the_mutex(found: &LocksResult, truth: &Truth) -> Result<(), String> {
    if found.events_lost > 0 {
        return Err(format!("{} events lost", found.events_lost));
    }
    is_made(truth)?;
    let seconds = seconds_of_all(found, "pthread mutex", "want_mutex", truth)?;
    agree(truth, seconds)
}

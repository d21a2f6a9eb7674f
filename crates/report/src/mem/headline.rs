//! The outcome in a few sentences.

use super::schema::MemResult;
use crate::number::{bytes, percent_coarse, seconds};

/// What a reader should know first: huge pages, then faults, then the lock.
pub(super) fn sentences(result: &MemResult) -> Vec<String> {
    [huge(result), faults(result), lock(result)]
        .into_iter()
        .flatten()
        .collect()
}

fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}

fn huge(result: &MemResult) -> Option<String> {
    let resident = sum(result.processes.iter().map(|p| p.resident_bytes));
    if resident == 0 {
        return None;
    }
    let huge = sum(result.processes.iter().map(|p| p.huge_bytes));
    let share = percent_coarse(huge as f64 / resident as f64);
    let mut text = format!("{} in memory, {share} in huge pages", bytes(resident));
    let obstacles = result.huge.obstacles.iter();
    if let Some(first) = obstacles
        .filter(|o| o.huge_pages > 0)
        .max_by_key(|o| o.bytes)
    {
        let size = bytes(first.bytes);
        text.push_str(&format!("; {size} more could be ({})", first.id));
    }
    Some(text + ".")
}

fn faults(result: &MemResult) -> Option<String> {
    let faults = &result.faults;
    if faults.count == 0 {
        return None;
    }
    let mut text = format!("{} page faults", faults.count);
    if faults.is_timed {
        text.push_str(&format!(" took {}", seconds(faults.seconds)));
    }
    if let Some(most) = faults.kinds.iter().max_by_key(|kind| kind.count) {
        let share = percent_coarse(most.count as f64 / faults.count as f64);
        text.push_str(&format!(", {share} of them {}", most.kind));
    }
    Some(text + ".")
}

fn lock(result: &MemResult) -> Option<String> {
    let waits = &result.mmap_lock.waits;
    let count = sum(waits.iter().map(|row| row.count));
    let total: f64 = waits.iter().map(|row| row.seconds).sum();
    let most = waits.first()?;
    Some(format!(
        "Threads waited {} for the address-space lock in {count} waits, mostly in {}.",
        seconds(total),
        most.operation
    ))
}

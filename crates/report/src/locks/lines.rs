//! Rows in words: what the terminal, the page and the live screen all say.

use super::schema::{CodeSite, LockRow, LocksResult, Nested, Owner};
use crate::number::estimate;
use crate::plain::{command_line, plain};

/// Seconds in three digits with their unit.
pub(super) fn brief(seconds: f64) -> String {
    let (scaled, unit) = match seconds.abs() {
        v if v == 0.0 || v >= 1.0 => (seconds, "s"),
        v if v >= 1e-3 => (seconds * 1e3, "ms"),
        v if v >= 1e-6 => (seconds * 1e6, "µs"),
        _ => (seconds * 1e9, "ns"),
    };
    format!("{}\u{a0}{unit}", estimate(scaled))
}

/// A count with its noun in the right number.
pub(super) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count}\u{a0}{}", if count == 1 { one } else { many })
}

/// `queue.c:77`, with the whole path of the file if `whole`.
pub(super) fn position(site: &CodeSite, whole: bool) -> String {
    let Some(file) = &site.file else {
        return String::new();
    };
    let name = file.rsplit('/').next().unwrap_or(file);
    let file = if whole { file.as_str() } else { name };
    match site.line {
        Some(line) => format!("{file}:{line}"),
        None => file.to_owned(),
    }
}

/// The function, or what else there is.
pub fn function(site: &CodeSite) -> String {
    if site.symbol.is_empty() {
        "(unknown place)".to_owned()
    } else {
        site.symbol.clone()
    }
}

/// The last parts of a function's name, without what a template or a generic is of:
/// `<app::Store<u64> as app::Put>::put_all` is `put_all`, `app::Store<u64>::get` is `Store::get`.
pub(super) fn short(symbol: &str) -> String {
    let mut name = String::new();
    let mut depth = 0_usize;
    for c in symbol.chars() {
        match c {
            '<' | '{' => depth += 1,
            '>' | '}' => depth = depth.saturating_sub(1),
            // Arguments of C++; Go writes `main.(*T).f`.
            '(' if depth == 0 && name.ends_with(|c: char| c.is_alphanumeric() || c == '_') => break,
            c if depth == 0 => name.push(c),
            _ => {}
        }
    }
    let parts: Vec<&str> = name.split("::").filter(|part| !part.is_empty()).collect();
    let kept = parts[parts.len().saturating_sub(2)..].join("::");
    if kept.is_empty() {
        symbol.to_owned()
    } else {
        kept
    }
}

/// Frames of a stack in one line, at most.
const FRAMES: usize = 16;

/// `lock < put < main`: a call stack, innermost first, that breaks before callers alone; what is left
/// out stands for `mark`.
pub(crate) fn callers(stack: &[String], mark: &str) -> String {
    if stack.is_empty() {
        return "no stack was taken".to_owned();
    }
    let whole = |frame: &String| short(frame).replace(' ', "\u{a0}");
    let mut names: Vec<String> = stack.iter().take(FRAMES).map(whole).collect();
    if stack.len() > FRAMES {
        names.push(format!("{mark}\u{a0}{}\u{a0}more", stack.len() - FRAMES));
    }
    names.join(" <\u{a0}")
}

/// `put queue.c:77`: function and position.
pub fn place(site: &CodeSite) -> String {
    let position = position(site, false);
    if position.is_empty() {
        function(site)
    } else {
        format!("{} {position}", function(site))
    }
}

/// Whose waits the row adds up; empty for a row of all.
pub fn whose(row: &LockRow) -> String {
    if row.tid != 0 {
        return format!("{} [{}]", row.thread, row.tid);
    }
    match (row.address.is_empty(), row.pid) {
        (true, 0) => String::new(),
        (true, pid) => format!("{} [{pid}]", row.process),
        (false, 0) => row.address.clone(),
        (false, pid) => format!("{} of {} [{pid}]", row.address, row.process),
    }
}

/// `put queue.c:77`, or whose row it is and that.
pub(super) fn title(row: &LockRow) -> String {
    let whose = whose(row);
    if whose.is_empty() {
        place(&row.site)
    } else {
        format!("{whose} {}", place(&row.site))
    }
}

/// What was watched.
pub(super) fn target(result: &LocksResult) -> String {
    if result.command.is_empty() {
        plain(&result.target)
    } else {
        command_line(&result.command)
    }
}

/// Name of the thread, or of its process if it has none.
pub(super) fn owner_name(owner: &Owner) -> &str {
    match (owner.thread.as_str(), owner.process.as_str()) {
        ("", "") => "a thread",
        ("", process) => process,
        (thread, _) => thread,
    }
}

/// `worker (3 threads)`.
pub fn releaser(owner: &Owner) -> String {
    let name = owner_name(owner);
    let many = if owner.threads > 1 {
        format!(" ({} threads)", owner.threads)
    } else {
        String::new()
    };
    format!("{name}{many}")
}

/// `worker in put queue.c:80`.
pub fn owner(owner: &Owner) -> String {
    let releaser = releaser(owner);
    if owner.site.symbol.is_empty() {
        releaser
    } else {
        format!("{releaser} in {}", place(&owner.site))
    }
}

/// `pthread mutex in get, whose holder waited for mutex in pipe_write`.
pub fn chain(nested: &Nested) -> String {
    let steps = nested.chain.iter();
    let steps: Vec<String> = steps
        .map(|step| format!("{} in {}", step.what, place(&step.site)))
        .collect();
    steps.join(", whose holder waited for ")
}

/// Sum of the waiting time of rows of a class.
pub(super) fn total(rows: &[LockRow], is_of: impl Fn(&LockRow) -> bool) -> f64 {
    rows.iter()
        .filter(|row| is_of(row))
        .map(|row| row.total_s)
        .sum()
}

/// The row's waits are for somebody else's message, not for something that is taken.
pub fn is_partner(row: &LockRow) -> bool {
    row.class == "partner"
}

/// By what the rows are sorted.
pub(super) fn order(result: &LocksResult) -> &'static str {
    match &*result.sort {
        "times" => "Most waits first",
        "max" => "Longest single wait first",
        "mean" => "Longest mean wait first",
        "p99" => "Longest 99th percentile first",
        _ => "Longest waiting time first",
    }
}

/// What a reader should take away when he reads nothing else.
pub(super) fn headline(result: &LocksResult) -> String {
    let waited = total(&result.rows, |row| !is_partner(row));
    let locks = result.rows.iter().filter(|row| !is_partner(row));
    // Rows may be sorted by another figure; of equals it is the first.
    let Some(first) = locks.min_by(|a, b| b.total_s.total_cmp(&a.total_s)) else {
        return format!("No wait for a lock in {}.", brief(result.seconds));
    };
    format!(
        "Threads waited {} for locks in {}, most of it ({}) for {} in {}.",
        brief(waited),
        brief(result.seconds),
        brief(first.total_s),
        first.what,
        place(&first.site)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_a_line_of_its_innermost_frames() {
        let stack =
            |frames: usize| -> Vec<String> { (0..frames).map(|i| format!("f{i}")).collect() };
        let said = |frames| callers(&stack(frames), "…").replace('\u{a0}', " ");
        assert_eq!(said(0), "no stack was taken");
        assert_eq!(said(3), "f0 < f1 < f2");
        assert!(said(16).ends_with(" < f15"));
        assert!(said(18).ends_with(" < f15 < … 2 more"));
        let generic = ["core::ops::call<fn(u8, u8)>".to_owned()];
        assert_eq!(callers(&generic, "…"), "ops::call");
    }

    #[test]
    fn long_names_keep_what_matters() {
        for (symbol, expected) in [
            ("queue_put", "queue_put"),
            ("<app::Store<u64> as app::Put>::put_all", "put_all"),
            ("app::store::Store<u64>::get", "Store::get"),
            ("app::Store::put(int, std::string const&)", "Store::put"),
            ("main.(*Server).handle", "main.(*Server).handle"),
            ("operator<", "operator"),
            ("<>", "<>"),
        ] {
            assert_eq!(short(symbol), expected);
        }
    }
}

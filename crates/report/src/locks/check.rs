//! What every result of `amdahl locks` must satisfy, whoever wrote it.

use super::schema::{CodeSite, LockRow, LocksResult, PARTS_MAX, SCHEMA};
use crate::check::{Checked, FRAMES_MAX, ITEMS_MAX, WORDS_MAX, at_most, bad, positive, short};
use crate::plain::quote;

/// How far `mean_s` may be from `total_s / times`, relatively.
const MEAN_TOLERANCE: f64 = 1e-6;

pub(super) fn check(result: &LocksResult) -> Checked {
    if result.schema != SCHEMA {
        let found = quote(&result.schema);
        return bad("schema", format!("is {found}, not `{SCHEMA}`"));
    }
    for (field, text) in [
        ("amdahl_version", &result.amdahl_version),
        ("target", &result.target),
        ("started", &result.started),
        ("by", &result.by),
        ("machine.kernel", &result.machine.kernel),
        ("machine.cpu_model", &result.machine.cpu_model),
        ("machine.topology", &result.machine.topology),
    ] {
        short(field, text)?;
    }
    for (field, value) in [
        ("seconds", result.seconds),
        ("p99_error", result.p99_error),
        ("left_out_s", result.left_out_s),
        (
            "machine.quota_cpus",
            result.machine.quota_cpus.unwrap_or(0.0),
        ),
    ] {
        positive(field, value)?;
    }
    at_most("command", result.command.len(), WORDS_MAX)?;
    for (i, word) in result.command.iter().enumerate() {
        short(&format!("command.{i}"), word)?;
    }
    at_most("sources", result.sources.len(), ITEMS_MAX)?;
    for (i, source) in result.sources.iter().enumerate() {
        for text in [&source.what, &source.how, &source.missing, &source.remedy] {
            short(&format!("sources.{i}"), text)?;
        }
    }
    at_most("warnings", result.warnings.len(), ITEMS_MAX)?;
    for (i, warning) in result.warnings.iter().enumerate() {
        short(&format!("warnings.{i}.code"), &warning.code)?;
        short(&format!("warnings.{i}.text"), &warning.text)?;
    }
    let Some(order) = order(&result.sort) else {
        let found = quote(&result.sort);
        return bad(
            "sort",
            format!("is {found}, not total, times, max, mean or p99"),
        );
    };
    rows("rows", &result.rows, order)?;
    rows("holds", &result.holds, order)
}

/// The field that rows are sorted by, and its figure.
type Order = (&'static str, fn(&LockRow) -> f64);

/// Results without the field are sorted by totals.
fn order(sort: &str) -> Option<Order> {
    Some(match sort {
        "" | "total" => ("total_s", |row| row.total_s),
        "times" => ("times", |row| row.times as f64),
        "max" => ("max_s", |row| row.max_s),
        "mean" => ("mean_s", |row| row.mean_s),
        "p99" => ("p99_s", |row| row.p99_s.unwrap_or(0.0)),
        _ => return None,
    })
}

fn rows(at: &str, rows: &[LockRow], (field, figure): Order) -> Checked {
    at_most(at, rows.len(), ITEMS_MAX)?;
    for (i, row) in rows.iter().enumerate() {
        check_row(&format!("{at}.{i}"), row)?;
    }
    // Means that are equal were rounded differently.
    let rises = |p: &[LockRow]| figure(&p[0]) * (1.0 + MEAN_TOLERANCE) < figure(&p[1]);
    match rows.windows(2).position(rises) {
        Some(i) => bad(
            format!("{at}.{}.{field}", i + 1),
            "is larger than that of the row before",
        ),
        None => Ok(()),
    }
}

fn check_row(at: &str, row: &LockRow) -> Checked {
    for (field, text) in [
        ("what", &row.what),
        ("class", &row.class),
        ("process", &row.process),
        ("thread", &row.thread),
        ("address", &row.address),
    ] {
        short(&format!("{at}.{field}"), text)?;
    }
    site(&format!("{at}.site"), &row.site)?;
    site(&format!("{at}.from"), &row.from)?;
    for (field, value) in [
        ("total_s", row.total_s),
        ("max_s", row.max_s),
        ("mean_s", row.mean_s),
        ("p99_s", row.p99_s.unwrap_or(0.0)),
    ] {
        positive(&format!("{at}.{field}"), value)?;
    }
    if row.max_s > row.total_s * (1.0 + MEAN_TOLERANCE) {
        return bad(format!("{at}.max_s"), "is larger than the total");
    }
    let mean = row.total_s / row.times.max(1) as f64;
    if (mean - row.mean_s).abs() > mean * MEAN_TOLERANCE + 1e-9 {
        return bad(format!("{at}.mean_s"), format!("is not {mean}"));
    }
    at_most(&format!("{at}.stack"), row.stack.len(), FRAMES_MAX)?;
    for (i, frame) in row.stack.iter().enumerate() {
        short(&format!("{at}.stack.{i}"), frame)?;
    }
    at_most(&format!("{at}.owners"), row.owners.len(), PARTS_MAX)?;
    for (i, owner) in row.owners.iter().enumerate() {
        let at = format!("{at}.owners.{i}");
        short(&at, &owner.process)?;
        short(&at, &owner.thread)?;
        site(&at, &owner.site)?;
        positive(&at, owner.seconds)?;
    }
    at_most(&format!("{at}.nested"), row.nested.len(), PARTS_MAX)?;
    for (i, nested) in row.nested.iter().enumerate() {
        let at = format!("{at}.nested.{i}");
        positive(&at, nested.seconds)?;
        at_most(&at, nested.chain.len(), PARTS_MAX)?;
        for step in &nested.chain {
            short(&at, &step.what)?;
            site(&at, &step.site)?;
        }
    }
    Ok(())
}

fn site(at: &str, site: &CodeSite) -> Checked {
    short(at, &site.symbol)?;
    short(at, &site.module)?;
    site.file.as_ref().map_or(Ok(()), |file| short(at, file))
}

//! What every result must satisfy, whoever wrote it.

use std::collections::BTreeMap;

use crate::plain::quote;
use crate::schema::{CauseReport, Fit, Point, ProfileEntry, SCHEMA, ScaleResult, Site, Spread};

/// The place in the result and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invalid {
    /// Path such as `points.0.wall_s.median`.
    pub at: String,
    /// What is wrong, with the value.
    pub what: String,
}

// Bounds far beyond every real sweep that keep a hostile file from costing much to show.
pub(crate) const POINTS_MAX: usize = 1024;
pub(crate) const RUNS_MAX: usize = 10_000;
pub(crate) const CAUSES_MAX: usize = 64;
pub(crate) const SITES_MAX: usize = 1_000;
pub(crate) const FRAMES_MAX: usize = 1_024;
pub(crate) const ITEMS_MAX: usize = 10_000;
pub(crate) const CPUS_MAX: u32 = 1 << 16;
/// More than the kernel lets any command have: two bytes each of a quarter of the largest stack.
pub(crate) const WORDS_MAX: usize = 1 << 20;
/// A command may carry a whole script as one argument.
const TEXT_BYTES_MAX: usize = 256 << 10;
const NAME_BYTES_MAX: usize = 64;
/// No figure of a result comes near; keeps sums and logarithms finite.
const FIGURE_MAX: f64 = 1e18;
/// How far the parts of a stack may be from adding up to one.
const STACK_TOLERANCE: f64 = 0.01;

pub(crate) type Checked = Result<(), Invalid>;

/// Checks a result.
pub(crate) fn check(result: &ScaleResult) -> Checked {
    if result.schema != SCHEMA {
        return bad(
            "schema",
            format!("is {}, not `{SCHEMA}`", quote(&result.schema)),
        );
    }
    short("amdahl_version", &result.amdahl_version)?;
    short("started", &result.started)?;
    at_most("command", result.command.len(), WORDS_MAX)?;
    for (i, word) in result.command.iter().enumerate() {
        short(&format!("command.{i}"), word)?;
    }
    machine_and_settings(result)?;
    at_most("sources", result.sources.len(), ITEMS_MAX)?;
    for (i, source) in result.sources.iter().enumerate() {
        for (field, text) in [
            ("what", &source.what),
            ("how", &source.how),
            ("missing", &source.missing),
            ("remedy", &source.remedy),
        ] {
            short(&format!("sources.{i}.{field}"), text)?;
        }
    }
    at_most("points", result.points.len(), POINTS_MAX)?;
    for (i, p) in result.points.iter().enumerate() {
        point(&format!("points.{i}"), p)?;
    }
    if let Some(i) = result
        .points
        .windows(2)
        .position(|pair| pair[0].cpus > pair[1].cpus)
    {
        return bad(
            format!("points.{}.cpus", i + 1),
            "is smaller than that of the point before",
        );
    }
    if let Some(at) = result.causes_point
        && at as usize >= result.points.len()
    {
        return bad(
            "causes_point",
            format!("is {at}, and there is no such point"),
        );
    }
    at_most("causes", result.causes.len(), CAUSES_MAX)?;
    for (i, c) in result.causes.iter().enumerate() {
        cause(&format!("causes.{i}"), c)?;
    }
    at_most("profile", result.profile.len(), SITES_MAX)?;
    for (i, entry) in result.profile.iter().enumerate() {
        profile_entry(&format!("profile.{i}"), entry)?;
    }
    for (name, model) in [
        ("amdahl", &result.models.amdahl),
        ("usl", &result.models.usl),
    ] {
        if let Some(model) = model {
            fit(&format!("models.{name}"), model)?;
        }
    }
    short("models.note", &result.models.note)?;
    if let Some(cost) = &result.probe_cost {
        positive("probe_cost.wall_ratio", cost.wall_ratio)?;
        range("probe_cost.range", cost.range)?;
    }
    at_most("warnings", result.warnings.len(), ITEMS_MAX)?;
    for (i, warning) in result.warnings.iter().enumerate() {
        short(&format!("warnings.{i}.code"), &warning.code)?;
        short(&format!("warnings.{i}.text"), &warning.text)?;
    }
    at_most("failures", result.failures.len(), ITEMS_MAX)?;
    for (i, failure) in result.failures.iter().enumerate() {
        short(&format!("failures.{i}.what"), &failure.what)?;
    }
    Ok(())
}

fn machine_and_settings(result: &ScaleResult) -> Checked {
    let machine = &result.machine;
    short("machine.kernel", &machine.kernel)?;
    short("machine.cpu_model", &machine.cpu_model)?;
    short("machine.topology", &machine.topology)?;
    if let Some(quota) = machine.quota_cpus {
        positive("machine.quota_cpus", quota)?;
    }
    let settings = &result.settings;
    short("settings.confinement", &settings.confinement)?;
    short("settings.speedup_of", &settings.speedup_of)?;
    at_most("settings.env", settings.env.len(), ITEMS_MAX)?;
    for (name, value) in &settings.env {
        short("settings.env", name)?;
        short("settings.env", value)?;
    }
    Ok(())
}

fn point(at: &str, p: &Point) -> Checked {
    if !(1..=CPUS_MAX).contains(&p.cpus) {
        return bad(
            format!("{at}.cpus"),
            format!("is {}, not 1 to {CPUS_MAX}", p.cpus),
        );
    }
    at_most(
        &format!("{at}.cpu_list"),
        p.cpu_list.len(),
        CPUS_MAX as usize,
    )?;
    spread(&format!("{at}.wall_s"), &p.wall_s)?;
    spread(&format!("{at}.probed_wall_s"), &p.probed_wall_s)?;
    if let Some(rate) = &p.rate {
        spread(&format!("{at}.rate"), rate)?;
    }
    range(&format!("{at}.speedup_range"), p.speedup_range)?;
    for (field, value) in [
        ("speedup", p.speedup),
        ("efficiency", p.efficiency),
        ("capacity_s", p.capacity_s),
        ("user_s", p.user_s),
        ("system_s", p.system_s),
        ("instructions", p.instructions.unwrap_or(0.0)),
        ("analysis_s", p.analysis_s),
    ] {
        positive(&format!("{at}.{field}"), value)?;
    }
    fraction(&format!("{at}.recorded"), p.recorded.unwrap_or(1.0))?;
    at_most(&format!("{at}.stack"), p.stack.len(), CAUSES_MAX)?;
    for (id, &part) in &p.stack {
        cause_id(&format!("{at}.stack"), id)?;
        fraction(&format!("{at}.stack.{id}"), part)?;
    }
    let sum: f64 = p.stack.values().sum();
    // Without a probed run there is no stack, which is not the same as a stack of nothing.
    if !p.stack.is_empty() && (sum - 1.0).abs() > STACK_TOLERANCE {
        return bad(format!("{at}.stack"), format!("adds up to {sum}, not to 1"));
    }
    at_most(
        &format!("{at}.stack_range"),
        p.stack_range.len(),
        CAUSES_MAX,
    )?;
    for (id, &[low, high]) in &p.stack_range {
        cause_id(&format!("{at}.stack_range"), id)?;
        let at = format!("{at}.stack_range.{id}");
        fraction(&at, low)?;
        fraction(&at, high)?;
        range(&at, [low, high])?;
    }
    Ok(())
}

fn cause(at: &str, c: &CauseReport) -> Checked {
    cause_id(&format!("{at}.id"), &c.id)?;
    fraction(&format!("{at}.fraction"), c.fraction)?;
    short(&format!("{at}.text"), &c.text)?;
    at_most(&format!("{at}.sites"), c.sites.len(), SITES_MAX)?;
    for (i, s) in c.sites.iter().enumerate() {
        site(&format!("{at}.sites.{i}"), s)?;
    }
    Ok(())
}

fn site(at: &str, s: &Site) -> Checked {
    fraction(&format!("{at}.fraction"), s.fraction)?;
    positive(&format!("{at}.seconds"), s.seconds)?;
    for (field, text) in [
        ("symbol", &s.symbol),
        ("module", &s.module),
        ("process", &s.process),
        ("thread", &s.thread),
        ("object", &s.object),
    ] {
        short(&format!("{at}.{field}"), text)?;
    }
    if let Some(file) = &s.file {
        short(&format!("{at}.file"), file)?;
    }
    at_most(&format!("{at}.stack"), s.stack.len(), FRAMES_MAX)?;
    for (i, frame) in s.stack.iter().enumerate() {
        short(&format!("{at}.stack.{i}"), frame)?;
    }
    Ok(())
}

fn profile_entry(at: &str, entry: &ProfileEntry) -> Checked {
    short(&format!("{at}.symbol"), &entry.symbol)?;
    short(&format!("{at}.module"), &entry.module)?;
    positive(&format!("{at}.user_s"), entry.user_s)?;
    positive(&format!("{at}.base_user_s"), entry.base_user_s)?;
    finite(&format!("{at}.extra_work"), entry.extra_work)?;
    finite(&format!("{at}.slow_work"), entry.slow_work)?;
    for (field, ratio) in [
        ("instructions_ratio", entry.instructions_ratio),
        ("slowdown", entry.slowdown),
    ] {
        if let Some(ratio) = ratio {
            positive(&format!("{at}.{field}"), ratio)?;
        }
    }
    Ok(())
}

fn fit(at: &str, model: &Fit) -> Checked {
    at_most(
        &format!("{at}.parameters"),
        model.parameters.len(),
        CAUSES_MAX,
    )?;
    at_most(
        &format!("{at}.confidence"),
        model.confidence.len(),
        CAUSES_MAX,
    )?;
    let names: BTreeMap<&String, ()> = model
        .parameters
        .keys()
        .chain(model.confidence.keys())
        .map(|name| (name, ()))
        .collect();
    for name in names.keys() {
        let usual = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(usual) {
            return bad(
                format!("{at}.parameters"),
                format!("has the name {}", quote(name)),
            );
        }
    }
    for (name, &value) in &model.parameters {
        finite(&format!("{at}.parameters.{name}"), value)?;
    }
    for (name, &interval) in &model.confidence {
        range(&format!("{at}.confidence.{name}"), interval)?;
    }
    positive(&format!("{at}.relative_rmse"), model.relative_rmse)
}

fn spread(at: &str, s: &Spread) -> Checked {
    for (field, value) in [("min", s.min), ("median", s.median), ("max", s.max)] {
        positive(&format!("{at}.{field}"), value)?;
    }
    if !(s.min <= s.median && s.median <= s.max) {
        return bad(
            at,
            format!("has median {} outside {} to {}", s.median, s.min, s.max),
        );
    }
    at_most(&format!("{at}.runs"), s.runs.len(), RUNS_MAX)?;
    for (i, &run) in s.runs.iter().enumerate() {
        positive(&format!("{at}.runs.{i}"), run)?;
    }
    Ok(())
}

/// Cause ids become JSON paths and class names, so the alphabet is narrow.
fn cause_id(at: &str, id: &str) -> Checked {
    let usual = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if id.is_empty() || id.len() > NAME_BYTES_MAX || !id.chars().all(usual) {
        return bad(at, format!("has the cause id {}", quote(id)));
    }
    Ok(())
}

pub(crate) fn short(at: &str, text: &str) -> Checked {
    if text.len() > TEXT_BYTES_MAX {
        return bad(
            at,
            format!("is {} bytes long, more than {TEXT_BYTES_MAX}", text.len()),
        );
    }
    Ok(())
}

pub(crate) fn at_most(at: &str, count: usize, max: usize) -> Checked {
    if count > max {
        // Not how many: a reader stops counting one beyond the limit.
        return bad(at, format!("has more than {max} entries"));
    }
    Ok(())
}

pub(crate) fn finite(at: &str, value: f64) -> Checked {
    if !value.is_finite() || value.abs() > FIGURE_MAX {
        return bad(at, format!("is {value}"));
    }
    Ok(())
}

pub(crate) fn positive(at: &str, value: f64) -> Checked {
    finite(at, value)?;
    if value < 0.0 {
        return bad(at, format!("is {value}, below zero"));
    }
    Ok(())
}

pub(crate) fn fraction(at: &str, value: f64) -> Checked {
    finite(at, value)?;
    // Rounding of sums may leave a part a hair outside.
    if !(-1e-6..=1.0 + 1e-6).contains(&value) {
        return bad(at, format!("is {value}, not a fraction from 0 to 1"));
    }
    Ok(())
}

pub(crate) fn range(at: &str, [low, high]: [f64; 2]) -> Checked {
    finite(at, low)?;
    finite(at, high)?;
    if low > high {
        return bad(at, format!("goes from {low} down to {high}"));
    }
    Ok(())
}

pub(crate) fn bad(at: impl Into<String>, what: impl Into<String>) -> Checked {
    Err(Invalid {
        at: at.into(),
        what: what.into(),
    })
}

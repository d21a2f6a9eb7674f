//! What every result must satisfy.

use serde_json::Value;

use super::schema::{LINKS_MAX, RUNS_MAX, SCHEMA, SchedResult};
use crate::check::{CPUS_MAX, ITEMS_MAX, Invalid, SITES_MAX, WORDS_MAX};
use crate::plain::quote;
use crate::save::{SaveError, json_of};

/// No figure comes near; keeps sums finite.
const FIGURE_MAX: f64 = 1e18;
const TEXT_BYTES_MAX: usize = 256 << 10;
/// Fields that may be absent.
const OPTIONAL: [&str; 5] = [
    "picture",
    "timelines",
    "recording",
    "last_cpu",
    "quota_cpus",
];
/// Columns of a picture at most.
const COLUMNS_MAX: u32 = 4_096;
/// Runs of cells over all CPUs, or over all threads, at most.
const PICTURE_RUNS_MAX: usize = 1 << 18;

fn bad<T>(at: &str, what: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid {
        at: at.to_owned(),
        what: what.into(),
    })
}

/// Checks a result.
pub(super) fn check(result: &SchedResult) -> Result<(), Invalid> {
    if result.schema != SCHEMA {
        return bad(
            "schema",
            format!("is {}, not `{SCHEMA}`", quote(&result.schema)),
        );
    }
    for (at, len, most) in [
        ("command", result.command.len(), WORDS_MAX),
        ("sources", result.sources.len(), ITEMS_MAX),
        ("warnings", result.warnings.len(), ITEMS_MAX),
        ("cpus", result.cpus.len(), CPUS_MAX as usize),
        ("steal", result.steal.len(), CPUS_MAX as usize),
        ("threads", result.threads.len(), SITES_MAX),
        ("wakers", result.wakers.len(), SITES_MAX),
        ("chains", result.chains.len(), SITES_MAX),
        ("guests", result.guests.len(), SITES_MAX),
        ("wasted.pairs", result.wasted.pairs.len(), SITES_MAX),
    ] {
        if len > most {
            return bad(at, format!("has more than {most} entries"));
        }
    }
    for (i, chain) in result.chains.iter().enumerate() {
        if chain.links.len() > LINKS_MAX {
            return bad(
                &format!("chains.{i}.links"),
                format!("has more than {LINKS_MAX} entries"),
            );
        }
    }
    picture(result)?;
    timelines(result)?;
    let value = serde_json::to_value(result).map_err(|error| Invalid {
        at: String::new(),
        what: error.to_string(),
    })?;
    figures(&mut String::new(), &value)
}

fn picture(result: &SchedResult) -> Result<(), Invalid> {
    let Some(picture) = &result.picture else {
        return Ok(());
    };
    if picture.columns > COLUMNS_MAX
        || picture.threads.len() > ITEMS_MAX
        || picture.cpus.len() > CPUS_MAX as usize
    {
        return bad("picture", "is larger than any picture");
    }
    let mut all = 0usize;
    for (i, row) in picture.cpus.iter().enumerate() {
        let at = format!("picture.cpus.{i}.runs");
        lane(&at, &row.runs, picture.columns, &mut all)?;
        if row
            .runs
            .iter()
            .any(|run| run[1] as usize > picture.threads.len() || run[2] > 16)
        {
            return bad(&at, "names a thread or a load that does not exist");
        }
    }
    Ok(())
}

/// Runs of a lane of a picture, each of as many columns as its first number says. `all` counts those of all lanes.
fn lane<const N: usize>(
    at: &str,
    runs: &[[u32; N]],
    columns_max: u32,
    all: &mut usize,
) -> Result<(), Invalid> {
    *all += runs.len();
    if runs.len() > RUNS_MAX || *all > PICTURE_RUNS_MAX {
        return bad(at, "has too many entries");
    }
    let columns: u64 = runs.iter().map(|run| u64::from(run[0])).sum();
    if columns > u64::from(columns_max) {
        return bad(
            at,
            format!("has {columns} columns, the picture {columns_max}"),
        );
    }
    Ok(())
}

fn timelines(result: &SchedResult) -> Result<(), Invalid> {
    let Some(timelines) = &result.timelines else {
        return Ok(());
    };
    if timelines.columns > COLUMNS_MAX || timelines.threads.len() > SITES_MAX {
        return bad("timelines", "is larger than any picture");
    }
    let mut all = 0usize;
    for (i, thread) in timelines.threads.iter().enumerate() {
        let at = format!("timelines.threads.{i}.runs");
        lane(&at, &thread.runs, timelines.columns, &mut all)?;
        let parts = |run: &[u32; 5]| run[1..].iter().map(|&part| u64::from(part)).sum::<u64>();
        if thread.runs.iter().any(|run| parts(run) > 16) {
            return bad(&at, "divides a column into more than there is");
        }
    }
    Ok(())
}

/// Every number of the result is a finite amount, every text has a length that can be shown.
fn figures(at: &mut String, value: &Value) -> Result<(), Invalid> {
    let within = |at: &mut String, key: &str, value: &Value| {
        let len = at.len();
        if len > 0 {
            at.push('.');
        }
        at.push_str(key);
        let checked = figures(at, value);
        at.truncate(len);
        checked
    };
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(figure) if (0.0..=FIGURE_MAX).contains(&figure) => Ok(()),
            _ => bad(at, format!("is {number}, not an amount")),
        },
        Value::String(text) if text.len() > TEXT_BYTES_MAX => bad(at, "is too long"),
        Value::Array(values) => {
            let mut entries = values.iter().enumerate();
            entries.try_for_each(|(i, value)| within(at, &i.to_string(), value))
        }
        Value::Object(fields) => fields
            .iter()
            .try_for_each(|(key, value)| within(at, key, value)),
        // What is no number becomes null on the way to JSON.
        Value::Null if !OPTIONAL.contains(&at.rsplit('.').next().unwrap_or("")) => {
            bad(at, "is no number")
        }
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

/// Checks `result` and gives it as the text of `result.json`.
///
/// # Errors
/// [`SaveError::Invalid`] when [`load`](super::load::load) would refuse it.
pub fn to_json(result: &SchedResult) -> Result<String, SaveError> {
    json_of(result, check, serde_json::to_string)
}

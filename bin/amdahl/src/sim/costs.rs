//! `amdahl sim costs`.

use amdahl_des::{Costs, published, table};
use serde::Serialize;
use serde_json::Value;

use super::calibrate::{MEASURED, SUMS};
use crate::cli::SimCosts;
use crate::failure::Failure;
use crate::screen;

#[derive(Serialize)]
struct Row {
    /// As in a file of costs; members of a group behind a dot.
    name: String,
    assumed: u64,
    is_measured: bool,
    /// Only the sum with this one is measured.
    sum_with: Option<&'static str>,
}

#[derive(Serialize)]
struct Set {
    name: String,
    source: String,
    costs: Costs,
}

#[derive(Serialize)]
struct Document {
    costs: Vec<Row>,
    published: Vec<Set>,
}

/// Lists them.
pub fn main(args: &SimCosts) -> Result<u8, Failure> {
    let sets = published().into_iter().map(|(name, costs)| Set {
        name,
        source: costs.source.clone(),
        costs,
    });
    let document = Document {
        costs: rows()?,
        published: sets.collect(),
    };
    let text = match args.json {
        true => {
            serde_json::to_string_pretty(&document)
                .map_err(|error| Failure::result(error.to_string()))?
                + "\n"
        }
        false => text(&document),
    };
    screen::print(&text)
}

fn rows() -> Result<Vec<Row>, Failure> {
    let all = serde_json::to_value(Costs::default())
        .map_err(|error| Failure::result(error.to_string()))?;
    let mut rows = vec![];
    let mut add = |name: String, value: &Value| {
        let Some(assumed) = value.as_u64() else {
            return;
        };
        let sum_with = SUMS
            .iter()
            .find_map(|&(a, b)| match (name == a, name == b) {
                (true, _) => Some(b),
                (_, true) => Some(a),
                _ => None,
            });
        rows.push(Row {
            is_measured: sum_with.is_some() || MEASURED.contains(&&*name),
            name,
            assumed,
            sum_with,
        });
    };
    for (name, value) in all.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(parts) => {
                for (part, value) in parts {
                    add(format!("{name}.{part}"), value);
                }
            }
            None => add(name.clone(), value),
        }
    }
    Ok(rows)
}

fn text(document: &Document) -> String {
    let mut rows = vec![["cost", "assumed", "measured by `calibrate`"].map(str::to_owned)];
    rows.extend(document.costs.iter().map(|row| {
        let measured = match (row.sum_with, row.is_measured) {
            (Some(other), _) => format!("its sum with {other}"),
            (None, true) => "yes".to_owned(),
            (None, false) => "no".to_owned(),
        };
        [row.name.clone(), row.assumed.to_string(), measured]
    }));
    let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
    let mut text = format!(
        "Costs in nanoseconds, those that end in _permille in thousandths. All are assumed without --costs.\n\n{}",
        table(&rows)
    );
    text += "\nPublished sets, for --costs NAME; what a source does not tell is assumed as above\n";
    for set in &document.published {
        text += &format!("  {}\n    {}\n", set.name, set.source);
    }
    text
}

//! `amdahl sim policies`.

use amdahl_placement::POLICIES;
use serde::Serialize;

use crate::cli::SimPolicies;
use crate::failure::Failure;
use crate::screen;

#[derive(Serialize)]
struct Row {
    name: &'static str,
    value: &'static str,
    is_policy: bool,
    is_addition: bool,
    summary: &'static str,
    source: &'static str,
    bad_case: &'static str,
}

/// Lists them.
pub fn main(args: &SimPolicies) -> Result<u8, Failure> {
    let rows: Vec<Row> = POLICIES
        .iter()
        .map(|policy| Row {
            name: policy.name,
            value: policy.value,
            is_policy: policy.is_policy(),
            is_addition: policy.is_addition(),
            summary: policy.summary,
            source: policy.source,
            bad_case: policy.bad_case,
        })
        .collect();
    if args.json {
        let json = serde_json::to_string_pretty(&rows)
            .map_err(|error| Failure::result(error.to_string()))?;
        return screen::print(&(json + "\n"));
    }
    let mut text = String::from(
        "A policy is a name of the first table, with names of the second one behind `+`: steal+spin=20us\n\
         By its parts: wake= and whose wake-ups it has, + where idle CPUs look, + what ticks do: wake=bounded+newidle+balance\n",
    );
    for (title, wanted) in [("Policies", true), ("Additions", false)] {
        text += &format!("\n{title}\n");
        for row in rows.iter().filter(|row| {
            if wanted {
                row.is_policy
            } else {
                row.is_addition
            }
        }) {
            let value = if row.value.is_empty() {
                String::new()
            } else {
                format!("={}", row.value)
            };
            text += &format!("  {}{value}\n    {}\n", row.name, row.summary);
            for (what, of) in [("source", row.source), ("bad case", row.bad_case)] {
                if !of.is_empty() {
                    text += &format!("    {what}: {of}\n");
                }
            }
        }
    }
    screen::print(&text)
}

//! `amdahl compare` and `amdahl report`: results that exist already, maybe from others.

use std::io::Write;

use amdahl_report::compare::compare;
use amdahl_report::load::load;
use amdahl_report::schema::ScaleResult;
use amdahl_report::{html, terminal};

use crate::cli::{Compare, Report};
use crate::failure::Failure;
use crate::screen;

fn read(path: &std::path::Path) -> Result<ScaleResult, Failure> {
    load(path).map_err(|error| Failure::result(error.to_string()))
}

/// Compares two results.
pub fn compare_main(args: &Compare) -> Result<u8, Failure> {
    let comparison = compare(&read(&args.before)?, &read(&args.after)?);
    let text = if args.json {
        let mut text = serde_json::to_string_pretty(&comparison).expect("plain data");
        text.push('\n');
        text
    } else {
        terminal::render_comparison(&comparison, screen::width(), screen::style())
    };
    screen::print(&text)
}

/// Shows a result again.
pub fn report_main(args: &Report) -> Result<u8, Failure> {
    if amdahl_report::load::schema_of(&args.result).as_deref()
        == Some(amdahl_report::sched::schema::SCHEMA)
    {
        return crate::sched::report(&args.result, args.html.as_deref());
    }
    let result = read(&args.result)?;
    let Some(page) = &args.html else {
        return screen::print(&terminal::render(&result, screen::width(), screen::style()));
    };
    // The samples are not read again: the page has no flame graphs then.
    let mut file = std::fs::File::create(page).map_err(|error| {
        Failure::result(format!(
            "cannot create {}: {error}; choose another file",
            page.display()
        ))
    })?;
    file.write_all(html::render(&result, &[]).as_bytes())
        .map_err(|error| Failure::result(format!("cannot write {}: {error}", page.display())))?;
    Ok(0)
}

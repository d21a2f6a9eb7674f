//! `amdahl compare` and `amdahl report`: results that exist already, maybe from others.

use std::io::Write;
use std::path::Path;

use amdahl_report::compare::compare;
use amdahl_report::load::{self, LoadError, RESULT_FILE, load};
use amdahl_report::samples::{self, SAMPLES_FILE};
use amdahl_report::schema::{SampleRow, ScaleResult};
use amdahl_report::{html, locks, mem, sched, terminal};

use crate::cli::{Compare, Report};
use crate::failure::Failure;
use crate::screen;
use crate::whole_file;

fn read(path: &Path) -> Result<ScaleResult, Failure> {
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

/// Shows a result again, of whatever view.
pub fn report_main(args: &Report) -> Result<u8, Failure> {
    let failed = |error: LoadError| Failure::result(error.to_string());
    if crate::sched::is_without_result(&args.result) {
        return crate::sched::report(&args.result, args.html.as_deref());
    }
    if is_samples_alone(&args.result) {
        return Err(Failure::result(format!(
            "{} has stacks but no {RESULT_FILE}, which has the figures; give the folder that the command wrote, \
             read {SAMPLES_FILE} with what reads Parquet, or measure again",
            args.result.display()
        )));
    }
    let (bytes, path) = load::read(&args.result).map_err(failed)?;
    if are_several(&bytes) {
        return Err(Failure::result(format!(
            "{} holds several results, one a line, as amdahl top --batch --json prints them; give a file with one of \
             them: tail -n 1 {0} > last.json",
            path.display()
        )));
    }
    let (width, style) = (screen::width(), screen::style());
    match schema(&bytes).as_str() {
        locks::schema::SCHEMA => {
            let result = locks::parse(&bytes, path).map_err(failed)?;
            let shown = locks::Shown {
                owners: true,
                ..locks::Shown::default()
            };
            show(
                args,
                || locks::render(&result, width, style, shown),
                |rows| locks::render_html(&result, rows),
            )
        }
        sched::schema::SCHEMA => crate::sched::report(&args.result, args.html.as_deref()),
        mem::schema::SCHEMA => {
            let result = mem::parse(&bytes, path).map_err(failed)?;
            show(
                args,
                || mem::terminal::render(&result, width, style),
                |rows| mem::html::render(&result, rows),
            )
        }
        _ => {
            let result = load::parse(&bytes, path).map_err(failed)?;
            show(
                args,
                || terminal::render(&result, width, style),
                |rows| html::render(&result, rows),
            )
        }
    }
}

/// The samples of a result without their result.
fn is_samples_alone(path: &Path) -> bool {
    if path.is_dir() {
        path.join(SAMPLES_FILE).exists() && !path.join(RESULT_FILE).exists()
    } else {
        path.file_name().is_some_and(|name| name == SAMPLES_FILE) && path.exists()
    }
}

/// Results one after the other, each on a line: of each moment one.
fn are_several(bytes: &[u8]) -> bool {
    let mut values =
        serde_json::Deserializer::from_slice(bytes).into_iter::<serde::de::IgnoredAny>();
    if !matches!(values.next(), Some(Ok(_))) {
        return false;
    }
    let ends_a_line = bytes[values.byte_offset()..].first() == Some(&b'\n');
    ends_a_line && matches!(values.next(), Some(Ok(_)))
}

/// What a result says it is; empty if it does not.
fn schema(bytes: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Named {
        schema: String,
    }
    serde_json::from_slice(bytes).map_or(String::new(), |named: Named| named.schema)
}

/// As text, or as a page into a file.
fn show(
    args: &Report,
    text: impl FnOnce() -> String,
    html: impl FnOnce(&[SampleRow]) -> String,
) -> Result<u8, Failure> {
    let Some(page) = &args.html else {
        return screen::print(&text());
    };
    let rows = rows_beside(&args.result)?;
    let text = html(rows.as_deref().unwrap_or_default());
    whole_file::write(page, &text)?;
    if rows.is_none() {
        let _ = writeln!(
            anstream::stderr(),
            "amdahl: there is no {SAMPLES_FILE} beside the result: the page has no flame graphs"
        );
    }
    Ok(0)
}

/// The samples of a result, for flame graphs; `None` where there are none: somebody may have passed
/// `result.json` on alone.
fn rows_beside(result: &Path) -> Result<Option<Vec<SampleRow>>, Failure> {
    let folder = if result.is_dir() {
        Some(result)
    } else {
        result.parent()
    };
    let file = folder.unwrap_or(Path::new("")).join(SAMPLES_FILE);
    if !file.exists() {
        return Ok(None);
    }
    samples::read(&file).map(Some).map_err(|error| {
        Failure::result(format!(
            "{error}, or remove the file for a page without flame graphs"
        ))
    })
}

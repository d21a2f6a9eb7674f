//! The report: all rows, and how many agree.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::page::{Constant, Page};
use crate::score::{Role, Row, WITHIN};

/// A page with what was simulated.
pub struct Section<'a> {
    pub page: &'a Page,
    pub rows: Vec<Row>,
    /// Of each of the page's orders whether it holds.
    pub orders: Vec<bool>,
}

impl Section<'_> {
    fn count(&self, role: Role) -> [usize; 2] {
        let of_role = || self.rows.iter().filter(|row| row.role == role);
        [
            of_role().filter(|row| row.is_near()).count(),
            of_role().count(),
        ]
    }

    fn fitted_row(&self, constant: &Constant) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == constant.fitted_on)
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        large if large >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn of([near, all]: [usize; 2]) -> String {
    match all {
        0 => "-".to_owned(),
        _ => format!("{near} of {all}"),
    }
}

/// `results.md`.
pub fn markdown(sections: &[Section], constants: &BTreeMap<String, f64>) -> String {
    let mut text = String::new();
    let sum = |role: Role| {
        let each = sections.iter().map(|section| section.count(role));
        each.fold([0, 0], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
    };
    let _ = write!(
        text,
        "Written by `run.sh`.\n\n\
         **{} independent predicted rows are within {:.0} %.** Besides: {} rows that follow from others by division, {} that repeat a \
         configuration, {} fitted ones.\n\n\
         | | predicted | derived | repeated | fitted | not modelled | orders that hold |\n|---|---|---|---|---|---|---|\n",
        of(sum(Role::Predicted)),
        WITHIN * 100.0,
        of(sum(Role::Derived)),
        of(sum(Role::Repeated)),
        sum(Role::Fitted)[1],
    );
    for section in sections {
        let published = || {
            section
                .page
                .orders
                .iter()
                .zip(&section.orders)
                .filter(|(order, _)| !order.expected)
        };
        let held = published().filter(|(_, holds)| **holds).count();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            section.page.title,
            of(section.count(Role::Predicted)),
            of(section.count(Role::Derived)),
            of(section.count(Role::Repeated)),
            section.count(Role::Fitted)[1],
            section.page.not_modelled.len(),
            of([held, published().count()]),
        );
    }
    text.push_str("\n## Fitted constants\n\n| constant | value | fitted on | error % there |\n|---|---|---|---|\n");
    for section in sections {
        for constant in &section.page.constants {
            let value = constants.get(&constant.name).copied().unwrap_or(f64::NAN);
            let error = section.fitted_row(constant).and_then(Row::error);
            let _ = writeln!(
                text,
                "| {}: {} | {} {} | {}: {} | {:+.1} |",
                constant.name,
                constant.what,
                number(value),
                constant.unit,
                section.page.title,
                constant.fitted_on,
                error.unwrap_or(f64::NAN) * 100.0,
            );
        }
    }
    for section in sections {
        one(&mut text, section);
    }
    text
}

fn one(text: &mut String, section: &Section) {
    let page = section.page;
    let _ = write!(text, "\n## {}\n\n{}\n", page.title, page.source.trim());
    if !page.about.is_empty() {
        let _ = write!(text, "\n{}\n", page.about.trim());
    }
    if !section.rows.is_empty() {
        text.push_str("\n| | published | simulated | error % | |\n|---|---|---|---|---|\n");
    }
    for row in &section.rows {
        let misses = match row.role {
            Role::Order => "",
            _ if row.is_near() => "",
            _ => ", **misses**",
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {}{misses} |",
            row.name,
            row.published.map_or("-".to_owned(), number),
            number(row.simulated),
            row.error()
                .map_or("-".to_owned(), |error| format!("{:+.1}", error * 100.0)),
            row.role.name(),
        );
    }
    for row in &page.not_modelled {
        let _ = writeln!(
            text,
            "| {} | {} | - | - | not modelled: {} |",
            row.row, row.published, row.why
        );
    }
    if !page.orders.is_empty() {
        text.push('\n');
    }
    for (order, holds) in page.orders.iter().zip(&section.orders) {
        let _ = writeln!(
            text,
            "- {}{}: {}",
            order.what,
            if order.expected {
                " (expected, not published)"
            } else {
                ""
            },
            if *holds { "yes" } else { "**no**" },
        );
    }
}

/// `results.csv`.
pub fn csv(sections: &[Section]) -> String {
    let mut text = "page,row,published,simulated,error_percent,role,within\n".to_owned();
    for section in sections {
        for row in &section.rows {
            let _ = writeln!(
                text,
                "{},\"{}\",{},{},{},{},{}",
                section.page.file,
                row.name,
                row.published
                    .map_or(String::new(), |value| value.to_string()),
                row.simulated,
                row.error()
                    .map_or(String::new(), |error| format!("{:+.1}", error * 100.0)),
                row.role.name(),
                row.is_near(),
            );
        }
        for row in &section.page.not_modelled {
            let (page, name, published) = (&section.page.file, &row.row, &row.published);
            let _ = writeln!(text, "{page},\"{name}\",\"{published}\",,,not modelled,");
        }
    }
    text
}

//! Rows as comma-separated values after RFC 4180, for spreadsheets and scripts.

use std::fmt::Write;

use super::lines::{owner_name, place};
use super::schema::{CodeSite, LockRow, LocksResult, Owner};
use crate::plain::plain;

const HEADER: &str = "what,class,site,file,line,module,process,pid,thread,tid,address,times,sleeps,open,\
max_s,total_s,mean_s,p99_s,locks,threads,from,from_file,from_line,stack,owners,owner_sites,owner_times,\
owner_s,unowned,kind,at_least,before";

/// A header and one line per wait and then per hold, in the order of the rows; seconds with nanosecond
/// digits. A field of several parts (frames, owners) has `;` between them.
pub fn csv(result: &LocksResult) -> String {
    let mut out = format!("{HEADER}\r\n");
    let waits = result.rows.iter().map(|row| ("wait", row));
    let holds = result.holds.iter().map(|row| ("hold", row));
    for (kind, row) in waits.chain(holds) {
        let [site, file, line] = code(&row.site);
        let texts = [
            field(&row.what),
            field(&row.class),
            site,
            file,
            line,
            field(&row.site.module),
            field(&row.process),
        ];
        let p99 = row.p99_s.map_or(String::new(), |p99| format!("{p99:.9}"));
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "{},{},{},{},{},{},{},{},{:.9},{:.9},{:.9},{p99},{},{},{},{},{},{kind},{},{}\r\n",
            texts.join(","),
            row.pid,
            field(&row.thread),
            row.tid,
            field(&row.address),
            row.times,
            row.sleeps,
            row.open,
            row.max_s,
            row.total_s,
            row.mean_s,
            row.locks,
            row.threads,
            code(&row.from).join(","),
            parts(&row.stack, String::clone),
            owners(row),
            row.at_least,
            row.before,
        );
    }
    out
}

/// Function, file and line.
fn code(site: &CodeSite) -> [String; 3] {
    let file = site.file.as_deref().unwrap_or_default();
    let line = site.line.map_or(String::new(), |line| line.to_string());
    [field(&site.symbol), field(file), line]
}

/// Who released or held, where, how often, for how long, in the same order; and the sleeps of nobody.
fn owners(row: &LockRow) -> String {
    let site = |owner: &Owner| match owner.site.symbol.as_str() {
        "" => String::new(),
        _ => place(&owner.site),
    };
    let fields = [
        parts(&row.owners, |owner| owner_name(owner).to_owned()),
        parts(&row.owners, site),
        parts(&row.owners, |owner| owner.times.to_string()),
        parts(&row.owners, |owner| format!("{:.9}", owner.seconds)),
        row.unowned.to_string(),
    ];
    fields.join(",")
}

/// Several texts in a field. A `;` in one of them (a type of Rust) is a `:`, so that it ends none.
fn parts<T>(all: &[T], text: impl Fn(&T) -> String) -> String {
    let texts: Vec<String> = all.iter().map(|it| text(it).replace(';', ":")).collect();
    field(&texts.join(";"))
}

/// Quoted where it must be.
fn field(text: &str) -> String {
    let text = plain(text);
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

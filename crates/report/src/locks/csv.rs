//! Rows as comma-separated values after RFC 4180, for spreadsheets and scripts.

use std::fmt::Write;

use super::schema::LocksResult;
use crate::plain::plain;

const HEADER: &str = "what,class,site,file,line,module,process,pid,thread,tid,address,times,sleeps,open,\
max_s,total_s,mean_s,p99_s,locks,threads";

/// A header and one line per row, in the order of the rows; seconds with nanosecond digits.
pub fn csv(result: &LocksResult) -> String {
    let mut out = format!("{HEADER}\r\n");
    for row in &result.rows {
        let line = row.site.line.map_or(String::new(), |line| line.to_string());
        let texts = [
            &row.what,
            &row.class,
            &row.site.symbol,
            row.site.file.as_ref().unwrap_or(&String::new()),
            &line,
            &row.site.module,
            &row.process,
        ]
        .map(|text| field(text));
        let p99 = row.p99_s.map_or(String::new(), |p99| format!("{p99:.9}"));
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "{},{},{},{},{},{},{},{},{:.9},{:.9},{:.9},{p99},{},{}\r\n",
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
            row.threads
        );
    }
    out
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

//! Cells of comma-separated values (RFC 4180) that a spreadsheet may open.

use crate::plain::plain;

/// A cell. One that a spreadsheet would take for a formula is made text by an apostrophe.
pub(crate) fn field(text: &str) -> String {
    let mut text = plain(text);
    if text.starts_with(['=', '+', '-', '@']) {
        text.insert(0, '\'');
    }
    if text.contains([',', '"', '\r', '\n', '\'']) {
        text = format!("\"{}\"", text.replace('"', "\"\""));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn cells_are_quoted() {
        assert_eq!(super::field("a,b\"c"), "\"a,b\"\"c\"");
        assert_eq!(super::field("=cmd()"), "\"'=cmd()\"");
        assert_eq!(super::field("plain"), "plain");
    }
}

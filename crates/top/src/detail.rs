//! Long lines on a narrow screen.

use unicode_width::UnicodeWidthChar;

/// Wraps at blanks where there are some, with the same indentation and two columns more.
pub fn wrap(lines: &[(usize, String)], width: usize) -> Vec<String> {
    let mut wrapped = Vec::new();
    for (indent, text) in lines {
        let room = width.saturating_sub(indent + 2).max(8);
        let mut is_first = true;
        for piece in pieces(text, room) {
            let blanks = indent + if is_first { 0 } else { 2 };
            wrapped.push(" ".repeat(blanks) + &piece);
            is_first = false;
        }
    }
    wrapped
}

fn pieces(text: &str, room: usize) -> Vec<String> {
    let (mut pieces, mut line, mut used) = (Vec::new(), String::new(), 0);
    for word in text.split_inclusive(' ') {
        let wide: usize = word.trim_end().chars().map(columns).sum();
        if used > 0 && used + wide > room {
            pieces.push(std::mem::take(&mut line));
            used = 0;
        }
        for c in word.chars() {
            if used + columns(c) > room && c != ' ' {
                pieces.push(std::mem::take(&mut line));
                used = 0;
            }
            line.push(c);
            used += columns(c);
        }
    }
    pieces.push(line);
    pieces
}

fn columns(c: char) -> usize {
    c.width().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_width::UnicodeWidthStr;

    proptest! {
        #[test]
        fn nothing_is_lost_and_no_line_is_too_long(text in "[a-z 日]{0,200}", width in 12..80_usize) {
            let lines = super::wrap(&[(2, text.clone())], width);
            for line in &lines {
                prop_assert!(line.trim_end().width() <= width, "{line:?}");
            }
            let letters = |text: &str| text.split_whitespace().collect::<String>();
            prop_assert_eq!(letters(&lines.concat()), letters(&text));
        }
    }
}

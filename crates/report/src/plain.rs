//! Foreign text made harmless: commands, symbols and file names come from programs nobody vetted.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Replaces what would move the cursor, hide text or turn its direction: control characters,
/// line and paragraph separators, bidirectional controls, invisible format characters.
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if is_harmless(c) { c } else { '\u{fffd}' })
        .collect()
}

fn is_harmless(c: char) -> bool {
    !c.is_control()
        && !matches!(c,
            '\u{00ad}' | '\u{034f}' | '\u{061c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e01ef}'
            // Variation selectors change the width of the character before them.
            | '\u{fe00}'..='\u{fe0f}'
            // Not characters at all; XML and HTML reject them.
            | '\u{fdd0}'..='\u{fdef}')
        && (u32::from(c) & 0xfffe) != 0xfffe
}

/// At most `columns` terminal columns: the middle gives way to `mark`.
pub fn elide(text: &str, columns: usize, mark: &str) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let Some(room) = columns.checked_sub(mark.width()) else {
        return text
            .chars()
            .scan(0, |used, c| take(c, used, columns))
            .collect();
    };
    // The end of a path or a symbol says more than its middle, the beginning a little less.
    let tail_room = room.div_ceil(2);
    let head_room = room - tail_room;
    let head: String = text
        .chars()
        .scan(0, |used, c| take(c, used, head_room))
        .collect();
    let tail: Vec<char> = text
        .chars()
        .rev()
        .scan(0, |used, c| take(c, used, tail_room))
        .collect();
    head + mark + &tail.into_iter().rev().collect::<String>()
}

fn take(c: char, used: &mut usize, room: usize) -> Option<char> {
    *used += c.width().unwrap_or(0);
    (*used <= room).then_some(c)
}

/// Bounds a piece of foreign text that goes into a message.
pub(crate) fn quote(text: &str) -> String {
    format!("`{}`", elide(&plain(text), 80, "..."))
}

/// The command as one line, words with unusual characters quoted as a shell would want them.
pub(crate) fn command_line(command: &[String]) -> String {
    let words: Vec<String> = command
        .iter()
        .map(|word| {
            let usual = |c: char| c.is_alphanumeric() || "_-./=:,+@%{}^".contains(c);
            if !word.is_empty() && word.chars().all(usual) {
                word.clone()
            } else {
                format!("'{}'", word.replace('\'', r"'\''"))
            }
        })
        .collect();
    plain(&words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_characters_vanish() {
        assert_eq!(
            plain("a\u{1b}[31mb\u{202e}c\nd\u{9b}"),
            "a\u{fffd}[31mb\u{fffd}c\u{fffd}d\u{fffd}"
        );
    }

    #[test]
    fn the_middle_gives_way() {
        assert_eq!(elide("abcdefghij", 10, "…"), "abcdefghij");
        assert_eq!(elide("abcdefghij", 7, "…"), "abc…hij");
        assert_eq!(elide("日本語日本語", 7, "…"), "日…語");
        assert_eq!(elide("abc", 0, "…"), "");
    }

    #[test]
    fn commands_are_quoted() {
        let command = ["sh", "-c", "it's \u{7}", ""].map(String::from);
        assert_eq!(command_line(&command), "sh -c 'it'\\''s \u{fffd}' ''");
    }
}

//! Makes text from other sources harmless for a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

use rondel_core::plain::is_invisible;

/// Escapes the characters that a terminal would obey, that would reorder visible text, or that would make two texts look the
/// same: control characters (ANSI escapes begin with one), and Unicode's invisible characters. A tab stays.
pub(crate) fn harmless_text(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut escaped_text = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => escaped_text.push_str("\\n"),
            '\r' => escaped_text.push_str("\\r"),
            c if !is_harmful(c) => escaped_text.push(c),
            c if c.is_ascii() => write!(escaped_text, "\\x{:02x}", u32::from(c)).unwrap_or_default(),
            c => write!(escaped_text, "\\u{{{:x}}}", u32::from(c)).unwrap_or_default(),
        }
    }
    Cow::Owned(escaped_text)
}

/// The text with each of its lines made harmless. Every line gets a line break.
pub(crate) fn harmless_lines(text: &str) -> String {
    text.lines().map(|line| harmless_text(line) + "\n").collect()
}

/// Whether a terminal would obey the character, or it would reorder visible text, or it is invisible.
pub(crate) fn is_harmful(c: char) -> bool {
    (c.is_control() && c != '\t') || is_invisible(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_log_cannot_drive_the_terminal() {
        for (text, safe) in [
            ("plain 日志 ✓\ttab", "plain 日志 ✓\ttab"),
            ("\u{1b}[2J\u{1b}]0;owned\u{7}", "\\x1b[2J\\x1b]0;owned\\x07"),
            ("over\rwritten\nline", "over\\rwritten\\nline"),
            ("c1 \u{9b}31m", "c1 \\u{9b}31m"),
            ("bidi \u{202e}gpj.exe", "bidi \\u{202e}gpj.exe"),
            ("\u{7f}", "\\x7f"),
            ("ad\u{200b}min\u{2060}\u{2064}", "ad\\u{200b}min\\u{2060}\\u{2064}"),
            ("soft\u{ad}hyphen \u{3164}", "soft\\u{ad}hyphen \\u{3164}"),
            ("tag \u{e0041}", "tag \\u{e0041}"),
        ] {
            assert_eq!(harmless_text(text), safe);
        }
    }

    #[test]
    fn characters_that_cannot_be_seen_are_escaped() {
        let ranges =
            ['\u{200b}'..='\u{200f}', '\u{2028}'..='\u{202e}', '\u{2060}'..='\u{2069}', '\u{feff}'..='\u{feff}'];
        for c in ranges.into_iter().flatten() {
            assert_eq!(harmless_text(&format!("a{c}b")), format!("a\\u{{{:x}}}b", u32::from(c)));
        }
    }

    #[test]
    fn text_for_a_terminal_keeps_its_lines_alone() {
        assert_eq!(harmless_lines("a\u{9b}\n\u{1b}[2J\u{202e}b\n"), "a\\u{9b}\n\\x1b[2J\\u{202e}b\n");
    }
}

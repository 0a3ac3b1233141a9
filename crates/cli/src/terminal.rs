//! What others wrote, made harmless for a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The text with everything escaped that a terminal would obey or that would reorder visible text: control
/// characters (ANSI escapes begin with one), and Unicode's invisible signs for direction and lines. A tab stays.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            c if !is_harmful(c) => safe.push(c),
            c if c.is_ascii() => write!(safe, "\\x{:02x}", u32::from(c)).unwrap_or_default(),
            c => write!(safe, "\\u{{{:x}}}", u32::from(c)).unwrap_or_default(),
        }
    }
    Cow::Owned(safe)
}

/// Whether a terminal would obey it, or it would reorder visible text.
pub(crate) fn is_harmful(c: char) -> bool {
    let is_invisible_sign = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
    );
    (c.is_control() && c != '\t') || is_invisible_sign
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
        ] {
            assert_eq!(harmless(text), safe);
        }
    }
}

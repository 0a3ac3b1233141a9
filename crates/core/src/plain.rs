//! Text for one line of a screen: without control characters, which a terminal obeys, and without Unicode's invisible characters, which
//! make one text look like another.

/// Shown in place of a character that cannot be seen.
const REPLACEMENT: char = '\u{fffd}';

/// Whether a character is a control character or one that cannot be seen.
#[must_use]
pub fn is_control_or_invisible(c: char) -> bool {
    c.is_control() || is_invisible(c)
}

/// Whether a character is invisible: ignorable by default in Unicode, or a line separator. Variation selectors do not count,
/// because they follow characters that can be seen.
#[must_use]
pub const fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Whether a character joins or separates its neighbours: texts need it for Persian and Indian words and for some emoji, but in a name it
/// would make two names look the same.
#[must_use]
pub const fn is_joiner(c: char) -> bool {
    matches!(c, '\u{200c}' | '\u{200d}')
}

/// Checks that a text is one line of 1 to `len_max` characters that can all be seen, without spaces at its ends.
///
/// # Errors
/// A sentence that describes the allowed form, without the field's name.
///
/// ```
/// use rondel_core::plain::check_line;
///
/// assert!(check_line("nightly import 表", 100).is_ok());
/// for text in ["", " a", "a\nb", "a\u{1b}[2J", "a\u{202e}b", "aaaa"] {
///     assert!(check_line(text, 3).is_err(), "{text:?}");
/// }
/// ```
pub fn check_line(text: &str, len_max: usize) -> Result<(), String> {
    let len = text.chars().count();
    if (1..=len_max).contains(&len) && text.trim() == text && !text.contains(is_control_or_invisible) {
        return Ok(());
    }
    Err(format!(
        "must be 1 to {len_max} characters on one line, without control or invisible characters, and without spaces at \
         its ends"
    ))
}

/// The text on one line: characters that cannot be seen are replaced.
///
/// ```
/// assert_eq!(rondel_core::plain::cleaned("a\u{1b}[2J\nb\u{202e}"), "a\u{fffd}[2J\u{fffd}b\u{fffd}");
/// ```
#[must_use]
pub fn cleaned(text: &str) -> String {
    text.chars().map(|c| if is_control_or_invisible(c) { REPLACEMENT } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_visible_characters_up_to_its_length() {
        for good in ["a", "abc", "a b", "表表表"] {
            assert_eq!(check_line(good, 3), Ok(()), "{good}");
        }
        for bad in [
            "",
            "abcd",
            "表表表表",
            " ab",
            "ab ",
            "a\nb",
            "a\u{7f}",
            "a\u{200b}b",
            "a\u{200c}b",
            "a\u{200d}b",
            "a\u{ad}b",
            "\u{feff}a",
        ] {
            assert!(check_line(bad, 3).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn unseen_signs_are_replaced_and_others_stay() {
        for c in
            ['\0', '\n', '\u{1b}', '\u{9b}', '\u{61c}', '\u{200c}', '\u{200d}', '\u{202e}', '\u{2069}', '\u{e0041}']
        {
            assert!(is_control_or_invisible(c), "{c:?}");
            assert_eq!(cleaned(&format!("a{c}b")), "a\u{fffd}b");
        }
        assert_eq!(cleaned("a é 表 ❤\u{fe0f} \u{2029}"), "a é 表 ❤\u{fe0f} \u{fffd}");
    }
}

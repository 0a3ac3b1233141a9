//! Makes a text fit for a line of a log.

use crate::masks::Masks;

/// The longest line, in bytes.
pub(crate) const LINE_BYTES_MAX: usize = 16 * 1024;

const CUT_MARK: &str = " … [line cut]";

/// Masks secrets, replaces NUL (which some databases cannot store in a text), and cuts a long line with a visible mark.
pub(crate) fn sanitize(text: &str, masks: &Masks) -> String {
    let masked_text = masks.apply(text.trim_end_matches(['\n', '\r']));
    let clean_text =
        if masked_text.contains('\0') { masked_text.replace('\0', "\u{fffd}") } else { masked_text.into_owned() };
    if clean_text.len() <= LINE_BYTES_MAX {
        return clean_text;
    }
    let end = clean_text.floor_char_boundary(LINE_BYTES_MAX - CUT_MARK.len());
    format!("{}{CUT_MARK}", &clean_text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_clean_and_bounded() {
        let masks = Masks::new(["hidden".to_owned()]);
        assert_eq!(sanitize("a\0b hidden\r\n", &masks), "a\u{fffd}b ***");
        let long = sanitize(&"ä".repeat(LINE_BYTES_MAX), &masks);
        assert!(long.len() <= LINE_BYTES_MAX && long.ends_with(CUT_MARK), "{}", long.len());
        assert_eq!(sanitize(&"x".repeat(LINE_BYTES_MAX), &masks).len(), LINE_BYTES_MAX);
    }
}

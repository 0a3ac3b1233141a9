//! Renders lines of a log as HTML. Markup in a line is escaped, colour codes become classes from a fixed list, and invisible characters
//! are shown as text.

use rondel_core::plain::is_invisible;

/// Maximum length of an escape sequence, in bytes. Longer ones are shown as text.
const SEQUENCE_LEN_MAX: usize = 64;

/// The current style of the text, as set by the colour codes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TextStyle {
    colour: Option<u8>,
    bold: bool,
    dim: bool,
    italic: bool,
    underline: bool,
}

/// Renders one line as HTML.
pub(crate) fn html(line: &str) -> String {
    let mut writer =
        Writer { html: String::with_capacity(line.len() + 16), style: TextStyle::default(), is_span_open: false };
    let mut unread_text = line;
    while let Some(c) = unread_text.chars().next() {
        if let Some(text_after) =
            unread_text.strip_prefix("\u{1b}[").and_then(|sequence| writer.read_sequence(sequence))
        {
            unread_text = text_after;
        } else {
            writer.push(c);
            unread_text = &unread_text[c.len_utf8()..];
        }
    }
    writer.close();
    writer.html
}

struct Writer {
    html: String,
    style: TextStyle,
    is_span_open: bool,
}

impl Writer {
    /// Reads the rest of a control sequence and returns the text after it. Applies colours and drops other sequences. `None` if it is not
    /// a complete, valid sequence.
    fn read_sequence<'l>(&mut self, unread_text: &'l str) -> Option<&'l str> {
        let bytes = unread_text.as_bytes();
        let final_index = bytes.iter().take(SEQUENCE_LEN_MAX).position(|byte| (0x40..=0x7e).contains(byte))?;
        if !bytes[..final_index].iter().all(|byte| (0x20..=0x3f).contains(byte)) {
            return None;
        }
        if bytes[final_index] == b'm' {
            let style_before = self.style;
            self.style = self.style.with_codes(&unread_text[..final_index]);
            if self.style != style_before {
                self.close();
            }
        }
        Some(&unread_text[final_index + 1..])
    }

    fn push(&mut self, c: char) {
        if !self.is_span_open && self.style != TextStyle::default() {
            self.html.push_str(&format!("<span class=\"{}\">", self.style.classes()));
            self.is_span_open = true;
        }
        match c {
            '&' => self.html.push_str("&amp;"),
            '<' => self.html.push_str("&lt;"),
            '>' => self.html.push_str("&gt;"),
            '"' => self.html.push_str("&quot;"),
            '\'' => self.html.push_str("&#39;"),
            '\t' => self.html.push('\t'),
            c => match visible_char(c) {
                Some(visible_text) => self.html.push_str(&format!("<span class=\"ctl\">{visible_text}</span>")),
                None => self.html.push(c),
            },
        }
    }

    fn close(&mut self) {
        if self.is_span_open {
            self.html.push_str("</span>");
            self.is_span_open = false;
        }
    }
}

/// Visible text for a character that is invisible or would move other characters; `None` for all others.
fn visible_char(c: char) -> Option<String> {
    let code = u32::from(c);
    match c {
        // In the notation of terminals: ^G for a bell, ^[ for escape.
        '\u{0}'..='\u{1f}' => char::from_u32(0x40 + code).map(|c| format!("^{c}")),
        '\u{7f}' => Some("^?".to_owned()),
        '\u{80}'..='\u{9f}' => Some(format!("U+{code:04X}")),
        c if is_invisible(c) => Some(format!("U+{code:04X}")),
        _ => None,
    }
}

impl TextStyle {
    fn with_codes(self, codes_text: &str) -> Self {
        let mut style = self;
        let mut codes =
            codes_text.split([';', ':']).map(|code| if code.is_empty() { Some(0) } else { code.parse::<u8>().ok() });
        while let Some(code) = codes.next() {
            match code {
                Some(0) => style = Self::default(),
                Some(1) => style.bold = true,
                Some(2) => style.dim = true,
                Some(3) => style.italic = true,
                Some(4) => style.underline = true,
                Some(22) => (style.bold, style.dim) = (false, false),
                Some(23) => style.italic = false,
                Some(24) => style.underline = false,
                Some(code @ (30..=37 | 90..=97)) => style.colour = Some(code),
                Some(39) => style.colour = None,
                // The numbers after 38 and 48 select one of 256 or 16 million colours. They are skipped.
                Some(38 | 48) => match codes.next() {
                    Some(Some(5)) => drop(codes.next()),
                    Some(Some(2)) => drop(codes.nth(2)),
                    _ => {}
                },
                _ => {}
            }
        }
        style
    }

    fn classes(self) -> String {
        let mut classes: Vec<String> = self.colour.map(|colour| format!("a{colour}")).into_iter().collect();
        let flags = [(self.bold, "ab"), (self.dim, "ad"), (self.italic, "ai"), (self.underline, "au")];
        classes.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, class)| class.to_owned()));
        classes.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_text() {
        assert_eq!(html("<script>alert('\"&')</script>"), "&lt;script&gt;alert(&#39;&quot;&amp;&#39;)&lt;/script&gt;");
        assert_eq!(html("\u{1b}[31m<b>"), "<span class=\"a31\">&lt;b&gt;</span>");
    }

    #[test]
    fn colours_are_classes_and_other_sequences_vanish() {
        assert_eq!(html("a\u{1b}[1;32mb\u{1b}[0mc"), "a<span class=\"a32 ab\">b</span>c");
        assert_eq!(html("\u{1b}[38;5;196mx\u{1b}[2Ky"), "xy");
        assert_eq!(html("\u{1b}[38;2;1;2;3;4mx"), "<span class=\"au\">x</span>");
        assert_eq!(html("\u{1b}[mx\u{1b}[31m"), "x");
        assert_eq!(html("\u{1b}[31ma\u{1b}[31mb"), "<span class=\"a31\">ab</span>");
    }

    #[test]
    fn control_codes_can_be_seen() {
        assert_eq!(html("a\u{7}b\tc"), "a<span class=\"ctl\">^G</span>b\tc");
        assert_eq!(html("\u{1b}]0;title\u{7}"), "<span class=\"ctl\">^[</span>]0;title<span class=\"ctl\">^G</span>");
        assert_eq!(html("\u{202e}x"), "<span class=\"ctl\">U+202E</span>x");
        assert!(html("\u{1b}[").starts_with("<span class=\"ctl\">"));
        assert!(html(&format!("\u{1b}[{}", "1".repeat(200))).contains("^["));
        assert_eq!(html("日本 é 🦀"), "日本 é 🦀");
    }
}

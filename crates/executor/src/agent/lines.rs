//! Cuts the output of a process into lines as it arrives.

use crate::log::LINE_BYTES_MAX as LOGGED_MAX;

/// The longest form of a secret that is hidden completely at the place where the log cuts a line.
const SECRET_BYTES_MAX: usize = 32 * 1024;

/// Maximum length of a line, in bytes. A longer line is passed on at this length, and its rest is skipped. The maximum
/// is more than a log takes. So the log marks the line as cut, and it gets the whole of a secret that is at the cut: it
/// would not recognise the first part alone.
const LINE_BYTES_MAX: usize = LOGGED_MAX + SECRET_BYTES_MAX;

#[derive(Debug, Default)]
pub(super) struct Lines {
    partial_line: Vec<u8>,
    /// Whether the rest of a line that was too long is being skipped.
    is_skipping: bool,
}

impl Lines {
    /// Takes more of the output and passes each complete line to `emit`.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut emit: impl FnMut(&str)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.add(&bytes[..end], &mut emit);
            if !std::mem::take(&mut self.is_skipping) {
                self.flush(&mut emit);
            }
            bytes = &bytes[end + 1..];
        }
        self.add(bytes, &mut emit);
    }

    /// Passes on the last line, at the end of the output.
    pub(super) fn finish(mut self, mut emit: impl FnMut(&str)) {
        if !self.partial_line.is_empty() {
            self.flush(&mut emit);
        }
    }

    /// The beginning of the last line, whose end has not arrived; `None` if the rest of a line that was too long is
    /// being skipped.
    pub(super) fn into_partial_line(self) -> Option<Vec<u8>> {
        (!self.is_skipping).then_some(self.partial_line)
    }

    fn add(&mut self, bytes: &[u8], emit: &mut impl FnMut(&str)) {
        if self.is_skipping {
            return;
        }
        let free_bytes = LINE_BYTES_MAX - self.partial_line.len();
        self.partial_line.extend_from_slice(&bytes[..bytes.len().min(free_bytes)]);
        if bytes.len() > free_bytes {
            self.flush(emit);
            self.is_skipping = true;
        }
    }

    fn flush(&mut self, emit: &mut impl FnMut(&str)) {
        let line = self.partial_line.strip_suffix(b"\r").unwrap_or(&self.partial_line);
        emit(&String::from_utf8_lossy(line));
        self.partial_line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pieces: &[&[u8]]) -> Vec<String> {
        let mut found = Vec::new();
        let mut lines = Lines::default();
        for piece in pieces {
            lines.push(piece, |line| found.push(line.to_owned()));
        }
        lines.finish(|line| found.push(line.to_owned()));
        found
    }

    #[test]
    fn lines_are_put_together_from_pieces() {
        assert_eq!(cut(&[b"a\nb", b"c\r\n\nd"]), ["a", "bc", "", "d"]);
        assert_eq!(cut(&[b""]), Vec::<String>::new());
    }

    #[test]
    fn a_character_may_be_split_and_need_not_be_one() {
        assert_eq!(cut(&[b"\xc3", b"\xa4\n", b"\xff\n"]), ["ä", "\u{fffd}"]);
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let long = vec![b'x'; LINE_BYTES_MAX / 2 + 1];
        let found = cut(&[&long, &long, &long, b"\nnext\n"]);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].len(), found[1].as_str()), (LINE_BYTES_MAX, "next"));
    }
}

//! The limit of one attempt's log.

/// How much of the log of one attempt is kept. If a log is longer, its beginning and its end are kept, with a line
/// between them that counts the lines and bytes left out.
///
/// ```
/// let limit = rondel::LogLimit { lines: 1_000, ..rondel::LogLimit::default() };
/// assert_eq!(limit.bytes, 10 * 1024 * 1024);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimit {
    /// Bytes, with about 32 for each line in addition to its text; 10 MiB by default.
    pub bytes: usize,
    /// Lines; 100,000 by default.
    pub lines: usize,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self { bytes: 10 * 1024 * 1024, lines: 100_000 }
    }
}

impl LogLimit {
    /// The kept end is a quarter of the limit, but has at most these bytes and lines, because it waits in memory until
    /// the run ends.
    const TAIL_BYTES_MAX: usize = 256 * 1024;
    const TAIL_LINES_MAX: usize = 1_000;

    pub(crate) fn tail(self) -> Self {
        Self { bytes: (self.bytes / 4).min(Self::TAIL_BYTES_MAX), lines: (self.lines / 4).min(Self::TAIL_LINES_MAX) }
    }

    pub(crate) fn head(self) -> Self {
        let tail = self.tail();
        Self { bytes: self.bytes - tail.bytes, lines: self.lines - tail.lines }
    }
}

impl std::fmt::Display for LogLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} or {} lines", Bytes(self.bytes as u64), self.lines)
    }
}

/// A number of bytes that is displayed in bytes, KiB or MiB, depending on its size.
pub(crate) struct Bytes(pub(crate) u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            bytes if bytes < 10 << 10 => write!(f, "{bytes} bytes"),
            bytes if bytes < 10 << 20 => write!(f, "{} KiB", bytes >> 10),
            bytes => write!(f, "{} MiB", bytes >> 20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_and_tail_are_the_whole() {
        for limit in [LogLimit::default(), LogLimit { bytes: 1_000, lines: 8 }, LogLimit { bytes: 0, lines: 0 }] {
            let (head, tail) = (limit.head(), limit.tail());
            assert_eq!((head.bytes + tail.bytes, head.lines + tail.lines), (limit.bytes, limit.lines));
        }
        assert_eq!(LogLimit::default().to_string(), "10 MiB or 100000 lines");
        assert_eq!(Bytes(20 << 10).to_string(), "20 KiB");
    }
}

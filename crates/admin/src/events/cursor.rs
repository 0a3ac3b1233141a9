//! A position in the event stream: the watch of a node, the number of an event, and its time.

use std::fmt;
use std::str::FromStr;

use rondel_core::Timestamp;

use super::Event;

/// The position from which a listener continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The watch's id: one per start of a node.
    pub(super) watch: i64,
    /// The number of the last event that the listener received.
    pub(super) number: u64,
    /// The instant of that event, or of the last look if listening has just begun. Another node finds the position by this instant.
    pub(super) at: Timestamp,
}

impl Cursor {
    /// The position after an event of the same watch.
    #[must_use]
    pub const fn at_event(self, event: &Event) -> Self {
        Self { watch: self.watch, number: event.number, at: event.at }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}-{}", self.watch, self.number, self.at.as_millis())
    }
}

impl FromStr for Cursor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let mut parts = text.split('-');
            let cursor = Self {
                watch: i64::from_str_radix(parts.next()?, 16).ok()?,
                number: parts.next()?.parse().ok()?,
                at: Timestamp::from_millis(parts.next()?.parse().ok()?),
            };
            parts.next().is_none().then_some(cursor)
        };
        read().ok_or_else(|| format!("{text:?} is not the id of an event"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_is_written() {
        let cursor = Cursor { watch: 0x0123_4567_89ab_cdef, number: 7, at: Timestamp::from_millis(1_790_000_000_123) };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for bad in ["", "1-2", "1-2-3-4", "x-1-2", "1--2", "1-2-99999999999999999999"] {
            assert!(bad.parse::<Cursor>().is_err(), "{bad}");
        }
    }
}

//! The events, in order: as a hash, to compare two runs of a seed, and as lines to read.

use std::sync::Mutex;

use crate::rng::mix;
use crate::world::lock;

pub(crate) struct Trace {
    keeps_lines: bool,
    state: Mutex<(u64, Vec<String>)>,
}

impl Trace {
    pub(crate) fn new(keeps_lines: bool) -> Self {
        Self { keeps_lines, state: Mutex::default() }
    }

    pub(crate) fn record(&self, at_ms: u64, event: &'static str, number: i64, text: impl FnOnce() -> String) {
        let mut state = lock(&self.state);
        let event_hash = event.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        state.0 = mix(state.0 ^ at_ms.rotate_left(40) ^ event_hash.rotate_left(20) ^ number.unsigned_abs());
        if self.keeps_lines {
            let text = text();
            state.1.push(format!("{:>8.3} {event} {number} {text}", at_ms as f64 / 1000.0));
        }
    }

    pub(crate) const fn keeps_lines(&self) -> bool {
        self.keeps_lines
    }

    /// Adds a line that is only for readers, and not part of the hash.
    pub(crate) fn add_comment(&self, at_ms: u64, text: &str) {
        if self.keeps_lines {
            lock(&self.state).1.push(format!("{:>8.3}   {text}", at_ms as f64 / 1000.0));
        }
    }

    /// The hash, and the lines if they were kept.
    pub(crate) fn take(&self) -> (u64, Vec<String>) {
        std::mem::take(&mut *lock(&self.state))
    }
}

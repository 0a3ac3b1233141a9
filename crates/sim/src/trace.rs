//! What happened, in order: as one number, to compare two runs of a seed by, and as lines to read.

use std::sync::Mutex;

use crate::chance::mix;
use crate::world::lock;

pub(crate) struct Trace {
    is_told: bool,
    state: Mutex<(u64, Vec<String>)>,
}

impl Trace {
    pub(crate) fn new(is_told: bool) -> Self {
        Self { is_told, state: Mutex::default() }
    }

    pub(crate) fn record(&self, at_ms: u64, what: &'static str, number: i64, text: impl FnOnce() -> String) {
        let mut state = lock(&self.state);
        let name = what.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        state.0 = mix(state.0 ^ at_ms.rotate_left(40) ^ name.rotate_left(20) ^ number.unsigned_abs());
        if self.is_told {
            let text = text();
            state.1.push(format!("{:>8.3} {what} {number} {text}", at_ms as f64 / 1000.0));
        }
    }

    pub(crate) const fn is_told(&self) -> bool {
        self.is_told
    }

    /// A line to read only: no part of the number.
    pub(crate) fn show(&self, at_ms: u64, text: &str) {
        if self.is_told {
            lock(&self.state).1.push(format!("{:>8.3}   {text}", at_ms as f64 / 1000.0));
        }
    }

    /// The number, and the lines where they were asked for.
    pub(crate) fn take(&self) -> (u64, Vec<String>) {
        std::mem::take(&mut *lock(&self.state))
    }
}

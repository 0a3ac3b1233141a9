//! Pseudo-random numbers from a seed.

use std::time::Duration;

/// A stream of pseudo-random numbers, the same for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct SeededRng(u64);

/// Maps a number to another one: well mixed, and the same each time.
pub(crate) const fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

impl SeededRng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub(crate) const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        let number = self.number();
        if end == 0 { 0 } else { number % end }
    }

    /// A number from `low` to `high`, both included.
    pub(crate) const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub(crate) const fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.between(low, high))
    }

    /// True with a probability of `ppm` millionths.
    pub(crate) const fn happens(&mut self, ppm: u64) -> bool {
        ppm > 0 && self.below(1_000_000) < ppm
    }

    pub(crate) fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).unwrap_or(0)
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_all_of_them() {
        let numbers = |seed| {
            let mut rng = SeededRng::new(seed);
            (0..1_000).map(|_| rng.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert!((0..10).all(|number| numbers(1).contains(&number)));
        let mut rng = SeededRng::new(3);
        assert!((0..1_000).map(|_| rng.between(5, 6)).all(|number| number == 5 || number == 6));
        assert!(!rng.happens(0) && rng.happens(1_000_000));
    }
}

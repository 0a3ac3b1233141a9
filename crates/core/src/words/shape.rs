//! The shape of a set of numbers.

/// Up to this many numbers are listed one by one even if a step would describe them.
const LISTED_MAX: usize = 4;

/// The pattern that the numbers of a set form within a range.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    /// All numbers of the range.
    All,
    /// Three or more numbers at equal distances of at least 2.
    Step {
        from: u32,
        to: u32,
        step: u32,
        /// Whether the step also holds from the last number around to the first, as for every 15 minutes.
        wraps_around: bool,
    },
    /// Ranges of consecutive numbers: the first and the last of each.
    Ranges(Vec<(u32, u32)>),
}

impl Shape {
    /// The shape of numbers in ascending order, within the range from `low` to `high`.
    pub(super) fn of(values: &[u32], low: u32, high: u32) -> Self {
        let count = high - low + 1;
        if u32::try_from(values.len()) == Ok(count) {
            return Self::All;
        }
        if let (&[from, second, _, ..], Some(&to)) = (values, values.last()) {
            let step = second - from;
            let has_even_steps = values.windows(2).all(|pair| pair[1] - pair[0] == step);
            let wraps_around = from - low < step && high - to < step && count.is_multiple_of(step);
            if has_even_steps && step > 1 && (wraps_around || values.len() > LISTED_MAX) {
                return Self::Step { from, to, step, wraps_around };
            }
        }
        Self::Ranges(ranges(values))
    }

    /// As [`of`](Self::of), for a cycle such as hours: 22 to 2 is one stretch.
    pub(super) fn of_cycle(values: &[u32], low: u32, high: u32) -> Self {
        match Self::of(values, low, high) {
            Self::Ranges(mut ranges) => {
                if let (Some(&(first, first_end)), Some(last)) = (ranges.first(), ranges.last().copied())
                    && ranges.len() > 1
                    && first == low
                    && last.1 == high
                {
                    ranges.pop();
                    ranges.remove(0);
                    ranges.push((last.0, first_end));
                }
                Self::Ranges(ranges)
            }
            other => other,
        }
    }

    /// The number, if there is only one.
    pub(super) fn only_number(&self) -> Option<u32> {
        match self {
            Self::Ranges(ranges) => match ranges.as_slice() {
                [(from, to)] if from == to => Some(*from),
                _ => None,
            },
            Self::All | Self::Step { .. } => None,
        }
    }
}

fn ranges(values: &[u32]) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &value in values {
        match ranges.last_mut() {
            Some((_, to)) if *to + 1 == value => *to = value,
            _ => ranges.push((value, value)),
        }
    }
    ranges
}

/// The members of a set of small numbers.
pub(super) fn members(set: u64) -> Vec<u32> {
    (0..64).filter(|value| set & (1 << value) != 0).collect()
}

/// Words for ranges: two consecutive numbers are named one by one, more as a range.
pub(super) fn range_words(ranges: &[(u32, u32)], name: impl Fn(u32) -> String, to: &str) -> Vec<String> {
    let describe = |&(from, until): &(u32, u32)| match () {
        () if from == until => vec![name(from)],
        () if from + 1 == until => vec![name(from), name(until)],
        () => vec![format!("{}{to}{}", name(from), name(until))],
    };
    ranges.iter().flat_map(describe).collect()
}

/// Joins words into one list: `a, b and c`.
pub(super) fn join_words(words: &[String], separator: &str, last_separator: &str) -> String {
    match words {
        [] => String::new(),
        [word] => word.clone(),
        [first @ .., last] => format!("{}{last_separator}{last}", first.join(separator)),
    }
}

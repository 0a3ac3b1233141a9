//! One field of plain values: which values it accepts, and how it is read into a set of bits.
//!
//! The `cron` crate reads what it can ([`cron_crate`](super::cron_crate)); the reader here takes the rest: ranges that wrap around,
//! steps beyond the crate's limits, years after 2100, Unix weekdays, and every refusal.

use super::cron_crate;
use super::error::{CronError, CronField};
use super::token::Token;

/// The first year in which an expression can fire.
pub const FIRST_YEAR: i32 = 1970;

/// The last year in which an expression can fire. Daylight saving is known up to 2099; later years keep the zone's last
/// known offset.
pub const LAST_YEAR: i32 = 2199;

/// A set of small numbers; a year is counted from [`FIRST_YEAR`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bits([u64; 4]);

impl Bits {
    pub(super) fn insert(&mut self, value: u32) {
        let (word, bit) = Self::word_and_bit(value);
        if let Some(word) = self.0.get_mut(word) {
            *word |= 1 << bit;
        }
    }

    pub(crate) fn contains(self, value: u32) -> bool {
        let (word, bit) = Self::word_and_bit(value);
        self.0.get(word).is_some_and(|word| word & (1 << bit) != 0)
    }

    /// The values below 64, as bits.
    pub(super) fn bits_below_64(self) -> u64 {
        self.0[0]
    }

    fn word_and_bit(value: u32) -> (usize, u32) {
        (usize::try_from(value / 64).unwrap_or(usize::MAX), value % 64)
    }
}

/// The values that a field accepts.
#[derive(Debug)]
pub(super) struct FieldSpec {
    pub(super) field: CronField,
    /// The least value.
    low: u32,
    /// The greatest value that may be written.
    high: u32,
    /// Where `a/b` and `*` end; differs from `high` only for Unix weekdays, where 7 also means 0.
    last: u32,
    /// The greatest step after a single value or `*`.
    step_max: u32,
    /// Full names, the first one for `low`. Their first three letters suffice.
    names: &'static [&'static str],
    dialect: FieldDialect,
    allowed: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum FieldDialect {
    Quartz,
    Unix,
}

const MONTHS: &[&str] = &[
    "JANUARY",
    "FEBRUARY",
    "MARCH",
    "APRIL",
    "MAY",
    "JUNE",
    "JULY",
    "AUGUST",
    "SEPTEMBER",
    "OCTOBER",
    "NOVEMBER",
    "DECEMBER",
];
const WEEKDAYS: &[&str] = &["SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY"];

const SECOND: FieldSpec = FieldSpec {
    field: CronField::Second,
    low: 0,
    high: 59,
    last: 59,
    step_max: 59,
    names: &[],
    dialect: FieldDialect::Quartz,
    allowed: "0-59, lists (0,30), ranges (50-10), steps (0/15) and *",
};
const MINUTE: FieldSpec = FieldSpec { field: CronField::Minute, ..SECOND };
const HOUR: FieldSpec = FieldSpec {
    field: CronField::Hour,
    high: 23,
    last: 23,
    step_max: 23,
    allowed: "0-23, lists (9,18), ranges (22-2), steps (0/2) and *",
    ..SECOND
};
const DAY_OF_MONTH: FieldSpec = FieldSpec {
    field: CronField::DayOfMonth,
    low: 1,
    high: 31,
    last: 31,
    step_max: 31,
    allowed: "1-31, lists (1,15), ranges (28-3), steps (1/5), L, L-n, LW, nW, * and ?",
    ..SECOND
};
const MONTH: FieldSpec = FieldSpec {
    field: CronField::Month,
    low: 1,
    high: 12,
    last: 12,
    step_max: 12,
    names: MONTHS,
    allowed: "1-12, JAN-DEC, lists (1,5), ranges (10-2), steps (1/2) and *",
    ..SECOND
};
const DAY_OF_WEEK: FieldSpec = FieldSpec {
    field: CronField::DayOfWeek,
    low: 1,
    high: 7,
    last: 7,
    step_max: 7,
    names: WEEKDAYS,
    allowed: "1-7 (1 is Sunday), SUN-SAT, lists (2,4), ranges (FRI-MON), steps (2/2), L, nL, n#1 to n#5, * and ?",
    ..SECOND
};
const YEAR: FieldSpec = FieldSpec {
    field: CronField::Year,
    low: FIRST_YEAR.unsigned_abs(),
    high: LAST_YEAR.unsigned_abs(),
    last: LAST_YEAR.unsigned_abs(),
    step_max: u32::MAX,
    allowed: "1970-2199, lists (2026,2028), rising ranges (2026-2030), steps (2026/2) and *",
    ..SECOND
};
const UNIX_DAY_OF_MONTH: FieldSpec = FieldSpec {
    allowed: "1-31, lists (1,15), ranges (28-3), steps (*/5) and *",
    dialect: FieldDialect::Unix,
    ..DAY_OF_MONTH
};
const UNIX_DAY_OF_WEEK: FieldSpec = FieldSpec {
    low: 0,
    last: 6,
    allowed: "0-7 (0 and 7 are Sunday), SUN-SAT, lists (1,3), ranges (FRI-MON), steps (*/2) and *",
    dialect: FieldDialect::Unix,
    ..DAY_OF_WEEK
};

pub(super) static QUARTZ: [FieldSpec; 7] = [SECOND, MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK, YEAR];

pub(super) static UNIX: [FieldSpec; 5] = [
    FieldSpec { dialect: FieldDialect::Unix, ..MINUTE },
    FieldSpec { dialect: FieldDialect::Unix, ..HOUR },
    UNIX_DAY_OF_MONTH,
    FieldSpec { dialect: FieldDialect::Unix, ..MONTH },
    UNIX_DAY_OF_WEEK,
];

/// Where an item's values start and end, and in which form the item was written.
#[derive(Clone, Copy)]
struct Span {
    from: u32,
    to: u32,
    kind: SpanKind,
}

#[derive(Clone, Copy, PartialEq)]
enum SpanKind {
    Value,
    Range,
    All,
}

impl FieldSpec {
    /// Reads a list of plain values.
    pub(super) fn read(&self, token: Token<'_>) -> Result<Bits, CronError> {
        // The fast path, for most fields of most expressions.
        if token.text == "*" || token.number().is_some() {
            return self.read_items(token);
        }
        let has_other_numbers = self.dialect == FieldDialect::Unix && self.field == CronField::DayOfWeek;
        if !has_other_numbers && let Some(values) = cron_crate::read(self.field, token.text) {
            let mut bits = Bits::default();
            values.into_iter().for_each(|value| self.insert(&mut bits, value));
            return Ok(bits);
        }
        self.read_items(token)
    }

    /// As [`read`](Self::read), without the `cron` crate.
    pub(super) fn read_items(&self, token: Token<'_>) -> Result<Bits, CronError> {
        let mut bits = Bits::default();
        for item in token.pieces(|c| c == ',') {
            self.read_item(item, &mut bits)?;
        }
        Ok(bits)
    }

    /// A value or a name, within the field's limits.
    pub(super) fn read_value(&self, token: Token<'_>) -> Result<u32, CronError> {
        let value = token.number().or_else(|| self.value_of_name(token.text));
        value.filter(|value| (self.low..=self.high).contains(value)).ok_or_else(|| self.refuse(token))
    }

    /// The error for a piece that is refused. It lists everything that the field accepts.
    pub(super) fn refuse(&self, token: Token<'_>) -> CronError {
        token.refuse(self.field, self.allowed)
    }

    fn value_of_name(&self, text: &str) -> Option<u32> {
        let uppercase = text.to_ascii_uppercase();
        let names = (self.low..).zip(self.names);
        names.filter(|(_, name)| uppercase.len() >= 3 && name.starts_with(&uppercase)).map(|(value, _)| value).next()
    }

    fn read_item(&self, item: Token<'_>, bits: &mut Bits) -> Result<(), CronError> {
        let (head, step) = match item.split_once('/') {
            None => (item, None),
            Some((head, step)) => (head, Some(step)),
        };
        let span = match head.text {
            "*" => Span { from: self.low, to: self.last, kind: SpanKind::All },
            "" if step.is_some() && self.dialect == FieldDialect::Quartz => {
                Span { from: self.low, to: self.last, kind: SpanKind::All }
            }
            _ => self.read_span(head, item)?,
        };
        if step.is_some() && head.text.contains(|c: char| c.is_ascii_alphabetic()) {
            return Err(item.refuse(self.field, "numbers before a step, such as 2-6/2"));
        }
        match step.map(|step| self.read_step(step, span.kind)).transpose()? {
            None => self.fill(span, 1, bits),
            Some(0) if span.kind == SpanKind::All => self.fill(span, 1, bits),
            Some(0) => self.insert(bits, span.from),
            Some(step) if span.kind == SpanKind::Value => {
                let from = if span.from > self.last { span.from - self.count() } else { span.from };
                self.fill(Span { from, to: self.last, ..span }, step, bits);
            }
            Some(step) => self.fill(span, step, bits),
        }
        Ok(())
    }

    fn read_span(&self, head: Token<'_>, item: Token<'_>) -> Result<Span, CronError> {
        let Some((from, to)) = head.split_once('-') else {
            let value = self.read_value(head)?;
            return Ok(Span { from: value, to: value, kind: SpanKind::Value });
        };
        let span = Span { from: self.read_value(from)?, to: self.read_value(to)?, kind: SpanKind::Range };
        let is_name = |end: Token<'_>| end.number().is_none();
        if is_name(from) != is_name(to) {
            return Err(item.refuse(self.field, "a range from number to number or from name to name"));
        }
        if is_name(from) && from.text.len() + to.text.len() > 6 {
            return Err(item.refuse(self.field, "names of three letters in a range, such as MON-FRI"));
        }
        if span.from > span.to && self.field == CronField::Year {
            return Err(item.refuse(self.field, "a range of years that rises, such as 2026-2030"));
        }
        Ok(span)
    }

    fn read_step(&self, step: Token<'_>, kind: SpanKind) -> Result<u32, CronError> {
        // Quartz treats a step of 0 as no step, and checks the limit only if no range is written.
        let step_min = if self.dialect == FieldDialect::Quartz { 0 } else { 1 };
        let step_max = if kind == SpanKind::Range { u32::MAX } else { self.step_max };
        step.number().filter(|number| (step_min..=step_max).contains(number)).ok_or_else(|| {
            let limit = if self.step_max == u32::MAX { self.count() } else { self.step_max };
            step.refuse(self.field, format!("a step from 1 to {limit} after /"))
        })
    }

    /// Fills a span, which wraps around if it ends before it starts.
    fn fill(&self, span: Span, step: u32, bits: &mut Bits) {
        let to = if span.to < span.from { span.to + self.count() } else { span.to };
        let mut value = span.from;
        while value <= to {
            self.insert(bits, value);
            let Some(next_value) = value.checked_add(step) else { return };
            value = next_value;
        }
    }

    fn insert(&self, bits: &mut Bits, value: u32) {
        let value = if value > self.last { value - self.count() } else { value };
        let bit_zero_value = if self.field == CronField::Year { self.low } else { 0 };
        bits.insert(value - bit_zero_value);
    }

    /// How many different values there are.
    fn count(&self) -> u32 {
        self.last - self.low + 1
    }
}

//! Business calendars: named sets of days and times of day, composed of dates, weekdays and other calendars.
//!
//! A calendar has no time zone. Its days and times are read in the zone of the schedule that uses it, so that one list of
//! holidays serves offices in several zones.

use std::collections::BTreeMap;

use chrono::{Datelike, NaiveDate, NaiveDateTime, NaiveTime, Timelike};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::field_error::FieldError;
use crate::name;
use crate::word_enum::word_enum;

/// Maximum number of days that one calendar lists, including those of the calendars that it names.
pub const DAY_COUNT_MAX: usize = 20_000;
/// Maximum number of rules of one calendar, including those of the calendars that it names.
pub const RULE_COUNT_MAX: usize = 500;
/// Maximum number of spans of the day that one calendar lists, including those of the calendars that it names.
pub const TIME_COUNT_MAX: usize = 24;
/// How deep rules and calendars may be nested.
pub const DEPTH_MAX: usize = 16;
const DESCRIPTION_LEN_MAX: usize = 1000;
const DAY_NAME_LEN_MAX: usize = 200;

/// A calendar as users write it.
///
/// ```
/// use rondel_core::calendar::{Calendar, CalendarSpec};
///
/// let spec: CalendarSpec = serde_json::from_str(
///     r#"{"name": "cn-workdays", "rule": {"any": [
///         {"days": ["2026-10-10"]},
///         {"all": [{"weekdays": ["mon", "tue", "wed", "thu", "fri"]}, {"not": {"days": ["2026-10-01..2026-10-07"]}}]}
///     ]}}"#,
/// )?;
/// let calendar = Calendar::compile(&spec, |_| None).expect("a valid calendar");
/// let day = |text: &str| text.parse().expect("a date");
/// assert!(calendar.has_day(day("2026-10-10")) && calendar.has_day(day("2026-10-08")));
/// assert!(!calendar.has_day(day("2026-10-02")) && !calendar.has_day(day("2026-10-11")));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(description = "A set of days and times of day, with a name.")]
pub struct CalendarSpec {
    /// Unique in its namespace.
    #[schemars(regex(pattern = crate::schema::NAME_PATTERN))]
    pub name: String,
    /// Free text.
    #[serde(default)]
    pub description: String,
    /// Which days and times are in the calendar.
    pub rule: Rule,
}

/// Which days and times are in a calendar: one of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// These days.
    Days(Vec<Day>),
    /// These days of each week.
    Weekdays(Vec<Weekday>),
    /// These spans of each day: `"22:00-06:00"`, the end not included.
    Times(Vec<String>),
    /// The days and times of another calendar of the namespace.
    Calendar(String),
    /// Days and times that are in all of these.
    All(Vec<Rule>),
    /// Days and times that are in at least one of these.
    Any(Vec<Rule>),
    /// Days and times that are not in this.
    Not(Box<Rule>),
}

/// A day or a span of days, `"2026-10-01"` or `"2026-10-01..2026-10-07"`, with or without a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Day {
    /// Only the date.
    Date(String),
    /// A date or a span with a name.
    Named {
        /// The date or the span.
        date: String,
        /// The name.
        name: String,
    },
}

word_enum! {
    /// A day of the week.
    Weekday {
        /// Monday.
        Mon = "mon",
        /// Tuesday.
        Tue = "tue",
        /// Wednesday.
        Wed = "wed",
        /// Thursday.
        Thu = "thu",
        /// Friday.
        Fri = "fri",
        /// Saturday.
        Sat = "sat",
        /// Sunday.
        Sun = "sun",
    }
}

/// A calendar, checked and ready for lookups.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    name: String,
    rule: CompiledRule,
    has_times: bool,
    /// Upper bound on the rules and spans that one lookup checks.
    lookup_cost: u64,
    /// The minutes of the day at which membership can change, in ascending order; midnight is always one of them.
    edges: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq)]
enum CompiledRule {
    Days(BTreeMap<NaiveDate, Option<String>>),
    /// One bit per weekday, Monday first.
    Weekdays(u8),
    /// Spans of minutes of the day; the end is not included.
    Times(Vec<(u32, u32)>),
    All(Vec<CompiledRule>),
    Any(Vec<CompiledRule>),
    Not(Box<CompiledRule>),
}

impl Calendar {
    /// Checks a calendar, and replaces each calendar that it names by that calendar's rule. `find_calendar` returns the calendar with a
    /// name.
    ///
    /// # Errors
    /// Every error, with a pointer into the document.
    pub fn compile(
        spec: &CalendarSpec,
        find_calendar: impl Fn(&str) -> Option<CalendarSpec>,
    ) -> Result<Self, Vec<FieldError>> {
        let mut compiler = Compiler {
            find_calendar: &find_calendar,
            path: vec![spec.name.clone()],
            day_count: 0,
            rule_count: 0,
            time_count: 0,
            errors: Vec::new(),
        };
        if let Err(message) = name::check(&spec.name) {
            compiler.errors.push(FieldError::new("/name", message));
        }
        if spec.description.len() > DESCRIPTION_LEN_MAX {
            let message = format!("{} bytes; at most {DESCRIPTION_LEN_MAX} are allowed", spec.description.len());
            compiler.errors.push(FieldError::new("/description", message));
        }
        let rule = compiler.compile_rule(&spec.rule, "/rule", 1);
        if !compiler.errors.is_empty() {
            return Err(compiler.errors);
        }
        let mut edges = vec![0];
        rule.collect_edges(&mut edges);
        edges.sort_unstable();
        edges.dedup();
        Ok(Self { name: spec.name.clone(), has_times: rule.has_times(), lookup_cost: rule.lookup_cost(), rule, edges })
    }

    /// A calendar from a stored rule. A rule is checked before it is stored, and each calendar that it names is replaced by that calendar's
    /// rule.
    ///
    /// # Errors
    /// As for [`compile`](Self::compile), but only if a later version of Rondel saved the rule.
    pub fn of_rule(name: &str, rule: &Rule) -> Result<Self, Vec<FieldError>> {
        let spec = CalendarSpec { name: name.to_owned(), description: String::new(), rule: rule.clone() };
        Self::compile(&spec, |_| None)
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the calendar contains a local time.
    #[must_use]
    pub fn has(&self, local: NaiveDateTime) -> bool {
        self.rule.has(local)
    }

    /// Whether the calendar contains a day. Checks only the day's first minute, which suffices for calendars without times of day.
    #[must_use]
    pub fn has_day(&self, day: NaiveDate) -> bool {
        self.rule.has(day.and_time(NaiveTime::MIN))
    }

    /// Whether the calendar contains at least a part of a day.
    #[must_use]
    pub fn has_part_of(&self, day: NaiveDate) -> bool {
        let mut times = self.edges.iter().filter_map(|minute| NaiveTime::from_hms_opt(minute / 60, minute % 60, 0));
        times.any(|time| self.rule.has(day.and_time(time)))
    }

    /// Whether one of its rules lists times of day.
    #[must_use]
    pub const fn has_times(&self) -> bool {
        self.has_times
    }

    /// The highest cost of one lookup: how many rules and spans of the day it checks.
    pub(crate) const fn lookup_cost(&self) -> u64 {
        self.lookup_cost
    }

    /// The name that a rule gives to a day, if any.
    #[must_use]
    pub fn day_name(&self, day: NaiveDate) -> Option<&str> {
        self.rule.day_name(day)
    }

    /// The last of the days that its rules list by date; `None` if they list no dates.
    #[must_use]
    pub fn last_listed_day(&self) -> Option<NaiveDate> {
        self.rule.last_listed_day()
    }

    /// The first time after `local` at which membership can change.
    #[must_use]
    pub fn next_edge(&self, local: NaiveDateTime) -> NaiveDateTime {
        let minute = local.hour() * 60 + local.minute();
        let local_time = |day: NaiveDate, minute: u32| {
            NaiveTime::from_hms_opt(minute / 60, minute % 60, 0).map(|time| day.and_time(time))
        };
        let next_today =
            self.edges.iter().find(|edge| **edge > minute).and_then(|edge| local_time(local.date(), *edge));
        let midnight = local.date().succ_opt().unwrap_or(NaiveDate::MAX).and_time(NaiveTime::MIN);
        next_today.unwrap_or(midnight)
    }
}

impl CalendarSpec {
    /// Its rule, with each named calendar replaced by that calendar's rule. Call this only for a calendar that [`Calendar::compile`]
    /// accepts.
    #[must_use]
    pub fn expanded(&self, find_calendar: impl Fn(&str) -> Option<CalendarSpec>) -> Rule {
        fn expand(rule: &Rule, find_calendar: &dyn Fn(&str) -> Option<CalendarSpec>, depth: usize) -> Rule {
            let expand_all = |rules: &[Rule]| rules.iter().map(|rule| expand(rule, find_calendar, depth + 1)).collect();
            match rule {
                _ if depth > DEPTH_MAX => Rule::Any(Vec::new()),
                Rule::Calendar(name) => find_calendar(name)
                    .map_or(Rule::Any(Vec::new()), |spec| expand(&spec.rule, find_calendar, depth + 1)),
                Rule::All(rules) => Rule::All(expand_all(rules)),
                Rule::Any(rules) => Rule::Any(expand_all(rules)),
                Rule::Not(rule) => Rule::Not(Box::new(expand(rule, find_calendar, depth + 1))),
                Rule::Days(_) | Rule::Weekdays(_) | Rule::Times(_) => rule.clone(),
            }
        }
        expand(&self.rule, &find_calendar, 1)
    }

    /// The names of the calendars that its rules refer to, sorted and without duplicates.
    #[must_use]
    pub fn named_calendars(&self) -> Vec<&str> {
        fn collect_names<'a>(rule: &'a Rule, names: &mut Vec<&'a str>) {
            match rule {
                Rule::Calendar(name) => names.push(name),
                Rule::All(rules) | Rule::Any(rules) => rules.iter().for_each(|rule| collect_names(rule, names)),
                Rule::Not(rule) => collect_names(rule, names),
                Rule::Days(_) | Rule::Weekdays(_) | Rule::Times(_) => {}
            }
        }
        let mut names = Vec::new();
        collect_names(&self.rule, &mut names);
        names.sort_unstable();
        names.dedup();
        names
    }
}

struct Compiler<'f> {
    find_calendar: &'f dyn Fn(&str) -> Option<CalendarSpec>,
    /// The chain of calendars that are being inserted, to detect cycles.
    path: Vec<String>,
    day_count: usize,
    rule_count: usize,
    time_count: usize,
    errors: Vec<FieldError>,
}

impl Compiler<'_> {
    fn refuse(&mut self, pointer: impl Into<String>, message: impl Into<String>) -> CompiledRule {
        self.errors.push(FieldError::new(pointer, message));
        CompiledRule::Days(BTreeMap::new())
    }

    fn compile_rule(&mut self, rule: &Rule, pointer: &str, depth: usize) -> CompiledRule {
        self.rule_count += 1;
        if depth > DEPTH_MAX {
            return self.refuse(pointer, format!("is nested more than {DEPTH_MAX} deep"));
        }
        if self.rule_count > RULE_COUNT_MAX {
            return self.refuse(pointer, format!("is one of more than {RULE_COUNT_MAX} rules"));
        }
        match rule {
            Rule::Days(days) => self.compile_days(days, pointer),
            Rule::Weekdays(days) => CompiledRule::Weekdays(days.iter().fold(0, |bits, day| bits | 1 << *day as u8)),
            Rule::Times(times) => self.compile_times(times, pointer),
            Rule::Calendar(name) => self.compile_named(name, pointer, depth),
            Rule::All(rules) => CompiledRule::All(self.compile_rules(rules, &format!("{pointer}/all"), depth)),
            Rule::Any(rules) => CompiledRule::Any(self.compile_rules(rules, &format!("{pointer}/any"), depth)),
            Rule::Not(rule) => {
                CompiledRule::Not(Box::new(self.compile_rule(rule, &format!("{pointer}/not"), depth + 1)))
            }
        }
    }

    fn compile_rules(&mut self, rules: &[Rule], pointer: &str, depth: usize) -> Vec<CompiledRule> {
        let mut compiled_rules = Vec::with_capacity(rules.len().min(RULE_COUNT_MAX));
        for (index, rule) in rules.iter().enumerate().take(RULE_COUNT_MAX + 1) {
            compiled_rules.push(self.compile_rule(rule, &format!("{pointer}/{index}"), depth + 1));
        }
        compiled_rules
    }

    fn compile_named(&mut self, name: &str, pointer: &str, depth: usize) -> CompiledRule {
        let pointer = format!("{pointer}/calendar");
        if self.path.iter().any(|part| part == name) {
            let path = format!("{} -> {name}", self.path.join(" -> "));
            return self.refuse(pointer, format!("makes a cycle: {path}"));
        }
        let Some(named_spec) = (self.find_calendar)(name) else {
            return self.refuse(pointer, format!("there is no calendar {name:?} in this namespace"));
        };
        self.path.push(name.to_owned());
        let error_count_before = self.errors.len();
        let compiled_rule = self.compile_rule(&named_spec.rule, &pointer, depth + 1);
        for error in &mut self.errors[error_count_before..] {
            error.pointer.clone_from(&pointer);
        }
        self.path.pop();
        compiled_rule
    }

    fn compile_days(&mut self, days: &[Day], pointer: &str) -> CompiledRule {
        let mut names_by_day = BTreeMap::new();
        for (index, day) in days.iter().enumerate() {
            let (date, name) = match day {
                Day::Date(date) => (date, None),
                Day::Named { date, name } => (date, Some(name)),
            };
            let pointer = format!("{pointer}/days/{index}");
            if name.is_some_and(|name| name.len() > DAY_NAME_LEN_MAX) {
                return self.refuse(pointer, format!("has a name of more than {DAY_NAME_LEN_MAX} bytes"));
            }
            let Some((first, last)) = span_of_days(date) else {
                let message =
                    format!("{date:?} is neither a date such as 2026-10-01 nor a span 2026-10-01..2026-10-07");
                return self.refuse(pointer, message);
            };
            for day in first.iter_days().take_while(|day| *day <= last) {
                self.day_count += 1;
                if self.day_count > DAY_COUNT_MAX {
                    return self.refuse(pointer, format!("more than {DAY_COUNT_MAX} days are listed"));
                }
                names_by_day.insert(day, name.cloned());
            }
        }
        CompiledRule::Days(names_by_day)
    }

    fn compile_times(&mut self, times: &[String], pointer: &str) -> CompiledRule {
        let mut spans = Vec::new();
        for (index, text) in times.iter().enumerate() {
            let pointer = format!("{pointer}/times/{index}");
            self.time_count += 1;
            if self.time_count > TIME_COUNT_MAX {
                return self.refuse(pointer, format!("more than {TIME_COUNT_MAX} times of day are listed"));
            }
            let span = text.split_once('-').and_then(|(from, to)| Some((minute_of(from)?, minute_of(to)?)));
            match span {
                Some((from, to)) if from < to => spans.push((from, to)),
                Some((from, to)) if from > to && from < 1440 => spans.extend([(from, 1440), (0, to)]),
                Some(_) | None => {
                    let message = format!("{text:?} is not a span of the day such as 22:00-06:00");
                    return self.refuse(pointer, message);
                }
            }
        }
        CompiledRule::Times(spans)
    }
}

/// The first and the last day of `2026-10-01` or `2026-10-01..2026-10-07`; `None` for any other text, and for years outside 1970 to 2199.
fn span_of_days(text: &str) -> Option<(NaiveDate, NaiveDate)> {
    let date = |text: &str| {
        let date: NaiveDate = text.trim().parse().ok()?;
        (1970..=2199).contains(&date.year()).then_some(date)
    };
    match text.split_once("..") {
        Some((first, last)) => {
            let (first, last) = (date(first)?, date(last)?);
            (first <= last).then_some((first, last))
        }
        None => date(text).map(|date| (date, date)),
    }
}

/// `HH:MM` as minutes of the day; 24:00 is the end of the day.
fn minute_of(text: &str) -> Option<u32> {
    let (hour, minute) = text.trim().split_once(':')?;
    let number = |text: &str| (text.len() == 2).then(|| text.parse::<u32>().ok()).flatten();
    let (hour, minute) = (number(hour)?, number(minute)?);
    (minute < 60 && hour * 60 + minute <= 1440).then_some(hour * 60 + minute)
}

impl CompiledRule {
    fn has(&self, local: NaiveDateTime) -> bool {
        match self {
            Self::Days(days) => days.contains_key(&local.date()),
            Self::Weekdays(days) => days & (1 << local.weekday().num_days_from_monday()) != 0,
            Self::Times(spans) => {
                let minute = local.hour() * 60 + local.minute();
                spans.iter().any(|(from, to)| (*from..*to).contains(&minute))
            }
            Self::All(rules) => rules.iter().all(|rule| rule.has(local)),
            Self::Any(rules) => rules.iter().any(|rule| rule.has(local)),
            Self::Not(rule) => !rule.has(local),
        }
    }

    fn lookup_cost(&self) -> u64 {
        match self {
            Self::Days(_) | Self::Weekdays(_) => 1,
            Self::Times(spans) => u64::try_from(spans.len()).unwrap_or(u64::MAX).saturating_add(1),
            Self::All(rules) | Self::Any(rules) => rules.iter().map(Self::lookup_cost).fold(1, u64::saturating_add),
            Self::Not(rule) => rule.lookup_cost().saturating_add(1),
        }
    }

    fn has_times(&self) -> bool {
        match self {
            Self::Times(_) => true,
            Self::All(rules) | Self::Any(rules) => rules.iter().any(Self::has_times),
            Self::Not(rule) => rule.has_times(),
            Self::Days(_) | Self::Weekdays(_) => false,
        }
    }

    fn day_name(&self, day: NaiveDate) -> Option<&str> {
        match self {
            Self::Days(days) => days.get(&day)?.as_deref(),
            Self::All(rules) | Self::Any(rules) => rules.iter().find_map(|rule| rule.day_name(day)),
            Self::Not(rule) => rule.day_name(day),
            Self::Weekdays(_) | Self::Times(_) => None,
        }
    }

    fn last_listed_day(&self) -> Option<NaiveDate> {
        match self {
            Self::Days(days) => days.last_key_value().map(|(day, _)| *day),
            Self::All(rules) | Self::Any(rules) => rules.iter().filter_map(Self::last_listed_day).max(),
            Self::Not(rule) => rule.last_listed_day(),
            Self::Weekdays(_) | Self::Times(_) => None,
        }
    }

    fn collect_edges(&self, edges: &mut Vec<u32>) {
        match self {
            Self::Times(spans) => edges.extend(spans.iter().flat_map(|(from, to)| [*from, *to % 1440])),
            Self::All(rules) | Self::Any(rules) => rules.iter().for_each(|rule| rule.collect_edges(edges)),
            Self::Not(rule) => rule.collect_edges(edges),
            Self::Days(_) | Self::Weekdays(_) => {}
        }
    }
}

#[cfg(test)]
#[path = "calendar_tests.rs"]
mod tests;

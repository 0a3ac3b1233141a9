//! Which executors of an app may get a job's runs: conditions on their labels and names.

use std::collections::BTreeMap;
use std::fmt;

use crate::field_error::FieldError;
use crate::name;
use crate::spec::SelectSpec;

/// Maximum number of conditions, and of names.
pub const CONDITION_COUNT_MAX: usize = 50;
const PART_LEN_MAX: usize = 100;

/// The conditions of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Select {
    labels: Vec<Condition>,
    executors: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    key: String,
    test: ConditionTest,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ConditionTest {
    Is(String),
    IsNot(String),
    Has,
    HasNot,
}

impl Select {
    /// Compiles the conditions of a definition.
    ///
    /// # Errors
    /// Each label entry that is not a condition, and each executor entry that is not a name, with its place in the definition; or a list
    /// with more than [`CONDITION_COUNT_MAX`] entries.
    pub fn new(spec: &SelectSpec) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let select = Self::compile(spec, &mut errors);
        if errors.is_empty() { Ok(select) } else { Err(errors) }
    }

    pub(crate) fn compile(spec: &SelectSpec, errors: &mut Vec<FieldError>) -> Self {
        for (pointer, count) in [("/select/labels", spec.labels.len()), ("/select/executors", spec.executors.len())] {
            if count > CONDITION_COUNT_MAX {
                errors.push(FieldError::new(pointer, format!("{count} entries; at most {CONDITION_COUNT_MAX}")));
                return Self::default();
            }
        }
        let mut labels = Vec::with_capacity(spec.labels.len());
        for (index, text) in spec.labels.iter().enumerate() {
            match condition(text) {
                Some(condition) => labels.push(condition),
                None => {
                    let message = format!("{text:?} is not a condition such as zone=eu, gpu!=none, ssd or !old");
                    errors.push(FieldError::new(format!("/select/labels/{index}"), message));
                }
            }
        }
        for (index, executor) in spec.executors.iter().enumerate() {
            if let Err(message) = name::check(executor) {
                errors.push(FieldError::new(format!("/select/executors/{index}"), message));
            }
        }
        Self { labels, executors: spec.executors.clone() }
    }

    /// Whether an executor may get the job's runs.
    #[must_use]
    pub fn admits(&self, executor: &str, labels: &BTreeMap<String, String>) -> bool {
        (self.executors.is_empty() || self.executors.iter().any(|name| name == executor))
            && self.labels.iter().all(|condition| condition.holds(labels))
    }

    /// The condition that keeps an executor from getting the job's runs; `None` if it may get them.
    #[must_use]
    pub fn unmet_condition(&self, executor: &str, labels: &BTreeMap<String, String>) -> Option<UnmetCondition> {
        if !self.executors.is_empty() && !self.executors.iter().any(|name| name == executor) {
            return Some(UnmetCondition::Name);
        }
        let unmet_condition = self.labels.iter().find(|condition| !condition.holds(labels))?;
        Some(UnmetCondition::Label(unmet_condition.to_string()))
    }

    /// Whether every executor of the app may get the job's runs.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.labels.is_empty() && self.executors.is_empty()
    }
}

/// Why an executor may not get a job's runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnmetCondition {
    /// The job selects executors by name, and this one is not among them.
    Name,
    /// This condition on labels, as the job writes it, does not hold.
    Label(String),
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match &self.test {
            ConditionTest::Is(value) => write!(f, "{key}={value}"),
            ConditionTest::IsNot(value) => write!(f, "{key}!={value}"),
            ConditionTest::Has => f.write_str(key),
            ConditionTest::HasNot => write!(f, "!{key}"),
        }
    }
}

impl Condition {
    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match &self.test {
            ConditionTest::Is(expected_value) => value == Some(expected_value),
            ConditionTest::IsNot(excluded_value) => value != Some(excluded_value),
            ConditionTest::Has => value.is_some(),
            ConditionTest::HasNot => value.is_none(),
        }
    }
}

fn condition(text: &str) -> Option<Condition> {
    let valid_part = |text: &str| {
        let is_part_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
        let is_valid = !text.is_empty() && text.len() <= PART_LEN_MAX && text.chars().all(is_part_char);
        is_valid.then(|| text.to_owned())
    };
    if let Some((key, value)) = text.split_once("!=") {
        return Some(Condition { key: valid_part(key)?, test: ConditionTest::IsNot(valid_part(value)?) });
    }
    if let Some((key, value)) = text.split_once('=') {
        return Some(Condition { key: valid_part(key)?, test: ConditionTest::Is(valid_part(value)?) });
    }
    match text.strip_prefix('!') {
        Some(key) => Some(Condition { key: valid_part(key)?, test: ConditionTest::HasNot }),
        None => Some(Condition { key: valid_part(text)?, test: ConditionTest::Has }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(labels: &[&str], executors: &[&str], name: &str) -> bool {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let mut errors = Vec::new();
        let select = Select::compile(&SelectSpec { labels: owned(labels), executors: owned(executors) }, &mut errors);
        assert_eq!(errors, []);
        let has = BTreeMap::from([("zone".to_owned(), "eu".to_owned()), ("ssd".to_owned(), String::new())]);
        assert_eq!(select.admits(name, &has), select.unmet_condition(name, &has).is_none());
        select.admits(name, &has)
    }

    #[test]
    fn conditions() {
        for (labels, executors, expected) in [
            (&[][..], &[][..], true),
            (&["zone=eu"], &[], true),
            (&["zone=us"], &[], false),
            (&["zone!=us", "gpu!=a100"], &[], true),
            (&["ssd", "!old"], &[], true),
            (&["!ssd"], &[], false),
            (&["zone=eu"], &["a", "b"], true),
            (&["zone=eu"], &["b"], false),
        ] {
            assert_eq!(admits(labels, executors, "a"), expected, "{labels:?} {executors:?}");
        }
    }

    #[test]
    fn a_text_that_is_not_a_condition_is_named() {
        for text in ["", "=eu", "zone=", "!", "zone==eu", "a b", "zone=é"] {
            let mut errors = Vec::new();
            Select::compile(&SelectSpec { labels: vec![text.to_owned()], executors: Vec::new() }, &mut errors);
            assert_eq!(errors.len(), 1, "{text:?}");
            assert_eq!(errors[0].pointer, "/select/labels/0");
        }
    }

    #[test]
    fn conditions_have_a_number_and_a_length() {
        let count = |labels: usize, executors: usize| {
            let spec = SelectSpec {
                labels: (0..labels).map(|n| format!("l{n}")).collect(),
                executors: (0..executors).map(|n| format!("e{n}")).collect(),
            };
            Select::new(&spec).err().map_or(0, |errors| errors.len())
        };
        assert_eq!(count(CONDITION_COUNT_MAX, CONDITION_COUNT_MAX), 0);
        assert_eq!((count(CONDITION_COUNT_MAX + 1, 0), count(0, CONDITION_COUNT_MAX + 1)), (1, 1));
        let long =
            |len: usize| Select::new(&SelectSpec { labels: vec!["k".repeat(len)], executors: Vec::new() }).is_ok();
        assert!(long(PART_LEN_MAX) && !long(PART_LEN_MAX + 1));
    }

    #[test]
    fn any_executor_may_where_there_is_no_condition() {
        let any = |labels: &[&str], executors: &[&str]| {
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
            Select::new(&SelectSpec { labels: owned(labels), executors: owned(executors) }).unwrap().is_any()
        };
        assert!(any(&[], &[]) && !any(&["a"], &[]) && !any(&[], &["e"]) && !any(&["a"], &["e"]));
    }
}

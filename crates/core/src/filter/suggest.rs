//! Completes the term that is being typed.

use super::error::example;
use super::parse::tokens;
use super::terms::{JobState, Key, RunState, Scope};
use super::write::quoted;
use crate::status::{RunStatus, Trigger};

/// Maximum number of suggestions.
pub const SUGGESTION_COUNT_MAX: usize = 10;

/// The values that exist, for keys whose values are names.
#[derive(Clone, Copy, Debug, Default)]
pub struct Names<'a> {
    pub apps: &'a [String],
    /// Jobs, at least those whose names contain what is being typed.
    pub jobs: &'a [String],
    pub executors: &'a [String],
    /// Labels, as `key=value`.
    pub labels: &'a [String],
}

/// A completion of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// The term that is suggested, or its beginning.
    pub term: String,
    /// For a key, an example of a whole term.
    pub example: Option<&'static str>,
    /// The whole filter with the suggestion inserted.
    pub text: String,
    /// The position of the cursor afterwards, in characters.
    pub at: usize,
}

/// Completions at the cursor `at` (in characters) of a filter: keys or, after a key, its values.
///
/// ```
/// use rondel_core::filter::{Names, Scope, suggest};
///
/// let texts = |text: &str| {
///     let found = suggest(text, text.len(), Scope::Runs, &Names::default());
///     found.into_iter().map(|one| one.text).collect::<Vec<_>>()
/// };
/// assert_eq!(texts("app:orders st"), ["app:orders status:"]);
/// assert_eq!(texts("status:failed,unk"), ["status:failed,unknown "]);
/// ```
#[must_use]
pub fn suggest(text: &str, at: usize, scope: Scope, names: &Names<'_>) -> Vec<Suggestion> {
    let chars: Vec<char> = text.chars().collect();
    let at = at.min(chars.len());
    let text_before: String = chars[..at].iter().collect();
    let typed_token = tokens(&text_before).pop().filter(|token| token.end == at);
    let (start, is_not) = typed_token.as_ref().map_or((at, false), |token| (token.start, token.is_not));
    let word: String = chars[start..at].iter().collect();
    let end = (at..chars.len()).find(|index| chars[*index].is_whitespace()).unwrap_or(chars.len());
    let suggestion = |term: String, is_whole: bool, example: Option<&'static str>| {
        let text_before: String = chars[..start].iter().collect();
        let text_after: String = chars[end..].iter().collect();
        let space = if is_whole && !text_after.starts_with(char::is_whitespace) { " " } else { "" };
        let completed_text = format!("{text_before}{term}{space}");
        let negation = if is_not { "-" } else { "" };
        let at = completed_text.chars().count();
        Suggestion { term: format!("{negation}{term}"), example, text: format!("{completed_text}{text_after}"), at }
    };
    let key = typed_token.as_ref().and_then(super::parse::Token::key).and_then(|key| key.parse::<Key>().ok());
    let Some(key) = key.filter(|key| scope.keys().contains(key)) else {
        let begins_alike = |key: &&Key| key.as_str().starts_with(&word.to_ascii_lowercase());
        let keys = scope.keys().iter().filter(begins_alike).filter(|key| !is_not || can_be_negated(**key));
        return keys
            .take(SUGGESTION_COUNT_MAX)
            .map(|key| suggestion(format!("{key}:"), false, Some(example(*key))))
            .collect();
    };
    let values_text = word.chars().skip(key.as_str().len() + 1).collect::<String>();
    let (chosen_values, last_value_text) = match values_text.rsplit_once([',', '，']) {
        Some((chosen_values, last_value)) => (format!("{chosen_values},"), last_value),
        None => (String::new(), values_text.as_str()),
    };
    let last_value = last_value_text.trim_matches('"').to_lowercase();
    let mut values = values((key, scope), names);
    values.retain(|value| value.to_lowercase().contains(&last_value) && *value != last_value);
    // Values that begin with the text come first.
    values.sort_by_key(|value| !value.to_lowercase().starts_with(&last_value));
    let term = |value: String| suggestion(format!("{key}:{chosen_values}{}", quoted(&value)), true, None);
    values.into_iter().take(SUGGESTION_COUNT_MAX).map(term).collect()
}

const fn can_be_negated(key: Key) -> bool {
    !matches!(key, Key::Since | Key::Until | Key::Duration | Key::Late)
}

fn values((key, scope): (Key, Scope), names: &Names<'_>) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    match key {
        Key::Status => words(RunStatus::WORDS),
        Key::Trigger => words(Trigger::WORDS),
        Key::Is if scope == Scope::Runs => words(RunState::WORDS),
        Key::Is => words(JobState::WORDS),
        Key::App => names.apps.to_vec(),
        Key::Job => names.jobs.to_vec(),
        Key::Executor => names.executors.to_vec(),
        Key::Label => names.labels.to_vec(),
        Key::Since => words(&["15m", "1h", "8h", "24h", "7d", "today", "yesterday"]),
        Key::Until => words(&["1h", "8h", "24h", "today", "yesterday"]),
        Key::Duration => words(&[">10s", ">1m", ">5m", ">1h", "<1s"]),
        Key::Late => words(&[">1s", ">10s", ">1m"]),
    }
}

//! Reads filters.

use std::str::FromStr;

use super::error::{FilterError, FilterProblem};
use super::terms::{
    FILTER_LEN_MAX, Filter, JobState, Key, LabelTerm, RunState, Scope, TERM_COUNT_MAX, Text, ValueCondition,
};
use super::value::{InstantBound, LabelTest, LengthRange, Pattern};
use crate::status::{RunStatus, Trigger};

/// A word of the filter as it was written: up to the next blank that is not in quotes.
#[derive(Debug)]
pub(super) struct Token {
    /// Its characters, each with whether it was quoted; the quotes and the backslashes before them are removed.
    chars: Vec<(char, bool)>,
    /// The index of its first character; the minus of a negated term comes before it.
    pub(super) start: usize,
    /// The position after its last character.
    pub(super) end: usize,
    /// Whether a minus comes before it.
    pub(super) is_not: bool,
}

const fn is_colon(c: char) -> bool {
    matches!(c, ':' | '：')
}

/// Splits a filter into its words.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let text_chars: Vec<char> = text.chars().collect();
    let (mut tokens, mut at) = (Vec::new(), 0);
    while at < text_chars.len() {
        if text_chars[at].is_whitespace() {
            at += 1;
            continue;
        }
        let is_not = text_chars[at] == '-' && text_chars.get(at + 1).is_some_and(|next| !next.is_whitespace());
        let start = at + usize::from(is_not);
        at = start;
        let (mut chars, mut is_quoted) = (Vec::new(), false);
        while at < text_chars.len() && (is_quoted || !text_chars[at].is_whitespace()) {
            match text_chars[at] {
                '"' => is_quoted = !is_quoted,
                '\\' if is_quoted && matches!(text_chars.get(at + 1), Some('"' | '\\')) => {
                    at += 1;
                    chars.push((text_chars[at], true));
                }
                c => chars.push((c, is_quoted)),
            }
            at += 1;
        }
        tokens.push(Token { chars, start, end: at, is_not });
    }
    tokens
}

impl Token {
    /// The text before the first colon, in lower case, if it can be a key.
    pub(super) fn key(&self) -> Option<String> {
        let colon = self.chars.iter().position(|(c, is_quoted)| !is_quoted && is_colon(*c))?;
        let key = &self.chars[..colon];
        let is_key =
            !key.is_empty() && key.iter().all(|(c, is_quoted)| !is_quoted && (c.is_ascii_alphabetic() || *c == '_'));
        is_key.then(|| key.iter().map(|(c, _)| c.to_ascii_lowercase()).collect())
    }

    /// The text after the colon, split at its commas; empty parts are left out.
    pub(super) fn values(&self) -> Vec<String> {
        let colon = self.chars.iter().position(|(c, is_quoted)| !is_quoted && is_colon(*c)).unwrap_or(0);
        let parts = self.chars.get(colon + 1..).unwrap_or_default();
        let parts = parts.split(|(c, is_quoted)| !is_quoted && matches!(c, ',' | '，'));
        parts.map(|part| part.iter().map(|(c, _)| c).collect::<String>()).filter(|part| !part.is_empty()).collect()
    }

    fn text(&self) -> String {
        self.chars.iter().map(|(c, _)| c).collect()
    }

    fn refuse(&self, offset: usize, problem: FilterProblem) -> FilterError {
        let column = (self.start + offset).min(self.end.saturating_sub(1));
        FilterError { column: column + 1, length: (self.end - column).max(1), problem }
    }
}

pub(super) fn parse(text: &str, scope: Scope) -> Result<Filter, FilterError> {
    let count = text.chars().count();
    if count > FILTER_LEN_MAX {
        let length = count - FILTER_LEN_MAX;
        return Err(FilterError { column: FILTER_LEN_MAX + 1, length, problem: FilterProblem::TooLong });
    }
    if let Some(at) = text.chars().position(|c| c.is_control() && !c.is_whitespace()) {
        return Err(FilterError { column: at + 1, length: 1, problem: FilterProblem::ControlCharacter });
    }
    let mut filter = Filter::default();
    for (index, token) in tokens(text).iter().enumerate() {
        if index >= TERM_COUNT_MAX {
            return Err(token.refuse(0, FilterProblem::TooManyTerms));
        }
        let key = token.key();
        match key.as_deref().map(|key| (key, key.parse::<Key>().ok())) {
            Some((_, Some(key))) if scope.keys().contains(&key) => add_term(&mut filter, token, (key, scope))?,
            Some((_, Some(key))) => return Err(token.refuse(0, FilterProblem::KeyOfOtherList(key))),
            Some((word, None))
                if let Some(meant_key) = nearest_word(word, scope.keys().iter().map(|key| (*key, key.as_str()))) =>
            {
                return Err(token.refuse(0, FilterProblem::Key { key: word.to_owned(), meant_key }));
            }
            _ => {
                let text = token.text();
                if !text.trim().is_empty() {
                    filter.texts.push(Text { text, is_not: token.is_not });
                }
            }
        }
    }
    Ok(filter)
}

fn add_term(filter: &mut Filter, token: &Token, (key, scope): (Key, Scope)) -> Result<(), FilterError> {
    let values = token.values();
    let value_offset = key.as_str().len() + 1;
    if values.is_empty() {
        return Err(token.refuse(0, FilterProblem::NoValue(key)));
    }
    match key {
        Key::Status => add_words(&mut filter.statuses, token, key, RunStatus::WORDS),
        Key::Trigger => add_words(&mut filter.triggers, token, key, Trigger::WORDS),
        Key::Is if scope == Scope::Runs && token.is_not => Err(token.refuse(0, FilterProblem::NotNegated(key))),
        Key::Is if scope == Scope::Runs => {
            let mut states = ValueCondition::default();
            add_words(&mut states, token, key, RunState::WORDS)?;
            states.any.into_iter().for_each(|state| push_new(&mut filter.run_states, state));
            Ok(())
        }
        Key::Is => add_words(&mut filter.states, token, key, JobState::WORDS),
        Key::App => add_names(&mut filter.apps, token, values),
        Key::Job => add_names(&mut filter.jobs, token, values),
        Key::Executor => add_names(&mut filter.executors, token, values),
        Key::Since => set_instant(&mut filter.since, token, key),
        Key::Until => set_instant(&mut filter.until, token, key),
        Key::Duration => set_lengths(&mut filter.duration, token, key),
        Key::Late => set_lengths(&mut filter.late, token, key),
        Key::Label => {
            let mut any = Vec::new();
            for value in values {
                let test = match value.split_once('=') {
                    Some((name, value)) => LabelTest { key: name.to_owned(), value: Some(value.to_owned()) },
                    None => LabelTest { key: value.clone(), value: None },
                };
                if test.key.is_empty() || test.value.as_deref() == Some("") {
                    return Err(token.refuse(value_offset, FilterProblem::Label(value)));
                }
                push_new(&mut any, test);
            }
            filter.labels.push(LabelTerm { any, is_not: token.is_not });
            Ok(())
        }
    }
}

/// Adds a value unless it is in the list already.
fn push_new<T: PartialEq>(values: &mut Vec<T>, value: T) {
    if !values.contains(&value) {
        values.push(value);
    }
}

fn add_words<T: FromStr + PartialEq>(
    condition: &mut ValueCondition<T>,
    token: &Token,
    key: Key,
    known_words: &'static [&'static str],
) -> Result<(), FilterError> {
    let mut value_start = key.as_str().len() + 1;
    for value in token.values() {
        let word = value.to_ascii_lowercase().replace('-', "_");
        match word.parse() {
            Ok(word) => push_new(if token.is_not { &mut condition.none } else { &mut condition.any }, word),
            Err(_) => {
                let meant_word = nearest_word(&word, known_words.iter().map(|word| (*word, *word)));
                let length = value.chars().count();
                let error = token.refuse(value_start, FilterProblem::Word { key, value, known_words, meant_word });
                return Err(FilterError { length: length.min(error.length), ..error });
            }
        }
        value_start += value.chars().count() + 1;
    }
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "every kind of value is added in the same way")]
fn add_names(condition: &mut ValueCondition<Pattern>, token: &Token, values: Vec<String>) -> Result<(), FilterError> {
    let names = if token.is_not { &mut condition.none } else { &mut condition.any };
    values.into_iter().for_each(|value| push_new(names, Pattern(value)));
    Ok(())
}

fn set_instant(slot: &mut Option<InstantBound>, token: &Token, key: Key) -> Result<(), FilterError> {
    let value = token.values().join(",");
    let bound = InstantBound::parse(&value);
    match (bound, token.is_not, &slot) {
        (_, true, _) => Err(token.refuse(0, FilterProblem::NotNegated(key))),
        (None, ..) => Err(token.refuse(key.as_str().len() + 1, FilterProblem::Instant(key, value))),
        (_, _, Some(_)) => Err(token.refuse(0, FilterProblem::Repeated(key))),
        (Some(bound), ..) => {
            *slot = Some(bound);
            Ok(())
        }
    }
}

fn set_lengths(range: &mut LengthRange, token: &Token, key: Key) -> Result<(), FilterError> {
    if token.is_not {
        return Err(token.refuse(0, FilterProblem::NotNegated(key)));
    }
    for value in token.values() {
        if !range.add(&value) {
            return Err(token.refuse(key.as_str().len() + 1, FilterProblem::Length(key, value)));
        }
    }
    Ok(())
}

/// The value of the known word that `word` probably misspells: `word` has at least three letters, and differs from a known word of up to
/// four letters by one at most, from a longer known word by two at most.
fn nearest_word<T>(word: &str, known_words: impl Iterator<Item = (T, &'static str)>) -> Option<T> {
    let distances = known_words.map(|(value, known_word)| (distance(word, known_word), value, known_word));
    let nearest = distances.min_by_key(|(distance, ..)| *distance)?;
    let distance_max = if nearest.2.len() <= 4 { 1 } else { 2 };
    (nearest.0 <= distance_max && word.len() >= 3).then_some(nearest.1)
}

/// The edit distance: how many letters must be added, removed, replaced or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(32).collect(), b.chars().take(32).collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let mut cost = (rows[i - 1][j] + 1).min(row[j - 1] + 1);
            cost = cost.min(rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]));
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                cost = cost.min(rows[i - 2][j - 2] + 1);
            }
            row.push(cost);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

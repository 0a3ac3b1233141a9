//! The errors of a filter. Each message describes a correct term.

use super::terms::{FILTER_LEN_MAX, Key, TERM_COUNT_MAX};
use crate::words::Lang;

/// A filter that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// The first wrong character, counted from 1.
    pub column: usize,
    /// How many characters are wrong.
    pub length: usize,
    pub problem: FilterProblem,
}

/// What is wrong with a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterProblem {
    /// It has too many characters.
    TooLong,
    /// It has too many terms.
    TooManyTerms,
    ControlCharacter,
    /// A word that is almost a key.
    Key {
        /// The text that was written in place of a key.
        key: String,
        /// The key that was probably meant.
        meant_key: Key,
    },
    /// A key of another list.
    KeyOfOtherList(Key),
    /// A key without a value.
    NoValue(Key),
    /// A value that is not one of the words that its key accepts.
    Word {
        key: Key,
        /// The text that was written in place of a word.
        value: String,
        /// The words that the key accepts.
        known_words: &'static [&'static str],
        /// The word that was probably meant.
        meant_word: Option<&'static str>,
    },
    /// A value that is not an instant.
    Instant(Key, String),
    /// A value that is not a bound on a duration such as `>5m`, or a second bound on the same side.
    Length(Key, String),
    /// A value that is not a label.
    Label(String),
    /// A term that cannot be negated.
    NotNegated(Key),
    /// A key that is given twice.
    Repeated(Key),
}

impl FilterError {
    /// The error as a sentence, without its column.
    #[must_use]
    pub fn sentence(&self, lang: Lang) -> String {
        match lang {
            Lang::En => english_text(&self.problem),
            Lang::Zh => chinese_text(&self.problem),
        }
    }
}

impl std::fmt::Display for FilterError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "column {}: {}", self.column, english_text(&self.problem))
    }
}

impl std::error::Error for FilterError {}

fn english_text(problem: &FilterProblem) -> String {
    match problem {
        FilterProblem::TooLong => format!("the filter is longer than {FILTER_LEN_MAX} characters"),
        FilterProblem::TooManyTerms => format!("the filter has more than {TERM_COUNT_MAX} terms"),
        FilterProblem::ControlCharacter => "control characters cannot be searched for; leave them out".to_owned(),
        FilterProblem::Key { key, meant_key } => {
            format!("there is no filter {key:?}; write {meant_key}:… or, to search for the text, put it in quotes")
        }
        FilterProblem::KeyOfOtherList(key) => format!("{key}: is not a filter of this list"),
        FilterProblem::NoValue(key) => format!("{key}: needs a value, such as {}", example(*key)),
        FilterProblem::Word { key, value, known_words, meant_word } => match meant_word {
            Some(meant_word) => format!("{value:?} is not a valid {key}; did you mean {key}:{meant_word}?"),
            None => format!("{value:?} is not a valid {key}; write one of {}", known_words.join(", ")),
        },
        FilterProblem::Instant(key, value) => format!(
            "{value:?} is not a time; write {key}:8h, {key}:7d, {key}:yesterday, {key}:2026-11-22 or {key}:2026-11-22T10:00"
        ),
        FilterProblem::Length(key, value) => {
            format!("{value:?} is not a bound; write {key}:>5m or {key}:<=250ms, each side at most once")
        }
        FilterProblem::Label(value) => format!("{value:?} is not a label; write label:team=pay or label:team"),
        FilterProblem::NotNegated(key) => format!("{key}: cannot be negated; write it without the minus"),
        FilterProblem::Repeated(key) => format!("{key}: is given twice"),
    }
}

fn chinese_text(problem: &FilterProblem) -> String {
    match problem {
        FilterProblem::TooLong => format!("筛选条件超过 {FILTER_LEN_MAX} 个字符"),
        FilterProblem::TooManyTerms => format!("筛选条件超过 {TERM_COUNT_MAX} 项"),
        FilterProblem::ControlCharacter => "不能搜索控制字符，请去掉".to_owned(),
        FilterProblem::Key { key, meant_key } => {
            format!("没有筛选项“{key}”；请写 {meant_key}:…，若要搜索这段文字请加引号")
        }
        FilterProblem::KeyOfOtherList(key) => format!("此列表没有筛选项 {key}:"),
        FilterProblem::NoValue(key) => format!("{key}: 后面缺少值，例如 {}", example(*key)),
        FilterProblem::Word { key, value, known_words, meant_word } => match meant_word {
            Some(meant_word) => format!("{key} 没有取值“{value}”；是否想写 {key}:{meant_word}？"),
            None => format!("{key} 没有取值“{value}”；可以是 {}", known_words.join("、")),
        },
        FilterProblem::Instant(key, value) => format!(
            "“{value}”不是时间；请写 {key}:8h、{key}:7d、{key}:yesterday、{key}:2026-11-22 或 {key}:2026-11-22T10:00"
        ),
        FilterProblem::Length(key, value) => {
            format!("“{value}”不是时长界限；请写 {key}:>5m 或 {key}:<=250ms，每侧最多一个")
        }
        FilterProblem::Label(value) => format!("“{value}”不是标签；请写 label:team=pay 或 label:team"),
        FilterProblem::NotNegated(key) => format!("{key}: 不能取反；请去掉前面的减号"),
        FilterProblem::Repeated(key) => format!("{key}: 出现了两次"),
    }
}

/// A term with this key, as an example.
pub(super) const fn example(key: Key) -> &'static str {
    match key {
        Key::Status => "status:failed",
        Key::App => "app:orders",
        Key::Job => "job:orders.*",
        Key::Executor => "executor:w2",
        Key::Trigger => "trigger:cron",
        Key::Since => "since:8h",
        Key::Until => "until:2026-11-22T10:00",
        Key::Duration => "duration:>5m",
        Key::Late => "late:>1s",
        Key::Label => "label:team=pay",
        Key::Is => "is:failing",
    }
}

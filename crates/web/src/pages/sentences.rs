//! Translates the engine's sentences, such as errors about fields, for the reader. The key is the English sentence, with gaps in place of
//! values. `web/locales/zh-sentences.txt` has both languages. A sentence that is not in that file is shown in English.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::LazyLock;

use rondel_core::words::Lang;

const CHINESE_SENTENCES: &str = include_str!("../../../../web/locales/zh-sentences.txt");
/// Maximum nesting depth of parts of sentences.
const DEPTH_MAX: usize = 3;

/// A sentence or a part of one, with gaps for values.
#[derive(Debug)]
struct Sentence {
    /// Whether it occurs only within other sentences.
    is_part: bool,
    /// The words before, between and after the gaps.
    words: Vec<&'static str>,
    /// For each gap, whether its value is a part of a sentence; such a part is translated too.
    gaps: Vec<bool>,
    chinese: &'static str,
}

static SENTENCES: LazyLock<Vec<Sentence>> = LazyLock::new(|| {
    let mut sentences: Vec<Sentence> =
        sentence_pairs().map(|(english, chinese)| Sentence::new(english, chinese)).collect();
    sentences.sort_by_key(|sentence| Reverse(sentence.words.iter().map(|words| words.len()).sum::<usize>()));
    sentences
});

/// The sentence in this language. Without a translation, it is returned unchanged.
pub(super) fn localized(lang: Lang, sentence: &str) -> Cow<'_, str> {
    match lang {
        Lang::En => Cow::Borrowed(sentence),
        Lang::Zh => to_chinese(sentence, false, DEPTH_MAX).map_or(Cow::Borrowed(sentence), Cow::Owned),
    }
}

fn sentence_pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    CHINESE_SENTENCES.split("\n\n").filter_map(|block| {
        let mut lines = block.lines().filter(|line| !line.starts_with('#'));
        Some((lines.next()?, lines.next()?))
    })
}

fn to_chinese(text: &str, is_part: bool, depth: usize) -> Option<String> {
    SENTENCES.iter().filter(|sentence| sentence.is_part == is_part).find_map(|sentence| sentence.translate(text, depth))
}

impl Sentence {
    fn new(english: &'static str, chinese: &'static str) -> Self {
        let is_part = english.starts_with("~ ");
        let (mut words, mut gaps) = (Vec::new(), Vec::new());
        let mut unread_text = english.strip_prefix("~ ").unwrap_or(english);
        while let Some((before, after)) = unread_text.split_once('{') {
            words.push(before);
            let (gap, after) = after.split_once('}').unwrap_or((after, ""));
            gaps.push(gap == "~");
            unread_text = after;
        }
        words.push(unread_text);
        Self { is_part, words, gaps, chinese }
    }

    fn translate(&self, text: &str, depth: usize) -> Option<String> {
        let values = self.values(text)?;
        let mut chinese_text = String::new();
        let mut unread_text = self.chinese;
        while let Some((before, after)) = unread_text.split_once('{') {
            let (number, after) = after.split_once('}')?;
            let index = number.parse::<usize>().ok()?.checked_sub(1)?;
            let (value, is_part) = (*values.get(index)?, *self.gaps.get(index)?);
            let translated_part = if is_part { to_chinese(value, true, depth.checked_sub(1)?) } else { None };
            if translated_part.is_none() && is_part && self.is_part {
                return None;
            }
            chinese_text.push_str(before);
            chinese_text.push_str(translated_part.as_deref().unwrap_or(value));
            unread_text = after;
        }
        chinese_text.push_str(unread_text);
        Some(chinese_text)
    }

    /// The values in the gaps; `None` if the text is not this sentence.
    fn values<'t>(&self, text: &'t str) -> Option<Vec<&'t str>> {
        let (first_words, other_words) = self.words.split_first()?;
        let mut unread_text = text.strip_prefix(first_words)?;
        let Some((last_words, middle_words)) = other_words.split_last() else {
            return unread_text.is_empty().then(Vec::new);
        };
        let mut values = Vec::with_capacity(self.gaps.len());
        for words in middle_words {
            let (value, after) = unread_text.split_once(words)?;
            values.push(value);
            unread_text = after;
        }
        values.push(unread_text.strip_suffix(last_words)?);
        Some(values)
    }
}

#[cfg(test)]
#[path = "sentences_tests.rs"]
mod tests;

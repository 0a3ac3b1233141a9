//! Lengths of time in words.

use std::time::Duration;

use super::Lang;

/// A length of time in words: `1 hour 30 minutes`. Units that are 0 are left out; a zero length is `0 seconds`.
///
/// ```
/// use std::time::Duration;
/// use rondel_core::words::{Lang, length};
///
/// assert_eq!(length(Duration::from_secs(5_400), Lang::En), "1 hour 30 minutes");
/// assert_eq!(length(Duration::from_secs(5_400), Lang::Zh), "1小时30分钟");
/// ```
#[must_use]
pub fn length(length: Duration, lang: Lang) -> String {
    let seconds = length.as_secs();
    let parts = [
        (seconds / 86_400, "day", "天"),
        (seconds / 3_600 % 24, "hour", "小时"),
        (seconds / 60 % 60, "minute", "分钟"),
        (seconds % 60, "second", "秒"),
        (u64::from(length.subsec_millis()), "millisecond", "毫秒"),
    ];
    let unit_texts: Vec<String> = parts
        .into_iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, en, zh)| match lang {
            Lang::En if count == 1 => format!("1 {en}"),
            Lang::En => format!("{count} {en}s"),
            Lang::Zh => format!("{count}{zh}"),
        })
        .collect();
    match (unit_texts.is_empty(), lang) {
        (true, Lang::En) => "0 seconds".to_owned(),
        (true, Lang::Zh) => "0秒".to_owned(),
        (false, Lang::En) => unit_texts.join(" "),
        (false, Lang::Zh) => unit_texts.concat(),
    }
}

//! Classifies a line of a log: its severity, and whether Rondel itself wrote it to mark missing lines.
//!
//! The severity is decided only here: from the level that came with the line or, for a program that only prints, from the level in its
//! text.

use crate::words::Lang;

crate::plain_word_enum! {
    /// How severe a line is.
    pub LineSeverity {
        /// Something failed.
        Error = "error",
        /// Something may be wrong.
        Warn = "warn",
        /// All other lines.
        Info = "info",
        /// For developers: `debug` and `trace`.
        Debug = "debug",
    }
}

/// How many bytes are read from the beginning of a line, where the name of a level is.
const READ_BYTES_MAX: usize = 160;
/// How many words of the first [`READ_BYTES_MAX`] bytes are read.
const WORD_COUNT_MAX: usize = 8;

impl LineSeverity {
    /// The severity of a line. For a logged line, the level decides; for a printed line (level `stdout` or `stderr`), the text
    /// decides.
    ///
    /// ```
    /// use rondel_core::log_line::LineSeverity;
    ///
    /// assert_eq!(LineSeverity::of("warn", "error is a word here"), LineSeverity::Warn);
    /// assert_eq!(LineSeverity::of("stdout", "2026-03-08 07:00:00 ERROR disk full"), LineSeverity::Error);
    /// assert_eq!(LineSeverity::of("stdout", "0 errors"), LineSeverity::Info);
    /// assert_eq!(LineSeverity::of("stderr", "cp: cannot stat 'a': No such file or directory"), LineSeverity::Error);
    /// ```
    #[must_use]
    pub fn of(level: &str, text: &str) -> Self {
        match level {
            "error" => Self::Error,
            "warn" => Self::Warn,
            "info" => Self::Info,
            "debug" | "trace" => Self::Debug,
            _ => {
                let start_text = line_start(text);
                let severity = named_severity(&start_text).or_else(|| stack_trace_severity(&start_text));
                severity
                    .or_else(|| (level == "stderr").then(|| stderr_severity(&start_text)).flatten())
                    .unwrap_or(Self::Info)
            }
        }
    }
}

/// The beginning of a line, without colours.
fn line_start(text: &str) -> String {
    let mut start_text = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if start_text.len() >= READ_BYTES_MAX {
            break;
        }
        if c == '\u{1b}' {
            // A colour code ends with a letter.
            let _end = chars.find(char::is_ascii_alphabetic);
            continue;
        }
        start_text.push(c);
    }
    start_text
}

/// A level named near the beginning: as a word in capitals, in brackets, before a colon, or as a field `level`.
fn named_severity(start_text: &str) -> Option<LineSeverity> {
    let mut count = 0;
    let mut follows_level_key = false;
    let mut remaining_text = start_text;
    while let Some(start) = remaining_text.find(|c: char| c.is_ascii_alphabetic()) {
        let char_before = remaining_text[..start].chars().next_back();
        let len = remaining_text[start..]
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(remaining_text.len() - start);
        let (word, text_after_word) = remaining_text[start..].split_at(len);
        let char_after = text_after_word.chars().next();
        let is_marked = word.chars().all(|c| c.is_ascii_uppercase())
            || matches!(
                (char_before, char_after),
                (Some('['), Some(']')) | (Some('<'), Some('>')) | (Some('('), Some(')'))
            )
            || (matches!(char_after, Some(':' | '[')) && count < 3)
            || follows_level_key;
        if let Some(severity) = severity_of_word(word).filter(|_| is_marked) {
            return Some(severity);
        }
        follows_level_key =
            word.eq_ignore_ascii_case("level") || word.eq_ignore_ascii_case("severity") || word == "lvl";
        count += 1;
        if count >= WORD_COUNT_MAX {
            return None;
        }
        remaining_text = text_after_word;
    }
    None
}

fn severity_of_word(word: &str) -> Option<LineSeverity> {
    let word = word.to_ascii_lowercase();
    Some(match word.as_str() {
        "error" | "err" | "fatal" | "critical" | "crit" | "severe" | "panic" | "emerg" | "alert" => LineSeverity::Error,
        "warn" | "warning" => LineSeverity::Warn,
        "info" | "notice" => LineSeverity::Info,
        "debug" | "trace" | "verbose" => LineSeverity::Debug,
        _ => return None,
    })
}

/// `Error` if the line is the first one of a stack trace, in a form that programming languages print.
fn stack_trace_severity(start_text: &str) -> Option<LineSeverity> {
    let is_start =
        ["Traceback (most recent call last)", "Exception in thread", "Caused by:", "panic:", "Unhandled exception"]
            .iter()
            .any(|start| start_text.starts_with(start));
    let is_panic = start_text.starts_with("thread '") && start_text.contains("panicked at");
    let name = start_text.split([':', ' ']).next().unwrap_or_default();
    let names_error = (name.ends_with("Error") || name.ends_with("Exception"))
        && name.len() < start_text.len()
        && name.starts_with(|c: char| c.is_ascii_alphabetic());
    (is_start || is_panic || names_error).then_some(LineSeverity::Error)
}

/// The severity of a line on stderr, by the words in it; `None` if they name no error and no warning.
fn stderr_severity(start_text: &str) -> Option<LineSeverity> {
    let start_text = start_text.to_ascii_lowercase();
    let words = [
        "error",
        "failed",
        "failure",
        "cannot",
        "can't",
        "could not",
        "not found",
        "no such file",
        "denied",
        "refused",
    ];
    if words.iter().any(|word| start_text.contains(word)) {
        return Some(LineSeverity::Error);
    }
    (start_text.contains("warning") || start_text.contains("deprecated")).then_some(LineSeverity::Warn)
}

/// How much of a log is missing, according to a line that Rondel wrote in place of the missing ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingLines {
    /// The whole log: the retention removed it.
    Removed,
    Part,
}

/// Recognizes a line that Rondel wrote in place of missing lines, and returns how much is missing; `None` for an
/// ordinary line.
///
/// ```
/// use rondel_core::log_line::{MissingLines, missing_lines};
///
/// assert_eq!(missing_lines("warn", "… 12 lines were removed by the log retention"), Some(MissingLines::Removed));
/// assert_eq!(missing_lines("warn", "… this log is full (10 MiB): what follows is dropped"), Some(MissingLines::Part));
/// assert_eq!(missing_lines("warn", "… and so on"), None);
/// ```
#[must_use]
pub fn missing_lines(level: &str, text: &str) -> Option<MissingLines> {
    let text = text.strip_prefix("… ").filter(|_| level == "warn")?;
    if text.ends_with(" lines were removed by the log retention") {
        return Some(MissingLines::Removed);
    }
    let parts = [
        "lines were dropped here: the run logged faster than they could be sent",
        "lines were dropped here: the server could not store them in time",
        "what follows is dropped",
        "the log of one attempt has room for",
        "the rest of this part of the log is not shown",
        "the rest of this log ",
    ];
    parts.iter().any(|part| text.contains(part)).then_some(MissingLines::Part)
}

/// Translates a line that Rondel wrote; `None` for other lines, and for English, because lines are written in English.
#[must_use]
pub fn translate(level: &str, text: &str, lang: Lang) -> Option<String> {
    missing_lines(level, text).filter(|_| lang == Lang::Zh)?;
    let text = text.strip_prefix("… ")?;
    let number = |end: &str| text.strip_suffix(end).filter(|count| count.chars().all(|c| c.is_ascii_digit()));
    if let Some(count) = number(" lines were removed by the log retention") {
        return Some(format!("… 有 {count} 行日志已过保留期，被清除"));
    }
    if let Some(count) = number(" lines were dropped here: the run logged faster than they could be sent") {
        return Some(format!("… 此处丢弃了 {count} 行：日志写得太快，来不及发送"));
    }
    if let Some(count) = number(" lines were dropped here: the server could not store them in time") {
        return Some(format!("… 此处丢弃了 {count} 行：服务器来不及保存"));
    }
    if let Some(room) = text.strip_prefix("this log is full (").and_then(|rest| rest.split_once(')')) {
        return Some(format!("… 日志已满（{}），之后的内容不再保存", room.0));
    }
    if let Some(room) = text.strip_prefix("the rest of this part of the log is not shown: it has more than ") {
        return Some(format!("… 这一段日志的其余部分不显示：超过 {}", room.replace(" bytes", " 字节")));
    }
    if let Some(rest) = text.strip_prefix("the rest of this log ") {
        return rest_of_xxl_log(rest);
    }
    let room = text.rsplit_once("has room for ").map(|(_, room)| room.split(';').next().unwrap_or(room))?;
    Some(match text.split_once(" lines (") {
        Some((count, rest)) => {
            let bytes = rest.split(')').next().unwrap_or_default();
            format!("… 此处省略 {count} 行（{bytes}）：一次尝试的日志最多 {room}；以下是结尾")
        }
        None => format!("… 之后只保留结尾，运行结束后显示：一次尝试的日志最多 {room}"),
    })
}

/// Why the rest of a log of an XXL-JOB executor is missing, in Chinese.
fn rest_of_xxl_log(rest_text: &str) -> Option<String> {
    if let Some(rest_after_sentence) = rest_text.strip_prefix("is too long to be read: it is on the executor.") {
        return Some(format!("… 日志的其余部分太长，无法读取，仍在执行器上。{}", rest_after_sentence.trim_start()));
    }
    if let Some(reason) = rest_text.strip_prefix("could not be read after the end of the run: ") {
        return Some(format!("… 运行结束后无法读取日志的其余部分：{reason}"));
    }
    let is_late = rest_text == "was not read in time after the end of the run: it is on the executor";
    is_late.then(|| "… 运行结束后未能及时读取日志的其余部分，仍在执行器上".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_line_names_its_severity_at_its_beginning() {
        for (line, expected) in [
            ("ERROR disk full", LineSeverity::Error),
            ("\u{1b}[1;31merror\u{1b}[0m: could not compile", LineSeverity::Error),
            ("error[E0308]: mismatched types", LineSeverity::Error),
            ("2026-03-08T07:00:00.250Z ERROR app::db refused", LineSeverity::Error),
            ("2026/03/08 07:00:00 [warn] 12#12: slow", LineSeverity::Warn),
            ("time=07:00 level=error msg=\"no\"", LineSeverity::Error),
            (r#"{"ts":1,"level":"warning","msg":"x"}"#, LineSeverity::Warn),
            ("Mar  8 07:00:00 host app[12]: <debug> x", LineSeverity::Debug),
            ("INFO no ERROR here", LineSeverity::Info),
            ("0 errors, 2 warnings", LineSeverity::Info),
            ("the error of a sum", LineSeverity::Info),
            ("Traceback (most recent call last):", LineSeverity::Error),
            ("java.lang.IllegalStateException: closed", LineSeverity::Error),
            ("ValueError: bad", LineSeverity::Error),
            ("thread 'main' panicked at src/main.rs:3:5:", LineSeverity::Error),
            ("", LineSeverity::Info),
            ("日志 错误", LineSeverity::Info),
        ] {
            assert_eq!(LineSeverity::of("stdout", line), expected, "{line}");
        }
        assert_eq!(LineSeverity::of("stderr", "progress 12 %"), LineSeverity::Info);
        assert_eq!(LineSeverity::of("stderr", "curl: (7) Failed to connect"), LineSeverity::Error);
        assert_eq!(LineSeverity::of("stderr", "DeprecationWarning: old"), LineSeverity::Warn);
        assert_eq!(LineSeverity::of("trace", "x"), LineSeverity::Debug);
        assert_eq!("error".parse(), Ok(LineSeverity::Error));
        assert!("loud".parse::<LineSeverity>().is_err());
    }

    #[test]
    fn marks_of_our_own_are_translated() {
        for (text, zh) in [
            ("… 12 lines were removed by the log retention", "… 有 12 行日志已过保留期，被清除"),
            (
                "… 7 lines were dropped here: the run logged faster than they could be sent",
                "… 此处丢弃了 7 行：日志写得太快，来不及发送",
            ),
            (
                "… 7 lines were dropped here: the server could not store them in time",
                "… 此处丢弃了 7 行：服务器来不及保存",
            ),
            ("… this log is full (10 MiB): what follows is dropped", "… 日志已满（10 MiB），之后的内容不再保存"),
            (
                "… the rest of this log is too long to be read: it is on the executor. 9 MiB",
                "… 日志的其余部分太长，无法读取，仍在执行器上。9 MiB",
            ),
            (
                "… the rest of this log could not be read after the end of the run: no answer",
                "… 运行结束后无法读取日志的其余部分：no answer",
            ),
            (
                "… the rest of this log was not read in time after the end of the run: it is on the executor",
                "… 运行结束后未能及时读取日志的其余部分，仍在执行器上",
            ),
            (
                "… 5 lines (2 MiB) are left out here: the log of one attempt has room for 10 MiB; its end follows",
                "… 此处省略 5 行（2 MiB）：一次尝试的日志最多 10 MiB；以下是结尾",
            ),
            (
                "… of what follows only the end is kept, and shown when the run is over: the log of one attempt has room for 10 MiB",
                "… 之后只保留结尾，运行结束后显示：一次尝试的日志最多 10 MiB",
            ),
        ] {
            assert_eq!(translate("warn", text, Lang::Zh).as_deref(), Some(zh));
            assert_eq!(translate("warn", text, Lang::En), None);
            assert_eq!(translate("info", text, Lang::Zh), None, "others may write what looks like it");
        }
    }
}

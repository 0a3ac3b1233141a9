//! The only place that writes to the terminal: data to stdout, messages to stderr.

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal as _, Write};
use std::process::ExitCode;

use crate::exit::{Exit, Failure};
use crate::format::Format;
use crate::terminal::{harmless_lines, harmless_text, is_harmful};

/// Writes data: one or more whole lines.
///
/// # Errors
/// If the reader has closed the pipe (`rondel run list | head -1`), a failure without a message and with exit code 0;
/// otherwise the system's error.
pub(crate) fn print_lines(lines: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    let line_end = if lines.ends_with('\n') || lines.is_empty() { "" } else { "\n" };
    let write_result = stdout
        .write_all(lines.as_bytes())
        .and_then(|()| stdout.write_all(line_end.as_bytes()))
        .and_then(|()| stdout.flush());
    write_result.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::silent(Exit::Success),
        _ => Failure::of("cannot write to stdout", &error),
    })
}

/// Writes the server's answer: unchanged, or as YAML.
///
/// # Errors
/// As [`print_lines`], and if the answer is not JSON.
pub(crate) fn print_document(json: &str, format: Format) -> Result<(), Failure> {
    if format != Format::Yaml {
        return print_json(json);
    }
    let value: serde_json::Value =
        serde_json::from_str(json).map_err(|error| Failure::of("the server's answer is not understood", &error))?;
    print_lines(&rondel_web::yaml::write_value(&value))
}

/// Writes the text of a file: unchanged into files and pipes, made harmless for a terminal.
///
/// # Errors
/// As [`print_lines`].
pub(crate) fn print_raw(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    let shown_text = if stdout.is_terminal() { harmless_lines(text) } else { text.to_owned() };
    let write_result = stdout.write_all(shown_text.as_bytes()).and_then(|()| stdout.flush());
    write_result.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::silent(Exit::Success),
        _ => Failure::of("cannot write to stdout", &error),
    })
}

/// Writes JSON, one value or one in each line.
///
/// # Errors
/// As [`print_lines`].
pub(crate) fn print_json(text: &str) -> Result<(), Failure> {
    print_lines(&escaped_json(text))
}

/// Writes an answer of the server of any kind: JSON as [`print_json`] does; other text unchanged into files and pipes, and
/// made harmless for a terminal.
///
/// # Errors
/// As [`print_lines`].
pub(crate) fn print_answer(text: &str) -> Result<(), Failure> {
    if text.trim_start().starts_with(['{', '[']) {
        return print_json(text);
    }
    if !std::io::stdout().is_terminal() {
        return print_lines(text);
    }
    print_lines(&harmless_lines(text))
}

/// Writes names, one a line, each harmless for a terminal.
///
/// # Errors
/// As [`print_lines`].
pub(crate) fn print_names<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> Result<(), Failure> {
    let lines: Vec<_> = names.into_iter().map(|name| harmless_text(name.as_ref()).into_owned()).collect();
    print_lines(&lines.join("\n"))
}

/// Escapes the characters that a terminal would obey or that would reorder visible text: JSON itself does not escape DEL, C1
/// controls and invisible characters. In a JSON text, these characters only occur within strings, where an escape has the
/// same meaning.
fn escaped_json(json: &str) -> Cow<'_, str> {
    let needs_escape = |c: char| c == '\u{7f}' || (!c.is_ascii() && is_harmful(c));
    if !json.contains(needs_escape) {
        return Cow::Borrowed(json);
    }
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if needs_escape(c) {
            let mut units = [0; 2];
            text.extend(c.encode_utf16(&mut units).iter().map(|code_unit| format!("\\u{code_unit:04x}")));
        } else {
            text.push(c);
        }
    }
    Cow::Owned(text)
}

/// Prints a failure on stderr, and returns the exit code of the process.
pub(crate) fn report_failure(failure: &Failure) -> ExitCode {
    if !failure.message().is_empty() {
        print_message(&format!("error: {}", failure.message()));
    }
    failure.exit().into()
}

/// Prints a message on stderr, with terminal control characters escaped. A closed stderr is ignored.
pub(crate) fn print_message(message: &str) {
    std::io::stderr().lock().write_all(harmless_lines(message).as_bytes()).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_without_control_characters_has_the_same_value() {
        let json = "{\"a\":\"\u{9b}31m ä 表 \u{202e}\u{7f}\\n\"}";
        let shown = escaped_json(json);
        assert_eq!(shown, "{\"a\":\"\\u009b31m ä 表 \\u202e\\u007f\\n\"}");
        let values = [json, &shown].map(|text| serde_json::from_str::<serde_json::Value>(text).unwrap());
        assert_eq!(values[0], values[1]);
        assert!(matches!(escaped_json("{\n\"a\": 1}"), Cow::Borrowed(_)));
    }
}

//! Lines of a program's log in JSON.

use serde_json::Value;

/// The lines of a program's log, parsed, in order. Lines that do not begin with `{` are for users, and are left out.
pub(super) fn lines(stderr: &str) -> Vec<Value> {
    let documents = stderr.lines().filter(|line| line.starts_with('{'));
    documents.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// The lines that mention one of these names or ids.
pub(super) fn about<'a>(lines: &'a [Value], words: &[&str]) -> Vec<&'a Value> {
    let is_about = |line: &&Value| {
        let text = line.to_string();
        words.iter().any(|word| text.contains(word))
    };
    lines.iter().filter(is_about).collect()
}

/// The line with this message.
pub(super) fn line_with_message<'a>(lines: &[&'a Value], message: &str) -> &'a Value {
    lines
        .iter()
        .find(|line| line["message"] == message)
        .unwrap_or_else(|| panic!("no line has {message:?}: {lines:#?}"))
}

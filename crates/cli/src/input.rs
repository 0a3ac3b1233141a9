//! Text and JSON given to a command: in a flag, a file, or on stdin.

use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use crate::exit::Failure;

/// Reads JSON from a flag.
pub(crate) fn parse_json_flag(flag: &str, text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text)
        .map_err(|error| Failure::refused(format!("{flag} is not JSON: {error}{}", hint_for_text(text))))
}

/// A hint for a text without JSON quotes, the most usual parameter of jobs from XXL-JOB; empty for other texts.
fn hint_for_text(text: &str) -> &'static str {
    let begins_like_json = text.trim_start().starts_with(['{', '[', '"']);
    if begins_like_json { "" } else { "; write a text in double quotes, such as '\"region=us\"'" }
}

/// Reads the text of a JSON file, and checks that it is JSON; `-` is stdin.
pub(crate) fn read_json(path: &Path) -> Result<String, Failure> {
    let text = read_document(path)?;
    serde_json::from_str::<&serde_json::value::RawValue>(&text)
        .map_err(|error| Failure::refused(format!("{} is not JSON: {error}{}", path.display(), hint_for_yaml(path))))?;
    Ok(text)
}

fn hint_for_yaml(path: &Path) -> String {
    let is_yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    if is_yaml { format!("; for YAML: rondel job apply -f {}", path.display()) } else { String::new() }
}

/// Reads a file, without the byte order mark that some editors put at its beginning; `-` is stdin.
pub(crate) fn read_document(path: &Path) -> Result<String, Failure> {
    let text = read_text(path)?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Reads a file unchanged; `-` is stdin.
pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let result = if path.as_os_str() == "-" {
        std::io::stdin().lock().read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text))
    };
    result.map_err(|error| Failure::refused(format!("cannot read {}: {error}", path.display())))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_quotes_gets_a_hint() {
        for (text, has_hint) in [("region=us", true), ("", true), ("{a", false), ("\"region", false)] {
            let message = parse_json_flag("--params", text).expect_err("it is not JSON").message().to_owned();
            assert_eq!(message.contains("double quotes"), has_hint, "{message}");
        }
    }
}

//! Job data: Java properties as text, which Quartz stores with `useProperties`, or a serialized map.

use serde_json::{Map, Value};

use super::serialized;

/// The kinds of job data.
#[derive(Debug, PartialEq)]
pub(super) enum JobData {
    Nothing,
    /// Texts by their keys.
    Texts(Map<String, Value>),
    /// Anything else, such as a serialized map with a value that is not a text.
    Other,
}

/// Reads job data from hexadecimal digits, with or without the `\x` that PostgreSQL writes before them.
pub(super) fn read(hex: &str) -> JobData {
    let digits = hex.strip_prefix("\\x").unwrap_or(hex);
    let pairs = digits.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> =
        pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
    let texts = match bytes.as_deref() {
        Some([]) => Some(Map::new()),
        // Properties begin with a comment; a serialized object with 0xac 0xed.
        Some(bytes @ [b'#', ..]) if bytes.is_ascii() => Some(parse_properties(&String::from_utf8_lossy(bytes))),
        Some(bytes) => serialized::parse_text_map(bytes),
        None => None,
    };
    match texts {
        Some(texts) if texts.is_empty() => JobData::Nothing,
        Some(texts) => JobData::Texts(texts),
        None => JobData::Other,
    }
}

fn parse_properties(text: &str) -> Map<String, Value> {
    let (mut result, mut lines) = (Map::new(), text.lines());
    while let Some(line) = lines.next() {
        let mut line = line.trim_start().to_owned();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        while line.chars().rev().take_while(|c| *c == '\\').count() % 2 == 1 {
            line.pop();
            let Some(next_line) = lines.next() else { break };
            line.push_str(next_line.trim_start());
        }
        let (key, value) = split_line(&line);
        result.insert(unescape(key), unescape(value).into());
    }
    result
}

/// Splits a line into key and value, at the first `=`, `:` or blank without a backslash before it.
fn split_line(line: &str) -> (&str, &str) {
    let mut is_escaped = false;
    for (index, c) in line.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '=' | ':' | ' ' | '\t' => {
                let value = line[index..].trim_start();
                return (&line[..index], value.strip_prefix(['=', ':']).unwrap_or(value).trim_start());
            }
            _ => {}
        }
    }
    (line, "")
}

fn unescape(text: &str) -> String {
    let (mut units, mut chars) = (Vec::new(), text.chars());
    let push = |units: &mut Vec<u16>, c: char| units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
    while let Some(c) = chars.next() {
        match if c == '\\' {
            chars.next()
        } else {
            push(&mut units, c);
            continue;
        } {
            Some('n') => push(&mut units, '\n'),
            Some('r') => push(&mut units, '\r'),
            Some('t') => push(&mut units, '\t'),
            Some('f') => push(&mut units, '\u{c}'),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                units.push(u16::from_str_radix(&digits, 16).unwrap_or(0xfffd));
            }
            Some(escaped_char) => push(&mut units, escaped_char),
            None => {}
        }
    }
    String::from_utf16_lossy(&units)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn properties_and_maps_of_texts_are_read_and_other_objects_are_not() {
        let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let text = "#\n#Mon Nov 23 10:00:00 CST 2026\nto=a\\=b\\:c\nname\\ x : \\u7ed3\\u7b97\nlong=1\\\n  2\nempty\n";
        let expected = json!({"to": "a=b:c", "name x": "结算", "long": "12", "empty": ""});
        assert_eq!(Some(&read(&hex(text))), expected.as_object().cloned().map(JobData::Texts).as_ref());
        assert_eq!(read(&format!("\\x{}", hex("#\n#now\n"))), JobData::Nothing);
        assert_eq!((read(""), read("aced0005"), read("zz")), (JobData::Nothing, JobData::Other, JobData::Other));
        let (empty, number) = (serialized::tests::empty(), serialized::tests::with_number());
        assert_eq!((read(&empty), read(&number.to_uppercase())), (JobData::Nothing, JobData::Other));
        assert!(
            matches!(read(&format!("\\x{}", serialized::tests::filled())), JobData::Texts(texts) if texts.len() == 3)
        );
    }
}

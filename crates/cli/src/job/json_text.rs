//! Finds the places of the parts of a JSON document in its text.

use std::collections::HashMap;
use std::rc::Rc;

use serde_json::value::RawValue;

/// A value in a JSON text.
#[derive(Debug)]
pub(super) struct JsonText {
    pub(super) text: Rc<str>,
    /// The pointer of the value in the text.
    pub(super) root: String,
}

impl JsonText {
    /// The line and column, counted from 1, of the part that a pointer below the value names. If the part does not exist,
    /// returns the place of the innermost value around it.
    pub(super) fn place(&self, pointer: &str) -> (usize, usize) {
        let mut value = self.text.trim_start();
        let path = self.root.split('/').skip(1).chain(pointer.split('/').skip(1));
        for path_part in path {
            let Some(child_value) = child(value, &path_part.replace("~1", "/").replace("~0", "~")) else { break };
            value = child_value;
        }
        // `value` is a slice of the text, so its offset is the difference of the addresses.
        let text_before = &self.text[..value.as_ptr().addr() - self.text.as_ptr().addr()];
        let line = text_before.rsplit('\n').next().unwrap_or_default();
        (text_before.matches('\n').count() + 1, line.chars().count() + 1)
    }
}

/// An item or a field of a JSON value, as a slice of the text.
fn child<'t>(value: &'t str, path_part: &str) -> Option<&'t str> {
    let child = match value.as_bytes().first()? {
        b'[' => serde_json::from_str::<Vec<&RawValue>>(value).ok()?.get(path_part.parse::<usize>().ok()?).copied(),
        b'{' => serde_json::from_str::<HashMap<String, &RawValue>>(value).ok()?.get(path_part).copied(),
        _ => None,
    };
    child.map(RawValue::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_found_in_the_text() {
        let text =
            " [\n  {\"name\": \"a\", \"x/y\": [1, {\"\u{e9}\": \"}\", \"n\": 1.50}]},\n\t{\"a\\u0062\": true}\n]\n";
        for (root, pointer, place) in [
            ("", "", (1, 2)),
            ("/0", "", (2, 3)),
            ("/0", "/name", (2, 12)),
            ("/0", "/x~1y/1/n", (2, 44)),
            ("/0", "/x~1y/7", (2, 24)),
            ("/0", "/missing", (2, 3)),
            ("/1", "/ab", (3, 14)),
        ] {
            let json = JsonText { text: text.into(), root: root.to_owned() };
            assert_eq!(json.place(pointer), place, "{root}{pointer}");
        }
    }
}

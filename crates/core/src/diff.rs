//! The differences between two versions of a definition: field by field, and line by line if a field is a text of several lines, such as a
//! script.

use serde_json::Value;

use crate::field_error::child_pointer;

/// Maximum number of pairs of lines that are compared; for longer texts, all lines from the first difference to the last are
/// shown as one block.
const PAIRS_MAX: usize = 4_000_000;

/// Number of unchanged lines that are shown before and after a changed one.
const CONTEXT_LINE_COUNT: usize = 3;

/// A field that differs between two documents.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The field, as a JSON pointer.
    pub pointer: String,
    /// Its old value; `None` if it did not exist.
    pub from: Option<Value>,
    /// Its new value; `None` if it no longer exists.
    pub to: Option<Value>,
}

/// The fields that differ, in the order of their pointers. Objects are compared field by field, lists as a whole.
///
/// ```
/// use rondel_core::diff::changes;
/// use serde_json::json;
///
/// let (from, to) = (json!({"retry": {"max": 0}, "app": "a"}), json!({"retry": {"max": 3}, "app": "a"}));
/// let [change] = &changes(&from, &to)[..] else { panic!("one change") };
/// assert_eq!((change.pointer.as_str(), &change.to), ("/retry/max", &Some(json!(3))));
/// ```
#[must_use]
pub fn changes(from: &Value, to: &Value) -> Vec<Change> {
    let mut changes = Vec::new();
    add_changes(String::new(), Some(from), Some(to), &mut changes);
    changes.sort_by(|a, b| a.pointer.cmp(&b.pointer));
    changes
}

fn add_changes(pointer: String, from: Option<&Value>, to: Option<&Value>, changes: &mut Vec<Change>) {
    if let (Some(Value::Object(fields_before)), Some(Value::Object(fields_after))) = (from, to) {
        let removed_keys = fields_before.keys().filter(|key| !fields_after.contains_key(*key));
        for key in removed_keys.chain(fields_after.keys()) {
            add_changes(child_pointer(&pointer, key), fields_before.get(key), fields_after.get(key), changes);
        }
    } else if from != to {
        changes.push(Change { pointer, from: from.cloned(), to: to.cloned() });
    }
}

/// Merges two edits of `base`: a field that `mine` did not change is taken from `theirs`, every other field from `mine`. Objects are
/// merged field by field, lists as a whole.
///
/// ```
/// use rondel_core::diff::merge;
/// use serde_json::json;
///
/// let (base, theirs) = (json!({"shards": 3, "app": "a"}), json!({"shards": 5, "app": "a"}));
/// assert_eq!(merge(&base, &json!({"shards": 3, "app": "b"}), &theirs), json!({"shards": 5, "app": "b"}));
/// assert_eq!(merge(&base, &json!({"shards": 4}), &theirs), json!({"shards": 4}));
/// ```
#[must_use]
pub fn merge(base: &Value, mine: &Value, theirs: &Value) -> Value {
    let (Value::Object(base_fields), Value::Object(my_fields), Value::Object(their_fields)) = (base, mine, theirs)
    else {
        return if mine == base { theirs.clone() } else { mine.clone() };
    };
    let keys = my_fields.keys().chain(their_fields.keys().filter(|key| !my_fields.contains_key(*key)));
    let merged_fields = keys.filter_map(|key| {
        let value = match (base_fields.get(key), my_fields.get(key), their_fields.get(key)) {
            (Some(base), Some(mine), Some(theirs)) => Some(merge(base, mine, theirs)),
            (base, mine, theirs) if base == mine => theirs.cloned(),
            (_, mine, _) => mine.cloned(),
        };
        Some((key.clone(), value?))
    });
    Value::Object(merged_fields.collect())
}

/// The changes as text: `-` before old values, `+` before new ones. Texts of several lines are compared by line.
///
/// ```
/// use rondel_core::diff::{changes, changes_text};
/// use serde_json::json;
///
/// let script = |second: &str| json!({"params": {"script": format!("echo one\n{second}\n")}});
/// let shown = changes_text(&changes(&script("echo two"), &script("echo 2")));
/// assert_eq!(shown, "/params/script\n  echo one\n- echo two\n+ echo 2\n");
/// ```
#[must_use]
pub fn changes_text(changes: &[Change]) -> String {
    let mut text = String::new();
    for Change { pointer, from, to } in changes {
        text.extend([if pointer.is_empty() { "/" } else { pointer }, "\n"]);
        match (from, to) {
            (Some(Value::String(from)), Some(Value::String(to))) if from.contains('\n') || to.contains('\n') => {
                add_lines(&mut text, from, to);
            }
            _ => {
                // A definition without this field is enabled.
                let default_value = (pointer == "/enabled").then_some(Value::Bool(true));
                let signed_values =
                    [("- ", from), ("+ ", to)].map(|(sign, value)| (sign, value.as_ref().or(default_value.as_ref())));
                for (sign, value) in signed_values.into_iter().filter_map(|(sign, value)| Some((sign, value?))) {
                    text.extend([sign, &value.to_string(), "\n"]);
                }
            }
        }
    }
    text
}

/// A line of a comparison: in both texts, or only in the old or the new one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line<'a> {
    Unchanged(&'a str),
    Removed(&'a str),
    Added(&'a str),
}

fn add_lines(output: &mut String, from: &str, to: &str) {
    let lines = compare_lines(&from.lines().collect::<Vec<_>>(), &to.lines().collect::<Vec<_>>());
    let is_near = |index: usize| {
        let context_lines = index.saturating_sub(CONTEXT_LINE_COUNT)..lines.len().min(index + CONTEXT_LINE_COUNT + 1);
        lines[context_lines].iter().any(|line| !matches!(line, Line::Unchanged(_)))
    };
    let mut has_skipped = false;
    for (index, line) in lines.iter().enumerate() {
        let (sign, text) = match line {
            Line::Unchanged(_) if !is_near(index) => {
                has_skipped = true;
                continue;
            }
            Line::Unchanged(text) => ("  ", text),
            Line::Removed(text) => ("- ", text),
            Line::Added(text) => ("+ ", text),
        };
        if std::mem::take(&mut has_skipped) {
            output.push_str("  …\n");
        }
        output.extend([sign, text, "\n"]);
    }
}

/// The shortest edit from the old lines to the new ones. If the texts are too long to find it, all lines between the first
/// difference and the last are one block.
fn compare_lines<'a>(from: &[&'a str], to: &[&'a str]) -> Vec<Line<'a>> {
    let head_len = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    let (from_after_head, to_after_head) = (&from[head_len..], &to[head_len..]);
    let tail_len = from_after_head.iter().rev().zip(to_after_head.iter().rev()).take_while(|(a, b)| a == b).count();
    let (old_middle, new_middle) =
        (&from_after_head[..from_after_head.len() - tail_len], &to_after_head[..to_after_head.len() - tail_len]);
    let mut lines: Vec<Line<'a>> = from[..head_len].iter().map(|line| Line::Unchanged(line)).collect();
    if old_middle.len().saturating_mul(new_middle.len()) > PAIRS_MAX {
        lines.extend(
            old_middle.iter().map(|line| Line::Removed(line)).chain(new_middle.iter().map(|line| Line::Added(line))),
        );
    } else {
        add_edits(old_middle, new_middle, &mut lines);
    }
    lines.extend(from_after_head[old_middle.len()..].iter().map(|line| Line::Unchanged(line)));
    lines
}

fn add_edits<'a>(old_lines: &[&'a str], new_lines: &[&'a str], lines: &mut Vec<Line<'a>>) {
    // common_lengths[i * width + j]: the length of the longest common subsequence of `old_lines[i..]` and `new_lines[j..]`.
    let width = new_lines.len() + 1;
    let mut common_lengths = vec![0_u32; (old_lines.len() + 1) * width];
    for i in (0..old_lines.len()).rev() {
        for j in (0..new_lines.len()).rev() {
            common_lengths[i * width + j] = if old_lines[i] == new_lines[j] {
                common_lengths[(i + 1) * width + j + 1] + 1
            } else {
                common_lengths[(i + 1) * width + j].max(common_lengths[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < old_lines.len() || j < new_lines.len() {
        if i < old_lines.len() && j < new_lines.len() && old_lines[i] == new_lines[j] {
            lines.push(Line::Unchanged(old_lines[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new_lines.len()
            || (i < old_lines.len() && common_lengths[(i + 1) * width + j] >= common_lengths[i * width + j + 1])
        {
            lines.push(Line::Removed(old_lines[i]));
            i += 1;
        } else {
            lines.push(Line::Added(new_lines[j]));
            j += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_come_and_go() {
        let from = json!({"a": 1, "b": {"c": [1, 2], "x/y": 1}, "gone": null});
        let to = json!({"a": 1, "b": {"c": [1], "x/y": 2}, "new": "x"});
        let shown = changes_text(&changes(&from, &to));
        assert_eq!(shown, "/b/c\n- [1,2]\n+ [1]\n/b/x~1y\n- 1\n+ 2\n/gone\n- null\n/new\n+ \"x\"\n");
        assert!(changes(&to, &to).is_empty());
        // A definition without the field is enabled.
        let (off, on) = (json!({"enabled": false, "params": {"x": false}}), json!({"params": {}}));
        assert_eq!(changes_text(&changes(&off, &on)), "/enabled\n- false\n+ true\n/params/x\n- false\n");
        assert_eq!(changes_text(&changes(&on, &off)), "/enabled\n- true\n+ false\n/params/x\n+ false\n");
    }

    #[test]
    fn scripts_are_compared_line_by_line_with_some_context() {
        let lines = |marks: &[usize]| -> String {
            (0..30).map(|n| if marks.contains(&n) { format!("line {n}!\n") } else { format!("line {n}\n") }).collect()
        };
        let change = Change {
            pointer: "/params/script".to_owned(),
            from: Some(lines(&[]).into()),
            to: Some(lines(&[5, 20]).into()),
        };
        let shown = changes_text(&[change]);
        assert_eq!(shown.lines().count(), 1 + 2 * 8 + 2, "{shown}");
        assert!(shown.contains("  …\n  line 2\n") && shown.contains("- line 5\n+ line 5!\n"), "{shown}");
    }

    #[test]
    fn the_comparison_leads_from_one_to_the_other() {
        let texts = ["", "a", "a\nb\nc", "c\nb\na", "b\nx\nc\nc", "a\na\na"];
        for from in texts {
            for to in texts {
                let (from, to): (Vec<_>, Vec<_>) = (from.lines().collect(), to.lines().collect());
                let lines = compare_lines(&from, &to);
                let side = |wanted: fn(&Line<'_>) -> bool| -> Vec<&str> {
                    let kept = lines.iter().filter(|line| wanted(line));
                    kept.map(|line| match line {
                        Line::Unchanged(text) | Line::Removed(text) | Line::Added(text) => *text,
                    })
                    .collect()
                };
                assert_eq!(side(|line| !matches!(line, Line::Added(_))), from);
                assert_eq!(side(|line| !matches!(line, Line::Removed(_))), to);
            }
        }
    }

    /// The length of the longest common subsequence, found by brute force.
    fn common(from: &[&str], to: &[&str]) -> usize {
        match (from, to) {
            ([a, from_after_head @ ..], [b, to_after_head @ ..]) => {
                let both = if a == b { 1 + common(from_after_head, to_after_head) } else { 0 };
                both.max(common(from_after_head, to)).max(common(from, to_after_head))
            }
            _ => 0,
        }
    }

    proptest::proptest! {
        #[test]
        fn the_comparison_is_the_shortest(
            from in proptest::collection::vec(proptest::sample::select(vec!["a", "b", "c"]), 0..7),
            to in proptest::collection::vec(proptest::sample::select(vec!["a", "b", "c"]), 0..7),
        ) {
            let lines = compare_lines(&from, &to);
            let same = lines.iter().filter(|line| matches!(line, Line::Unchanged(_))).count();
            proptest::prop_assert_eq!(same, common(&from, &to));
        }
    }

    #[test]
    fn lines_go_before_others_come() {
        let lines = compare_lines(&["a"], &["b"]);
        assert!(matches!(lines[..], [Line::Removed("a"), Line::Added("b")]));
    }

    #[test]
    fn texts_of_several_lines_are_shown_by_lines() {
        let shown = |from: &str, to: &str| changes_text(&changes(&json!({"a": from}), &json!({"a": to})));
        assert_eq!(shown("x", "y"), "/a\n- \"x\"\n+ \"y\"\n");
        assert_eq!(shown("x\n", "y"), "/a\n- x\n+ y\n");
        assert_eq!(shown("x", "y\n"), "/a\n- x\n+ y\n");
    }

    #[test]
    fn long_texts_take_bounded_work() {
        let (from, to): (Vec<String>, Vec<String>) = (0..30_000).map(|n| (n.to_string(), (n + 7).to_string())).unzip();
        let lines = compare_lines(
            &from.iter().map(String::as_str).collect::<Vec<_>>(),
            &to.iter().map(String::as_str).collect::<Vec<_>>(),
        );
        assert_eq!(lines.len(), 60_000);
    }
}

//! Cuts documents of the audit log to a maximum length. The longest parts are left out one by one, so that one padded field cannot hide
//! the other fields, and one long job cannot hide the names of the other jobs.

use serde_json::{Map, Value, json};

/// Maximum bytes of a document. The store accepts no document that is longer.
pub(super) const LEN_MAX: usize = 60 * 1024;
/// A value up to this length, in bytes, stays: a note in its place would save little.
const SHORT_LEN: usize = 40;
/// The key that holds how many objects were left out. No name of an object has this character, so the key equals no name.
const LEFT_OUT_KEY: &str = "…";

/// Cuts a document to `len_max` bytes: a note of its length replaces each of the longest fields.
pub(super) fn cut_document(document: Value, len_max: usize) -> Value {
    let len = json_len(&document);
    if len <= len_max {
        return document;
    }
    let note = |len: usize| json!({"left_out_bytes": len});
    let Value::Object(mut fields) = document else { return note(len) };
    let mut fields_by_length: Vec<(usize, String)> =
        fields.iter().map(|(key, value)| (json_len(value), key.clone())).collect();
    fields_by_length.sort_unstable();
    let (mut left_len, mut cut_keys) = (len, Vec::new());
    while let Some((field_len, key)) =
        fields_by_length.pop().filter(|(field_len, _)| left_len > len_max && *field_len > SHORT_LEN)
    {
        let left_out_note = note(field_len);
        left_len = left_len - field_len + json_len(&left_out_note);
        fields.insert(key.clone(), left_out_note);
        cut_keys.push(key);
    }
    if left_len > len_max {
        fields.retain(|key, _| !cut_keys.contains(key));
        fields.insert("left_out_bytes".to_owned(), Value::from(len));
    }
    let document = Value::Object(fields);
    if json_len(&document) <= len_max { document } else { note(len) }
}

/// Cuts documents, keyed by the names of their objects, to [`LEN_MAX`] bytes together; `left_out_count` is how many objects the caller has
/// already left out. Each document gets an equal share of the bytes; created objects come last, so that they are left out before changed and deleted
/// ones.
pub(super) fn cut_by_name(documents: Map<String, Value>, mut left_out_count: usize) -> Value {
    let share = LEN_MAX / documents.len().max(1);
    let is_too_long = json_len(&documents) > LEN_MAX;
    let mut documents: Vec<(String, Value)> = documents.into_iter().collect();
    documents.sort_by_key(|(_, document)| document["action"] == "created");
    let (mut kept_fields, mut len) = (Map::new(), 2 * SHORT_LEN);
    for (name, document) in documents {
        let document = if is_too_long {
            cut_document(document, share.saturating_sub(name.len() + 4).max(SHORT_LEN))
        } else {
            document
        };
        len += name.len() + 4 + json_len(&document);
        if len > LEN_MAX {
            left_out_count += 1;
        } else {
            kept_fields.insert(name, document);
        }
    }
    if left_out_count > 0 {
        kept_fields.insert(LEFT_OUT_KEY.to_owned(), json!({"left_out": left_out_count}));
    }
    Value::Object(kept_fields)
}

fn json_len(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |text| text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(padding: usize) -> Value {
        json!({"action": "created", "fields": {"/description": "x".repeat(padding), "/handler": "shell"}})
    }

    #[test]
    fn padding_hides_no_name() {
        let mut documents: Map<String, Value> = (0..80).map(|n| (format!("pad-{n}"), created(990))).collect();
        documents.insert("evil".to_owned(), json!({"action": "changed", "fields": {"/handler": "shell"}}));
        documents.insert("gone".to_owned(), json!({"action": "removed", "fields": {}}));
        let kept = cut_by_name(documents, 0);
        assert_eq!(kept.as_object().unwrap().len(), 82, "all names stand");
        assert_eq!(kept["evil"]["fields"]["/handler"], "shell");
        assert_eq!(kept["pad-7"]["action"], "created");
        assert!(kept["pad-7"]["fields"]["left_out_bytes"].is_number());
        assert!(json_len(&kept) <= LEN_MAX);
    }

    #[test]
    fn beyond_the_bound_names_are_counted_and_changes_come_first() {
        let name = |n: usize| format!("{n:04}-{}", "n".repeat(90));
        let mut documents: Map<String, Value> = (0..2_000).map(|n| (name(n), created(10))).collect();
        documents.insert("zzz".to_owned(), json!({"action": "removed", "fields": {}}));
        let kept = cut_by_name(documents, 7);
        assert!(json_len(&kept) <= LEN_MAX && kept["zzz"]["action"] == "removed");
        let shown = u64::try_from(kept.as_object().unwrap().len()).unwrap() - 1;
        assert_eq!(kept[LEFT_OUT_KEY]["left_out"].as_u64().unwrap() + shown, 2_008);
        assert!(shown > 300, "{shown}");
    }

    #[test]
    fn a_long_field_hides_only_itself() {
        let kept = cut_document(json!({"name": "a", "app": "b", "params": {"x": "y".repeat(100)}}), 80);
        assert_eq!(kept, json!({"name": "a", "app": "b", "params": {"left_out_bytes": 108}}));
        assert_eq!(cut_document(json!(["x".repeat(100)]), 80), json!({"left_out_bytes": 104}));
        let left_out_note = json!({"a": 1});
        assert_eq!(cut_document(left_out_note.clone(), 80), left_out_note);
    }

    #[test]
    fn the_bound_is_the_last_length_that_is_kept() {
        // {"a":"…","b":"…"}
        let two = |a: usize, b: usize| json!({"a": "x".repeat(a), "b": "y".repeat(b)});
        let whole = two(50, 60);
        assert_eq!((json_len(&whole), cut_document(whole.clone(), 125)), (125, whole.clone()));
        // The longest field is left out first, and no more fields than necessary.
        assert_eq!(cut_document(whole, 124), json!({"a": "x".repeat(50), "b": {"left_out_bytes": 62}}));
        let bound = json_len(&json!({"a": "x".repeat(50), "b": {"left_out_bytes": 62}}));
        assert_eq!(cut_document(two(50, 60), bound)["a"], "x".repeat(50));
        assert_eq!(
            cut_document(two(50, 60), bound - 1),
            json!({"a": {"left_out_bytes": 52}, "b": {"left_out_bytes": 62}})
        );
        // A field of 40 bytes is not replaced by a note, which would save little.
        let left_out_note = two(38, 60);
        assert_eq!(
            cut_document(left_out_note.clone(), 70),
            json!({"a": "x".repeat(38), "left_out_bytes": json_len(&left_out_note)})
        );
        assert_eq!(cut_document(two(39, 60), 70), json!({"a": {"left_out_bytes": 41}, "b": {"left_out_bytes": 62}}));
        let notes = json_len(&json!({"a": {"left_out_bytes": 52}, "b": {"left_out_bytes": 62}}));
        assert_eq!(cut_document(two(50, 60), notes - 1), json!({"left_out_bytes": 125}));
    }

    #[test]
    fn documents_share_the_bytes_and_short_ones_stay_whole() {
        let document = |len: usize| json!({"action": "changed", "x": "x".repeat(len)});
        let one = |len: usize| {
            let documents: Map<String, Value> = [("n".to_owned(), document(len))].into_iter().collect();
            cut_by_name(documents, 0)
        };
        // The bound includes the name and the quotation marks. Above it, only the field is left out.
        let empty = json_len(&json!({"n": document(0)}));
        assert_eq!(one(LEN_MAX - empty - 100)["n"]["x"], "x".repeat(LEN_MAX - empty - 100));
        assert_eq!(one(LEN_MAX)["n"], json!({"action": "changed", "x": {"left_out_bytes": LEN_MAX + 2}}));
        let halves = |len: usize| {
            let documents: Map<String, Value> =
                ["a", "b"].into_iter().map(|name| (name.to_owned(), document(len))).collect();
            cut_by_name(documents, 0)
        };
        let near = LEN_MAX / 2 - 100;
        assert_eq!(halves(near)["b"]["x"], "x".repeat(near));
        let shown = halves(LEN_MAX / 2);
        assert!(shown["a"]["x"]["left_out_bytes"].is_number() && shown["b"]["x"]["left_out_bytes"].is_number());
        assert_eq!(cut_by_name(Map::new(), 3), json!({"…": {"left_out": 3}}));
    }
}

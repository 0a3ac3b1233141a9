//! The labels of a job in its form: one row per label, with its key, its value and its error.

use std::collections::{BTreeMap, BTreeSet};

use rondel_core::labels::{self, LABEL_COUNT_MAX, Labels};
use serde_json::{Value, json};

use super::form::Fields;

/// Maximum number of rows that are shown. A job with that many labels is refused anyway.
const SHOWN_ROW_COUNT_MAX: usize = 3 * LABEL_COUNT_MAX;
/// The field that is sent together with the rows. Without it, a form leaves the labels unchanged.
const ROWS_FIELD: &str = "labels";
const FIELD_PREFIX: &str = "label.";

/// A label as the user typed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LabelRow {
    pub(super) key: String,
    pub(super) value: String,
    /// The error, in English.
    pub(super) fault: Option<String>,
}

/// The rows; `None` if the form was sent without [`ROWS_FIELD`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LabelRows(Option<Vec<LabelRow>>);

impl LabelRows {
    /// The rows for the labels of a definition.
    pub(super) fn from_labels(labels: &Labels) -> Self {
        let row = |(key, value): (&String, &String)| LabelRow { key: key.clone(), value: value.clone(), fault: None };
        Self(Some(labels.iter().map(row).collect()))
    }

    /// The rows that were sent, with errors. Empty rows are left out.
    pub(super) fn from_fields(fields: &Fields) -> Self {
        if fields.get_if_sent(ROWS_FIELD).is_none() {
            return Self(None);
        }
        let mut rows: BTreeMap<usize, LabelRow> = BTreeMap::new();
        for (name, value) in fields.with_prefix(FIELD_PREFIX) {
            let Some((index, part)) = name[FIELD_PREFIX.len()..].split_once('.') else { continue };
            let Ok(index) = index.parse::<usize>() else { continue };
            let row = rows.entry(index).or_default();
            match part {
                "key" => value.trim().clone_into(&mut row.key),
                "value" => value.trim().clone_into(&mut row.value),
                _ => {}
            }
        }
        let mut rows: Vec<LabelRow> = rows.into_values().collect();
        rows.retain(|row| !row.key.is_empty() || !row.value.is_empty());
        let mut seen_keys = BTreeSet::new();
        for row in &mut rows {
            let is_new = seen_keys.insert(row.key.clone());
            row.fault = labels::check_key(&row.key)
                .and_then(|()| if is_new { Ok(()) } else { Err(format!("{:?} is named twice", row.key)) })
                .and_then(|()| labels::check_value(&row.value))
                .err();
        }
        Self(Some(rows))
    }

    /// The rows of the form, with an empty row at the end.
    pub(super) fn shown(&self) -> Vec<LabelRow> {
        let rows = self.0.iter().flatten().take(SHOWN_ROW_COUNT_MAX).cloned();
        rows.chain([LabelRow::default()]).collect()
    }

    /// Writes the labels into a definition. `Err` has an error about all labels together, or `None` if single rows have errors.
    pub(super) fn put(&self, document: &mut Value) -> Result<(), Option<String>> {
        let Some(rows) = &self.0 else { return Ok(()) };
        if rows.len() > LABEL_COUNT_MAX {
            return Err(Some(format!("{} labels; at most {LABEL_COUNT_MAX} are allowed", rows.len())));
        }
        if rows.iter().any(|row| row.fault.is_some()) {
            return Err(None);
        }
        let labels: BTreeMap<&str, &str> = rows.iter().map(|row| (row.key.as_str(), row.value.as_str())).collect();
        document["labels"] = json!(labels);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(rows: &LabelRows) -> Vec<bool> {
        rows.0.iter().flatten().map(|row| row.fault.is_some()).collect()
    }

    #[test]
    fn rows_become_labels_and_a_form_without_rows_keeps_them() {
        let mut document = json!({"labels": {"team": "pay"}});
        assert_eq!(LabelRows::from_fields(&Fields::from([("name", "a")])).put(&mut document), Ok(()));
        assert_eq!(document["labels"], json!({"team": "pay"}));
        let rows = LabelRows::from_fields(&Fields::from([
            ("labels", "1"),
            ("label.7.key", " tier "),
            ("label.7.value", "支付 <b>"),
            ("label.0.key", "team"),
            ("label.0.value", "ops"),
            ("label.9.key", ""),
            ("label.9.value", ""),
        ]));
        assert_eq!(rows.put(&mut document), Ok(()));
        assert_eq!(document["labels"], json!({"team": "ops", "tier": "支付 <b>"}));
        assert_eq!(rows.shown().len(), 3, "an empty row is offered");
        assert_eq!(LabelRows::from_fields(&Fields::from([("labels", "1")])).put(&mut document), Ok(()));
        assert_eq!(document["labels"], json!({}), "all were removed");
    }

    #[test]
    fn errors_are_shown_at_their_rows() {
        let rows = LabelRows::from_fields(&Fields::from([
            ("labels", "1"),
            ("label.0.key", "team"),
            ("label.0.value", "ops"),
            ("label.1.key", "a b"),
            ("label.1.value", "x"),
            ("label.2.key", "tier"),
            ("label.2.value", ""),
            ("label.3.key", ""),
            ("label.3.value", "alone"),
            ("label.4.key", "team"),
            ("label.4.value", "pay"),
        ]));
        assert_eq!(faults(&rows), [false, true, true, true, true]);
        assert_eq!(rows.put(&mut json!({})), Err(None));
        let many: Vec<LabelRow> =
            (0..21).map(|n| LabelRow { key: format!("k{n}"), value: "v".to_owned(), fault: None }).collect();
        let refused = LabelRows(Some(many)).put(&mut json!({}));
        assert_eq!(refused, Err(Some("21 labels; at most 20 are allowed".to_owned())));
    }
}

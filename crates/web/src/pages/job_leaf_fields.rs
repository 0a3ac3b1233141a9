//! The fields of a job's form that each show a single value (a leaf) of the definition: the place of the value, and its format. A field
//! that was not sent leaves the definition unchanged.

use std::collections::BTreeMap;

use rondel_core::reason::Reason;
use rondel_core::spec::NotifySpec;
use serde_json::{Map, Value};

use super::form::Fields;
use super::texts::Texts;

/// The format of a field's value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueFormat {
    Text,
    Number,
    /// Several values, separated by spaces or commas.
    List,
    /// A number, or JSON.
    Shards,
}

/// A field, and the place of its value in the definition.
struct LeafField {
    field: &'static str,
    pointer: &'static str,
    format: ValueFormat,
}

const fn leaf_field(field: &'static str, pointer: &'static str, format: ValueFormat) -> LeafField {
    LeafField { field, pointer, format }
}

const LEAF_FIELDS: [LeafField; 28] = [
    leaf_field("misfire_max", "/misfire/max", ValueFormat::Number),
    leaf_field("misfire_keep", "/misfire/keep", ValueFormat::Text),
    leaf_field("misfire_tolerance", "/misfire/tolerance", ValueFormat::Text),
    leaf_field("overlap_scope", "/overlap/scope", ValueFormat::Text),
    leaf_field("overlap_max", "/overlap/max", ValueFormat::Number),
    leaf_field("select_labels", "/select/labels", ValueFormat::List),
    leaf_field("select_executors", "/select/executors", ValueFormat::List),
    leaf_field("queue_timeout", "/queue_timeout", ValueFormat::Text),
    leaf_field("priority", "/priority", ValueFormat::Number),
    leaf_field("shards", "/shards", ValueFormat::Shards),
    leaf_field("concurrency_key", "/concurrency/key", ValueFormat::Text),
    leaf_field("concurrency_max", "/concurrency/max", ValueFormat::Number),
    leaf_field("rate_key", "/rate/key", ValueFormat::Text),
    leaf_field("rate_max", "/rate/max", ValueFormat::Number),
    leaf_field("rate_per", "/rate/per", ValueFormat::Text),
    leaf_field("over", "/over", ValueFormat::Text),
    leaf_field("mode", "/mode", ValueFormat::Text),
    leaf_field("mode_from", "/mode_from", ValueFormat::Text),
    leaf_field("expect_time", "/expect/success_by/time", ValueFormat::Text),
    leaf_field("expect_zone", "/expect/success_by/zone", ValueFormat::Text),
    leaf_field("expect_weekdays", "/expect/success_by/weekdays", ValueFormat::List),
    leaf_field("expect_calendar", "/expect/success_by/calendar", ValueFormat::Text),
    leaf_field("expect_no_success_for", "/expect/no_success_for", ValueFormat::Text),
    leaf_field("expect_longer_than", "/expect/longer_than", ValueFormat::Text),
    leaf_field("expect_late", "/expect/late", ValueFormat::Text),
    leaf_field("expect_channels", "/expect/channels", ValueFormat::List),
    leaf_field("expect_severity", "/expect/severity", ValueFormat::Text),
    leaf_field(NOTIFY_FIELD, "/notify/skipped", ValueFormat::List),
];

/// The fields that belong to a schedule. Their places are relative to the schedule.
const SCHEDULE_LEAF_FIELDS: [LeafField; 10] = [
    leaf_field("delay", "/delay", ValueFormat::Text),
    leaf_field("after", "/after", ValueFormat::List),
    leaf_field("after_on", "/on", ValueFormat::Text),
    leaf_field("dst_gap", "/dst/gap", ValueFormat::Text),
    leaf_field("dst_overlap", "/dst/overlap", ValueFormat::Text),
    leaf_field("if_past", "/if_past", ValueFormat::Text),
    leaf_field("start_at", "/start_at", ValueFormat::Text),
    leaf_field("end_at", "/end_at", ValueFormat::Text),
    leaf_field("jitter_max", "/jitter/max", ValueFormat::Text),
    leaf_field("jitter_by", "/jitter/by", ValueFormat::Text),
];

/// The kinds of schedule to which each of these fields applies.
const KINDS_BY_FIELD: [(&str, &[&str]); 10] = [
    ("delay", &["delay"]),
    ("after", &["after"]),
    ("after_on", &["after"]),
    ("dst_gap", &["cron"]),
    ("dst_overlap", &["cron"]),
    ("if_past", &["at"]),
    ("start_at", &["cron", "every", "delay"]),
    ("end_at", &["cron", "every", "delay"]),
    ("jitter_max", &["cron", "every", "delay", "at"]),
    ("jitter_by", &["cron", "every", "delay", "at"]),
];

/// The field with the reasons of skipped fires to report. Each reason has a checkbox whose name begins with [`NOTIFY_FIELD_PREFIX`].
const NOTIFY_FIELD: &str = "notify";
const NOTIFY_FIELD_PREFIX: &str = "notify.";

/// The texts of the fields, without fields that were not sent.
#[derive(Clone, Debug, Default)]
pub(super) struct LeafFields(BTreeMap<&'static str, String>);

impl LeafFields {
    /// The value of a field; empty if it was not sent.
    pub(super) fn get(&self, field: &str) -> &str {
        self.0.get(field).map_or("", String::as_str)
    }

    /// The reasons that can be reported, with their names, and whether each is selected.
    pub(super) fn reasons(&self, t: &Texts) -> Vec<(&'static str, &'static str, bool)> {
        let chosen_codes: Vec<&str> = self.get(NOTIFY_FIELD).split(' ').collect();
        let reason_text = |reason| match reason {
            Reason::NoExecutor => t.skip_no_executor,
            Reason::Misfire => t.skip_misfire,
            Reason::Expired => t.skip_expired,
            Reason::Overlap => t.skip_overlap,
            Reason::Covered => t.skip_covered,
            Reason::Stopped => t.skip_stopped,
            _ => t.skip_handler,
        };
        let row = |reason: &Reason| (reason.as_str(), reason_text(*reason), chosen_codes.contains(&reason.as_str()));
        NotifySpec::SKIPPED_ALL.iter().map(row).collect()
    }

    /// The fields of a submitted form.
    pub(super) fn from_fields(fields: &Fields) -> Self {
        let mut leaf_fields = Self::read(|field| fields.get_if_sent(field).map(str::to_owned));
        if fields.get_if_sent(NOTIFY_FIELD).is_some() {
            let notify_codes =
                fields.with_prefix(NOTIFY_FIELD_PREFIX).map(|(name, _)| &name[NOTIFY_FIELD_PREFIX.len()..]);
            leaf_fields.0.insert(NOTIFY_FIELD, notify_codes.collect::<Vec<_>>().join(" "));
        }
        leaf_fields
    }

    /// The fields for which `read` returns a text.
    pub(super) fn read(mut read: impl FnMut(&'static str) -> Option<String>) -> Self {
        let leaves = LEAF_FIELDS.iter().chain(&SCHEDULE_LEAF_FIELDS);
        Self(leaves.filter_map(|leaf| Some((leaf.field, read(leaf.field)?))).collect())
    }

    /// The fields of a definition.
    pub(super) fn from_document(document: &Value) -> Self {
        let schedule = &document["schedule"];
        let fields_of_job = LEAF_FIELDS.iter().map(|leaf| (leaf.field, field_text(document.pointer(leaf.pointer))));
        let fields_of_schedule =
            SCHEDULE_LEAF_FIELDS.iter().map(|leaf| (leaf.field, field_text(schedule.pointer(leaf.pointer))));
        let mut leaf_fields = Self(fields_of_job.chain(fields_of_schedule).collect());
        if document.pointer("/notify/skipped").is_none() {
            let default_reasons = NotifySpec::default().skipped;
            let reason_codes = default_reasons.iter().map(|reason| reason.as_str()).collect::<Vec<_>>().join(" ");
            leaf_fields.0.insert(NOTIFY_FIELD, reason_codes);
        }
        leaf_fields
    }

    /// Writes the fields into a definition. Returns the names of number fields whose text is not a number.
    pub(super) fn put(&self, document: &mut Value) -> Vec<&'static str> {
        let mut invalid_fields = Vec::new();
        for leaf in &LEAF_FIELDS {
            if let Some(text) = self.0.get(leaf.field) {
                // An empty list reports nothing; without the list, the default applies. So the empty list is kept.
                let keeps_empty_list = leaf.field == NOTIFY_FIELD;
                put_leaf(document, leaf, text, keeps_empty_list).unwrap_or_else(|()| invalid_fields.push(leaf.field));
            }
        }
        let success_by = document.pointer("/expect/success_by");
        if success_by.and_then(Value::as_object).is_some_and(Map::is_empty) {
            drop(document["expect"].as_object_mut().map(|map| map.remove("success_by")));
        }
        for group in ["select", "concurrency", "rate", "expect"] {
            if document[group].as_object().is_some_and(Map::is_empty) {
                drop(document.as_object_mut().map(|map| map.remove(group)));
            }
        }
        invalid_fields
    }

    /// Writes the fields that apply to this kind of schedule into the schedule.
    pub(super) fn put_into_schedule(&self, schedule: &mut Value, kind: &str) {
        for leaf in &SCHEDULE_LEAF_FIELDS {
            let has_field = KINDS_BY_FIELD.iter().any(|(field, kinds)| *field == leaf.field && kinds.contains(&kind));
            // `jitter_by` has no effect without `jitter_max`.
            let has_no_effect = match leaf.field {
                "jitter_by" => self.get("jitter_max").is_empty(),
                _ => false,
            };
            if let Some(text) = self.0.get(leaf.field).filter(|text| has_field && !has_no_effect && !text.is_empty()) {
                let result = put_leaf(schedule, leaf, text, false);
                debug_assert!(result.is_ok(), "schedules have no numbers");
            }
        }
    }

    /// Whether the fields for this kind of schedule can express the whole schedule.
    pub(super) fn can_express(kind: &str, schedule: &Map<String, Value>) -> bool {
        let kind_fields: &[&str] = match kind {
            "cron" => &["cron", "time_zone"],
            "every" => &["every"],
            "at" => &["at"],
            _ => &[],
        };
        let top_key = |leaf: &LeafField| leaf.pointer.split('/').nth(1);
        let is_of_kind = |leaf: &&LeafField| {
            KINDS_BY_FIELD.iter().any(|(field, kinds)| *field == leaf.field && kinds.contains(&kind))
        };
        let leaf_keys: Vec<&str> = SCHEDULE_LEAF_FIELDS.iter().filter(is_of_kind).filter_map(top_key).collect();
        schedule.keys().all(|key| kind_fields.contains(&key.as_str()) || leaf_keys.contains(&key.as_str()))
    }
}

/// The field that shows the value at this place of the definition.
pub(super) fn leaf_at(pointer: &str) -> Option<&'static str> {
    let is_at = |leaf: &&LeafField, pointer: &str| {
        pointer == leaf.pointer || pointer.starts_with(&format!("{}/", leaf.pointer))
    };
    let leaf = LEAF_FIELDS.iter().find(|leaf| is_at(leaf, pointer));
    let schedule_leaf = || {
        let pointer_in_schedule = pointer.strip_prefix("/schedule")?;
        SCHEDULE_LEAF_FIELDS.iter().find(|leaf| is_at(leaf, pointer_in_schedule))
    };
    let group = || match pointer {
        "/concurrency" => Some("concurrency_key"),
        "/rate" => Some("rate_max"),
        "/select" => Some("select_labels"),
        "/expect" | "/expect/success_by" => Some("expect_time"),
        _ => None,
    };
    leaf.or_else(schedule_leaf).map(|leaf| leaf.field).or_else(group)
}

fn field_text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) if items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
        }
        Some(value) => value.to_string(),
    }
}

fn put_leaf(document: &mut Value, leaf: &LeafField, text: &str, keeps_empty_list: bool) -> Result<(), ()> {
    let value = match leaf.format {
        ValueFormat::Text if text.is_empty() => None,
        ValueFormat::Text => Some(Value::from(text)),
        ValueFormat::Number | ValueFormat::Shards if text.is_empty() => None,
        ValueFormat::Number => Some(Value::from(text.parse::<u32>().map_err(|_| ())?)),
        // Errors within a list of shards are reported when the definition is checked.
        ValueFormat::Shards => {
            Some(text.parse::<u32>().map(Value::from).or_else(|_| serde_json::from_str(text)).map_err(|_| ())?)
        }
        ValueFormat::List => {
            let items: Vec<&str> = text.split([' ', ',', '\n', '\t', '\r']).filter(|item| !item.is_empty()).collect();
            (keeps_empty_list || !items.is_empty()).then(|| Value::from(items))
        }
    };
    let mut keys = leaf.pointer.trim_start_matches('/').split('/').peekable();
    let mut target = document;
    while let Some(key) = keys.next() {
        let Value::Object(map) = target else { return Ok(()) };
        if keys.peek().is_none() {
            match value {
                Some(value) => drop(map.insert(key.to_owned(), value)),
                None => drop(map.remove(key)),
            }
            return Ok(());
        }
        if map.get(key).is_none_or(|child| !child.is_object()) {
            if value.is_none() {
                return Ok(());
            }
            map.insert(key.to_owned(), Value::Object(Map::new()));
        }
        let Some(child) = map.get_mut(key) else { return Ok(()) };
        target = child;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rondel_core::JobSpec;
    use serde_json::json;

    use super::*;

    /// Every property of a definition has a field here, or is in this list because another part of the form has a field for it.
    #[test]
    fn every_field_of_a_definition_has_a_place_in_the_form() {
        let schema = serde_json::to_value(schemars::schema_for!(JobSpec)).unwrap();
        let by_hand = [
            "name",
            "app",
            "handler",
            "description",
            "params",
            "overrides",
            "schedule",
            "calendar",
            "route",
            "misfire",
            "overlap",
            "delivery",
            "on_silence",
            "timeout",
            "retry",
            "enabled",
            "labels",
            "pump",
        ];
        for field in schema["properties"].as_object().unwrap().keys() {
            let has_leaf = LEAF_FIELDS.iter().any(|leaf| leaf.pointer.split('/').nth(1) == Some(field));
            assert!(has_leaf || by_hand.contains(&field.as_str()), "the form has no field for {field}");
        }
        let of_schedule = &schema["$defs"]["ScheduleSpec"]["properties"];
        for field in of_schedule.as_object().unwrap().keys() {
            let has_leaf = SCHEDULE_LEAF_FIELDS.iter().any(|leaf| leaf.pointer.split('/').nth(1) == Some(field));
            assert!(has_leaf || ["cron", "time_zone", "every", "at"].contains(&field.as_str()), "no field for {field}");
        }
        for (group, name) in [
            ("misfire", "MisfireSpec"),
            ("overlap", "OverlapSpec"),
            ("concurrency", "ConcurrencySpec"),
            ("rate", "RateSpec"),
            ("select", "SelectSpec"),
            ("notify", "NotifySpec"),
            ("expect", "ExpectSpec"),
            ("expect/success_by", "SuccessBySpec"),
        ] {
            for field in schema["$defs"][name]["properties"].as_object().unwrap().keys() {
                let pointer = format!("/{group}/{field}");
                let is_known = LEAF_FIELDS.iter().any(|leaf| leaf.pointer.starts_with(&pointer)) || field == "policy";
                assert!(is_known, "the form has no field for {pointer}");
            }
        }
    }

    #[test]
    fn a_definition_goes_into_the_fields_and_back() {
        let document = json!({"misfire": {"policy": "all", "max": 7, "keep": "oldest", "tolerance": "5s"}, "shards": 3,
            "select": {"labels": ["zone=eu", "!old"], "executors": []}, "rate": {"max": 2, "per": "1m"},
            "notify": {"skipped": ["misfire"]}, "expect": {"success_by": {"time": "06:00", "weekdays": ["mon"]}, "late": "5m"},
            "schedule": {"cron": "x", "jitter": {"max": "5s", "by": "fire"}}});
        let leaves = LeafFields::from_document(&document);
        assert_eq!((leaves.get("select_labels"), leaves.get("rate_max")), ("zone=eu !old", "2"));
        let mut made = json!({"misfire": {"policy": "all"}});
        assert!(leaves.put(&mut made).is_empty());
        assert_eq!(made["misfire"], document["misfire"]);
        assert_eq!(
            (&made["rate"], &made["shards"], &made["notify"]),
            (&document["rate"], &json!(3), &document["notify"])
        );
        assert_eq!(made["expect"], document["expect"]);
        assert_eq!(leaf_at("/expect/success_by/time"), Some("expect_time"));
        let emptied = ["expect_time", "expect_weekdays", "expect_late"].map(|field| (field, ""));
        let mut without = made.clone();
        assert!(LeafFields::from_fields(&Fields::from(emptied)).put(&mut without).is_empty());
        assert!(without.get("expect").is_none(), "{without}");
        assert_eq!(made["select"], json!({"labels": ["zone=eu", "!old"]}));
        assert!(made.get("concurrency").is_none() && made.get("over").is_none(), "{made}");
        let mut schedule = json!({"cron": "x"});
        leaves.put_into_schedule(&mut schedule, "cron");
        assert_eq!(schedule, document["schedule"]);
        assert_eq!(leaf_at("/select/labels/1"), Some("select_labels"));
        assert_eq!(leaf_at("/schedule/jitter/max"), Some("jitter_max"));
        let listed = json!({"shards": [{"name": "eu", "params": {"schema": "eu"}}, {"name": "us"}]});
        let mut again = json!({});
        assert_eq!(LeafFields::from_document(&listed).put(&mut again), Vec::<&str>::new());
        assert_eq!(again["shards"], listed["shards"], "shards with names stay as they are");
        let wrong = LeafFields::from_fields(&Fields::from([("shards", "many")]));
        assert_eq!(wrong.put(&mut made), ["shards"]);
    }
}

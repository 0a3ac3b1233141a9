//! Writes a definition as a document: its fields in the order of the documentation, without default values.

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::spec::{JobSpec, PumpSpec};

/// The fields in the order in which they are written.
const ORDER: [&str; 29] = [
    "name",
    "app",
    "handler",
    "description",
    "labels",
    "params",
    "overrides",
    "schedule",
    "calendar",
    "route",
    "select",
    "shards",
    "pump",
    "misfire",
    "overlap",
    "concurrency",
    "rate",
    "priority",
    "delivery",
    "on_silence",
    "timeout",
    "queue_timeout",
    "retry",
    "over",
    "notify",
    "expect",
    "enabled",
    "mode",
    "mode_from",
];

/// The fields of a definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Names and values, in the order in which they are written.
    pub fields: Vec<(&'static str, Value)>,
}

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.fields.iter().map(|(name, value)| (name, value)))
    }
}

impl JobSpec {
    /// The shortest document with the same meaning.
    ///
    /// ```
    /// let text = r#"{"name":"a","app":"b","handler":"c","misfire":{"policy":"once"}}"#;
    /// let spec: rondel_core::JobSpec = serde_json::from_str(text)?;
    /// assert_eq!(serde_json::to_string(&spec.document())?, text);
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    #[must_use]
    pub fn document(&self) -> Document {
        let mut document = serde_json::to_value(self).unwrap_or_default();
        let minimal_json = json!({"name": self.name, "app": self.app, "handler": self.handler});
        let minimal_spec: Option<Self> = serde_json::from_value(minimal_json).ok();
        let default_json = minimal_spec.and_then(|spec| serde_json::to_value(spec).ok()).unwrap_or_default();
        if let Some(pump) = document.get_mut("pump").filter(|pump| pump.is_object()) {
            leave_out_defaults(pump);
        }
        let field = |name: &'static str| {
            let mut value = document.get_mut(name).map(Value::take)?;
            let is_written =
                matches!(name, "name" | "app" | "handler") || !is_default(&mut value, default_json.get(name));
            is_written.then_some((name, value))
        };
        Document { fields: ORDER.into_iter().filter_map(field).collect() }
    }
}

/// Removes default values from a pump; a pump as a whole has no default.
fn leave_out_defaults(pump: &mut Value) {
    let minimal_json = json!({"items": pump["items"], "groups": pump["groups"]});
    let default_json =
        serde_json::from_value::<PumpSpec>(minimal_json.clone()).ok().and_then(|spec| serde_json::to_value(spec).ok());
    if let (Value::Object(fields), Some(defaults)) = (pump, default_json) {
        fields.retain(|name, value| minimal_json.get(name).is_some() || defaults.get(name) != Some(value));
    }
}

/// Whether a value equals its default. If not, its parts that equal their defaults are removed. Values that users shape freely,
/// such as `params`, have null as their default and stay whole.
fn is_default(value: &mut Value, default: Option<&Value>) -> bool {
    let Some(default) = default else { return false };
    if value == default {
        return true;
    }
    if let (Value::Object(fields), Value::Object(defaults)) = (value, default) {
        fields.retain(|name, value| !is_default(value, defaults.get(name)));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_place() {
        let whole = json!({
            "name": "a", "app": "b", "handler": "c", "description": "d", "labels": {"team": "pay"}, "params": {"max": 0}, "overrides": ["/max"],
            "shards": 2, "pump": {"items": [{"name": "eu"}], "groups": 1, "threads": 7, "until": "empty"},
            "schedule": {"cron": "0 0 2 * * ?", "time_zone": "Asia/Shanghai"}, "calendar": {"name": "cn", "rule": "except"},
            "route": "first", "select": {"labels": ["ssd"]}, "misfire": {"policy": "once", "max": 3},
            "overlap": {"policy": "allow"}, "concurrency": {"key": "k", "max": 2}, "rate": {"max": 1, "per": "1s"},
            "priority": 7, "delivery": "at_most_once", "on_silence": "stop", "timeout": "1m", "queue_timeout": "2m",
            "retry": {"max": 2}, "over": "children", "notify": {"skipped": ["overlap"]},
            "expect": {"success_by": {"time": "06:00"}, "late": "5m"}, "enabled": false, "mode": "shadow",
            "mode_from": "2026-11-23T10:00:00Z",
        });
        let spec: JobSpec = serde_json::from_value(whole.clone()).unwrap();
        let document = spec.document();
        let names: Vec<&str> = document.fields.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ORDER);
        let again = serde_json::to_value(&document).unwrap();
        assert_eq!(serde_json::from_value::<JobSpec>(again.clone()).unwrap(), spec);
        assert_eq!(again["misfire"], json!({"policy": "once", "max": 3}));
        assert_eq!(again["pump"], whole["pump"]);
        // Fails if a field was added to the definition but not to `ORDER`.
        let all = serde_json::to_value(&spec).unwrap();
        assert_eq!(all.as_object().unwrap().len(), names.len());
    }

    #[test]
    fn defaults_are_left_out() {
        let spec: JobSpec = serde_json::from_value(json!({"name": "a", "app": "b", "handler": "c"})).unwrap();
        assert_eq!(serde_json::to_value(spec.document()).unwrap(), json!({"name": "a", "app": "b", "handler": "c"}));
    }

    #[test]
    fn the_document_survives_a_round_trip() {
        let spec: JobSpec = serde_json::from_value(json!({
            "name": "a", "app": "b", "handler": "c",
            "params": {"a": 1}, "schedule": [{"every": "2s"}, {"cron": "0 0 1 * * ?", "time_zone": "Europe/Berlin"}],
            "route": "broadcast", "timeout": "1m", "retry": {"max": 2, "backoff": "1s..10s"},
        }))
        .unwrap();
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<JobSpec>(&text).unwrap(), spec);
    }
}

//! The form of a job: its fields as sent, the definition that they describe, and its errors.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use rondel_core::JobSpec;
use rondel_core::overrides::Overrides;
use rondel_core::time::format_duration;
use serde_json::{Map, Value, json};

use super::form::{Fields, with_line_feeds};
use super::job::pretty_json;
use super::job_leaf_fields::{LeafFields, leaf_at};
use super::label_rows::LabelRows;
use super::params_form;
use super::sentences::localized;
use super::texts::Texts;
use crate::api::jobs::body::from_value;
use crate::problem::{Code, Problem};

/// The value of `params_by` if the parameters are in fields.
const BY_FIELDS: &str = "fields";

/// The fields of the form, as text.
#[derive(Clone, Debug)]
pub(super) struct JobForm {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) app: String,
    pub(super) handler: String,
    pub(super) params: String,
    /// How the parameters are entered: `fields` if the handler declares its parameters, else `json`.
    pub(super) params_by: String,
    /// An error in the fields of the parameters.
    pub(super) params_fault: Option<String>,
    /// `none`, `all`, JSON pointers separated by spaces, or a JSON list of them; empty for the handler's default.
    pub(super) overrides: String,
    /// `cron`, `every`, `delay`, `after`, `at`, `json` or `none`.
    pub(super) kind: String,
    pub(super) cron: String,
    pub(super) time_zone: String,
    pub(super) every: String,
    pub(super) at: String,
    pub(super) schedule_json: String,
    pub(super) calendar: String,
    pub(super) calendar_rule: String,
    pub(super) route: String,
    pub(super) overlap: String,
    pub(super) misfire: String,
    pub(super) delivery: String,
    pub(super) on_silence: String,
    pub(super) timeout: String,
    pub(super) retry_max: String,
    pub(super) retry_backoff: String,
    pub(super) is_enabled: bool,
    /// The pump as JSON, or empty for no pump; `None` if the form does not have this field.
    pub(super) pump: Option<String>,
    pub(super) labels: LabelRows,
    /// The fields that have one value each.
    pub(super) leaf_fields: LeafFields,
}

/// Errors by field. Errors without a field are under `form`.
#[derive(Clone, Debug, Default)]
pub(super) struct Errors(BTreeMap<&'static str, String>);

impl Errors {
    pub(super) fn of(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn all(self) -> Vec<String> {
        self.0.into_values().collect()
    }

    /// Adds an error. A field keeps only its first error; errors under `form` are all kept.
    fn add(&mut self, field: &'static str, message: impl Into<String>) {
        let message = message.into();
        match self.0.entry(field) {
            Entry::Vacant(entry) => drop(entry.insert(message)),
            Entry::Occupied(mut entry) if field == "form" => entry.get_mut().push_str(&format!("; {message}")),
            Entry::Occupied(_) => {}
        }
    }
}

impl Default for JobForm {
    fn default() -> Self {
        let text = str::to_owned;
        Self {
            name: String::new(),
            description: String::new(),
            app: String::new(),
            handler: String::new(),
            params: String::new(),
            params_by: text(BY_FIELDS),
            params_fault: None,
            overrides: String::new(),
            kind: text("cron"),
            cron: text("0 */5 * * * ?"),
            time_zone: text("UTC"),
            every: text("30s"),
            at: String::new(),
            schedule_json: String::new(),
            calendar: String::new(),
            calendar_rule: text("only"),
            route: text("round"),
            overlap: text("serial"),
            misfire: text("skip"),
            delivery: text("at_least_once"),
            on_silence: String::new(),
            timeout: String::new(),
            retry_max: text("0"),
            retry_backoff: text("10s"),
            is_enabled: true,
            pump: None,
            labels: LabelRows::default(),
            leaf_fields: LeafFields::from_document(&Value::Null),
        }
    }
}

impl From<&Fields> for JobForm {
    fn from(fields: &Fields) -> Self {
        let text = |name| fields.get(name).to_owned();
        let (params, params_fault) = sent_params(fields);
        Self {
            name: text("name"),
            description: with_line_feeds(fields.get("description")),
            app: text("app"),
            handler: text("handler"),
            params,
            params_by: text("params_by"),
            params_fault,
            overrides: text("overrides"),
            kind: text("kind"),
            cron: text("cron"),
            time_zone: text("time_zone"),
            every: text("every"),
            at: text("at"),
            schedule_json: text("schedule_json"),
            calendar: text("calendar"),
            calendar_rule: text("calendar_rule"),
            route: text("route"),
            overlap: text("overlap"),
            misfire: text("misfire"),
            delivery: text("delivery"),
            on_silence: text("on_silence"),
            timeout: text("timeout"),
            retry_max: text("retry_max"),
            retry_backoff: text("retry_backoff"),
            is_enabled: !fields.get("enabled").is_empty(),
            pump: fields.get_if_sent("pump").map(str::to_owned),
            labels: LabelRows::from_fields(fields),
            leaf_fields: LeafFields::from_fields(fields),
        }
    }
}

impl JobForm {
    /// The form of an existing job.
    pub(super) fn from_spec(spec: &JobSpec) -> Self {
        let duration = |length: Option<Duration>| length.map_or_else(String::new, format_duration);
        let calendar = spec.calendar.as_ref();
        let form = Self {
            name: spec.name.clone(),
            description: spec.description.clone(),
            app: spec.app.clone(),
            handler: spec.handler.clone(),
            params: if spec.params.is_null() { String::new() } else { pretty_json(&spec.params) },
            overrides: match &spec.overrides {
                None => String::new(),
                Some(Overrides::None) => "none".to_owned(),
                Some(Overrides::All) => "all".to_owned(),
                Some(Overrides::Only(pointers)) => pointers_text(pointers),
            },
            calendar: calendar.map_or_else(String::new, |calendar_use| calendar_use.name.clone()),
            calendar_rule: calendar.map(|calendar_use| calendar_use.rule).unwrap_or_default().as_str().to_owned(),
            route: spec.route.as_str().to_owned(),
            overlap: spec.overlap.policy.as_str().to_owned(),
            misfire: spec.misfire.policy.as_str().to_owned(),
            delivery: spec.delivery.as_str().to_owned(),
            on_silence: spec.on_silence.map_or_else(String::new, |policy| policy.as_str().to_owned()),
            timeout: duration(spec.timeout),
            retry_max: spec.retry.max.to_string(),
            retry_backoff: spec.retry.backoff.clone(),
            is_enabled: spec.enabled,
            pump: spec.pump.as_ref().map(|pump| pretty_json(&serde_json::to_value(pump).unwrap_or_default())),
            labels: LabelRows::from_labels(&spec.labels),
            leaf_fields: LeafFields::from_document(&serde_json::to_value(spec).unwrap_or_default()),
            ..Self::default()
        };
        form.with_schedule(spec)
    }

    /// The text of the field for the pump.
    pub(super) fn pump_text(&self) -> &str {
        self.pump.as_deref().unwrap_or_default()
    }

    /// Fills in the schedule: in fields if they can express all of it, else as JSON.
    fn with_schedule(mut self, spec: &JobSpec) -> Self {
        let document = serde_json::to_value(&spec.schedule).unwrap_or_default();
        let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let at = text("at");
        let is_plain_at = instant_text(at.trim_end_matches('Z')) == at;
        let schedule_kind = match document.as_object() {
            None if document.is_null() => "none",
            None => "json",
            Some(fields) => {
                let schedule_key = ["cron", "every", "delay", "after", "at"]
                    .into_iter()
                    .find(|schedule_kind| fields.contains_key(*schedule_kind));
                schedule_key
                    .filter(|schedule_kind| {
                        LeafFields::can_express(schedule_kind, fields) && (*schedule_kind != "at" || is_plain_at)
                    })
                    .unwrap_or("json")
            }
        };
        schedule_kind.clone_into(&mut self.kind);
        match schedule_kind {
            "cron" => (self.cron, self.time_zone) = (text("cron"), text("time_zone")),
            "every" => self.every = text("every"),
            "at" => at.trim_end_matches('Z').clone_into(&mut self.at),
            "json" => self.schedule_json = pretty_json(&document),
            _ => {}
        }
        self
    }

    /// The definition, checked as far as possible without the server's data. Values that have no field are taken from `base_document`.
    pub(super) fn spec(&self, base_document: Value, t: &Texts) -> Result<JobSpec, Errors> {
        let mut errors = Errors::default();
        let document = self.document(base_document, &mut errors, t);
        let spec = from_value(document).map_err(|problem| self.add_problem(&mut errors, &problem, t)).ok();
        let complaints = spec.as_ref().and_then(|spec| spec.compile().err()).unwrap_or_default();
        for complaint in &complaints {
            self.add_complaint(&mut errors, &complaint.pointer, &localized(t.lang(), &complaint.message));
        }
        spec.filter(|_| errors.is_empty()).ok_or(errors)
    }

    fn document(&self, mut document: Value, errors: &mut Errors, t: &Texts) -> Value {
        let retry_max = self.retry_max.parse::<u32>().map_err(|_| errors.add("retry_max", t.error_number));
        document["retry"] = json!({"max": retry_max.unwrap_or_default(), "backoff": self.retry_backoff});
        for field in self.leaf_fields.put(&mut document) {
            errors.add(field, t.error_number);
        }
        if let Err(error) = self.labels.put(&mut document) {
            errors.add(
                "labels",
                error.map_or_else(|| t.labels_wrong.to_owned(), |error| localized(t.lang(), &error).into_owned()),
            );
        }
        if let Some(error) = &self.params_fault {
            errors.add("params", localized(t.lang(), error));
        }
        document["params"] = json_text("params", &self.params, errors, t);
        if let Some(pump) = &self.pump {
            document["pump"] = json_text("pump", pump, errors, t);
        }
        document["overrides"] = match self.overrides.trim() {
            "" => Value::Null,
            word @ ("none" | "all") => Value::from(word),
            list if list.starts_with('[') => json_text("overrides", list, errors, t),
            pointers => pointers.split([' ', ',']).filter(|pointer| !pointer.is_empty()).collect(),
        };
        document["schedule"] = match self.kind.as_str() {
            "json" => json_text("schedule_json", &self.schedule_json, errors, t),
            _ => self.schedule(),
        };
        for (field, value) in [("name", &self.name), ("app", &self.app), ("handler", &self.handler)] {
            document[field] = Value::from(value.as_str());
            if value.is_empty() {
                errors.add(field, t.error_required);
            }
        }
        // Fields are trimmed, and browsers send line breaks as CR LF. A description that the user has not changed stays as it was saved.
        let is_unchanged = |saved_text: &str| with_line_feeds(saved_text).trim() == self.description;
        if !document["description"].as_str().is_some_and(is_unchanged) {
            document["description"] = Value::from(self.description.as_str());
        }
        document["enabled"] = Value::from(self.is_enabled);
        document["timeout"] =
            Some(self.timeout.as_str()).filter(|text| !text.is_empty()).map_or(Value::Null, Value::from);
        if self.on_silence.is_empty() {
            drop(document.as_object_mut().map(|map| map.remove("on_silence")));
        }
        let words_by_field = [("route", &self.route), ("delivery", &self.delivery), ("on_silence", &self.on_silence)];
        for (key, value) in words_by_field.into_iter().filter(|(_, value)| !value.is_empty()) {
            document[key] = Value::from(value.as_str());
        }
        for (key, value) in [("overlap", &self.overlap), ("misfire", &self.misfire)] {
            if !value.is_empty() {
                document[key]["policy"] = Value::from(value.as_str());
            }
        }
        match self.calendar_use() {
            Value::Null => drop(document.as_object_mut().map(|map| map.remove("calendar"))),
            calendar_use => document["calendar"] = calendar_use,
        }
        document
    }

    /// Whether the field that the selected kind of schedule needs is empty.
    pub(super) fn lacks_schedule(&self) -> bool {
        match self.kind.as_str() {
            "cron" => self.cron.is_empty(),
            "every" => self.every.is_empty(),
            "at" => self.at.is_empty(),
            kind @ ("delay" | "after") => self.leaf_fields.get(kind).is_empty(),
            _ => false,
        }
    }

    /// The calendar as it is in a definition. Null for kinds of schedules without a calendar, for which the form hides these fields.
    pub(super) fn calendar_use(&self) -> Value {
        match (self.calendar.as_str(), self.calendar_rule.as_str()) {
            ("", _) => Value::Null,
            _ if ["none", "delay", "after"].contains(&self.kind.as_str()) => Value::Null,
            (name, "") => json!({ "name": name }),
            (name, rule) => json!({"name": name, "rule": rule}),
        }
    }

    /// The schedule as it is in a definition.
    pub(super) fn schedule(&self) -> Value {
        let mut schedule = Map::new();
        match self.kind.as_str() {
            "cron" => {
                schedule.insert("cron".to_owned(), Value::from(self.cron.as_str()));
                if !self.time_zone.is_empty() {
                    schedule.insert("time_zone".to_owned(), Value::from(self.time_zone.as_str()));
                }
            }
            "every" => drop(schedule.insert("every".to_owned(), Value::from(self.every.as_str()))),
            "at" => drop(schedule.insert("at".to_owned(), Value::from(instant_text(&self.at)))),
            // Fields of the form replace these empty placeholders below. A placeholder that stays empty is refused, with a pointer to it.
            "delay" => drop(schedule.insert("delay".to_owned(), Value::from(""))),
            "after" => drop(schedule.insert("after".to_owned(), Value::Array(Vec::new()))),
            _ => return Value::Null,
        }
        let mut schedule = Value::Object(schedule);
        self.leaf_fields.put_into_schedule(&mut schedule, &self.kind);
        schedule
    }

    /// Adds the server's complaints about the definition.
    pub(super) fn add_problem(&self, errors: &mut Errors, problem: &Problem, t: &Texts) {
        if problem.code() == Code::JobExists {
            errors.add("name", t.error_name_taken);
        }
        for complaint in problem.complaints() {
            let message = localized(t.lang(), &complaint.message);
            self.add_complaint(errors, complaint.pointer.as_deref().unwrap_or_default(), &message);
        }
        if errors.is_empty() {
            errors.add("form", localized(t.lang(), problem.detail()));
        }
    }

    fn add_complaint(&self, errors: &mut Errors, pointer: &str, message: &str) {
        let field = match pointer {
            _ if self.kind == "json" && pointer.starts_with("/schedule") => "schedule_json",
            _ if pointer.starts_with("/params/") => "params",
            _ if pointer.starts_with("/overrides") => "overrides",
            _ if pointer.starts_with("/labels") => "labels",
            _ if pointer.starts_with("/pump") => "pump",
            _ => field_at(pointer),
        };
        // If the field covers more than the place of the error, the message begins with the pointer to the place.
        let covers_more =
            matches!(field, "form" | "schedule_json" | "pump") || (field == "params" && pointer != "/params");
        let shows_pointer = covers_more && !pointer.is_empty();
        errors.add(field, if shows_pointer { format!("{pointer}: {message}") } else { message.to_owned() });
    }
}

/// The parameters as JSON, composed from their fields or as typed, and the error in the fields if there is one.
fn sent_params(fields: &Fields) -> (String, Option<String>) {
    let params_text = fields.get("params").to_owned();
    if fields.get("params_by") != BY_FIELDS {
        return (params_text, None);
    }
    let sent_value = serde_json::from_str(&params_text).unwrap_or_default();
    match params_form::from_fields(fields, &sent_value) {
        Ok(None) => (params_text, None),
        Ok(Some(Value::Null)) => (String::new(), None),
        Ok(Some(params)) => (pretty_json(&params), None),
        Err(problem) => {
            let complaint = problem.complaints().first().map(|complaint| complaint.message.clone());
            (params_text, Some(complaint.unwrap_or_else(|| problem.detail().to_owned())))
        }
    }
}

/// The pointers, separated by spaces. An empty list is shown as JSON, since an empty field means the handler's default, and so is a list
/// with a pointer that has a blank or a comma.
fn pointers_text(pointers: &[String]) -> String {
    let is_plain = !pointers.is_empty() && !pointers.iter().any(|pointer| pointer.contains([' ', ',']));
    if is_plain { pointers.join(" ") } else { serde_json::to_string(pointers).unwrap_or_default() }
}

/// Parses the JSON in a field; empty text is null.
fn json_text(field: &'static str, text: &str, errors: &mut Errors, t: &Texts) -> Value {
    if text.is_empty() {
        return Value::Null;
    }
    serde_json::from_str(text).unwrap_or_else(|error| {
        errors.add(field, t.error_json(error.column(), error.line()));
        Value::Null
    })
}

/// Converts the value of a browser's date and time field into an instant in UTC. Any other text is returned unchanged.
fn instant_text(text: &str) -> String {
    let is_local = text.len() >= 16 && text.as_bytes().get(10) == Some(&b'T') && !text.ends_with('Z');
    match (is_local, text.len()) {
        (true, 16) => format!("{text}:00Z"),
        (true, 19) => format!("{text}Z"),
        _ => text.to_owned(),
    }
}

/// The field of the form that shows this place in the definition.
fn field_at(pointer: &str) -> &'static str {
    if let Some(field) = leaf_at(pointer) {
        return field;
    }
    match pointer {
        "/name" => "name",
        "/app" => "app",
        "/handler" => "handler",
        "/description" => "description",
        "/params" => "params",
        "/schedule/cron" => "cron",
        "/schedule/time_zone" => "time_zone",
        "/schedule/every" => "every",
        "/schedule/at" => "at",
        "/calendar" | "/calendar/name" => "calendar",
        "/calendar/rule" => "calendar_rule",
        "/route" => "route",
        "/overlap/policy" => "overlap",
        "/misfire/policy" => "misfire",
        "/delivery" => "delivery",
        "/on_silence" => "on_silence",
        "/timeout" => "timeout",
        "/retry/max" => "retry_max",
        "/retry/backoff" => "retry_backoff",
        _ => "form",
    }
}

#[cfg(test)]
#[path = "job_form_tests.rs"]
mod tests;

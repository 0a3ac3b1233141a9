//! The form for a new job: its fields as they were sent, the definition that they make, and what is wrong with it.

use std::collections::BTreeMap;

use rondel_core::JobSpec;
use serde_json::{Map, Value, json};

use super::form::Fields;
use super::texts::Texts;
use crate::body::read_value;
use crate::problem::{Code, Problem};

/// The fields, as texts.
#[derive(Clone, Debug)]
pub(super) struct JobForm {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) app: String,
    pub(super) handler: String,
    pub(super) params: String,
    /// `cron`, `every`, `at` or `none`.
    pub(super) kind: String,
    pub(super) cron: String,
    pub(super) time_zone: String,
    pub(super) every: String,
    pub(super) at: String,
    pub(super) route: String,
    pub(super) overlap: String,
    pub(super) misfire: String,
    pub(super) delivery: String,
    pub(super) timeout: String,
    pub(super) retry_max: String,
    pub(super) retry_backoff: String,
    pub(super) enabled: bool,
}

/// What is wrong, by field; what belongs to no field stands under `form`.
#[derive(Clone, Debug, Default)]
pub(super) struct Errors(BTreeMap<&'static str, String>);

impl Errors {
    pub(super) fn of(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, field: &'static str, message: impl Into<String>) {
        self.0.entry(field).or_insert(message.into());
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
            kind: text("cron"),
            cron: text("0 */5 * * * ?"),
            time_zone: text("UTC"),
            every: text("30s"),
            at: String::new(),
            route: text("round"),
            overlap: text("serial"),
            misfire: text("skip"),
            delivery: text("at_least_once"),
            timeout: String::new(),
            retry_max: text("0"),
            retry_backoff: text("10s"),
            enabled: true,
        }
    }
}

impl From<&Fields> for JobForm {
    fn from(fields: &Fields) -> Self {
        let text = |name| fields.get(name).to_owned();
        Self {
            name: text("name"),
            description: text("description"),
            app: text("app"),
            handler: text("handler"),
            params: text("params"),
            kind: text("kind"),
            cron: text("cron"),
            time_zone: text("time_zone"),
            every: text("every"),
            at: text("at"),
            route: text("route"),
            overlap: text("overlap"),
            misfire: text("misfire"),
            delivery: text("delivery"),
            timeout: text("timeout"),
            retry_max: text("retry_max"),
            retry_backoff: text("retry_backoff"),
            enabled: !fields.get("enabled").is_empty(),
        }
    }
}

impl JobForm {
    /// The definition, checked as far as it can be without a server.
    pub(super) fn spec(&self, t: &Texts) -> Result<JobSpec, Errors> {
        let mut errors = Errors::default();
        let params = match self.params.as_str() {
            "" => Value::Null,
            text => serde_json::from_str(text).unwrap_or_else(|error| {
                errors.add("params", t.error_json(error.line(), error.column()));
                Value::Null
            }),
        };
        let retry_max = self.retry_max.parse::<u32>().unwrap_or_else(|_| {
            errors.add("retry_max", t.error_number);
            0
        });
        let mut document = json!({
            "name": self.name, "app": self.app, "handler": self.handler, "description": self.description,
            "params": params, "schedule": self.schedule(), "enabled": self.enabled,
            "retry": {"max": retry_max, "backoff": self.retry_backoff},
        });
        let chosen = [("route", &self.route), ("delivery", &self.delivery), ("timeout", &self.timeout)];
        for (key, value) in chosen.into_iter().filter(|(_, value)| !value.is_empty()) {
            document[key] = Value::from(value.as_str());
        }
        for (key, value) in [("overlap", &self.overlap), ("misfire", &self.misfire)] {
            if !value.is_empty() {
                document[key] = json!({ "policy": value });
            }
        }
        for (field, value) in [("name", &self.name), ("app", &self.app), ("handler", &self.handler)] {
            if value.is_empty() {
                errors.add(field, t.error_required);
            }
        }
        let spec = read_value::<JobSpec>("", document).map_err(|problem| errors.add_problem(&problem, t)).ok();
        let complaints = spec.as_ref().and_then(|spec| spec.compile().err()).unwrap_or_default();
        for complaint in &complaints {
            errors.add(field_at(&complaint.pointer), complaint.message.as_str());
        }
        spec.filter(|_| errors.is_empty()).ok_or(errors)
    }

    /// The schedule, as the definition writes it.
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
            "at" => drop(schedule.insert("at".to_owned(), Value::from(instant(&self.at)))),
            _ => return Value::Null,
        }
        Value::Object(schedule)
    }
}

/// What a browser's field for a date and a time holds, as an instant in UTC; anything else as it is.
fn instant(text: &str) -> String {
    let is_local = text.len() >= 16 && text.as_bytes().get(10) == Some(&b'T') && !text.ends_with('Z');
    match (is_local, text.len()) {
        (true, 16) => format!("{text}:00Z"),
        (true, 19) => format!("{text}Z"),
        _ => text.to_owned(),
    }
}

impl Errors {
    /// What a server said about the definition.
    pub(super) fn add_problem(&mut self, problem: &Problem, t: &Texts) {
        if problem.code() == Code::JobExists {
            self.add("name", t.error_name_taken);
        }
        for complaint in problem.complaints() {
            self.add(complaint.pointer.as_deref().map_or("form", field_at), complaint.message.as_str());
        }
        if self.is_empty() {
            self.add("form", problem.detail());
        }
    }
}

/// The field of the form that a place of the definition comes from.
fn field_at(pointer: &str) -> &'static str {
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
        "/route" => "route",
        "/overlap/policy" => "overlap",
        "/misfire/policy" => "misfire",
        "/delivery" => "delivery",
        "/timeout" => "timeout",
        "/retry/max" => "retry_max",
        "/retry/backoff" => "retry_backoff",
        _ => "form",
    }
}

#[cfg(test)]
mod tests {
    use super::super::texts::Lang;
    use super::*;

    fn spec(fields: &Fields) -> Result<JobSpec, Errors> {
        JobForm::from(fields).spec(Lang::En.texts())
    }

    #[test]
    fn a_form_makes_a_definition() {
        let fields = Fields::from([
            ("name", "a"),
            ("app", "b"),
            ("handler", "c"),
            ("params", "{\"x\": 1}"),
            ("kind", "at"),
            ("at", "2030-01-01T00:00"),
            ("retry_max", "2"),
            ("retry_backoff", "1s"),
            ("timeout", "5s"),
            ("enabled", "on"),
        ]);
        let made = spec(&fields).unwrap();
        assert_eq!(made.once_instants()[0].1.to_string(), "2030-01-01T00:00:00Z");
        assert_eq!((made.retry.max, made.enabled), (2, true));
        assert_eq!(made.params, json!({"x": 1}));
    }

    #[test]
    fn each_complaint_has_its_field() {
        let fields = Fields::from([
            ("name", "Ä"),
            ("handler", "c"),
            ("params", "{"),
            ("kind", "cron"),
            ("cron", "99 * * * * ?"),
            ("retry_max", "-1"),
            ("retry_backoff", "soon"),
        ]);
        let errors = spec(&fields).unwrap_err();
        for field in ["name", "app", "params", "cron", "retry_max", "retry_backoff"] {
            assert!(errors.of(field).is_some(), "{field}: {errors:?}");
        }
        assert!(errors.of("handler").is_none());
        let fields = Fields::from([
            ("name", "a"),
            ("app", "b"),
            ("handler", "c"),
            ("retry_max", "0"),
            ("retry_backoff", "1s"),
            ("timeout", "x"),
        ]);
        assert!(spec(&fields).unwrap_err().of("timeout").is_some());
    }
}

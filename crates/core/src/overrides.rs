//! Which parameters of a job a caller may replace for one run.
//!
//! An operator triggers jobs and does not edit them: parameters that decide which code runs, or where a secret is sent, belong
//! to the definition alone.

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, SeqAccess, Visitor};
use serde::ser::SerializeSeq as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::agent_handlers;
use crate::field_error::{FieldError, child_pointer};
use crate::glue;
use crate::spec::JobSpec;

/// Maximum number of pointers in one list.
const POINTER_COUNT_MAX: usize = 50;
/// The longest pointer, in bytes.
const POINTER_LEN_MAX: usize = 200;
/// A reference to a secret in a text begins with this; the secret's name follows.
const SECRET_OPEN: &str = "{{secret.";
/// The end of a reference to a secret.
const SECRET_CLOSE: &str = "}}";

/// Which parameters a caller may replace for one run.
///
/// ```
/// use rondel_core::overrides::Overrides;
/// use serde_json::json;
///
/// let overrides = Overrides::Only(vec!["/day".to_owned()]);
/// let job = json!({"day": "today", "region": "eu"});
/// assert_eq!(overrides.apply("report", &job, &json!({"day": "2026-03-08"})).unwrap()["region"], "eu");
/// let refused = overrides.apply("report", &job, &json!({"region": "us"})).unwrap_err();
/// assert_eq!(refused[0].pointer, "/params/region");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overrides {
    None,
    /// The parameters at or below these JSON pointers.
    Only(Vec<String>),
    All,
}

impl Overrides {
    /// The default for a job with this handler: none for the agent's handlers, whose parameters are code or choose where secrets go; only
    /// the argument for the scripts of XXL-JOB's executors.
    #[must_use]
    pub fn default_for(handler: &str) -> Self {
        if agent_handlers::is_agent_handler(handler) {
            Self::None
        } else if glue::is_script_handler(handler) {
            Self::Only(vec![glue::ARGUMENT_POINTER.to_owned()])
        } else {
            Self::All
        }
    }

    /// Whether the parameter at `pointer` may be replaced as a whole.
    #[must_use]
    pub fn covers(&self, pointer: &str) -> bool {
        match self {
            Self::None => false,
            Self::Only(pointers) => pointers.iter().any(|allowed_pointer| is_at_or_below(pointer, allowed_pointer)),
            Self::All => true,
        }
    }

    /// The part of a job's parameters that may be replaced; null if no parameter may.
    #[must_use]
    pub fn replaceable_part(&self, job_params: &Value) -> Value {
        match self {
            Self::None => Value::Null,
            Self::All => job_params.clone(),
            Self::Only(_) => self.replaceable_part_at("", job_params).unwrap_or(Value::Null),
        }
    }

    fn replaceable_part_at(&self, pointer: &str, value: &Value) -> Option<Value> {
        if self.covers(pointer) {
            return Some(value.clone());
        }
        // A list is shown as a whole: its elements have no names.
        if value.is_array() {
            return self.reaches_below(pointer).then(|| value.clone());
        }
        let fields = value.as_object()?.iter();
        let replaceable_fields = fields.filter_map(|(name, field)| {
            Some((name.clone(), self.replaceable_part_at(&child_pointer(pointer, name), field)?))
        });
        let replaceable_fields: Map<String, Value> = replaceable_fields.collect();
        (!replaceable_fields.is_empty()).then_some(Value::Object(replaceable_fields))
    }

    fn reaches_below(&self, pointer: &str) -> bool {
        matches!(self, Self::Only(allowed_pointers) if allowed_pointers.iter().any(|allowed_pointer| is_at_or_below(allowed_pointer, pointer)))
    }

    /// The parameters of one run: those of the job, with the caller's values for the parameters that may be replaced. The caller can leave
    /// out the parameters that may not be replaced.
    ///
    /// # Errors
    /// An error for each parameter that differs from the job's although it may not be replaced, and for each secret that the job's own
    /// parameters do not name.
    pub fn apply(&self, handler: &str, job_params: &Value, given_params: &Value) -> Result<Value, Vec<FieldError>> {
        let mut refused_pointers = Vec::new();
        let merged_params = match self {
            Self::All => given_params.clone(),
            Self::None | Self::Only(_) => {
                self.merge_at("", Some(job_params), Some(given_params), &mut refused_pointers).unwrap_or(Value::Null)
            }
        };
        let mut errors: Vec<FieldError> =
            refused_pointers.iter().map(|pointer| self.refusal_error(handler, pointer)).collect();
        errors.extend(foreign_secrets(job_params, &merged_params));
        if errors.is_empty() { Ok(merged_params) } else { Err(errors) }
    }

    fn merge_at(
        &self,
        pointer: &str,
        job_params: Option<&Value>,
        given_params: Option<&Value>,
        refused_pointers: &mut Vec<String>,
    ) -> Option<Value> {
        if self.covers(pointer) {
            return given_params.cloned();
        }
        match (job_params, given_params) {
            (Some(Value::Array(job_items)), Some(Value::Array(items))) if job_items.len() == items.len() => {
                let item_pairs = job_items.iter().zip(items).enumerate();
                let element = |(index, (job_params, given_params)): (usize, (&Value, &Value))| {
                    self.merge_at(&format!("{pointer}/{index}"), Some(job_params), Some(given_params), refused_pointers)
                };
                Some(Value::Array(item_pairs.filter_map(element).collect()))
            }
            (job_params, given_params) if job_params == given_params => job_params.cloned(),
            (Some(Value::Object(_)) | Some(Value::Null) | None, Some(Value::Object(fields))) if !fields.is_empty() => {
                self.merge_fields(pointer, job_params, Some(fields), refused_pointers)
            }
            (Some(Value::Object(_)), None | Some(Value::Object(_))) => {
                self.merge_fields(pointer, job_params, None, refused_pointers)
            }
            (Some(Value::Null), Some(Value::Object(_))) | (_, None) => job_params.cloned(),
            _ => {
                refused_pointers.push(pointer.to_owned());
                job_params.cloned()
            }
        }
    }

    fn merge_fields(
        &self,
        pointer: &str,
        job_params: Option<&Value>,
        given_fields: Option<&Map<String, Value>>,
        refused_pointers: &mut Vec<String>,
    ) -> Option<Value> {
        let job_fields = job_params.and_then(Value::as_object);
        let names: BTreeSet<&String> = job_fields.into_iter().chain(given_fields).flat_map(Map::keys).collect();
        let mut merged_fields = Map::new();
        for name in names {
            let (job_params, given_params) =
                (job_fields.and_then(|fields| fields.get(name)), given_fields.and_then(|fields| fields.get(name)));
            if let Some(value) =
                self.merge_at(&child_pointer(pointer, name), job_params, given_params, refused_pointers)
            {
                merged_fields.insert(name.clone(), value);
            }
        }
        if merged_fields.is_empty() && job_fields.is_none() {
            job_params.cloned()
        } else {
            Some(Value::Object(merged_fields))
        }
    }

    fn refusal_error(&self, handler: &str, pointer: &str) -> FieldError {
        let rule = match self {
            Self::None if *self == Self::default_for(handler) => {
                format!("the job's overrides are \"none\", the default for the handler {handler}")
            }
            Self::Only(pointers) => format!("the job's overrides are {}", pointers.join(", ")),
            Self::None | Self::All => "the job's overrides are \"none\"".to_owned(),
        };
        let hint = match pointer {
            "" => "an editor of the job can change them".to_owned(),
            pointer => format!("an editor of the job can add {pointer:?} to them"),
        };
        FieldError::new(format!("/params{pointer}"), format!("cannot be changed for one run: {rule}; {hint}"))
    }

    /// Checks the pointers of a list.
    pub(crate) fn check(&self, errors: &mut Vec<FieldError>) {
        let Self::Only(pointers) = self else { return };
        if pointers.len() > POINTER_COUNT_MAX {
            let message = format!("{} pointers; at most {POINTER_COUNT_MAX} are allowed", pointers.len());
            errors.push(FieldError::new("/overrides", message));
            return;
        }
        for (index, pointer) in pointers.iter().enumerate() {
            if !pointer.starts_with('/') || pointer.len() > POINTER_LEN_MAX || has_bad_escape(pointer) {
                let message = format!(
                    "{pointer:?} is not a JSON pointer into the parameters: write \"/day\" for the parameter day (at most \
                     {POINTER_LEN_MAX} bytes), or \"all\" in the place of the list"
                );
                errors.push(FieldError::new(format!("/overrides/{index}"), message));
            }
        }
    }
}

impl JobSpec {
    /// Which parameters may be replaced for one run: as defined, or else the default for its handler.
    #[must_use]
    pub fn effective_overrides(&self) -> Cow<'_, Overrides> {
        let default = || Cow::Owned(Overrides::default_for(&self.handler));
        self.overrides.as_ref().map_or_else(default, Cow::Borrowed)
    }
}

fn is_at_or_below(pointer: &str, upper_pointer: &str) -> bool {
    pointer.strip_prefix(upper_pointer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn has_bad_escape(pointer: &str) -> bool {
    pointer.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1']))
}

/// Refuses secrets that the run's parameters (`merged_params`) name and the job's own do not, because the executor would resolve
/// them for any caller.
fn foreign_secrets(job_params: &Value, merged_params: &Value) -> Vec<FieldError> {
    let job_secret_names: BTreeSet<&str> =
        strings_with_pointers(job_params).iter().flat_map(|(_, text)| secret_names(text)).collect();
    let merged_strings = strings_with_pointers(merged_params);
    let secret_uses =
        merged_strings.iter().flat_map(|(pointer, text)| secret_names(text).map(move |name| (pointer, name)));
    let refuse = |(pointer, name): (&String, &str)| {
        let message = format!(
            "names the secret {name:?}, which the job's own parameters do not name: parameters of one run bring no secrets"
        );
        FieldError::new(format!("/params{pointer}"), message)
    };
    secret_uses.filter(|(_, name)| !job_secret_names.contains(name)).map(refuse).collect()
}

/// Every string with its pointer.
fn strings_with_pointers(value: &Value) -> Vec<(String, &str)> {
    let mut strings = Vec::new();
    let mut values_to_visit = VecDeque::from([(String::new(), value)]);
    while let Some((pointer, value)) = values_to_visit.pop_front() {
        match value {
            Value::String(text) => strings.push((pointer, text.as_str())),
            Value::Array(items) => {
                values_to_visit
                    .extend(items.iter().enumerate().map(|(index, item)| (format!("{pointer}/{index}"), item)));
            }
            Value::Object(fields) => {
                values_to_visit.extend(fields.iter().map(|(name, field)| (child_pointer(&pointer, name), field)));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    strings
}

fn secret_names(text: &str) -> impl Iterator<Item = &str> {
    text.split(SECRET_OPEN).skip(1).filter_map(|rest| Some(rest.split_once(SECRET_CLOSE)?.0.trim()))
}

impl Serialize for Overrides {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::All => serializer.serialize_str("all"),
            Self::Only(pointers) => {
                let mut sequence = serializer.serialize_seq(Some(pointers.len()))?;
                pointers.iter().try_for_each(|pointer| sequence.serialize_element(pointer))?;
                sequence.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Overrides {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OverridesVisitor;

        impl<'de> Visitor<'de> for OverridesVisitor {
            type Value = Overrides;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"none\", \"all\" or a list of JSON pointers such as [\"/day\"]")
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Overrides, E> {
                match word {
                    "none" => Ok(Overrides::None),
                    "all" => Ok(Overrides::All),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Overrides, A::Error> {
                let mut pointers = Vec::new();
                while let Some(pointer) = list.next_element()? {
                    pointers.push(pointer);
                }
                Ok(Overrides::Only(pointers))
            }
        }

        deserializer.deserialize_any(OverridesVisitor)
    }
}

impl JsonSchema for Overrides {
    fn schema_name() -> Cow<'static, str> {
        "Overrides".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Which parameters a caller may replace for one run: `none`, `all`, or what lies at or below these JSON \
                pointers into the parameters.",
            "anyOf": [
                {"type": "string", "enum": ["none", "all"]},
                {"type": "array", "maxItems": POINTER_COUNT_MAX, "items": {
                    "type": "string", "pattern": "^(/([^~/]|~[01])*)+$", "maxLength": POINTER_LEN_MAX,
                }},
            ],
            "examples": ["none", ["/day"]],
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn only(pointers: &[&str]) -> Overrides {
        Overrides::Only(pointers.iter().map(|one| (*one).to_owned()).collect())
    }

    #[track_caller]
    fn check_applied(overrides: &Overrides, job: &Value, given: &Value, expected: &Value) {
        assert_eq!(&overrides.apply("shell", job, given).unwrap(), expected);
    }

    #[track_caller]
    fn check_refused(overrides: &Overrides, job: &Value, given: &Value, expected: &[&str]) {
        let errors = overrides.apply("shell", job, given).unwrap_err();
        assert_eq!(errors.iter().map(|error| error.pointer.as_str()).collect::<Vec<_>>(), expected, "{errors:?}");
    }

    #[test]
    fn only_replaceable_params_are_replaced() {
        let job = json!({"argv": ["report", "today"], "env": {"A": "1", "B": "2"}, "cwd": "/srv"});
        check_applied(&Overrides::All, &job, &json!([1]), &json!([1]));
        check_applied(&Overrides::None, &job, &json!({}), &job);
        check_applied(&Overrides::None, &job, &json!({"cwd": "/srv"}), &job);
        let with = |argv: Value, env: Value| json!({"argv": argv, "env": env, "cwd": "/srv"});
        let given = json!({"argv": ["report", "2026-03-08"], "env": {"B": "3"}});
        let made = with(json!(["report", "2026-03-08"]), json!({"A": "1", "B": "3"}));
        check_applied(&only(&["/argv/1", "/env/B"]), &job, &given, &made);
        // A parameter that may be replaced is replaced as a whole: if the caller leaves it out, the run does not have it.
        check_applied(&only(&["/argv/1", "/env"]), &job, &json!({}), &json!({"argv": job["argv"], "cwd": "/srv"}));
        check_applied(&only(&["/env/C"]), &json!(null), &json!({"env": {"C": "x"}}), &json!({"env": {"C": "x"}}));
        check_applied(&only(&["/a~1b"]), &json!({"k": 1}), &json!({"a/b": 2}), &json!({"k": 1, "a/b": 2}));
    }

    #[test]
    fn params_that_may_not_be_replaced_are_named() {
        let job = json!({"argv": ["report", "today"], "env": {"A": "1"}});
        check_refused(
            &Overrides::None,
            &job,
            &json!({"argv": ["sh"], "script": "id"}),
            &["/params/argv", "/params/script"],
        );
        check_refused(&Overrides::None, &job, &json!("x"), &["/params"]);
        check_refused(&Overrides::None, &json!(null), &json!({"argv": ["sh"]}), &["/params/argv"]);
        check_refused(&only(&["/argv/1"]), &job, &json!({"argv": ["sh", "x"]}), &["/params/argv/0"]);
        check_refused(&only(&["/argv/1"]), &job, &json!({"argv": ["report", "x", "y"]}), &["/params/argv"]);
        check_refused(&only(&["/env/B"]), &job, &json!({"env": {"A": "2", "B": "2"}}), &["/params/env/A"]);
        check_refused(&only(&["/env"]), &job, &json!({"envy": 1}), &["/params/envy"]);
        check_refused(&Overrides::None, &job, &json!({"new": {}}), &["/params/new"]);
        let error = &Overrides::None.apply("shell", &job, &json!({"argv": []})).unwrap_err()[0];
        let expected = "cannot be changed for one run: the job's overrides are \"none\", the default for the handler shell; an \
                        editor of the job can add \"/argv\" to them";
        assert_eq!(error.message, expected);
    }

    #[test]
    fn one_run_brings_no_secrets_of_its_own() {
        let job = json!({"url": "https://{{secret.host}}"});
        check_applied(
            &Overrides::All,
            &job,
            &json!(["{{ secret.x", "{{secret.host }}"]),
            &json!(["{{ secret.x", "{{secret.host }}"]),
        );
        check_refused(&Overrides::All, &job, &json!({"to": ["{{secret.host}}{{secret.db}}"]}), &["/params/to/0"]);
        check_refused(&only(&["/to"]), &job, &json!({"to": "{{secret.db}}"}), &["/params/to"]);
    }

    #[test]
    fn one_run_brings_no_script_to_an_executor_of_xxl_job() {
        let (default, job) = (Overrides::default_for("GLUE_SHELL"), json!({"source": "date", "param": "a"}));
        check_applied(&default, &job, &json!({"param": "b"}), &json!({"source": "date", "param": "b"}));
        check_applied(
            &default,
            &job,
            &json!({"source": "date", "param": "b"}),
            &json!({"source": "date", "param": "b"}),
        );
        check_refused(&default, &job, &json!({"source": "id", "param": "b"}), &["/params/source"]);
        check_refused(&default, &json!(null), &json!({"source": "id"}), &["/params/source"]);
    }

    #[test]
    fn the_default_hangs_on_the_handler() {
        let spec = |handler: &str, more: Value| -> JobSpec {
            let mut spec = json!({"name": "a", "app": "b", "handler": handler});
            spec["overrides"] = more;
            serde_json::from_value(spec).unwrap()
        };
        for handler in ["shell", "python", "node", "php", "powershell", "http"] {
            assert_eq!(*spec(handler, Value::Null).effective_overrides(), Overrides::None, "{handler}");
        }
        for handler in glue::HANDLERS {
            assert_eq!(*spec(handler, Value::Null).effective_overrides(), only(&["/param"]), "{handler}");
        }
        assert_eq!(*spec("report", Value::Null).effective_overrides(), Overrides::All);
        assert_eq!(*spec("shell", json!("all")).effective_overrides(), Overrides::All);
        assert_eq!(*spec("report", json!(["/a"])).effective_overrides(), only(&["/a"]));
    }

    #[test]
    fn the_form_shows_the_replaceable_params() {
        let job = json!({"argv": ["a", "b"], "env": {"A": "1", "B": "2"}});
        assert_eq!(only(&["/env/B", "/day"]).replaceable_part(&job), json!({"env": {"B": "2"}}));
        assert_eq!(only(&["/argv/1"]).replaceable_part(&job), json!({"argv": ["a", "b"]}));
        assert_eq!(
            (Overrides::None.replaceable_part(&job), Overrides::All.replaceable_part(&job)),
            (Value::Null, job.clone())
        );
    }

    #[test]
    fn it_is_written_as_a_word_or_a_list() {
        for written in [json!("none"), json!("all"), json!(["/a", "/b/0"])] {
            let read: Overrides = serde_json::from_value(written.clone()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), written);
        }
        let error = serde_json::from_value::<Overrides>(json!("some")).unwrap_err().to_string();
        assert!(error.contains("\"none\", \"all\" or a list of JSON pointers"), "{error}");
        for (pointer, is_good) in
            [("/a", true), ("/a~0~1", true), ("", false), ("a", false), ("/~2", false), ("/a~", false)]
        {
            let mut errors = Vec::new();
            only(&["/x", pointer]).check(&mut errors);
            assert_eq!(errors.is_empty(), is_good, "{pointer}: {errors:?}");
        }
    }

    #[test]
    fn pointers_have_a_number_and_a_length() {
        let count = |count: usize| {
            let mut errors = Vec::new();
            Overrides::Only((0..count).map(|n| format!("/{n}")).collect()).check(&mut errors);
            errors.len()
        };
        assert_eq!((count(POINTER_COUNT_MAX), count(POINTER_COUNT_MAX + 1)), (0, 1));
        let length = |len: usize| {
            let mut errors = Vec::new();
            only(&[&format!("/{}", "a".repeat(len - 1))]).check(&mut errors);
            errors.len()
        };
        assert_eq!((length(POINTER_LEN_MAX), length(POINTER_LEN_MAX + 1)), (0, 1));
        assert!(Overrides::All.covers("/a") && !Overrides::None.covers("/a"));
        assert!(only(&["/a"]).covers("/a/b") && !only(&["/a"]).covers("/ab"));
    }

    #[test]
    fn each_named_secret_is_found() {
        let found: Vec<&str> = secret_names("x{{secret.a}}y{{secret. b }}z{{secret.open").collect();
        assert_eq!(found, ["a", "b"]);
        assert_eq!(secret_names("none").count(), 0);
    }
}

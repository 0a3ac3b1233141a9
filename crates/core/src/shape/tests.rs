use serde_json::json;

use super::*;
use crate::alert::RuleSpec;
use crate::calendar::CalendarSpec;
use crate::spec::JobSpec;

#[track_caller]
fn errors_of<T: DeserializeOwned + JsonSchema + 'static>(document: &str) -> Vec<(String, &'static str, String)> {
    let document: Document = serde_json::from_str(document).unwrap();
    let Err(shape_errors) = read::<T>(document) else { panic!("it fits") };
    assert_eq!(shape_errors.count, shape_errors.errors.len());
    shape_errors.errors.into_iter().map(|error| (error.pointer, error.kind.as_str(), error.message)).collect()
}

#[track_caller]
fn check_one<T: DeserializeOwned + JsonSchema + 'static>(document: &str, pointer: &str, kind: &str, message: &str) {
    let errors = errors_of::<T>(document);
    let [(at, code, text)] = errors.as_slice() else { panic!("{document}: {errors:?}") };
    assert_eq!((at.as_str(), *code), (pointer, kind), "{document}: {text}");
    assert!(text.contains(message), "{document}: {text}");
    for word in ["struct", "enum", "Spec", "u32", "Vec", "variant"] {
        assert!(!text.contains(word), "{document}: {text}");
    }
}

#[test]
fn each_deviation_has_a_pointer_and_names_a_correction() {
    let job = |rest: &str| format!(r#"{{"name": "a", "app": "a", "handler": "h"{rest}}}"#);
    for (rest, pointer, kind, message) in [
        (
            r#", "priority": "5""#,
            "/priority",
            "invalid_value",
            "expected a whole number from 0 to 9, found the string \"5\"",
        ),
        (r#", "priority": 300"#, "/priority", "invalid_value", "from 0 to 9, found the number 300"),
        (r#", "retry": {"max": -1}"#, "/retry/max", "invalid_value", "from 0 to 4294967295, found the number -1"),
        (r#", "retry": {"max": 1.5}"#, "/retry/max", "invalid_value", "found the number 1.5"),
        (r#", "retry": [3, "1s"]"#, "/retry", "invalid_value", "expected an object, found an array"),
        (r#", "retry": null"#, "/retry", "invalid_value", "expected an object, found null"),
        (r#", "enabled": "yes""#, "/enabled", "invalid_value", "expected true or false, found the string \"yes\""),
        (r#", "route": "rnd""#, "/route", "invalid_value", "expected one of first, last"),
        (r#", "route": "rond""#, "/route", "invalid_value", "did you mean \"round\"?"),
        (r#", "route": {"first": null}"#, "/route", "invalid_value", "found an object"),
        (r#", "timeout": "soon""#, "/timeout", "invalid_value", "\"soon\" is not a duration such as 30s"),
        (
            r#", "timeout": 30"#,
            "/timeout",
            "invalid_value",
            "expected a duration such as \"30s\" or \"1h30m\" or null, found the number 30",
        ),
        (r#", "timout": "3s""#, "/timout", "unknown_field", "did you mean \"timeout\"?"),
        (r#", "a/b~": 1"#, "/a~1b~0", "unknown_field", "known fields: app, calendar"),
        (r#", "app": "b""#, "/app", "duplicate_field", "more than once"),
        (r#", "schedule": {"tz": "x"}"#, "/schedule/tz", "unknown_field", "known fields: after, at"),
        (
            r#", "schedule": [{"every": "1s"}, 7]"#,
            "/schedule/1",
            "invalid_value",
            "expected an object, found the number 7",
        ),
        (r#", "schedule": 1"#, "/schedule", "invalid_value", "expected an object, an array or null"),
        (r#", "schedule": [["0 0 0 * * ?"]]"#, "/schedule/0", "invalid_value", "expected an object, found an array"),
        (r#", "schedule": {"cron": "x", "jitter": {}}"#, "/schedule/jitter/max", "missing_field", "a duration such as"),
        (
            r#", "concurrency": ["k", 1]"#,
            "/concurrency",
            "invalid_value",
            "expected an object with \"key\" and \"max\" or null, found an array",
        ),
        (
            r#", "pump": {"items": ["eu"], "groups": 1}"#,
            "/pump/items/0",
            "invalid_value",
            "expected an object with \"name\", found the string \"eu\"",
        ),
        (
            r#", "pump": {"items": 4, "groups": 1, "until": "0 0 6 * * ?"}"#,
            "/pump/until",
            "invalid_value",
            "expected empty, an object with \"cron\" or null, found \"0 0 6 * * ?\"",
        ),
    ] {
        check_one::<JobSpec>(&job(rest), pointer, kind, message);
    }
    check_one::<JobSpec>(r#"["arr1", "work", "shell"]"#, "", "invalid_value", "expected an object, found an array");
    check_one::<JobSpec>(
        r#"{"name": "a", "app": "a"}"#,
        "/handler",
        "missing_field",
        "required field \"handler\" is missing",
    );
}

#[test]
fn choices_by_a_field_are_checked_inside() {
    for (rule, pointer, kind, message) in [
        (json!({"day": []}), "/rule/day", "unknown_field", "did you mean \"days\"?"),
        (json!({}), "/rule", "invalid_value", "exactly one of the fields"),
        (json!({"days": [], "all": []}), "/rule", "invalid_value", "exactly one of the fields"),
        (json!({"all": [{"not": {"days": [1]}}]}), "/rule/all/0/not/days/0", "invalid_value", "a string or an object"),
        (json!({"weekdays": ["mo"]}), "/rule/weekdays/0", "invalid_value", "did you mean \"mon\"?"),
        (json!(["days"]), "/rule", "invalid_value", "expected an object, found an array"),
    ] {
        check_one::<CalendarSpec>(&json!({"name": "c", "rule": rule}).to_string(), pointer, kind, message);
    }
}

#[test]
fn a_choice_with_a_word_beside_the_fields_is_checked_inside() {
    for (scope, pointer, kind, message) in [
        (json!({}), "/scope", "invalid_value", "exactly one of the fields app, label, job"),
        (json!({"job": "a", "app": "b"}), "/scope", "invalid_value", "exactly one of the fields app, label, job"),
        (json!({"jobs": "a"}), "/scope/jobs", "unknown_field", "did you mean \"job\"?"),
        (json!({"job": 1}), "/scope/job", "invalid_value", "expected a string"),
        (json!("every"), "/scope", "invalid_value", "expected an object or all"),
    ] {
        let rule = json!({"name": "r", "condition": {"failed": {}}, "scope": scope});
        check_one::<RuleSpec>(&rule.to_string(), pointer, kind, message);
    }
}

#[test]
fn everything_is_reported_and_the_rest_is_checked() {
    let document = json!({
        "name": "A", "app": 7, "colour": "red", "timeout": "soon", "priority": 12,
        "schedule": [{"every": "0s"}, {"evry": "1s"}, {"cron": "99 * * * * ?", "jitter": {}}],
        "retry": {"max": "3", "backoff": "never"},
    });
    let shape_errors = read::<JobSpec>(document.into()).unwrap_err();
    let mut pointers: Vec<_> = shape_errors.errors.iter().map(|error| error.pointer.as_str()).collect();
    pointers.sort_unstable();
    assert_eq!(
        pointers,
        ["/app", "/colour", "/handler", "/retry/max", "/schedule/1/evry", "/schedule/2/jitter/max", "/timeout"]
    );
    let further = shape_errors.repaired.as_ref().unwrap().compile().unwrap_err();
    let mut further: Vec<_> = shape_errors.independent_errors(further).map(|error| error.pointer).collect();
    further.sort_unstable();
    assert_eq!(further, ["/name", "/priority", "/retry/backoff", "/schedule/0/every", "/schedule/2/cron"]);
}

#[test]
fn many_errors_are_counted_and_few_are_kept() {
    let fields: Value = (0..5_000).map(|index| (format!("f{index}"), Value::Null)).collect();
    let shape_errors = read::<JobSpec>(fields.into()).unwrap_err();
    assert_eq!((shape_errors.errors.len(), shape_errors.count), (ERROR_COUNT_MAX, 5_003));
}

#[test]
fn a_document_written_by_serde_fits() {
    let document = json!({
        "name": "a", "app": "b", "handler": "c", "params": {"a": [1, {"b": null}]}, "route": "broadcast",
        "schedule": [
            {"cron": "0 0 1 * * ?", "time_zone": "Europe/Berlin", "dst": {"gap": "skip"}, "jitter": {"max": "5s"}},
            {"every": "1h 30m", "start_at": "2026-03-08T07:00:00+08:00"},
        ],
        "calendar": {"name": "c", "rule": "next"}, "timeout": null, "rate": {"max": 3, "per": "1m"},
    });
    let spec = read::<JobSpec>(document.into()).unwrap();
    let written = serde_json::to_value(&spec).unwrap();
    assert_eq!(read::<JobSpec>(written.into()).unwrap(), spec);
}

#[test]
fn repeated_keys_of_free_parameters_are_allowed() {
    let text = r#"{"name": "a", "app": "b", "handler": "c", "params": {"k": 1, "k": 2}}"#;
    let document: Document = serde_json::from_str(text).unwrap();
    assert_eq!(document.duplicates, ["/params/k"]);
    assert_eq!(read::<JobSpec>(document).unwrap().params, json!({"k": 2}));
}

#[test]
fn only_near_words_are_proposed() {
    #[derive(Debug, serde::Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case", deny_unknown_fields)]
    #[expect(dead_code, reason = "only its shape is read")]
    struct One {
        word: Choice,
        #[serde(default)]
        many: Vec<i64>,
    }
    #[derive(Debug, serde::Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Choice {
        OnlyOne,
    }
    let found = |word: &str| errors_of::<One>(&json!({"word": word}).to_string())[0].2.clone();
    assert!(found("only_on").starts_with("expected only_one, found"), "{}", found("only_on"));
    assert!(found("only_on").contains("did you mean \"only_one\"?"));
    assert!(!found("x").contains("did you mean") && !found(&"only_one".repeat(13)).contains("did you mean"));
    let [(pointer, ..)] = &errors_of::<One>(r#"{"word": "only_one", "many": [1, "2", 3]}"#)[..] else { panic!("one") };
    assert_eq!(pointer, "/many/1");
    let Err(shape_errors) = read::<One>(serde_json::from_str("[]").unwrap()) else { panic!("it fits") };
    assert_eq!(shape_errors.count, 1);
    assert!(read::<One>(serde_json::from_str(r#"{"word": "only_one"}"#).unwrap()).is_ok());
}

#[test]
fn a_wrong_field_is_repaired_by_whether_it_is_required() {
    let document = r#"{"name": 7, "app": "a", "handler": "h", "priority": "high"}"#;
    let Err(shape_errors) = read::<JobSpec>(serde_json::from_str(document).unwrap()) else { panic!("it fits") };
    assert_eq!(shape_errors.count, 2);
    let repaired = shape_errors.repaired.unwrap();
    assert_eq!((repaired.name.as_str(), repaired.app.as_str(), repaired.priority), ("x", "a", 5));
}

//! Tests of the definition that a job's form builds from its fields.

use super::super::texts::Lang;
use super::*;

fn spec(fields: &Fields) -> Result<JobSpec, Errors> {
    JobForm::from(fields).spec(json!({}), Lang::En.texts())
}

#[test]
fn a_form_makes_a_definition() {
    let fields = Fields::from([
        ("name", "a"),
        ("app", "b"),
        ("handler", "c"),
        ("params", "{\"x\": 1}"),
        ("overrides", "/x, /y"),
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
    assert_eq!(serde_json::to_value(&made).unwrap()["overrides"], json!(["/x", "/y"]));
}

#[test]
fn overrides_go_into_their_field_and_back() {
    for overrides in
        [json!([]), json!(["/x", "/y"]), json!(["/first name", "/a,/b"]), json!("none"), json!("all"), Value::Null]
    {
        let mut base = json!({"name": "a", "app": "b", "handler": "c"});
        if !overrides.is_null() {
            base["overrides"] = overrides.clone();
        }
        let saved: JobSpec = serde_json::from_value(base).unwrap();
        let shown = JobForm::from_spec(&saved).overrides;
        let fields = [("name", "a"), ("app", "b"), ("handler", "c"), ("retry_max", "0"), ("retry_backoff", "10s")];
        let sent = Fields::from([fields[0], fields[1], fields[2], fields[3], fields[4], ("overrides", shown.as_str())]);
        let made = JobForm::from(&sent).spec(serde_json::to_value(&saved).unwrap(), Lang::En.texts()).unwrap();
        assert_eq!(made.overrides, saved.overrides, "{overrides} is shown as {shown:?}");
    }
    let wrong = Fields::from([("name", "a"), ("app", "b"), ("handler", "c"), ("retry_max", "0"), ("overrides", "[")]);
    assert!(spec(&wrong).unwrap_err().of("overrides").is_some());
}

#[test]
fn a_pump_is_kept_changed_and_taken_away() {
    let saved = json!({"name": "a", "app": "b", "handler": "c", "pump": {"items": {"count": 8}, "groups": 2}});
    let saved: JobSpec = serde_json::from_value(saved).unwrap();
    let base = serde_json::to_value(&saved).unwrap();
    let made = |pump: Option<&str>| {
        let fields = [("name", "a"), ("app", "b"), ("handler", "d"), ("retry_max", "0"), ("retry_backoff", "1s")];
        let mut form = JobForm::from(&Fields::from(fields));
        form.pump = pump.map(str::to_owned);
        form.spec(base.clone(), Lang::En.texts())
    };
    assert_eq!(made(None).unwrap().pump, saved.pump, "a form without the field leaves it alone");
    let shown = JobForm::from_spec(&saved).pump.unwrap();
    assert_eq!(made(Some(&shown)).unwrap().pump, saved.pump);
    assert_eq!(made(Some(r#"{"items": {"count": 8}, "groups": 4}"#)).unwrap().pump.unwrap().groups, 4);
    assert_eq!(made(Some("")).unwrap().pump, None);
    let errors = made(Some(r#"{"items": {"count": 8}, "groups": 9}"#)).unwrap_err();
    assert_eq!(errors.of("pump"), Some("/pump/groups: 9 groups for 8 items: some would have nothing to do"));
    assert!(made(Some("{")).unwrap_err().of("pump").is_some());
}

#[test]
fn parameters_come_in_fields_or_as_json() {
    let made = |by, rows| {
        let fields = Fields::from([
            ("name", "a"),
            ("app", "b"),
            ("handler", "c"),
            ("kind", "none"),
            ("retry_max", "0"),
            ("retry_backoff", "1s"),
            ("params", r#"{"kept": 1, "rows": 2}"#),
            ("params_by", by),
            ("param.json.rows", rows),
        ]);
        spec(&fields)
    };
    assert_eq!(made("fields", "3").unwrap().params, json!({"kept": 1, "rows": 3}));
    assert_eq!(made("fields", "").unwrap().params, json!({"kept": 1}));
    assert_eq!(made("json", "3").unwrap().params, json!({"kept": 1, "rows": 2}));
    let errors = made("fields", "many").unwrap_err();
    assert!(errors.of("params").is_some_and(|message| message.contains("many")), "{errors:?}");
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

#[test]
fn an_emptied_field_gets_its_default_and_a_missing_one_stays() {
    let saved = json!({"name": "a", "app": "b", "handler": "c", "queue_timeout": "5m", "priority": 8});
    let saved: JobSpec = serde_json::from_value(saved).unwrap();
    let own = [("name", "a"), ("app", "b"), ("handler", "c"), ("retry_max", "0"), ("retry_backoff", "1s")];
    let made = |queue_timeout: Option<&str>, priority: Option<&str>| {
        let mut form = JobForm::from(&Fields::from(own));
        form.leaf_fields = LeafFields::read(|field| match field {
            "queue_timeout" => queue_timeout.map(str::to_owned),
            "priority" => priority.map(str::to_owned),
            _ => None,
        });
        form.spec(serde_json::to_value(&saved).unwrap(), Lang::En.texts())
    };
    let of = |spec: JobSpec| (spec.queue_timeout, spec.priority);
    assert_eq!(of(made(None, None).unwrap()), (Duration::from_secs(300), 8));
    assert_eq!(of(made(Some(""), Some("")).unwrap()), (Duration::from_secs(60), 5));
    assert_eq!(of(made(Some("2s"), Some("9")).unwrap()), (Duration::from_secs(2), 9));
    let errors = made(Some("soon"), Some("ten")).unwrap_err();
    assert!(errors.of("priority").is_some(), "{errors:?}");
    assert!(made(Some("soon"), None).unwrap_err().of("queue_timeout").is_some());
    let shown = JobForm::from_spec(&saved).leaf_fields;
    assert_eq!((shown.get("queue_timeout"), shown.get("priority")), ("5m", "8"));
}

use serde_json::json;

use super::*;

pub(in super::super) fn schema_of(document: Value) -> ParamsSchema {
    ParamsSchema::new(document)
}

fn schema() -> ParamsSchema {
    ParamsSchema::new(json!({
        "type": "object",
        "properties": {
            "table": {"type": "string", "maxLength": 10},
            "rows": {"type": "integer", "minimum": 0},
            "mode": {"enum": ["full", "delta"]},
            "speed": {"anyOf": [{"$ref": "#/$defs/Speed"}, {"type": "null"}]},
            "port": {"type": "integer"},
            "to": {"type": "array", "items": {"type": "string"}},
            "a/b": {"type": "boolean"},
            "either": {"oneOf": [{"type": "integer"}, {"const": "all", "description": "all of them"}]},
        },
        "required": ["table"],
        "additionalProperties": false,
        "$defs": {"Speed": {"enum": ["fast", "slow"]}},
    }))
}

/// Pointers and messages, `place: sentence`.
fn errors(params: &Value) -> Vec<String> {
    schema().errors(params, false).iter().map(ToString::to_string).collect()
}

#[test]
fn errors_name_the_place_the_value_and_the_expectation() {
    let long = "x".repeat(5_000);
    let known = "the handler knows table, rows, mode, speed, port, to, a/b, either";
    for (params, wanted) in [
        (json!({"table": "t", "rows": 3, "mode": "full", "speed": null, "a/b": true, "either": "all"}), vec![]),
        (json!({}), vec!["/params/table: is missing: the handler cannot do without it".to_owned()]),
        (json!(null), vec!["/params/table: is missing: the handler cannot do without it".to_owned()]),
        (json!(7), vec!["/params: 7 is not of type \"object\"".to_owned()]),
        (json!({"table": "t", "rows": "many"}), vec!["/params/rows: \"many\" is not of type \"integer\"".to_owned()]),
        (json!({"table": "t", "rows": -1}), vec!["/params/rows: -1 is less than the minimum of 0".to_owned()]),
        (
            json!({"table": "t", "mode": "half"}),
            vec!["/params/mode: \"half\" is not one of \"full\" or \"delta\"".to_owned()],
        ),
        (
            json!({"table": "t", "speed": "idle"}),
            vec!["/params/speed: \"idle\" is not one of \"fast\" or \"slow\"".to_owned()],
        ),
        (json!({"table": "t", "a/b": 1}), vec!["/params/a~1b: 1 is not of type \"boolean\"".to_owned()]),
        (json!({"table": "t", "to": ["a", 2]}), vec!["/params/to/1: 2 is not of type \"string\"".to_owned()]),
        (json!({"table": "t", "tabel": "u"}), vec![format!("/params/tabel: is unknown; {known}")]),
        (
            json!({"table": "t", "either": "none"}),
            vec![
                "/params/either: \"none\" fits none of its choices: \"none\" is not of type \"integer\"; \"all\" was expected"
                    .to_owned(),
            ],
        ),
        (
            json!({"table": long}),
            vec![format!("/params/table: \"{}… is longer than 10 characters", &long[..EXCERPT_LEN_MAX - 1])],
        ),
    ] {
        let mut known_order = errors(&params);
        known_order.iter_mut().for_each(|line| {
            // The order of an object's keys depends on serde_json.
            if line.contains("the handler knows") {
                assert!(["table", "rows", "mode", "a/b"].iter().all(|name| line.contains(name)), "{line}");
                *line = format!("/params/tabel: is unknown; {known}");
            }
        });
        assert_eq!(known_order, wanted, "{params}");
    }
}

#[test]
fn values_that_the_executor_fills_in_are_not_checked() {
    let secret = "{{secret.key}}";
    for params in [
        json!({"table": format!("{secret}-and-more")}),
        json!({"table": "t", "port": secret}),
        json!({"table": "t", "mode": secret, "speed": secret, "either": secret}),
    ] {
        assert_eq!(errors(&params), Vec::<String>::new());
    }
    // A secret in one parameter does not excuse the others.
    let beside = errors(&json!({"mode": secret, "rows": "x"}));
    assert_eq!(beside.len(), 2, "{beside:?}");
}

#[test]
fn values_from_parents_are_not_checked() {
    let schema = ParamsSchema::new(json!({
        "type": "object",
        "properties": {"table": {"type": "string"}, "parents": {"type": "object"}},
        "required": ["table", "parents"],
    }));
    let pointers = |params: &Value, is_follower| -> Vec<String> {
        schema.errors(params, is_follower).into_iter().map(|error| error.pointer).collect()
    };
    assert_eq!(pointers(&json!({"table": "t"}), true), Vec::<String>::new());
    assert_eq!(pointers(&json!({"table": "t", "parents": 7}), true), Vec::<String>::new());
    assert_eq!(pointers(&json!(null), true), ["/params/table"]);
    assert_eq!(pointers(&json!("wrapped"), true), ["/params"]);
    assert_eq!(pointers(&json!({"table": "t"}), false), ["/params/parents"]);
}

/// The server wraps them in an object with `parents`. The SDK unwraps them for a type that does not fit the object.
#[test]
fn parameters_of_a_follower_that_are_no_object_fit_wrapped_or_as_they_are() {
    let wrapper = json!({"type": "object", "properties": {"params": {"type": "string"}, "parents": {"type": "object"}},
        "required": ["params", "parents"], "additionalProperties": false});
    for (document, is_good) in [
        (json!(true), true),
        (json!({"type": "string"}), true),
        (wrapper, true),
        (json!({"type": "integer"}), false),
        (json!({"type": "object", "properties": {"script": {}}, "additionalProperties": false}), false),
    ] {
        let schema = ParamsSchema::new(document.clone());
        assert_eq!(schema.errors(&json!("echo 1"), true).is_empty(), is_good, "{document}");
    }
}

#[test]
fn a_schema_that_is_wrong_refuses_nothing() {
    for document in [
        json!({"type": "nonsense"}),
        json!({"$ref": "https://example.com/elsewhere.json"}),
        json!({"pattern": "(?=a)b"}),
        json!({"pattern": "(((a{1000}){1000}){1000})"}),
    ] {
        let schema = ParamsSchema::new(document.clone());
        assert_eq!(schema.errors(&json!("x"), false), Vec::new(), "{document}");
    }
}

#[test]
fn schemas_are_bounded_and_shared() {
    const APP: AppId = AppId::new(1);
    let pool = SchemaPool::default();
    let text = r#"{"type":"string"}"#;
    let padded = |len: usize| format!("{{\"description\":\"{}\"}}", "x".repeat(len));
    let infos =
        [("a", text.to_owned()), ("long", padded(SCHEMA_LEN_MAX)), ("bad", "{".to_owned()), ("none", String::new())];
    let one = pool.of_executor(APP, "one", infos.map(|(name, text)| (name.to_owned(), text)));
    assert_eq!(one.keys().collect::<Vec<_>>(), ["a"]);
    let two = pool.of_executor(APP, "two", [("b".to_owned(), text.to_owned())]);
    assert!(Arc::ptr_eq(&one["a"], &two["b"]));
    let many = |from: usize| (from..from + 100).map(move |n| (format!("h{n}"), padded(SCHEMA_LEN_MAX - 1024 - n)));
    let first = pool.of_executor(APP, "many", many(0));
    assert!((10..=17).contains(&first.len()), "{}", first.len());
    // A schema that another executor also declares counts once; new schemas count for the whole app.
    assert_eq!(pool.of_executor(APP, "alike", many(0)).len(), first.len());
    let (second, third) = (pool.of_executor(APP, "more", many(100)), pool.of_executor(APP, "more", many(200)));
    assert!(first.len() + second.len() <= 2 * 17 && third.is_empty(), "{} {}", second.len(), third.len());
    assert_eq!(pool.of_executor(AppId::new(2), "other", many(200)).len(), first.len());
    drop((one, two, first, second, third));
    pool.of_executor(APP, "four", []);
    assert_eq!(
        pool.0.lock().unwrap().values().map(HashMap::len).sum::<usize>(),
        0,
        "a schema without an executor is forgotten"
    );
}

#[test]
fn patterns_share_one_bound() {
    let patterns = |count: usize| {
        let all = (0..count).map(|n| json!({"pattern": format!("^[a-z]{{{}}}$", 1_000 + n)})).collect::<Vec<_>>();
        schema_of(json!({"allOf": all}))
    };
    assert_eq!((patterns(3).pattern_count, patterns(500).pattern_count), (3, 500));
    assert!(!patterns(3).errors(&json!("x"), false).is_empty());
    assert!(patterns(500).errors(&json!("x"), false).is_empty(), "it cannot be compiled, and refuses nothing");
}

#[test]
fn a_schema_counts_only_if_all_executors_have_it() {
    let schema = |text| parse_schema(text).unwrap();
    let (one, same, other) = (schema(r#"{"a":1,"b":2}"#), schema(r#"{ "b": 2, "a": 1 }"#), schema("{}"));
    let is_agreed = |schemas: &[Option<&Arc<ParamsSchema>>]| common_schema(schemas.iter().copied()).is_some();
    assert!(is_agreed(&[Some(&one)]) && is_agreed(&[Some(&one), Some(&same), Some(&one)]));
    for different in [&[][..], &[None], &[Some(&one), Some(&other)], &[Some(&one), None], &[None, Some(&one)]] {
        assert!(!is_agreed(different));
    }
}

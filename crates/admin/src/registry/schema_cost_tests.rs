use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::super::schemas::tests::schema_of;
use super::*;

/// `{"a": {"a": … 1}}`
fn nested(depth: usize) -> Value {
    (0..depth).fold(json!(1), |inner, _| json!({"a": inner}))
}

/// A choice with this many branches, each of which refers back to the choice.
fn bomb(branch_count: usize) -> Value {
    let branches: Vec<_> = (0..branch_count)
        .map(|branch| json!({"properties": {"a": {"$ref": "#"}}, "required": ["a", format!("b{branch}")]}))
        .collect();
    json!({"anyOf": branches})
}

fn tree() -> Value {
    json!({
        "$ref": "#/$defs/Tree",
        "$defs": {"Tree": {
            "type": "object",
            "properties": {
                "a": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "integer"}]},
                "b": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]},
            },
            "additionalProperties": false,
        }},
    })
}

#[test]
fn a_recursive_choice_is_bounded_by_steps_and_an_ordinary_one_is_checked() {
    assert_eq!(check_budget(&tree(), &nested(20)), CheckBudget::AllErrors);
    assert_eq!(check_budget(&bomb(4), &nested(2)), CheckBudget::AllErrors);
    assert_eq!(check_budget(&bomb(4), &nested(18)), CheckBudget::NoCheck);
    assert_eq!(check_budget(&bomb(2), &nested(13)), CheckBudget::ValidityOnly);
    for keyword in ["unevaluatedProperties", "allOf", "not"] {
        let mut wrapped = bomb(3);
        wrapped[keyword] = if keyword == "allOf" { json!([bomb(3)]) } else { json!(false) };
        assert_eq!(check_budget(&wrapped, &nested(18)), CheckBudget::NoCheck, "{keyword}");
    }
}

/// A schema in which each definition doubles the checks of the same value.
fn doubling(count: usize, keyword: &str) -> Value {
    let next = |n: usize| json!({"$ref": format!("#/$defs/d{}", n + 1)});
    let mut defs: Map<String, Value> =
        (0..count).map(|n| (format!("d{n}"), json!({keyword: [next(n), next(n)]}))).collect();
    defs.insert(format!("d{count}"), json!({"type": "string"}));
    json!({"$ref": "#/$defs/d0", "$defs": defs})
}

/// The schemas have every shape that was found to multiply the work. None takes long, whatever the parameters are.
#[test]
fn no_schema_takes_long_to_compile_or_to_check() {
    let chain = |count: usize| {
        let next = |n: usize| json!({"properties": {"a": {"$ref": format!("#/$defs/d{}", n + 1)}}});
        let mut defs: Map<String, Value> = (0..count).map(|n| (format!("d{n}"), next(n))).collect();
        defs.insert(format!("d{count}"), json!(true));
        json!({"$ref": "#/$defs/d0", "$defs": defs})
    };
    let unevaluated = json!({
        "anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"b": true}}],
        "unevaluatedProperties": false,
    });
    let many = |keyword: &str| json!({keyword: vec![json!({"$ref": "#"}); 900]});
    let enums = json!({"items": {"enum": (0..5_000).map(|n| format!("word {n}")).collect::<Vec<_>>()}});
    let schemas = [
        bomb(2),
        bomb(4),
        bomb(500),
        tree(),
        chain(1_000),
        unevaluated,
        many("anyOf"),
        many("allOf"),
        many("oneOf"),
        enums,
        doubling(40, "anyOf"),
        doubling(40, "allOf"),
        doubling(40, "oneOf"),
        json!({"$ref": "#"}),
        json!({"not": {"$ref": "#"}}),
        json!({"additionalProperties": {"$ref": "#"}, "required": ["x"]}),
        json!({"patternProperties": {"a": {"$ref": "#"}, "^a": {"$ref": "#"}, ".": {"$ref": "#"}}, "maxProperties": 0}),
    ];
    let params =
        [json!(null), json!("text"), nested(18), nested(60), json!(vec!["x"; 12_000]), json!(vec![nested(20); 300])];
    let begun = Instant::now();
    for schema in &schemas {
        let made = schema_of(schema.clone());
        for params in &params {
            let found = made.errors(params, false);
            let len: usize = found.iter().map(|one| one.pointer.len() + one.message.len()).sum();
            assert!(len < 100_000, "{len}");
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[test]
fn references_that_cannot_be_followed_are_named() {
    for (schema, wanted) in [
        (json!({"$ref": "https://example.com/x.json"}), "$ref \"https://example.com/x.json\""),
        (json!({"items": {"$dynamicRef": "#a"}}), "$dynamicRef"),
        (json!({"items": {"$id": "x"}}), "$id"),
        (json!({"$ref": "#name"}), "#name"),
        (nested(80), "64 levels"),
    ] {
        let reason = unsupported_reason(&schema).unwrap();
        assert!(reason.contains(wanted), "{reason}");
    }
    let fine = json!({"$id": "root", "properties": {"$ref": {"type": "string"}, "a": {"$ref": "#/$defs/a~1b"}}});
    assert_eq!(unsupported_reason(&fine), None);
}

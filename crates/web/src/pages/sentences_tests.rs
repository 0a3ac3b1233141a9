//! Tests that every complaint about a definition has a Chinese sentence, and that every English sentence in the file occurs in the code.

use std::path::Path;

use rondel_admin::oidc::Refusal;
use rondel_core::calendar::{Calendar, CalendarSpec};
use rondel_core::spec::JobSpec;
use rondel_core::{agent_handlers, glue, shape};
use serde_json::{Value, json};

use super::*;

fn zh(sentence: &str) -> String {
    localized(Lang::Zh, sentence).into_owned()
}

/// Appends every Rust source below a folder, with each text literal on one line.
fn sources(folder: &Path, all: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for line in text.lines() {
                match line.strip_suffix('\\') {
                    Some(line) => all.push_str(if all.ends_with('\n') { line } else { line.trim_start() }),
                    None if all.ends_with('\n') => all.push_str(&format!("{line}\n")),
                    None => all.push_str(&format!("{}\n", line.trim_start())),
                }
            }
        }
    }
}

#[test]
fn every_sentence_of_the_list_is_in_the_code() {
    let mut code = String::new();
    for name in ["core", "store", "admin", "web"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"), &mut code);
    }
    let code = code.replace("\\\"", "\"");
    let own = CHINESE_SENTENCES.split("# Sentences of the library").next().unwrap();
    let own = own.split("\n\n").filter_map(|block| block.lines().find(|line| !line.starts_with('#')));
    for english in own.filter(|line| !line.is_empty()) {
        for words in Sentence::new(english, "").words {
            let words = words.trim();
            // Some sentences are composed of two texts in the code.
            let is_of_two = |index: usize| {
                words.is_char_boundary(index) && code.contains(&words[..index]) && code.contains(&words[index..])
            };
            let is_there = words.len() < 8 || code.contains(words) || (1..words.len() - 7).any(is_of_two);
            assert!(is_there, "{words:?} is nowhere in the code: {english}");
        }
    }
}

#[test]
fn gaps_are_the_same_in_both_languages() {
    for sentence in SENTENCES.iter() {
        for index in 1..=sentence.gaps.len() {
            let is_kept = sentence.chinese.contains(&format!("{{{index}}}"));
            let may_drop = sentence.words.iter().any(|words| words.contains("is not a priority"));
            assert!(is_kept || may_drop || index == 1, "{sentence:?}");
        }
        assert!(!sentence.chinese.contains(&format!("{{{}}}", sentence.gaps.len() + 1)), "{sentence:?}");
    }
}

#[track_caller]
fn check_all(complaints: Vec<(String, String)>, of: &Value) {
    assert!(!complaints.is_empty(), "nothing is wrong with {of}");
    for (pointer, message) in complaints {
        let text = zh(&message);
        assert!(text != message && !text.is_ascii(), "{pointer}: {message}");
        eprintln!("{pointer}: {text}");
    }
}

/// A definition with one wrong field.
fn wrong(field: &str, value: Value) -> Value {
    let mut job = json!({"name": "a", "app": "b", "handler": "c", "schedule": {"cron": "0 0 * * * *"}});
    job[field] = value;
    job
}

#[test]
fn complaints_about_jobs_are_in_chinese() {
    let days = |n: usize| (0..n).map(|n| format!("j{n}")).collect::<Vec<_>>();
    let mut cases = vec![
        json!({"name": "A b", "app": "b", "handler": "c"}),
        json!({"name": "new", "app": "b", "handler": "c"}),
        json!({"name": "a", "app": "b"}),
        json!({"name": "a", "app": "b", "handler": "c d"}),
        json!({"name": 7, "app": null, "handler": []}),
        json!({"name": "a", "app": "b", "handler": "c", "handlr": 1}),
        json!({"name": "a", "app": "b", "handler": "c", "colour": 1}),
        json!({"name": "a", "app": "b", "handler": "c", "route": "frist"}),
        json!({"name": "a", "app": "b", "handler": "c", "route": 3}),
        json!({"name": "a", "app": "b", "handler": "c", "enabled": "yes"}),
        wrong("description", json!("x".repeat(100_000))),
        wrong("params", json!("x".repeat(2_000_000))),
        wrong("labels", json!({"a b": "c"})),
        wrong("labels", json!({"a": ""})),
        wrong("labels", json!({"a": " x"})),
        wrong("labels", Value::Object((0..99).map(|n| (n.to_string(), json!("x"))).collect())),
        wrong("priority", json!(200)),
        wrong("priority", json!(10)),
        wrong("shards", json!(0)),
        wrong("concurrency", json!({"key": "A", "max": 0})),
        wrong("rate", json!({"key": "a", "max": 0, "per": "1ms"})),
        wrong("retry", json!({"max": 100_000, "backoff": "x"})),
        wrong("retry", json!({"max": 1, "backoff": "10s..1s"})),
        wrong("retry", json!({"max": 1, "backoff": "1s..400d"})),
        wrong("misfire", json!({"policy": "all", "max": 0})),
        wrong("timeout", json!("400d")),
        wrong("timeout", json!("0s")),
        wrong("timeout", json!("soon")),
        wrong("timeout", json!("1000000h")),
        wrong("overrides", json!(["day"])),
        wrong("select", json!({"labels": ["a b"]})),
        wrong("select", json!({"executors": vec!["e"; 10_000]})),
        wrong("calendar", json!({"name": "A", "rule": "only"})),
        wrong("notify", json!({"skipped": ["overlap"]})),
    ];
    let schedules = [
        json!({}),
        json!({"cron": "0 0 * * * *", "every": "1m"}),
        json!({"every": "500ms"}),
        json!({"every": "20y"}),
        json!({"every": "90000h"}),
        json!({"every": "1m", "dst": "skip"}),
        json!({"every": "1m", "on": "success"}),
        json!({"every": "1m", "if_past": "run"}),
        json!({"after": ["a"], "time_zone": "UTC"}),
        json!({"after": ["a"], "start_at": "2026-01-01T00:00:00Z"}),
        json!({"after": ["a"], "jitter": {"max": "1s"}}),
        json!({"after": ["x", "x"]}),
        json!({"after": []}),
        json!({"after": days(200)}),
        json!({"at": "tomorrow"}),
        json!({"cron": "0 0 * * * *", "time_zone": "europe/berlin"}),
        json!({"cron": "0 0 * * * *", "time_zone": "Mars"}),
        json!({"cron": "0 0 * * * *", "start_at": "2026-02-01T00:00:00Z", "end_at": "2026-01-01T00:00:00Z"}),
        json!({"cron": "0 0 * * * *", "jitter": {"max": "100h"}}),
        json!([{"delay": "1m"}, {"delay": "2m"}]),
    ];
    cases.extend(schedules.into_iter().map(|schedule| wrong("schedule", schedule)));
    cases.extend(pumps());
    for case in cases {
        let complaints = match shape::read::<JobSpec>(case.clone().into()) {
            Err(shape_errors) => shape_errors.errors.into_iter().map(|error| (error.pointer, error.message)).collect(),
            Ok(spec) => {
                let errors = spec.compile().err().unwrap_or_default();
                errors.into_iter().map(|error| (error.pointer, error.message)).collect::<Vec<_>>()
            }
        };
        let short: String = case.to_string().chars().take(200).collect();
        check_all(complaints, &json!(short));
    }
}

/// Invalid pump jobs.
fn pumps() -> Vec<Value> {
    let pump = |change: Value| {
        let mut pump = json!({"items": {"count": 8}, "groups": 2});
        pump.as_object_mut().unwrap().append(&mut change.as_object().unwrap().clone());
        json!({"name": "a", "app": "b", "handler": "c", "pump": pump})
    };
    let mut cases: Vec<Value> = [
        json!({"items": {"count": 0}}),
        json!({"items": [{"name": "a"}, {"name": "a"}, {"name": "A b"}]}),
        json!({"items": [{"name": "a", "params": "x".repeat(5_000)}, {"name": "b"}]}),
        json!({"groups": 0}),
        json!({"groups": 9}),
        json!({"per_executor": 0, "items_per_group": 3}),
        json!({"threads": 0, "fetch": 0, "idle": "1ms", "pause": "2h", "hand_over": "1ms"}),
        json!({"batch": 501}),
        json!({"until": {"cron": "0 0 0 30 2 ?"}}),
        json!({"until": {"cron": "0 0 6 * * ?", "time_zone": "Mars"}}),
    ]
    .into_iter()
    .map(pump)
    .collect();
    let others = [
        ("shards", json!(2)),
        ("route", json!("first")),
        ("overlap", json!({"policy": "discard"})),
        ("delivery", json!("at_most_once")),
        ("on_silence", json!("stop")),
        ("timeout", json!("1m")),
        ("concurrency", json!({"key": "k", "max": 1})),
        ("rate", json!({"max": 1, "per": "1m"})),
        ("schedule", json!({"cron": "0 0 22 * * ?"})),
    ];
    cases.extend(others.into_iter().map(|(field, value)| {
        let mut job = pump(json!({}));
        job[field] = value;
        job
    }));
    cases
}

#[test]
fn complaints_about_params_are_in_chinese() {
    for (handler, params) in [
        ("shell", json!({})),
        ("shell", json!({"argv": ["date"], "script": "date"})),
        ("shell", json!({"argv": [""]})),
        ("shell", json!({"argv": ["date"], "args": "x"})),
        ("python", json!({})),
        ("GLUE_SHELL", json!("date")),
    ] {
        let error = agent_handlers::missing_param(handler, &params)
            .or_else(|| agent_handlers::unusable_param(handler, &params))
            .or_else(|| glue::missing_script(handler, &params));
        check_all(error.into_iter().map(|error| (error.pointer, error.message)).collect(), &params);
    }
}

#[test]
fn complaints_about_cron_are_in_chinese() {
    for cron in [
        "",
        "x",
        "99 * * * *",
        "0 99 * * * *",
        "0 0 99 * * *",
        "0 0 0 99 * *",
        "0 0 0 1 13 ?",
        "0 0 0 ? * 9",
        "0 0 0 1 * 1",
        "0 0 0 ? * ?",
        "0 0 0 L,1 * ?",
        "0 0 0 L-99 * ?",
        "0 0 0 99W * ?",
        "0 0 0 ? * 1L,2",
        "0 0 0 ? * 1#9",
        "0 0 0 ? * xL",
        "0 0/99 * * * *",
        "0 JAN-FEB/2 * * * *",
        "0 0 0 1 JAN-3 ?",
        "0 0 0 1 1 ? 2030-2026",
        "0 0 0 1 1 ? 99999",
        "* * *",
        "1 2 3 4 5 6 7 8 9",
        &"0".repeat(5000),
    ] {
        let error = rondel_core::cron::CronExpr::parse(cron).unwrap_err().to_string();
        let text = zh(&error);
        // The names of fields and their allowed values are translated as well, so no English word remains.
        let words =
            text.split_whitespace().filter(|word| word.len() > 5 && word.chars().all(|c| c.is_ascii_lowercase()));
        assert!(text.contains("不允许") && words.count() == 0, "{error} -> {text}");
    }
}

#[test]
fn complaints_about_calendars_are_in_chinese() {
    for rule in [
        json!({"days": ["soon"]}),
        json!({"days": [{"date": "2026-01-01", "name": "x".repeat(10_000)}]}),
        json!({"times": ["25:00-26:00"]}),
        json!({"wekdays": ["mon"]}),
        json!(7),
    ] {
        let case = json!({"name": "a", "rule": rule});
        let complaints = match shape::read::<CalendarSpec>(case.clone().into()) {
            Err(shape_errors) => shape_errors.errors.into_iter().map(|error| (error.pointer, error.message)).collect(),
            Ok(spec) => {
                let errors = Calendar::compile(&spec, |_| None).err().unwrap_or_default();
                errors.into_iter().map(|error| (error.pointer, error.message)).collect::<Vec<_>>()
            }
        };
        check_all(complaints, &case);
    }
}

#[test]
fn refusals_of_forms_are_in_chinese() {
    let refusals = [
        crate::etag::mismatch_problem(6).detail().to_owned(),
        crate::job_bulk::not_reached_problem().detail().to_owned(),
        crate::job_bulk::unanswered_problem().detail().to_owned(),
        Refusal::NotBegun.to_string(),
        Refusal::Replayed("ann".to_owned()).to_string(),
        Refusal::NoEmail.to_string(),
        Refusal::NotVerified("ann".to_owned()).to_string(),
        Refusal::NotAName("ann".to_owned()).to_string(),
        Refusal::NoAccount("ann".to_owned()).to_string(),
        Refusal::NotLinked("ann".to_owned()).to_string(),
        Refusal::Disabled("ann".to_owned()).to_string(),
    ];
    for english in refusals {
        assert!(!zh(&english).is_ascii(), "{english}");
    }
}

#[test]
fn untranslated_and_hostile_sentences_stay_unchanged() {
    for text in ["", "something else", "{1}", "expected", "a string", "null", "~ null"] {
        assert_eq!(zh(text), text);
        assert_eq!(localized(Lang::En, text), text);
    }
    assert_eq!(zh("\"{2}{1}\" is the name of \"<b>\" too"), "\"{2}{1}\" 与 \"<b>\" 重名");
}

#[test]
fn complaints_about_scripts_files_and_queries_are_in_chinese() {
    for (english, chinese) in [
        ("has 5000 characters; at most 2000 are allowed", "有 5000 个字符；最多 2000 个"),
        ("line 3: the event \"National Day\" has no DTSTART", "第 3 行：事件 \"National Day\" 没有 DTSTART"),
        ("line 2, column 9: the document breaks off", "第 2 行，第 9 列：文档不完整"),
        ("is not a cursor of this API", "不是此 API 的游标"),
        (
            "1000 tokens of this account are valid already; revoke those that are not needed",
            "此账号已有的有效令牌达到 1000 个；请吊销不需要的令牌",
        ),
    ] {
        assert_eq!(zh(english), chinese);
    }
}

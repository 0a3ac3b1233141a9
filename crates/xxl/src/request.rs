//! Converts a trigger of the engine to a request to an executor.

use rondel_core::glue;
use rondel_proto::v1::{Overlap, Trigger};
use rondel_store::xxl::XxlRun;
use serde_json::Value;

use crate::wire::RunRequest;

const BEAN: &str = "BEAN";
/// Maximum bits of a script's number, so that all executors represent it exactly.
const VERSION_BITS: u32 = 40;

/// How the executor handles a run that the engine has started while the executor still has an earlier run of the job.
pub(crate) const fn block_strategy(overlap: Overlap) -> &'static str {
    match overlap {
        Overlap::Discard => "DISCARD_LATER",
        Overlap::Cover => "COVER_EARLY",
        Overlap::Unspecified => "SERIAL_EXECUTION",
    }
}

/// The request for an attempt; `Err` with a sentence if its parameters cannot be used.
pub(crate) fn request(trigger: &Trigger, row: &XxlRun) -> Result<RunRequest, String> {
    let params: Value = serde_json::from_str(&trigger.params).unwrap_or(Value::Null);
    let follows_parents = trigger.trigger == rondel_core::Trigger::Parent.as_str() || has_parents(&params);
    let params = if follows_parents { own_params(params) } else { params };
    let script = glue::HANDLERS.into_iter().find(|kind| *kind == trigger.handler);
    let (glue_type, handler, params, source) = match script {
        Some(kind) => {
            let (source, params) = script_of(kind, &params)?;
            (kind, String::new(), params, source)
        }
        None => (BEAN, trigger.handler.clone(), text_of(&params), String::new()),
    };
    Ok(RunRequest {
        job_id: row.number,
        executor_handler: handler,
        executor_params: params,
        executor_block_strategy: block_strategy(trigger.overlap()),
        executor_timeout: trigger.timeout_ms.max(0).saturating_add(999) / 1_000,
        log_id: row.log_id,
        log_date_time: row.sent_at.as_millis(),
        glue_type,
        glue_updatetime: if script.is_some() { script_number(&source) } else { 0 },
        glue_source: source,
        broadcast_index: trigger.shard_index.max(0),
        broadcast_total: trigger.shard_total.max(1),
    })
}

/// Whether the parameters have the field `parents` as a server writes it: a run id and a status for each parent. A run that is
/// repeated by hand has this field although its trigger is not `parent`.
fn has_parents(params: &Value) -> bool {
    let is_parent_status = |parent: &Value| parent["run_id"].is_string() && parent["status"].is_string();
    let parents = params.get("parents").and_then(Value::as_object);
    parents.is_some_and(|parents| !parents.is_empty() && parents.values().all(is_parent_status))
}

/// The job's own parameters, without the field `parents` (the runs that this one follows): handlers written for XXL-JOB do not know that
/// field.
fn own_params(params: Value) -> Value {
    let Value::Object(mut fields) = params else { return params };
    fields.remove("parents");
    match fields.remove("params") {
        // The server put parameters that are not an object into the field `params`, next to `parents`: they are unwrapped
        // here.
        Some(own_value) if fields.is_empty() => own_value,
        Some(field) => {
            fields.insert("params".to_owned(), field);
            Value::Object(fields)
        }
        None => Value::Object(fields),
    }
}

/// The source and the parameter of a script.
fn script_of(kind: &str, params: &Value) -> Result<(String, String), String> {
    let source = params.get("source").and_then(Value::as_str).filter(|source| !source.trim().is_empty());
    let Some(source) = source else {
        return Err(format!("params: {}", glue::params_requirement(kind)));
    };
    Ok((source.to_owned(), params.get("param").map(text_of).unwrap_or_default()))
}

/// Converts parameters to text: a string as it is, nothing as an empty string, and anything else as JSON.
fn text_of(params: &Value) -> String {
    match params {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        value => value.to_string(),
    }
}

/// A number that differs between scripts: executors cache compiled scripts under it.
fn script_number(source: &str) -> i64 {
    // FNV-1a, so that the number is the same on every server.
    let hash = source
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    i64::try_from(hash >> (u64::BITS - VERSION_BITS)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use rondel_core::{AppId, ExecutorId, JobId, NodeId, RunId, Timestamp};
    use rondel_store::xxl::XxlRunState;

    use super::*;

    fn row() -> XxlRun {
        XxlRun {
            log_id: 1_000_000_007,
            run: RunId::new(1),
            attempt: 1,
            job: JobId::new(2),
            number: 1_000_000_001,
            executor: ExecutorId::new(3),
            app: AppId::new(4),
            node: NodeId::new(5),
            sent_at: Timestamp::from_millis(1_795_277_978_308),
            state: XxlRunState::Open,
            code: None,
            message: None,
            reported_at: None,
            log_line: 1,
        }
    }

    fn made(handler: &str, params: &str) -> Result<RunRequest, String> {
        let trigger = Trigger {
            handler: handler.to_owned(),
            params: params.to_owned(),
            timeout_ms: 1_500,
            shard_total: 1,
            overlap: Overlap::Cover.into(),
            ..Trigger::default()
        };
        request(&trigger, &row())
    }

    #[test]
    fn parameters_are_texts() {
        for (params, expected) in [
            (r#""hello \"you\"""#, "hello \"you\""),
            ("null", ""),
            ("{}", ""),
            ("", ""),
            (r#"{"a":1}"#, r#"{"a":1}"#),
            ("[1,2]", "[1,2]"),
            ("7", "7"),
        ] {
            assert_eq!(made("h", params).unwrap().executor_params, expected, "{params}");
        }
        let request = made("h", "null").unwrap();
        assert_eq!((request.glue_type, request.executor_handler.as_str(), request.executor_timeout), ("BEAN", "h", 2));
        assert_eq!((request.broadcast_index, request.broadcast_total), (0, 1));
        assert_eq!((request.job_id, request.executor_block_strategy), (1_000_000_001, "COVER_EARLY"));
    }

    #[test]
    fn a_follower_gets_only_its_own_parameters() {
        for (params, expected) in [
            (r#"{"params":"a=1","parents":{"close":{"status":"succeeded"}}}"#, "a=1"),
            (r#"{"params":[1],"parents":{}}"#, "[1]"),
            (r#"{"parents":{"close":{}}}"#, ""),
            (r#"{"a":1,"params":2,"parents":{"close":{}}}"#, r#"{"a":1,"params":2}"#),
        ] {
            let trigger = Trigger {
                handler: "h".to_owned(),
                params: params.to_owned(),
                trigger: "parent".to_owned(),
                ..Trigger::default()
            };
            let request = request(&trigger, &row()).expect("a request");
            assert_eq!(request.executor_params, expected, "{params}");
        }
        for own in [r#"{"parents":1}"#, r#"{"parents":{}}"#, r#"{"parents":{"close":{"status":"open"}}}"#] {
            assert_eq!(made("h", own).expect("a request").executor_params, own, "of a run that follows none");
        }
    }

    #[test]
    fn a_follower_that_is_repeated_by_hand_gets_only_its_own_parameters() {
        let parents = r#""parents":{"close":{"run_id":"7","status":"succeeded","result":3}}"#;
        for (own, expected) in [(r#""params":"a=1","#, "a=1"), ("", ""), (r#""a":1,"#, r#"{"a":1}"#)] {
            let request = made("h", &format!("{{{own}{parents}}}")).expect("a request");
            assert_eq!(request.executor_params, expected, "{own}");
        }
    }

    #[test]
    fn a_script_goes_with_its_kind_and_version() {
        let one = made("GLUE_SHELL", r#"{"source": "echo 1\n", "param": "p"}"#).unwrap();
        assert_eq!((one.glue_type, one.executor_handler.as_str()), ("GLUE_SHELL", ""));
        assert_eq!((one.glue_source.as_str(), one.executor_params.as_str()), ("echo 1\n", "p"));
        let two = made("GLUE_SHELL", r#"{"source": "echo 2\n"}"#).unwrap();
        assert_ne!(one.glue_updatetime, two.glue_updatetime);
        assert!((0..1 << VERSION_BITS).contains(&one.glue_updatetime));
        for params in ["null", r#""echo""#, r#"{"source": " "}"#, r#"{"source": 7}"#] {
            assert!(made("GLUE_PYTHON", params).unwrap_err().starts_with("params: GLUE_PYTHON needs"), "{params}");
        }
    }
}

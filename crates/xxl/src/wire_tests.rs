//! Bodies as real executors send and expect them.

use proptest::prelude::*;

use super::*;

fn end(log_id: i64, code: i32, message: Option<&str>) -> Callback {
    Callback { log_id, code, message: message.map(str::to_owned) }
}

#[test]
fn callbacks_of_every_dialect_are_read() {
    for (who, body, expected) in [
        (
            "core 3.4.2",
            r#"[{"logId":7,"logDateTim":1795278264281,"handleCode":200},{"logId":8,"logDateTim":1795278264281,"handleCode":500,"handleMsg":"asked to fail"}]"#,
            vec![end(7, 200, None), end(8, 500, Some("asked to fail"))],
        ),
        (
            "core 2.2.0",
            r#"[{"logId":7,"logDateTim":1795278264281,"executeResult":{"code":502,"msg":"job execute timeout "}}]"#,
            vec![end(7, 502, Some("job execute timeout "))],
        ),
        (
            "Go",
            r#"[{"logId":110,"logDateTim":1795278264281,"executeResult":{"code":500,"msg":"Task not registered"},"handleCode":500,"handleMsg":"Task not registered"}]"#,
            vec![end(110, 500, Some("Task not registered"))],
        ),
        (
            "node",
            r#"[{"logId":7,"logDateTim":"2026-11-23 02:50:00","handleCode":200,"handleMsg":"\"result-text\""}]"#,
            vec![end(7, 200, Some("\"result-text\""))],
        ),
        (
            "pyxxl",
            r#"[{"logId": 7, "logDateTim": 1795278264281, "handleCode": 200, "handleMsg": "done", "executeResult": {"code": 200, "msg": "done"}}]"#,
            vec![end(7, 200, Some("done"))],
        ),
        ("Rust", r#"[{"logId":7,"logDateTim":0,"handleCode":200,"handleMsg":null}]"#, vec![end(7, 200, None)]),
        (
            "3.5",
            r#"{"callbackList":[{"logId":7,"logDateTime":1795278264281,"handleCode":200,"handleMsg":null}]}"#,
            vec![end(7, 200, None)],
        ),
        ("numbers as texts", r#"[{"logId":"7","handleCode":"200"}]"#, vec![end(7, 200, None)]),
        ("no code", r#"[{"logId":7}]"#, vec![end(7, 500, None)]),
        ("a code of the server's own", r#"[{"logId":7,"handleCode":-1}]"#, vec![end(7, 500, None)]),
        (
            "handleCode counts",
            r#"[{"logId":7,"handleCode":500,"executeResult":{"code":200}}]"#,
            vec![end(7, 500, None)],
        ),
        ("none", "[]", vec![]),
    ] {
        assert_eq!(callbacks(body.as_bytes()), Ok(expected), "{who}");
    }
    for body in ["", "{}", "7", "[7]", "[{}]", r#"[{"logId":"x","handleCode":200}]"#, r#"[{"logId":1.5}]"#, "<html>"] {
        assert!(callbacks(body.as_bytes()).is_err(), "{body}");
    }
}

#[test]
fn registrations_are_read() {
    let body =
        r#"{"registryGroup":"EXECUTOR","registryKey":"demo","registryValue":"http://127.0.0.1:28102/","more":1}"#;
    let expected = Registration { app: "demo".to_owned(), address: "http://127.0.0.1:28102/".to_owned() };
    assert_eq!(registration(body.as_bytes()), Ok(expected));
    for (body, words) in [
        (r#"{"registryGroup":"EXECUTOR","registryKey":"demo"}"#, "Illegal Argument. registryValue is missing"),
        (r#"{"registryKey":"demo","registryValue":"http://h"}"#, "Illegal Argument. registryGroup is missing"),
        (r#"{"registryGroup":"EXECUTOR","registryKey":7,"registryValue":"http://h"}"#, "registryKey: 7 is not a text"),
        ("[]", "the body is not an object"),
        ("{", "the body is not JSON"),
    ] {
        let sentence = registration(body.as_bytes()).unwrap_err();
        assert!(sentence.starts_with(words), "{body}: {sentence}");
    }
}

#[test]
fn a_request_has_the_twelve_fields_in_their_order() {
    let request = RunRequest {
        job_id: 5,
        executor_handler: "demoJobHandler".to_owned(),
        executor_params: "hello".to_owned(),
        executor_block_strategy: "SERIAL_EXECUTION",
        executor_timeout: 0,
        log_id: 1,
        log_date_time: 1_795_277_978_308,
        glue_type: "BEAN",
        glue_source: String::new(),
        glue_updatetime: 1_795_277_978_000,
        broadcast_index: 0,
        broadcast_total: 1,
    };
    let expected = r#"{"jobId":5,"executorHandler":"demoJobHandler","executorParams":"hello","executorBlockStrategy":"SERIAL_EXECUTION","executorTimeout":0,"logId":1,"logDateTime":1795277978308,"glueType":"BEAN","glueSource":"","glueUpdatetime":1795277978000,"broadcastIndex":0,"broadcastTotal":1}"#;
    assert_eq!(String::from_utf8(request.body()).unwrap(), expected);
    assert_eq!(job_body(9), br#"{"jobId":9}"#);
    let log = log_request(1, 1_795_277_978_000, 1);
    let log: Value = serde_json::from_slice(&log).unwrap();
    assert_eq!((&log["logDateTim"], &log["fromLineNum"]), (&json!(1_795_277_978_000_i64), &json!(1)));
}

#[test]
fn answers_of_every_executor_are_read() {
    for (who, body, code, words) in [
        ("core 3.4.2", r#"{"code":200,"msg":"Success"}"#, 200, "Success"),
        ("core 2.3.1", r#"{"code":200}"#, 200, "code 200"),
        (
            "core refuses",
            r#"{"code":500,"msg":"job handler [nosuch] not found."}"#,
            500,
            "job handler [nosuch] not found.",
        ),
        ("Go", r#"{"code":200,"msg":""}"#, 200, "code 200"),
        (
            "Go refuses",
            r#"[{"logId":110,"logDateTim":1795278264281,"executeResult":{"code":500,"msg":"Task not registered"},"handleCode":500,"handleMsg":"Task not registered"}]"#,
            500,
            "Task not registered",
        ),
        ("node", r#"{"code":200,"msg":null}"#, 200, "code 200"),
        ("pyxxl", r#"{"code": 200, "msg": "Running"}"#, 200, "Running"),
        ("Rust", r#"{"content":null,"code":200,"msg":null}"#, 200, "code 200"),
        ("a text as the code", r#"{"code":"200"}"#, 200, "code 200"),
        ("a code of the server's own", r#"{"code":-1,"msg":"x"}"#, 500, "x"),
        ("a code that is too long", r#"{"code":4294967496}"#, 500, "code 500"),
        ("killed already", r#"{"code":200,"data":"job thread already killed."}"#, 200, "job thread already killed."),
    ] {
        let answer = executor_answer(body.as_bytes()).unwrap_or_else(|why| unreachable!("{who}: {why}"));
        assert_eq!((answer.code, answer.message_or_code().as_str()), (code, words), "{who}");
    }
    for body in ["", "<html></html>", "[]", "[7]", "7", "{}", r#"{"msg":"x"}"#] {
        assert!(executor_answer(body.as_bytes()).is_err(), "{body}");
    }
}

#[test]
fn log_pages_of_every_executor_are_read() {
    let page =
        |lines: &[&str], next_line| LogPage { lines: lines.iter().map(|&line| line.to_owned()).collect(), next_line };
    for (who, body, from, expected) in [
        (
            "core 3.4.2",
            r#"{"code":200,"data":{"fromLineNum":1,"toLineNum":2,"logContent":"one\ntwo\n","isEnd":false}}"#,
            1,
            page(&["one", "two"], 3),
        ),
        (
            "core 2.3.1",
            r#"{"code":200,"content":{"fromLineNum":3,"toLineNum":3,"logContent":"three\r\n","isEnd":false}}"#,
            3,
            page(&["three"], 4),
        ),
        (
            "both",
            r#"{"code": 200, "msg": null, "content": {"fromLineNum": 1, "toLineNum": 1, "logContent": "a", "isEnd": true}, "data": {"fromLineNum": 1, "toLineNum": 1, "logContent": "a", "isEnd": true}}"#,
            1,
            page(&["a"], 2),
        ),
        (
            "past the end",
            r#"{"code":200,"data":{"fromLineNum":99,"toLineNum":0,"logContent":"","isEnd":false}}"#,
            99,
            page(&[], 99),
        ),
        (
            "no file",
            r#"{"code":200,"data":{"fromLineNum":1,"toLineNum":0,"logContent":"readLog fail, logFile not exists","isEnd":true}}"#,
            1,
            page(&[], 1),
        ),
        (
            "pyxxl without a file",
            r#"{"code": 200, "data": {"fromLineNum": 7, "toLineNum": 7, "logContent": "No such logid logs.", "isEnd": false}}"#,
            7,
            page(&[], 7),
        ),
        (
            "node2",
            r#"{"code":200,"content":{"fromLineNum":1,"toLineNum":1,"logContent":"\nx"}}"#,
            1,
            page(&["", "x"], 2),
        ),
        ("Rust", r#"{"content":null,"code":200,"msg":null}"#, 1, page(&[], 1)),
        ("refused", r#"{"code":500,"msg":"Log not found, logId: 999999"}"#, 1, page(&[], 1)),
    ] {
        assert_eq!(log_page(&executor_answer(body.as_bytes()).unwrap(), from), expected, "{who}");
    }
}

#[test]
fn a_log_page_has_a_bounded_number_of_lines() {
    let count = PAGE_LINE_COUNT_MAX + 10;
    let to_line = i64::try_from(count).unwrap() + 6;
    let page = |to_line: i64| {
        let data = json!({"fromLineNum": 7, "toLineNum": to_line, "logContent": "\n".repeat(count)});
        let body = json!({"code": 200, "data": data}).to_string();
        let page = log_page(&executor_answer(body.as_bytes()).unwrap(), 7);
        (page.lines.len(), page.next_line)
    };
    let next_line = i64::try_from(PAGE_LINE_COUNT_MAX).unwrap() + 7;
    assert_eq!(page(to_line), (PAGE_LINE_COUNT_MAX, next_line), "the next page begins with the first line left out");
    assert_eq!(page(8), (PAGE_LINE_COUNT_MAX, 9), "the executor counts fewer lines");
}

#[test]
fn answers_to_executors_suit_all_of_them() {
    let success: Value = serde_json::from_slice(&success()).unwrap();
    assert_eq!(success, json!({"code": 200, "msg": "Success", "content": null, "data": null, "success": true}));
    let refused: Value = serde_json::from_slice(&refused("The access token is wrong.")).unwrap();
    assert_eq!((&refused["code"], &refused["msg"]), (&json!(500), &json!("The access token is wrong.")));
}

proptest! {
    /// No body makes a parser panic.
    #[test]
    fn any_bytes_are_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..200), from in any::<i64>()) {
        let _ = registration(&body).is_ok();
        let _ = callbacks(&body).is_ok();
        if let Ok(answer) = executor_answer(&body) {
            log_page(&answer, from);
        }
    }
}

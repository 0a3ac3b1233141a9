use std::sync::Arc;

use rondel_core::RunStatus;
use rondel_outgoing::{Name, Resolve, Resolving};
use rondel_proto::v1::Trigger;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::extract::Params;
use crate::lifecycle::spawn_outside;
use crate::run::RunContext;
use crate::secrets::Secrets;
use crate::setup::{Setup, States, Timing};
use crate::test_run::{TestOutcome, TestRun};

/// A server that sends `answer` to every request, with the request in place of `{request}`. It then closes the
/// connection, unless the answer has a `content-length`.
async fn serve(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_outside(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = vec![0; 64 * 1024];
            let length = stream.read(&mut buffer).await.unwrap_or(0);
            let request = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let written = stream.write_all(answer.replace("{request}", &request).as_bytes()).await;
            if written.is_ok() && answer.contains("content-length") {
                open.push(stream);
            }
        }
    });
    format!("http://{address}")
}

async fn http(params: Value) -> TestOutcome {
    http_to(AllowedAddresses::loopback(), params).await
}

async fn http_to(allowed: AllowedAddresses, params: Value) -> TestOutcome {
    let client = client(allowed).unwrap();
    let handler =
        move |Params(params): Params<HttpParams>, cancel: Cancel, log: Log| run(client.clone(), params, cancel, log);
    TestRun::of(handler).params(params).timeout(Duration::from_secs(20)).run().await
}

#[tokio::test]
async fn a_good_status_is_a_success_and_the_body_is_in_the_log() {
    let url = serve("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello").await;
    let outcome = http(json!({"url": url})).await;
    assert_eq!(outcome.result(), Some(&json!({"status": 200, "body_bytes": 5})), "{outcome:?}");
    assert!(outcome.log().contains("200 OK, 5 bytes") && outcome.log().contains("info hello"), "{}", outcome.log());
}

#[tokio::test]
async fn a_secret_at_the_end_of_the_logged_part_is_hidden_completely() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), "opensesame").unwrap();
    let url = serve("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{request}").await;
    let client = client(AllowedAddresses::loopback()).unwrap();
    let handler =
        move |Params(params): Params<HttpParams>, cancel: Cancel, log: Log| run(client.clone(), params, cancel, log);
    for before in (LOGGED_BODY_BYTES_MAX - 200..LOGGED_BODY_BYTES_MAX).step_by(5) {
        let params = json!({"url": url, "body": format!("{}{{{{secret.key}}}}", "x".repeat(before))});
        let secrets = Secrets::from_env().dir(folder.path());
        let outcome = TestRun::of(handler.clone()).params(params).secrets(secrets).run().await;
        assert!(outcome.is_succeeded() && !outcome.log().contains("open"), "{before}: {}", outcome.log());
    }
}

#[tokio::test]
async fn other_statuses_fail_unless_they_are_expected() {
    let url = serve("HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\n").await;
    let outcome = http(json!({"url": url})).await;
    assert_eq!(outcome.message(), "status 404, expected 2xx");
    assert!(outcome.is_retryable());
    for expected in [json!(404), json!("4xx"), json!([200, "404"])] {
        assert!(http(json!({"url": url, "expect_status": expected})).await.is_succeeded());
    }
}

#[tokio::test]
async fn method_headers_and_body_are_sent() {
    let url = serve("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{request}").await;
    let outcome = http(json!({"url": url, "method": "put", "headers": {"X-Key": "7"}, "body": {"a": 1}})).await;
    for part in ["PUT / HTTP/1.1", "x-key: 7", "content-type: application/json", "{\"a\":1}"] {
        assert!(outcome.log().contains(part), "{part} in {}", outcome.log());
    }
}

#[tokio::test]
async fn answers_are_bounded_in_size_and_time() {
    let url = serve("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n0123456789").await;
    let outcome = http(json!({"url": url, "max_body_bytes": 9})).await;
    assert_eq!(outcome.message(), "the answer is larger than 9 bytes (max_body_bytes)");
    let url = serve("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n").await;
    let outcome = http(json!({"url": url, "timeout": "200ms"})).await;
    assert_eq!((outcome.status(), outcome.message()), (RunStatus::Failed, "no answer within 200ms"));
}

/// A name server that never answers.
struct SilentResolver;

impl Resolve for SilentResolver {
    fn resolve(&self, _: Name) -> Resolving {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_not_made_in_time_is_not_reported_as_a_missing_answer() {
    let options = Options { allowed_addresses: AllowedAddresses::default(), redirect_count_max: 0, user_agent: "test" };
    let client = Outgoing::with_resolver(options, Arc::new(SilentResolver)).unwrap();
    let setup = Arc::new(Setup::new(States::default(), Timing::default()));
    let log = Log::of(&RunContext::new(&setup, Trigger::default(), 0));
    for (timeout, message) in [("1m", "no connection within 10s"), ("5s", "no answer within 5s")] {
        let params = serde_json::from_value(json!({"url": "http://silent.example/", "timeout": timeout})).unwrap();
        assert_eq!(request(&client, &params, &log).await.unwrap_err().message(), message);
    }
}

/// This server never answers a second request on the same connection, as if it closed the connection just then.
#[tokio::test]
async fn a_connection_that_was_idle_gets_no_further_request() {
    let url = serve("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let client = client(AllowedAddresses::loopback()).unwrap();
    let handler =
        move |Params(params): Params<HttpParams>, cancel: Cancel, log: Log| run(client.clone(), params, cancel, log);
    for idle_ms in [0, 1_200] {
        tokio::time::sleep(Duration::from_millis(idle_ms)).await;
        let outcome = TestRun::of(handler.clone()).params(json!({"url": url, "timeout": "10s"})).run().await;
        assert!(outcome.is_succeeded(), "{outcome:?}");
    }
}

#[tokio::test]
async fn redirects_end() {
    let url = serve("HTTP/1.1 302 Found\r\nlocation: /again\r\nconnection: close\r\n\r\n").await;
    let outcome = http(json!({"url": url})).await;
    assert!(outcome.message().contains("redirect"), "{outcome:?}");
}

#[tokio::test]
async fn a_redirect_is_in_the_log() {
    let last = serve("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{request}").await;
    let redirect = format!("HTTP/1.1 302 Found\r\nlocation: {last}/login?key=1\r\nconnection: close\r\n\r\n");
    let url = serve(redirect.leak()).await;
    let post = http(json!({"url": url, "method": "POST", "body": "x"})).await;
    let warning = format!("warn redirected to {last}: unless by 307 or 308, the POST became a GET without its body\n");
    assert!(post.is_succeeded() && post.log().contains(&warning), "{}", post.log());
    assert!(post.log().contains("GET /login"), "{}", post.log());
    let get = http(json!({"url": url})).await;
    assert!(get.log().contains(&format!("info redirected to {last}\n")), "{}", get.log());
    let url = serve(format!("HTTP/1.1 303 See Other\r\nlocation: {last}\r\nconnection: close\r\n\r\n").leak()).await;
    let put = http(json!({"url": url, "method": "PUT", "body": "x"})).await;
    let warning = format!("warn redirected to {last}: if by 303, the PUT became a GET without its body\n");
    assert!(put.log().contains(&warning) && put.log().contains("GET /"), "{}", put.log());
    let direct = http(json!({"url": format!("{last}/#top"), "method": "POST"})).await;
    assert!(direct.is_succeeded() && !direct.log().contains("redirected"), "{}", direct.log());
}

#[tokio::test]
async fn params_that_make_no_sense_are_refused_by_name() {
    for (params, expected) in [
        (json!({"url": "nonsense"}), "params: url: "),
        (json!({"url": "ftp://a/"}), "params: url: neither http nor https"),
        (json!({"url": "http://a/", "timeout": "soon"}), "params: timeout: "),
        (json!({"url": "http://a/", "method": "G T"}), "params: method: "),
        (json!({"url": "http://a/", "headers": {"a b": "c"}}), "params: headers: \"a b\""),
        (json!({"url": "http://a/", "expect_status": "ok"}), "params: expect_status: \"ok\" is not"),
        (json!({"url": "http://a/", "expect_status": []}), "params: expect_status: [] is not"),
        (json!({"url": "http://a/", "verb": "GET"}), "params: unknown field `verb`"),
        (json!({}), "params: missing field `url`"),
    ] {
        let outcome = http(params).await;
        assert!(outcome.message().starts_with(expected), "{outcome:?}");
        assert!(!outcome.is_retryable());
    }
}

#[tokio::test]
async fn https_fails_without_a_panic() {
    let url = serve("not tls").await.replace("http:", "https:");
    let outcome = http(json!({"url": url, "timeout": "5s"})).await;
    assert_eq!(outcome.status(), RunStatus::Failed);
    assert!(!outcome.message().contains("panicked"), "{outcome:?}");
}

#[tokio::test]
async fn a_refused_connection_is_a_failure_with_its_reason() {
    let outcome = http(json!({"url": "http://127.0.0.1:1/"})).await;
    assert!(outcome.message().contains("Connection refused"), "{outcome:?}");
    assert!(outcome.is_retryable());
}

/// XXL-JOB CVE-2025-7787, `PowerJob` CVE-2025-11580: a job makes the agent call an address that only the agent can
/// reach.
#[tokio::test]
async fn inner_addresses_are_refused_by_name_and_for_good() {
    let url = serve("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nsecret").await;
    let port = url.rsplit_once(':').unwrap().1.to_owned();
    for inner in [url, format!("http://localhost:{port}/"), format!("http://2130706433:{port}/")] {
        let outcome = http_to(AllowedAddresses::default(), json!({"url": inner})).await;
        let message = outcome.message();
        assert!(message.starts_with("params: url: ") && message.contains("outgoing_allow"), "{inner}: {message}");
        assert!(!outcome.is_retryable() && !outcome.log().contains("secret"), "{outcome:?}");
    }
    let redirect = serve("HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\nconnection: close\r\n\r\n").await;
    let outcome = http(json!({"url": redirect})).await;
    assert!(outcome.message().contains("169.254.169.254 is a cloud's metadata address"), "{outcome:?}");
}

#[test]
fn an_answer_of_any_size_cannot_be_asked_for() {
    let params = |max: usize| serde_json::from_value(json!({"url": "http://a/", "max_body_bytes": max})).unwrap();
    assert_eq!(body_bytes_max(&params(MAX_BODY_BYTES_MAX)).unwrap(), MAX_BODY_BYTES_MAX);
    let refusal = body_bytes_max(&params(MAX_BODY_BYTES_MAX + 1)).unwrap_err();
    assert_eq!(refusal.message(), "params: max_body_bytes: 67108865 bytes; at most 67108864 can be requested");
}

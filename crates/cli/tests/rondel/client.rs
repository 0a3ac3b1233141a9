//! Client commands without a server, or against a stand-in that sends fixed answers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};

use rustix::process::Signal;

use crate::process::{Program, end, rondel, run, run_with_input};

#[test]
fn a_server_that_is_not_there() {
    // Port 1 has no listener.
    for command in [&["job", "list"][..], &["run", "get", "1"], &["run", "logs", "1", "-f"], &["node", "list"]] {
        let args = [command, &["--server", "http://127.0.0.1:1"]].concat();
        run(&args).refused(8, &["cannot reach the server http://127.0.0.1:1", "refused"]);
    }
    let mut by_variable = rondel();
    by_variable.args(["executor", "list"]).env("RONDEL_SERVER", "http://127.0.0.1:1").current_dir("/");
    end(&mut by_variable).refused(8, &["cannot reach the server http://127.0.0.1:1"]);
}

#[test]
fn a_server_that_speaks_no_tls() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let answers = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        stream.read_to_end(&mut Vec::new()).ok();
    });
    run(&["job", "list", "--server", &url]).refused(8, &["does not speak TLS there", "use http://"]);
    answers.join().unwrap();
}

#[test]
fn a_server_that_speaks_tls_alone() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answers = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
        // The alert that a TLS server sends if the client's first bytes are no handshake.
        stream.write_all(&[21, 3, 3, 0, 2, 2, 50]).unwrap();
        stream.read_to_end(&mut Vec::new()).ok();
    });
    run(&["job", "list", "--server", &url]).refused(8, &["does not answer in HTTP", "use https://"]);
    answers.join().unwrap();
}

#[test]
fn a_file_of_authorities_without_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, "no certificate\n").unwrap();
    let args = ["job", "list", "--server", "https://127.0.0.1:1", "--ca-file", file.to_str().unwrap()];
    run(&args).refused(2, &["--ca-file", "ca.pem cannot be used", "contains no certificate in PEM"]);
}

#[test]
fn the_newest_run_that_has_begun_may_be_on_a_later_page() {
    let (url, answers) = answering(&[
        ("GET /api/v1/runs?job=a", "200 OK\n{\"items\":[{\"id\":\"9\",\"started_at\":null}],\"next_cursor\":\"next\"}"),
        (
            "cursor=next",
            "200 OK\n{\"items\":[{\"id\":\"7\",\"started_at\":\"2026-03-08T07:00:00Z\"}],\"next_cursor\":null}",
        ),
        ("GET /api/v1/runs/7/logs?", "200 OK\n{\"items\":[{\"line\":\"x\"}],\"next_cursor\":null}"),
    ]);
    let output = run(&["run", "logs", "--job", "a", "-o", "jsonl", "--server", &url]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), "{\"line\":\"x\"}\n"), "{}", output.stderr);
    answers.join().unwrap();
}

/// Each page has a further line and a cursor, and the pages of a search have cursors although no line matches. A further request would
/// get no answer.
#[test]
fn the_log_of_a_run_that_logs_constantly_is_printed_to_its_present_end() {
    let (url, answers) = answering(&[
        (
            "GET /api/v1/runs/7/logs?limit=5000&from_line=1 ",
            "200 OK\n{\"items\":[{\"line\":\"x\"}],\"next_cursor\":\"c1\",\"line_count\":2,\"end_line\":1}",
        ),
        (
            "GET /api/v1/runs/7/logs?limit=5000&after=c1 ",
            "200 OK\n{\"items\":[{\"line\":\"y\"}],\"next_cursor\":\"c2\",\"end_line\":2}",
        ),
        (
            "GET /api/v1/runs/7/logs?contains=z&limit=5000&from_line=1 ",
            "200 OK\n{\"items\":[],\"next_cursor\":\"c1\",\"line_count\":300,\"end_line\":256}",
        ),
        (
            "GET /api/v1/runs/7/logs?contains=z&limit=5000&after=c1 ",
            "200 OK\n{\"items\":[],\"next_cursor\":\"c2\",\"end_line\":301}",
        ),
    ]);
    let log = ["run", "logs", "7", "-o", "jsonl", "--server", &url];
    let output = run(&log);
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (Some(0), "{\"line\":\"x\"}\n{\"line\":\"y\"}\n"),
        "{}",
        output.stderr
    );
    let output = run(&[&log[..], &["--contains", "z"]].concat());
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), ""), "{}", output.stderr);
    answers.join().unwrap();
}

#[test]
fn an_export_of_an_unknown_job_names_similar_jobs() {
    let (url, answers) = answering(&[
        ("GET /api/v1/jobs/export?name=reprot&", "404 Not Found\n{\"title\":\"no job\",\"code\":\"job_not_found\"}"),
        ("GET /api/v1/jobs?q=re&", "200 OK\n{\"items\":[{\"name\":\"report\"},{\"name\":\"exporter\"}]}"),
    ]);
    run(&["job", "export", "reprot", "--server", &url]).refused(5, &["no job; did you mean report?"]);
    answers.join().unwrap();
}

#[test]
fn headers_of_the_caller_take_the_place_of_the_own_ones() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answers = std::thread::spawn(move || {
        let (mut stream, head, _) = accept_request(&listener);
        stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok").unwrap();
        head.to_ascii_lowercase()
    });
    let headers = ["-H", "Accept: text/plain", "-H", "Content-Type: text/csv"];
    let call = ["api", "POST", "/calendars/a/import", "-d", "", "--server", &url];
    let output = run(&[&call[..], &headers].concat());
    assert_eq!((output.code, output.stdout.trim_end()), (Some(0), "ok"), "{}", output.stderr);
    let head = answers.join().unwrap();
    let of = |name: &str| head.lines().filter_map(|line| line.strip_prefix(name)).collect::<Vec<_>>();
    assert_eq!(of("accept: "), ["text/plain"], "{head}");
    assert_eq!(of("content-type: "), ["text/csv"], "{head}");
}

#[test]
fn answers_of_a_proxy_are_not_a_success() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let page = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: 7\r\n\r\nsign in";
    let redirect =
        "HTTP/1.1 302 Found\r\nlocation: /login?state=secret\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let answers = std::thread::spawn(move || {
        for answer in [redirect, redirect, page] {
            let (mut stream, head, _) = accept_request(&listener);
            assert!(!head.contains("/login"), "{head}");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let server = ["--server", &url];
    let redirected = [format!("redirects to {url}/login;"), "--server".to_owned()];
    let redirected = redirected.each_ref().map(String::as_str);
    run_with_input(&[&["user", "password", "ann"][..], &server].concat(), "a long password\n").refused(8, &redirected);
    run(&[&["run", "logs", "1", "-f"][..], &server].concat()).refused(8, &redirected);
    run(&[&["user", "delete", "ann"][..], &server].concat()).refused(8, &["a web page", &url]);
    answers.join().unwrap();
}

/// Accepts a connection and reads its request. Returns the stream for the answer, the head and the body.
fn accept_request(listener: &std::net::TcpListener) -> (std::net::TcpStream, String, String) {
    let mut stream = BufReader::new(listener.accept().unwrap().0);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(stream.read_line(&mut head).unwrap(), 0, "{head}");
    }
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
    let mut body = vec![0_u8; length.unwrap_or(0)];
    stream.read_exact(&mut body).unwrap();
    (stream.into_inner(), head, String::from_utf8(body).unwrap())
}

/// A server that gives these answers, one for each connection. Each pair is a text that the head of the request must
/// contain, and the answer: its status and, after a line break, its body. By the server's clock it is always
/// 2026-03-08T07:00:00Z. Returns the bodies of the requests.
fn answering(answers: &'static [(&'static str, &'static str)]) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answering = std::thread::spawn(move || {
        let mut bodies = Vec::new();
        for (request, answer) in answers {
            let (mut stream, head, body) = accept_request(&listener);
            assert!(head.contains(request), "{request} is not in {head}");
            bodies.push(body);
            let (status, body) = answer.split_once('\n').unwrap();
            let headers = "date: Sun, 08 Mar 2026 07:00:00 GMT\r\nconnection: close";
            let answer = format!("HTTP/1.1 {status}\r\n{headers}\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).unwrap();
        }
        bodies
    });
    (url, answering)
}

#[test]
fn a_silence_ends_by_the_clock_of_the_server() {
    let (url, answers) = answering(&[("GET /livez ", "200 OK\n"), ("POST /api/v1/silences ", "200 OK\n{}")]);
    let output = run(&["alert", "silence", "add", "--job", "a", "--for", "2h", "--server", &url]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let bodies = answers.join().unwrap();
    assert!(bodies[1].contains("\"ends_at\":\"2026-03-08T09:00:00Z\""), "{bodies:?}");
}

#[test]
fn the_status_is_that_of_the_time_of_the_server() {
    const NONE: &str = "200 OK\n{\"items\":[],\"next_cursor\":null}";
    let (url, answers) = answering(&[
        ("GET /api/v1/runs?status=skipped&", NONE),
        ("GET /livez ", "200 OK\n"),
        // The newest runs without success are all skipped, and a failed one comes after them.
        (
            "GET /api/v1/runs?status=failed%2Ctimed_out%2Cunknown&limit=200 ",
            "200 OK\n{\"items\":[],\"next_cursor\":\"c1\",\"searched_to\":\"2026-03-08T04:00:00Z\"}",
        ),
        (
            "&limit=200&cursor=c1 ",
            "200 OK\n{\"items\":[{\"id\":\"7\",\"job\":\"close\",\"status\":\"failed\"}],\"next_cursor\":null}",
        ),
        ("GET /api/v1/nodes ", NONE),
        ("GET /api/v1/executors?", NONE),
        ("GET /api/v1/runs?status=running&", NONE),
        ("GET /api/v1/runs?status=waiting&", NONE),
        (
            "GET /api/v1/runs?status=pending&q=until%3A2026-03-08T07%3A00%3A00Z&",
            "200 OK\n{\"items\":[{\"id\":\"8\",\"due_at\":\"2026-03-08T06:59:50Z\"},\
             {\"id\":\"9\",\"due_at\":\"2026-03-08T06:59:58Z\"}]}",
        ),
    ]);
    let output = run(&["status", "--server", &url]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    answers.join().unwrap();
    assert!(output.stdout.contains("0 running, 0 waiting, 1 overdue"), "{}", output.stdout);
    assert!(output.stdout.contains("Failed lately\n") && output.stdout.contains("close"), "{}", output.stdout);
}

#[test]
fn a_search_that_left_out_older_runs_is_reported() {
    let (url, answers) = answering(&[(
        "GET /api/v1/runs?sort=longest&limit=1 ",
        "200 OK\n{\"items\":[{\"id\":\"7\"}],\"next_cursor\":\"c1\",\"searched_to\":\"2026-03-08T04:00:00Z\"}",
    )]);
    let output = run(&["run", "list", "--sort", "longest", "--limit", "1", "-o", "name", "--server", &url]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), "7\n"), "{}", output.stderr);
    assert!(output.stderr.contains("runs from before 2026-03-08T04:00:00Z were not searched"), "{}", output.stderr);
    answers.join().unwrap();
    // The search continues on the next page, and its end is that of the whole list.
    let (url, answers) = answering(&[
        (
            "GET /api/v1/runs?q=%22refused%22&limit=50 ",
            "200 OK\n{\"items\":[],\"next_cursor\":\"c1\",\"searched_to\":\"2026-03-08T04:00:00Z\"}",
        ),
        ("&limit=50&cursor=c1 ", "200 OK\n{\"items\":[],\"next_cursor\":null}"),
    ]);
    let output = run(&["run", "list", "--text", "refused", "-o", "json", "--server", &url]);
    assert_eq!(output.stdout, "{\"items\":[],\"next_cursor\":null}\n", "{}", output.stderr);
    assert_eq!(output.stderr, "");
    answers.join().unwrap();
}

#[test]
fn a_server_that_restarts_ends_no_waiting() {
    let (url, answers) = answering(&[
        ("GET /api/v1/runs/7 ", "200 OK\n{\"id\":\"7\",\"job\":\"a\",\"status\":\"running\"}"),
        ("GET /api/v1/runs/7 ", "503 Service Unavailable\n"),
        ("GET /api/v1/runs/7 ", "200 OK\n{\"id\":\"7\",\"job\":\"a\",\"status\":\"failed\"}"),
    ]);
    let waited = run(&["run", "wait", "7", "-o", "name", "--server", &url]);
    assert_eq!((waited.code, waited.stdout.as_str()), (Some(3), "7\n"), "{}", waited.stderr);
    answers.join().unwrap();
    // The server does not come back.
    let (url, answers) =
        answering(&[("GET /api/v1/runs/7 ", "200 OK\n{\"id\":\"7\",\"job\":\"a\",\"status\":\"running\"}")]);
    let waited = run(&["run", "wait", "7", "--timeout", "1s", "--server", &url]);
    assert_eq!(waited.code, Some(7), "{}", waited.stderr);
    assert!(waited.stderr.contains("was still running") && waited.stderr.contains("rondel run wait 7"));
    answers.join().unwrap();
    let (url, answers) = answering(&[
        ("GET /api/v1/events ", "200 OK\n{\"id\":\"c1\",\"event\":\"end\",\"data\":{\"reason\":\"stopping\"}}\n"),
        ("GET /api/v1/events?after=c1 ", "503 Service Unavailable\n"),
        ("GET /api/v1/events?after=c1 ", "200 OK\n{\"id\":\"c2\",\"event\":\"job\",\"data\":{\"name\":\"a\"}}\n"),
    ]);
    let events = run(&["events", "--count", "1", "-o", "jsonl", "--server", &url]);
    assert_eq!((events.code, events.stdout.lines().count()), (Some(0), 1), "{}", events.stderr);
    answers.join().unwrap();
    let (url, answers) = answering(&[
        (
            "GET /api/v1/runs/7/logs?follow=true ",
            "200 OK\n{\"complete\":false,\"status\":\"running\",\"next_cursor\":\"c1\"}\n",
        ),
        ("GET /api/v1/runs/7/logs?follow=true&after=c1 ", "503 Service Unavailable\n"),
        (
            "GET /api/v1/runs/7/logs?follow=true&after=c1 ",
            "200 OK\n{\"line\":\"x\"}\n{\"complete\":true,\"status\":\"failed\",\"next_cursor\":null}\n",
        ),
    ]);
    let log = run(&["run", "logs", "7", "-f", "-o", "jsonl", "--server", &url]);
    assert_eq!((log.code, log.stdout.as_str()), (Some(0), "{\"line\":\"x\"}\n"), "{}", log.stderr);
    answers.join().unwrap();
}

#[test]
fn an_interrupt_ends_a_command_that_waits_for_its_input() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("jobs.yaml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Opening the named pipe waits for a writer, and there is none.
    let file = pipe.to_str().unwrap();
    let mut apply = Program::start(&["job", "apply", "-f", file, "--server", "http://127.0.0.1:1"]);
    apply.wait_until_interrupts_are_caught();
    apply.signal(Signal::INT);
    assert_eq!(apply.end().code(), Some(130));
}

#[test]
fn a_dry_run_of_one_is_refused() {
    for command in [
        &["job", "pause", "a"][..],
        &["job", "resume", "a"],
        &["job", "delete", "a"],
        &["run", "cancel", "7"],
        &["run", "ack", "7"],
        &["run", "retry", "7"],
    ] {
        for flags in [&["--dry-run"][..], &["--after", "x"]] {
            let output = run(&[command, flags, &["--yes", "--server", "http://127.0.0.1:1"]].concat());
            assert_eq!(output.code, Some(2), "{command:?} {flags:?}: {}", output.stderr);
            assert!(output.stderr.contains(flags[0]), "{}", output.stderr);
        }
    }
}

#[test]
fn a_filter_of_an_unset_variable_is_not_for_all() {
    for filter in ["", " ", "\"\"", " '' "] {
        let many = ["job", "delete", "--filter", filter, "--yes", "--server", "http://127.0.0.1:1"];
        let is_text = filter.contains('\'');
        let (code, words) = if is_text { (8, "cannot reach") } else { (2, "--filter is empty") };
        run(&many).refused(code, &[words]);
    }
}

#[test]
fn many_runs_are_not_waited_for() {
    for wait in [&["--wait"][..], &["--watch"], &["--wait-timeout", "1m"]] {
        let many = ["run", "retry", "--filter", "status:failed", "--yes", "--server", "http://127.0.0.1:1"];
        run(&[&many[..], wait].concat()).refused(2, &["--wait", "for one run"]);
    }
}

/// Runs a command against a server that expects these requests, each with two parts of its head, and sends the third text as its answer.
fn check_requests(args: &[&str], requests: &'static [(&'static str, &'static str, &'static str)]) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answers = std::thread::spawn(move || {
        for (line, header, answer) in requests {
            let (mut stream, head, _) = accept_request(&listener);
            let head = head.to_ascii_lowercase();
            assert!(head.contains(line) && head.contains(header), "{head}");
            let length = answer.len();
            let answer = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{answer}");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let output = run(&[args, &["--server", url.as_str()][..]].concat());
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    answers.join().unwrap();
}

#[test]
fn a_change_of_a_rule_or_channel_names_the_version_that_was_read() {
    const RULE: &str = r#"{"name":"r","condition":{"failed":{}},"severity":"warning","version":4,"warnings":[]}"#;
    const CHANNEL: &str = r#"{"name":"ops","kind":"ntfy","lang":"en","enabled":true,"settings":{},"secrets":{}}"#;
    const LIST: &str =
        r#"{"items":[{"name":"ops","version":1795277978308,"kind":"ntfy","settings":{}}],"next_cursor":null}"#;
    check_requests(
        &["alert", "rule", "set", "r", "--severity", "critical"],
        &[("get /api/v1/alert-rules/r ", "", RULE), ("put /api/v1/alert-rules/r ", "if-match: \"v4\"", RULE)],
    );
    check_requests(
        &["alert", "channel", "set", "ops", "--disable"],
        &[("get /api/v1/channels ", "", LIST), ("put /api/v1/channels/ops ", "if-match: \"v1795277978308\"", CHANNEL)],
    );
}

#[test]
fn invalid_requests_are_refused_before_they_are_sent() {
    let server = ["--server", "http://127.0.0.1:1"];
    run(&["job", "list", "--server", "localhost"]).refused(2, &["--server", "http://127.0.0.1:8080"]);
    run(&[&["job", "trigger", "a", "--params", "{"][..], &server].concat()).refused(2, &["--params is not JSON"]);
    run(&[&["job", "create", "-f", "/nowhere.json"][..], &server].concat()).refused(2, &["/nowhere.json"]);
    run_with_input(&[&["job", "create", "-f", "-"][..], &server].concat(), "{]").refused(2, &["- is not JSON"]);
    let folder = tempfile::tempdir().unwrap();
    let yaml = folder.path().join("jobs.yaml");
    std::fs::write(&yaml, "name: nightly\n").unwrap();
    let path = yaml.to_str().unwrap();
    run(&[&["job", "create", "-f", path][..], &server].concat())
        .refused(2, &["is not JSON", &format!("for YAML: rondel job apply -f {path}")]);
    run(&[&["job", "get", ".."][..], &server].concat()).refused(2, &["\"..\" is not a name"]);
    run(&[&["run", "logs", "1", "-o", "name"][..], &server].concat()).refused(2, &["no names"]);
}

#[test]
fn a_token_file_must_hold_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let path = file.to_str().unwrap();
    run(&["job", "list", "--token-file", path]).refused(1, &["there is no token file", path]);
    std::fs::write(&file, "two words that are long enough\n").unwrap();
    run(&["job", "list", "--token-file", path]).refused(1, &[path, "holds no token"]);
}

#[test]
fn the_api_document_needs_no_server() {
    let output = run(&["openapi"]);
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""));
    assert!(output.stdout == include_str!("../../../../docs/openapi.json"), "it is not docs/openapi.json");
}

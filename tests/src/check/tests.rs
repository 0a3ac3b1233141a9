//! Plants each violation once, which the checker must find, and judges a clean system, in which it must find nothing.

use serde_json::{Value, json};

use super::{Attempt, Call, Died, Evidence, Invariant, JobFacts, Paused, Rules, RunRow, Start, check, read_journal};

/// Two serial jobs with a fire a second from :01 to :10, each of which ran well for 100 ms.
fn clean() -> Evidence {
    let mut evidence = Evidence { read_at_ms: 15_500, ..Evidence::default() };
    for (index, name) in ["a", "b"].into_iter().enumerate() {
        evidence.jobs.push(JobFacts {
            name: name.to_owned(),
            enabled: true,
            period_ms: Some(1_000),
            is_scheduled: true,
            created_ms: 500,
            at_most_once: index == 1,
            is_serial: true,
            retry_max: 0,
            next_fire_ms: Some(16_000),
        });
        for second in 1..=15_i64 {
            let id = second * 10 + i64::try_from(index).unwrap();
            evidence.runs.push(RunRow {
                id: id.to_string(),
                job: name.to_owned(),
                fire_at_ms: second * 1_000,
                shard: Some(0),
                trigger: "interval".to_owned(),
                status: "succeeded".to_owned(),
                attempt: 1,
                started_ms: Some(second * 1_000 + 3),
                finished_ms: Some(second * 1_000 + 103),
                ..RunRow::default()
            });
            evidence.starts.push(Start {
                run: id.to_string(),
                attempt: 1,
                job: name.to_owned(),
                fire_at_ms: second * 1_000,
                token: (1, id),
                pid: 7,
                begin_ms: second * 1_000 + 3,
                end: Some((second * 1_000 + 103, Some(true))),
                ..Start::default()
            });
        }
    }
    evidence
}

fn call(method: &str, path: &str, at_ms: i64, body: Value, answer: Value) -> Call {
    let (method, path) = (method.to_owned(), path.to_owned());
    Call { sent_ms: at_ms, done_ms: at_ms + 10, method, path, body, status: Some(200), answer }
}

#[test]
fn nothing_is_found_in_a_clean_system() {
    let report = check(&clean(), Rules::default());
    report.assert_clean();
    assert_eq!((report.start_count, report.run_count, report.fire_count), (30, 30, 20));
    assert_eq!((report.lateness.p50, report.lateness.max), (3, 3));
    assert_eq!(report.statuses["succeeded"], 30);
}

/// Plants one fault and names the only violation that must be found.
fn check_planted(name: &str, expected: Invariant, plant: impl FnOnce(&mut Evidence)) {
    let mut evidence = clean();
    plant(&mut evidence);
    let report = check(&evidence, Rules::default());
    let found: Vec<Invariant> = report.violations.iter().map(|violation| violation.invariant).collect();
    assert_eq!(found, [expected], "{name}: {report}");
}

fn start<'e>(evidence: &'e mut Evidence, run: &str) -> &'e mut Start {
    evidence.starts.iter_mut().find(|start| start.run == run).unwrap()
}

fn run<'e>(evidence: &'e mut Evidence, id: &str) -> &'e mut RunRow {
    evidence.runs.iter_mut().find(|run| run.id == id).unwrap()
}

#[test]
fn each_violation_is_found_once() {
    use Invariant::{
        Acknowledged, Complete, Conservation, Durable, Fencing, Liveness, NoDuplicate, NoOverlap, NotEarly,
    };

    check_planted("a fire without a row", Complete, |evidence| {
        evidence.runs.retain(|run| run.id != "50");
        evidence.starts.retain(|start| start.run != "50");
    });
    check_planted("a start without a row, of no fire", Complete, |evidence| {
        let stray =
            Start { run: "999".to_owned(), token: (0, 0), job: "x".to_owned(), ..start(evidence, "50").clone() };
        evidence.starts.push(stray);
    });
    check_planted("at least once, and never begun", Complete, |evidence| {
        run(evidence, "50").status = "failed".to_owned();
        evidence.starts.retain(|start| start.run != "50");
    });
    check_planted("two rows for a fire", Complete, |evidence| {
        let twin = RunRow { id: "999".to_owned(), status: "cancelled".to_owned(), ..run(evidence, "50").clone() };
        evidence.runs.push(twin);
    });
    check_planted("a handler began early", NotEarly, |evidence| start(evidence, "50").begin_ms = 4_999);
    check_planted("a row that starts early", NotEarly, |evidence| run(evidence, "50").started_ms = Some(4_999));
    check_planted("an attempt began twice", NoDuplicate, |evidence| {
        let twin =
            Start { begin_ms: 5_200, end: Some((5_300, Some(true))), token: (1, 55), ..start(evidence, "50").clone() };
        evidence.starts.push(twin);
    });
    check_planted("an attempt of which no row knows", NoDuplicate, |evidence| start(evidence, "50").attempt = 2);
    check_planted("at most once, twice", NoDuplicate, |evidence| again(evidence, "51", Some("executor_lost")));
    check_planted("again without a reason", NoDuplicate, |evidence| again(evidence, "50", None));
    check_planted("an overlap", NoOverlap, |evidence| start(evidence, "50").end = Some((6_500, Some(true))));
    check_planted("a run without an end, and a later one", NoOverlap, |evidence| {
        start(evidence, "140").end = None;
        run(evidence, "140").status = "unknown".to_owned();
    });
    check_planted("a token that falls", Fencing, |evidence| start(evidence, "150").token = (1, 100));
    check_planted("a success that is not known", Durable, |evidence| run(evidence, "50").status = "unknown".to_owned());
    check_planted("a success that was none", Durable, |evidence| {
        start(evidence, "50").end = Some((5_103, Some(false)))
    });
    check_planted("a success of a run that never ended", Durable, |evidence| {
        start(evidence, "150").end = None;
        evidence.read_at_ms = 15_200;
    });
    check_planted("a verdict that changed", Durable, |evidence| {
        let seen = json!({"id": "50", "job": "a", "fire_at": "1970-01-01T00:00:05Z", "trigger": "interval",
            "status": "failed", "attempt": 1, "shard_index": 0});
        evidence.calls.push(call("GET", "/api/v1/runs/50", 6_000, Value::Null, seen));
    });
    check_planted("a run without a verdict", Liveness, |evidence| {
        let open = run(evidence, "50");
        (open.status, open.finished_ms) = ("running".to_owned(), None);
        evidence.starts.retain(|start| start.run != "50");
    });
    check_planted("a job that stopped", Liveness, |evidence| evidence.jobs[0].next_fire_ms = None);
    check_planted("skipped without a reason", Conservation, |evidence| {
        run(evidence, "50").status = "skipped".to_owned();
        evidence.starts.retain(|start| start.run != "50");
    });
    check_planted("a status that does not exist", Conservation, |evidence| {
        run(evidence, "50").status = "odd".to_owned()
    });
    check_planted("a run of another fire", Conservation, |evidence| start(evidence, "50").job = "b2".to_owned());
    check_planted("an acknowledged job is gone", Acknowledged, |evidence| {
        evidence.calls.push(call("POST", "/api/v1/jobs", 2_000, json!({}), json!({"name": "c"})));
    });
    check_planted("an acknowledged run is gone", Acknowledged, |evidence| {
        evidence.calls.push(call("POST", "/api/v1/jobs/a/runs", 2_000, json!({}), json!({"id": "77"})));
    });
    check_planted("a paused job fires on", Acknowledged, |evidence| {
        evidence.calls.push(call("POST", "/api/v1/jobs/a/pause", 12_000, json!({}), json!({})));
        evidence.jobs[0].enabled = false;
    });
}

fn again(evidence: &mut Evidence, id: &str, reason: Option<&str>) {
    let first = Attempt { number: 1, status: "failed".to_owned(), reason: reason.map(str::to_owned) };
    let ends_badly = start(evidence, id);
    ends_badly.end = ends_badly.end.map(|(at, _)| (at, Some(false)));
    let second = Start {
        attempt: 2,
        begin_ms: ends_badly.begin_ms + 200,
        end: Some((ends_badly.begin_ms + 300, Some(true))),
        token: (1, ends_badly.token.1 + 1),
        ..ends_badly.clone()
    };
    evidence.starts.push(second);
    let row = run(evidence, id);
    (row.attempt, row.attempts) = (2, vec![first]);
}

#[test]
fn allowed_behaviour_is_no_violation() {
    let mut evidence = clean();
    // Retried with a reason, by a job that may retry.
    again(&mut evidence, "50", Some("retry"));
    // Shards of one fire run concurrently.
    let shard = Start { shard: 1, run: "1201".to_owned(), token: (1, 121), ..start(&mut evidence, "120").clone() };
    let row = RunRow { shard: Some(1), id: "1201".to_owned(), ..run(&mut evidence, "120").clone() };
    evidence.starts.push(shard);
    evidence.runs.push(row);
    // A span of skips stands for its fires.
    evidence.runs.retain(|run| !["70", "80", "90"].contains(&run.id.as_str()));
    evidence.starts.retain(|start| !["70", "80", "90"].contains(&start.run.as_str()));
    let span = RunRow {
        id: "70".to_owned(),
        status: "skipped".to_owned(),
        reason: Some("misfire".to_owned()),
        span_end_ms: Some(9_000),
        ..run(&mut evidence, "60").clone()
    };
    evidence.runs.push(RunRow { fire_at_ms: 7_000, started_ms: None, ..span });
    // The result of a run was lost with its process.
    start(&mut evidence, "101").end = None;
    start(&mut evidence, "101").pid = 8;
    run(&mut evidence, "101").status = "unknown".to_owned();
    evidence.died.push(Died { pid: 8, at_ms: 10_050 });
    // The lost attempt of another run was the last one that it may lose in this way.
    start(&mut evidence, "121").pid = 10;
    run(&mut evidence, "121").status = "failed".to_owned();
    run(&mut evidence, "121").reason = Some("executor_lost".to_owned());
    evidence.died.push(Died { pid: 10, at_ms: 12_110 });
    // A process that was paused for long woke after its run had moved to another executor.
    start(&mut evidence, "111").pid = 9;
    start(&mut evidence, "111").end = Some((29_000, Some(true)));
    evidence.paused.push(Paused { pid: 9, from_ms: 11_040, to_ms: 29_000 });
    check(&evidence, Rules::default()).assert_clean();
    // A job that was paused has no rows from then on.
    evidence.calls.push(call("POST", "/api/v1/jobs/b/pause", 12_000, json!({}), json!({})));
    evidence.jobs[1].enabled = false;
    evidence.runs.retain(|run| run.job != "b" || run.fire_at_ms <= 13_000);
    evidence.starts.retain(|start| start.job != "b" || start.fire_at_ms <= 13_000);
    evidence.read_at_ms = 60_000;
    evidence.jobs[0].next_fire_ms = Some(60_000);
    evidence.jobs.remove(0);
    evidence.runs.retain(|run| run.job == "b");
    evidence.starts.retain(|start| start.job == "b");
    check(&evidence, Rules::default()).assert_clean();
}

#[test]
fn journals_are_read_and_torn_ends_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let text = "{\"event\":\"start\",\"run\":\"17\",\"attempt\":1,\"job\":\"a\",\"fire_at_ms\":1000,\"shard\":0,\"term\":2,\
                \"n\":5,\"pid\":4711,\"at_ms\":1003}\n\
                {\"event\":\"end\",\"run\":\"17\",\"attempt\":1,\"pid\":4711,\"at_ms\":1010,\"ok\":true}\n\
                {\"event\":\"died\",\"pid\":4711,\"at_ms\":2000}\n{\"event\":\"sta";
    std::fs::write(folder.path().join("one.jsonl"), text).unwrap();
    let evidence = read_journal(folder.path()).unwrap();
    let [start] = evidence.starts.as_slice() else { panic!("{evidence:?}") };
    assert_eq!((start.token, start.end), ((2, 5), Some((1_010, Some(true)))));
    assert_eq!(evidence.died, [Died { pid: 4711, at_ms: 2_000 }]);
    std::fs::write(folder.path().join("two.jsonl"), "{\"event\":\"odd\"}\n").unwrap();
    assert!(read_journal(folder.path()).unwrap_err().to_string().contains("two.jsonl:1"));
}

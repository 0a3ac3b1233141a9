//! Edits of a job that is firing: the acknowledged definition is the one that runs.

use std::time::Duration;

use rondel_tests::{Agent, ScratchDb, Server, instant_in, wait_until};
use serde_json::{Value, json};

use crate::journal::{Journal, seconds};
use crate::on_each_database;

pub(crate) fn now_seconds() -> i64 {
    let output = std::process::Command::new("date").arg("+%s").output().expect("date runs");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("seconds")
}

pub(crate) async fn some_lines(journal: &Journal, more_than: usize) {
    wait_until(Duration::from_secs(30), "more lines", async || {
        let count = journal.lines().len();
        if count > more_than { Ok(()) } else { Err(count) }
    })
    .await;
}

/// A claimed fire does not run if its job is paused, changed or deleted before the fire's instant. After a resume,
/// the remaining fires run.
async fn claimed_fires_follow_the_definition(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let (old, new) = (Journal::new(), Journal::new());
    let job = |journal: &Journal| json!({"name": "j", "app": "files", "handler": "shell", "params": journal.params(""), "schedule": {"every": "1s"}});
    api.post("/api/v1/jobs", job(&old)).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    some_lines(&old, 2).await;

    api.put("/api/v1/jobs/j", job(&new)).await.expect(200);
    let changed_at = now_seconds();
    some_lines(&new, 3).await;
    let late: Vec<_> = old.lines().into_iter().filter(|line| seconds(&line.fire_at) > changed_at + 1).collect();
    assert!(late.is_empty(), "ran under the old definition after {changed_at}: {late:?}");

    api.post("/api/v1/jobs/j/pause", json!({})).await.expect(200);
    let paused_at = now_seconds();
    // Three seconds of fires were claimed when the job was paused: wait until all of them are past.
    wait_until(Duration::from_secs(20), "what was claimed is past", async || {
        if now_seconds() > paused_at + 6 { Ok(()) } else { Err(()) }
    })
    .await;
    let late: Vec<_> = new.lines().into_iter().filter(|line| seconds(&line.fire_at) > paused_at + 1).collect();
    assert!(late.is_empty(), "ran while paused since {paused_at}: {late:?}");
    let runs = api.runs("j").await;
    let skipped = |reason: &str| runs.iter().any(|run| run["status"] == "skipped" && run["reason"] == reason);
    assert!(skipped("paused"), "{runs:#?}");

    api.post("/api/v1/jobs/j/resume", json!({})).await.expect(200);
    let count = new.lines().len();
    some_lines(&new, count + 2).await;
    let doubles: Vec<_> = new.by_fire().into_values().filter(|lines| lines.len() > 1).collect();
    assert!(doubles.is_empty(), "{doubles:?}");

    // On a busy machine a run may be queued, which the answer counts.
    let deleted = api.delete("/api/v1/jobs/j").await;
    assert!([200, 204].contains(&deleted.status), "{deleted:?}");
    let deleted_at = now_seconds();
    wait_until(Duration::from_secs(20), "what was claimed is past", async || {
        if now_seconds() > deleted_at + 6 { Ok(()) } else { Err(()) }
    })
    .await;
    let late: Vec<_> = new.lines().into_iter().filter(|line| seconds(&line.fire_at) > deleted_at + 1).collect();
    assert!(late.is_empty(), "ran after it was deleted at {deleted_at}: {late:?}");
    assert_eq!(api.get("/api/v1/jobs/j").await.status, 404);
}
on_each_database!(claimed_fires_follow_the_definition);

/// A pause followed immediately by a resume loses no fire and runs none twice: settled rows are reopened.
async fn a_quick_pause_and_resume_loses_nothing(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let journal = Journal::new();
    let job = json!({
        "name": "j", "app": "files", "handler": "shell", "params": journal.params(""), "schedule": {"every": "1s"},
    });
    api.post("/api/v1/jobs", job).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    some_lines(&journal, 2).await;
    for _ in 0..10 {
        api.post("/api/v1/jobs/j/pause", json!({})).await.expect(200);
        api.post("/api/v1/jobs/j/resume", json!({})).await.expect(200);
    }
    let count = journal.lines().len();
    some_lines(&journal, count + 8).await;
    let fires = journal.by_fire();
    assert!(fires.values().all(|lines| lines.len() == 1), "{fires:?}");
    let instants: Vec<i64> = fires.keys().map(|fire| seconds(fire)).collect();
    let skipped: Vec<Value> = api.runs("j").await.into_iter().filter(|run| run["status"] == "skipped").collect();
    for pair in instants.windows(2) {
        for missing in pair[0] + 1..pair[1] {
            // Only a fire that came due in the instant between pause and resume may be missing, and it has a verdict.
            let has_verdict = |run: &Value| seconds(run["fire_at"].as_str().unwrap_or_default()) == missing;
            assert!(skipped.iter().any(has_verdict), "the fire of {missing} is lost: {instants:?}");
        }
    }
}
on_each_database!(a_quick_pause_and_resume_loses_nothing);

/// A state of the job in the model: when it was requested and acknowledged, and the definition and the tag under which
/// the job then fires.
#[derive(Debug)]
struct JobState {
    asked_ms: i64,
    acknowledged_ms: i64,
    definition: Option<(usize, usize)>,
}

type Definition = (fn() -> Value, fn(i64) -> bool);

/// The schedules of the history, each with the seconds (since 1970) at which it fires.
const DEFINITIONS: [Definition; 6] = [
    (|| json!({"every": "1s"}), |_| true),
    (|| json!({"cron": "0/2 * * * * ?"}), |second| second % 2 == 0),
    (|| json!({"cron": "1/3 * * * * ?"}), |second| second % 60 % 3 == 1),
    (|| json!({"cron": "* 0-29 * * * ?"}), |second| second / 60 % 60 < 30),
    (|| json!({"cron": "* 0-29 * * * ?", "time_zone": "Asia/Kolkata"}), |second| second / 60 % 60 >= 30),
    (
        || json!([{"cron": "0/5 * * * * ?"}, {"cron": "3/7 * * * * ?"}]),
        |second| second % 5 == 0 || (second % 60) % 7 == 3,
    ),
];

/// A small random generator. Its seed is printed, and `RONDEL_TEST_SEED` repeats the history of a seed.
struct Chance(u64);

impl Chance {
    fn new() -> Self {
        use std::hash::{BuildHasher as _, RandomState};
        let given = rondel_tests::variable("RONDEL_TEST_SEED").and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| RandomState::new().hash_one(()) >> 16);
        std::io::Write::write_all(&mut std::io::stdout(), format!("RONDEL_TEST_SEED={seed}\n").as_bytes())
            .expect("print the seed");
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn now_ms() -> i64 {
    let output = std::process::Command::new("date").arg("+%s%3N").output().expect("date runs");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("milliseconds")
}

/// Random edits of a job and its calendar, pauses and resumes, while its fires are claimed: the runs match a model of
/// the history.
async fn a_random_history_of_edits_agrees_with_a_model(db: ScratchDb) {
    const STEPS: usize = 28;
    let server = Server::start(&db).await;
    let api = server.api();
    let journal = Journal::new();
    let tags = journal.path().with_extension("tags");
    let job = |definition: usize, tag: usize| {
        let note = format!("echo $RONDEL_FIRE_AT {tag} >> {}", tags.display());
        let schedule = DEFINITIONS[definition].0();
        json!({
            "name": "j", "app": "files", "handler": "shell", "params": journal.params(&note), "schedule": schedule,
            "calendar": {"name": "closed", "rule": "except"},
        })
    };
    // The job does not fire at the instants of this calendar: none, or all.
    let calendar = |is_closed: bool| {
        let rule = if is_closed { json!({"all": []}) } else { json!({"any": []}) };
        json!({"name": "closed", "rule": rule})
    };
    let mut chance = Chance::new();
    api.put("/api/v1/calendars/closed", calendar(false)).await.expect(201);
    let asked_ms = now_ms();
    api.post("/api/v1/jobs", job(0, 0)).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    some_lines(&journal, 2).await;
    // Another test covers the fires that were due before the agent had started.
    let mut history = vec![JobState { asked_ms, acknowledged_ms: now_ms(), definition: Some((0, 0)) }];
    let (mut last, mut is_paused, mut is_closed) = ((0, 0), false, false);
    for tag in 1..=STEPS {
        tokio::time::sleep(Duration::from_millis(chance.below(3_500))).await;
        let asked_ms = now_ms();
        match chance.below(6) {
            0 | 1 => {
                is_paused = !is_paused;
                let change = if is_paused { "pause" } else { "resume" };
                api.post(&format!("/api/v1/jobs/j/{change}"), json!({})).await.expect(200);
            }
            2 => {
                is_closed = !is_closed;
                api.put("/api/v1/calendars/closed", calendar(is_closed)).await.expect(200);
            }
            _ => {
                last = (usize::try_from(chance.below(6)).expect("small"), tag);
                is_paused = false;
                api.put("/api/v1/jobs/j", job(last.0, last.1)).await.expect(200);
            }
        }
        let definition = (!is_paused && !is_closed).then_some(last);
        history.push(JobState { asked_ms, acknowledged_ms: now_ms(), definition });
    }
    let asked_ms = now_ms();
    api.post("/api/v1/jobs/j/pause", json!({})).await.expect(200);
    history.push(JobState { asked_ms, acknowledged_ms: now_ms(), definition: None });
    wait_until(Duration::from_secs(20), "what was claimed is past", async || {
        if now_ms() > asked_ms + 7_000 { Ok(()) } else { Err(()) }
    })
    .await;
    let text = std::fs::read_to_string(&tags).expect("it ran");
    let ran: Vec<(i64, usize)> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(fire, tag)| (seconds(fire), tag.parse().expect("a tag")))
        .collect();
    let runs = api.runs("j").await;
    check_history(&history, &ran, &runs);
}
on_each_database!(a_random_history_of_edits_agrees_with_a_model);

fn check_history(history: &[JobState], ran: &[(i64, usize)], runs: &[Value]) {
    let around = |fire: i64| {
        let near = |run: &&Value| (seconds(run["fire_at"].as_str().unwrap_or_default()) - fire).abs() <= 2;
        let rows: Vec<&Value> = runs.iter().filter(near).collect();
        let states: Vec<&JobState> =
            history.iter().filter(|state| (state.asked_ms / 1_000 - fire).abs() <= 4).collect();
        format!("states {states:#?} rows {rows:#?}")
    };
    let mut seen = std::collections::BTreeSet::new();
    for (fire, tag) in ran {
        assert!(seen.insert(*fire), "the fire of {fire} ran twice");
        // A definition that was paused and resumed was in force more than once.
        let may_run = |index: usize| {
            let state = &history[index];
            let until = history.get(index + 1).map_or(i64::MAX, |next| next.acknowledged_ms + 1_000);
            state.definition.is_some_and(|(definition, of)| of == *tag && DEFINITIONS[definition].1(*fire))
                && (*fire + 1) * 1_000 > state.asked_ms
                && *fire * 1_000 <= until
        };
        assert!(
            (0..history.len()).any(may_run),
            "the fire of {fire} ran under definition {tag}, which did not plan it then"
        );
    }
    for (state, next) in history.iter().zip(&history[1..]) {
        let Some((definition, tag)) = state.definition else { continue };
        for fire in state.acknowledged_ms / 1_000 + 1..=(next.asked_ms - 1) / 1_000 {
            // A fire that is due within a second of the acknowledgement may run under the previous definition, but it
            // must run.
            let may_be_older = fire * 1_000 <= state.acknowledged_ms + 1_000;
            let has_run = |(at, of): &(i64, usize)| *at == fire && (*of == tag || may_be_older);
            let is_planned = DEFINITIONS[definition].1(fire);
            assert!(
                !is_planned || ran.iter().any(has_run),
                "the fire of {fire} under definition {tag} is lost: {}",
                around(fire)
            );
        }
    }
}

/// An `at` in the past with `"if_past": "run"` has its run, and so does an `at` that passes while its definition is saved,
/// in whichever way it is saved.
async fn an_instant_that_passes_while_it_is_saved_runs(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let once = |name: &str, schedule: Value| json!({"name": name, "app": "a", "handler": "h", "queue_timeout": "10m", "schedule": schedule});
    let past = || json!({"at": "2020-01-01T00:00:00Z", "if_past": "run"});
    let soon = || json!({"at": instant_in(Duration::from_millis(40))});
    let mut names: Vec<String> = (0..100).map(|index| format!("bulk{index}")).collect();
    let bulk: Vec<Value> = names.iter().map(|name| once(name, past())).collect();
    api.post("/api/v1/jobs/apply", json!(bulk)).await.expect(200);
    for index in 0..10 {
        let (applied, patched, changed, created) =
            (format!("apply{index}"), format!("patch{index}"), format!("change{index}"), format!("soon{index}"));
        api.post("/api/v1/jobs/apply", json!([once(&applied, past())])).await.expect(200);
        api.post("/api/v1/jobs", once(&patched, Value::Null)).await.expect(201);
        api.patch(&format!("/api/v1/jobs/{patched}"), json!({"schedule": past()})).await.expect(200);
        api.post("/api/v1/jobs/apply", json!([once(&changed, Value::Null)])).await.expect(200);
        api.post("/api/v1/jobs/apply", json!([once(&changed, past())])).await.expect(200);
        names.extend([applied, patched, changed]);
        // On a busy machine the instant may have passed at the check. Then the definition is refused, but never saved
        // without a run.
        if api.post("/api/v1/jobs/apply", json!([once(&created, soon())])).await.status == 200 {
            names.push(created);
        }
    }
    wait_until(Duration::from_secs(30), "each job has its run", async || {
        let runs = api.all("/api/v1/runs", &[]).await;
        let has_run = |name: &&String| runs.iter().any(|run| run["job"] == **name);
        let missing: Vec<&String> = names.iter().filter(|name| !has_run(name)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
    })
    .await;
}
on_each_database!(an_instant_that_passes_while_it_is_saved_runs);

/// Runs wait behind a busy one when their job is paused or deleted. Those of the schedule are skipped, the answer
/// counts them, and the choice of the caller is respected.
async fn a_pause_settles_queued_runs(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let journal = Journal::new();
    // Runs last until the test lets them end, however slow the machine is: the counts below depend on it.
    let gate = journal.path().with_extension("gate");
    let work = format!("while [ ! -e {} ]; do sleep 0.1; done", gate.display());
    let job = |name: &str, every: Value| {
        json!({
            "name": name, "app": "files", "handler": "shell", "params": journal.params(&work), "schedule": every,
            "queue_timeout": "5m", "misfire": {"tolerance": "5m"},
        })
    };
    let jobs = [("plain", json!({"every": "1s"})), ("kept", Value::Null), ("gone", Value::Null)];
    for (name, schedule) in &jobs {
        api.post("/api/v1/jobs", job(name, schedule.clone())).await.expect(201);
    }
    let _agent = Agent::start(&server, "files").await;
    for (name, _) in jobs {
        for _ in 0..3 {
            api.post(&format!("/api/v1/jobs/{name}/runs"), json!({})).await.expect(201);
        }
        wait_until(Duration::from_secs(30), "runs wait behind one that has begun", async || {
            let runs = api.runs(name).await;
            let begun = runs.iter().any(|run| run["status"] == "running");
            if begun && runs.len() >= 3 { Ok(()) } else { Err(runs) }
        })
        .await;
    }
    let answer = api.post("/api/v1/jobs/plain/pause", json!({})).await.expect(200);
    assert!(answer["queued"]["kept"].as_u64() >= Some(1), "what a caller asked for is kept: {answer:#}");
    // The answer does not wait for runs with a later instant: they are skipped at their instants.
    wait_until(Duration::from_secs(30), "what the schedule made is skipped", async || {
        let runs = api.runs("plain").await;
        let is_queued = |run: &Value| run["trigger"] == "interval" && run["status"] == "pending";
        if runs.iter().any(is_queued) { Err(runs) } else { Ok(()) }
    })
    .await;
    let answer = api.post("/api/v1/jobs/kept/pause?queued=run", json!({})).await.expect(200);
    assert_eq!((&answer["queued"]["dropped"], &answer["queued"]["running"]), (&json!(0), &json!(1)), "{answer:#}");
    let answer = api.delete("/api/v1/jobs/gone").await.expect(200);
    assert_eq!((&answer["queued"]["dropped"], &answer["queued"]["running"]), (&json!(2), &json!(1)), "{answer:#}");
    let refusal = api.post("/api/v1/jobs/kept/pause?queued=some", json!({})).await.expect(422);
    assert!(refusal["errors"][0]["message"].as_str().is_some_and(|text| text.contains("run, drop")), "{refusal:#}");
    std::fs::write(&gate, "").expect("the gate opens");
    wait_until(Duration::from_secs(60), "what was kept has run", async || {
        let runs = api.runs("kept").await;
        if runs.iter().all(|run| run["status"] == "succeeded") { Ok(()) } else { Err(runs) }
    })
    .await;
    let all = api.all("/api/v1/runs", &[]).await;
    let skipped = |run: &&Value| run["reason"] == "deleted" && run["status"] == "skipped";
    assert_eq!(all.iter().filter(skipped).count(), 2, "{all:#?}");
}
on_each_database!(a_pause_settles_queued_runs);

//! Checks of jobs that follow from other jobs: refused definitions, and the runs that follow when their parents have ended.

use std::time::Duration;

use rondel_core::outcome::CancelRequest;
use rondel_core::outcome::{NextStepPolicy, Outcome};
use rondel_core::{FieldError, JobId, JobSpec, Reason, Run, RunId, RunStatus, Trigger};
use serde_json::{Value, json};

use super::edits::{delete, delete_parent, expect_saved, with_four_rows};
use super::{
    DEFAULT, FAILED, POLICY, app, compile, expect_created, finish, finisher, join, name, next_id, read_run,
    requested_run, spec,
};
use crate::catalog::{JobChange, JobCreated, JobDeleted, JobRecord, JobSaved, NewJob};
use crate::ledger::{AttemptEnd, CancelOutcome, EndOutcome, Ends};
use crate::{LeaseToken, Store};

async fn new_job(store: &dyn Store, spec: JobSpec) -> NewJob {
    let now = store.now().await.unwrap();
    NewJob {
        id: JobId::new(next_id()),
        namespace: DEFAULT,
        app: app(store).await,
        spec,
        anchor: now.ceil_second(),
        next_fire_at: None,
        delay: None,
        calendar: None,
        declared: None,
        author: "conformance".to_owned(),
        now,
    }
}

/// Creates a job that follows from these parents, or an independent job if there are none.
pub(super) async fn child(store: &dyn Store, word: &str, parents: &[&JobRecord], change: Value) -> JobRecord {
    let mut spec = spec(&name(word), change);
    if !parents.is_empty() && spec.schedule.is_none() {
        spec.schedule = after_all(parents, "success");
    }
    expect_created(store.create_job(new_job(store, spec).await).await.unwrap())
}

fn after_all(parents: &[&JobRecord], on: &str) -> Option<rondel_core::spec::OneOrMany> {
    let names: Vec<&str> = parents.iter().map(|parent| parent.spec.name.as_str()).collect();
    serde_json::from_value(json!({"after": names, "on": on})).unwrap()
}

/// Jobs that are created together may follow from each other; a refused job does not affect the others.
pub async fn many_jobs_are_created_at_once(store: &dyn Store) {
    let named = |word: &str, change: Value| spec(&name(word), change);
    let mut first = Vec::new();
    for number in 0..5 {
        first.push(new_job(store, named("many", json!({"description": number.to_string()}))).await);
    }
    let parents: Vec<String> = first[..2].iter().map(|job| job.spec.name.clone()).collect();
    first[3].spec.schedule = serde_json::from_value(json!({"after": parents, "on": "either"})).unwrap();
    first[4].spec.schedule = serde_json::from_value(json!({"after": [first[3].spec.name]})).unwrap();
    let records: Vec<JobRecord> = store.create_jobs(&first).await.unwrap().into_iter().map(expect_created).collect();
    let names: Vec<&str> = records.iter().map(|job| job.spec.name.as_str()).collect();
    let mut read = store.jobs_named(DEFAULT, &[&names[..], &["missing"], &names[..1]].concat()).await.unwrap();
    read.sort_by_key(|job| job.id);
    assert_eq!(read, records);
    assert_eq!(store.child_names(records[1].id).await.unwrap(), [names[3].to_owned()]);
    let edges = store.edges(DEFAULT).await.unwrap();
    let parents_of =
        |child: JobId| edges.iter().filter(|edge| edge.child == child).map(|edge| edge.parent).collect::<Vec<_>>();
    assert_eq!(parents_of(records[3].id), [records[0].id, records[1].id]);
    assert_eq!(parents_of(records[4].id), [records[3].id]);

    // The first has a name that is taken, the second a parent that does not exist. The third is saved.
    let taken = new_job(store, spec(names[0], json!({}))).await;
    let orphan = new_job(store, named("orphan", json!({"schedule": {"after": ["missing"]}}))).await;
    let good = new_job(store, named("good", json!({"schedule": {"after": [names[4]]}}))).await;
    let answers = store.create_jobs(&[taken, orphan, good.clone()]).await.unwrap();
    assert!(
        matches!(answers[..], [JobCreated::NameTaken, JobCreated::BadParents(_), JobCreated::Saved(_)]),
        "{answers:?}"
    );
    assert_eq!(store.child_names(records[4].id).await.unwrap(), [good.spec.name]);
    assert_eq!(store.create_jobs(&[]).await.unwrap(), []);
}

async fn change(store: &dyn Store, record: &JobRecord, spec: JobSpec) -> JobSaved {
    let (job, before, now) = (compile(&spec), compile(&record.spec), store.now().await.unwrap());
    let change = JobChange {
        id: record.id,
        expected_version: None,
        spec: &spec,
        job: &job,
        before: &before,
        calendar: None,
        app: record.app,
        author: "conformance",
        skipped_row_id: RunId::new(next_id()),
        now,
        checked_at: now,
        reached: now,
        drops: None,
    };
    store.change_job(change).await.unwrap()
}

async fn follow_from(store: &dyn Store, record: &JobRecord, parents: &[&JobRecord]) -> JobSaved {
    change(store, record, JobSpec { schedule: after_all(parents, "success"), ..record.spec.clone() }).await
}

/// Creates four jobs: `b` and `c` follow from `a`, and `d` follows from `b` and `c`.
async fn diamond(store: &dyn Store) -> [JobRecord; 4] {
    let a = child(store, "a", &[], json!({"params": {"day": 7}})).await;
    let b = child(store, "b", &[&a], json!({})).await;
    let c = child(store, "c", &[&a], json!({"params": 3})).await;
    let d = child(store, "d", &[&b, &c], json!({"params": {"own": true}})).await;
    [a, b, c, d]
}

#[track_caller]
fn refused(errors: &[FieldError], pointer: &str, part: &str) {
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].pointer, pointer);
    assert!(errors[0].message.contains(part), "{} does not name {part}", errors[0].message);
}

/// A parent must exist, and no job follows from itself. A job that is a parent can be neither deleted nor renamed.
pub async fn parents_are_checked_when_saved(store: &dyn Store) {
    let [a, b, c, d] = diamond(store).await;
    let names = |jobs: &[&JobRecord]| jobs.iter().map(|job| job.spec.name.clone()).collect::<Vec<_>>();
    let orphan = spec(&name("orphan"), json!({"schedule": {"after": [a.spec.name, "not-there"]}}));
    let JobCreated::BadParents(errors) = store.create_job(new_job(store, orphan.clone()).await).await.unwrap() else {
        unreachable!("a parent is missing")
    };
    refused(&errors, "/schedule/after/1", "\"not-there\"");
    assert_eq!(store.job(DEFAULT, &orphan.name).await.unwrap(), None);
    let own = name("own");
    let own = spec(&own, json!({"schedule": {"after": [own]}}));
    let JobCreated::BadParents(errors) = store.create_job(new_job(store, own.clone()).await).await.unwrap() else {
        unreachable!("it would follow from itself")
    };
    refused(&errors, "/schedule/after/0", "after itself");
    assert_eq!(errors[0].jobs, [own.name.clone(), own.name]);
    let JobSaved::BadParents(errors) = follow_from(store, &a, &[&d]).await else { unreachable!("a circle") };
    refused(&errors, "/schedule/after/0", "after itself");
    assert_eq!(errors[0].jobs, names(&[&d, &a, &b, &d]));
    assert_eq!(store.child_names(a.id).await.unwrap(), names(&[&b, &c]));

    let now = store.now().await.unwrap();
    assert_eq!(delete(store, a.id, None, now).await, JobDeleted::IsParent(names(&[&b, &c])));
    let renamed = JobSpec { name: name("other"), ..b.spec.clone() };
    assert_eq!(change(store, &b, renamed).await, JobSaved::IsParent(names(&[&d])));
    assert!(matches!(follow_from(store, &d, &[&a]).await, JobSaved::Saved(..)));
    assert_eq!(delete(store, b.id, None, now).await, JobDeleted::Done);
    assert_eq!(store.child_names(a.id).await.unwrap(), names(&[&c, &d]));
    assert!(matches!(change(store, &d, JobSpec { schedule: None, ..d.spec.clone() }).await, JobSaved::Saved(..)));
    assert!(matches!(follow_from(store, &a, &[&d]).await, JobSaved::Saved(..)));
    assert_eq!(delete_parent(store, d.id, now).await, JobDeleted::Done);
    assert_eq!(store.child_names(d.id).await.unwrap(), Vec::<String>::new());
    let edges = store.edges(DEFAULT).await.unwrap();
    assert!(edges.iter().all(|edge| edge.parent != d.id), "no job follows from it any more");
    // Its follower stays, and can be paused although it still names the parent. Another job of that name does not become its parent.
    let remaining = store.job(DEFAULT, &a.spec.name).await.unwrap().unwrap();
    assert!(matches!(
        change(store, &remaining, JobSpec { enabled: false, ..remaining.spec.clone() }).await,
        JobSaved::Saved(..)
    ));
    let other = spec(&d.spec.name, json!({}));
    let other = expect_created(store.create_job(new_job(store, other).await).await.unwrap());
    assert!(matches!(change(store, &remaining, remaining.spec.clone()).await, JobSaved::Saved(..)));
    assert_eq!(store.child_names(other.id).await.unwrap(), Vec::<String>::new());
    let named_anew = JobSpec { schedule: after_all(&[&other], "either"), ..remaining.spec.clone() };
    assert!(matches!(change(store, &remaining, named_anew).await, JobSaved::Saved(..)));
    assert_eq!(store.child_names(other.id).await.unwrap(), [remaining.spec.name]);
}

/// Of two concurrent edits that would form a cycle together, one is refused, although each is valid alone.
pub async fn edits_that_meet_make_no_circle(store: &dyn Store) {
    for _ in 0..5 {
        let a = child(store, "a", &[], json!({})).await;
        let b = child(store, "b", &[], json!({})).await;
        let (only_a, only_b) = ([&a], [&b]);
        let (of_a, of_b) = tokio::join!(follow_from(store, &a, &only_b), follow_from(store, &b, &only_a));
        let refused = [&of_a, &of_b].into_iter().filter(|changed| matches!(changed, JobSaved::BadParents(_))).count();
        assert_eq!(refused, 1, "{of_a:?} {of_b:?}");
    }
}

/// Requests a run of the job.
async fn start(store: &dyn Store, token: LeaseToken, job: &JobRecord) -> Run {
    let now = store.now().await.unwrap();
    store.request_run(token, requested_run(job, token, now)).await.unwrap()
}

async fn end_run(store: &dyn Store, token: LeaseToken, run: &Run, outcome: Outcome) -> Ends {
    let result = format!("{{\"by\": \"{}\"}}", run.job);
    store.finish(finisher(token), &[AttemptEnd { result: Some(result), ..finish(run, outcome) }]).await.unwrap()
}

fn of<'r>(runs: &'r [Run], job: &JobRecord) -> &'r Run {
    runs.iter().find(|run| run.job == job.id).unwrap()
}

/// The run of this job in the fire of which `root` is the first run.
async fn run_in_fire(store: &dyn Store, root: &Run, job: &JobRecord) -> Option<Run> {
    let query = crate::ledger::RunQuery { job: Some(job.id), limit: 100, ..Default::default() };
    let runs = store.list_runs(DEFAULT, &query).await.unwrap();
    let mut runs = runs.into_iter().filter(|run| run.cause == root.id.get() && run.shard_index <= 0);
    let found = runs.next();
    assert_eq!(runs.next(), None, "one run per fire");
    found
}

/// If the server that marked a run dies, the run may get its verdict before its instant. The runs that follow from it still wait for that
/// instant.
pub async fn no_child_is_due_before_the_instant_of_its_fire(store: &dyn Store) {
    let token = join(store).await;
    let a = child(store, "a", &[], json!({})).await;
    child(store, "b", &[&a], json!({})).await;
    let later = store.now().await.unwrap().ceil_second() + Duration::from_secs(60);
    let root = store.request_run(token, requested_run(&a, token, later)).await.unwrap();
    let released = end_run(store, token, &root, Outcome::Succeeded).await.released_runs;
    assert_eq!(released.iter().map(|run| (run.fire_at, run.due_at)).collect::<Vec<_>>(), [(later, later)]);
}

/// The last job of the diamond runs once per fire of the first job, after both jobs in the middle have ended, and gets their results.
pub async fn the_last_of_a_diamond_runs_once(store: &dyn Store) {
    let token = join(store).await;
    let [a, b, c, d] = diamond(store).await;
    let root = start(store, token, &a).await;
    let middle = end_run(store, token, &root, Outcome::Succeeded).await.released_runs;
    assert_eq!(middle.len(), 2);
    let (of_b, of_c) = (of(&middle, &b), of(&middle, &c));
    for run in [of_b, of_c] {
        assert_eq!((run.fire_at, run.cause, run.trigger), (root.fire_at, root.id.get(), Trigger::Parent));
        assert_eq!((run.status, run.parent, run.node), (RunStatus::Pending, Some(root.id), token.node));
        assert_eq!(&read_run(store, run.id).await, run);
    }
    let params: Value = serde_json::from_str(of_c.params.as_deref().unwrap()).unwrap();
    let result = json!({"by": a.id.to_string()});
    let parent = json!({"run_id": root.id.to_string(), "status": "succeeded", "result": result, "params": {"day": 7}});
    assert_eq!(params, json!({"params": 3, "parents": {a.spec.name.clone(): parent}}));

    assert_eq!(end_run(store, token, of_b, Outcome::Succeeded).await.released_runs, []);
    let last = end_run(store, token, of_c, Outcome::Succeeded).await.released_runs;
    assert_eq!(last.len(), 1);
    let params: Value = serde_json::from_str(last[0].params.as_deref().unwrap()).unwrap();
    assert_eq!((last[0].job, &params["own"]), (d.id, &json!(true)));
    for (job, run) in [(&b, of_b), (&c, of_c)] {
        let parent = &params["parents"][&job.spec.name];
        assert_eq!(parent["run_id"], run.id.to_string());
        assert_eq!(parent["result"], json!({"by": job.id.to_string()}));
    }
    assert_eq!(params["parents"].as_object().map(serde_json::Map::len), Some(2));
    // The same results are stored a second time and release nothing.
    for run in [&root, of_b, of_c] {
        let again = end_run(store, token, run, Outcome::Succeeded).await;
        assert_eq!((again.outcomes, again.released_runs), (vec![EndOutcome::Duplicate], Vec::new()));
    }
    assert_eq!(end_run(store, token, &last[0], Outcome::Succeeded).await.released_runs, []);
    // Another trigger starts another fire.
    let second = start(store, token, &a).await;
    assert_eq!(end_run(store, token, &second, Outcome::Succeeded).await.released_runs.len(), 2);
}

/// Two callers end the two parents at the same time: exactly one of them releases the child.
pub async fn parents_that_end_at_once_release_one_child(store: &dyn Store) {
    let token = join(store).await;
    let [a, b, c, d] = diamond(store).await;
    for _ in 0..10 {
        let root = start(store, token, &a).await;
        let middle = end_run(store, token, &root, Outcome::Succeeded).await.released_runs;
        let (of_b, of_c) = tokio::join!(
            end_run(store, token, of(&middle, &b), Outcome::Succeeded),
            end_run(store, token, of(&middle, &c), Outcome::Succeeded)
        );
        let released: Vec<Run> = of_b.released_runs.into_iter().chain(of_c.released_runs).collect();
        assert_eq!(released.len(), 1);
        assert_eq!(run_in_fire(store, &root, &d).await.map(|run| run.id), Some(released[0].id));
    }
}

/// A child whose condition is not met is skipped with a reason, and so are the children of the skipped run.
pub async fn children_that_were_not_meant_are_skipped(store: &dyn Store) {
    let token = join(store).await;
    let [a, b, c, d] = diamond(store).await;
    let on_failure = json!({"schedule": {"after": [b.spec.name], "on": "failure"}});
    let repair = child(store, "repair", &[], on_failure).await;
    let paused = child(store, "paused", &[&b], json!({"enabled": false})).await;
    let after_paused = child(store, "after-paused", &[&paused], json!({})).await;

    let root = start(store, token, &a).await;
    let middle = end_run(store, token, &root, Outcome::Succeeded).await.released_runs;
    let released = end_run(store, token, of(&middle, &b), FAILED).await.released_runs;
    assert_eq!(released.iter().map(|run| run.job).collect::<Vec<_>>(), [repair.id]);
    let skipped = async |job: &JobRecord| {
        let run = run_in_fire(store, &root, job).await.unwrap();
        (run.status, run.reason, run.message.unwrap_or_default())
    };
    let refused = (RunStatus::Skipped, Some(Reason::Parent), format!("parent job {} ended as failed", b.spec.name));
    assert_eq!(skipped(&paused).await, refused);
    assert_eq!(run_in_fire(store, &root, &d).await, None, "one of its parents is open");
    assert_eq!(end_run(store, token, of(&middle, &c), Outcome::Succeeded).await.released_runs, []);
    assert_eq!(skipped(&d).await, refused);
    let after_skip =
        (RunStatus::Skipped, Some(Reason::Parent), format!("parent job {} ended as skipped", paused.spec.name));
    assert_eq!(skipped(&after_paused).await, after_skip);

    let root = start(store, token, &a).await;
    let middle = end_run(store, token, &root, Outcome::Succeeded).await.released_runs;
    assert_eq!(end_run(store, token, of(&middle, &b), Outcome::Succeeded).await.released_runs, []);
    let run = run_in_fire(store, &root, &paused).await.unwrap();
    assert_eq!((run.status, run.reason), (RunStatus::Skipped, Some(Reason::Paused)));
    let run = run_in_fire(store, &root, &repair).await.unwrap();
    assert_eq!((run.status, run.reason), (RunStatus::Skipped, Some(Reason::Parent)));

    // A cancelled run is neither a success nor a failure.
    let root = start(store, token, &a).await;
    assert_eq!(end_run(store, token, &root, Outcome::Cancelled).await.released_runs, []);
    for job in [&b, &c, &d, &repair, &after_paused] {
        assert_eq!(run_in_fire(store, &root, job).await.unwrap().reason, Some(Reason::Parent));
    }
}

/// A late result corrects the verdict of a run. It does not release a child that was skipped before.
pub async fn a_late_result_releases_nothing_twice(store: &dyn Store) {
    let token = join(store).await;
    let a = child(store, "a", &[], json!({})).await;
    let on_failure = json!({"schedule": {"after": [a.spec.name], "on": "failure"}});
    let repair = child(store, "repair", &[], on_failure).await;
    let root = start(store, token, &a).await;
    let run_at_executor = crate::ledger::RunAtExecutor {
        run: root.id,
        attempt: 1,
        executor_id: rondel_core::ExecutorId::new(9),
        executor: "b".to_owned(),
        at: root.due_at,
    };
    assert_eq!(store.mark(token, &[run_at_executor]).await.unwrap(), [root.id]);
    let policy = NextStepPolicy { at_least_once: false, ..POLICY };
    let lost = AttemptEnd { policy, executor: None, ..finish(&root, Outcome::Lost(Reason::ExecutorLost)) };
    let ends = store.finish(finisher(token), &[lost]).await.unwrap();
    assert_eq!(ends.released_runs.iter().map(|run| run.job).collect::<Vec<_>>(), [repair.id]);
    let late = end_run(store, token, &root, Outcome::Succeeded).await;
    assert_eq!((late.outcomes, late.released_runs), (vec![EndOutcome::Late], Vec::new()));
    assert!(run_in_fire(store, &root, &repair).await.is_some());
}

/// An edit skips future runs without releasing the runs that follow from them. If a skipped run ran after all (it had been sent before the
/// clock stepped back), its end releases these runs once, like any other end.
pub async fn a_skipped_run_that_ran_releases_its_children(store: &dyn Store) {
    let (token, job, rows, _) = with_four_rows(store).await;
    let on = |on: &str| json!({"schedule": {"after": [job.spec.name], "on": on}});
    let next = child(store, "next", &[], on("success")).await;
    let repair = child(store, "repair", &[], on("failure")).await;
    expect_saved(change(store, &job, JobSpec { enabled: false, ..job.spec.clone() }).await);
    assert_eq!(read_run(store, rows[0].id).await.reason, Some(Reason::Paused));
    assert_eq!(run_in_fire(store, &rows[0], &next).await, None);
    for (row, outcome, follower) in [(&rows[0], Outcome::Succeeded, &next), (&rows[1], FAILED, &repair)] {
        let late = end_run(store, token, row, outcome).await;
        assert_eq!(late.outcomes, [EndOutcome::Late]);
        assert_eq!(late.released_runs.iter().map(|run| run.job).collect::<Vec<_>>(), [follower.id]);
        let again = end_run(store, token, row, outcome).await;
        assert_eq!((again.outcomes, again.released_runs), (vec![EndOutcome::Duplicate], Vec::new()));
    }
}

/// A run that ends with its children keeps its result while it awaits them, and no executor has it. Its verdict comes from its children.
pub async fn a_run_may_end_with_its_children(store: &dyn Store) {
    let token = join(store).await;
    let a = child(store, "a", &[], json!({"over": "children"})).await;
    let b = child(store, "b", &[&a], json!({"over": "children"})).await;
    let c = child(store, "c", &[&b], json!({})).await;
    let policy = NextStepPolicy { awaits_children: true, ..POLICY };
    let ends = async |run: &Run, outcome| {
        let finish = AttemptEnd { policy, result: Some("1".to_owned()), ..finish(run, outcome) };
        store.finish(finisher(token), &[finish]).await.unwrap()
    };
    let state = async |run: RunId| {
        let run = read_run(store, run).await;
        (run.status, run.open_children, run.message)
    };
    let awaiting = (RunStatus::Running, Some(1), None);
    for outcome in [Outcome::Succeeded, FAILED] {
        let root = start(store, token, &a).await;
        let first = ends(&root, Outcome::Succeeded).await;
        assert_eq!(first.awaiting_runs, [(a.id, root.id)]);
        assert_eq!(state(root.id).await, awaiting);
        assert_eq!(read_run(store, root.id).await.result.as_deref(), Some("1"));
        let again = ends(&root, Outcome::Succeeded).await;
        assert_eq!((again.outcomes, again.awaiting_runs), (vec![EndOutcome::Duplicate], vec![(a.id, root.id)]));
        let second = ends(of(&first.released_runs, &b), Outcome::Succeeded).await;
        assert_eq!((second.awaiting_runs.len(), state(root.id).await), (1, awaiting.clone()));
        let third = end_run(store, token, of(&second.released_runs, &c), outcome).await;
        let mut ended_parents = third.ended_parents;
        ended_parents.sort_unstable();
        let mut expected = vec![(a.id, root.id), (b.id, first.released_runs[0].id)];
        expected.sort_unstable();
        assert_eq!(ended_parents, expected);
        let (status, message) = match outcome {
            Outcome::Succeeded => (RunStatus::Succeeded, None),
            _ => (RunStatus::Failed, Some(format!("{} failed", b.spec.name))),
        };
        assert_eq!(state(root.id).await, (status, Some(0), message));
        let again = ends(&root, Outcome::Succeeded).await;
        assert_eq!((again.outcomes, again.awaiting_runs), (vec![EndOutcome::Duplicate], vec![]));
    }
    // If the run itself fails, it ends immediately. A cancel also ends a run that awaits its children.
    let root = start(store, token, &a).await;
    ends(&root, FAILED).await;
    assert_eq!(state(root.id).await, (RunStatus::Failed, None, None));
    let root = start(store, token, &a).await;
    ends(&root, Outcome::Succeeded).await;
    let now = store.now().await.unwrap();
    assert!(matches!(
        store.ask_cancel(root.id, CancelRequest::requested("mia"), now).await.unwrap(),
        CancelOutcome::Requested(_)
    ));
    ends(&root, Outcome::Cancelled).await;
    assert_eq!(read_run(store, root.id).await.status, RunStatus::Cancelled);
    // If the handler succeeded despite a request, the owner reads a repeated request while the run awaits its children.
    for asks_for_many in [false, true] {
        let root = start(store, token, &a).await;
        store.ask_cancel(root.id, CancelRequest::requested("mia"), now).await.unwrap();
        ends(&root, Outcome::Succeeded).await;
        assert_eq!((state(root.id).await, store.cancels(token).await.unwrap()), (awaiting.clone(), Vec::new()));
        let again = CancelRequest::requested("leo");
        match asks_for_many {
            true => assert_eq!(store.ask_cancels(&[root.id], again, now).await.unwrap(), 1),
            false => drop(store.ask_cancel(root.id, again, now).await.unwrap()),
        }
        assert_eq!(store.cancels(token).await.unwrap(), [(root.id, "mia".to_owned())]);
        ends(&root, Outcome::Cancelled).await;
        assert_eq!(read_run(store, root.id).await.status, RunStatus::Cancelled);
        assert_eq!(store.cancels(token).await.unwrap(), []);
    }
    let root = start(store, token, &a).await;
    ends(&root, Outcome::Succeeded).await;
    let cancelled = AttemptEnd { policy, executor: None, ..finish(&root, Outcome::Cancelled) };
    store.finish(finisher(token), &[cancelled]).await.unwrap();
    let ended = read_run(store, root.id).await;
    assert_eq!((ended.status, ended.result.as_deref()), (RunStatus::Cancelled, Some("1")));
    // An edit removes a job from the chain while its run is open. The run still awaits the jobs that follow from it.
    let root = start(store, token, &a).await;
    let first = ends(&root, Outcome::Succeeded).await;
    expect_saved(change(store, &b, JobSpec { schedule: None, ..b.spec.clone() }).await);
    let of_b = of(&first.released_runs, &b);
    let second = ends(of_b, Outcome::Succeeded).await;
    assert_eq!((second.awaiting_runs, state(of_b.id).await), (vec![(b.id, of_b.id)], awaiting));
    let third = end_run(store, token, of(&second.released_runs, &c), FAILED).await;
    assert!(third.ended_parents.contains(&(b.id, of_b.id)), "{:?}", third.ended_parents);
    assert_eq!(state(of_b.id).await, (RunStatus::Failed, Some(0), Some(format!("{} failed", c.spec.name))));
}

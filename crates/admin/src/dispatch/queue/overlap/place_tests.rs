//! Places that runs keep, give up or lose.

use serde_json::json;

use super::*;
use crate::dispatch::tests_support::{definition, ready};

const NONE_PASSES: [i64; 0] = [];

/// Gates, and the runs that wait for their turn there.
#[derive(Debug, Default)]
struct Gated {
    gates: Gates,
    runs: OpenRuns,
}

impl Gated {
    fn enter(&mut self, ready: ReadyRun) -> bool {
        matches!(self.gates.enter(ready, &mut self.runs), GateDecision::Passed(_))
    }

    fn enter_at(&mut self, ready: ReadyRun, executor: i64) -> bool {
        matches!(self.gates.enter_at(ready, ExecutorId::new(executor), &mut self.runs), GateDecision::Passed(_))
    }

    /// The runs that may pass once this run has left.
    fn leave(&mut self, second: i64) -> Vec<i64> {
        let passed = self.gates.leave(RunId::new(second * 1_000), &mut self.runs);
        passed.iter().map(|(run, _)| run.get() / 1_000).collect()
    }
}

fn serial_run(second: i64) -> ReadyRun {
    ready(second, &definition(&json!({"queue_timeout": "10s"})))
}

fn run_per_executor(second: i64) -> ReadyRun {
    ready(second, &definition(&json!({"overlap": {"policy": "serial", "scope": "executor"}})))
}

/// A run that has its place at an executor passes there again, and no other run does.
#[test]
fn a_run_with_a_place_at_an_executor_passes_there() {
    let (mut gated, at) = (Gated::default(), ExecutorId::new);
    assert!(gated.gates.would_pass_at(&serial_run(1), at(7)), "its gate is that of its job");
    assert!(gated.enter_at(run_per_executor(1), 7) && gated.enter_at(run_per_executor(2), 8));
    let would = |second, executor| gated.gates.would_pass_at(&run_per_executor(second), at(executor));
    assert_eq!([would(1, 7), would(1, 8), would(2, 7), would(2, 8), would(3, 9)], [true, false, false, true, true]);
}

/// A run that is not due yet would pass now only if its gate has room and no queue. It would not pass if its job has a gate at each
/// executor.
#[test]
fn no_run_passes_ahead_of_its_instant_where_others_wait() {
    let mut gated = Gated::default();
    let would = |gated: &Gated, ready: &ReadyRun| gated.gates.would_pass(ready);
    let two = definition(&json!({"overlap": {"policy": "allow", "max": 2}}));
    assert!(would(&gated, &serial_run(1)) && !would(&gated, &run_per_executor(1)));
    assert!(would(&gated, &ready(1, &definition(&json!({"overlap": {"policy": "allow"}})))));
    assert!(gated.enter(ready(1, &two)) && would(&gated, &ready(2, &two)));
    assert!(gated.enter(ready(2, &two)) && !would(&gated, &ready(3, &two)));
    assert!(!gated.enter(ready(3, &two)));
    assert_eq!(gated.leave(1), [3]);
    assert!(!would(&gated, &ready(4, &two)), "both places are taken again");
}

/// A run whose job was edited to another scope gives up its place at its earlier gate.
#[test]
fn a_place_at_another_gate_is_known() {
    let mut gated = Gated::default();
    assert!(!gated.gates.is_at_other_gate(&serial_run(1)), "it has no place yet");
    assert!(gated.enter(serial_run(1)) && !gated.enter(serial_run(2)));
    assert!(!gated.gates.is_at_other_gate(&serial_run(1)) && gated.gates.is_at_other_gate(&run_per_executor(1)));
    assert!(gated.enter_at(run_per_executor(1), 7), "its place at its job's gate is free");
    assert!(gated.gates.is_at_other_gate(&serial_run(1)) && gated.gates.is_at_other_gate(&run_per_executor(1)));
}

/// Under the policy `cover`, a run that had begun before is replaced if the gate has any later run, and only then.
#[test]
fn a_run_that_comes_again_is_covered_by_any_later_one() {
    let cover = definition(&json!({"overlap": {"policy": "cover"}}));
    for (open, expected) in [(vec![1, 3], true), (vec![3], true), (vec![1], false)] {
        let mut gated = Gated::default();
        for second in open.clone() {
            let mut ready = ready(second, &cover);
            ready.run.status = RunStatus::Running;
            gated.gates.restore(&ready);
        }
        let mut again = ready(2, &cover);
        (again.run.status, again.run.attempt) = (RunStatus::Waiting, 2);
        gated.gates.restore(&again);
        let entry = gated.gates.enter(again, &mut gated.runs);
        assert_eq!(matches!(entry, GateDecision::ReplacedByLater(_)), expected, "{open:?}: {entry:?}");
    }
}

/// A queued run that leaves is taken out, and a run that has passed stays where it waits.
#[test]
fn only_a_queued_run_is_taken_out_with_its_place() {
    let mut gated = Gated::default();
    assert!(gated.enter(serial_run(1)) && !gated.enter(serial_run(2)) && !gated.enter(serial_run(3)));
    gated.runs.put(serial_run(1), Stage::Parked(Timestamp::EPOCH));
    assert_eq!(gated.leave(2), NONE_PASSES);
    assert!(gated.runs.get(RunId::new(2_000)).is_none() && gated.gates.queued_count() == 1);
    assert_eq!(gated.leave(1), [3]);
    assert!(gated.runs.get(RunId::new(1_000)).is_some(), "it waits for an executor");
}

/// An adopted run has its place at the gate of the executor that has it.
#[test]
fn an_adopted_run_has_its_place_at_its_executor() {
    let (mut gated, at) = (Gated::default(), ExecutorId::new);
    gated.gates.open_place_at(&run_per_executor(1), at(7));
    assert_eq!([7, 8].map(|id| gated.gates.would_pass_at(&run_per_executor(2), at(id))), [false, true]);
    gated.gates.open_place_at(&serial_run(3), at(7));
    assert!(gated.enter(serial_run(4)), "its job has no gate there");
}

/// Only the shards of a fire share its place; runs that another run has caused do not.
#[test]
fn runs_of_one_parent_that_are_no_shards_have_places_of_their_own() {
    let mut gated = Gated::default();
    let child = |second| {
        let mut child = serial_run(second);
        (child.run.parent, child.run.fire_at) = (Some(RunId::new(9)), Timestamp::from_secs(1));
        child
    };
    assert!(gated.enter(child(1)) && !gated.enter(child(2)));
}

/// A run that leaves its executor gives up a place at the executor's gate, and keeps a place at its job's gate.
#[test]
fn only_a_place_at_an_executor_is_left_with_it() {
    let mut gated = Gated::default();
    assert!(
        gated.enter_at(run_per_executor(1), 7)
            && !gated.enter_at(run_per_executor(2), 7)
            && !gated.gates.entries.is_empty()
    );
    let passed = gated.gates.leave_executor(RunId::new(1_000), &mut gated.runs);
    assert_eq!(passed, [(RunId::new(2_000), Some(ExecutorId::new(7)))]);
    let mut gated = Gated::default();
    assert!(gated.enter(serial_run(1)) && !gated.enter(serial_run(2)));
    assert_eq!(gated.gates.leave_executor(RunId::new(1_000), &mut gated.runs), []);
}

/// A run that is queued again expires by the new start of its queue time.
#[test]
fn a_queued_run_expires_at_the_end_of_its_queue_time() {
    let mut gated = Gated::default();
    assert!(gated.enter(serial_run(1)) && !gated.enter(serial_run(2)));
    let expired =
        |gated: &mut Gated, millis| gated.gates.take_expired(Timestamp::from_millis(millis), &mut gated.runs).len();
    assert_eq!((expired(&mut gated, 11_999), expired(&mut gated, 12_000)), (0, 1));
    assert!(!gated.enter(ReadyRun { queued_at: Some(Timestamp::from_secs(20)), ..serial_run(2) }));
    assert_eq!((expired(&mut gated, 29_999), expired(&mut gated, 30_000)), (0, 1));
    assert_eq!(gated.leave(1), NONE_PASSES);
}

/// The place of an adopted run is open if an executor may have the run, and reserved if the run waits for another attempt. Any other run
/// has no place.
#[test]
fn an_open_run_has_a_place_after_an_adoption() {
    for (status, attempt, has_place) in [
        (RunStatus::Running, 1, true),
        (RunStatus::Waiting, 2, true),
        (RunStatus::Pending, 2, true),
        (RunStatus::Pending, 1, false),
    ] {
        let mut gated = Gated::default();
        let mut open = serial_run(1);
        (open.run.status, open.run.attempt) = (status, attempt);
        gated.gates.restore(&open);
        assert_eq!(!gated.enter(serial_run(2)), has_place, "{status} {attempt}");
    }
    // A run that has a place keeps it, even if it is restored, reserved or held again.
    let mut gated = Gated::default();
    let mut open = serial_run(1);
    open.run.status = RunStatus::Running;
    assert!(gated.enter(serial_run(1)) && !gated.enter(serial_run(2)));
    gated.gates.restore(&open);
    gated.gates.reserve(&open);
    gated.gates.open_place_at(&open, ExecutorId::new(7));
    assert_eq!(gated.leave(1), [2]);
    assert_eq!(gated.leave(2), NONE_PASSES);
    assert!(gated.gates.entries.is_empty() && gated.gates.gates.is_empty());
}

#[test]
fn the_longest_queue_is_that_of_the_policy() {
    for (policy, max, expected) in [("serial", 0, 1_000), ("serial", 1, 1), ("serial", 7, 7), ("allow", 7, 1_000)] {
        let job = definition(&json!({"overlap": {"policy": policy, "max": max}}));
        assert_eq!(queue_max(&job.job), expected, "{policy} {max}");
    }
}

/// A run that is skipped or expires at the gate of an executor names the run that is ahead of it there, not one at another executor.
#[test]
fn a_run_that_waits_for_an_executor_names_the_run_ahead_of_it_there() {
    let mut gated = Gated::default();
    for executor in 7..=9 {
        assert!(
            gated.enter_at(run_per_executor(executor), executor)
                && !gated.enter_at(run_per_executor(executor + 10), executor)
        );
    }
    let expired = gated.gates.take_expired(Timestamp::MAX, &mut gated.runs);
    let ids = expired.iter().map(|(ready, ahead)| (ready.run.id.get(), ahead.map_or(0, |run| run.get())));
    assert_eq!(ids.collect::<Vec<_>>(), [(17_000, 7_000), (18_000, 8_000), (19_000, 9_000)]);

    let discard = definition(&json!({"overlap": {"policy": "discard", "scope": "executor"}}));
    let mut gated = Gated::default();
    for executor in 7..=9 {
        assert!(gated.enter_at(ready(executor, &discard), executor));
        let skipped = gated.gates.enter_at(ready(20, &discard), ExecutorId::new(executor), &mut gated.runs);
        let is_its = |ahead: Option<RunId>| ahead == Some(RunId::new(executor * 1_000));
        assert!(matches!(skipped, GateDecision::Skipped { run_ahead: ahead, .. } if is_its(ahead)), "{skipped:?}");
    }
}

#[test]
fn a_gate_with_many_queued_runs_hides_no_other() {
    let mut gated = Gated::default();
    for (job, second) in [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6)] {
        let mut ready = serial_run(second);
        ready.run.job = JobId::new(job);
        gated.enter(ready);
    }
    let some = gated.gates.first_queued_runs(|_| true, 2, &gated.runs);
    let mut seconds: Vec<i64> = some.iter().map(|(ready, _)| ready.run.due_at.second()).collect();
    seconds.sort_unstable();
    assert_eq!(seconds, [2, 6]);
}

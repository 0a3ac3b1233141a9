use std::sync::Arc;

use rondel_core::outcome::Outcome;
use rondel_core::reason::{ReasonDetail, WaitFor};
use rondel_core::{Reason, Timestamp};
use serde_json::json;

use super::*;
use crate::definitions::CompiledDefinition;
use crate::dispatch::tests_support::{definition, ready};
use crate::dispatch::waits::end_of_missed;

type Definition = Arc<CompiledDefinition>;

fn overlap(policy: &str, max: u32) -> Definition {
    definition(&json!({"overlap": {"policy": policy, "max": max}}))
}

fn overlap_per_executor(policy: &str, max: u32) -> Definition {
    definition(&json!({"overlap": {"policy": policy, "scope": "executor", "max": max}}))
}

fn seconds(runs: &[RunId]) -> Vec<i64> {
    runs.iter().map(|run| run.get() / 1_000).collect()
}

fn outcome(entry: GateDecision) -> String {
    match entry {
        GateDecision::Passed(_) => "passed".to_owned(),
        GateDecision::Queued => "queued".to_owned(),
        GateDecision::Skipped { .. } => "discarded".to_owned(),
        GateDecision::ReplacedByLater(_) => "covered".to_owned(),
        GateDecision::ReplacesEarlier { open_runs: open, skipped_runs: waiting } => {
            let waiting: Vec<RunId> = waiting.iter().map(|ready| ready.run.id).collect();
            format!("covers {:?} and {:?}", seconds(&open), seconds(&waiting))
        }
    }
}

/// Gates, and the runs that wait for their turn there.
#[derive(Debug, Default)]
struct Gated {
    gates: Gates,
    runs: OpenRuns,
}

impl std::ops::Deref for Gated {
    type Target = Gates;

    fn deref(&self) -> &Gates {
        &self.gates
    }
}

impl std::ops::DerefMut for Gated {
    fn deref_mut(&mut self) -> &mut Gates {
        &mut self.gates
    }
}

impl Gated {
    /// Starts the runs whose turn has come.
    fn take_started(&mut self, passed: Vec<AdmittedRun>) -> Vec<AdmittedRun> {
        for (run, _) in &passed {
            let open = self.runs.take(*run).expect("a run whose turn has come is here");
            assert!(matches!(open.stage, Stage::Admitted));
        }
        passed
    }

    fn leave(&mut self, run: RunId) -> Vec<AdmittedRun> {
        let passed = self.gates.leave(run, &mut self.runs);
        self.take_started(passed)
    }

    fn keep_for_retry(&mut self, run: RunId) -> Vec<AdmittedRun> {
        let passed = self.gates.make_reserved(run, &mut self.runs);
        self.take_started(passed)
    }

    /// Drops the queued runs, and returns how many there were.
    fn retain(&mut self, is_kept: impl Fn(RunId) -> bool) -> usize {
        self.gates.retain(is_kept);
        self.runs.drain_waiting().len()
    }
}

fn enter(gates: &mut Gated, ready: ReadyRun) -> String {
    outcome(gates.gates.enter(ready, &mut gates.runs))
}

fn enter_at(gates: &mut Gated, ready: ReadyRun, executor: i64) -> String {
    outcome(gates.gates.enter_at(ready, ExecutorId::new(executor), &mut gates.runs))
}

fn seconds_of_passed(passed: &[AdmittedRun]) -> Vec<i64> {
    passed.iter().map(|(run, _)| run.get() / 1_000).collect()
}

fn leave(gates: &mut Gated, second: i64) -> Vec<i64> {
    seconds_of_passed(&gates.leave(RunId::new(second * 1_000)))
}

fn keep_for_retry(gates: &mut Gated, second: i64) -> Vec<i64> {
    seconds_of_passed(&gates.keep_for_retry(RunId::new(second * 1_000)))
}

#[test]
fn serial_runs_wait_in_the_order_of_their_instants() {
    let (mut gates, serial) = (Gated::default(), overlap("serial", 0));
    assert_eq!(enter(&mut gates, ready(1, &serial)), "passed");
    assert_eq!(enter(&mut gates, ready(3, &serial)), "queued");
    assert_eq!(enter(&mut gates, ready(2, &serial)), "queued");
    assert_eq!(leave(&mut gates, 1), [2]);
    assert_eq!(leave(&mut gates, 1), [] as [i64; 0], "a run leaves once");
    assert_eq!(leave(&mut gates, 2), [3]);
    assert_eq!(leave(&mut gates, 3), [] as [i64; 0]);
    assert_eq!((gates.gates.gates.len(), gates.entries.len()), (0, 0));
}

#[test]
fn a_retry_keeps_its_place() {
    let (mut gates, serial) = (Gated::default(), overlap("serial", 0));
    assert_eq!(enter(&mut gates, ready(1, &serial)), "passed");
    assert_eq!(enter(&mut gates, ready(2, &serial)), "queued");
    assert_eq!(keep_for_retry(&mut gates, 1), [] as [i64; 0]);
    assert_eq!(enter(&mut gates, ready(3, &serial)), "queued");
    assert_eq!(enter(&mut gates, ready(1, &serial)), "passed");
    assert_eq!(leave(&mut gates, 1), [2]);
    // Run 2 is cancelled while it waits for its next attempt: the next run need not wait any more.
    assert_eq!(keep_for_retry(&mut gates, 2), [] as [i64; 0]);
    assert_eq!(leave(&mut gates, 2), [3]);
}

#[test]
fn it_is_known_whose_places_are_waited_for() {
    let (mut gates, serial, each) = (Gated::default(), overlap("serial", 0), overlap_per_executor("serial", 0));
    assert_eq!(enter(&mut gates, ready(1, &serial)), "passed");
    assert_eq!(gates.runs_holding_up(), []);
    assert_eq!(enter(&mut gates, ready(2, &serial)), "queued");
    assert_eq!(gates.runs_holding_up(), [RunId::new(1_000)]);
    assert_eq!(keep_for_retry(&mut gates, 1), [] as [i64; 0]);
    assert_eq!(gates.runs_holding_up(), [RunId::new(1_000)], "its next attempt comes first");
    assert_eq!(leave(&mut gates, 1), [2]);
    assert_eq!(gates.runs_holding_up(), []);

    assert_eq!(enter_at(&mut gates, ready(3, &each), 7), "passed");
    assert_eq!(enter_at(&mut gates, ready(4, &each), 7), "queued");
    assert_eq!(gates.runs_holding_up(), [RunId::new(3_000)]);
}

/// No run waits behind the places of a job that discards its later runs: such a place is checked once it has caused a run to be skipped.
#[test]
fn it_is_known_whose_places_cause_others_to_be_skipped() {
    let (mut gates, discard) = (Gated::default(), overlap("discard", 0));
    assert_eq!(enter(&mut gates, ready(1, &discard)), "passed");
    assert_eq!(keep_for_retry(&mut gates, 1), [] as [i64; 0]);
    assert_eq!(gates.runs_holding_up(), []);
    assert_eq!(enter(&mut gates, ready(2, &discard)), "discarded");
    assert_eq!(gates.runs_holding_up(), [RunId::new(1_000)]);
    assert_eq!(leave(&mut gates, 1), [] as [i64; 0]);
    assert_eq!(enter(&mut gates, ready(3, &discard)), "passed");
    assert_eq!(gates.runs_holding_up(), []);
}

#[test]
fn a_retry_does_not_hold_up_a_run_with_room_of_its_own() {
    let (mut gates, two) = (Gated::default(), overlap("allow", 2));
    let entries: Vec<_> = (1..5).map(|second| enter(&mut gates, ready(second, &two))).collect();
    assert_eq!(entries, ["passed", "passed", "queued", "queued"]);
    assert_eq!(keep_for_retry(&mut gates, 2), [] as [i64; 0]);
    assert_eq!(leave(&mut gates, 1), [3]);
    assert_eq!(enter(&mut gates, ready(2, &two)), "passed");
}

fn restored(second: i64, status: RunStatus, attempt: i32, definition: &Definition) -> ReadyRun {
    let mut ready = ready(second, definition);
    (ready.run.status, ready.run.attempt) = (status, attempt);
    ready
}

#[test]
fn after_a_restart_the_order_is_as_before() {
    let (mut gates, serial) = (Gated::default(), overlap("serial", 0));
    gates.restore(&restored(1, RunStatus::Waiting, 2, &serial));
    gates.restore(&restored(3, RunStatus::Pending, 1, &serial));
    assert_eq!(enter(&mut gates, ready(3, &serial)), "queued");
    assert_eq!(enter(&mut gates, ready(1, &serial)), "passed");
    assert_eq!(leave(&mut gates, 1), [3]);

    // Three runs of one job may have been sent, and none passes until that is known. Only the second was sent.
    let mut gates = Gated::default();
    (1..4).for_each(|second| gates.restore(&restored(second, RunStatus::Running, 1, &serial)));
    assert_eq!(enter(&mut gates, ready(4, &serial)), "queued");
    assert_eq!(keep_for_retry(&mut gates, 3), [] as [i64; 0]);
    assert_eq!(keep_for_retry(&mut gates, 1), [] as [i64; 0]);
    assert_eq!(enter(&mut gates, ready(3, &serial)), "queued");
    assert_eq!(enter(&mut gates, ready(1, &serial)), "queued");
    assert_eq!(leave(&mut gates, 2), [1]);
    assert_eq!(leave(&mut gates, 1), [3]);
    assert_eq!(leave(&mut gates, 3), [4]);

    // A run that belonged to another node for a while is back, and an executor may still hold it.
    let mut gates = Gated::default();
    gates.restore(&restored(1, RunStatus::Running, 1, &serial));
    assert_eq!(keep_for_retry(&mut gates, 1), [] as [i64; 0]);
    gates.restore(&restored(1, RunStatus::Running, 1, &serial));
    gates.reserve(&restored(1, RunStatus::Running, 1, &serial));
    gates.restore(&restored(0, RunStatus::Waiting, 2, &serial));
    assert_eq!(enter(&mut gates, ready(0, &serial)), "queued");
    assert_eq!(leave(&mut gates, 1), [0]);
}

#[test]
fn the_queue_is_bounded_and_discard_has_none() {
    let (mut gates, bounded) = (Gated::default(), overlap("serial", 1));
    let entries: Vec<_> = (1..4).map(|second| enter(&mut gates, ready(second, &bounded))).collect();
    assert_eq!(entries, ["passed", "queued", "discarded"]);
    let (mut gates, discard) = (Gated::default(), overlap("discard", 0));
    let entries: Vec<_> = (1..3).map(|second| enter(&mut gates, ready(second, &discard))).collect();
    assert_eq!(entries, ["passed", "discarded"]);
    assert_eq!(keep_for_retry(&mut gates, 1), [] as [i64; 0]);
    assert_eq!(enter(&mut gates, ready(3, &discard)), "discarded");
    assert_eq!(enter(&mut gates, ready(1, &discard)), "passed");
}

#[test]
fn a_later_run_covers_the_open_one_and_those_that_wait() {
    let (mut gates, cover) = (Gated::default(), overlap("cover", 0));
    assert_eq!(enter(&mut gates, ready(1, &cover)), "passed");
    assert_eq!(enter(&mut gates, ready(2, &cover)), "covers [1] and []");
    assert_eq!(enter(&mut gates, ready(3, &cover)), "covers [1] and [2]");
    assert_eq!(leave(&mut gates, 2), [] as [i64; 0], "the covered one had no place");
    assert_eq!(leave(&mut gates, 1), [3], "its verdict makes room");
    // A run that waits for another attempt is replaced as well.
    assert_eq!(keep_for_retry(&mut gates, 3), [] as [i64; 0]);
    assert_eq!(enter(&mut gates, ready(4, &cover)), "covers [3] and []");
    assert_eq!(leave(&mut gates, 3), [4]);
}

#[test]
fn a_run_that_returns_after_a_restart_covers_no_later_run() {
    let (mut gates, cover) = (Gated::default(), overlap("cover", 0));
    gates.restore(&restored(1, RunStatus::Waiting, 2, &cover));
    gates.restore(&restored(2, RunStatus::Running, 1, &cover));
    assert_eq!(enter(&mut gates, ready(1, &cover)), "covered");
    assert_eq!(leave(&mut gates, 1), [] as [i64; 0], "it keeps its place until that is durable");
    gates.restore(&restored(3, RunStatus::Waiting, 2, &cover));
    assert_eq!(enter(&mut gates, ready(3, &cover)), "covers [2] and []");
}

#[test]
fn allow_admits_up_to_its_maximum() {
    let (mut gates, two) = (Gated::default(), overlap("allow", 2));
    let entries: Vec<_> = (1..4).map(|second| enter(&mut gates, ready(second, &two))).collect();
    assert_eq!(entries, ["passed", "passed", "queued"]);
    let (mut gates, any) = (Gated::default(), overlap("allow", 0));
    assert!((1..100).all(|second| enter(&mut gates, ready(second, &any)) == "passed"));
}

#[test]
fn each_executor_has_a_gate_of_its_own() {
    for (policy, expected) in [("serial", "queued"), ("discard", "discarded"), ("cover", "covers [1] and []")] {
        let (mut gates, each) = (Gated::default(), overlap_per_executor(policy, 0));
        assert_eq!(enter(&mut gates, ready(1, &each)), "passed", "the job has no gate");
        assert_eq!(enter_at(&mut gates, ready(1, &each), 7), "passed");
        assert_eq!(enter_at(&mut gates, ready(2, &each), 8), "passed");
        assert!(!gates.would_pass_at(&ready(3, &each), ExecutorId::new(7)));
        assert!(gates.would_pass_at(&ready(3, &each), ExecutorId::new(9)));
        assert_eq!(enter_at(&mut gates, ready(3, &each), 7), expected);
        let next = gates.leave(RunId::new(1_000));
        let goes_to = next.iter().map(|(run, executor)| (run.get() / 1_000, *executor));
        let waited = (policy != "discard").then_some((3, Some(ExecutorId::new(7))));
        assert_eq!(goes_to.collect::<Vec<_>>(), Vec::from_iter(waited));
    }
    let (mut gates, two) = (Gated::default(), overlap_per_executor("allow", 2));
    let entries: Vec<_> = (1..4).map(|second| enter_at(&mut gates, ready(second, &two), 7)).collect();
    assert_eq!(entries, ["passed", "passed", "queued"]);
    // A retry is routed again, so it holds no place at the executor.
    assert_eq!(keep_for_retry(&mut gates, 1), [3]);
}

fn broadcast() -> (ReadyRun, [ReadyRun; 2], Definition) {
    let broadcast = definition(&json!({"route": "broadcast"}));
    let mut root = ready(1, &broadcast);
    (root.run.shard_index, root.run.shard_total) = (rondel_core::run::ROOT_SHARD, None);
    let shards = [10, 11].map(|id| {
        let mut shard = ready(id, &broadcast);
        (shard.run.parent, shard.run.shard_total) = (Some(root.run.id), Some(2));
        shard.run.fire_at = root.run.fire_at;
        shard
    });
    (root, shards, broadcast)
}

#[test]
fn a_broadcast_ends_with_its_last_shard() {
    let (root, shards, definition) = broadcast();
    let mut gates = Gated::default();
    assert_eq!(enter(&mut gates, root.clone()), "passed");
    assert_eq!(enter(&mut gates, ready(2, &definition)), "queued");
    for shard in &shards {
        assert_eq!(enter(&mut gates, shard.clone()), "passed");
    }
    assert_eq!(leave(&mut gates, 1), [] as [i64; 0], "it is under way by its shards");
    assert_eq!(keep_for_retry(&mut gates, 10), [] as [i64; 0]);
    assert_eq!(leave(&mut gates, 10), [] as [i64; 0]);
    assert_eq!(leave(&mut gates, 11), [2]);
}

#[test]
fn a_broadcast_that_is_taken_over_counts_all_its_open_shards() {
    let (root, [mut one, mut two], definition) = broadcast();
    let mut gates = Gated::default();
    gates.restore(&root);
    (one.run.status, two.run.status) = (RunStatus::Running, RunStatus::Pending);
    gates.restore(&one);
    gates.restore(&two);
    assert_eq!(enter(&mut gates, two), "passed");
    assert_eq!(enter(&mut gates, ready(2, &definition)), "queued");
    assert_eq!(leave(&mut gates, 10), [] as [i64; 0]);
    assert_eq!(leave(&mut gates, 11), [2]);
}

#[test]
fn two_broadcasts_that_may_have_been_sent_continue_one_after_the_other() {
    let (_, [one, two], definition) = broadcast();
    let later = later_shards(&definition);
    let mut gates = Gated::default();
    for shard in [&one, &two, &later[0], &later[1]] {
        let mut shard = shard.clone();
        shard.run.status = RunStatus::Running;
        gates.restore(&shard);
    }
    let [first, second] = later;
    // None of the four shards was sent.
    for second in [20, 21, 10, 11] {
        assert_eq!(keep_for_retry(&mut gates, second), [] as [i64; 0]);
    }
    assert_eq!(enter(&mut gates, first), "queued");
    assert_eq!(enter(&mut gates, one), "passed");
    assert_eq!(enter(&mut gates, second), "queued");
    assert_eq!(enter(&mut gates, two), "passed", "it is under way by its other shard");
    assert_eq!(leave(&mut gates, 10), [] as [i64; 0]);
    assert_eq!(leave(&mut gates, 11), [20, 21]);
    assert_eq!(keep_for_retry(&mut gates, 20), [] as [i64; 0]);
    assert_eq!(leave(&mut gates, 21), [] as [i64; 0]);
    assert_eq!(enter(&mut gates, ready(30, &definition)), "queued", "a shard waits for another attempt");
    assert_eq!(leave(&mut gates, 20), [30]);
    assert_eq!(leave(&mut gates, 30), [] as [i64; 0]);
    assert_eq!((gates.gates.gates.len(), gates.entries.len()), (0, 0));
}

/// The shards of a broadcast that comes after the one of [`broadcast`].
fn later_shards(definition: &Definition) -> [ReadyRun; 2] {
    [20, 21].map(|id| {
        let mut shard = ready(id, definition);
        (shard.run.parent, shard.run.shard_total) = (Some(RunId::new(5_000)), Some(2));
        shard.run.fire_at = Timestamp::from_secs(5);
        shard
    })
}

#[test]
fn while_two_broadcasts_count_as_sent_no_shard_of_either_follows() {
    let (_, [one, two], definition) = broadcast();
    let [first, second] = later_shards(&definition);
    let mut gates = Gated::default();
    for (shard, status, attempt) in [
        (&one, RunStatus::Running, 1),
        (&two, RunStatus::Waiting, 2),
        (&first, RunStatus::Running, 2),
        (&second, RunStatus::Waiting, 2),
    ] {
        let mut shard = shard.clone();
        (shard.run.status, shard.run.attempt) = (status, attempt);
        gates.restore(&shard);
    }
    assert_eq!(enter(&mut gates, second), "queued", "an executor may hold a shard of its broadcast");
    assert_eq!(enter(&mut gates, two), "queued");
    // No executor has a shard of the later broadcast. One has a shard of the first, whose other shard passes.
    assert_eq!(keep_for_retry(&mut gates, 20), [11]);
    assert_eq!(leave(&mut gates, 10), [] as [i64; 0]);
    assert_eq!(leave(&mut gates, 11), [21]);
    assert_eq!(leave(&mut gates, 21), [] as [i64; 0]);
    assert_eq!(leave(&mut gates, 20), [] as [i64; 0]);
    assert_eq!((gates.gates.gates.len(), gates.entries.len()), (0, 0));
}

#[test]
fn shards_that_have_begun_are_not_skipped_for_their_own_broadcast() {
    let (_, shards, _) = broadcast();
    for (policy, expected) in [("discard", "queued"), ("cover", "covers [0] and []")] {
        let definition = definition(&json!({"route": "broadcast", "overlap": {"policy": policy}}));
        let mut gates = Gated::default();
        let [one, two] = shards.clone().map(|shard| ReadyRun { definition: definition.clone(), ..shard });
        gates.restore(&restored(0, RunStatus::Running, 1, &definition));
        gates.restore(&one);
        gates.restore(&two);
        assert_eq!(enter(&mut gates, one), expected, "{policy}");
        assert_eq!(enter(&mut gates, two), expected, "{policy}");
        assert_eq!(leave(&mut gates, 0), [10, 11]);
    }
}

#[test]
fn a_run_that_is_not_kept_has_no_place() {
    let (mut gates, serial) = (Gated::default(), overlap("serial", 0));
    assert_eq!(enter(&mut gates, ready(1, &serial)), "passed");
    assert_eq!(enter(&mut gates, ready(2, &serial)), "queued");
    assert_eq!(gates.retain(|run| run == RunId::new(1_000)), 1);
    assert_eq!(enter(&mut gates, ready(2, &serial)), "queued");
    assert_eq!(gates.retain(|_| false), 1);
    assert_eq!(enter(&mut gates, ready(2, &serial)), "passed");
}

fn keep_for_children(gates: &mut Gated, second: i64) -> bool {
    gates.gates.keep_for_children(JobId::new(1), RunId::new(second * 1_000), &mut gates.runs)
}

#[test]
fn a_run_that_awaits_its_children_leaves_twice() {
    let (mut gates, serial) = (Gated::default(), overlap("serial", 0));
    assert_eq!(enter(&mut gates, ready(1, &serial)), "passed");
    assert_eq!(enter(&mut gates, ready(2, &serial)), "queued");
    assert!(keep_for_children(&mut gates, 1));
    assert!(!keep_for_children(&mut gates, 9));
    assert_eq!(leave(&mut gates, 1), [] as [i64; 0]);
    assert_eq!(leave(&mut gates, 1), [2]);

    let (root, shards, definition) = broadcast();
    let mut gates = Gated::default();
    assert_eq!(enter(&mut gates, root.clone()), "passed");
    for shard in &shards {
        assert_eq!(enter(&mut gates, shard.clone()), "passed");
    }
    assert_eq!(leave(&mut gates, 1), [] as [i64; 0]);
    assert_eq!(enter(&mut gates, ready(2, &definition)), "queued");
    assert_eq!(leave(&mut gates, 10), [] as [i64; 0]);
    assert!(keep_for_children(&mut gates, 1));
    assert_eq!(leave(&mut gates, 11), [] as [i64; 0]);
    assert_eq!(leave(&mut gates, 1), [2]);
}

#[test]
fn a_queued_run_expires_by_its_own_instant() {
    let serial = definition(&json!({"queue_timeout": "10s"}));
    let mut gates = Gated::default();
    let expired = |gates: &mut Gated, second| {
        let taken = gates.gates.take_expired(Timestamp::from_secs(second), &mut gates.runs).into_iter();
        taken.map(|(ready, _)| ready.run.due_at.second()).collect::<Vec<_>>()
    };
    assert_eq!(enter(&mut gates, ready(1, &serial)), "passed");
    for second in [8, 15, 22, 29] {
        assert_eq!(enter(&mut gates, ready(second, &serial)), "queued");
    }
    assert_eq!(expired(&mut gates, 17), [] as [i64; 0]);
    assert_eq!(expired(&mut gates, 18), [8]);
    assert_eq!(leave(&mut gates, 1), [15], "its turn came before its time was over");
    assert_eq!(expired(&mut gates, 60), [22, 29]);
    assert!(gates.timeouts.is_empty() && gates.queued_count() == 0);
    // If the server takes a run up late, the run's queue time begins when it is taken up.
    let late = ready(40, &serial).with_queue_start(Timestamp::from_secs(300));
    assert_eq!(enter(&mut gates, late), "queued");
    assert_eq!((expired(&mut gates, 309), expired(&mut gates, 310)), (vec![], vec![40]));
}

#[test]
fn a_run_that_waited_in_time_is_not_missed_before_its_queue_time_ends() {
    let patient = definition(&json!({"queue_timeout": "60s", "schedule": {"every": "1s"}}));
    let now = Timestamp::from_secs;
    let left_behind = |waits_for| {
        let mut ready = ready(100, &patient);
        ready.run.detail = Some(Arc::new(ReasonDetail { waits_for, ..ReasonDetail::default() }));
        ready
    };
    assert!(ready(100, &patient).is_missed(now(130)), "no server had it");
    assert!(left_behind(None).is_missed(now(130)), "no server had it wait");
    assert!(!left_behind(Some(WaitFor::Slot)).is_missed(now(130)));
    assert!(!left_behind(Some(WaitFor::Slot)).is_missed(now(159)));
    assert!(left_behind(Some(WaitFor::Slot)).is_missed(now(160)));
    assert_eq!(
        left_behind(Some(WaitFor::Slot)).with_queue_start(now(130)).waits_until(),
        now(160),
        "from its instant on"
    );
    let end = end_of_missed(&left_behind(Some(WaitFor::Slot)), now(170));
    assert_eq!(end.outcome, Outcome::Skipped(Reason::Expired));
    assert_eq!(end.detail.and_then(|detail| detail.waited_ms), Some(70_000));
    assert_eq!(end_of_missed(&ready(100, &patient), now(170)).outcome, Outcome::Skipped(Reason::Misfire));
}

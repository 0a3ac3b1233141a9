use std::time::Duration;

use rondel_core::ExecutorId;
use serde_json::json;

use super::*;
use crate::dispatch::active::Phase;
use crate::dispatch::tests_support::{definition, ready};
use crate::dispatch::timer::MARK_LEAD;

fn version(second: i64, epoch: i64, attempt: i32) -> ReadyRun {
    let mut ready = ready(second, &definition(&json!({})));
    (ready.run.node_epoch, ready.run.attempt) = (epoch, attempt);
    ready
}

#[test]
fn of_two_versions_of_a_run_the_later_one_counts() {
    let mut runs = OpenRuns::default();
    assert_eq!(runs.arrival(&version(1, 2, 1)), Arrival::New);
    let here = version(1, 2, 2);
    let timer = Timer::new(&here, Duration::ZERO, Duration::ZERO);
    runs.schedule(here, timer);
    for (epoch, attempt, expected) in [
        (3, 1, Arrival::Replaces),
        (2, 3, Arrival::Replaces),
        (2, 2, Arrival::Replaces),
        (2, 1, Arrival::Known),
        (1, 9, Arrival::Known),
    ] {
        assert_eq!(runs.arrival(&version(1, epoch, attempt)), expected, "{epoch} {attempt}");
    }
    let (here, _) = runs.take_scheduled(RunId::new(1_000)).unwrap();
    runs.put(here, Stage::Parked(Timestamp::EPOCH));
    assert_eq!(runs.arrival(&version(1, 2, 2)), Arrival::Known, "it waits for an executor by now");
    assert_eq!(runs.arrival(&version(1, 2, 3)), Arrival::Replaces);
    assert_eq!(runs.arrival(&version(2, 1, 1)), Arrival::New);
}

fn due(runs: &mut OpenRuns, now: Timestamp) -> Vec<i64> {
    std::iter::from_fn(|| runs.take_due(now)).map(|(ready, _)| ready.run.due_at.second()).collect()
}

#[test]
fn timers_fire_in_order_and_held_back_runs_return() {
    let (mut runs, job, at) = (OpenRuns::default(), definition(&json!({})), Timestamp::from_secs);
    for second in [5, 3, 9, 4] {
        let ready = ready(second, &job);
        let timer = Timer::new(&ready, Duration::ZERO, Duration::ZERO);
        runs.schedule(ready, timer);
    }
    assert_eq!(runs.next_timer_at(), Some(at(3)));
    assert!(runs.take_due(at(2)).is_none());
    let (first, timer) = runs.take_due(at(4)).unwrap();
    runs.hold_back(first, timer);
    assert_eq!(due(&mut runs, at(5)), [4, 5], "the first is held back");
    runs.stop_holding_back();
    assert_eq!(due(&mut runs, at(5)), [3]);
    assert!(runs.withdraw(RunId::new(9_000)).is_some() && runs.next_timer_at().is_none());
}

#[test]
fn a_broadcast_is_asked_about_until_it_is_known_whether_it_is_expanded() {
    let (mut runs, root) = (OpenRuns::default(), ready(1, &definition(&json!({"route": "broadcast"}))));
    let shard = root.run.clone();
    runs.wait_for_expansion(root, vec![shard]);
    let asked = runs.take_unconfirmed();
    assert_eq!(asked.iter().map(|(root, shards)| (root.id.get(), shards.len())).collect::<Vec<_>>(), [(1_000, 1)]);
    assert!(runs.take_unconfirmed().is_empty(), "it is being stored");
    let (root, shards) = asked.into_iter().next().unwrap();
    assert_eq!(runs.drain_waiting().len(), 0, "the answer is still to come");
    assert!(runs.take_expanding(&Run { node_epoch: root.node_epoch + 1, ..root.clone() }).is_none());
    let ready = runs.take_expanding(&root).unwrap();
    runs.wait_for_expansion(ready, shards);
    assert!(runs.withdraw(RunId::new(1_000)).is_some() && runs.take_unconfirmed().is_empty());
}

#[test]
fn runs_that_an_executor_may_have_stay_when_waiting_runs_are_dropped() {
    let (mut runs, job) = (OpenRuns::default(), definition(&json!({})));
    let [waits, is_called, is_sent] = [1, 2, 3].map(|second| ready(second, &job));
    let timer = Timer::new(&waits, Duration::ZERO, Duration::ZERO);
    runs.schedule(waits, timer);
    runs.put_in_roll_call(is_called);
    runs.put_active(ActiveRun::new(is_sent, ExecutorId::new(7), "e".to_owned(), Timestamp::EPOCH, Phase::Sent));
    assert_eq!(runs.drain_waiting().len(), 1);
    assert!(runs.next_timer_at().is_none() && runs.in_roll_call(RunId::new(2_000)).is_some());
    assert_eq!(runs.take_from_roll_call(RunId::new(2_000)).map(|ready| ready.run.id), Some(RunId::new(2_000)));
    assert!(runs.drain_roll_call().is_empty() && runs.active(RunId::new(3_000)).is_some());
}

#[test]
fn of_two_attempts_in_hand_the_later_counts() {
    let active = |ready| ActiveRun::new(ready, ExecutorId::new(7), "e".to_owned(), Timestamp::EPOCH, Phase::Sent);
    let run = RunId::new(1_000);
    let mut runs = OpenRuns::default();
    assert!(runs.put_in_roll_call(version(1, 2, 1)));
    runs.put_active(active(version(1, 2, 2)));
    assert!(runs.in_roll_call(run).is_none() && runs.take_from_roll_call(run).is_none() && runs.active(run).is_some());
    assert!(!runs.put_in_roll_call(version(1, 2, 1)), "it has ended");
    assert_eq!(runs.take_active(run).map(|active| active.ready.run.attempt), Some(2));
    assert!(
        runs.put_in_roll_call(version(1, 2, 2)) && runs.take_active(run).is_none() && runs.in_roll_call(run).is_some()
    );
}

#[test]
fn a_timer_that_goes_off_late_by_its_own_clock_is_outdated() {
    let (at, marked) = (Timestamp::from_secs, json!({"delivery": "at_most_once"}));
    assert_eq!(Timer::new(&ready(9, &definition(&marked)), Duration::ZERO, Duration::ZERO).at, at(9) - MARK_LEAD);
    let timer = Timer::new(&ready(9, &definition(&json!({}))), Duration::ZERO, Duration::ZERO);
    assert_eq!(timer.at, at(9));
    let (soon, later) = (Duration::from_millis(900), Duration::from_millis(1_900));
    assert!(!timer.is_outdated(at(9), at(9), soon));
    assert!(timer.is_outdated(at(9), at(9), later), "the clock has stepped back");
    assert!(!timer.is_outdated(at(9), at(10), later), "it is a second late by both");
}

/// The runs of an executor are found by its id, however they came into hand or left it.
#[test]
fn runs_are_found_by_their_executor() {
    let definition = definition(&json!({}));
    let active = |second, executor, attempt| {
        let mut ready = ready(second, &definition);
        ready.run.attempt = attempt;
        ActiveRun::new(ready, ExecutorId::new(executor), String::new(), Timestamp::EPOCH, Phase::Sent)
    };
    let mut runs = OpenRuns::default();
    let of = |runs: &OpenRuns, executor| -> Vec<i64> {
        let its = runs.of_executor(ExecutorId::new(executor));
        its.map(|active| active.ready.run.id.get() / 1_000).collect()
    };
    for (second, executor) in [(3, 1), (1, 1), (2, 2)] {
        runs.put_active(active(second, executor, 1));
    }
    assert_eq!((of(&runs, 1), of(&runs, 2), runs.active_count()), (vec![1, 3], vec![2], 3));
    runs.put_active(active(1, 2, 2));
    runs.put_active(active(1, 1, 1));
    assert_eq!((of(&runs, 1), of(&runs, 2), runs.active_count()), (vec![3], vec![1, 2], 3), "the later attempt counts");
    runs.move_active(RunId::new(3_000), ExecutorId::new(2));
    assert_eq!((of(&runs, 1), of(&runs, 2)), (vec![], vec![1, 2, 3]));
    assert!(runs.take_active(RunId::new(2_000)).is_some() && runs.take_active(RunId::new(2_000)).is_none());
    let mut called = ready(1, &definition);
    called.run.attempt = 2;
    assert!(runs.put_in_roll_call(called));
    assert_eq!((of(&runs, 2), runs.active_count()), (vec![3], 1));
    assert!(runs.take_active(RunId::new(1_000)).is_none() && runs.take_from_roll_call(RunId::new(1_000)).is_some());
}

/// Withdrawing one of several broadcasts, or one of several runs that are held back, does not withdraw the others.
#[test]
fn a_withdrawn_run_leaves_the_others_where_they_wait() {
    let (mut runs, job) = (OpenRuns::default(), definition(&json!({"route": "broadcast"})));
    for second in [1, 2, 3] {
        let root = ready(second, &job);
        let shard = root.run.clone();
        runs.wait_for_expansion(root, vec![shard]);
    }
    assert!(runs.withdraw(RunId::new(2_000)).is_some() && runs.withdraw(RunId::new(2_000)).is_none());
    let again = runs.take_unconfirmed();
    assert_eq!(again.iter().map(|(root, _)| root.id.get()).collect::<Vec<_>>(), [1_000, 3_000]);

    let mut runs = OpenRuns::default();
    for second in [1, 2, 3] {
        let ready = ready(second, &job);
        let timer = Timer::new(&ready, Duration::ZERO, Duration::ZERO);
        runs.hold_back(ready, timer);
    }
    assert!(runs.withdraw(RunId::new(2_000)).is_some());
    runs.stop_holding_back();
    assert_eq!(due(&mut runs, Timestamp::from_secs(9)), [1, 3]);
}

/// A broadcast itself is not marked: each of its shards is marked ahead of its instant.
#[test]
fn a_whole_broadcast_has_its_timer_at_its_instant() {
    let marked = definition(&json!({"route": "broadcast", "delivery": "at_most_once"}));
    let whole = ready(9, &marked);
    let root = ReadyRun { run: whole.run.clone().for_all_shards(), ..whole.clone() };
    assert_eq!(Timer::new(&root, Duration::ZERO, Duration::ZERO).at, Timestamp::from_secs(9));
    assert_eq!(Timer::new(&whole, Duration::ZERO, Duration::ZERO).at, Timestamp::from_secs(9) - MARK_LEAD);
}

/// A run that has waited here for over a second longer than it is overdue shows that the database's clock stepped back.
#[test]
fn a_timer_is_outdated_a_second_after_the_read_ahead() {
    let (at, second) = (Timestamp::from_secs, Duration::from_secs(1));
    let timer = Timer::new(&ready(9, &definition(&json!({}))), Duration::ZERO, second);
    assert!(!timer.is_outdated(at(9), at(8), second * 2));
    assert!(timer.is_outdated(at(9), at(8), second * 2 + Duration::from_millis(1)));
    assert!(!timer.is_outdated(at(9), at(12), second * 5));
    assert!(timer.is_outdated(at(9), at(12), second * 5 + Duration::from_millis(1)));
}

/// Each call returns the runs that came into hand or left it since the last call, and whether they are in hand now.
#[test]
fn runs_that_came_into_hand_or_left_it_are_known() {
    let mut runs = OpenRuns::default();
    assert!(runs.put_in_roll_call(version(1, 2, 1)) && runs.put_in_roll_call(version(2, 2, 1)));
    assert!(runs.take_from_roll_call(RunId::new(2_000)).is_some());
    let mut moved = runs.take_hand_changes();
    moved.sort_unstable();
    moved.dedup();
    assert_eq!(moved, [(RunId::new(1_000), true), (RunId::new(2_000), false)]);
    assert_eq!(runs.take_hand_changes(), []);
    assert_eq!(runs.drain_roll_call().len(), 1);
    assert_eq!(runs.take_hand_changes(), [(RunId::new(1_000), false)]);
}

/// Hundreds of thousands of runs may wait in memory, so values that few of them have are boxed.
#[test]
fn an_open_run_is_small() {
    assert!(size_of::<OpenRun>() <= 568, "{} bytes, {} of them the row", size_of::<OpenRun>(), size_of::<Run>());
}

//! Events of the table, without a runtime and a clock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex};

use rondel_proto::v1::LogChunk;

use super::*;

mod drain;

/// A run of job 0 or 1, depending on its number. The flags: whether its handler has begun, and whether the run has
/// time left.
#[derive(Clone, Debug)]
struct TestRun(RunKey, Arc<NoLog>, Arc<AtomicBool>, Arc<AtomicBool>);

#[derive(Debug)]
struct NoLog;

impl TableLog for NoLog {
    fn link_id(&self) -> u64 {
        0
    }

    fn has_chunks(&self) -> bool {
        false
    }

    fn has_unsent(&self) -> bool {
        false
    }

    fn collect(&self, _: u64, _: bool) -> Vec<LogChunk> {
        Vec::new()
    }

    fn record_ack(&self, _: i64) {}

    fn close(self: &Arc<Self>) {}
}

impl TableRun for TestRun {
    type Log = NoLog;

    fn key(&self) -> RunKey {
        self.0
    }

    fn job_id(&self) -> JobId {
        JobId::new(self.0.run.get() % 2)
    }

    fn fence_n(&self) -> i64 {
        self.0.run.get()
    }

    fn link_id(&self) -> u64 {
        1
    }

    fn log(&self) -> &Arc<NoLog> {
        &self.1
    }

    fn started_at_ms(&self) -> Option<i64> {
        self.2.load(Ordering::Relaxed).then_some(70)
    }

    fn running_ms(&self) -> i64 {
        i64::from(self.2.load(Ordering::Relaxed)) * 30
    }

    fn started_after_ms(&self) -> i64 {
        0
    }

    fn should_end(&self, _: Instant) -> bool {
        !self.3.load(Ordering::Relaxed)
    }
}

/// A stream that records what is sent.
#[derive(Debug)]
struct TestLink(u64, Mutex<Vec<String>>);

impl TestLink {
    fn open(table: &mut RunTable<TestRun, Self>, id: u64) -> Arc<Self> {
        let link = Arc::new(Self(id, Mutex::default()));
        table.add_link(&link, start());
        link
    }

    /// What was sent since the last call: the kind, or the reason of a refusal, and the run.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.1.lock().unwrap())
    }
}

impl TableLink for TestLink {
    fn id(&self) -> u64 {
        self.0
    }

    /// The streams from 10 on lead to another server.
    fn node_id(&self) -> i64 {
        if self.0 < 10 { 7 } else { 8 }
    }

    fn has_log_room(&self) -> bool {
        true
    }

    fn extend(&self, items: impl IntoIterator<Item = LinkItem>) {
        self.1.lock().unwrap().extend(items.into_iter().map(|item| match item {
            LinkItem::Reply(reply) if reply.kind() == Kind::Refused => {
                format!("{:?} {}", reply.refused(), reply.run_id)
            }
            LinkItem::Reply(reply) => format!("{:?} {}", reply.kind(), reply.run_id),
            LinkItem::Result(result) => format!("Result {}", result.run_id),
            LinkItem::Fence(reply) => format!("Fence {} {}", reply.held.len(), reply.finished.len()),
            LinkItem::Draining => "Draining".to_owned(),
            LinkItem::Log(_) | LinkItem::Probe(_) | LinkItem::Pump(_) | LinkItem::Script(_) => {
                unreachable!()
            }
        }));
    }
}

/// An intake that knows only the handler "h".
struct TestIntake;

impl Intake for TestIntake {
    type Run = TestRun;

    fn has_handler(&self, name: &str) -> bool {
        name == "h"
    }

    fn make_run(&self, trigger: Trigger, _: u64) -> TestRun {
        run(trigger.run_id)
    }
}

fn start() -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(|| tokio::time::Instant::now().into_std());
    *START
}

fn run(run_id: i64) -> TestRun {
    TestRun(RunKey::new(run_id, 1), Arc::new(NoLog), Arc::default(), Arc::default())
}

fn triggers(epoch: i64, runs: &[i64]) -> Triggers {
    let trigger = |run_id: &i64| Trigger {
        run_id: *run_id,
        attempt: 1,
        handler: "h".to_owned(),
        fence_n: *run_id,
        begin_within_ms: 1_000,
        ..Trigger::default()
    };
    Triggers { node_id: 7, node_epoch: epoch, triggers: runs.iter().map(trigger).collect() }
}

/// Triggers for an instant that is `millis` milliseconds ahead.
fn ahead(runs: &[i64], millis: i64) -> Triggers {
    let mut triggers = triggers(3, runs);
    triggers.triggers.iter_mut().for_each(|trigger| trigger.start_in_us = millis * 1_000);
    triggers
}

fn later(millis: u64) -> Instant {
    start() + Duration::from_millis(millis)
}

fn result(run_id: i64) -> v1::Result {
    v1::Result { run_id, attempt: 1, ..v1::Result::default() }
}

fn ended(run: &TestRun) -> v1::Result {
    result(run.0.run.get())
}

fn ack(run_id: i64) -> ResultAck {
    ResultAck { run_id, attempt: 1, ..ResultAck::default() }
}

/// A table with one slot.
fn table(journal: bool) -> (RunTable<TestRun, TestLink>, Arc<TestLink>) {
    let mut table = RunTable::new(1, Duration::from_secs(1), journal);
    let link = TestLink::open(&mut table, 1);
    (table, link)
}

#[test]
fn a_repeated_trigger_is_answered_with_the_state_of_its_run() {
    let (mut table, link) = table(false);
    assert_eq!(ids(&table.offer(&link, triggers(3, &[1, 2]), &TestIntake, start())), [1]);
    assert_eq!((link.take(), table.load()), (vec!["Accepted 1".to_owned(), "Accepted 2".to_owned()], (1, 1)));
    table.offer(&link, triggers(3, &[1, 2]), &TestIntake, start());
    assert_eq!(link.take(), ["Accepted 1", "Accepted 2"], "it is held");
    assert_eq!(ids(&table.finish(RunKey::new(1, 1), result(1), start())), [2]);
    assert_eq!(link.take(), ["Result 1"]);
    table.offer(&link, triggers(3, &[1]), &TestIntake, start());
    assert_eq!(link.take(), ["Result 1"], "no server has its result");
    table.record_acks(&[ack(1)], start());
    table.offer(&link, triggers(3, &[1]), &TestIntake, start());
    assert_eq!(link.take(), ["Result 1"], "it is not run again");
    assert_eq!(table.inventory().1, []);
}

#[test]
fn a_run_that_came_ahead_begins_at_its_instant() {
    let mut table = RunTable::new(2, Duration::from_secs(1), false);
    let link = TestLink::open(&mut table, 1);
    assert!(table.offer(&link, ahead(&[2], 400), &TestIntake, start()).is_empty());
    assert!(table.offer(&link, ahead(&[4, 6], 300), &TestIntake, start()).is_empty());
    assert_eq!((link.take().len(), table.load(), table.next_begin()), (3, (0, 3), Some(later(300))));
    assert_eq!(table.free_jobs(vec![0, 1]), [1], "they take no slot of another job until then");
    assert_eq!(ids(&table.offer(&link, triggers(3, &[1]), &TestIntake, later(100))), [1]);
    assert!(table.take_startable(later(299)).is_empty());
    assert_eq!(ids(&table.take_startable(later(300))), [4], "the other slot is taken");
    assert_eq!((table.load(), table.next_begin()), ((2, 2), Some(later(400))));
    assert_eq!(ids(&table.finish(RunKey::new(1, 1), result(1), later(350))), [6]);
    assert!(table.finish(RunKey::new(4, 1), result(4), later(399)).is_empty());
    assert_eq!(ids(&table.take_startable(later(400))), [2]);
    assert_eq!((table.load(), table.next_begin()), ((2, 0), None));
}

#[test]
fn a_run_whose_instant_is_ahead_is_held_and_has_not_begun() {
    let (mut table, link) = table(false);
    table.offer(&link, ahead(&[1, 2, 3], 400), &TestIntake, start());
    table.offer(&link, ahead(&[1], 0), &TestIntake, start());
    assert_eq!(link.take(), ["Accepted 1", "Accepted 2", "Accepted 3", "Accepted 1"], "it is held already");
    let (held, finished) = table.inventory();
    assert_eq!((held.len(), finished.len(), held.iter().all(|run| run.not_begun)), (3, 0, true));
    let fence = Fence { node_id: 7, node_epoch: 3 };
    table.fence(&fence);
    table.answer_fence(&link, &fence, start());
    assert_eq!(link.take(), ["Fence 3 0"], "it goes on");
    assert!(table.stop(|run| run.key().run.get() == 2, ended, start()).is_empty());
    assert_eq!(link.take(), ["Result 2"], "it never began");
    assert_eq!(ids(&table.take_startable(later(400))), [1]);
    table.offer(&link, ahead(&[5], 400), &TestIntake, later(400));
    assert_eq!(link.take(), ["Fenced 5"]);
    let (mut table, link) = self::table(false);
    table.offer(&link, ahead(&[1], 400), &TestIntake, start());
    table.drain(ended, start());
    assert_eq!(link.take(), ["Accepted 1", "Draining 1", "Draining"], "an executor that ends hands it back");
    assert!(table.is_empty() && table.next_begin().is_none());
}

#[test]
fn triggers_are_refused_for_one_reason_each() {
    let (mut table, link) = table(false);
    table.fence(&Fence { node_id: 7, node_epoch: 3 });
    table.fence(&Fence { node_id: 7, node_epoch: 2 });
    table.offer(&link, triggers(3, &[1]), &TestIntake, start());
    assert_eq!((link.take(), table.fenced_epoch(7)), (vec!["Fenced 1".to_owned()], Some(3)));
    let mut unknown = triggers(4, &[1]);
    unknown.triggers[0].handler = "other".to_owned();
    table.offer(&link, unknown, &TestIntake, start());
    assert_eq!(link.take(), ["NoHandler 1"]);
    table.offer(&link, triggers(4, &[1, 2, 3, 4, 5, 6]), &TestIntake, start());
    assert_eq!(link.take().last().unwrap(), "Full 6", "one runs and four wait");
    table.drain(ended, start());
    assert_eq!(link.take(), ["Draining 2", "Draining 3", "Draining 4", "Draining 5", "Draining"]);
    table.offer(&link, triggers(4, &[7]), &TestIntake, start());
    assert_eq!((link.take(), table.free_jobs(vec![9])), (vec!["Draining 7".to_owned()], vec![]));
}

#[test]
fn a_run_that_waited_too_long_is_handed_back_unless_its_server_was_fenced() {
    let later = start() + Duration::from_secs(1);
    let (mut table, link) = table(false);
    table.offer(&link, triggers(3, &[1, 2, 3]), &TestIntake, start());
    link.take();
    table.refuse_expired(start());
    assert!(link.take().is_empty());
    table.refuse_expired(later);
    assert_eq!(link.take(), ["Full 2", "Full 3"]);
    table.offer(&link, triggers(3, &[4]), &TestIntake, start());
    table.fence(&Fence { node_id: 7, node_epoch: 3 });
    link.take();
    assert_eq!(ids(&table.finish(RunKey::new(1, 1), result(1), later)), [4]);
    assert_eq!(link.take(), ["Result 1"]);
}

#[test]
fn a_run_that_waited_too_long_is_handed_back_though_another_server_was_fenced() {
    let (mut table, link) = table(false);
    table.offer(&link, triggers(3, &[1, 2]), &TestIntake, start());
    table.fence(&Fence { node_id: 8, node_epoch: 3 });
    link.take();
    table.refuse_expired(later(1_000));
    assert_eq!(link.take(), ["Full 2"]);
}

/// Each welcome of any server repeats the fences of the last hour.
#[test]
fn a_run_that_waited_too_long_is_handed_back_though_an_earlier_lease_of_its_server_was_fenced() {
    let (mut table, link) = table(false);
    table.offer(&link, triggers(3, &[1, 2]), &TestIntake, start());
    table.fence(&Fence { node_id: 7, node_epoch: 2 });
    link.take();
    table.refuse_expired(later(1_000));
    assert_eq!(link.take(), ["Full 2"]);
}

#[test]
fn a_run_that_waited_too_long_is_handed_back_on_the_next_stream_of_its_server() {
    let (mut table, first) = table(false);
    table.offer(&first, triggers(3, &[1, 2]), &TestIntake, start());
    table.remove_link(1, start());
    table.refuse_expired(later(2_000));
    assert_eq!(table.load(), (1, 1), "its server does not hear it now");
    let second = TestLink::open(&mut table, 2);
    assert!(second.take().is_empty());
    table.refuse_expired(later(999));
    assert!(second.take().is_empty());
    table.refuse_expired(later(1_000));
    assert_eq!((second.take(), table.load()), (vec!["Full 2".to_owned()], (1, 0)));
}

#[test]
fn a_result_is_sent_on_another_stream_until_it_is_acknowledged() {
    let (mut table, first) = table(false);
    table.offer(&first, triggers(3, &[1]), &TestIntake, start());
    let second = TestLink::open(&mut table, 2);
    table.finish(RunKey::new(1, 1), result(1), start());
    assert_eq!((first.take().pop().unwrap(), second.take()), ("Result 1".to_owned(), vec![]));
    table.outbox.resend_due(start() + Duration::from_secs(1));
    assert_eq!((first.take(), second.take()), (vec![], vec!["Result 1".to_owned()]));
    table.remove_link(2, start());
    assert_eq!(first.take(), ["Result 1"]);
    table.remove_link(1, start());
    let third = TestLink::open(&mut table, 3);
    assert_eq!(third.take(), ["Result 1"]);
    table.answer_fence(&third, &Fence { node_id: 7, node_epoch: 3 }, start());
    assert_eq!(third.take(), ["Fence 0 1", "Result 1"]);
    table.record_acks(&[ack(1)], start());
    table.outbox.resend_due(start() + Duration::from_secs(99));
    assert!(third.take().is_empty());
}

#[test]
fn with_a_journal_a_result_is_sent_when_it_is_written() {
    let (mut table, link) = table(true);
    table.offer(&link, triggers(3, &[1, 2]), &TestIntake, start());
    link.take();
    table.finish(RunKey::new(1, 1), result(1), start());
    let running = table.stop(|_| true, ended, start());
    assert_eq!((ids(&running), link.take()), (vec![2], vec![]), "the second one has begun");
    let written = table.take_to_journal();
    table.send_journaled(&written, true, start());
    assert_eq!((link.take(), table.outbox.unacked_journaled_count()), (vec!["Result 1".to_owned()], 1));
    table.record_acks(&[ack(1)], start());
    assert_eq!(table.outbox.unacked_journaled_count(), 0);
}

#[test]
fn a_handler_that_does_not_return_keeps_its_slot() {
    let (mut table, link) = table(false);
    table.offer(&link, triggers(3, &[1, 2]), &TestIntake, start());
    let grace = Duration::from_secs(1);
    assert!(table.take_stuck(start(), grace).is_empty());
    let stuck = table.take_stuck(start() + grace, grace);
    assert_eq!((ids(&stuck), table.load()), (vec![1], (1, 1)));
    table.conclude(&stuck[0], result(1), start());
    assert!(table.take_startable(start()).is_empty());
    assert_eq!(ids(&table.finish(RunKey::new(1, 1), result(1), start())), [2]);
    assert_eq!(link.take(), ["Accepted 1", "Accepted 2", "Result 1"], "its second result is not sent");
}

#[test]
fn a_run_that_need_not_end_any_more_has_its_whole_grace_again() {
    let mut runs = Runs::new(1);
    let held = run(1);
    runs.accept(held.clone(), (1, 1), None, None);
    runs.take_startable(start());
    let grace = Duration::from_secs(1);
    let mut stuck_after = |has_time: bool, graces: u32| {
        held.3.store(has_time, Ordering::Relaxed);
        ids(&runs.take_stuck(start() + grace * graces, grace))
    };
    assert!(stuck_after(false, 0).is_empty(), "its time was up in the queue");
    assert!(stuck_after(true, 1).is_empty(), "its handler has begun");
    assert!(stuck_after(false, 2).is_empty());
    assert_eq!(stuck_after(false, 3), [1]);
}

#[test]
fn an_executor_is_not_free_for_a_job_whose_handler_does_not_return() {
    let mut runs = Runs::new(2);
    runs.accept(run(1), (1, 1), None, None);
    runs.take_startable(start());
    let grace = Duration::from_secs(1);
    assert!(runs.take_stuck(start(), grace).is_empty());
    assert_eq!(ids(&runs.take_stuck(start() + grace, grace)), [1]);
    let has = |runs: &Runs<TestRun>| [1, 0].map(|job| runs.has_job(JobId::new(job)));
    assert_eq!((has(&runs), runs.has_free_slot()), ([true, false], true));
    runs.free_stuck_slot(RunKey::new(1, 1));
    assert_eq!(has(&runs), [false, false]);
}

/// Marks the handlers of these runs as begun.
fn begin(runs: &[TestRun]) {
    runs.iter().for_each(|run| run.2.store(true, Ordering::Relaxed));
}

fn ids(runs: &[TestRun]) -> Vec<i64> {
    runs.iter().map(|run| run.0.run.get()).collect()
}

#[test]
fn queued_runs_start_in_the_order_of_their_arrival() {
    let mut runs = Runs::new(1);
    for run_id in [1, 2, 4, 3] {
        runs.accept(run(run_id), (1, 1), None, None);
    }
    let mut order = Vec::new();
    while !runs.is_empty() {
        let started = runs.take_startable(start());
        assert_eq!(started.len(), 1);
        order.extend(ids(&started));
        runs.remove(started[0].key());
    }
    assert_eq!(order, [1, 2, 4, 3]);
}

#[test]
fn slots_and_credit_bound_the_held_runs() {
    let mut runs = Runs::new(2);
    for run_id in 0..6 {
        assert!(!runs.is_full());
        runs.accept(run(run_id), (1, 1), None, None);
        runs.take_startable(start());
    }
    assert!(runs.is_full());
    assert_eq!((runs.running_count(), runs.queued_count()), (2, 4));
    assert!(runs.has_job(JobId::new(0)) && runs.has_job(JobId::new(1)) && !runs.has_job(JobId::new(2)));
    assert_eq!(ids(&runs.remove_queued(|run| run.0.run.get() > 3)), [4, 5]);
    assert_eq!((runs.running_count(), runs.queued_count()), (2, 2));
}

#[test]
fn only_lasting_runs_are_announced_and_once() {
    let mut runs = Runs::new(9);
    runs.accept(run(1), (1, 1), None, None);
    runs.accept(run(2), (1, 1), None, None);
    begin(&runs.take_startable(start()));
    runs.remove(RunKey::new(1, 1));
    let after = Duration::from_millis(500);
    assert!(runs.take_unannounced(start(), after).is_empty());
    assert_eq!(ids(&runs.take_unannounced(start() + after, after)), [2]);
    assert!(runs.take_unannounced(start() + after, after).is_empty());
}

/// Any server may own a run by now, and a server that connects later has not received the report of the run's start.
#[test]
fn every_server_hears_which_runs_have_begun() {
    let after = Duration::from_millis(500);
    let (mut table, first) = table(false);
    let second = TestLink::open(&mut table, 2);
    let startable = table.offer(&first, triggers(3, &[1, 2]), &TestIntake, start());
    let refs = |table: &RunTable<TestRun, TestLink>| -> Vec<(i64, bool, i64, i64)> {
        table.inventory().0.iter().map(|run| (run.run_id, run.not_begun, run.started_at_ms, run.running_ms)).collect()
    };
    assert_eq!(refs(&table), [(1, true, 0, 0), (2, true, 0, 0)], "a slot is no start");
    first.take();
    table.announce_started(start() + after, after);
    assert!(first.take().is_empty());
    begin(&startable);
    assert_eq!(refs(&table), [(1, false, 70, 30), (2, true, 0, 0)]);
    table.announce_started(start() + after * 2, after);
    assert_eq!((first.take(), second.take()), (vec!["Started 1".to_owned()], vec!["Started 1".to_owned()]));
    table.announce_started(start() + after * 3, after);
    assert!(first.take().is_empty(), "it was reported");
    let third = TestLink::open(&mut table, 3);
    assert_eq!((third.take(), second.take()), (vec!["Started 1".to_owned()], vec![]));
    table.finish(RunKey::new(1, 1), result(1), start());
    assert_eq!(TestLink::open(&mut table, 4).take(), Vec::<String>::new());
}

#[test]
fn a_run_that_is_queued_for_too_long_does_not_begin() {
    let mut runs = Runs::new(1);
    let now = start();
    let soon = Some(now + Duration::from_secs(1));
    [(1, soon), (2, soon), (3, None)].into_iter().for_each(|(id, until)| runs.accept(run(id), (1, 1), None, until));
    assert_eq!(ids(&runs.take_startable(now)), [1]);
    let later = now + Duration::from_secs(1);
    assert!(runs.take_expired(now, |_| true).is_empty() && runs.take_expired(later, |_| false).is_empty());
    assert_eq!(ids(&runs.take_expired(later, |_| true)), [2], "what runs goes on");
    runs.remove(RunKey::new(1, 1));
    assert_eq!(ids(&runs.take_startable(now)), [3]);
}

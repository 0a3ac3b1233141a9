//! The queued runs of an executor that drains.

use super::*;

/// A stream to another server than the one that sent the runs.
const OTHER: u64 = 10;

/// The keys of the runs that are held, and of those whose results no server has acknowledged.
fn listed(table: &RunTable<TestRun, TestLink>) -> (Vec<i64>, Vec<i64>) {
    let ids = |refs: Vec<RunRef>| refs.iter().map(|run| run.run_id).collect();
    let (held, finished) = table.inventory();
    (ids(held), ids(finished))
}

#[test]
fn a_run_is_refused_on_the_open_stream_of_its_server() {
    for has_new_stream in [false, true] {
        let (mut table, first) = table(false);
        table.offer(&first, triggers(3, &[1, 2]), &TestIntake, start());
        table.fence(&Fence { node_id: 7, node_epoch: 2 });
        let link = if has_new_stream {
            table.remove_link(1, start());
            TestLink::open(&mut table, 2)
        } else {
            first
        };
        let other = TestLink::open(&mut table, OTHER);
        link.take();
        table.drain(ended, start());
        assert_eq!(link.take(), ["Draining 2", "Draining"], "{has_new_stream}");
        assert_eq!((other.take(), listed(&table)), (vec!["Draining".to_owned()], (vec![1], vec![])));
    }
}

/// Any server may have taken over a queued run whose lease has ended, even a server without a stream to this executor.
#[test]
fn a_fenced_run_is_handed_back_until_a_server_has_stored_it() {
    let (mut table, link) = table(false);
    table.offer(&link, triggers(3, &[1, 2]), &TestIntake, start());
    table.fence(&Fence { node_id: 7, node_epoch: 3 });
    let other = TestLink::open(&mut table, OTHER);
    link.take();
    table.drain(ended, start());
    assert_eq!(link.take(), ["Draining", "Result 2"], "it takes no more runs when the run is sent again");
    assert_eq!((other.take(), listed(&table)), (vec!["Draining".to_owned()], (vec![1], vec![2])));
    let handed_back = table.outbox.unacked_result(RunKey::new(2, 1)).unwrap();
    assert_eq!((handed_back.started_at_ms, handed_back.silent_ms, handed_back.shutting_down), (0, 1, true));
    table.outbox.resend_due(later(1_000));
    assert_eq!((link.take(), other.take()), (vec![], vec!["Result 2".to_owned()]));
    table.offer(&other, triggers(4, &[2]), &TestIntake, later(1_000));
    assert_eq!(other.take(), ["Result 2"], "its attempt has ended");
    table.record_acks(&[ack(2)], later(1_000));
    table.outbox.resend_due(later(99_000));
    assert_eq!((link.take(), other.take(), listed(&table)), (vec![], vec![], (vec![1], vec![])));
}

/// The run's server may be about to open a stream, with a hello that lists the run.
#[test]
fn a_run_whose_server_has_no_stream_is_handed_back_to_any_server() {
    for is_other_open in [false, true] {
        let (mut table, link) = table(false);
        table.offer(&link, triggers(3, &[1, 2]), &TestIntake, start());
        table.remove_link(1, start());
        let early = is_other_open.then(|| TestLink::open(&mut table, OTHER));
        table.drain(ended, start());
        assert_eq!(listed(&table), (vec![1], vec![2]));
        let other = early.unwrap_or_else(|| TestLink::open(&mut table, OTHER));
        assert_eq!(other.take(), ["Draining", "Result 2"], "{is_other_open}");
        let own = TestLink::open(&mut table, 2);
        assert_eq!(own.take(), ["Draining"]);
        table.outbox.resend_due(later(1_000));
        assert_eq!(own.take(), ["Result 2"]);
    }
}

#[test]
fn with_a_journal_a_run_is_handed_back_when_that_is_written() {
    let (mut table, link) = table(true);
    table.offer(&link, triggers(3, &[1, 2]), &TestIntake, start());
    table.fence(&Fence { node_id: 7, node_epoch: 3 });
    link.take();
    table.drain(ended, start());
    assert_eq!(link.take(), ["Draining"]);
    let written = table.take_to_journal();
    table.send_journaled(&written, true, start());
    assert_eq!((link.take(), table.outbox.unacked_journaled_count()), (vec!["Result 2".to_owned()], 1));
}

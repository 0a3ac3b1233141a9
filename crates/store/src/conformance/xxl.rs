//! Checks of the rows of executors that speak XXL-JOB's protocol.

use std::collections::BTreeSet;
use std::time::Duration;

use rondel_core::{AppId, ExecutorId, JobId, NamespaceId, RunId, Timestamp};

use super::{join, name, next_id, pending_run};
use crate::catalog::{Namespace, NamespaceDeleted};
use crate::xxl::{
    NewXxlRun, XXL_MESSAGE_LEN_MAX, XxlExecutor, XxlReport, XxlReportOutcome, XxlRunState, XxlSettlement,
};
use crate::{LeaseToken, Store};

fn executor(app: AppId, id: i64, (address, token): (&str, &str), seen_at: Timestamp) -> XxlExecutor {
    XxlExecutor {
        id: ExecutorId::new(id),
        namespace: NamespaceId::new(1),
        app,
        address: address.to_owned(),
        token: token.to_owned(),
        first_seen_at: seen_at,
        last_seen_at: seen_at,
        left_at: None,
        by_hand_at: None,
    }
}

/// A run of the job `base + job`, sent to the executor `base + executor`.
fn new(base: i64, job: i64, executor: i64) -> NewXxlRun {
    let (job, executor) = (JobId::new(base + job), ExecutorId::new(base + executor));
    NewXxlRun { run: RunId::new(next_id()), attempt: 1, job, executor, app: AppId::new(base) }
}

/// An address has one executor, with the token that it sent last. The executor keeps its id when it signs off and comes back.
pub async fn executors_of_xxl_job_keep_their_ids(store: &dyn Store) {
    let at = Timestamp::from_secs;
    let base = next_id() * 10;
    let app = AppId::new(base);
    let known = |id: i64, address: &str, token: &str, seen| executor(app, base + id, (address, token), at(seen));
    let id = |id: i64| ExecutorId::new(base + id);
    let (one, two) = ("http://10.0.0.5:9999", "http://10.0.0.6:9999/支付");
    assert_eq!(store.register_xxl(&known(1, one, "a", 100)).await.unwrap(), id(1));
    assert_eq!(store.register_xxl(&known(2, one, "b", 130)).await.unwrap(), id(1));
    assert_eq!(store.register_xxl(&known(3, two, "c", 120)).await.unwrap(), id(3));
    // Two servers register the same new address concurrently.
    let (fourth, fifth) = (known(4, "http://h", "d", 90), known(5, "http://h", "d", 90));
    let (first, second) = tokio::join!(store.register_xxl(&fourth), store.register_xxl(&fifth));
    assert_eq!(first.unwrap(), second.unwrap());
    let found = store.xxl_executors(at(100), 10).await.unwrap();
    let expected = [XxlExecutor { first_seen_at: at(100), ..known(1, one, "b", 130) }, known(3, two, "c", 120)];
    assert_eq!(found, expected);
    assert_eq!(store.xxl_executors(at(100), 1).await.unwrap().len(), 1);
    assert!(!store.unregister_xxl(AppId::new(base + 1), one, at(140)).await.unwrap(), "another app's");
    assert!(store.unregister_xxl(app, one, at(140)).await.unwrap());
    assert!(!store.unregister_xxl(app, one, at(141)).await.unwrap());
    assert_eq!(store.xxl_executors(at(125), 10).await.unwrap()[0].left_at, Some(at(140)));
    store.register_xxl(&known(6, one, "b", 150)).await.unwrap();
    assert_eq!(store.xxl_executors(at(150), 10).await.unwrap()[0].left_at, None, "it is back");
    assert_eq!(store.forget_xxl(at(120), 10).await.unwrap(), 1, "http://h was seen before");
    assert_eq!(store.xxl_executors(at(0), 10).await.unwrap().len(), 2);
    assert_eq!(store.register_xxl(&known(7, "http://h", "d", 160)).await.unwrap(), id(7), "it is a new one");
}

/// A registration by hand stays until it is removed. If that executor also registers itself, it keeps the same id.
pub async fn executors_of_xxl_job_are_registered_by_hand(store: &dyn Store) {
    let at = Timestamp::from_secs;
    let base = next_id() * 10;
    let app = AppId::new(base);
    let known = |id: i64, address: &str, token: &str, seen| executor(app, base + id, (address, token), at(seen));
    let (one, two) = ("http://10.0.0.5:9999", "http://10.0.0.6:9999");
    assert_eq!(store.register_xxl_by_hand(&known(1, one, "a", 100), at(100)).await.unwrap(), ExecutorId::new(base + 1));
    assert_eq!(store.register_xxl_by_hand(&known(2, one, "b", 110), at(110)).await.unwrap(), ExecutorId::new(base + 1));
    store.register_xxl(&known(3, two, "c", 120)).await.unwrap();
    assert_eq!(store.register_xxl_by_hand(&known(4, two, "d", 130), at(130)).await.unwrap(), ExecutorId::new(base + 3));
    let unseen = Timestamp::EPOCH;
    let first = XxlExecutor {
        first_seen_at: at(100),
        last_seen_at: unseen,
        by_hand_at: Some(at(110)),
        ..known(1, one, "b", 100)
    };
    let second = XxlExecutor { by_hand_at: Some(at(130)), ..known(3, two, "d", 120) };
    assert_eq!(store.xxl_registered_by_hand(Some(app), 10).await.unwrap(), [first.clone(), second.clone()]);
    assert_eq!(store.xxl_registered_by_hand(Some(app), 1).await.unwrap(), std::slice::from_ref(&first));
    assert!(store.xxl_registered_by_hand(Some(AppId::new(base + 1)), 10).await.unwrap().is_empty());
    let all = store.xxl_registered_by_hand(None, 10_000).await.unwrap();
    assert!(all.contains(&first) && all.contains(&second));
    // When the executor registers itself, that only changes when it was last seen. When it signs off, nothing else changes.
    assert_eq!(store.register_xxl(&known(5, one, "e", 140)).await.unwrap(), ExecutorId::new(base + 1));
    assert!(store.unregister_xxl(app, one, at(150)).await.unwrap());
    let found = store.xxl_registered_by_hand(Some(app), 1).await.unwrap();
    let seen = XxlExecutor { token: "e".to_owned(), last_seen_at: at(140), left_at: Some(at(150)), ..first };
    assert_eq!(found, [seen]);
    assert!(!store.unregister_xxl_by_hand(AppId::new(base + 1), one).await.unwrap(), "another app's");
    let now = store.now().await.unwrap();
    assert!(store.unregister_xxl_by_hand(app, one).await.unwrap());
    assert!(!store.unregister_xxl_by_hand(app, one).await.unwrap());
    assert_eq!(store.xxl_registered_by_hand(Some(app), 10).await.unwrap(), std::slice::from_ref(&second));
    // Its own registration ended long ago, so it leaves when it is removed. One that registers itself does not.
    let three = "http://10.0.0.8:9999";
    store.register_xxl(&XxlExecutor { last_seen_at: now, ..known(8, three, "g", 170) }).await.unwrap();
    store.register_xxl_by_hand(&known(9, three, "g", 170), now).await.unwrap();
    assert!(store.unregister_xxl_by_hand(app, three).await.unwrap());
    let all = store.xxl_executors(at(140), 10_000).await.unwrap();
    let left_at = |address: &str| all.iter().find(|one| one.app == app && one.address == address).unwrap().left_at;
    assert!(left_at(one) >= Some(now) && left_at(three).is_none(), "{all:?}");

    let namespace = Namespace { id: NamespaceId::new(next_id()), name: name("xxl") };
    assert!(store.create_namespace(&namespace, at(160)).await.unwrap());
    let third = XxlExecutor { namespace: namespace.id, ..known(6, "http://10.0.0.7:9999", "f", 160) };
    store.register_xxl_by_hand(&third, at(160)).await.unwrap();
    assert_eq!(store.delete_namespace(namespace.id).await.unwrap(), NamespaceDeleted::Done);
    let remaining = store.xxl_registered_by_hand(Some(app), 10).await.unwrap();
    assert_eq!(remaining, [second], "an executor goes with its namespace");
}

const fn settlement(log_id: i64, code: Option<i32>) -> XxlSettlement {
    XxlSettlement { log_id, code }
}

/// Numbers rise, fit into 32 bits, and are assigned only under a valid lease. A job keeps its number.
pub async fn a_number_of_xxl_job_is_sent_once(store: &dyn Store) {
    let token = join(store).await;
    let now = store.now().await.unwrap();
    let base = next_id() * 100;
    let runs = [new(base, 71, 1), new(base, 72, 1), new(base, 71, 2)];
    let sent = store.send_xxl(token, &runs, now).await.unwrap().unwrap();
    let again = [new(base, 71, 1), new(base, 73, 1)];
    let (one, two) = tokio::join!(store.send_xxl(token, &again, now), store.send_xxl(token, &again, now));
    let all: Vec<_> = sent.iter().cloned().chain(one.unwrap().unwrap()).chain(two.unwrap().unwrap()).collect();
    let ids: BTreeSet<i64> = all.iter().map(|run| run.log_id).collect();
    assert_eq!(ids.len(), 7, "each has a number of its own: {ids:?}");
    assert!(ids.iter().all(|id| (1_000_000_000..1_000_001_000).contains(id)), "{ids:?}");
    for run in &all {
        let same = all.iter().filter(|other| other.number == run.number).map(|other| other.job);
        assert_eq!(same.collect::<BTreeSet<_>>(), BTreeSet::from([run.job]));
        assert!(run.number >= 1_000_000_000 && run.state == XxlRunState::Open && run.log_line == 1);
        assert_eq!(run.node, token.node);
    }
    let fenced = LeaseToken { epoch: token.epoch - 1, ..token };
    assert_eq!(store.send_xxl(fenced, &again, now).await.unwrap(), None, "without a lease nothing is sent");
    let unsettled = store.unsettled_xxl(ExecutorId::new(base + 2), 10).await.unwrap();
    assert_eq!(unsettled, [sent[2].clone()]);
    assert_eq!(store.unsettled_xxl(ExecutorId::new(base + 1), 2).await.unwrap(), sent[..2]);
}

/// The first report of an attempt counts, if it comes from the attempt's own app. Old reports are removed.
pub async fn the_first_report_of_xxl_job_counts(store: &dyn Store) {
    let token = join(store).await;
    let now = store.now().await.unwrap();
    // Rows that earlier checks left would be counted.
    while store.forget_xxl(now + Duration::from_secs(1), 10).await.unwrap() > 0 {}
    let base = next_id() * 100;
    let runs = [new(base, 71, 1), new(base, 71, 1)];
    let sent = store.send_xxl(token, &runs, now).await.unwrap().unwrap();
    let (first, second) = (sent[0].log_id, sent[1].log_id);
    let report = |log_id, code, message: Option<&str>| XxlReport { log_id, code, message: message.map(str::to_owned) };
    let app = AppId::new(base);
    let others = store.report_xxl(AppId::new(base + 1), &[report(first, 200, None)], now).await.unwrap();
    assert_eq!((others.runs.len(), others.outcomes), (0, vec![XxlReportOutcome::OfOtherApp]));
    let long = "ä".repeat(XXL_MESSAGE_LEN_MAX + 5);
    let reports = [report(first, 200, Some("good")), report(first, 500, Some("bad")), report(7, 200, None)];
    let found = store.report_xxl(app, &reports, now).await.unwrap();
    assert_eq!(found.runs.len(), 1, "one row of three reports");
    assert_eq!(found.outcomes, [XxlReportOutcome::Accepted, XxlReportOutcome::Duplicate, XxlReportOutcome::Unknown]);
    let found = &found.runs[0];
    assert_eq!((found.state, found.code, found.message.as_deref()), (XxlRunState::Reported, Some(200), Some("good")));
    let found = store.report_xxl(app, &[report(second, -1, Some(&long))], now).await.unwrap().runs;
    assert_eq!(found[0].message.as_ref().map(|text| text.chars().count()), Some(XXL_MESSAGE_LEN_MAX));
    // A stop replaces a callback that arrived while the stop was in progress, but does not replace a verdict.
    let stopped = store.send_xxl(token, &runs[..1], now).await.unwrap().unwrap()[0].log_id;
    for (code, expected) in [(200, 200), (-1, -1), (500, -1)] {
        let found = store.report_xxl(app, &[report(stopped, code, None)], now).await.unwrap().runs;
        assert_eq!(found[0].code, Some(expected), "{code}");
    }
    store.settle_xxl(&[settlement(stopped, Some(-1))], now).await.unwrap();
    assert_eq!(store.report_xxl(app, &[report(stopped, -1, Some("again"))], now).await.unwrap().runs[0].message, None);
    // The executor's own report replaces an end that the server assumed, even after the verdict.
    let third = store.send_xxl(token, &runs[..1], now).await.unwrap().unwrap()[0].log_id;
    for (code, expected) in [(-2, -2), (-3, -2), (200, 200), (500, 200), (-2, 200)] {
        let reported = store.report_xxl(app, &[report(third, code, None)], now).await.unwrap();
        let is_new = matches!((code, expected), (-2, -2) | (200, 200));
        assert_eq!(
            reported.outcomes,
            [if is_new { XxlReportOutcome::Accepted } else { XxlReportOutcome::Duplicate }],
            "{code}"
        );
        let found = reported.runs;
        assert_eq!((found[0].state, found[0].code), (XxlRunState::Reported, Some(expected)), "{code}");
        if code == -3 {
            store.settle_xxl(&[settlement(third, Some(-2))], now).await.unwrap();
        }
    }
    // The verdict of the assumed end is stored only now, while the executor's own report has none yet.
    store.settle_xxl(&[settlement(third, Some(-2))], now).await.unwrap();
    let unsettled = store.unsettled_xxl(ExecutorId::new(base + 1), 10).await.unwrap();
    let known_end = unsettled.iter().find(|run| run.log_id == third).map(|run| (run.state, run.code));
    assert_eq!(known_end, Some((XxlRunState::Reported, Some(200))));
    store.settle_xxl(&[settlement(third, Some(200))], now).await.unwrap();
    store.note_xxl_log(first, 12).await.unwrap();
    store.note_xxl_log(first, 5).await.unwrap();
    assert_eq!(store.unsettled_xxl(ExecutorId::new(base + 1), 10).await.unwrap()[0].log_line, 12);
    store.settle_xxl(&[settlement(first, Some(200)), settlement(7, None)], now).await.unwrap();
    let found = store.report_xxl(app, &[report(first, 500, None)], now).await.unwrap().runs;
    assert_eq!((found[0].state, found[0].code), (XxlRunState::Settled, Some(200)));
    let remaining: Vec<i64> =
        store.unsettled_xxl(ExecutorId::new(base + 1), 10).await.unwrap().iter().map(|run| run.log_id).collect();
    assert_eq!(remaining, [second]);
    assert_eq!(store.forget_xxl(now, 10).await.unwrap(), 0);
    let forgotten = store.forget_xxl(now + Duration::from_secs(1), 10).await.unwrap();
    assert_eq!(forgotten, 4, "three that are settled, and one whose run is not there any more");
    let gone = store.report_xxl(app, &[report(first, 200, None)], now).await.unwrap();
    assert_eq!((gone.runs.len(), gone.outcomes), (0, vec![XxlReportOutcome::Unknown]));
    vanished_executors_are_forgotten(store, token).await;
}

/// If an executor vanished, its attempts whose runs have ended are removed. The executor is removed if it has no other attempts.
async fn vanished_executors_are_forgotten(store: &dyn Store, token: LeaseToken) {
    let now = store.now().await.unwrap();
    let later = now + Duration::from_secs(1);
    let base = next_id() * 100;
    let (app, id) = (AppId::new(base), |id: i64| ExecutorId::new(base + id));
    let known = |id: i64, address: &str| executor(app, base + id, (address, "a"), now);
    store.register_xxl(&known(1, "http://10.0.0.5:9999")).await.unwrap();
    store.register_xxl(&known(2, "http://10.0.0.6:9999")).await.unwrap();
    store.register_xxl_by_hand(&known(3, "http://10.0.0.7:9999"), now).await.unwrap();
    let open = pending_run(store, token).await;
    let of_open = NewXxlRun { run: open.id, ..new(base, 71, 1) };
    let sent = store.send_xxl(token, &[of_open, new(base, 71, 2)], now).await.unwrap().unwrap();
    let ids = |found: Vec<XxlExecutor>| found.iter().map(|one| one.id).collect::<Vec<_>>();
    assert!(store.xxl_executors_with_unsettled_ends(later, 10).await.unwrap().is_empty());
    let end = XxlReport { log_id: sent[1].log_id, code: 200, message: None };
    store.report_xxl(app, &[end], now).await.unwrap();
    assert_eq!(ids(store.xxl_executors_with_unsettled_ends(later, 10).await.unwrap()), [id(2)]);
    assert!(store.xxl_executors_with_unsettled_ends(now, 10).await.unwrap().is_empty(), "it is registered");
    assert_eq!(store.forget_xxl(now, 10).await.unwrap(), 0);
    assert_eq!(store.forget_xxl(later, 10).await.unwrap(), 2, "an attempt and its executor");
    assert_eq!(store.unsettled_xxl(id(1), 10).await.unwrap(), sent[..1]);
    assert_eq!(ids(store.xxl_executors(now, 10).await.unwrap()), [id(1)]);
    assert_eq!(ids(store.xxl_registered_by_hand(Some(app), 10).await.unwrap()), [id(3)]);
    // An executor that a user removed is kept as long as one that signed off.
    assert!(store.unregister_xxl_by_hand(app, "http://10.0.0.7:9999").await.unwrap());
    assert_eq!(store.forget_xxl(now, 10).await.unwrap(), 0);
    assert_eq!(store.forget_xxl(now + Duration::from_secs(3_600), 10).await.unwrap(), 1);
    assert_eq!(ids(store.xxl_executors(now, 10).await.unwrap()), [id(1)], "its run is open");
}

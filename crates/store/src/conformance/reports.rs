//! Checks of failures by message, and of schedules of reports.

use std::time::Duration;

use rondel_core::calendar::Weekday;
use rondel_core::notice::NoticeKind;
use rondel_core::report::{FOLDED_COUNT_MAX, REST_KEY, ReportSchedule};
use rondel_core::sketch::Step;
use rondel_core::{AppId, NamespaceId, NodeId, Run, Timestamp};

use super::channels::{channel_in, message};
use super::stats::roll_up;
use super::{DEFAULT, FAILED, claim, finish, finish_all, job, join, name, next_id, run};
use crate::Store;
use crate::catalog::{Namespace, NamespaceDeleted};
use crate::channels::{AfterTry, Delivery, LeaseChannels};
use crate::ledger::AttemptEnd;
use crate::reports::{FailureMessage, FailureQuery, ReportChange, ReportDeleted, ReportSaved, ReportWrite};

/// Failed runs are counted by folded message and day, each run once. The number of different messages per job and day is bounded.
pub async fn failures_are_counted_by_message_and_day(store: &dyn Store) {
    let token = join(store).await;
    let at = Step::Day.floor(Timestamp::from_secs(1_900_000_800));
    let job = job(store, Some(at)).await;
    let message_count = FOLDED_COUNT_MAX + 3;
    let row = |offset: u64| run(&job, token, at + Duration::from_secs(offset));
    let mut rows: Vec<Run> = (0..5).map(row).collect();
    // On the next day.
    rows.push(row(86_400));
    rows.extend((0..message_count).map(|number| row(2 * 86_400 + u64::try_from(number).unwrap())));
    claim(store, token, &job, rows.clone()).await;
    let failed = |row: &Run, message: String| AttemptEnd { message: Some(message), ..finish(row, FAILED) };
    let first: Vec<AttemptEnd> = rows[..3]
        .iter()
        .enumerate()
        .map(|(number, row)| failed(row, format!("order {number} failed after {number}.5s")))
        .collect();
    finish_all(store, &first).await;
    roll_up(store).await;
    let query = |from: Timestamp, days: u64| FailureQuery {
        namespace: DEFAULT,
        jobs: Some(std::slice::from_ref(&job.id)),
        apps: None,
        from,
        to: from + Duration::from_secs(days * 86_400),
        limit: 100,
    };
    let of_day = async |from: Timestamp, days: u64| store.failure_messages(&query(from, days)).await.unwrap();
    let one = of_day(at, 1).await;
    assert_eq!(one.len(), 1, "one message: {one:?}");
    let only = &one[0];
    assert_eq!((only.message.as_str(), only.count, only.newest), ("order # failed after #s", 3, rows[2].id));
    roll_up(store).await;
    assert_eq!(of_day(at, 1).await, one, "nothing counts twice");

    let more = [
        failed(&rows[3], "order 77 failed after 1s".to_owned()),
        AttemptEnd { message: Some("  ".to_owned()), ..finish(&rows[4], FAILED) },
        failed(&rows[5], "order 78 failed after 1s".to_owned()),
    ];
    finish_all(store, &more).await;
    roll_up(store).await;
    let day = of_day(at, 1).await;
    let counted: Vec<(&str, u64)> = day.iter().map(|one| (one.message.as_str(), one.count)).collect();
    assert_eq!(counted[0], ("order # failed after #s", 4));
    assert_eq!(counted.len(), 2, "a run without a message counts under its reason or verdict: {counted:?}");
    assert_eq!(of_day(at, 2).await[0].count, 5, "days add up");
    let app = [job.app];
    let of_app = FailureQuery { jobs: None, apps: Some(&app), ..query(at, 1) };
    let of_app = store.failure_messages(&FailureQuery { limit: 200, ..of_app }).await.unwrap();
    let with_it = of_app.iter().filter(|one| one.jobs.iter().any(|(of, _)| *of == job.id));
    assert!(with_it.count() >= 1, "{of_app:?}");
    let in_present_app = FailureQuery { apps: Some(&app), ..query(at, 1) };
    assert_eq!(store.failure_messages(&in_present_app).await.unwrap(), day, "the job has not moved");
    let of_none = FailureQuery { jobs: None, apps: Some(&[]), ..query(at, 1) };
    assert_eq!(store.failure_messages(&of_none).await.unwrap(), []);

    let letters = |number: usize| "x".repeat(number + 1);
    let many: Vec<AttemptEnd> =
        rows[6..].iter().enumerate().map(|(number, row)| failed(row, letters(number))).collect();
    finish_all(store, &many).await;
    roll_up(store).await;
    let third = of_day(at + Duration::from_secs(2 * 86_400), 1).await;
    assert_eq!(third.len(), FOLDED_COUNT_MAX + 1, "{third:?}");
    let rest: Vec<&FailureMessage> = third.iter().filter(|one| one.key == REST_KEY).collect();
    assert_eq!((rest.len(), rest[0].message.as_str(), rest[0].count), (1, "", 3));

    // A removal keeps to its limit even if many jobs failed on the same day.
    let other = super::job(store, Some(at)).await;
    let row = run(&other, token, at);
    claim(store, token, &other, vec![row.clone()]).await;
    finish_all(store, &[failed(&row, "out of disk".to_owned())]).await;
    roll_up(store).await;
    let forget = async || store.forget_failure_stats(at + Duration::from_secs(1), 1).await.unwrap();
    assert!(forget().await > 0);
    let both = [job.id, other.id];
    let remaining = store.failure_messages(&FailureQuery { jobs: Some(&both), ..query(at, 1) }).await.unwrap();
    assert!(!remaining.is_empty(), "not those of all jobs");
    while forget().await > 0 {}
    assert_eq!(of_day(at, 1).await, []);
    assert_eq!(of_day(at, 2).await[0].count, 1);
    failures_count_for_the_apps_of_their_runs(store).await;
}

/// On the day on which a job moves to another app, its failures count for the apps that their runs belonged to.
async fn failures_count_for_the_apps_of_their_runs(store: &dyn Store) {
    let token = join(store).await;
    let at = Step::Day.floor(Timestamp::from_secs(1_900_000_800));
    let job = job(store, Some(at)).await;
    let now = store.now().await.unwrap();
    let other = store.ensure_app(AppId::new(next_id()), job.namespace, &name("app"), now).await.unwrap().id;
    let apps = [job.app, other, other, job.app];
    let rows: Vec<Run> = (0..)
        .zip(apps)
        .map(|(offset, app)| Run { app, ..run(&job, token, at + Duration::from_secs(offset)) })
        .collect();
    claim(store, token, &job, rows.clone()).await;
    let job_name = name("job");
    let of_app = async |app: AppId| {
        let apps = [app];
        let to = at + Duration::from_secs(86_400);
        let query = FailureQuery { namespace: DEFAULT, jobs: None, apps: Some(&apps), from: at, to, limit: 200 };
        let found = store.failure_messages(&query).await.unwrap();
        let its_count = |one: FailureMessage| one.jobs.iter().find(|(id, _)| *id == job.id).map(|(_, count)| *count);
        found.into_iter().filter_map(its_count).collect::<Vec<_>>()
    };
    let end = |row: &Run| AttemptEnd { message: Some(format!("{job_name} gave up")), ..finish(row, FAILED) };
    finish_all(store, &rows[..2].iter().map(end).collect::<Vec<_>>()).await;
    roll_up(store).await;
    assert_eq!((of_app(job.app).await, of_app(other).await), (vec![1], vec![1]));
    finish_all(store, &rows[2..].iter().map(end).collect::<Vec<_>>()).await;
    roll_up(store).await;
    assert_eq!((of_app(job.app).await, of_app(other).await), (vec![2], vec![2]));
    let of_job = FailureQuery {
        namespace: DEFAULT,
        jobs: Some(std::slice::from_ref(&job.id)),
        apps: None,
        from: at,
        to: at + Duration::from_secs(1),
        limit: 10,
    };
    let all = store.failure_messages(&of_job).await.unwrap();
    let sums: Vec<_> = all.iter().map(|one| (one.count, one.job_count, one.newest)).collect();
    assert_eq!(sums, [(4, 1, rows[3].id)]);
    while store.forget_failure_stats(at + Duration::from_secs(1), 1).await.unwrap() > 0 {}
    assert_eq!(store.failure_messages(&of_job).await.unwrap(), []);
}

/// A message of many jobs is counted once over all days and jobs, with the jobs that had it most often.
pub async fn a_message_names_the_jobs_that_had_it_most(store: &dyn Store) {
    let token = join(store).await;
    let at = Step::Day.floor(Timestamp::from_secs(1_900_000_800));
    let day = 86_400;
    let (mut ids, mut newest) = (Vec::new(), None);
    let app = name("app");
    for number in 1..=7 {
        let job = job(store, Some(at)).await;
        // The last job has most of these runs, half of them on the next day.
        let rows: Vec<Run> = (0..2 * number)
            .map(|fire| run(&job, token, at + Duration::from_secs(fire / 2 + if fire % 2 == 0 { 0 } else { day })))
            .collect();
        claim(store, token, &job, rows.clone()).await;
        let message = |row| AttemptEnd { message: Some(format!("{app} gave up after 5s")), ..finish(row, FAILED) };
        finish_all(store, &rows.iter().map(message).collect::<Vec<_>>()).await;
        newest = newest.max(rows.iter().map(|row| row.id).max());
        ids.push(job.id);
    }
    roll_up(store).await;
    let to = at + Duration::from_secs(2 * day);
    let query = FailureQuery { namespace: DEFAULT, jobs: Some(&ids), apps: None, from: at, to, limit: 20 };
    let found = store.failure_messages(&query).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].count, found[0].job_count, Some(found[0].newest)), (56, 7, newest));
    let named: Vec<_> =
        [7, 6, 5, 4, 3].map(|number: u64| (ids[usize::try_from(number).unwrap() - 1], 2 * number)).into();
    assert_eq!(found[0].jobs, named);

    // More jobs than one statement reads: the counts of all parts are added up.
    let others = (0..1_000).map(|_| rondel_core::JobId::new(next_id()));
    let (first, last) = ids.split_at(3);
    let parts: Vec<_> = first.iter().copied().chain(others).chain(last.iter().copied()).collect();
    assert_eq!(store.failure_messages(&FailureQuery { jobs: Some(&parts), ..query }).await.unwrap(), found);
    let first_day = FailureQuery { to: at + Duration::from_secs(day), limit: 1, ..query };
    assert_eq!(store.failure_messages(&first_day).await.unwrap()[0].count, 28);
}

/// The most frequent message names its jobs even if each of these jobs had other messages more often.
pub async fn a_message_of_many_jobs_names_some(store: &dyn Store) {
    let token = join(store).await;
    let at = Step::Day.floor(Timestamp::from_secs(1_900_000_800));
    let (app, mut ids) = (name("app"), Vec::new());
    for number in 0..21 {
        let job = job(store, Some(at)).await;
        let count = if number % 2 == 1 { 3 } else { 1 };
        let rows: Vec<Run> = (0..count).map(|fire| run(&job, token, at + Duration::from_secs(fire))).collect();
        claim(store, token, &job, rows.clone()).await;
        let message = |(index, row)| {
            let text = if index == 0 { "is tired" } else { "is angry" };
            AttemptEnd { message: Some(format!("{app} {text}")), ..finish(row, FAILED) }
        };
        finish_all(store, &rows.iter().enumerate().map(message).collect::<Vec<_>>()).await;
        ids.push(job.id);
    }
    roll_up(store).await;
    let to = at + Duration::from_secs(86_400);
    let query = FailureQuery { namespace: DEFAULT, jobs: Some(&ids), apps: None, from: at, to, limit: 1 };
    let found = store.failure_messages(&query).await.unwrap();
    let sums: Vec<_> = found.iter().map(|one| (one.count, one.job_count)).collect();
    assert_eq!(sums, [(21, 21)], "{found:?}");
    let tired: Vec<_> = ids.iter().take(5).map(|id| (*id, 1)).collect();
    assert_eq!(found[0].jobs, tired);
    let both = store.failure_messages(&FailureQuery { limit: 2, ..query }).await.unwrap();
    let angry: Vec<_> = ids.iter().skip(1).step_by(2).take(5).map(|id| (*id, 2)).collect();
    assert_eq!((&both[0].jobs, both[1].count, both[1].job_count, &both[1].jobs), (&tired, 20, 10, &angry));
}

/// A report is written once, for the schedule that it was made from, and its message is sent through the channel of that schedule.
pub async fn a_weekly_report_is_written_once(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let namespace = Namespace { id: NamespaceId::new(next_id()), name: name("reported") };
    assert!(store.create_namespace(&namespace, now).await.unwrap());
    let channel = channel_in(namespace.id, now);
    store.save_channel(&channel, None).await.unwrap();
    let spec = ReportSchedule {
        weekday: Weekday::Mon,
        time: "08:00".to_owned(),
        zone: "Europe/Berlin".to_owned(),
        channel: channel.name.clone(),
    };
    let later = now + Duration::from_secs(3_600);
    let change = ReportChange {
        namespace: namespace.id,
        spec: &spec,
        author: "ann\u{0}",
        expected_version: None,
        next_at: Some(later),
        now,
    };
    assert_eq!(store.report_schedule(namespace.id).await.unwrap(), None);
    let again = ReportChange { next_at: Some(now), ..change };
    for (change, expected_version, saved) in [
        (change, Some(1), ReportSaved::Conflict(0)),
        (change, Some(0), ReportSaved::Created),
        (again, Some(0), ReportSaved::Conflict(1)),
        (again, Some(2), ReportSaved::Conflict(1)),
        (again, Some(1), ReportSaved::Changed),
    ] {
        let answer = store.save_report_schedule(ReportChange { expected_version, ..change }).await.unwrap();
        assert_eq!(answer, saved, "{expected_version:?}");
    }
    let its = async |at: Timestamp| {
        let due = store.due_reports(at, 200).await.unwrap();
        due.into_iter().find(|one| one.namespace == namespace.id)
    };
    assert_eq!(its(now - Duration::from_secs(1)).await, None);
    let due = its(now).await.expect("it is due");
    assert_eq!((due.version, &due.spec, due.sent_at), (2, &spec, None));
    assert_eq!(store.report_schedule(namespace.id).await.unwrap().as_ref(), Some(&due));

    let incident = rondel_core::IncidentId::new(next_id());
    let made = message(&channel, incident, NoticeKind::Report, now);
    let write = ReportWrite { schedule: &due, next_at: Some(later), now, message: Some(&made) };
    assert!(store.write_report(&write).await.unwrap());
    assert!(!store.write_report(&write).await.unwrap(), "another server has written it");
    assert_eq!(its(now).await, None);
    let kept = store.report_schedule(namespace.id).await.unwrap().expect("it is there");
    assert_eq!((kept.next_at, kept.sent_at, kept.version), (Some(later), Some(now), 2));
    let lease = LeaseChannels {
        node: NodeId::new(next_id()),
        excluded_channels: &[],
        now,
        channel_max: 500,
        messages_per_channel_max: 5,
        hold: Duration::from_secs(30),
    };
    let leased = store.lease_channels(lease).await.unwrap();
    let its_messages = leased.iter().find(|one| one.channel.id == channel.id).expect("its channel has a message");
    assert_eq!(its_messages.messages.len(), 1);
    assert_eq!(its_messages.messages[0].notice.kind, NoticeKind::Report);
    for one in &leased {
        store.free_channel(one.channel.id, one.held_until, now).await.unwrap();
    }
    let delivery = Delivery {
        id: rondel_core::DeliveryId::new(next_id()),
        channel: channel.id,
        message: made.id,
        incident: None,
        kind: NoticeKind::Report,
        try_number: 1,
        at: now,
        latency_ms: 1,
        verdict: AfterTry::Sent.as_str().to_owned(),
        status: 200,
        error: None,
    };
    assert!(store.record_try(&delivery, AfterTry::Sent).await.unwrap());
    assert_eq!(store.deliveries(channel.id, None, 10).await.unwrap(), [delivery]);

    // The schedule was changed in the meantime: a report made from the earlier schedule is not written.
    store.save_report_schedule(ReportChange { next_at: Some(now), ..change }).await.unwrap();
    let stale = ReportWrite { schedule: &kept, next_at: Some(later), now, message: None };
    assert!(!store.write_report(&stale).await.unwrap());

    // The schedule is saved again while the report is due.
    assert_eq!(store.save_report_schedule(change).await.unwrap(), ReportSaved::Changed);
    let due = its(now).await.expect("it stays due");
    assert_eq!((due.next_at, due.version), (Some(now), 4));
    for (expected, deleted) in [
        (Some(3), ReportDeleted::Conflict(4)),
        (Some(4), ReportDeleted::Deleted),
        (Some(4), ReportDeleted::NotFound),
        (None, ReportDeleted::NotFound),
    ] {
        let answer = store.delete_report_schedule(namespace.id, expected).await.unwrap();
        assert_eq!(answer, deleted, "{expected:?}");
    }

    // A schedule and the deliveries of its channel are deleted with their namespace.
    assert_eq!(store.save_report_schedule(change).await.unwrap(), ReportSaved::Created);
    assert_eq!(store.delete_namespace(namespace.id).await.unwrap(), NamespaceDeleted::Done);
    assert_eq!(store.report_schedule(namespace.id).await.unwrap(), None);
    assert_eq!(store.deliveries(channel.id, None, 10).await.unwrap(), []);
}

//! Checks of calendars, and of the definitions that are planned by them.

use rondel_core::calendar::{CalendarSpec, Rule};
use rondel_core::{AppId, CalendarId, JobId, JobSpec, Timestamp};

use super::edits::delete;
use super::{DEFAULT, NamespaceId, app, compile, expect_created, job_with, name, next_id, spec};
use crate::Store;
use crate::calendars::{CalendarChange, CalendarDeleted, CalendarRecord, CalendarSaved};
use crate::catalog::{Declared, JobChange, JobCreated, JobDeleted, JobRecord, JobSaved, NewJob, PinnedCalendar};

fn rule(day: &str) -> Rule {
    serde_json::from_value(serde_json::json!({"days": [day]})).unwrap()
}

fn calendar_spec(name: &str, rule: Rule) -> CalendarSpec {
    CalendarSpec { name: name.to_owned(), description: "Feiertage \u{1f980}".to_owned(), rule }
}

async fn save(store: &dyn Store, spec: &CalendarSpec, expected_version: Option<i64>) -> CalendarSaved {
    let change = CalendarChange {
        id: CalendarId::new(next_id()),
        namespace: DEFAULT,
        expected_version,
        spec,
        expanded_rule: &spec.rule,
        author: "conformance",
        now: store.now().await.unwrap(),
    };
    store.save_calendar(change).await.unwrap()
}

#[track_caller]
fn expect_saved(saved: CalendarSaved) -> CalendarRecord {
    match saved {
        CalendarSaved::Created(record) | CalendarSaved::Changed(record) => *record,
        CalendarSaved::Conflict(version) => unreachable!("its version is {version}"),
    }
}

fn pin_of(record: &CalendarRecord) -> PinnedCalendar {
    PinnedCalendar { id: record.id, version: record.version }
}

async fn new_job(store: &dyn Store, calendar: Option<PinnedCalendar>) -> NewJob {
    let now = store.now().await.unwrap();
    NewJob {
        id: JobId::new(next_id()),
        namespace: DEFAULT,
        app: app(store).await,
        spec: spec(&name("planned"), serde_json::json!({"schedule": {"every": "1h"}})),
        anchor: now.ceil_second(),
        next_fire_at: None,
        delay: None,
        calendar,
        declared: None,
        author: "conformance".to_owned(),
        now,
    }
}

async fn save_with_calendar(
    store: &dyn Store,
    job: &JobRecord,
    calendar: Option<PinnedCalendar>,
    now: Timestamp,
) -> JobSaved {
    let change = JobChange {
        id: job.id,
        expected_version: None,
        spec: &job.spec,
        job: &compile(&job.spec),
        before: &compile(&job.spec),
        calendar,
        app: job.app,
        author: "calendar",
        skipped_row_id: rondel_core::RunId::new(next_id()),
        now,
        checked_at: now,
        reached: now,
        drops: None,
    };
    store.change_job(change).await.unwrap()
}

/// A calendar is read as it was written. Each save creates a version and must name the version before it.
pub async fn calendars_are_read_as_they_were_written(store: &dyn Store) {
    let word = name("calendar");
    assert_eq!(store.calendar(DEFAULT, &word).await.unwrap(), None);
    let first = calendar_spec(&word, rule("2026-10-01"));
    assert_eq!(save(store, &first, Some(3)).await, CalendarSaved::Conflict(0));
    let CalendarSaved::Created(record) = save(store, &first, Some(0)).await else { unreachable!("it is new") };
    assert_eq!((record.version, &record.spec, &record.expanded_rule), (1, &first, &first.rule));
    assert_eq!(store.calendar(DEFAULT, &word).await.unwrap(), Some(*record.clone()));
    assert_eq!(store.calendar(NamespaceId::new(2), &word).await.unwrap(), None);
    assert_eq!(save(store, &first, Some(0)).await, CalendarSaved::Conflict(1));
    let second = calendar_spec(&word, rule("2026-10-02"));
    let CalendarSaved::Changed(changed) = save(store, &second, Some(1)).await else { unreachable!("it was there") };
    assert_eq!((changed.id, changed.version, changed.created_at), (record.id, 2, record.created_at));
    assert_eq!(store.calendar(DEFAULT, &word).await.unwrap(), Some(*changed));
    assert_eq!(save(store, &first, Some(1)).await, CalendarSaved::Conflict(2));
    assert_eq!(expect_saved(save(store, &first, None).await).version, 3);

    let other = expect_saved(save(store, &calendar_spec(&format!("{word}-b"), rule("2026-10-01")), None).await);
    let page = store.calendars(DEFAULT, Some(&word), 1).await.unwrap();
    assert_eq!(page.iter().map(|calendar| calendar.id).collect::<Vec<_>>(), [other.id]);
    assert_eq!(store.calendars(NamespaceId::new(2), None, 9).await.unwrap(), []);
}

/// Two concurrent saves create one version each, and neither is lost.
pub async fn calendars_saved_at_once_get_a_version_each(store: &dyn Store) {
    let word = name("calendar");
    let (a, b) = (calendar_spec(&word, rule("2026-10-01")), calendar_spec(&word, rule("2026-10-02")));
    let (saved_a, saved_b) = tokio::join!(save(store, &a, None), save(store, &b, None));
    let (saved_a, saved_b) = (expect_saved(saved_a), expect_saved(saved_b));
    assert_eq!(saved_a.id, saved_b.id);
    let mut versions = [saved_a.version, saved_b.version];
    versions.sort_unstable();
    assert_eq!(versions, [1, 2]);
    let (first, second) = tokio::join!(save(store, &a, Some(2)), save(store, &b, Some(2)));
    let conflicts = [&first, &second].into_iter().filter(|done| matches!(done, CalendarSaved::Conflict(3))).count();
    assert_eq!(conflicts, 1, "{first:?} {second:?}");
}

/// A calendar that a job uses is not deleted. Earlier definitions keep the version that they were planned by.
pub async fn a_used_calendar_is_not_deleted(store: &dyn Store) {
    let calendar = expect_saved(save(store, &calendar_spec(&name("calendar"), rule("2026-10-01")), None).await);
    let job = expect_created(store.create_job(new_job(store, Some(pin_of(&calendar))).await).await.unwrap());
    assert_eq!(job.calendar, Some(pin_of(&calendar)));
    assert_eq!(store.job(DEFAULT, &job.spec.name).await.unwrap(), Some(job.clone()));
    let definition = store.definitions(&[(job.id, 1)]).await.unwrap().remove(0);
    assert_eq!(definition.calendar, Some(rule("2026-10-01")));
    let users =
        async |within: Option<&[AppId]>, after| store.jobs_with_calendar(calendar.id, within, after, 5).await.unwrap();
    let own = std::slice::from_ref(&job.spec.name);
    assert_eq!(users(None, None).await, own);
    assert_eq!(users(None, Some(&job.spec.name)).await, Vec::<String>::new());
    assert_eq!(users(Some(&[AppId::new(1), job.app]), None).await, own);
    assert_eq!(users(Some(&[AppId::new(1)]), None).await, Vec::<String>::new());
    assert_eq!(users(Some(&[]), None).await, Vec::<String>::new());
    assert_eq!(store.delete_calendar(calendar.id, Some(7)).await.unwrap(), CalendarDeleted::Conflict(1));
    let used = CalendarDeleted::Used(vec![job.spec.name.clone()], 1);
    assert_eq!(store.delete_calendar(calendar.id, Some(1)).await.unwrap(), used);

    let now = store.now().await.unwrap();
    assert!(
        matches!(save_with_calendar(store, &job, None, now).await, JobSaved::Saved(record, _) if record.calendar.is_none())
    );
    assert_eq!(store.delete_calendar(calendar.id, Some(1)).await.unwrap(), CalendarDeleted::Deleted);
    assert_eq!(store.delete_calendar(calendar.id, None).await.unwrap(), CalendarDeleted::NotFound);
    assert_eq!(store.calendar(DEFAULT, &calendar.spec.name).await.unwrap(), None);
    assert_eq!(save_with_calendar(store, &job, Some(pin_of(&calendar)), now).await, JobSaved::NoCalendar);
    let new = new_job(store, Some(pin_of(&calendar))).await;
    assert_eq!(store.create_job(new.clone()).await.unwrap(), JobCreated::NoCalendar);
    assert_eq!(store.job(DEFAULT, &new.spec.name).await.unwrap(), None, "nothing half saved");
    let rules: Vec<_> = store.definitions(&[(job.id, 1), (job.id, 2)]).await.unwrap();
    assert_eq!(rules.into_iter().map(|held| held.calendar).collect::<Vec<_>>(), [Some(rule("2026-10-01")), None]);

    let again = expect_saved(save(store, &calendar.spec, Some(0)).await);
    assert_eq!((again.version, again.id == calendar.id), (1, false));
    let job = expect_created(store.create_job(new_job(store, Some(pin_of(&again))).await).await.unwrap());
    assert_eq!(delete(store, job.id, None, now).await, JobDeleted::Done);
    assert_eq!(store.delete_calendar(again.id, None).await.unwrap(), CalendarDeleted::Deleted);
}

/// The store serializes a transaction that saves a job with one that deletes the job's calendar.
pub async fn a_calendar_is_not_deleted_under_a_job_that_is_saved(store: &dyn Store) {
    for _ in 0..5 {
        let calendar = expect_saved(save(store, &calendar_spec(&name("calendar"), rule("2026-10-01")), None).await);
        let new = new_job(store, Some(pin_of(&calendar))).await;
        let (made, deleted) = tokio::join!(store.create_job(new), store.delete_calendar(calendar.id, None));
        match (made.unwrap(), deleted.unwrap()) {
            (JobCreated::Saved(_), CalendarDeleted::Used(_, 1))
            | (JobCreated::NoCalendar, CalendarDeleted::Deleted) => {}
            other => unreachable!("both went through: {other:?}"),
        }
    }
}

/// Jobs count as behind until they are planned by the newest version of their calendar.
pub async fn jobs_behind_their_calendar_are_found(store: &dyn Store) {
    let behind = async |job: &JobRecord| {
        let found = store.jobs_with_outdated_calendar(1_000).await.unwrap();
        found.into_iter().find(|found| found.id == job.id)
    };
    let calendar = expect_saved(save(store, &calendar_spec(&name("calendar"), rule("2026-10-01")), None).await);
    let job = expect_created(store.create_job(new_job(store, Some(pin_of(&calendar))).await).await.unwrap());
    let gone = expect_created(store.create_job(new_job(store, Some(pin_of(&calendar))).await).await.unwrap());
    assert_eq!(behind(&job).await, None);
    let newer = expect_saved(save(store, &calendar_spec(&calendar.spec.name, rule("2026-10-02")), None).await);
    assert_eq!(behind(&job).await, Some(job.clone()));
    assert_eq!(store.jobs_with_outdated_calendar(1).await.unwrap().len(), 1);
    let other = expect_saved(save(store, &calendar_spec(&name("calendar"), rule("2026-10-01")), None).await);
    let job_of_other = expect_created(store.create_job(new_job(store, Some(pin_of(&other))).await).await.unwrap());
    expect_saved(save(store, &calendar_spec(&other.spec.name, rule("2026-10-02")), None).await);
    assert_eq!(store.jobs_with_outdated_calendar(2).await.unwrap().len(), 2, "the limit is for all calendars");
    assert_eq!(behind(&job_of_other).await, Some(job_of_other.clone()));
    let now = store.now().await.unwrap();
    assert_eq!(delete(store, gone.id, None, now).await, JobDeleted::Done);
    assert_eq!(behind(&gone).await, None);
    assert_eq!(delete(store, job_of_other.id, None, now).await, JobDeleted::Done);
    let JobSaved::Saved(moved, _) = save_with_calendar(store, &job, Some(pin_of(&newer)), now).await else {
        unreachable!("saved")
    };
    assert_eq!((moved.version, moved.calendar), (2, Some(pin_of(&newer))));
    assert_eq!(behind(&job).await, None);
    let rules: Vec<_> = store.definitions(&[(job.id, 1), (job.id, 2)]).await.unwrap();
    let rules: Vec<_> = rules.into_iter().map(|held| held.calendar).collect();
    assert_eq!(rules, [Some(rule("2026-10-01")), Some(rule("2026-10-02"))]);
}

/// Returns the definitions that were in force within a range, including the one in force at the beginning of the range.
pub async fn versions_are_those_that_held(store: &dyn Store) {
    let calendar = expect_saved(save(store, &calendar_spec(&name("calendar"), rule("2026-10-01")), None).await);
    let start = Timestamp::from_secs(1_800_000_000);
    let at = |second: i64| Timestamp::from_secs(1_800_000_000 + second);
    let new = NewJob { now: start, ..new_job(store, Some(pin_of(&calendar))).await };
    let job = expect_created(store.create_job(new).await.unwrap());
    for second in [10, 20, 30] {
        let pin = (second == 20).then(|| pin_of(&calendar));
        assert!(matches!(save_with_calendar(store, &job, pin, at(second)).await, JobSaved::Saved(..)));
    }
    let versions = async |from, to, limit| {
        let found = store.versions(job.id, from, to, limit).await.unwrap();
        found.into_iter().map(|held| held.version).collect::<Vec<_>>()
    };
    assert_eq!(versions(at(15), at(25), 9).await, [3, 2]);
    assert_eq!(versions(at(20), at(20), 9).await, [3]);
    assert_eq!(versions(at(-50), at(5), 9).await, [1]);
    assert_eq!(versions(at(-50), at(-5), 9).await, Vec::<i64>::new());
    assert_eq!(versions(at(-50), at(99), 2).await, [4, 3]);
    assert_eq!(versions(at(40), at(99), 9).await, [4]);
    let all = store.versions(job.id, start, at(99), 9).await.unwrap();
    assert_eq!((all[3].created_at, all[3].author.as_str(), &all[3].spec), (start, "conformance", &job.spec));
    let rules: Vec<bool> = all.iter().map(|held| held.calendar.is_some()).collect();
    assert_eq!(rules, [false, true, false, true]);
    assert_eq!(store.versions(JobId::new(next_id()), start, at(99), 9).await.unwrap(), []);
}

/// A declaration is stored in addition to the definition, and edits of the definition do not change it.
pub async fn a_declaration_is_stored_in_addition_to_the_definition(store: &dyn Store) {
    let by_hand = job_with(store, spec(&name("hand"), serde_json::json!({})), None).await;
    assert_eq!(by_hand.declared, None);
    let new = new_job(store, None).await;
    let (text, now) = (new.spec.clone(), new.now);
    let job = expect_created(store.create_job(NewJob { declared: Some(text.clone()), ..new }).await.unwrap());
    let expected = Declared { spec: text.clone(), declared_at: now, undeclared_at: None };
    assert_eq!(job.declared, Some(expected.clone()));
    let read = async |job: &JobRecord| store.job(DEFAULT, &job.spec.name).await.unwrap().unwrap().declared;
    let ids = [job.id, by_hand.id, JobId::new(next_id())];
    assert_eq!(store.undeclare_jobs(&ids, now).await.unwrap(), 1);
    assert_eq!(store.undeclare_jobs(&ids, Timestamp::MAX).await.unwrap(), 0);
    assert_eq!(read(&job).await, Some(Declared { undeclared_at: Some(now), ..expected.clone() }));
    assert_eq!(read(&by_hand).await, None);
    let newer = JobSpec { description: "newer".to_owned(), ..text };
    let newer = Declared { spec: newer, ..expected };
    assert!(store.declare_job(job.id, &newer).await.unwrap());
    assert!(store.declare_job(by_hand.id, &newer).await.unwrap());
    assert!(!store.declare_job(JobId::new(next_id()), &newer).await.unwrap());
    assert_eq!((read(&job).await, read(&by_hand).await), (Some(newer.clone()), Some(newer.clone())));
    assert!(
        matches!(save_with_calendar(store, &job, None, now).await, JobSaved::Saved(saved, _) if saved.declared == Some(newer))
    );
}

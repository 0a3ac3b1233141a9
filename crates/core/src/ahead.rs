//! How an edit changes the future fires of a job: which fires vanish, and which appear.

use crate::job::Job;
use crate::time::Timestamp;

/// Maximum number of vanishing fires that are listed, and of appearing fires. Further fires are only counted.
pub const LISTED_MAX: usize = 50;
/// Maximum number of fires that are compared for one job.
pub const STEPS_MAX: u32 = 10_000;

/// A definition with the anchor of its `every` schedules.
#[derive(Clone, Copy, Debug)]
pub struct AnchoredJob<'a> {
    pub job: &'a Job,
    /// The instant from which its `every` schedules count.
    pub anchor: Timestamp,
}

/// Fires that only one of two definitions has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FireList {
    /// How many there are.
    pub count: u64,
    /// The first of these fires, at most [`LISTED_MAX`].
    pub first: Vec<Timestamp>,
}

/// How an edit changes the fires of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FireChanges {
    /// The end of the compared period: the end of the window, or earlier if the window has more fires than may be
    /// compared.
    pub to: Timestamp,
    /// Whether `to` is the end of the window.
    pub is_whole: bool,
    /// Fires of the old definition that the new one does not have.
    pub vanishing: FireList,
    /// Fires of the new definition that the old one does not have.
    pub appearing: FireList,
}

impl FireList {
    fn add(&mut self, at: Timestamp) {
        self.count += 1;
        if self.first.len() < LISTED_MAX {
            self.first.push(at);
        }
    }
}

/// Compares the fires that a job has before and after an edit, in a window from `from` (not included) to `to` (included).
/// `None` means that the job does not exist. Paused jobs, and jobs whose fires depend on the ends of their runs, count as jobs
/// without fires.
///
/// At most `steps` fires are compared, and never more than [`STEPS_MAX`]. The number of compared fires is subtracted from `steps`, so that
/// several jobs can share one budget.
///
/// ```
/// use rondel_core::ahead::{AnchoredJob, fire_changes};
/// use rondel_core::{JobSpec, Timestamp};
///
/// let job = |cron: &str| {
///     let text = format!(r#"{{"name": "a", "app": "b", "handler": "c", "schedule": {{"cron": "{cron}"}}}}"#);
///     serde_json::from_str::<JobSpec>(&text).unwrap().compile().unwrap()
/// };
/// let (before, after) = (job("0 0 2 * * ?"), job("0 0 2,3 * * ?"));
/// let anchored = |job| Some(AnchoredJob { job, anchor: Timestamp::EPOCH });
/// let window = (Timestamp::from_secs(0), Timestamp::from_secs(7 * 86_400));
/// let changes = fire_changes(anchored(&before), anchored(&after), window, &mut 1_000);
/// assert_eq!((changes.vanishing.count, changes.appearing.count), (0, 7));
/// assert_eq!(changes.appearing.first[0].to_string(), "1970-01-01T03:00:00Z");
/// ```
#[must_use]
pub fn fire_changes(
    before: Option<AnchoredJob<'_>>,
    after: Option<AnchoredJob<'_>>,
    (from, to): (Timestamp, Timestamp),
    steps: &mut u32,
) -> FireChanges {
    let mut changes =
        FireChanges { to, is_whole: true, vanishing: FireList::default(), appearing: FireList::default() };
    let [before, after] = [before, after].map(|job| job.filter(|job| job.job.enabled));
    if before.zip(after).is_some_and(|(a, b)| a.anchor == b.anchor && a.job.timetable == b.job.timetable) {
        return changes;
    }
    let next = |anchored_job: Option<AnchoredJob<'_>>, cursor| {
        let anchored_job = anchored_job?;
        anchored_job.job.timetable.next_until(anchored_job.anchor, cursor, to).map(|fire| fire.at)
    };
    let mut steps_left = STEPS_MAX.min(*steps);
    let (mut old_at, mut new_at) = (next(before, from), next(after, from));
    let mut cursor = from;
    while let Some(at) = old_at.into_iter().chain(new_at).min() {
        if steps_left == 0 {
            (changes.to, changes.is_whole) = (cursor, false);
            break;
        }
        let (is_old, is_new) = (old_at == Some(at), new_at == Some(at));
        match (is_old, is_new) {
            (true, false) => changes.vanishing.add(at),
            (false, true) => changes.appearing.add(at),
            _ => {}
        }
        old_at = if is_old { next(before, at) } else { old_at };
        new_at = if is_new { next(after, at) } else { new_at };
        cursor = at;
        steps_left -= 1;
        *steps -= 1;
    }
    changes
}

impl FireChanges {
    /// Whether the edit changes no fire in the compared period.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.vanishing.count == 0 && self.appearing.count == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const WEEK: (Timestamp, Timestamp) = (Timestamp::from_secs(1_800_000_000), Timestamp::from_secs(1_800_604_800));

    fn job(schedule: &Value, enabled: bool) -> Job {
        let spec = json!({"name": "a", "app": "b", "handler": "c", "schedule": schedule, "enabled": enabled});
        serde_json::from_value::<crate::JobSpec>(spec).unwrap().compile().unwrap()
    }

    fn anchored(job: &Job) -> Option<AnchoredJob<'_>> {
        Some(AnchoredJob { job, anchor: Timestamp::EPOCH })
    }

    #[track_caller]
    fn check(before: Option<&Job>, after: Option<&Job>, vanishing: u64, appearing: u64) {
        let changes = fire_changes(before.and_then(anchored), after.and_then(anchored), WEEK, &mut 100_000);
        assert_eq!((changes.vanishing.count, changes.appearing.count, changes.is_whole), (vanishing, appearing, true));
        assert_eq!(changes.is_empty(), vanishing + appearing == 0);
    }

    #[test]
    fn fires_vanish_and_appear() {
        let daily = job(&json!({"cron": "0 0 2 * * ?"}), true);
        let later = job(&json!({"cron": "0 0 3 * * ?"}), true);
        let both = job(&json!([{"cron": "0 0 2 * * ?"}, {"cron": "0 0 3 * * ?"}]), true);
        let paused = job(&json!({"cron": "0 0 2 * * ?"}), false);
        check(Some(&daily), Some(&later), 7, 7);
        check(Some(&daily), Some(&both), 0, 7);
        check(Some(&both), Some(&daily), 7, 0);
        check(Some(&daily), Some(&daily), 0, 0);
        check(Some(&daily), Some(&paused), 7, 0);
        check(Some(&paused), Some(&daily), 0, 7);
        check(None, Some(&daily), 0, 7);
        check(Some(&daily), None, 7, 0);
        check(None, None, 0, 0);
        let delay = job(&json!({"delay": "5s"}), true);
        check(Some(&daily), Some(&delay), 7, 0);
    }

    #[test]
    fn a_search_without_steps_left_names_its_end() {
        let (each, second) = (job(&json!({"every": "1s"}), true), job(&json!({"every": "2s"}), true));
        let mut steps = 15_000;
        let changes = fire_changes(anchored(&each), anchored(&second), WEEK, &mut steps);
        assert_eq!((changes.is_whole, changes.to, steps), (false, Timestamp::from_secs(1_800_010_000), 5_000));
        assert_eq!((changes.vanishing.count, changes.vanishing.first.len()), (5_000, LISTED_MAX));
        let changes = fire_changes(anchored(&each), None, WEEK, &mut steps);
        assert_eq!((changes.vanishing.count, steps), (5_000, 0));
        let changes = fire_changes(anchored(&each), None, WEEK, &mut steps);
        assert_eq!((changes.to, changes.is_whole, changes.vanishing.count), (WEEK.0, false, 0));
    }

    proptest! {
        #[test]
        fn it_is_the_difference_of_the_sets(a in 1_u32..50, b in 1_u32..50, anchor in 0_i64..60) {
            let [old, new] = [a, b].map(|minutes| job(&json!({"every": format!("{}s", minutes * 600)}), true));
            let anchor = Timestamp::from_secs(anchor * 60);
            let [before, after] = [&old, &new].map(|job| AnchoredJob { job, anchor });
            let changes = fire_changes(Some(before), Some(after), WEEK, &mut 100_000);
            let set = |job: &Job| job.timetable.fires(anchor, WEEK.0, WEEK.1).map(|fire| fire.at).collect::<BTreeSet<_>>();
            let (old, new) = (set(&old), set(&new));
            prop_assert_eq!(changes.vanishing.count, old.difference(&new).count() as u64);
            prop_assert_eq!(changes.appearing.count, new.difference(&old).count() as u64);
            let first: Vec<_> = new.difference(&old).copied().take(LISTED_MAX).collect();
            prop_assert_eq!(changes.appearing.first, first);
        }
    }
}

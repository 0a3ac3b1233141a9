//! The effect of an edit on a job's upcoming fires: the next ones under the current definition and under the edited one.

use std::collections::BTreeSet;
use std::time::Duration;

use rondel_core::ahead::{AnchoredJob, fire_changes};
use rondel_core::cron::Tz;
use rondel_core::preview::{PER_DAY_MAX, PreviewRequest, preview};
use rondel_core::{Job, JobSpec, Timestamp, words};
use rondel_store::catalog::JobRecord;
use serde_json::Value;

use super::moment::Moment;
use super::texts::Texts;
use crate::api::schedules::compile;
use crate::call::Call;
use crate::problem::Problem;

/// How many fires of each definition are shown.
const SHOWN_FIRE_COUNT: usize = 10;
/// The period in which the fires that vanish or appear are counted.
const COMPARED_LENGTH: Duration = Duration::from_secs(7 * 86_400);
/// Maximum number of fires that are computed for that period.
const COMPUTED_FIRE_COUNT_MAX: u32 = 5_000;

/// The upcoming fires under both definitions.
pub(super) struct EditEffect {
    pub(super) rows: Vec<UpcomingFireRow>,
    /// How many fires of the next week the edit removes.
    pub(super) vanishing_count: u64,
    /// How many fires of the next week the edit adds.
    pub(super) appearing_count: u64,
    /// Whether the week has too many fires to count them all.
    pub(super) is_cut: bool,
    /// Whether the edited definition is paused.
    pub(super) is_edited_job_paused: bool,
}

/// A fire, and which of the two definitions have it.
pub(super) struct UpcomingFireRow {
    pub(super) at: Moment,
    /// The instant on the clock of the schedule, if that is not UTC.
    pub(super) local: Option<String>,
    /// Whether the current definition has the fire.
    pub(super) is_in_current: bool,
    /// Whether the edited definition has the fire.
    pub(super) is_in_edited: bool,
}

impl EditEffect {
    pub(super) const fn has_no_effect(&self) -> bool {
        self.vanishing_count == 0 && self.appearing_count == 0
    }

    /// The fires of a job under its current definition and under the edited one. `saved_record` is `None` for a new job.
    pub(super) async fn compare<Q>(
        call: &Call<Q>,
        saved_record: Option<&JobRecord>,
        edited_spec: &JobSpec,
        t: &Texts,
    ) -> Result<Self, Problem> {
        let now = call.engine().now();
        let anchor = saved_record.map_or_else(|| now.ceil_second(), |record| record.anchor);
        let new_job = compile_job(call, edited_spec).await?;
        let old_job = match saved_record {
            Some(record) => Some(compile_job(call, &record.spec).await?),
            None => None,
        };
        let anchored = |job| AnchoredJob { job, anchor };
        let (zone, fires) = next_fires(old_job.as_ref().map(anchored), anchored(&new_job), now);
        let mut steps = COMPUTED_FIRE_COUNT_MAX;
        let changes = fire_changes(
            old_job.as_ref().map(anchored),
            Some(anchored(&new_job)),
            (now, now + COMPARED_LENGTH),
            &mut steps,
        );
        let row = |UpcomingFire { at, is_in_current, is_in_edited }| UpcomingFireRow {
            at: Moment::new(at, now, t),
            local: (zone != Tz::UTC).then(|| words::instant_text(zone, at)),
            is_in_current,
            is_in_edited,
        };
        Ok(Self {
            rows: fires.into_iter().map(row).collect(),
            vanishing_count: changes.vanishing.count,
            appearing_count: changes.appearing.count,
            is_cut: !changes.is_whole,
            is_edited_job_paused: !new_job.enabled,
        })
    }
}

/// A fire of one or both of two definitions.
#[derive(Debug, PartialEq)]
struct UpcomingFire {
    at: Timestamp,
    is_in_current: bool,
    is_in_edited: bool,
}

/// The next fires of both definitions, and the zone of the edited one. A fire among the next of one definition may come too late to be among
/// the next of the other, so each fire is looked up in both.
fn next_fires(old_job: Option<AnchoredJob<'_>>, new_job: AnchoredJob<'_>, now: Timestamp) -> (Tz, Vec<UpcomingFire>) {
    let preview_of = |AnchoredJob { job, anchor }: AnchoredJob<'_>| {
        let (timetable, per_day_max) = (&job.timetable, PER_DAY_MAX);
        preview(PreviewRequest { timetable, anchor, after: now, count: SHOWN_FIRE_COUNT, per_day_max })
    };
    let new_preview = preview_of(new_job);
    let (old_job, new_job) = (old_job.filter(|old| old.job.enabled), Some(new_job).filter(|new| new.job.enabled));
    let old_fires = old_job.into_iter().flat_map(|old| preview_of(old).fires);
    let new_fires = new_preview.fires.into_iter().filter(|_| new_job.is_some());
    let instants: BTreeSet<Timestamp> = old_fires.chain(new_fires).map(|fire| fire.at).collect();
    let has_fire = |anchored_job: Option<AnchoredJob<'_>>, at: Timestamp| {
        anchored_job.is_some_and(|AnchoredJob { job, anchor }| job.timetable.fire_at(anchor, at).is_some())
    };
    let fire = |at| UpcomingFire { at, is_in_current: has_fire(old_job, at), is_in_edited: has_fire(new_job, at) };
    (new_preview.zone, instants.into_iter().map(fire).collect())
}

async fn compile_job<Q>(call: &Call<Q>, spec: &JobSpec) -> Result<Job, Problem> {
    let document = |value: serde_json::Result<Value>| value.unwrap_or_default();
    let schedule = document(serde_json::to_value(&spec.schedule));
    let calendar =
        spec.calendar.as_ref().map_or(Value::Null, |calendar_use| document(serde_json::to_value(calendar_use)));
    let mut job = compile(call, schedule, calendar).await?;
    job.enabled = spec.enabled;
    Ok(job)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn every(period: &str, enabled: bool) -> Job {
        let spec = json!({"name": "a", "app": "b", "handler": "c", "schedule": {"every": period}, "enabled": enabled});
        serde_json::from_value::<JobSpec>(spec).unwrap().compile().unwrap()
    }

    fn anchored(job: &Job) -> AnchoredJob<'_> {
        AnchoredJob { job, anchor: Timestamp::EPOCH }
    }

    /// Whether the fire of this minute is in the current and in the edited definition.
    fn shown(old: Option<&Job>, new: &Job, minute: i64) -> (bool, bool) {
        let (_, fires) = next_fires(old.map(anchored), anchored(new), Timestamp::EPOCH);
        let fire = fires.into_iter().find(|fire| fire.at == Timestamp::from_secs(60 * minute)).unwrap();
        (fire.is_in_current, fire.is_in_edited)
    }

    /// The ten next fires of one definition end long before those of the other.
    #[test]
    fn a_fire_of_both_definitions_is_in_both_columns_however_often_one_of_them_fires() {
        let (often, hourly) = (every("5m", true), every("1h", true));
        let both = (true, true);
        let of_minutes = |old, new| [5, 60, 120].map(|minute| shown(Some(old), new, minute));
        assert_eq!(of_minutes(&often, &hourly), [(true, false), both, both]);
        assert_eq!(of_minutes(&hourly, &often), [(false, true), both, both]);
        assert_eq!(shown(Some(&often), &every("1h", false), 50), (true, false), "the edited one is paused");
        assert_eq!(shown(None, &hourly, 60), (false, true));
    }
}

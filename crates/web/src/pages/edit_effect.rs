//! The effect of an edit on a job's upcoming fires: the next ones under the current definition and under the edited one.

use std::collections::{BTreeMap, BTreeSet};
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
        let next_fires = |job: &Job| -> (Tz, BTreeSet<Timestamp>) {
            let request = PreviewRequest {
                timetable: &job.timetable,
                anchor,
                after: now,
                count: SHOWN_FIRE_COUNT,
                per_day_max: PER_DAY_MAX,
            };
            let preview_of_job = preview(request);
            let fires = preview_of_job.fires.iter().filter(|_| job.enabled).map(|fire| fire.at).collect();
            (preview_of_job.zone, fires)
        };
        let (zone, new_fires) = next_fires(&new_job);
        let old_fires = old_job.as_ref().map(|job| next_fires(job).1).unwrap_or_default();
        let mut rows: BTreeMap<Timestamp, (bool, bool)> = BTreeMap::new();
        for at in old_fires {
            rows.entry(at).or_default().0 = true;
        }
        for at in new_fires {
            rows.entry(at).or_default().1 = true;
        }
        let anchored = |job| AnchoredJob { job, anchor };
        let mut steps = COMPUTED_FIRE_COUNT_MAX;
        let changes = fire_changes(
            old_job.as_ref().map(anchored),
            Some(anchored(&new_job)),
            (now, now + COMPARED_LENGTH),
            &mut steps,
        );
        let row = |(at, (is_in_current, is_in_edited))| UpcomingFireRow {
            at: Moment::new(at, now, t),
            local: (zone != Tz::UTC).then(|| words::instant_text(zone, at)),
            is_in_current,
            is_in_edited,
        };
        Ok(Self {
            rows: rows.into_iter().map(row).take(SHOWN_FIRE_COUNT * 2).collect(),
            vanishing_count: changes.vanishing.count,
            appearing_count: changes.appearing.count,
            is_cut: !changes.is_whole,
            is_edited_job_paused: !new_job.enabled,
        })
    }
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

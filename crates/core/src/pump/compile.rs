//! Checks the definition of a pump job.

use std::time::Duration;

use super::{Limits, Pump, Until};
use crate::cron::parse_zone;
use crate::field_error::FieldError;
use crate::schedule::Schedule;
use crate::spec::{
    ConcurrencySpec, Delivery, ITEM_COUNT_MAX, NamedKind, OnSilence, OverlapPolicy, OverlapScope, OverlapSpec,
    PumpSpec, RateSpec, Route, ScheduleSpec, UntilSpec, UntilWord, check_named,
};
use crate::time::Timestamp;

/// Maximum number of groups of a pump job.
const GROUP_COUNT_MAX: u32 = 1_000;
const THREADS_MAX: u32 = 1_000;
const FETCH_MAX: u32 = 100_000;
const HAND_OVER_MAX: Duration = Duration::from_secs(3600);

/// The parts of a job's definition that a pump restricts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobParts<'a> {
    pub(crate) schedules: &'a [(String, &'a ScheduleSpec)],
    pub(crate) shards: Option<u32>,
    pub(crate) route: Route,
    pub(crate) overlap: OverlapSpec,
    pub(crate) delivery: Delivery,
    pub(crate) on_silence: Option<OnSilence>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) concurrency: Option<&'a ConcurrencySpec>,
    pub(crate) rate: Option<&'a RateSpec>,
}

impl PumpSpec {
    /// Checks the pump together with the other parts of its job's definition.
    pub(crate) fn compile(&self, job: JobParts<'_>, errors: &mut Vec<FieldError>) -> Option<Pump> {
        let error_count_before = errors.len();
        self.check_items(errors);
        self.check_numbers(errors);
        refuse_other_settings(job, errors);
        let until = self.compile_until(job, errors);
        if errors.len() > error_count_before {
            return None;
        }
        Some(Pump {
            items: self.items.all().into_iter().collect(),
            groups: self.groups,
            per_executor: self.per_executor,
            items_per_group: self.items_per_group,
            limits: Limits {
                threads: self.threads,
                fetch: self.fetch,
                batch: self.batch,
                mode: self.mode,
                idle: self.idle,
                pause: self.pause,
                hand_over: self.hand_over,
            },
            until: until?,
        })
    }

    fn check_items(&self, errors: &mut Vec<FieldError>) {
        let count = self.items.count();
        if !(1..=ITEM_COUNT_MAX).contains(&count) {
            return errors.push(FieldError::new("/pump/items", format!("{count} items; 1 to {ITEM_COUNT_MAX}")));
        }
        check_named(self.items.named(), ("/pump/items", NamedKind::Item), errors);
    }

    fn check_numbers(&self, errors: &mut Vec<FieldError>) {
        let mut refuse = |field: &str, message: String| {
            errors.push(FieldError::new(format!("/pump/{field}"), message));
        };
        let items = self.items.count();
        if !(1..=GROUP_COUNT_MAX).contains(&self.groups) {
            refuse("groups", format!("{} groups; 1 to {GROUP_COUNT_MAX}", self.groups));
        } else if self.groups > items {
            refuse("groups", format!("{} groups for {items} items: some would have nothing to do", self.groups));
        }
        if self.per_executor == Some(0) {
            refuse("per_executor", "0 groups would let no executor work; 1 or more".to_owned());
        }
        if let Some(max) = self.items_per_group
            && u64::from(max) * u64::from(self.groups) < u64::from(items)
        {
            let message =
                format!("{max} items for each of {} groups leave some of {items} items without a group", self.groups);
            refuse("items_per_group", message);
        }
        if !(1..=THREADS_MAX).contains(&self.threads) {
            refuse("threads", format!("{} workers; 1 to {THREADS_MAX}", self.threads));
        }
        if !(1..=FETCH_MAX).contains(&self.fetch) {
            refuse("fetch", format!("{} rows; 1 to {FETCH_MAX}", self.fetch));
        }
        if !(1..=self.fetch.max(1)).contains(&self.batch) {
            refuse("batch", format!("{} rows; 1 to {}, which one select may return", self.batch, self.fetch));
        }
        let (idle_min, hour) = (Duration::from_millis(10), Duration::from_secs(3600));
        if self.idle < idle_min || self.idle > hour {
            refuse("idle", "is outside 10ms to 1h".to_owned());
        }
        if self.pause > hour {
            refuse("pause", "is longer than 1h".to_owned());
        }
        if self.hand_over < Duration::from_secs(1) || self.hand_over > HAND_OVER_MAX {
            refuse("hand_over", "is outside 1s to 1h".to_owned());
        }
    }

    fn compile_until(&self, job: JobParts<'_>, errors: &mut Vec<FieldError>) -> Option<Until> {
        let schedules = job.schedules;
        match &self.until {
            None if !schedules.is_empty() => {
                let message =
                    "a pump with a schedule ends before its next start: \"empty\" or {\"cron\": \"0 0 6 * * ?\"}";
                errors.push(FieldError::new("/pump/until", message));
                None
            }
            None => Some(Until::Stopped),
            Some(UntilSpec::Word(UntilWord::Empty)) => Some(Until::Empty),
            Some(UntilSpec::Cron(end)) => {
                let start_zone = || schedules.iter().find_map(|(_, schedule)| schedule.time_zone.clone());
                let time_zone = end.time_zone.clone().or_else(start_zone);
                if let Some(Err(error)) = time_zone.as_deref().map(parse_zone) {
                    errors.push(FieldError::new("/pump/until/time_zone", error.to_string()));
                    return None;
                }
                let spec = ScheduleSpec { cron: Some(end.cron.clone()), time_zone, ..ScheduleSpec::default() };
                match Schedule::compile("/pump/until", &spec) {
                    Ok(schedule) if schedule.next_after(Timestamp::EPOCH, Timestamp::EPOCH).is_some() => {
                        Some(Until::At(Box::new(schedule)))
                    }
                    Ok(_) => {
                        let message = format!("{:?} never occurs, so the pump would never end", end.cron);
                        errors.push(FieldError::new("/pump/until/cron", message));
                        None
                    }
                    Err(schedule_errors) => {
                        errors.extend(schedule_errors);
                        None
                    }
                }
            }
        }
    }
}

/// Refuses settings that must keep their defaults in a pump job.
fn refuse_other_settings(job: JobParts<'_>, errors: &mut Vec<FieldError>) {
    let mut refuse = |pointer: &str, message: &str| errors.push(FieldError::new(pointer, message));
    if job.shards.is_some() {
        refuse("/shards", "a pump job has groups instead: /pump/groups");
    }
    if job.route != Route::default() {
        refuse("/route", "the groups of a pump job are dealt evenly over the executors; leave it out");
    }
    if (job.overlap.policy, job.overlap.scope) != (OverlapPolicy::Serial, OverlapScope::Cluster) {
        refuse("/overlap", "a pump job starts when its last run has ended; leave it out");
    }
    if job.delivery != Delivery::AtLeastOnce {
        refuse(
            "/delivery",
            "a group of a pump job continues on another executor when its executor is lost; leave it out",
        );
    }
    if job.on_silence.is_some() {
        refuse("/on_silence", "a group of a pump job stops when it hears no server; leave it out");
    }
    if job.timeout.is_some() {
        refuse("/timeout", "a pump job ends by /pump/until; leave it out");
    }
    if job.concurrency.is_some() {
        refuse("/concurrency", "a pump job is bounded by its groups and their workers; leave it out");
    }
    if job.rate.is_some() {
        refuse("/rate", "a pump job is bounded by /pump/pause; leave it out");
    }
}

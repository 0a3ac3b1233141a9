//! Rests of jobs with nothing in progress. The rows of such a job are read again when a change is noticed that may concern it, and otherwise once
//! its rest has lasted [`REST_LENGTH`]. An idle pump therefore costs nearly nothing.
//!
//! These changes are noticed:
//! - a report of a group, which each group sends when it begins, and the end of an attempt;
//! - another definition, home or lease;
//! - executors that come, go, fill up or are switched;
//! - the instant at which the root run begins or ends.
//!
//! Other changes of rows, by another server or by hand in the database, are found at the end of the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rondel_core::pump::{Room, Root, RootStep, Totals};
use rondel_core::{ExecutorId, JobId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::LeaseToken;
use rondel_store::pumps::PumpJob;

/// How long a job rests: as long as an idle group pauses between two reports, since each report ends the rest and lets a new rest begin.
const REST_LENGTH: Duration = Duration::from_secs(10);

/// The part of a job's state that a look knows without reading its rows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PumpInputs {
    pub(super) record: PumpJob,
    pub(super) lease: LeaseToken,
    /// Executors with the job's handler: whether they take groups, whether they are stopped, and the number of their stream.
    pub(super) executors: Vec<(ExecutorId, Room, bool, Option<u64>)>,
}

/// A job at rest.
#[derive(Debug)]
pub(super) struct Rest {
    /// When the rest began.
    pub(super) since: Timestamp,
    pub(super) inputs: PumpInputs,
    /// The open root run, or else the newest root run; `None` if there is none.
    pub(super) root: Option<Root>,
    pub(super) totals: Totals,
}

impl Rest {
    fn still_rests(&self, inputs: &PumpInputs, now: Timestamp, step: impl FnOnce(Option<Root>) -> RootStep) -> bool {
        // A clock that was set back makes no rest longer.
        let is_over = now < self.since || now >= self.since + REST_LENGTH;
        let is_calm = !is_over && self.inputs == *inputs && step(self.root) == RootStep::Stay;
        is_calm || mutant::on(Mutant::DeafRest)
    }
}

#[derive(Debug, Default)]
pub(super) struct Rests(BTreeMap<JobId, Rest>);

impl Rests {
    /// Forgets jobs that are no longer pump jobs.
    pub(super) fn retain_jobs(&mut self, jobs: &BTreeSet<JobId>) {
        self.0.retain(|job, _| jobs.contains(job));
    }

    /// The totals of the items of a job that continues to rest; `None` if its rest is over, so that a look must handle it.
    pub(super) fn continue_rest(
        &mut self,
        inputs: &PumpInputs,
        now: Timestamp,
        step: impl FnOnce(Option<Root>) -> RootStep,
    ) -> Option<Totals> {
        let job = inputs.record.job;
        if self.0.get(&job)?.still_rests(inputs, now, step) {
            return self.0.get(&job).map(|rest| rest.totals);
        }
        self.end(job);
        None
    }

    pub(super) fn begin(&mut self, rest: Rest) {
        self.0.insert(rest.inputs.record.job, rest);
    }

    pub(super) fn end(&mut self, job: JobId) {
        self.0.remove(&job);
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::{NodeId, Reason};

    use super::*;

    const JOB: JobId = JobId::new(7);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn noticed() -> PumpInputs {
        let record =
            PumpJob { job: JOB, version: 3, saved_at: at(1), home: NodeId::new(1), term: 2, is_deleted: false };
        let lease = LeaseToken { node: NodeId::new(1), epoch: 4 };
        PumpInputs { record, lease, executors: vec![(ExecutorId::new(5), Room::Open, false, Some(1))] }
    }

    fn rests() -> Rests {
        let mut rests = Rests::default();
        let totals = Totals { dealt: 4, ..Totals::default() };
        rests.begin(Rest { since: at(100), inputs: noticed(), root: None, totals });
        rests
    }

    #[test]
    fn a_job_rests_until_something_is_noticed() {
        let with = |change: fn(&mut PumpInputs)| {
            let mut other = noticed();
            change(&mut other);
            other
        };
        let stay = RootStep::Stay;
        for (what, inputs, now, step, still_rests) in [
            ("nothing", noticed(), 109, stay, true),
            ("it rested for long", noticed(), 110, stay, false),
            ("the clock was set back", noticed(), 99, stay, false),
            ("a root run begins", noticed(), 105, RootStep::Begin(at(105)), false),
            ("a root run ends", noticed(), 105, RootStep::End(Reason::WindowOver), false),
            ("it was edited", with(|other| other.record.version = 4), 105, stay, false),
            ("another home and back", with(|other| other.record.term = 3), 105, stay, false),
            ("another lease", with(|other| other.lease.epoch = 5), 105, stay, false),
            ("an executor went", with(|other| other.executors.clear()), 105, stay, false),
            ("an executor is full", with(|other| other.executors[0].1 = Room::Full), 105, stay, false),
            ("an executor is stopped", with(|other| other.executors[0].2 = true), 105, stay, false),
            ("an executor connected anew", with(|other| other.executors[0].3 = Some(2)), 105, stay, false),
        ] {
            let mut rests = rests();
            let totals = rests.continue_rest(&inputs, at(now), |_| step);
            assert_eq!(totals.map(|totals| totals.dealt), still_rests.then_some(4), "{what}");
            assert_eq!(
                rests.continue_rest(&inputs, at(now), |_| stay).is_some(),
                still_rests,
                "{what}: it is over once"
            );
        }
    }

    #[test]
    fn a_job_that_is_gone_rests_no_more() {
        let mut rests = rests();
        rests.retain_jobs(&BTreeSet::from([JOB]));
        assert!(rests.continue_rest(&noticed(), at(101), |_| RootStep::Stay).is_some());
        rests.retain_jobs(&BTreeSet::new());
        assert!(rests.continue_rest(&noticed(), at(101), |_| RootStep::Stay).is_none());
    }
}

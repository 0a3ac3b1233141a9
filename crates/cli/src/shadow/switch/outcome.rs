//! What became of each job, and how the command ends by it.

use std::collections::BTreeMap;

use rondel_core::Timestamp;

use crate::exit::Failure;

/// By the name of the job.
pub(super) type Outcomes = BTreeMap<String, Outcome>;

/// Where a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    Here,
    There,
    Both,
    Nowhere,
    NotKnown,
}

impl Runs {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Here => "rondel",
            Self::There => "xxl-job",
            Self::Both => "both",
            Self::Nowhere => "nowhere",
            Self::NotKnown => "not known",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) seam: Option<Timestamp>,
    /// From the seam on where there is one.
    pub(super) runs: Runs,
    pub(super) result: String,
    pub(super) is_done: bool,
    /// Whether fires ran on neither side, or may have.
    pub(super) has_gap: bool,
}

impl Outcome {
    /// It runs where it was to run.
    pub(super) fn done(runs: Runs, seam: Option<Timestamp>, result: impl Into<String>) -> Self {
        Self { seam, runs, result: result.into(), is_done: true, has_gap: false }
    }

    /// It runs where it ran before.
    pub(super) fn unchanged(runs: Runs, result: impl Into<String>) -> Self {
        Self { seam: None, runs, result: result.into(), is_done: false, has_gap: false }
    }

    /// It was changed on one side, or may have been.
    pub(super) fn half_done(runs: Runs, seam: Timestamp, result: impl Into<String>) -> Self {
        Self { seam: Some(seam), runs, result: result.into(), is_done: false, has_gap: true }
    }

    /// The same with a stretch whose fires are not certain.
    pub(super) fn with_gap(mut self, gap: Option<&str>) -> Self {
        if let Some(gap) = gap {
            self.result.push_str("; ");
            self.result.push_str(gap);
            self.has_gap = true;
        }
        self
    }
}

/// How the command ends.
pub(super) fn verdict(outcomes: &Outcomes) -> Result<(), Failure> {
    let open = outcomes.values().filter(|one| !one.is_done).count();
    let gaps = outcomes.values().filter(|one| one.is_done && one.has_gap).count();
    let count = outcomes.len();
    match (open, gaps) {
        (0, 0) => Ok(()),
        (0, _) => Err(Failure::from_text(format!(
            "all {count} jobs were switched; {gaps} of them without fires at the seam, or perhaps so: see RESULT"
        ))),
        (_, 0) => Err(Failure::from_text(format!("{open} of {count} jobs were not switched; run the command again"))),
        _ => Err(Failure::from_text(format!(
            "{open} of {count} jobs were not switched: run the command again; {gaps} were switched without fires at the seam, or perhaps \
             so: see RESULT"
        ))),
    }
}

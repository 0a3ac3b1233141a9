//! The outcome for each job, and the result of the command, which follows from the outcomes.

use std::collections::BTreeMap;

use rondel_core::Timestamp;

use crate::exit::Failure;

/// Outcomes, keyed by the names of the jobs.
pub(super) type Outcomes = BTreeMap<String, Outcome>;

/// Where a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunLocation {
    Rondel,
    XxlJob,
    Both,
    Neither,
    Unknown,
}

impl RunLocation {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Rondel => "rondel",
            Self::XxlJob => "xxl-job",
            Self::Both => "both",
            Self::Neither => "nowhere",
            Self::Unknown => "not known",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) seam: Option<Timestamp>,
    /// Where the job runs: from the seam on, if there is one.
    pub(super) run_location: RunLocation,
    pub(super) result: String,
    /// Whether the switch of the job is complete.
    pub(super) is_done: bool,
    /// Whether fires ran, or may have run, on neither side or on both sides.
    pub(super) has_gap: bool,
    /// For a job that is not switched: whether the same command, run again, may switch it.
    pub(super) is_repeatable: bool,
}

impl Outcome {
    /// The outcome for a job whose switch is complete.
    pub(super) fn done(run_location: RunLocation, seam: Option<Timestamp>, result: impl Into<String>) -> Self {
        Self { seam, run_location, result: result.into(), is_done: true, has_gap: false, is_repeatable: false }
    }

    /// The outcome for a job that the command has not switched.
    pub(super) fn unchanged(run_location: RunLocation, result: impl Into<String>) -> Self {
        Self { seam: None, is_done: false, ..Self::done(run_location, None, result) }
    }

    /// The outcome for a job that was changed on one side only, or may have been.
    pub(super) fn half_done(run_location: RunLocation, seam: Timestamp, result: impl Into<String>) -> Self {
        Self { is_done: false, has_gap: true, ..Self::done(run_location, Some(seam), result) }
    }

    /// Adds that the command must be repeated.
    pub(super) fn repeatable(mut self) -> Self {
        self.result.push_str(": run the command again");
        self.is_repeatable = true;
        self
    }

    /// Adds a gap: a range of instants whose fires did not run exactly once, or may not have.
    pub(super) fn with_gap(mut self, gap: Option<&str>) -> Self {
        if let Some(gap) = gap {
            self.result.push_str("; ");
            self.result.push_str(gap);
            self.has_gap = true;
        }
        self
    }
}

/// The result of the command: a failure if a job was not switched, or has a gap.
pub(super) fn command_result(outcomes: &Outcomes) -> Result<(), Failure> {
    let unfinished_count = outcomes.values().filter(|outcome| !outcome.is_done).count();
    let gap_count = outcomes.values().filter(|outcome| outcome.is_done && outcome.has_gap).count();
    let count = outcomes.len();
    match (unfinished_count, gap_count) {
        (0, 0) => Ok(()),
        (0, _) => Err(Failure::from_text(format!(
            "all {count} jobs were switched; {gap_count} of them without fires at the seam, or perhaps so: see RESULT"
        ))),
        (_, 0) => Err(Failure::from_text(format!(
            "{unfinished_count} of {count} jobs were not switched: {}",
            advice(outcomes, unfinished_count)
        ))),
        _ => Err(Failure::from_text(format!(
            "{unfinished_count} of {count} jobs were not switched: {}; {gap_count} were switched without fires at the seam, or perhaps so: see RESULT",
            advice(outcomes, unfinished_count)
        ))),
    }
}

/// The advice for the jobs that were not switched.
fn advice(outcomes: &Outcomes, unfinished_count: usize) -> String {
    let repeatable_count = outcomes.values().filter(|outcome| !outcome.is_done && outcome.is_repeatable).count();
    match repeatable_count {
        0 => "see RESULT of each".to_owned(),
        _ if repeatable_count == unfinished_count => "run the command again".to_owned(),
        _ => format!("see RESULT of each; running the command again helps {repeatable_count} of them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice_for(outcomes: &[Outcome]) -> String {
        let named = outcomes.iter().enumerate().map(|(index, one)| (format!("job-{index}"), one.clone()));
        command_result(&named.collect()).map_or_else(|failure| failure.message().to_owned(), |()| String::new())
    }

    #[test]
    fn the_command_is_to_be_repeated_only_where_that_helps() {
        let done = Outcome::done(RunLocation::Rondel, None, "runs here");
        let refusal = Outcome::unchanged(RunLocation::XxlJob, "no executor of app work is online here");
        let unclear = Outcome::unchanged(RunLocation::Unknown, "not known").repeatable();
        assert_eq!(unclear.result, "not known: run the command again");
        for (outcomes, expected) in [
            (&[done.clone()][..], ""),
            (&[done.clone(), refusal.clone()], "1 of 2 jobs were not switched: see RESULT of each"),
            (&[done, unclear.clone()], "1 of 2 jobs were not switched: run the command again"),
            (
                &[refusal, unclear],
                "2 of 2 jobs were not switched: see RESULT of each; running the command again helps 1 of them",
            ),
        ] {
            assert_eq!(advice_for(outcomes), expected);
        }
    }
}

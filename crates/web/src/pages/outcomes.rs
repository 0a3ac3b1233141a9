//! The last runs of a job as a small chart, with the newest on the right. Each verdict has its own colour and shape.

use rondel_core::RunStatus;
use rondel_store::rollups::ChartRun;

use super::texts::Texts;

/// How many runs the chart shows.
pub(super) const OUTCOME_COUNT: usize = 60;
/// The width of a run, including the gap after it.
const RUN_WIDTH: usize = 3;
/// The height of the chart.
const HEIGHT: usize = 18;

/// Runs that are drawn with the same shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OutcomeShape {
    pub(super) class: &'static str,
    pub(super) path: String,
}

#[derive(Clone, Debug)]
pub(super) struct Outcomes {
    pub(super) shapes: Vec<OutcomeShape>,
    pub(super) width: usize,
    pub(super) height: usize,
    /// The chart in words: `60 runs: 58 succeeded, 2 failed`.
    pub(super) label: String,
}

/// The top and bottom of a mark, measured from the top of the chart. Successes are short; failures are tall and reach below all other
/// marks.
const fn mark_extent(status: RunStatus) -> (usize, usize) {
    match status {
        RunStatus::Succeeded => (7, 13),
        RunStatus::Failed => (1, 18),
        RunStatus::TimedOut => (1, 13),
        RunStatus::Unknown => (1, 7),
        RunStatus::Cancelled => (10, 13),
        RunStatus::Skipped => (12, 13),
        RunStatus::Pending | RunStatus::Waiting => (9, 11),
        RunStatus::Running => (4, 13),
    }
}

impl Outcomes {
    pub(super) fn new(runs_newest_first: &[ChartRun], t: &Texts) -> Self {
        let shown_runs = &runs_newest_first[..runs_newest_first.len().min(OUTCOME_COUNT)];
        let mut shapes = Vec::new();
        let mut words = Vec::new();
        for status in RunStatus::ALL {
            let indexes =
                shown_runs.iter().enumerate().filter(|(_, run)| run.status == *status).map(|(index, _)| index);
            let indexes: Vec<usize> = indexes.collect();
            if indexes.is_empty() {
                continue;
            }
            words.push(format!("{} {}", indexes.len(), t.status(*status)));
            let (top, bottom) = mark_extent(*status);
            let mark =
                |index: &usize| format!("M{} {top}v{}", (OUTCOME_COUNT - 1 - index) * RUN_WIDTH + 1, bottom - top);
            shapes.push(OutcomeShape { class: status.as_str(), path: indexes.iter().map(mark).collect() });
        }
        let label = if words.is_empty() { t.never.to_owned() } else { t.outcomes(words.join(", "), shown_runs.len()) };
        Self { shapes, width: OUTCOME_COUNT * RUN_WIDTH, height: HEIGHT, label }
    }
}

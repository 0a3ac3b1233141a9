//! The starts of runs, and which fires they belong to.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock;
use crate::histogram::Histogram;
use crate::xxl::RunRequest;

/// The start of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Start {
    pub(crate) job: i64,
    /// The second in which the server created the run.
    pub(crate) second: i64,
    /// When the run started, in microseconds since 1970.
    pub(crate) at_us: i64,
    /// The id of the run.
    pub(crate) log_id: i64,
}

#[derive(Debug, Default)]
struct Inner {
    /// Only the starts of runs that the server created in these seconds since 1970 are kept.
    seconds: Range<i64>,
    starts: Vec<Start>,
    started_in_all: u64,
}

/// Records the starts of the runs of all executors.
#[derive(Clone, Debug, Default)]
pub(crate) struct StartRecorder(Arc<Mutex<Inner>>);

impl StartRecorder {
    /// From now on, keeps the starts of runs that the server created in these seconds.
    pub(crate) fn open(&self, seconds: Range<i64>) {
        self.lock().seconds = seconds;
    }

    /// Records a start that happens now.
    pub(crate) fn note(&self, run: RunRequest) {
        let start = Start { job: run.job_id, second: run.second(), at_us: clock::now_micros(), log_id: run.log_id };
        let mut inner = self.lock();
        inner.started_in_all += 1;
        if inner.seconds.contains(&start.second) {
            inner.starts.push(start);
        }
    }

    /// The number of fires that have a start. A fire is a pair of a job and one of these seconds.
    pub(crate) fn fire_count(&self, seconds: &Range<i64>) -> usize {
        let inner = self.lock();
        let starts = inner.starts.iter().filter(|start| seconds.contains(&start.second));
        starts.map(|start| (start.job, start.second)).collect::<HashSet<_>>().len()
    }

    /// The number of all starts, and the starts that were kept.
    pub(crate) fn take(&self) -> (u64, Vec<Start>) {
        let mut inner = self.lock();
        (inner.started_in_all, std::mem::take(&mut inner.starts))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What became of the fires of the window.
#[derive(Clone, Debug, Default)]
pub(crate) struct FireCounts {
    /// Fires whose run started.
    pub(crate) started: u64,
    /// Fires whose run started in a later second than the planned one.
    pub(crate) started_late: u64,
    /// Fires without a start.
    pub(crate) missing: u64,
    /// Further starts of fires whose run had already started.
    pub(crate) repeated: u64,
    /// Starts before their planned second.
    pub(crate) early: u64,
    /// The delay from the planned second to the start.
    pub(crate) lateness: Histogram,
}

/// Counts the fires of jobs that are due each second of the window. The starts may reach beyond the window; the `lead_seconds` seconds
/// before it are evaluated, too.
///
/// Executors do not learn the second for which a run was planned. If a job has two runs in one second, one of them counts as
/// the late run of an earlier second without a run. If there is no such second, it counts as a repetition.
pub(crate) fn attribute_starts(
    mut starts: Vec<Start>,
    jobs: &[i64],
    window: &Range<i64>,
    lead_seconds: i64,
) -> FireCounts {
    starts.sort_unstable();
    let mut by_job: BTreeMap<i64, Vec<Start>> = jobs.iter().map(|job| (*job, Vec::new())).collect();
    for start in starts {
        if let Some(job_starts) = by_job.get_mut(&start.job) {
            job_starts.push(start);
        }
    }
    let mut fires = FireCounts::default();
    for starts in by_job.values() {
        fires.add_job(starts, window, lead_seconds);
    }
    fires
}

impl FireCounts {
    /// Adds the fires of one job, whose starts are sorted.
    fn add_job(&mut self, starts: &[Start], window: &Range<i64>, lead_seconds: i64) {
        let end_second = starts.last().map_or(window.end, |start| window.end.max(start.second + 1));
        let (mut later_starts, mut known_runs) = (starts, HashSet::new());
        // Seconds without a start so far, in ascending order.
        let mut open_seconds: Vec<i64> = Vec::new();
        for second in window.start - lead_seconds..end_second {
            let skipped_count = later_starts.iter().take_while(|start| start.second < second).count();
            let count = later_starts[skipped_count..].iter().take_while(|start| start.second == second).count();
            let (second_starts, remaining_starts) = later_starts[skipped_count..].split_at(count);
            later_starts = remaining_starts;
            // If a run was sent twice, its second start always counts as a repetition.
            let new_runs: Vec<Start> =
                second_starts.iter().copied().filter(|start| known_runs.insert(start.log_id)).collect();
            let repeated_count = second_starts.len() - new_runs.len();
            let Some(extra_count) = new_runs.len().checked_sub(1) else {
                self.note_repeated(second, repeated_count, window);
                open_seconds.push(second);
                continue;
            };
            let late_seconds = open_seconds.split_off(open_seconds.len() - extra_count.min(open_seconds.len()));
            for (planned_second, start) in late_seconds.iter().zip(&new_runs) {
                self.started_late += u64::from(window.contains(planned_second));
                self.note(*planned_second, *start, window);
            }
            self.note(second, new_runs[late_seconds.len()], window);
            self.note_repeated(second, repeated_count + extra_count - late_seconds.len(), window);
        }
        self.missing += open_seconds.iter().filter(|second| window.contains(second)).count() as u64;
    }

    fn note_repeated(&mut self, second: i64, count: usize, window: &Range<i64>) {
        if window.contains(&second) {
            self.repeated += count as u64;
        }
    }

    fn note(&mut self, planned_second: i64, start: Start, window: &Range<i64>) {
        if !window.contains(&planned_second) {
            return;
        }
        let lateness_micros = start.at_us - planned_second * 1_000_000;
        self.started += 1;
        self.early += u64::from(lateness_micros < 0);
        self.lateness.record(u64::try_from(lateness_micros).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counts of the window from second 100 to 105 for a job 1 with these starts: second, and milliseconds after it.
    /// Each start is a run of its own, unless a run is named.
    fn counted(starts: &[(i64, i64, Option<i64>)]) -> [u64; 5] {
        let starts = starts.iter().enumerate().map(|(index, (second, late_ms, log))| Start {
            job: 1,
            second: *second,
            at_us: (second * 1_000 + late_ms) * 1_000,
            log_id: log.unwrap_or(1_000 + i64::try_from(index).unwrap()),
        });
        let fires = attribute_starts(starts.collect(), &[1], &(100..105), 3);
        assert_eq!(fires.lateness.count(), fires.started);
        assert_eq!(fires.started + fires.missing, 5, "{fires:?}");
        [fires.started, fires.started_late, fires.missing, fires.repeated, fires.early]
    }

    fn each_second(seconds: Range<i64>) -> Vec<(i64, i64, Option<i64>)> {
        seconds.map(|second| (second, 5, None)).collect()
    }

    #[test]
    fn each_fire_of_a_good_run_started() {
        assert_eq!(counted(&each_second(97..108)), [5, 0, 0, 0, 0]);
        assert_eq!(counted(&each_second(100..105)), [5, 0, 0, 0, 0]);
        assert_eq!(counted(&[]), [0, 0, 5, 0, 0]);
    }

    #[test]
    fn a_second_without_a_start_is_missing() {
        let mut starts = each_second(97..108);
        starts.retain(|(second, ..)| *second != 102);
        assert_eq!(counted(&starts), [4, 0, 1, 0, 0]);
    }

    #[test]
    fn a_second_start_is_late_or_repeated() {
        let mut starts = each_second(97..108);
        starts.push((103, 9, None));
        assert_eq!(counted(&starts), [5, 0, 0, 1, 0]);
        starts.retain(|(second, ..)| *second != 102);
        assert_eq!(counted(&starts), [5, 1, 0, 0, 0]);
        // The run of the last second can be created after the window.
        let mut starts = each_second(97..108);
        starts.retain(|(second, ..)| *second != 104);
        starts.push((106, 9, None));
        assert_eq!(counted(&starts), [5, 1, 0, 0, 0]);
        // A late run that belongs to a second before the window is not counted.
        let mut starts = each_second(98..108);
        starts.push((100, 1, None));
        assert_eq!(counted(&starts), [5, 0, 0, 0, 0]);
    }

    #[test]
    fn lateness_counts_from_the_planned_second() {
        let starts = [(100, 1, None), (103, 2, None), (103, 3, None), (103, 4, None), (104, 1, None)];
        let starts = starts.map(|(second, late_ms, _): (i64, i64, Option<i64>)| Start {
            job: 1,
            second,
            at_us: (second * 1_000 + late_ms) * 1_000,
            log_id: second * 10 + late_ms,
        });
        let fires = attribute_starts(starts.to_vec(), &[1], &(100..105), 0);
        assert_eq!((fires.started, fires.started_late, fires.lateness.max()), (5, 2, 2_002_000));
    }

    #[test]
    fn a_run_that_is_sent_twice_is_repeated() {
        let mut starts = each_second(97..108);
        starts.retain(|(second, ..)| *second != 101);
        starts.extend([(103, 7, Some(9)), (103, 8, Some(9))]);
        // One of them is the late fire of second 101, the other one its repetition.
        assert_eq!(counted(&starts), [5, 1, 0, 1, 0]);
        let mut starts = each_second(97..108);
        starts.extend([(104, -3, Some(9)), (103, 8, Some(9))]);
        assert_eq!(counted(&starts)[3], 2);
    }

    #[test]
    fn early_starts_are_counted() {
        let mut starts = each_second(97..108);
        starts[4].1 = -2;
        assert_eq!(counted(&starts), [5, 0, 0, 0, 1]);
    }

    #[test]
    fn jobs_of_others_do_not_count() {
        let start = Start { job: 2, second: 101, at_us: 101_000_000, log_id: 1 };
        let fires = attribute_starts(vec![start], &[1], &(100..102), 0);
        assert_eq!((fires.started, fires.missing, fires.repeated), (0, 2, 0));
    }
}

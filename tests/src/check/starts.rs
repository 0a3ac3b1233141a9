//! I2 to I5: when handlers began, how often, and which ones ran at the same time.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::Rules;
use super::evidence::{Evidence, JobFacts, RunRow, Start};
use super::report::{Invariant, Lateness, Report};

/// After this long without an answer, an executor gives up its serial runs, and another executor may have them.
const SILENCE_MS: i64 = 15_000;

pub(super) fn check(evidence: &Evidence, rules: Rules, report: &mut Report) {
    let runs: HashMap<&str, &RunRow> = evidence.runs.iter().map(|run| (run.id.as_str(), run)).collect();
    let jobs: HashMap<&str, &JobFacts> = evidence.jobs.iter().map(|job| (job.name.as_str(), job)).collect();
    check_not_early(evidence, rules, &runs, report);
    check_duplicates(evidence, &runs, &jobs, report);
    check_never_began(evidence, &jobs, report);
    for job in evidence.jobs.iter().filter(|job| job.is_serial) {
        let mut starts: Vec<&Start> = evidence.starts.iter().filter(|start| start.job == job.name).collect();
        starts.sort_by_key(|start| (start.begin_ms, start.token));
        check_overlap(evidence, &starts, report);
        check_tokens(&starts, report);
    }
}

fn check_not_early(evidence: &Evidence, rules: Rules, runs: &HashMap<&str, &RunRow>, report: &mut Report) {
    let too_early = |start: &&Start| start.begin_ms + rules.early_ms < start.fire_at_ms;
    let early: Vec<String> = evidence.starts.iter().filter(too_early).map(show).collect();
    if !early.is_empty() {
        report.add(Invariant::NotEarly, format!("{} handlers began before their instants", early.len()), early);
    }
    let early = |run: &&RunRow| run.started_ms.is_some_and(|at| at + rules.early_ms < run.fire_at_ms);
    let rows: Vec<&RunRow> = evidence.runs.iter().filter(early).collect();
    if !rows.is_empty() {
        report.add(Invariant::NotEarly, "rows with a start before their instants", super::fires::show(&rows));
    }
    let scheduled = evidence
        .starts
        .iter()
        .filter(|start| start.attempt == 1 && runs.get(start.run.as_str()).is_some_and(|run| run.is_scheduled()));
    report.lateness = Lateness::of(scheduled.map(|start| start.begin_ms - start.fire_at_ms).collect());
}

fn check_duplicates(
    evidence: &Evidence,
    runs: &HashMap<&str, &RunRow>,
    jobs: &HashMap<&str, &JobFacts>,
    report: &mut Report,
) {
    let mut by_run: BTreeMap<&str, Vec<&Start>> = BTreeMap::new();
    for start in &evidence.starts {
        by_run.entry(&start.run).or_default().push(start);
    }
    for (id, starts) in by_run {
        let lines = || starts.iter().map(|start| show(start)).collect::<Vec<_>>();
        let Some(run) = runs.get(id) else {
            report.add(Invariant::Complete, format!("run {id} began and has no row"), lines());
            continue;
        };
        let rows = || [super::fires::show(&[run]), lines()].concat();
        if starts.iter().any(|start| start.fire_at_ms != run.fire_at_ms || start.job != run.job) {
            report.add(Invariant::Conservation, format!("run {id} is of another fire than its row"), rows());
        }
        let mut attempts: Vec<i64> = starts.iter().map(|start| start.attempt).collect();
        attempts.sort_unstable();
        if attempts.windows(2).any(|pair| pair[0] == pair[1]) {
            report.add(Invariant::NoDuplicate, format!("an attempt of run {id} began twice"), rows());
        }
        if attempts.first().is_some_and(|first| *first < 1) || attempts.last() > Some(&run.attempt) {
            report.add(
                Invariant::NoDuplicate,
                format!("run {id} began in an attempt that its row does not know"),
                rows(),
            );
        }
        let is_at_most_once = jobs.get(run.job.as_str()).is_some_and(|job| job.at_most_once && job.retry_max == 0);
        if is_at_most_once && starts.len() > 1 {
            report.add(Invariant::NoDuplicate, format!("run {id} of an at-most-once job began more than once"), rows());
        }
        if starts.len() > 1 {
            check_reasons(run, &starts, rows, report);
        }
    }
    let given_up =
        evidence.runs.iter().flat_map(|run| run.attempts.iter().filter(|attempt| attempt.number < run.attempt));
    for attempt in given_up {
        let reason = attempt.reason.clone().unwrap_or_else(|| "no reason".to_owned());
        *report.retried.entry(reason).or_default() += 1;
    }
}

/// Checks that a failed run of an at-least-once job has begun.
fn check_never_began(evidence: &Evidence, jobs: &HashMap<&str, &JobFacts>, report: &mut Report) {
    let begun: HashSet<&str> = evidence.starts.iter().map(|start| start.run.as_str()).collect();
    let is_journaled: HashSet<&str> = evidence.starts.iter().map(|start| start.job.as_str()).collect();
    let has_failed = |run: &&RunRow| ["failed", "timed_out", "unknown"].contains(&run.status.as_str());
    let must_begin = |run: &&RunRow| {
        let at_least_once = jobs.get(run.job.as_str()).is_some_and(|job| !job.at_most_once);
        run.shard.is_some() && at_least_once && is_journaled.contains(run.job.as_str())
    };
    let failed = evidence.runs.iter().filter(has_failed).filter(must_begin);
    let never: Vec<&RunRow> = failed.filter(|run| !begun.contains(run.id.as_str())).collect();
    if !never.is_empty() {
        let what = format!("{} at-least-once runs have failed, and their handlers never began", never.len());
        report.add(Invariant::Complete, what, super::fires::show(&never));
    }
}

/// Checks that each attempt that began and was followed by another one has a reason in the ledger.
fn check_reasons(run: &RunRow, starts: &[&Start], rows: impl Fn() -> Vec<String>, report: &mut Report) {
    let has_reason =
        |number: i64| run.attempts.iter().any(|attempt| attempt.number == number && attempt.reason.is_some());
    let is_followed = |start: &&&Start| start.attempt < run.attempt;
    if starts.iter().filter(is_followed).any(|start| !has_reason(start.attempt)) {
        report.add(Invariant::NoDuplicate, format!("run {} began again, and its row has no reason", run.id), rows());
    }
}

/// When the work of a start ended: at its end, at its process's death, or, if its process was stopped so long that
/// its runs were given to another executor, at that moment; `None` if it may still continue.
fn ended_at(evidence: &Evidence, start: &Start) -> Option<i64> {
    let is_its = |pid: i64| pid == start.pid;
    let died = evidence
        .died
        .iter()
        .filter(|died| is_its(died.pid) && died.at_ms >= start.begin_ms)
        .map(|died| died.at_ms)
        .min();
    let slept = evidence
        .paused
        .iter()
        .filter(|stop| is_its(stop.pid) && stop.to_ms >= start.begin_ms && stop.to_ms - stop.from_ms >= SILENCE_MS);
    let slept = slept.map(|stop| stop.from_ms.max(start.begin_ms)).min();
    let ended = start.end.map(|(at, _)| at);
    [died, slept, ended].into_iter().flatten().min()
}

/// Shards of one fire may run concurrently, runs of different fires may not.
fn check_overlap(evidence: &Evidence, starts: &[&Start], report: &mut Report) {
    let mut open: Vec<&Start> = Vec::new();
    for start in starts {
        open.retain(|before| ended_at(evidence, before).is_none_or(|ended_at| ended_at > start.begin_ms));
        let is_beside = |before: &&&Start| before.fire_at_ms == start.fire_at_ms && before.shard != start.shard;
        if let Some(before) = open.iter().find(|before| !is_beside(before)) {
            let what = format!("two runs of the serial job {} at the same time", start.job);
            report.add(Invariant::NoOverlap, what, vec![show(before), show(start)]);
        }
        open.push(start);
    }
}

fn check_tokens(starts: &[&Start], report: &mut Report) {
    for pair in
        starts.windows(2).filter(|pair| pair[0].fire_at_ms != pair[1].fire_at_ms || pair[0].shard == pair[1].shard)
    {
        // Journals without tokens have zeros.
        if pair[1].token != (0, 0) && pair[1].token <= pair[0].token {
            let what = format!("a fencing token of {} did not rise", pair[1].job);
            report.add(Invariant::Fencing, what, vec![show(pair[0]), show(pair[1])]);
        }
    }
}

pub(super) fn show(start: &Start) -> String {
    format!("{start:?}")
}

//! Picks what an operator should see first, from facts about jobs, runs and servers. The caller passes the facts, and describes
//! the result in words.

use std::time::Duration;

use crate::id::RunId;
use crate::time::Timestamp;

/// Handlers should begin within this time after the planned instant.
pub const LATENESS_OBJECTIVE: Duration = Duration::from_secs(1);
/// A run is far longer than usual if it takes more than this many times as long as the 95th percentile of its job's runs, and
/// longer than [`LONG_MIN`].
const LONG_FACTOR: u32 = 3;
/// Only a run that takes longer than this can be far longer than usual.
pub const LONG_MIN: Duration = Duration::from_secs(60);
/// A job that is paused for longer than this may have been forgotten.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// A token that expires within this time should be renewed.
pub const TOKEN_ENDS_WITHIN: Duration = Duration::from_secs(7 * 24 * 3600);

/// A job whose newest runs failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingJob {
    /// Its name.
    pub job: String,
    /// How many runs in a row failed.
    pub streak: u64,
    /// The planned instant of the first of these runs.
    pub since: Timestamp,
    /// The last success before these runs; `None` if the job never succeeded.
    pub succeeded_at: Option<Timestamp>,
    /// The message of the newest failure.
    pub message: Option<String>,
}

/// A job whose fires were skipped because no executor was available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobWithoutExecutor {
    /// Its name.
    pub job: String,
    /// The handler that it asks for.
    pub handler: String,
    /// Whether at least one executor offers the handler. If so, the job's runs are not allowed to go to any of these executors.
    pub is_offered: bool,
    /// How many fires were skipped.
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunUnderWay {
    pub run: RunId,
    /// The name of its job.
    pub job: String,
    /// When its handler began.
    pub since: Timestamp,
    /// The 95th percentile of the lengths of the job's runs; `None` if it is not known.
    pub usual: Option<Duration>,
}

/// The facts to pick from.
#[derive(Clone, Debug, Default)]
pub struct AttentionFacts {
    /// Jobs whose newest runs failed.
    pub failing: Vec<FailingJob>,
    pub without_executor: Vec<JobWithoutExecutor>,
    pub under_way: Vec<RunUnderWay>,
    /// The 99th percentile of the lateness of the runs of the last minutes.
    pub lateness: Option<Duration>,
    /// The names of paused jobs, each with the instant from which the job is paused.
    pub paused: Vec<(String, Timestamp)>,
    /// The names of tokens, each with the instant at which the token expires.
    pub tokens: Vec<(String, Timestamp)>,
    /// Servers whose lease ended without a shutdown, each with the instant at which the lease ended.
    pub lost_nodes: Vec<(String, Timestamp)>,
    /// Loops that fail: the server, the loop, and since when.
    pub failing_loops: Vec<(String, String, Timestamp)>,
}

/// How severe a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingSeverity {
    /// Work does not get done.
    Critical,
    /// Work may soon not get done.
    Warning,
    /// Worth knowing.
    Note,
}

/// Something that an operator should look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A server is gone: its name, and when its lease ended.
    NodeLost(String, Timestamp),
    /// A loop of a server fails: the server, the loop, and since when.
    LoopFails(String, String, Timestamp),
    Fails(FailingJob),
    /// No executor offers the handler of a job, or those that offer it are not allowed to take its runs.
    NoExecutor(JobWithoutExecutor),
    /// Runs begin too late: the 99th percentile of their lateness.
    Late(Duration),
    /// A run takes far longer than usual.
    Long(RunUnderWay),
    /// A token expires soon, or has expired: its name, and the instant at which it expires.
    TokenEnds(String, Timestamp),
    /// A job has been paused for a long time: its name, and since when.
    Paused(String, Timestamp),
}

impl Finding {
    #[must_use]
    pub const fn severity(&self) -> FindingSeverity {
        match self {
            Self::NodeLost(..) | Self::LoopFails(..) | Self::NoExecutor(_) => FindingSeverity::Critical,
            // One failure may be chance.
            Self::Fails(failing_job) if failing_job.streak > 1 => FindingSeverity::Critical,
            Self::Fails(_) | Self::Late(_) | Self::Long(_) | Self::TokenEnds(..) => FindingSeverity::Warning,
            Self::Paused(..) => FindingSeverity::Note,
        }
    }

    /// Of two findings with the same severity, the one with the greater weight comes first.
    fn weight(&self) -> u64 {
        match self {
            Self::NodeLost(..) => u64::MAX,
            Self::LoopFails(..) => u64::MAX - 1,
            Self::NoExecutor(without_executor) => without_executor.count,
            Self::Fails(failing_job) if failing_job.succeeded_at.is_none() => failing_job.streak.saturating_mul(2),
            Self::Fails(failing_job) => failing_job.streak,
            Self::Late(_) => u64::MAX,
            Self::TokenEnds(..) | Self::Long(_) | Self::Paused(..) => 0,
        }
    }
}

/// Lists the findings, the most severe first.
///
/// ```
/// use rondel_core::Timestamp;
/// use rondel_core::attention::{AttentionFacts, Finding, list_findings};
///
/// let at = Timestamp::from_secs(1_900_000_000);
/// let facts = AttentionFacts { lost_nodes: vec![("n2".to_owned(), at)], ..AttentionFacts::default() };
/// assert_eq!(list_findings(facts, at), [Finding::NodeLost("n2".to_owned(), at)]);
/// ```
#[must_use]
pub fn list_findings(facts: AttentionFacts, now: Timestamp) -> Vec<Finding> {
    let is_long_run = |run: &RunUnderWay| {
        let elapsed = now.since(run.since);
        run.usual.is_some_and(|usual| elapsed > LONG_MIN && elapsed > usual.saturating_mul(LONG_FACTOR))
    };
    let ends_soon = |(_, ends_at): &(String, Timestamp)| *ends_at < now + TOKEN_ENDS_WITHIN;
    let is_forgotten = |(_, since): &(String, Timestamp)| *since < now - FORGOTTEN_AFTER;
    let mut findings: Vec<Finding> = Vec::new();
    findings.extend(facts.lost_nodes.into_iter().map(|(name, at)| Finding::NodeLost(name, at)));
    findings.extend(facts.failing_loops.into_iter().map(|(node, name, since)| Finding::LoopFails(node, name, since)));
    findings.extend(facts.failing.into_iter().filter(|failing_job| failing_job.streak > 0).map(Finding::Fails));
    findings.extend(facts.without_executor.into_iter().map(Finding::NoExecutor));
    findings.extend(facts.lateness.filter(|lateness| *lateness > LATENESS_OBJECTIVE).map(Finding::Late));
    findings.extend(facts.under_way.into_iter().filter(is_long_run).map(Finding::Long));
    findings.extend(facts.tokens.into_iter().filter(ends_soon).map(|(name, at)| Finding::TokenEnds(name, at)));
    findings.extend(facts.paused.into_iter().filter(is_forgotten).map(|(name, at)| Finding::Paused(name, at)));
    findings.sort_by_key(|finding| (finding.severity(), std::cmp::Reverse(finding.weight())));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_900_000_000);

    fn ago(seconds: u64) -> Timestamp {
        NOW - Duration::from_secs(seconds)
    }

    fn failing(job: &str, streak: u64, succeeded_at: Option<Timestamp>) -> FailingJob {
        FailingJob { job: job.to_owned(), streak, since: ago(3_600), succeeded_at, message: None }
    }

    #[test]
    fn nothing_needs_no_look() {
        assert!(list_findings(AttentionFacts::default(), NOW).is_empty());
        let within = AttentionFacts {
            lateness: Some(LATENESS_OBJECTIVE),
            paused: vec![("a".to_owned(), ago(3_600))],
            tokens: vec![("t".to_owned(), NOW + TOKEN_ENDS_WITHIN)],
            failing: vec![failing("a", 0, None)],
            ..AttentionFacts::default()
        };
        assert!(list_findings(within, NOW).is_empty());
    }

    #[test]
    fn the_worst_comes_first() {
        let facts = AttentionFacts {
            failing: vec![
                failing("once", 1, Some(ago(9))),
                failing("long", 9, Some(ago(9))),
                failing("never", 6, None),
            ],
            lost_nodes: vec![("n1".to_owned(), ago(60))],
            paused: vec![("p".to_owned(), ago(8 * 86_400))],
            tokens: vec![("t".to_owned(), NOW + Duration::from_secs(60))],
            lateness: Some(Duration::from_secs(2)),
            ..AttentionFacts::default()
        };
        let findings = list_findings(facts, NOW);
        let names: Vec<&str> = findings
            .iter()
            .map(|finding| match finding {
                Finding::NodeLost(name, _) | Finding::TokenEnds(name, _) | Finding::Paused(name, _) => name.as_str(),
                Finding::Fails(failing) => failing.job.as_str(),
                Finding::Late(_) => "late",
                other => unreachable!("{other:?}"),
            })
            .collect();
        assert_eq!(names, ["n1", "never", "long", "late", "once", "t", "p"]);
    }

    #[test]
    fn a_run_is_long_beside_the_others_of_its_job() {
        let run = |seconds, usual: Option<u64>| RunUnderWay {
            run: RunId::new(1),
            job: "a".to_owned(),
            since: ago(seconds),
            usual: usual.map(Duration::from_secs),
        };
        let findings =
            |run| list_findings(AttentionFacts { under_way: vec![run], ..AttentionFacts::default() }, NOW).len();
        assert_eq!(findings(run(2_460, Some(720))), 1);
        assert_eq!(findings(run(2_000, Some(720))), 0, "less than three times");
        assert_eq!(findings(run(59, Some(1))), 0, "short");
        assert_eq!(findings(run(86_400, None)), 0, "nothing to compare with");
    }
}

//! The short trace of a routing decision that a run keeps: which executors were eligible, which were not and why, and what the run waited
//! for.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use super::request::Candidate;
use crate::misfire::{LateBecause, Lateness};
use crate::reason::words::short_length;
use crate::time::millis;
use crate::words::Lang;

/// The longest trace, in bytes.
pub const TRACE_LEN_MAX: usize = 1_000;
/// Used in place of the router's name if the caller chose the executor.
pub const CHOSEN: &str = "chosen";
/// Bytes reserved for the last parts of a trace.
const TAIL_LEN_MAX: usize = 120;

/// Why a candidate does not get a run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has as many runs as it accepts.
    Full,
    /// It is shutting down, or its switch is set to `draining`.
    Draining,
    /// Its switch is set to `stopped`.
    Stopped,
    HadPreviousAttempt,
    /// It answered that it is not free for the job.
    Busy,
    /// It did not answer.
    Silent,
}

impl Refusal {
    /// Its word in a trace.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
            Self::HadPreviousAttempt => "had_it_before",
            Self::Busy => "busy",
            Self::Silent => "silent",
        }
    }
}

/// What a run waited for before it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTimes {
    /// How late a server was ready to start the run, and why.
    pub server: Option<Lateness>,
    /// Wait until it was the run's turn: mostly for earlier runs of its job. The lateness of the server is not
    /// included.
    pub turn: Duration,
    /// Wait for an executor that takes the run.
    pub executor: Duration,
}

/// Writes a decision as JSON text of at most [`TRACE_LEN_MAX`] bytes; `route` is the router's name or [`CHOSEN`]. Lists that are too long
/// end with the number of names that they leave out.
///
/// ```
/// use rondel_core::route::{Answer, Candidate, Refusal, HashPoints, trace};
///
/// let all_points = [HashPoints::new("a"), HashPoints::new("b")];
/// let open = Candidate { hashed_name: &all_points[0], weight: 1, active: 0, refusal: None, answer: Answer::Missing };
/// let full = Candidate { hashed_name: &all_points[1], refusal: Some(Refusal::Full), ..open };
/// let text = trace::text("round", &[open, full], trace::WaitTimes::default());
/// assert_eq!(text, r#"{"route":"round","of":["a"],"refused":{"b":"full"}}"#);
/// ```
#[must_use]
pub fn text(route: &str, candidates: &[Candidate<'_>], waited: WaitTimes) -> String {
    let mut text = String::with_capacity(128);
    text.push_str("{\"route\":\"");
    text.push_str(route);
    text.push_str("\",\"of\":[");
    let eligible = candidates.iter().filter(|candidate| candidate.refusal.is_none());
    let eligible_more = push_list(&mut text, TRACE_LEN_MAX / 2, eligible, |text, candidate| {
        push_name(text, candidate.hashed_name.name())
    });
    text.push(']');
    push_more(&mut text, "of", eligible_more);
    let refusals = || candidates.iter().filter_map(|candidate| Some((candidate, candidate.refusal?)));
    if refusals().next().is_some() {
        text.push_str(",\"refused\":{");
        let refused_more =
            push_list(&mut text, TRACE_LEN_MAX - TAIL_LEN_MAX, refusals(), |text, (candidate, refusal)| {
                push_name(text, candidate.hashed_name.name());
                text.push_str(":\"");
                text.push_str(refusal.as_str());
                text.push('"');
            });
        text.push('}');
        push_more(&mut text, "refused", refused_more);
    }
    let server = waited.server.map(|lateness| (lateness.because.as_str(), lateness.by));
    let waits = [("turn", waited.turn), ("executor", waited.executor)];
    let mut waits = server
        .into_iter()
        .chain(waits)
        .map(|(cause, length)| (cause, millis(length)))
        .filter(|(_, ms)| *ms > 0)
        .peekable();
    if waits.peek().is_some() {
        text.push_str(",\"waited\":{");
        push_list(&mut text, TRACE_LEN_MAX, waits, |text, (cause, ms)| {
            push_key(text, cause, "");
            text.push_str(&ms.to_string());
        });
        text.push('}');
    }
    text.push('}');
    text
}

/// A trace read back from its JSON. Missing parts are empty.
///
/// ```
/// use rondel_core::route::trace::Trace;
///
/// let text = r#"{"route":"round","of":["a","b"],"refused":{"c":"full"},"waited":{"turn":1200,"executor":300}}"#;
/// let trace: Trace = serde_json::from_str(text)?;
/// assert_eq!(
///     trace.to_string(),
///     "round robin; a, b eligible; not c (full); queued 1 s, then waited 300 ms for an executor"
/// );
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Trace {
    /// The route's word, or [`CHOSEN`].
    pub route: String,
    /// Names of the eligible executors, as far as they are listed.
    pub of: Vec<String>,
    /// How many more executors were eligible.
    pub of_more: usize,
    /// Executors that could not take the run, each with the word for its [`Refusal`], as far as they are listed.
    pub refused: BTreeMap<String, String>,
    /// How many more executors could not take the run.
    pub refused_more: usize,
    /// Milliseconds waited, by what the run waited for or why a server was late.
    pub waited: BTreeMap<String, u64>,
}

impl Trace {
    /// How late a server was ready to start the run, and how long the run waited for its turn and for an executor.
    #[must_use]
    pub fn waits(&self) -> WaitTimes {
        let waited_for = |cause| Duration::from_millis(self.waited.get(cause).copied().unwrap_or(0));
        let is_noted = |because: &LateBecause| self.waited.contains_key(because.as_str());
        let because = LateBecause::ALL.iter().copied().find(is_noted);
        let server = because.map(|because| Lateness { because, by: waited_for(because.as_str()) });
        WaitTimes { server, turn: waited_for("turn"), executor: waited_for("executor") }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.route.as_str() {
            "round" => f.write_str("round robin")?,
            CHOSEN => f.write_str("executor chosen at the trigger")?,
            route => f.write_str(&route.replace('_', " "))?,
        }
        match (&self.of[..], self.of_more) {
            ([], _) => f.write_str("; no executor eligible")?,
            ([name], 0) => write!(f, "; only {name} eligible")?,
            (names, 0) => write!(f, "; {} eligible", names.join(", "))?,
            (names, more_count) => write!(f, "; {} and {more_count} more eligible", names.join(", "))?,
        }
        for (index, (name, refusal)) in self.refused.iter().enumerate() {
            let separator = if index == 0 { "; not " } else { ", " };
            write!(f, "{separator}{name} ({})", refusal.replace('_', " "))?;
        }
        if self.refused_more > 0 {
            write!(f, " and {} more", self.refused_more)?;
        }
        let WaitTimes { server, turn, executor } = self.waits();
        let length = |length| short_length(length, Lang::En);
        match server {
            Some(Lateness { because: LateBecause::Overload, by }) => write!(f, "; servers were {} behind", length(by))?,
            Some(Lateness { because: LateBecause::Outage, by }) => {
                write!(f, "; no server was at work for {}", length(by))?;
            }
            None => {}
        }
        match (turn.is_zero(), executor.is_zero()) {
            (true, true) => Ok(()),
            (false, true) => write!(f, "; queued {}", length(turn)),
            (true, false) => write!(f, "; waited {} for an executor", length(executor)),
            (false, false) => {
                write!(f, "; queued {}, then waited {} for an executor", length(turn), length(executor))
            }
        }
    }
}

/// Writes items with commas between them until the text is `len_max` bytes long, and returns how many are left out.
fn push_list<T>(
    text: &mut String,
    len_max: usize,
    items: impl Iterator<Item = T>,
    write: impl Fn(&mut String, T),
) -> usize {
    let mut left_out_count = 0;
    let mut is_first = true;
    for item in items {
        let len_before = text.len();
        if left_out_count > 0 {
            left_out_count += 1;
            continue;
        }
        if !std::mem::take(&mut is_first) {
            text.push(',');
        }
        write(text, item);
        if text.len() > len_max {
            text.truncate(len_before);
            left_out_count = 1;
        }
    }
    left_out_count
}

/// Writes how many names a list leaves out, if it leaves out any.
fn push_more(text: &mut String, list: &str, count: usize) {
    if count > 0 {
        text.push(',');
        push_key(text, list, "_more");
        text.push_str(&count.to_string());
    }
}

fn push_key(text: &mut String, key: &str, suffix: &str) {
    text.push('"');
    text.push_str(key);
    text.push_str(suffix);
    text.push_str("\":");
}

/// Writes a name in quotation marks. Valid names need no escapes in JSON; in other text, characters that need escapes are
/// replaced.
fn push_name(text: &mut String, name: &str) {
    let json_safe = |c: char| if c.is_control() || c == '"' || c == '\\' { '?' } else { c };
    text.push('"');
    text.extend(name.chars().map(json_safe));
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::HashPoints;
    use crate::route::tests::candidates;

    #[test]
    fn a_trace_is_json_of_a_bounded_length() {
        for count in [0, 1, 7, 8, 20, 100, 5_000] {
            for len in [1, 40, 100, 255] {
                let all_points: Vec<HashPoints> =
                    (0..count).map(|i| HashPoints::new(&format!("{i}{}", "x\"".repeat(len)))).collect();
                let mut online = candidates(&all_points);
                for candidate in online.iter_mut().skip(1).step_by(2) {
                    candidate.refusal = Some(Refusal::HadPreviousAttempt);
                }
                let day = Duration::from_secs(366 * 86_400);
                let server = Some(Lateness { because: LateBecause::Overload, by: day });
                let text = text("consistent_hash", &online, WaitTimes { server, turn: day, executor: day });
                assert!(text.len() <= TRACE_LEN_MAX, "{} bytes: {text}", text.len());
                let read: serde_json::Value = serde_json::from_str(&text).unwrap();
                let listed = read["of"].as_array().unwrap().len();
                let more = usize::try_from(read["of_more"].as_u64().unwrap_or(0)).unwrap();
                assert_eq!(listed + more, usize::div_ceil(count, 2));
                assert_eq!(read["waited"]["turn"], 366 * 86_400_000_i64);
                let trace: Trace = serde_json::from_str(&text).unwrap();
                assert_eq!((trace.waits().turn, trace.of.len() + trace.of_more), (day, usize::div_ceil(count, 2)));
                assert_eq!(trace.refused.len() + trace.refused_more, count / 2);
            }
        }
    }

    #[test]
    fn a_trace_is_read_as_a_sentence() {
        let read = |text: &str| serde_json::from_str::<Trace>(text).unwrap().to_string();
        assert!(read(r#"{"route":"round","of":["w2"]}"#).ends_with("; only w2 eligible"));
        assert!(read(r#"{"route":"round","of":[]}"#).ends_with("; no executor eligible"));
        let refused = r#"{"route":"round","of":["a","b"],"of_more":3,"refused":{"c":"full","d":"had_it_before"}}"#;
        assert!(
            read(refused).ends_with("; a, b and 3 more eligible; not c (full), d (had it before)"),
            "{}",
            read(refused)
        );
        let more = r#"{"route":"round","of":["a"],"refused":{"c":"full"},"refused_more":1,"waited":{"turn":1}}"#;
        assert!(read(more).ends_with("; only a eligible; not c (full) and 1 more; queued 1 ms"), "{}", read(more));
        let both = r#"{"route":"round","of":["a"],"waited":{"turn":2000,"executor":3}}"#;
        assert!(read(both).ends_with("; queued 2 s, then waited 3 ms for an executor"), "{}", read(both));
        let late = r#"{"route":"round","of":["a"],"waited":{"overload":20000,"executor":3}}"#;
        assert!(read(late).ends_with("; servers were 20 s behind; waited 3 ms for an executor"), "{}", read(late));
        let away = r#"{"route":"round","of":["a"],"waited":{"outage":20000}}"#;
        assert!(read(away).ends_with("; no server was at work for 20 s"), "{}", read(away));
    }

    #[test]
    fn waits_of_zero_are_not_written() {
        let all_points = [HashPoints::new("a")];
        let trace_text = |turn, executor| {
            let (turn, executor) = (Duration::from_millis(turn), Duration::from_millis(executor));
            let waited = WaitTimes { turn, executor, ..WaitTimes::default() };
            text("first", &candidates(&all_points), waited)
        };
        assert!(!trace_text(0, 0).contains("waited"));
        assert!(trace_text(0, 1).ends_with(r#""waited":{"executor":1}}"#), "{}", trace_text(0, 1));
        assert!(trace_text(1, 0).ends_with(r#""waited":{"turn":1}}"#), "{}", trace_text(1, 0));
        let late = Lateness { because: LateBecause::Overload, by: Duration::from_secs(2) };
        let waited = WaitTimes { server: Some(late), ..WaitTimes::default() };
        let text = text("first", &candidates(&all_points), waited);
        assert!(text.ends_with(r#""waited":{"overload":2000}}"#), "{text}");
        assert_eq!(serde_json::from_str::<Trace>(&text).unwrap().waits(), waited);
        assert!(!trace_text(1, 0).contains("_more"));
    }
}

//! The `traceparent` of W3C Trace Context: the trace and the span that a call from one program to another belongs to.

use std::fmt;
use std::str::FromStr;

use md5::{Digest, Md5};

use crate::id::RunId;
use crate::run::Run;

const VERSION: &str = "00";
const SAMPLED: u8 = 1;

/// A span of a trace, as its child spans refer to it.
///
/// ```
/// use rondel_core::TraceParent;
///
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let parent: TraceParent = text.parse().unwrap();
/// assert!(parent.is_sampled());
/// assert_eq!(parent.to_string(), text);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    trace_id: u128,
    span_id: u64,
    flags: u8,
}

impl TraceParent {
    /// A span of a trace; `None` if one of the ids is 0, which no trace or span has.
    #[must_use]
    pub const fn new(trace_id: u128, span_id: u64, is_sampled: bool) -> Option<Self> {
        if trace_id == 0 || span_id == 0 {
            return None;
        }
        let flags = if is_sampled { SAMPLED } else { 0 };
        Some(Self { trace_id, span_id, flags })
    }

    #[must_use]
    pub const fn trace_id(self) -> u128 {
        self.trace_id
    }

    #[must_use]
    pub const fn span_id(self) -> u64 {
        self.span_id
    }

    /// Whether the trace is recorded.
    #[must_use]
    pub const fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

impl FromStr for TraceParent {
    type Err = String;

    /// Later versions may have more fields, after the fields of this version. The version `ff` is invalid.
    fn from_str(text: &str) -> Result<Self, String> {
        let format_error = || format!("{text:?} is not a traceparent such as 00-<32 hex digits>-<16 hex digits>-01");
        let is_hex = |part: &str, len: usize| {
            part.len() == len && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let mut parts = text.split('-');
        let mut part = |len: usize| parts.next().filter(|part| is_hex(part, len)).ok_or_else(format_error);
        let (version, trace_id, span_id, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        if version == "ff" || (version == VERSION && parts.next().is_some()) {
            return Err(format_error());
        }
        let trace_id = u128::from_str_radix(trace_id, 16).map_err(|_| format_error())?;
        let span_id = u64::from_str_radix(span_id, 16).map_err(|_| format_error())?;
        let flags = u8::from_str_radix(flags, 16).map_err(|_| format_error())?;
        Self::new(trace_id, span_id, flags & SAMPLED != 0).ok_or_else(format_error)
    }
}

/// The id of the trace of a run that was not requested with a trace of its own. The id is derived from the run that the fire began with:
/// all attempts, shards and runs of a fire are in one trace, whichever node sends them.
#[must_use]
pub fn trace_id(run: &Run) -> u128 {
    let first_run = first_run_of_fire(run);
    let mut hash = Md5::new();
    hash.update(b"rondel.fire");
    hash.update(first_run.get().to_be_bytes());
    // Never 0, which would be no trace.
    u128::from_be_bytes(hash.finalize().into()) | 1
}

/// The run that a fire began with. The other runs of the fire have its id as their cause or, if the schedule made the fire, as their
/// parent.
fn first_run_of_fire(run: &Run) -> RunId {
    match run.cause {
        0 => run.parent.unwrap_or(run.id),
        cause => RunId::new(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::RunJob;
    use crate::{AppId, JobId, NamespaceId, NodeId, Timestamp, Trigger};

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn only_texts_of_the_standard_are_accepted() {
        let parent: TraceParent = TEXT.parse().unwrap();
        assert_eq!(parent.trace_id(), 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((parent.span_id(), parent.is_sampled()), (0x00f0_67aa_0ba9_02b7, true));
        let other_flags = TEXT.replace("-01", "-fe").parse::<TraceParent>().unwrap();
        assert_eq!(other_flags.to_string(), TEXT.replace("-01", "-00"));
        let later: TraceParent = format!("{}-more", TEXT.replacen("00", "01", 1)).parse().unwrap();
        assert_eq!(later, parent);
        for bad in [
            String::new(),
            TEXT.to_uppercase(),
            TEXT.replacen("00", "ff", 1),
            format!("{TEXT}-more"),
            TEXT.replace("00f067aa0ba902b7", "0000000000000000"),
            TEXT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            TEXT.replace("-01", "-1"),
            TEXT.replace('-', "_"),
            format!("{TEXT}\n"),
        ] {
            assert!(bad.parse::<TraceParent>().is_err(), "{bad}");
        }
    }

    #[test]
    fn all_runs_of_a_fire_are_in_one_trace() {
        let run_job = RunJob { namespace: NamespaceId::new(1), job: JobId::new(2), job_version: 1, app: AppId::new(3) };
        let fire =
            |id: i64| Run::new(RunId::new(id), run_job, Timestamp::from_secs(60), Trigger::Cron, (NodeId::new(1), 1));
        let first = fire(9);
        let shard = Run { shard_index: 1, shard_total: Some(3), parent: Some(first.id), ..fire(10) };
        let child = Run { trigger: Trigger::Parent, cause: 9, parent: Some(first.id), ..fire(11) };
        let grandchild = Run { trigger: Trigger::Parent, cause: 9, parent: Some(child.id), ..fire(12) };
        let again = Run { attempt: 2, ..first.clone() };
        for run in [shard, child, grandchild, again] {
            assert_eq!(trace_id(&run), trace_id(&first), "{run:?}");
        }
        let by_hand = Run { trigger: Trigger::Manual, cause: 13, parent: Some(first.id), ..fire(13) };
        for run in [fire(8), by_hand] {
            assert_ne!(trace_id(&run), trace_id(&first), "{run:?}");
        }
    }
}

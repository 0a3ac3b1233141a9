//! Counts the calls by XXL-JOB executors, by kind of call and outcome.

use std::sync::atomic::{AtomicU64, Ordering};

rondel_core::plain_word_enum! {
    /// A call by an XXL-JOB executor.
    pub XxlCall {
        /// The executor registers.
        Registry = "registry",
        /// The executor signs off.
        RegistryRemove = "registry_remove",
        /// The executor reports the ends of runs, each of which is counted.
        Callback = "callback",
        /// A call of any other name.
        Other = "other",
    }
}

rondel_core::plain_word_enum! {
    /// The outcome of a call.
    pub XxlOutcome {
        /// The call was accepted and stored.
        Accepted = "accepted",
        /// The end of the run was already known.
        Repeated = "repeated",
        /// No run has this number, or the run is no longer kept.
        UnknownRun = "unknown_run",
        /// The run belongs to another app.
        ForeignRun = "foreign_run",
        /// The token is missing or not valid here.
        WrongToken = "wrong_token",
        /// The app in the call is not the app of the token.
        WrongApp = "wrong_app",
        /// The address is outside the allowed networks, or is not an address.
        ForbiddenAddress = "forbidden_address",
        /// The body does not have the form of the call.
        Unreadable = "unreadable",
        /// The body is too long.
        TooLong = "too_long",
        /// The HTTP method or the name of the call is not served.
        UnknownCall = "unknown_call",
        /// The call could not be stored, and must be repeated.
        Unavailable = "unavailable",
    }
}

/// How many calls of each kind this node has answered with each outcome. A callback counts once for each run that it reports.
#[derive(Debug, Default)]
pub(crate) struct XxlCalls([[AtomicU64; XxlOutcome::ALL.len()]; XxlCall::ALL.len()]);

impl XxlCalls {
    pub(crate) fn add(&self, call: XxlCall, outcome: XxlOutcome, count: u64) {
        if let Some(counter) = self.0.get(call as usize).and_then(|outcomes| outcomes.get(outcome as usize)) {
            super::add(counter, count);
        }
    }

    /// The counts that are not 0.
    pub(crate) fn read(&self) -> impl Iterator<Item = (XxlCall, XxlOutcome, u64)> + '_ {
        let counts_of_call = |(call, counts): (XxlCall, &'_ [AtomicU64; XxlOutcome::ALL.len()])| {
            let counts: Vec<u64> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            XxlOutcome::ALL.into_iter().zip(counts).map(move |(outcome, count)| (call, outcome, count))
        };
        XxlCall::ALL.into_iter().zip(&self.0).flat_map(counts_of_call).filter(|(.., count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_outcomes_have_counters_of_their_own() {
        let calls = XxlCalls::default();
        for call in XxlCall::ALL {
            for outcome in XxlOutcome::ALL {
                calls.add(call, outcome, 1);
            }
        }
        calls.add(XxlCall::Callback, XxlOutcome::Repeated, 6);
        let found: Vec<_> = calls.read().collect();
        assert_eq!(found.len(), XxlCall::ALL.len() * XxlOutcome::ALL.len());
        for (call, outcome, count) in found {
            let is_more = (call, outcome) == (XxlCall::Callback, XxlOutcome::Repeated);
            assert_eq!(count, if is_more { 7 } else { 1 }, "{call:?} {outcome:?}");
        }
    }
}

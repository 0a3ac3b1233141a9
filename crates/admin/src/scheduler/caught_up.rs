//! Records when the scan last had claimed everything that was due. A fire that became late since then is late, but was not missed.

use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::LeaseToken;

/// When the scan last caught up, by the boot-time clock, which no step of the database's clock moves.
#[derive(Debug, Default)]
pub(crate) struct CaughtUp {
    /// The lease, and the instant since which it has held without a gap. A gap counts as an outage of the servers.
    lease: Option<(LeaseToken, i64)>,
    /// When the last scan that claimed everything began, or the first scan under this lease, in microseconds.
    caught_up_at: i64,
}

impl CaughtUp {
    /// Records that a scan begins at `now` under a lease that has held since `held_since`. Returns the instant as of which the scan judges how late
    /// fires are.
    pub(crate) fn begin(&mut self, token: LeaseToken, held_since: i64, now: i64) -> i64 {
        let lease = Some((token, held_since));
        if self.lease != lease {
            *self = Self { lease, caught_up_at: now };
        }
        if mutant::on(Mutant::LateIsMissed) { now } else { self.caught_up_at }
    }

    /// Records that the scan that began at `began_micros` has claimed everything.
    pub(crate) fn complete(&mut self, began_micros: i64) {
        self.caught_up_at = self.caught_up_at.max(began_micros);
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::NodeId;

    use super::*;

    #[test]
    fn remaining_jobs_are_judged_as_of_the_last_complete_scan() {
        let mut caught_up = CaughtUp::default();
        let token = |epoch| LeaseToken { node: NodeId::new(1), epoch };
        assert_eq!(caught_up.begin(token(1), 50, 100), 100, "what is late at the first scan is judged");
        assert_eq!(caught_up.begin(token(1), 50, 200), 100, "it left something");
        caught_up.complete(200);
        assert_eq!(caught_up.begin(token(1), 50, 300), 200);
        caught_up.complete(150);
        assert_eq!(caught_up.begin(token(1), 50, 300), 200);
        assert_eq!(caught_up.begin(token(1), 310, 320), 320, "the lease had a gap");
        assert_eq!(caught_up.begin(token(2), 310, 330), 330, "a new lease");
    }
}

//! The time until which triggers may have been sent on the streams of executors.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::{AppId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use crate::cluster::Session;

/// The largest step back of a node's clock that the node does not report.
const CLOCK_SLACK: Duration = Duration::from_millis(200);

impl Session {
    /// Whether the stream is open, as far as its node has reported.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.ended_at.is_none()
    }

    /// Whether a run that was due at `due_at` may have been sent on the stream. The recorded end of a session is no earlier than the
    /// instant of any run that was sent on it. A node records the end after its dispatcher has dropped the stream. This end is the later of
    /// two instants: the latest time that the node's clock has shown, and the latest instant of a run that it had sent ahead. A node that
    /// fences a lease records the end of that lease, because no run with a later instant was sent ahead under it. All these times are the
    /// database's, so the clocks of two nodes are never compared.
    #[must_use]
    pub fn may_have_carried(&self, due_at: Timestamp) -> bool {
        if mutant::on(Mutant::StreamsEndWithTheLastBeat) {
            return due_at <= self.last_seen_at;
        }
        self.ended_at.is_none_or(|ended_at| due_at <= ended_at + CLOCK_SLACK)
    }
}

/// For each app, the session that ended last; an open session counts as the last. No executor of the app received a trigger for a run that
/// was due after that end. See [`Session::may_have_carried`].
#[derive(Debug, Default)]
pub(crate) struct LastSessions(BTreeMap<AppId, Session>);

impl LastSessions {
    pub(crate) fn of(sessions: impl IntoIterator<Item = Session>) -> Self {
        let end_of = |session: &Session| session.ended_at.unwrap_or(Timestamp::MAX);
        let mut last_sessions: BTreeMap<AppId, Session> = BTreeMap::new();
        for session in sessions {
            let last_session = last_sessions.entry(session.app).or_insert(session);
            if end_of(&session) > end_of(last_session) {
                *last_session = session;
            }
        }
        Self(last_sessions)
    }

    /// Whether any executor of the app may have received a run that was due at `due_at`.
    pub(crate) fn may_have_carried(&self, app: AppId, due_at: Timestamp) -> bool {
        self.0.get(&app).is_some_and(|session| session.may_have_carried(due_at))
    }

    /// The earliest end of a session that may have carried a run due at `due_at`.
    pub(crate) fn earliest_end(due_at: Timestamp) -> Timestamp {
        due_at.saturating_sub(CLOCK_SLACK)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEnd {
    /// When its session was opened. The end of an older stream of the executor must not end a newer one.
    pub opened_at: Timestamp,
    /// The later of two instants: the latest time that the node's clock has shown, and the latest instant of a run that the node has sent
    /// ahead. No run with a later instant was sent. `reached` is ahead of the database's clock if that clock has stepped back since.
    pub reached: Timestamp,
}

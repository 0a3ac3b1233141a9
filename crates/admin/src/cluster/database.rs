//! The current trouble with the database, and when it began. `/readyz` shows the trouble. The log has only the first of several failures of one
//! kind in a row.

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_store::DatabaseTroubleKind;

/// A time in which calls to the database fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseTrouble {
    pub trouble: DatabaseTroubleKind,
    /// When the first of these calls failed, by the engine's clock.
    pub since: Timestamp,
    /// The message of the last failure.
    pub message: String,
}

/// The database has lost writes of this node, because a backup was restored, or a standby took over without the last transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostHistory {
    /// When this node found that out.
    pub found_at: Timestamp,
    /// How much time was lost at least, as this node's own row shows; `None` if the row is missing, or has only an earlier lease.
    pub by: Option<Duration>,
}

/// How long `/readyz` shows that history was lost.
const LOST_HISTORY_SHOWN_FOR: Duration = Duration::from_secs(24 * 3_600);

#[derive(Debug, Default)]
pub(crate) struct DatabaseWatch {
    trouble: RwLock<Option<DatabaseTrouble>>,
    lost_history: RwLock<Option<LostHistory>>,
}

impl DatabaseWatch {
    /// Records a failed call. Returns whether its trouble is new: no trouble was known, or only trouble of another kind.
    pub(crate) fn record_failure(&self, trouble: DatabaseTroubleKind, message: &str, now: Timestamp) -> bool {
        let mut last_trouble = self.trouble.write().unwrap_or_else(PoisonError::into_inner);
        let since = last_trouble.as_ref().map_or(now, |known| known.since);
        let is_new_trouble = last_trouble.as_ref().is_none_or(|known| known.trouble != trouble);
        *last_trouble = Some(DatabaseTrouble { trouble, since, message: message.to_owned() });
        is_new_trouble
    }

    /// Records a successful call. Returns the trouble that has ended with it; `None` if there was no trouble.
    pub(crate) fn take_ended_trouble(&self) -> Option<DatabaseTrouble> {
        self.trouble.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn note_lost_history(&self, lost_history: LostHistory) {
        *self.lost_history.write().unwrap_or_else(PoisonError::into_inner) = Some(lost_history);
    }

    /// The last loss of history, if it was found within the last day.
    pub(crate) fn lost_history(&self, now: Timestamp) -> Option<LostHistory> {
        let lost_history = *self.lost_history.read().unwrap_or_else(PoisonError::into_inner);
        lost_history.filter(|known| known.found_at + LOST_HISTORY_SHOWN_FOR > now)
    }

    pub(crate) fn trouble(&self) -> Option<DatabaseTrouble> {
        self.trouble.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_trouble_is_reported_once_and_keeps_its_beginning() {
        let at = Timestamp::from_secs;
        let watch = DatabaseWatch::default();
        assert!(watch.record_failure(DatabaseTroubleKind::Unreachable, "refused", at(10)));
        assert!(!watch.record_failure(DatabaseTroubleKind::Unreachable, "reset", at(11)));
        assert!(watch.record_failure(DatabaseTroubleKind::Connections, "too many", at(12)), "another trouble is news");
        let trouble = watch.trouble().unwrap();
        assert_eq!((trouble.since, trouble.message.as_str()), (at(10), "too many"));
        assert_eq!(watch.take_ended_trouble(), Some(trouble));
        assert_eq!((watch.take_ended_trouble(), watch.trouble()), (None, None));
    }
}

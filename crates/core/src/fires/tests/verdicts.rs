//! The words for verdicts.

use super::*;
use crate::maintenance::FiresInside;

#[test]
fn every_word_for_a_verdict_is_listed() {
    let known: Vec<&str> = FireVerdict::codes().collect();
    let calendar = FireVerdict::Calendar { calendar: "cn".to_owned(), day: None, moved_to: None };
    let inside = FireVerdict::Maintenance { ends_at: secs(1), fires: FiresInside::Skip };
    let others =
        [FireVerdict::Paused, FireVerdict::Undecided, FireVerdict::Planned, FireVerdict::Removed, FireVerdict::Missing];
    for verdict in [calendar, inside].into_iter().chain(others) {
        // A new variant does not compile here: add it to the list above too.
        match verdict {
            FireVerdict::Row { .. }
            | FireVerdict::Span { .. }
            | FireVerdict::Calendar { .. }
            | FireVerdict::Maintenance { .. } => {}
            FireVerdict::Paused
            | FireVerdict::Undecided
            | FireVerdict::Planned
            | FireVerdict::Removed
            | FireVerdict::Missing => {}
        }
        assert!(known.contains(&verdict.code()), "{} is not in the list", verdict.code());
    }
    assert_eq!(known.len(), RunStatus::WORDS.len() + 7);
}

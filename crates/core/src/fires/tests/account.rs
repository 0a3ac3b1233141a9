//! The words for verdicts.

use super::*;
use crate::maintenance::FiresInside;

#[test]
fn every_word_for_a_verdict_is_listed() {
    let known: Vec<&str> = Verdict::codes().collect();
    let calendar = Verdict::Calendar { calendar: "cn".to_owned(), day: None, moved_to: None };
    let inside = Verdict::Maintenance { ends_at: secs(1), fires: FiresInside::Skip };
    let others = [Verdict::Paused, Verdict::Undecided, Verdict::Planned, Verdict::Removed, Verdict::Missing];
    for verdict in [calendar, inside].into_iter().chain(others) {
        // A new variant does not compile here: add it to the list above too.
        match verdict {
            Verdict::Row { .. } | Verdict::Span { .. } | Verdict::Calendar { .. } | Verdict::Maintenance { .. } => {}
            Verdict::Paused | Verdict::Undecided | Verdict::Planned | Verdict::Removed | Verdict::Missing => {}
        }
        assert!(known.contains(&verdict.code()), "{} is not in the list", verdict.code());
    }
    assert_eq!(known.len(), RunStatus::WORDS.len() + 7);
}

//! Prints a plan, or the outcome of an apply.

use std::fmt::Write as _;

use rondel_core::Timestamp;
use rondel_core::diff::{Change, changes_text};
use serde::Deserialize;
use serde_json::Value;

use crate::clock;
use crate::paint::{Ink, Paint};
use crate::terminal::harmless_text;

/// How many fires of each kind are shown.
const SHOWN_FIRES_MAX: usize = 5;

/// A job in an answer.
#[derive(Debug, Deserialize)]
pub(super) struct Item {
    pub(super) name: String,
    pub(super) action: String,
    #[serde(default)]
    pub(super) index: Option<usize>,
    #[serde(default)]
    changes: Vec<ChangeItem>,
    #[serde(default)]
    fires: Option<Fires>,
    #[serde(default)]
    pub(super) warnings: Vec<String>,
    #[serde(default)]
    pub(super) error: Option<ItemError>,
}

#[derive(Debug, Deserialize)]
struct ChangeItem {
    pointer: String,
    #[serde(default)]
    from: Option<Value>,
    #[serde(default)]
    to: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Fires {
    /// The end of the range in which the fires were compared.
    to: Timestamp,
    /// Whether the range is the whole next week; otherwise it has too many fires and ends earlier.
    is_whole: bool,
    vanishing: FireList,
    appearing: FireList,
}

#[derive(Debug, Deserialize)]
struct FireList {
    count: u64,
    first: Vec<Timestamp>,
}

/// Why a job was not saved.
#[derive(Debug, Deserialize)]
pub(super) struct ItemError {
    pub(super) code: String,
    pub(super) message: String,
}

/// The number of jobs for each action.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct Summary {
    pub(super) created: usize,
    pub(super) changed: usize,
    pub(super) unchanged: usize,
    pub(super) removed: usize,
    pub(super) failed: usize,
}

impl Summary {
    /// Whether no job changes or fails.
    pub(super) const fn has_no_changes(self) -> bool {
        self.created + self.changed + self.removed + self.failed == 0
    }

    /// The counts as text: `1 created, 2 changed, 3 unchanged`.
    pub(super) fn words(self) -> String {
        let count_words = [
            (self.created, "created"),
            (self.changed, "changed"),
            (self.removed, "removed"),
            (self.failed, "failed"),
            (self.unchanged, "unchanged"),
        ];
        let texts: Vec<_> =
            count_words.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
        texts.join(", ")
    }
}

/// The lines about one job; none if it is unchanged.
pub(super) fn lines_of_item(item: &Item, paint: Paint, now: Timestamp) -> String {
    let (sign, ink) = match item.action.as_str() {
        "created" => ("+", Ink::Green),
        "changed" => ("~", Ink::Yellow),
        "removed" => ("-", Ink::Red),
        "failed" => ("!", Ink::Red),
        _ => return String::new(),
    };
    let mut lines = paint.ink(ink, &format!("{sign} {} {}", harmless_text(&item.name), item.action));
    lines.push('\n');
    if let Some(error) = &item.error {
        writeln!(lines, "    {}", paint.ink(Ink::Red, &harmless_text(&error.message))).ok();
    }
    let changes: Vec<Change> = item
        .changes
        .iter()
        .map(|change| Change { pointer: change.pointer.clone(), from: change.from.clone(), to: change.to.clone() })
        .collect();
    for line in changes_text(&changes).lines() {
        let ink = match line.as_bytes().first() {
            Some(b'+') => Ink::Green,
            Some(b'-') => Ink::Red,
            Some(b'/') => Ink::Bold,
            _ => Ink::Dim,
        };
        writeln!(lines, "    {}", paint.ink(ink, &harmless_text(line))).ok();
    }
    if let Some(fires) = &item.fires {
        lines.push_str(&fires.lines(paint, now));
    }
    lines
}

impl Fires {
    fn lines(&self, paint: Paint, now: Timestamp) -> String {
        let range_text = if self.is_whole {
            "in the next week".to_owned()
        } else {
            format!("up to {} (there are too many to look further)", self.to)
        };
        let mut text =
            format!("    fires {range_text}: {} vanish, {} appear\n", self.vanishing.count, self.appearing.count);
        for (sign, ink, fire_list) in [("-", Ink::Red, &self.vanishing), ("+", Ink::Green, &self.appearing)] {
            for at in fire_list.first.iter().take(SHOWN_FIRES_MAX) {
                let line = paint.ink(ink, &format!("{sign} {at}"));
                writeln!(text, "      {line} ({})", clock::relative_text(*at, now)).ok();
            }
            let shown_count = fire_list.first.len().min(SHOWN_FIRES_MAX) as u64;
            if fire_list.count > shown_count {
                let line = paint.ink(ink, &format!("{sign} and {} more", fire_list.count - shown_count));
                writeln!(text, "      {line}").ok();
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_of_a_schedule_shows_its_fires() {
        let item: Item = serde_json::from_value(json!({
            "name": "report", "action": "changed", "version": 3,
            "changes": [{"pointer": "/schedule/cron", "from": "0 0 2 * * ?", "to": "0 0 3 * * ?"}],
            "fires": {
                "to": "2026-11-27T11:00:00Z", "is_whole": true,
                "vanishing": {"count": 7, "first": ["2026-11-21T02:00:00Z"]},
                "appearing": {"count": 1, "first": ["2026-11-21T03:00:00Z"]},
            },
        }))
        .unwrap();
        let now = "2026-11-20T11:00:00Z".parse().unwrap();
        let expected = "~ report changed\n    /schedule/cron\n    - \"0 0 2 * * ?\"\n    + \"0 0 3 * * ?\"\n    \
            fires in the next week: 7 vanish, 1 appear\n      - 2026-11-21T02:00:00Z (in 15h)\n      - and 6 more\n      \
            + 2026-11-21T03:00:00Z (in 16h)\n";
        assert_eq!(lines_of_item(&item, Paint::OFF, now), expected);
    }

    #[test]
    fn a_summary_names_only_the_counts_above_zero() {
        let summary = Summary { created: 1, unchanged: 12, ..Summary::default() };
        assert_eq!(summary.words(), "1 created, 12 unchanged");
        assert!(!summary.has_no_changes() && Summary { unchanged: 1, ..Summary::default() }.has_no_changes());
    }
}

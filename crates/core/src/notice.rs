//! The content of one alert message, whatever channel it is sent to.
//!
//! Alert rules, channel tests and weekly reports write a [`Notice`], and the channels render it. It is stored as JSON: fields may be added,
//! but must not change their meaning.

use serde::{Deserialize, Serialize};

use crate::word_enum::word_enum;
use crate::{IncidentId, RunId, Timestamp};

/// The longest summary, in bytes of UTF-8.
pub const SUMMARY_BYTES_MAX: usize = 1_000;
/// The longest description of a rule, in bytes of UTF-8.
pub const DESCRIPTION_BYTES_MAX: usize = 2_000;
/// The longest name, condition or path, in bytes of UTF-8.
pub const WORD_BYTES_MAX: usize = 400;
/// Maximum number of runs that a notice shows.
pub const SAMPLE_COUNT_MAX: usize = 5;
/// The longest message of a run that a notice shows, in bytes of UTF-8.
pub const SAMPLE_BYTES_MAX: usize = 500;

word_enum! {
    /// Why a message is sent.
    NoticeKind {
        /// The condition of a rule began to hold.
        Firing = "firing",
        /// It no longer holds.
        Resolved = "resolved",
        /// It still holds.
        Reminder = "reminder",
        /// More occurrences since the last message.
        Digest = "digest",
        /// The incident was not acknowledged in time.
        Escalated = "escalated",
        /// A user acknowledged the incident.
        Acknowledged = "acknowledged",
        /// A user tests the channel.
        Test = "test",
        /// The weekly report of a namespace.
        Report = "report",
    }
}

word_enum! {
    /// What an alert is about.
    NoticeSubject {
        /// A job.
        Job = "job",
        /// An app.
        App = "app",
        /// A namespace.
        Namespace = "namespace",
        /// A server of the cluster.
        Node = "node",
        /// An API token.
        Token = "token",
    }
}

word_enum! {
    /// How urgent an alert is.
    Severity {
        /// Wake the engineer on call.
        Critical = "critical",
        /// Look at it during working hours.
        Warning = "warning",
    }
}

/// The subject of an alert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    pub kind: NoticeSubject,
    pub name: String,
}

/// A run that an alert shows as an example.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSample {
    pub run: RunId,
    /// Its job's name.
    pub job: String,
    /// The instant that it was planned for.
    pub fire_at: Timestamp,
    /// Its error message, or why it was skipped.
    pub message: String,
}

/// The content of one message.
///
/// ```
/// use rondel_core::notice::{Notice, NoticeKind, NoticeSubject, Severity, Subject};
/// use rondel_core::{IncidentId, Timestamp};
///
/// let started_at = Timestamp::from_secs(1_772_953_200);
/// let notice = Notice {
///     kind: NoticeKind::Firing,
///     incident: Some(IncidentId::new(7)),
///     rule: "nightly-close-late".to_owned(),
///     condition: "success_by".to_owned(),
///     namespace: "default".to_owned(),
///     subject: Subject { kind: NoticeSubject::Job, name: "nightly-close".to_owned() },
///     severity: Severity::Critical,
///     summary_en: "nightly-close has not succeeded by 06:00 (Europe/Berlin).".to_owned(),
///     summary_zh: "nightly-close 在 06:00（Europe/Berlin）前没有成功。".to_owned(),
///     description: "Call the night desk.".to_owned(),
///     started_at,
///     at: started_at,
///     count: 1,
///     samples: Vec::new(),
///     path: "/alerts/incidents/7".to_owned(),
/// };
/// let notice = notice.bounded();
/// let text = serde_json::to_string(&notice).unwrap();
/// assert_eq!(serde_json::from_str::<Notice>(&text).unwrap(), notice);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Why it is sent.
    pub kind: NoticeKind,
    /// The incident; `None` for a test and for a weekly report.
    pub incident: Option<IncidentId>,
    /// The name of the rule.
    pub rule: String,
    /// The kind of the rule's condition, as a word such as `failed`.
    pub condition: String,
    /// The namespace's name.
    pub namespace: String,
    /// What it is about.
    pub subject: Subject,
    /// How urgent it is.
    pub severity: Severity,
    /// What happened, as one English sentence.
    pub summary_en: String,
    /// The same sentence in Chinese.
    pub summary_zh: String,
    /// The rule's description: what a reader should know or do. Empty if the rule has none, and for the end of an incident.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Since when the condition holds; for a report, the beginning of its week.
    pub started_at: Timestamp,
    /// When the message was written; for a report, the end of its week.
    pub at: Timestamp,
    /// How many occurrences the incident has; for a report, the number of verdicts in its week.
    pub count: u64,
    /// Runs of the incident or the report, as examples; at most [`SAMPLE_COUNT_MAX`].
    #[serde(default)]
    pub samples: Vec<RunSample>,
    /// The path of the page in the console with the details, beginning with `/`.
    pub path: String,
}

impl Notice {
    /// Applies the bounds of this module: texts are cut between characters, further samples are left out.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        for word in [&mut self.rule, &mut self.condition, &mut self.namespace, &mut self.subject.name, &mut self.path] {
            shorten(word, WORD_BYTES_MAX);
        }
        shorten(&mut self.summary_en, SUMMARY_BYTES_MAX);
        shorten(&mut self.summary_zh, SUMMARY_BYTES_MAX);
        shorten(&mut self.description, DESCRIPTION_BYTES_MAX);
        self.samples.truncate(SAMPLE_COUNT_MAX);
        for sample in &mut self.samples {
            shorten(&mut sample.job, WORD_BYTES_MAX);
            shorten(&mut sample.message, SAMPLE_BYTES_MAX);
        }
        self
    }
}

/// Cuts a text to at most `bytes_max` bytes. A text that is cut ends in `…`, if there is room for it.
///
/// ```
/// use rondel_core::notice::cut;
///
/// assert_eq!(cut("short", 5), "short");
/// assert_eq!(cut("too long", 6), "too…");
/// assert_eq!(cut("任务失败了", 10), "任务…");
/// ```
#[must_use]
pub fn cut(text: &str, bytes_max: usize) -> String {
    let mut text = text.to_owned();
    shorten(&mut text, bytes_max);
    text
}

/// Marks that something was left out.
const ELLIPSIS: &str = "…";

fn shorten(text: &mut String, bytes_max: usize) {
    if text.len() <= bytes_max {
        return;
    }
    let room = bytes_max.saturating_sub(ELLIPSIS.len());
    text.truncate(text.floor_char_boundary(room));
    if bytes_max >= ELLIPSIS.len() {
        text.push_str(ELLIPSIS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(text: &str) -> Notice {
        let sample = RunSample {
            run: RunId::new(1),
            job: text.to_owned(),
            fire_at: Timestamp::from_secs(1),
            message: text.to_owned(),
        };
        Notice {
            kind: NoticeKind::Digest,
            incident: Some(IncidentId::new(1)),
            rule: text.to_owned(),
            condition: text.to_owned(),
            namespace: text.to_owned(),
            subject: Subject { kind: NoticeSubject::Job, name: text.to_owned() },
            severity: Severity::Warning,
            summary_en: text.to_owned(),
            summary_zh: text.to_owned(),
            description: text.to_owned(),
            started_at: Timestamp::from_secs(1),
            at: Timestamp::from_secs(2),
            count: u64::MAX,
            samples: vec![sample; 100],
            path: text.to_owned(),
        }
    }

    #[test]
    fn a_notice_is_bounded_whatever_its_texts_are() {
        for text in ["x".repeat(100_000), "务".repeat(100_000), "𝄞".repeat(100_000), "\u{0}\"\\".repeat(50_000)] {
            let bounded = notice(&text).bounded();
            assert_eq!(bounded.samples.len(), SAMPLE_COUNT_MAX);
            // A control character takes six bytes in JSON.
            assert!(serde_json::to_string(&bounded).unwrap().len() < 6 * 12_000);
            assert_eq!(bounded.clone().bounded(), bounded);
        }
    }

    #[test]
    fn a_text_is_cut_at_a_character() {
        for bytes_max in 0..40 {
            let cut = cut("a务𝄞é, and more of it", bytes_max);
            assert!(cut.len() <= bytes_max, "{cut}");
        }
    }
}

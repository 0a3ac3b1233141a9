//! The failures of a report, with their messages in the reader's language.

use rondel_admin::reports::Failure;
use rondel_core::reason::ReasonDetail;
use rondel_core::reason::message::in_chinese;
use rondel_core::reason::words::reason_text;
use rondel_core::words::Lang;
use rondel_core::{Reason, RunStatus};

use super::texts::Texts;
use super::view::visible_text;

/// Failed runs of a report with equal messages.
pub(super) struct ShownFailure {
    pub(super) message: String,
    pub(super) count: u64,
    pub(super) jobs: Vec<String>,
    /// How many jobs are not named.
    pub(super) more_count: u64,
    /// The id of the newest of these runs; it may have been removed.
    pub(super) newest: Option<String>,
}

impl ShownFailure {
    pub(super) fn new(failure: &Failure, t: &Texts) -> Self {
        Self {
            message: failure_text(&failure.message, t),
            count: failure.count,
            more_count: failure.job_count.saturating_sub(u64::try_from(failure.jobs.len()).unwrap_or(0)),
            jobs: failure.jobs.clone(),
            newest: failure.newest.map(|run| run.to_string()),
        }
    }
}

/// A message of failed runs in the reader's language. Runs without a message are grouped by their reason, or else by their outcome, which is
/// stored in place of the message.
fn failure_text(message: &str, t: &Texts) -> String {
    if message.is_empty() {
        return t.report_other_messages.to_owned();
    }
    // A reason of a single word, such as `stopped`, could also be the message of a handler.
    if let Some(reason) = message.parse::<Reason>().ok().filter(|reason| reason.as_str().contains('_')) {
        return reason_text(reason, &ReasonDetail::default(), t.lang());
    }
    if let Ok(outcome) = message.parse::<RunStatus>() {
        return t.status(outcome).to_owned();
    }
    let translated_message = (t.lang() == Lang::Zh).then(|| in_chinese(message)).flatten();
    visible_text(translated_message.as_deref().unwrap_or(message))
}

#[cfg(test)]
mod tests {
    use super::failure_text;
    use crate::pages::texts::Lang;

    #[test]
    fn failures_are_in_the_language_of_the_page() {
        let (en, zh) = (Lang::En.texts(), Lang::Zh.texts());
        let lost_en = "an executor that may have had it was lost before it could answer";
        for (message, text_en, text_zh) in [
            ("timed out after #s", "timed out after #s", "# 秒后超时"),
            ("executor_lost", lost_en, "可能持有它的执行器在答复之前失联"),
            ("failed", en.status_failed, zh.status_failed),
            ("disk full", "disk full", "disk full"),
            ("", en.report_other_messages, zh.report_other_messages),
        ] {
            assert_eq!((failure_text(message, en).as_str(), failure_text(message, zh).as_str()), (text_en, text_zh));
        }
    }
}

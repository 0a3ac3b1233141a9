//! Sample notices of every kind: templates are tried on them when a channel is saved.

use rondel_core::notice::{Notice, NoticeKind, NoticeSubject, RunSample, Severity, Subject};
use rondel_core::{IncidentId, RunId, Timestamp};

/// When the sample incidents began: an instant in the past.
const STARTED_AT: Timestamp = Timestamp::from_secs(1_772_953_200);
/// Delay between the start of a sample incident and its notice.
const NOTICE_DELAY: std::time::Duration = std::time::Duration::from_secs(900);

/// One notice of each kind. The notices of a test and of a report have no incident and no sample runs.
pub(super) fn notices() -> Vec<Notice> {
    NoticeKind::ALL.iter().map(|kind| notice(*kind)).collect()
}

fn notice(kind: NoticeKind) -> Notice {
    let is_test = matches!(kind, NoticeKind::Test | NoticeKind::Report);
    let sample = |run| RunSample {
        run: RunId::new(run),
        job: "nightly-close".to_owned(),
        fire_at: STARTED_AT,
        message: "exit status 1: could not connect to ledger-db".to_owned(),
    };
    Notice {
        kind,
        incident: if is_test { None } else { Some(IncidentId::new(7_400_000_000_001)) },
        rule: "nightly-close-late".to_owned(),
        condition: "success_by".to_owned(),
        namespace: "default".to_owned(),
        subject: Subject { kind: NoticeSubject::Job, name: "nightly-close".to_owned() },
        severity: Severity::Critical,
        summary_en: "nightly-close has not succeeded by 06:00 (Europe/Berlin).".to_owned(),
        summary_zh: "nightly-close 在 06:00（Europe/Berlin）前没有成功。".to_owned(),
        description: String::new(),
        started_at: STARTED_AT,
        at: STARTED_AT + NOTICE_DELAY,
        count: 3,
        samples: if is_test { Vec::new() } else { vec![sample(7_399_999_999_001), sample(7_399_999_999_002)] },
        path: "/alerts".to_owned(),
    }
}

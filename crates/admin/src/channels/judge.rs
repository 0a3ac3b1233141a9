//! Decides from a service's answer whether a message was delivered, can be retried, or was refused permanently.

use std::time::Duration;

use chrono::DateTime;
use rondel_core::Timestamp;
use rondel_core::channel::ChannelKind;
use rondel_core::notice::cut;
use serde_json::Value;

use crate::delivery;

/// Maximum length of the reason taken from an answer, in bytes.
const REASON_BYTES_MAX: usize = 300;
/// Longest pause before the next try, even if the service asks for a longer pause.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Why a message was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeliveryError {
    /// Whether a retry cannot succeed.
    pub(super) is_final: bool,
    /// The status of the service's answer; 0 if there was no answer.
    pub(super) status: i32,
    pub(super) text: String,
    /// How long the service asks to wait before the next try, at most [`WAIT_MAX`]; `None` if it does not ask.
    pub(super) retry_wait: Option<Duration>,
}

/// An HTTP answer, with its body truncated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer<'a> {
    pub(super) status: u16,
    pub(super) retry_after: Option<&'a str>,
    pub(super) body: &'a str,
    pub(super) now: Timestamp,
}

/// Decides whether the service accepted the message.
pub(super) fn judge(kind: ChannelKind, answer: Answer<'_>) -> Result<(), DeliveryError> {
    let Answer { status, body, .. } = answer;
    let retry_wait = answer.retry_after.and_then(|text| read_wait(text, answer.now));
    let refuse = |is_final, text: String| Err(DeliveryError { is_final, status: status.into(), text, retry_wait });
    if !(200..300).contains(&status) {
        let is_final = !delivery::is_temporary(status);
        let reason = one_line_excerpt(body);
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        return refuse(is_final, format!("it answered with status {status}{reason}"));
    }
    match kind {
        ChannelKind::Dingtalk | ChannelKind::Wecom | ChannelKind::Feishu => match read_code(body) {
            Some((0, _)) => Ok(()),
            Some((code, message)) => refuse(
                !is_temporary(kind, code),
                format!("it answered with code {code}: {}", one_line_excerpt(&message)),
            ),
            None => refuse(false, format!("it answered with an unexpected body: {}", one_line_excerpt(body))),
        },
        // The connector answers 200 even if Teams refused the card.
        ChannelKind::Teams if body.contains("failed with error") => {
            refuse(!has_temporary_status(body), one_line_excerpt(body))
        }
        _ => Ok(()),
    }
}

/// The code and the message of a robot's answer; `None` if the answer has no code.
fn read_code(body: &str) -> Option<(i64, String)> {
    let answer: Value = serde_json::from_str(body).ok()?;
    let code = ["errcode", "code", "StatusCode"].iter().find_map(|name| answer.get(name)?.as_i64())?;
    let message = ["errmsg", "msg", "StatusMessage"].iter().find_map(|name| answer.get(name)?.as_str());
    Some((code, message.unwrap_or_default().to_owned()))
}

/// Whether the code means a temporary error: too many messages, or the service is busy.
const fn is_temporary(kind: ChannelKind, code: i64) -> bool {
    match kind {
        ChannelKind::Dingtalk => matches!(code, -1 | 130_101 | 410_100),
        ChannelKind::Wecom => matches!(code, -1 | 45_009 | 45_033),
        ChannelKind::Feishu => matches!(code, 9_499 | 11_232 | 11_233 | 99_991_400 | 99_991_663),
        _ => false,
    }
}

/// Whether the answer of Teams names a status that means a temporary error, as in `HTTP error 429 with ContextId`.
fn has_temporary_status(body: &str) -> bool {
    let status_text = body.split_once("HTTP error ").map_or("", |(_, text)| text);
    let status_text = status_text.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    status_text.parse::<u16>().is_ok_and(delivery::is_temporary)
}

/// Parses `Retry-After`: a number of seconds, or an instant.
fn read_wait(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    let seconds = text.parse::<u64>().ok().map(Duration::from_secs);
    let wait_until_date = || {
        let retry_at = DateTime::parse_from_rfc2822(text).ok()?;
        let retry_at = Timestamp::from_millis(retry_at.timestamp_millis());
        Some(if retry_at > now { retry_at.since(now) } else { Duration::ZERO })
    };
    seconds.or_else(wait_until_date).map(|wait| wait.min(WAIT_MAX))
}

/// The beginning of an answer, as one line without control characters.
fn one_line_excerpt(body: &str) -> String {
    let one_line: String = body.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    cut(&one_line.split_whitespace().collect::<Vec<_>>().join(" "), REASON_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_772_953_200);

    fn judged(kind: ChannelKind, status: u16, body: &str, retry_after: Option<&str>) -> Result<(), DeliveryError> {
        judge(kind, Answer { status, retry_after, body, now: NOW })
    }

    #[track_caller]
    fn check(kind: ChannelKind, status: u16, body: &str, expected: Option<(bool, &str)>) {
        match (judged(kind, status, body, None), expected) {
            (Ok(()), None) => {}
            (Err(refused), Some((is_final, words))) => {
                assert_eq!(refused.is_final, is_final, "{refused:?}");
                assert!(refused.text.contains(words), "{refused:?}");
            }
            (found, _) => panic!("{kind} {status} {body}: {found:?}"),
        }
    }

    #[test]
    fn each_service_answers_in_its_own_way() {
        use ChannelKind::{Dingtalk, Feishu, Ntfy, Pagerduty, Slack, Teams, Webhook, Wecom};
        check(Slack, 200, "ok", None);
        check(Slack, 404, "no_service", Some((true, "404: no_service")));
        check(Slack, 429, "", Some((false, "429")));
        check(Teams, 202, "", None);
        check(
            Teams,
            200,
            "Webhook message delivery failed with error: Microsoft Teams endpoint returned HTTP error 429",
            Some((false, "failed")),
        );
        let failed = |error: &str| format!("Webhook message delivery failed with error: {error}");
        check(Teams, 200, &failed("HTTP error 413"), Some((true, "413")));
        check(Teams, 200, &failed("HTTP error 413 with ContextId 429"), Some((true, "413")));
        check(Teams, 200, &failed("HTTP error 502 with ContextId 413"), Some((false, "502")));
        check(Teams, 200, &failed("no such card"), Some((true, "no such card")));
        check(Pagerduty, 202, "{\"status\":\"success\"}", None);
        check(Pagerduty, 400, "{\"status\":\"invalid event\"}", Some((true, "invalid event")));
        check(Pagerduty, 500, "", Some((false, "500")));
        check(Dingtalk, 200, "{\"errcode\":0,\"errmsg\":\"ok\"}", None);
        check(
            Dingtalk,
            200,
            "{\"errcode\":310000,\"errmsg\":\"sign not match\"}",
            Some((true, "310000: sign not match")),
        );
        check(Dingtalk, 200, "{\"errcode\":130101,\"errmsg\":\"send too fast\"}", Some((false, "too fast")));
        check(Dingtalk, 200, "<html>portal</html>", Some((false, "unexpected body")));
        check(Wecom, 200, "{\"errcode\":93000,\"errmsg\":\"invalid webhook url\"}", Some((true, "93000")));
        check(Wecom, 200, "{\"errcode\":45009,\"errmsg\":\"api freq out of limit\"}", Some((false, "45009")));
        check(Feishu, 200, "{\"StatusCode\":0,\"StatusMessage\":\"success\"}", None);
        check(Feishu, 200, "{\"code\":19021,\"msg\":\"sign match fail\"}", Some((true, "sign match fail")));
        check(Feishu, 200, "{\"code\":11232,\"msg\":\"frequency limited\"}", Some((false, "11232")));
        check(Ntfy, 507, "", Some((false, "507")));
        for code in [301, 302, 400, 401, 403, 410] {
            check(Webhook, code, "", Some((true, "status")));
        }
        for code in [408, 425, 429, 500, 503] {
            check(Webhook, code, "", Some((false, "status")));
        }
    }

    #[test]
    fn a_pause_is_read_and_bounded() {
        let wait = |text| judged(ChannelKind::Slack, 429, "", Some(text)).unwrap_err().retry_wait;
        assert_eq!(wait("30"), Some(Duration::from_secs(30)));
        assert_eq!(wait("999999999"), Some(WAIT_MAX));
        assert_eq!(wait("Sun, 08 Mar 2026 07:01:00 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(wait("Sun, 08 Mar 2020 07:01:00 GMT"), Some(Duration::ZERO));
        assert_eq!(wait("soon"), None);
    }

    #[test]
    fn a_reason_is_one_short_line() {
        let refused =
            judged(ChannelKind::Slack, 400, &format!("a\r\nb\u{1b}[31m{}", "务".repeat(1_000)), None).unwrap_err();
        assert!(refused.text.starts_with("it answered with status 400: a b [31m务") && refused.text.len() < 340);
    }
}

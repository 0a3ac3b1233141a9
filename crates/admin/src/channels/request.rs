//! The HTTP request that each service expects for a message.

use rondel_core::Timestamp;
use rondel_core::channel::{ChannelKind, Values};
use rondel_core::notice::{Notice, NoticeKind, Severity, cut};
use rondel_core::words::Lang;
use rondel_outgoing::Url;
use serde_json::{Value, json};

use super::robots;
use super::sign::standard_signature;
use super::texts::Texts;
use super::url::read_url;

/// Slack: maximum characters of a header.
const SLACK_HEADER_MAX: usize = 150;
/// Slack: maximum characters of a section.
const SLACK_SECTION_MAX: usize = 3_000;
/// Maximum size of the text, in bytes: Teams accepts 28 KB for the whole card.
const TEAMS_TEXT_BYTES_MAX: usize = 12_000;
/// `PagerDuty`: maximum characters of a summary.
const PAGERDUTY_SUMMARY_MAX: usize = 1_024;
/// ntfy turns a longer message into an attachment.
const NTFY_MESSAGE_BYTES_MAX: usize = 4_000;
const NTFY_TITLE_BYTES_MAX: usize = 250;

const PAGERDUTY_URL: &str = "https://events.pagerduty.com/v2/enqueue";
const NTFY_URL: &str = "https://ntfy.sh";

/// A request to be sent by POST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChannelRequest {
    pub(super) url: Url,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: String,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RequestInput<'a> {
    pub(super) settings: &'a Values,
    /// The secrets, with references replaced by their values.
    pub(super) secrets: &'a Values,
    pub(super) lang: Lang,
    pub(super) notice: &'a Notice,
    pub(super) texts: &'a Texts,
    /// The message's id, which is the same at each attempt.
    pub(super) id: &'a str,
    pub(super) now: Timestamp,
}

impl<'a> RequestInput<'a> {
    /// The value of a secret or setting; `None` if it is absent or empty. A secret takes precedence over a setting of the same name.
    pub(super) fn value(&self, name: &str) -> Option<&'a str> {
        let value = self.secrets.get(name).or_else(|| self.settings.get(name));
        value.map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(super) fn required(&self, name: &str) -> Result<&'a str, String> {
        self.value(name).ok_or_else(|| format!("the channel has no {name}"))
    }

    pub(super) fn url(&self) -> Result<Url, String> {
        read_url(self.required("url")?)
    }
}

/// Builds the request for a service that is called by HTTP.
pub(super) fn build_request(kind: ChannelKind, input: &RequestInput<'_>) -> Result<ChannelRequest, String> {
    let mut request = match kind {
        ChannelKind::Email => return Err("mail is not sent by HTTP".to_owned()),
        ChannelKind::Webhook => webhook(input)?,
        ChannelKind::Slack => json_request(input.url()?, &slack(input)),
        ChannelKind::Teams => json_request(input.url()?, &teams(input)),
        ChannelKind::Pagerduty => pagerduty(input)?,
        ChannelKind::Dingtalk => robots::dingtalk(input)?,
        ChannelKind::Wecom => robots::wecom(input)?,
        ChannelKind::Feishu => robots::feishu(input)?,
        ChannelKind::Ntfy => ntfy(input)?,
    };
    request.headers.push(("idempotency-key", input.id.to_owned()));
    Ok(request)
}

pub(super) fn json_request(url: Url, body: &Value) -> ChannelRequest {
    let headers = vec![("content-type", "application/json; charset=utf-8".to_owned())];
    ChannelRequest { url, headers, body: body.to_string() }
}

/// The whole notice as JSON. With a signing key, the message is signed as Standard Webhooks defines.
fn webhook(input: &RequestInput<'_>) -> Result<ChannelRequest, String> {
    let RequestInput { notice, texts, id, now, .. } = *input;
    let mut data = json!(notice);
    data["title"] = json!(texts.title);
    data["text"] = json!(texts.body);
    data["link"] = json!(texts.link.as_ref().map(|(_, url)| url));
    let body = json!({"type": format!("alert.{}", notice.kind), "timestamp": now, "data": data}).to_string();
    let mut headers = vec![("content-type", "application/json".to_owned()), ("webhook-id", id.to_owned())];
    if let Some(key) = input.value("signing_key") {
        let signature = standard_signature(key, id, now.second(), &body)
            .ok_or("signing_key is not a key: it is whsec_ and the key in base64")?;
        headers.push(("webhook-timestamp", now.second().to_string()));
        headers.push(("webhook-signature", signature));
    }
    Ok(ChannelRequest { url: input.url()?, headers, body })
}

fn cut_chars(text: &str, count_max: usize) -> String {
    match text.char_indices().nth(count_max) {
        None => text.to_owned(),
        Some(_) => text.chars().take(count_max.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Blocks of plain text, so that no name or message is read as markup.
fn slack(input: &RequestInput<'_>) -> Value {
    let texts = input.texts;
    let plain_text = |text: &str, max| json!({"type": "plain_text", "text": cut_chars(text, max), "emoji": false});
    let mut blocks = vec![json!({"type": "header", "text": plain_text(&texts.title, SLACK_HEADER_MAX)})];
    if !texts.body.trim().is_empty() {
        blocks.push(json!({"type": "section", "text": plain_text(&texts.body, SLACK_SECTION_MAX)}));
    }
    let lines = texts.facts.iter().map(|(label, value)| format!("{label}: {value}"));
    let lines: Vec<String> = lines.chain(texts.samples.iter().map(|sample| format!("- {sample}"))).collect();
    if !lines.is_empty() {
        blocks.push(json!({"type": "section", "text": plain_text(&lines.join("\n"), SLACK_SECTION_MAX)}));
    }
    if let Some((words, url)) = &texts.link {
        let escaped = url.replace('&', "&amp;").replace('<', "%3C").replace('>', "%3E").replace('|', "%7C");
        blocks.push(json!({"type": "section", "text": {"type": "mrkdwn", "text": format!("<{escaped}|{words}>")}}));
    }
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    json!({"text": escape(&texts.title), "blocks": blocks})
}

/// An adaptive card of `TextRun` elements, so that no name or message is read as markup.
fn teams(input: &RequestInput<'_>) -> Value {
    let texts = input.texts;
    let color = match (input.notice.kind, input.notice.severity) {
        (NoticeKind::Resolved | NoticeKind::Acknowledged, _) => "Good",
        (NoticeKind::Test | NoticeKind::Report, _) => "Accent",
        (_, Severity::Critical) => "Attention",
        (_, Severity::Warning) => "Warning",
    };
    let text_run = |text: &str| json!({"type": "TextRun", "text": text});
    let text_block = |runs: Vec<Value>| json!({"type": "RichTextBlock", "inlines": runs});
    let title = json!({"type": "TextRun", "text": texts.title, "weight": "Bolder", "size": "Large", "color": color});
    let mut body = vec![text_block(vec![title]), text_block(vec![text_run(&cut(&texts.body, TEAMS_TEXT_BYTES_MAX))])];
    for (label, value) in &texts.facts {
        let label = json!({"type": "TextRun", "text": format!("{label}: "), "weight": "Bolder"});
        body.push(text_block(vec![label, text_run(value)]));
    }
    body.extend(texts.samples.iter().map(|sample| text_block(vec![text_run(sample)])));
    let mut card = json!({
        "type": "AdaptiveCard",
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "version": "1.4",
        "body": body,
    });
    if let Some((words, url)) = &texts.link {
        card["actions"] = json!([{"type": "Action.OpenUrl", "title": words, "url": url}]);
    }
    let attachment = json!({
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": null,
        "content": card,
    });
    json!({"type": "message", "attachments": [attachment]})
}

/// An event of the Events API v2; all messages about one incident share one `dedup_key`.
fn pagerduty(input: &RequestInput<'_>) -> Result<ChannelRequest, String> {
    let RequestInput { notice, texts, id, .. } = *input;
    let action = match notice.kind {
        NoticeKind::Resolved => "resolve",
        NoticeKind::Acknowledged => "acknowledge",
        _ => "trigger",
    };
    let dedup_key =
        notice.incident.map_or_else(|| format!("rondel-test-{id}"), |incident| format!("rondel-{incident}"));
    let severity = match (notice.kind, notice.severity) {
        (NoticeKind::Test | NoticeKind::Report, _) => "info",
        (_, Severity::Critical) => "critical",
        (_, Severity::Warning) => "warning",
    };
    let details = json!({
        "text": texts.plain_text(SLACK_SECTION_MAX),
        "rule": notice.rule,
        "condition": notice.condition,
        "count": notice.count,
    });
    let mut event = json!({
        "routing_key": input.required("routing_key")?,
        "event_action": action,
        "dedup_key": dedup_key,
        "client": "Rondel",
        "payload": {
            "summary": cut_chars(&texts.title, PAGERDUTY_SUMMARY_MAX),
            "source": format!("rondel/{}", notice.namespace),
            "severity": severity,
            "component": notice.subject.name,
            "group": notice.namespace,
            "class": notice.condition,
            "timestamp": notice.at.to_string(),
            "custom_details": details,
        },
    });
    if let Some((words, url)) = &texts.link {
        event["client_url"] = json!(url);
        event["links"] = json!([{"href": url, "text": words}]);
    }
    let url = read_url(input.value("url").unwrap_or(PAGERDUTY_URL))?;
    Ok(json_request(url, &event))
}

/// A message published as JSON, since an HTTP header cannot contain every character of a title.
fn ntfy(input: &RequestInput<'_>) -> Result<ChannelRequest, String> {
    let RequestInput { notice, texts, .. } = *input;
    let priority = match (
        input.value("priority").and_then(|own_priority| own_priority.parse::<u8>().ok()),
        notice.kind,
        notice.severity,
    ) {
        (Some(own_priority), ..) => own_priority,
        (None, NoticeKind::Resolved | NoticeKind::Acknowledged | NoticeKind::Test | NoticeKind::Report, _) => 3,
        (None, _, Severity::Critical) => 5,
        (None, _, Severity::Warning) => 4,
    };
    let tag = match (notice.kind, notice.severity) {
        (NoticeKind::Resolved | NoticeKind::Acknowledged, _) => "white_check_mark",
        (NoticeKind::Test, _) => "test_tube",
        (NoticeKind::Report, _) => "bar_chart",
        (_, Severity::Critical) => "rotating_light",
        (_, Severity::Warning) => "warning",
    };
    let message = Texts { link: None, ..texts.clone() }.plain_text(NTFY_MESSAGE_BYTES_MAX);
    let mut message = json!({
        "topic": input.required("topic")?,
        "title": cut(&texts.title, NTFY_TITLE_BYTES_MAX),
        "message": message,
        "priority": priority,
        "tags": [tag],
    });
    if let Some((_, url)) = &texts.link {
        message["click"] = json!(url);
    }
    let mut request = json_request(read_url(input.value("url").unwrap_or(NTFY_URL))?, &message);
    if let Some(token) = input.value("token") {
        request.headers.push(("authorization", format!("Bearer {token}")));
    }
    Ok(request)
}

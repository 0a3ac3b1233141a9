//! One attempt to deliver a message.

use std::time::Duration;

use rondel_core::Timestamp;
use rondel_core::channel::{ChannelKind, Values, parse_reference};
use rondel_core::error_chain::chain;
use rondel_core::notice::{Notice, cut};
use rondel_outgoing::smtp::{AcceptedMail, Mail, MailError, MailServer, Security, send_mail};
use rondel_outgoing::{Method, Outgoing, Response, failure_text, header, refusal};
use rondel_store::channels::Channel;

use super::judge::{Answer, DeliveryError, judge};
use super::request::{ChannelRequest, RequestInput, build_request};
use super::secrets::SecretSources;
use super::texts::Texts;
use crate::config::EngineConfig;

/// Timeout for the service's answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of bytes read from an answer.
const ANSWER_BYTES_MAX: usize = 4 * 1024;
/// Maximum length of a mail's subject, in bytes.
const SUBJECT_BYTES_MAX: usize = 200;
/// Maximum length of a mail's plain text, and of each text in its HTML, in bytes.
const MAIL_BYTES_MAX: usize = 64 * 1024;

/// Input of one delivery attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeliveryAttempt<'a> {
    pub(super) channel: &'a Channel,
    pub(super) notice: &'a Notice,
    /// The message's id, which is the same at each attempt.
    pub(super) id: &'a str,
    pub(super) now: Timestamp,
}

/// Result of a message that the service accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acceptance {
    /// The status of the service's answer.
    pub(super) status: i32,
    /// The recipients that the mail server refused, with its reasons; `None` if there are none.
    pub(super) refusals: Option<String>,
}

/// Parses the stored settings or secrets of a channel.
pub(super) fn read_values(text: &str) -> Result<Values, String> {
    serde_json::from_str(text).map_err(|error| format!("the channel as it is stored cannot be read: {error}"))
}

/// Sends a message once.
pub(super) async fn deliver(
    client: &Outgoing,
    config: &EngineConfig,
    attempt: DeliveryAttempt<'_>,
) -> Result<Acceptance, DeliveryError> {
    let final_error = |text: String| DeliveryError { is_final: true, status: 0, text, retry_wait: None };
    let channel = attempt.channel;
    let settings = read_values(&channel.settings).map_err(final_error)?;
    let secrets = read_values(&channel.secret).map_err(final_error)?;
    // Not final, since the operator may create the secret's file later.
    let temporary_error = |text: String| DeliveryError { is_final: false, status: 0, text, retry_wait: None };
    let sources: &SecretSources = &config.alert_secrets;
    let has_reference = secrets.values().any(|value| parse_reference(value).is_some());
    let secrets = sources.resolve(&secrets).await.map_err(temporary_error)?;
    // Stored values were checked when they were saved, so an error in them is final. The operator can still correct a value that comes from a
    // file, and a file can be incomplete while it is being replaced.
    let build_error = |text: String| DeliveryError { is_final: !has_reference, status: 0, text, retry_wait: None };
    let texts = render_texts(&attempt, &settings, config.advertise_url.as_deref());
    let DeliveryAttempt { notice, id, now, .. } = attempt;
    let input =
        RequestInput { settings: &settings, secrets: &secrets, lang: channel.lang, notice, texts: &texts, id, now };
    if channel.kind == ChannelKind::Email {
        let (server, mail) = build_mail(&input).map_err(build_error)?;
        return match send_mail(&server, &mail, &config.outgoing_allow).await {
            Ok(AcceptedMail { status, refused: refusals }) => {
                let refusals = (!refusals.is_empty()).then(|| refusals.join("; "));
                if let Some(refusals) = &refusals {
                    tracing::warn!(channel = channel.name, refused = refusals, "a mail server refused some recipients");
                }
                Ok(Acceptance { status, refusals })
            }
            Err(MailError { is_final, status, text }) => {
                Err(retry_credentials(DeliveryError { is_final, status, text, retry_wait: None }, has_reference))
            }
        };
    }
    let request = build_request(channel.kind, &input).map_err(build_error)?;
    let send_result = send(client, channel.kind, request, now).await;
    let status = send_result.map_err(|error| retry_credentials(error, has_reference))?;
    Ok(Acceptance { status, refusals: None })
}

/// Makes the error temporary if the service refused credentials that may come from a file or a variable: the file may not have the new password
/// yet.
fn retry_credentials(error: DeliveryError, has_reference: bool) -> DeliveryError {
    // 401 and 403 are statuses of HTTP; the others are codes of SMTP.
    let is_about_credentials = matches!(error.status, 401 | 403 | 530 | 534 | 535);
    DeliveryError { is_final: error.is_final && !(has_reference && is_about_credentials), ..error }
}

/// The channel's own texts, or the default texts if a template fails although it was valid when it was saved.
fn render_texts(attempt: &DeliveryAttempt<'_>, settings: &Values, console_url: Option<&str>) -> Texts {
    let lang_and_url = (attempt.channel.lang, console_url);
    let texts = Texts::new(attempt.notice, settings, lang_and_url);
    texts
        .or_else(|error| {
            tracing::warn!(channel = attempt.channel.name, error, "the default texts are sent: a template failed");
            Texts::new(attempt.notice, &Values::new(), lang_and_url)
        })
        .unwrap_or_else(|body| Texts { title: String::new(), body, facts: Vec::new(), samples: Vec::new(), link: None })
}

async fn send(
    client: &Outgoing,
    kind: ChannelKind,
    request: ChannelRequest,
    now: Timestamp,
) -> Result<i32, DeliveryError> {
    let failure = |is_final, text| DeliveryError { is_final, status: 0, text, retry_wait: None };
    let ChannelRequest { url, headers, body } = request;
    let mut builder =
        client.request(Method::POST, url).map_err(|refused| failure(true, refused.to_string()))?.timeout(TIMEOUT);
    for (name, value) in headers {
        builder = builder.header(name, value);
    }
    // The URL may contain a secret, so it is neither logged nor recorded.
    let response = builder.body(body).send().await.map_err(|error| match refusal(&error) {
        Some(refused) => failure(true, refused.to_string()),
        None if error.is_builder() => failure(true, chain(&error.without_url())),
        None => failure(false, failure_text(error)),
    })?;
    let status = response.status().as_u16();
    let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = retry_after.map(str::to_owned);
    let body = read_beginning(response).await;
    judge(kind, Answer { status, retry_after: retry_after.as_deref(), body: &body, now })?;
    Ok(status.into())
}

/// Reads the beginning of an answer. If the connection breaks, the answer is judged by the part received.
async fn read_beginning(mut response: Response) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < ANSWER_BYTES_MAX {
        match response.chunk().await {
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk[..chunk.len().min(ANSWER_BYTES_MAX - bytes.len())]),
            Ok(None) | Err(_) => break,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn build_mail(input: &RequestInput<'_>) -> Result<(MailServer, Mail), String> {
    let (security, default_port) = match input.value("security").unwrap_or("starttls") {
        "tls" => (Security::Tls, 465),
        "none" => (Security::None, 25),
        _ => (Security::Starttls, 587),
    };
    let port = input.value("port").and_then(|port| port.parse().ok()).unwrap_or(default_port);
    let credentials = input.value("username").zip(input.value("password"));
    let credentials = credentials.map(|(user, password)| (user.to_owned(), password.to_owned()));
    let host = input.required("host")?.to_owned();
    let server = MailServer { host, port, security, credentials, timeout: TIMEOUT };
    let mail = Mail {
        from: input.required("from")?.trim().to_owned(),
        to: input.required("to")?.split(',').map(|address| address.trim().to_owned()).collect(),
        subject: cut(&input.texts.title, SUBJECT_BYTES_MAX),
        text: input.texts.plain_text(MAIL_BYTES_MAX),
        html: render_html(input.texts),
        id: input.id.to_owned(),
    };
    Ok((server, mail))
}

/// Renders the texts as HTML, with every value escaped.
fn render_html(texts: &Texts) -> String {
    let escape = |text: &str| {
        cut(text, MAIL_BYTES_MAX).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
    };
    let body = escape(&texts.body).replace('\n', "<br>\n");
    let mut html = format!("<!doctype html>\n<html><body>\n<h2>{}</h2>\n<p>{body}</p>\n", escape(&texts.title));
    if !texts.facts.is_empty() {
        html.push_str("<table>\n");
        for (label, value) in &texts.facts {
            html.push_str(&format!("<tr><th align=\"left\">{label}</th><td>{}</td></tr>\n", escape(value)));
        }
        html.push_str("</table>\n");
    }
    if !texts.samples.is_empty() {
        let items: Vec<String> = texts.samples.iter().map(|sample| format!("<li>{}</li>\n", escape(sample))).collect();
        html.push_str(&format!("<ul>\n{}</ul>\n", items.concat()));
    }
    if let Some((words, url)) = &texts.link {
        html.push_str(&format!("<p><a href=\"{}\">{words}</a></p>\n", escape(url)));
    }
    html + "</body></html>\n"
}

#[cfg(test)]
mod tests {
    use rondel_core::outgoing::AllowedAddresses;
    use rondel_core::words::Lang;
    use rondel_core::{ChannelId, NamespaceId};

    use super::*;
    use crate::channels::samples::notices;
    use crate::delivery::build_client;

    /// A file may be empty for a moment while it is replaced.
    #[tokio::test]
    async fn a_message_waits_until_the_file_of_a_secret_is_right() {
        let folder = tempfile::tempdir().unwrap();
        let alert_secrets = SecretSources { folder: Some(folder.path().to_owned()), ..SecretSources::default() };
        let config = EngineConfig { alert_secrets, ..EngineConfig::default() };
        let client = build_client(&AllowedAddresses::default()).unwrap();
        let notice = notices().remove(0);
        let error = async |url: &str| {
            let channel = Channel {
                id: ChannelId::new(1),
                namespace: NamespaceId::new(1),
                name: "ops".to_owned(),
                kind: ChannelKind::Slack,
                settings: "{}".to_owned(),
                secret: serde_json::json!({ "url": url }).to_string(),
                lang: Lang::En,
                is_enabled: true,
                created_at: Timestamp::EPOCH,
                updated_at: Timestamp::EPOCH,
            };
            let attempt = DeliveryAttempt { channel: &channel, notice: &notice, id: "1", now: Timestamp::EPOCH };
            deliver(&client, &config, attempt).await.unwrap_err()
        };
        for (content, words) in
            [("\n", "file slack of alert_secrets_dir is empty"), ("hooks.slack.com", "is not a URL")]
        {
            std::fs::write(folder.path().join("slack"), content).unwrap();
            let found = error("file:slack").await;
            assert!(!found.is_final && found.text.contains(words), "{found:?}");
        }
        let stored = error("hooks.slack.com").await;
        assert!(stored.is_final && stored.text.contains("is not a URL"), "{stored:?}");
    }

    #[test]
    fn refused_credentials_of_a_file_are_tried_again() {
        let is_final = |is_final, status, has_reference| {
            let error = DeliveryError { is_final, status, text: String::new(), retry_wait: None };
            retry_credentials(error, has_reference).is_final
        };
        assert!(!is_final(true, 401, true) && !is_final(true, 535, true), "the new password may come");
        assert!(is_final(true, 401, false) && is_final(true, 535, false), "nothing changes them");
        assert!(is_final(true, 404, true) && !is_final(false, 503, false));
    }

    #[test]
    fn nothing_in_a_mail_is_markup() {
        let texts = Texts {
            title: "<script>".to_owned(),
            body: "a & b\n<img src=x>".to_owned(),
            facts: vec![("Job", "\"><b>".to_owned())],
            samples: vec!["</ul>".to_owned()],
            link: Some(("Open", "https://rondel.example/\"x".to_owned())),
        };
        let html = render_html(&texts);
        for bad in ["<script>", "<img", "<b>", "</ul></li>", "/\"x"] {
            assert!(!html.contains(bad), "{html}");
        }
        assert!(html.contains("a &amp; b<br>"), "{html}");
    }
}

//! Saves, shows and tests channels.

use std::time::Duration;

use rondel_core::channel::{ChannelKind, FieldForm, Values, check, fields, parse_reference};
use rondel_core::notice::{Notice, NoticeKind, NoticeSubject, Severity, Subject};
use rondel_core::words::Lang;
use rondel_core::{ChannelId, FieldError, MessageId, NamespaceId, Timestamp, name};
use rondel_store::StoreError;
use rondel_store::catalog::Namespace;
use rondel_store::channels::{CHANNEL_COUNT_MAX, Channel, ChannelSaved, Delivery};
use tokio::time::Instant;

use super::deliver::{DeliveryAttempt, deliver, read_values};
use super::judge::DeliveryError;
use super::samples::notices;
use super::sender::{delivery_record, message_id};
use super::sign::standard_signature;
use super::texts::Texts;
use super::url::{check_url, shown_host};
use crate::delivery::{build_client, generate_secret};
use crate::node::Node;
use crate::store_once::store_once;

/// Maximum number of tries to save a channel that other callers save at the same time.
const TRY_COUNT_MAX: usize = 4;

/// The values of a channel to be saved.
#[derive(Clone, Debug)]
pub struct NewChannel {
    pub name: String,
    /// The service.
    pub kind: ChannelKind,
    /// All settings of the channel.
    pub settings: Values,
    /// Secrets to set. An omitted secret is kept, unless the channel's kind changes. An empty secret is removed.
    pub secrets: Values,
    /// The language of the channel's messages.
    pub lang: Lang,
    /// Whether messages are sent.
    pub is_enabled: bool,
    /// When the version on which the change is based was saved, [`Timestamp::EPOCH`] for a new channel; `None` means any.
    pub expected_saved_at: Option<Timestamp>,
}

/// Result of saving a channel.
#[derive(Clone, Debug)]
pub struct SavedChannel {
    pub channel: Channel,
    /// Whether the channel was created.
    pub is_new: bool,
    /// The signing key generated for the channel, shown only this once; `None` if no key was generated.
    pub signing_key: Option<String>,
}

/// Why a channel was not saved or tested.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The listed fields are invalid.
    #[error("the channel is not valid")]
    Invalid(Vec<FieldError>),
    /// Another caller saved or deleted the channel first.
    #[error("the channel was changed meanwhile")]
    Conflict {
        /// When the channel was last saved; [`Timestamp::EPOCH`] if it does not exist.
        saved_at: Timestamp,
    },
    /// The namespace has reached its maximum number of channels.
    #[error("a namespace has at most {CHANNEL_COUNT_MAX} channels")]
    TooMany,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A channel with the values of its secrets hidden.
#[derive(Clone, Debug)]
pub struct ChannelView {
    pub settings: Values,
    /// Each stored secret, shown as its reference or as `set`.
    pub secrets: Values,
    /// The host of the channel's URL, or else its setting `host`; `None` if it has neither.
    pub host: Option<String>,
}

/// The parts of a channel that may be shown.
#[must_use]
pub fn view(channel: &Channel) -> ChannelView {
    let settings = read_values(&channel.settings).unwrap_or_default();
    let secrets = read_values(&channel.secret).unwrap_or_default();
    let host = shown_host(&secrets).or_else(|| shown_host(&settings)).or_else(|| settings.get("host").cloned());
    let show = |value: String| if parse_reference(&value).is_some() { value } else { "set".to_owned() };
    let secrets = secrets.into_iter().map(|(name, value)| (name, show(value))).collect();
    ChannelView { settings, secrets, host }
}

/// Finds a channel by its name. Returns `None` if there is none, or if the text cannot be a name.
///
/// # Errors
/// The store's.
pub async fn find(node: &Node, namespace: NamespaceId, name: &str) -> Result<Option<Channel>, StoreError> {
    // Text that cannot be a name is not looked up, so that unchecked text of a caller never reaches the database.
    if name::check(name).is_ok() { node.store().channel(namespace, name).await } else { Ok(None) }
}

/// Saves a channel under its name.
///
/// # Errors
/// [`ChannelError`].
pub async fn save(node: &Node, namespace: &Namespace, request: &NewChannel) -> Result<SavedChannel, ChannelError> {
    // Omitted secrets are copied from the version that this save replaces. If another caller saves a version first, the next try reads that
    // version.
    let mut try_number = 1;
    loop {
        match save_on_current(node, namespace, request).await {
            Err(ChannelError::Conflict { .. }) if request.expected_saved_at.is_none() && try_number < TRY_COUNT_MAX => {
                try_number += 1;
            }
            result => return result,
        }
    }
}

/// Saves a channel in place of its current version. Fails with a conflict if another caller saves the channel first.
async fn save_on_current(
    node: &Node,
    namespace: &Namespace,
    request: &NewChannel,
) -> Result<SavedChannel, ChannelError> {
    let existing_channel = find(node, namespace.id, &request.name).await?;
    let saved_at = existing_channel.as_ref().map_or(Timestamp::EPOCH, |channel| channel.updated_at);
    if request.expected_saved_at.is_some_and(|expected| expected != saved_at) {
        return Err(ChannelError::Conflict { saved_at });
    }
    let mut secrets = match existing_channel.as_ref().filter(|channel| channel.kind == request.kind) {
        Some(channel) => read_values(&channel.secret).unwrap_or_default(),
        None => Values::new(),
    };
    secrets.extend(request.secrets.iter().map(|(name, value)| (name.clone(), value.trim().to_owned())));
    secrets.retain(|_, value| !value.is_empty());
    let mut settings = request.settings.clone();
    settings.retain(|_, value| !value.trim().is_empty());
    let mut signing_key = None;
    if request.kind == ChannelKind::Webhook && !secrets.contains_key("signing_key") {
        let key = generate_secret();
        secrets.insert("signing_key".to_owned(), key.clone());
        signing_key = Some(key);
    }
    let mut errors = find_errors(node, request, &settings, &secrets);
    errors.extend(existing_channel.iter().flat_map(|channel| find_moved_secrets(channel, request, &settings)));
    if !errors.is_empty() {
        return Err(ChannelError::Invalid(errors));
    }
    let now = node.now();
    let to_json = |values: &Values| serde_json::to_string(values).unwrap_or_default();
    let mut channel = Channel {
        id: ChannelId::new(node.new_id()),
        namespace: namespace.id,
        name: request.name.clone(),
        kind: request.kind,
        settings: to_json(&settings),
        secret: to_json(&secrets),
        lang: request.lang,
        is_enabled: request.is_enabled,
        created_at: existing_channel.as_ref().map_or(now, |channel| channel.created_at),
        // Each save has a different instant, which serves as the version of the channel.
        updated_at: now.max(saved_at + Duration::from_millis(1)),
    };
    let (id, is_new) = match store_once(|| node.store().save_channel(&channel, Some(saved_at))).await? {
        ChannelSaved::Created(id) => (id, true),
        ChannelSaved::Changed(id) => (id, false),
        ChannelSaved::Conflict(saved_at) => match find(node, namespace.id, &channel.name).await? {
            // An earlier try of this call saved the channel, but the answer to that try was lost.
            Some(stored) if stored == (Channel { id: stored.id, ..channel.clone() }) => {
                (stored.id, existing_channel.is_none())
            }
            Some(_) | None => return Err(ChannelError::Conflict { saved_at }),
        },
        ChannelSaved::Full => return Err(ChannelError::TooMany),
    };
    channel.id = id;
    Ok(SavedChannel { channel, is_new, signing_key })
}

fn find_errors(node: &Node, request: &NewChannel, settings: &Values, secrets: &Values) -> Vec<FieldError> {
    let mut errors = check(request.kind, settings, secrets);
    if let Err(sentence) = name::check(&request.name) {
        errors.push(FieldError::new("/name", sentence));
    }
    let allowed_addresses = &node.shared().config.outgoing_allow;
    for (part, values) in [("settings", settings), ("secrets", secrets)] {
        for field in fields(request.kind).iter().filter(|field| field.form == FieldForm::Url) {
            let Some(value) = values.get(field.name).filter(|value| parse_reference(value).is_none()) else { continue };
            if let Err(sentence) = check_url(request.kind, value, allowed_addresses) {
                errors.push(FieldError::new(format!("/{part}/{}", field.name), sentence));
            }
        }
    }
    let key =
        secrets.get("signing_key").filter(|key| request.kind == ChannelKind::Webhook && parse_reference(key).is_none());
    if key.is_some_and(|key| standard_signature(key, "", 0, "").is_none()) {
        errors.push(FieldError::new("/secrets/signing_key", "is not a key: it is whsec_ and the key in base64"));
    }
    errors.extend(find_template_error(settings, request.lang));
    errors
}

/// Returns an error for each stored secret that would be sent to a different address than the one it was saved for, or with another
/// encryption. A caller may save a channel without knowing its secrets. Without this check, such a caller could change the address to one of
/// their own and receive the secrets, or read them on the network. References are not checked, since they are not secret.
fn find_moved_secrets(existing_channel: &Channel, request: &NewChannel, settings: &Values) -> Vec<FieldError> {
    if existing_channel.kind != request.kind {
        return Vec::new();
    }
    let stored_settings = read_values(&existing_channel.settings).unwrap_or_default();
    let default_value =
        |name: &str| fields(request.kind).iter().find(|field| field.name == name).map_or("", |field| field.default);
    let effective_value = |values: &Values, name: &str| {
        let entered_value = values.get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        entered_value.unwrap_or_else(|| default_value(name).to_owned())
    };
    let fields_of_address = ["host", "port", "security", "url"];
    let changed_field = fields_of_address
        .into_iter()
        .find(|name| effective_value(&stored_settings, name) != effective_value(settings, name));
    let Some(changed_field) = changed_field else { return Vec::new() };
    let unchanged_secrets = read_values(&existing_channel.secret).unwrap_or_default().into_iter();
    let unchanged_secrets = unchanged_secrets
        .filter(|(name, value)| parse_reference(value).is_none() && !request.secrets.contains_key(name));
    let error = |(name, _): (String, String)| {
        let sentence = format!("enter it again: with another {changed_field} it would be sent elsewhere");
        FieldError::new(format!("/secrets/{name}"), sentence)
    };
    unchanged_secrets.map(error).collect()
}

/// Tries the templates on sample notices of all kinds, and returns the first error.
fn find_template_error(settings: &Values, lang: Lang) -> Option<FieldError> {
    let mut rendered_texts =
        notices().into_iter().map(|notice| Texts::new(&notice, settings, (lang, Some("https://rondel.example"))));
    let refusal = rendered_texts.find_map(Result::err)?;
    let (field, sentence) = refusal.split_once(": ").unwrap_or(("body_template", &refusal));
    Some(FieldError::new(format!("/settings/{field}"), sentence))
}

/// Sends a test message now; records the delivery and returns it.
///
/// # Errors
/// The store's.
pub async fn test(node: &Node, namespace: &Namespace, channel: &Channel, author: &str) -> Result<Delivery, StoreError> {
    let shared = node.shared();
    let (at, send_start) = (node.now(), Instant::now());
    let notice = Notice {
        kind: NoticeKind::Test,
        incident: None,
        rule: "test".to_owned(),
        condition: "test".to_owned(),
        namespace: namespace.name.clone(),
        subject: Subject { kind: NoticeSubject::Namespace, name: channel.name.clone() },
        severity: Severity::Warning,
        summary_en: format!("This is a test of the channel {}, sent by {author}. Nothing is wrong.", channel.name),
        summary_zh: format!("这是 {author} 发送的测试消息，用于检查通知渠道 {}。一切正常。", channel.name),
        description: String::new(),
        started_at: at,
        at,
        count: 1,
        samples: Vec::new(),
        path: "/alerts/channels".to_owned(),
    };
    let message = MessageId::new(node.new_id());
    let id = message_id(message);
    let attempt = DeliveryAttempt { channel, notice: &notice.bounded(), id: &id, now: at };
    let result = match build_client(&shared.config.outgoing_allow) {
        Ok(client) => deliver(&client, &shared.config, attempt).await,
        Err(text) => Err(DeliveryError { is_final: true, status: 0, text, retry_wait: None }),
    };
    let delivery = delivery_record(shared, (channel, message), (at, send_start), &result);
    node.store().record_test(&delivery).await?;
    Ok(delivery)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn values(pairs: Pairs<'_>) -> Values {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[track_caller]
    fn check_moved(
        kind: ChannelKind,
        (settings, secrets): (Pairs<'_>, Pairs<'_>),
        after: Pairs<'_>,
        expected: &[&str],
    ) {
        let text = |pairs| serde_json::to_string(&values(pairs)).unwrap();
        let existing = Channel {
            id: ChannelId::new(1),
            namespace: NamespaceId::new(1),
            name: "ops".to_owned(),
            kind,
            settings: text(settings),
            secret: text(secrets),
            lang: Lang::En,
            is_enabled: true,
            created_at: Timestamp::EPOCH,
            updated_at: Timestamp::EPOCH,
        };
        let new = NewChannel {
            name: "ops".to_owned(),
            kind,
            settings: values(after),
            secrets: Values::new(),
            lang: Lang::En,
            is_enabled: true,
            expected_saved_at: None,
        };
        let errors = find_moved_secrets(&existing, &new, &new.settings);
        let found: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(found, expected, "{after:?}");
    }

    #[test]
    fn stored_secrets_stay_with_their_address() {
        use ChannelKind::{Email, Ntfy, Slack};
        let mail = |host| [("host", host), ("username", "u"), ("from", "a@b.c")];
        let password: &[(&str, &str)] = &[("password", "p")];
        check_moved(Email, (&mail("mail.example.com"), password), &mail("mail.example.com"), &[]);
        check_moved(Email, (&mail("mail.example.com"), password), &mail("evil.example.com"), &["/secrets/password"]);
        check_moved(Email, (&mail("mail.example.com"), &[("password", "file:mail")]), &mail("other.example.com"), &[]);
        let port: &[(&str, &str)] = &[("host", "mail.example.com"), ("port", "2525")];
        check_moved(Email, (&mail("mail.example.com"), password), port, &["/secrets/password"]);
        let security = |word| [("host", "mail.example.com"), ("security", word)];
        check_moved(Email, (&mail("mail.example.com"), password), &security("starttls"), &[]);
        check_moved(Email, (&mail("mail.example.com"), password), &security("none"), &["/secrets/password"]);
        let ntfy: &[(&str, &str)] = &[("topic", "t"), ("token", "tk")];
        check_moved(Ntfy, (&[], ntfy), &[("url", "https://ntfy.sh")], &[]);
        check_moved(Ntfy, (&[], ntfy), &[("url", "https://evil.example")], &["/secrets/token", "/secrets/topic"]);
        check_moved(Slack, (&[], &[("url", "https://hooks.slack.com/x")]), &[("title_template", "x")], &[]);
    }
}

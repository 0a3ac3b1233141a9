//! Alert channels: lists, saves, deletes and tests them, and lists their deliveries.

use std::collections::{BTreeMap, BTreeSet};

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::header::ETAG;
use rondel_admin::channels::{self, ChannelError, ChannelView, NewChannel};
use rondel_core::access::Permission::{Admin, View};
use rondel_core::channel::{ChannelKind, Values};
use rondel_core::notice::NoticeKind;
use rondel_core::words::{Lang, counted};
use rondel_core::{DeliveryId, IncidentId, MessageId, Timestamp, name};
use rondel_store::channels::{AfterTry, CHANNEL_USE_COUNT_MAX, Channel, ChannelDeleted, ChannelUse, Delivery};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::page::{Page, PageQuery};
use crate::answer::json_response;
use crate::body::JsonBody;
use crate::call::{Call, forbidden_problem, quoted_input};
use crate::cursor::{Listing, cut_to_page};
use crate::etag::{IfMatch, mismatch_problem, version_tag};
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::{Code, Complaint, Problem};
use crate::routes::Routes;

/// A channel with the values of its secrets hidden.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Channel")]
pub(super) struct ChannelJson {
    name: String,
    namespace: String,
    version: i64,
    kind: ChannelKind,
    /// The language of its messages.
    lang: Lang,
    /// Whether it is used: messages for a disabled channel are given up.
    enabled: bool,
    /// How the service is used: the fields depend on the kind, `docs/ALERTS.md` lists them.
    settings: Values,
    /// The secrets that are set. Each is shown as its reference (`file:…`, `env:…`), or as `set`.
    secrets: Values,
    /// The host that messages go to, if it is known.
    host: Option<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
    /// The latest try to deliver a message; in lists only.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_delivery: Option<DeliveryJson>,
    /// The key that messages are signed with, if the server created one: shown only this once.
    #[serde(skip_serializing_if = "Option::is_none")]
    signing_key: Option<String>,
}

/// One try to deliver a message.
#[derive(Clone, Serialize, JsonSchema)]
#[schemars(rename = "Delivery")]
pub(super) struct DeliveryJson {
    id: DeliveryId,
    /// Receivers get it as `alert_` and this number.
    message_id: MessageId,
    /// Null for a test.
    incident_id: Option<IncidentId>,
    kind: NoticeKind,
    /// What the message is about: the name of the job, app, server, token or namespace; null for a test, and if the message is no longer stored.
    subject: Option<String>,
    /// Which try of the message it was, from 1.
    try_number: i32,
    at: Timestamp,
    latency_ms: i64,
    /// `sent`: the service accepted it. `retry`: it will be tried again. `given_up`: it will not be tried again.
    #[schemars(extend("enum" = ["sent", "retry", "given_up"]))]
    verdict: String,
    /// The status that the service answered with, by HTTP or SMTP; 0 without an answer.
    status: i32,
    /// Why the message was not accepted, or which recipients of a mail were refused.
    error: Option<String>,
}

/// A channel to save.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewChannel")]
pub(super) struct NewChannelJson {
    kind: ChannelKind,
    /// The language of its messages; `en` if left out.
    #[serde(default = "default_lang")]
    lang: Lang,
    /// `true` if left out.
    #[serde(default = "default_true")]
    enabled: bool,
    /// All settings: they replace the earlier ones.
    #[serde(default)]
    settings: Values,
    /// Secrets to set. A secret that is left out is kept, an empty one is removed.
    #[serde(default)]
    secrets: Values,
}

const fn default_lang() -> Lang {
    Lang::En
}

const fn default_true() -> bool {
    true
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/channels",
            View,
            list,
            Doc::new("List channels", "By name, each with the latest try to deliver a message; without secrets.")
                .json::<Page<ChannelJson>>(200, "The channels, on one page."),
        )
        .get(
            "/api/v1/channels/{name}",
            View,
            get,
            Doc::new("Get a channel", "The channel without its secrets.")
                .json::<ChannelJson>(200, "The channel.")
                .with("ETag"),
        )
        .put(
            "/api/v1/channels/{name}",
            Admin,
            put,
            Doc::new(
                "Save a channel",
                "Settings are replaced as a whole; a secret that is left out is kept. Templates are first rendered with samples \
                 of all messages.",
            )
            .json::<ChannelJson>(200, "The changed channel.")
            .with("ETag")
            .json::<ChannelJson>(201, "The new channel.")
            .with("ETag")
            .refuses(&[Code::TooManyChannels])
            .example(json!({
                "kind": "slack", "lang": "en", "secrets": {"url": "https://hooks.slack.com/services/T000/B000/XXXX"},
            })),
        )
        .delete(
            "/api/v1/channels/{name}",
            Admin,
            delete,
            Doc::new(
                "Delete a channel",
                "Refused while a rule, the expectations of a job or the weekly report use it. Its unsent messages are dropped, and its \
                 deliveries are deleted.",
            )
            .empty("It was deleted.")
            .refuses(&[Code::ChannelUsed]),
        )
        .post(
            "/api/v1/channels/{name}/test",
            Admin,
            test,
            Doc::new("Test a channel", "Sends one message that is marked as a test, and waits for the answer.")
                .json::<DeliveryJson>(200, "The outcome."),
        )
        .get(
            "/api/v1/channels/{name}/deliveries",
            View,
            list_deliveries,
            Doc::new("List a channel's deliveries", "Each try to deliver a message, the latest first.")
                .json::<Page<DeliveryJson>>(200, "A page of deliveries."),
        )
}

async fn list(call: Call) -> Result<Response, Problem> {
    call.check(None, forbidden_problem)?;
    let store = call.engine().store();
    let last_deliveries = store.last_deliveries(call.namespace.id).await?;
    let channels = store.channels(call.namespace.id).await?;
    let items = channels.iter().map(|channel| ChannelJson {
        last_delivery: last_deliveries
            .iter()
            .find(|delivery| delivery.channel == channel.id)
            .cloned()
            .map(delivery_json),
        ..channel_json(&call, channel)
    });
    json_response(StatusCode::OK, &Page { items: items.collect(), next_cursor: None })
}

async fn get(call: Call, Named(name, ..): Named<path::Channel>) -> Result<Response, Problem> {
    let channel = find(&call, &name).await?;
    tagged_response(StatusCode::OK, &channel, &channel_json(&call, &channel))
}

async fn put(
    call: Call,
    Named(name, ..): Named<path::Channel>,
    if_match: IfMatch,
    body: JsonBody<NewChannelJson>,
) -> Result<Response, Problem> {
    call.check(None, forbidden_problem)?;
    let NewChannelJson { kind, lang, enabled, settings, secrets } = body.read()?;
    let existing_channel = channels::find(call.engine(), call.namespace.id, &name).await?;
    let expected_saved_at = match &existing_channel {
        Some(existing_channel) => if_match.expected_version(version(existing_channel))?.map(Timestamp::from_millis),
        None if if_match.is_given() => return Err(mismatch_problem(0)),
        None => None,
    };
    if let Some(existing_channel) = &existing_channel {
        call.note.before(&channel_json(&call, existing_channel));
    }
    let new_channel = NewChannel { name, kind, settings, secrets, lang, is_enabled: enabled, expected_saved_at };
    let outcome = channels::save(call.engine(), &call.namespace, &new_channel).await?;
    let channel_body = channel_json(&call, &outcome.channel);
    call.note.changed_to(&channel_body);
    let status = if outcome.is_new { StatusCode::CREATED } else { StatusCode::OK };
    tagged_response(status, &outcome.channel, &ChannelJson { signing_key: outcome.signing_key, ..channel_body })
}

/// The version of a channel: the instant of its last save, which differs for each save.
pub(crate) fn version(channel: &Channel) -> i64 {
    channel.updated_at.as_millis()
}

fn tagged_response(status: StatusCode, channel: &Channel, body: &ChannelJson) -> Result<Response, Problem> {
    let mut response = json_response(status, body)?;
    response.headers_mut().insert(ETAG, version_tag(version(channel)));
    Ok(response)
}

async fn delete(call: Call, Named(name, ..): Named<path::Channel>, if_match: IfMatch) -> Result<Response, Problem> {
    let channel = find(&call, &name).await?;
    let expected_saved_at = if_match.expected_version(version(&channel))?.map(Timestamp::from_millis);
    call.note.before(&channel_json(&call, &channel));
    match call.engine().store().delete_channel(call.namespace.id, &name, expected_saved_at).await? {
        ChannelDeleted::Deleted => Ok(StatusCode::NO_CONTENT.into_response()),
        ChannelDeleted::Conflict(saved_at) => Err(mismatch_problem(saved_at.as_millis())),
        ChannelDeleted::NotFound => Err(missing_channel_problem(&call, &name)),
        ChannelDeleted::Used(users) => Err(in_use_problem(&name, &users)),
    }
}

/// The refusal to delete a channel that something uses.
fn in_use_problem(channel: &str, users: &[ChannelUse]) -> Problem {
    let is_cut = users.len() > CHANNEL_USE_COUNT_MAX;
    let users = &users[..users.len().min(CHANNEL_USE_COUNT_MAX)];
    let rules =
        users.iter().filter_map(|user| if let ChannelUse::Rule(name) = user { Some(name.as_str()) } else { None });
    let jobs =
        users.iter().filter_map(|user| if let ChannelUse::Job(name) = user { Some(name.as_str()) } else { None });
    let (rules, jobs): (Vec<&str>, Vec<&str>) = (rules.collect(), jobs.collect());
    let mut user_lists = Vec::new();
    if !rules.is_empty() {
        user_lists.push(format!("{} ({})", counted(rules.len(), "alert rule"), rules.join(", ")));
    }
    if !jobs.is_empty() {
        let noun = if jobs.len() == 1 { "job" } else { "jobs" };
        user_lists.push(format!("the expectations of {noun} {}", jobs.join(", ")));
    }
    if users.contains(&ChannelUse::Report) {
        user_lists.push("the weekly report".to_owned());
    }
    let suffix = if is_cut { ", and more" } else { "" };
    let detail = format!(
        "{} is used by {}{suffix}; give them another channel first",
        quoted_input(channel),
        user_lists.join(", ")
    );
    Problem::new(Code::ChannelUsed, detail)
}

async fn test(call: Call, Named(name, ..): Named<path::Channel>) -> Result<Response, Problem> {
    let channel = find(&call, &name).await?;
    let delivery = channels::test(call.engine(), &call.namespace, &channel, call.caller.name()).await?;
    call.note.changed_to(&delivery_for_audit(&delivery));
    json_response(StatusCode::OK, &delivery_json(delivery))
}

/// The result of a test, for the audit log.
pub(crate) fn delivery_for_audit(delivery: &Delivery) -> serde_json::Value {
    json!({"done": delivery.verdict == AfterTry::Sent.as_str(), "status": delivery.status})
}

async fn list_deliveries(call: Call<PageQuery>, Named(name, ..): Named<path::Channel>) -> Result<Response, Problem> {
    let channel = find(&call, &name).await?;
    let listing = Listing::new("deliveries", channel.id);
    let before_id = call.query.cursor.as_deref().map(|cursor| listing.position::<DeliveryId>(cursor)).transpose()?;
    let mut deliveries = call.engine().store().deliveries(channel.id, before_id, call.query.limit + 1).await?;
    let next_cursor = cut_to_page(&mut deliveries, call.query.limit).map(|last| listing.cursor(last.id));
    let subjects = message_subjects(&call, &deliveries).await?;
    let delivery_with_subject = |delivery: Delivery| {
        let subject = subjects.get(&delivery.message).cloned();
        DeliveryJson { subject, ..delivery_json(delivery) }
    };
    json_response(
        StatusCode::OK,
        &Page { items: deliveries.into_iter().map(delivery_with_subject).collect(), next_cursor },
    )
}

/// The subjects of the deliveries' messages, as far as the messages are still stored. A caller who may see only some apps gets `…` for
/// every subject other than these apps, their jobs and the namespace.
pub(crate) async fn message_subjects<Q>(
    call: &Call<Q>,
    deliveries: &[Delivery],
) -> Result<BTreeMap<MessageId, String>, Problem> {
    let ids: BTreeSet<MessageId> = deliveries.iter().map(|delivery| delivery.message).collect();
    let ids: Vec<MessageId> = ids.into_iter().collect();
    let mut subjects: BTreeMap<MessageId, String> =
        call.engine().store().message_subjects(&ids).await?.into_iter().collect();
    if let Some(apps) = call.visible_app_names().await? {
        let names: BTreeSet<&str> = subjects.values().map(String::as_str).collect();
        let names: Vec<&str> = names.into_iter().filter(|name| name::check(name).is_ok()).collect();
        let jobs = call.engine().store().jobs_named(call.namespace.id, &names).await?;
        let jobs = jobs.into_iter().filter(|job| call.may_view(job.app)).map(|job| job.spec.name);
        let visible_names: BTreeSet<String> = jobs.chain(apps).chain([call.namespace.name.clone()]).collect();
        for subject in subjects.values_mut().filter(|subject| !visible_names.contains(subject.as_str())) {
            "…".clone_into(subject);
        }
    }
    Ok(subjects)
}

/// The channel with this name in the namespace of the call.
pub(crate) async fn find<Q>(call: &Call<Q>, name: &str) -> Result<Channel, Problem> {
    let channel = channels::find(call.engine(), call.namespace.id, name).await?;
    let channel = channel.ok_or_else(|| missing_channel_problem(call, name))?;
    call.check(None, || missing_channel_problem(call, name))?;
    Ok(channel)
}

fn missing_channel_problem<Q>(call: &Call<Q>, name: &str) -> Problem {
    let detail = format!("there is no channel {} in namespace {}", quoted_input(name), call.namespace.name);
    Problem::new(Code::ChannelNotFound, detail)
}

fn channel_json<Q>(call: &Call<Q>, channel: &Channel) -> ChannelJson {
    let ChannelView { settings, secrets, host } = channels::view(channel);
    ChannelJson {
        name: channel.name.clone(),
        namespace: call.namespace.name.clone(),
        version: version(channel),
        kind: channel.kind,
        lang: channel.lang,
        enabled: channel.is_enabled,
        settings,
        secrets,
        host,
        created_at: channel.created_at,
        updated_at: channel.updated_at,
        last_delivery: None,
        signing_key: None,
    }
}

fn delivery_json(delivery: Delivery) -> DeliveryJson {
    DeliveryJson {
        id: delivery.id,
        message_id: delivery.message,
        incident_id: delivery.incident,
        kind: delivery.kind,
        subject: None,
        try_number: delivery.try_number,
        at: delivery.at,
        latency_ms: delivery.latency_ms,
        verdict: delivery.verdict,
        status: delivery.status,
        error: delivery.error,
    }
}

impl From<ChannelError> for Problem {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Invalid(errors) => {
                Self::of_complaints(Code::InvalidBody, errors.into_iter().map(Complaint::from).collect())
            }
            ChannelError::Conflict { saved_at } => mismatch_problem(saved_at.as_millis()),
            error @ ChannelError::TooMany => Self::new(Code::TooManyChannels, error.to_string()),
            ChannelError::Store(error) => error.into(),
        }
    }
}

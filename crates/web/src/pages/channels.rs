//! The alert channels: the list with each channel's latest result, and a channel's page with its form, test and deliveries.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::channels;
use rondel_core::access::Permission;
use rondel_core::channel::{ChannelKind, Values, fields};
use rondel_core::notice::NoticeKind;
use rondel_core::words::Lang;
use rondel_core::{DeliveryId, Timestamp};
use rondel_store::channels::{CHANNEL_USE_COUNT_MAX, Channel, ChannelDeleted, ChannelUse, Delivery};
use serde_json::json;

use super::as_code::AsCode;
use super::channel_form::{ChannelForm, kind_name};
use super::form::Fields;
use super::moment::Moment;
use super::sentences::localized;
use super::shell::{Nav, PAGE_ITEM_COUNT, Page, Shell, html};
use super::texts::Texts;
use crate::api::channels::{delivery_for_audit, find, message_subjects};
use crate::cursor::{CursorQuery, Listing, cut_to_page};
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::redirect::{query_pair, redirect_to};

/// The query parameter of the form for a new channel: the service to use; `None` for email.
#[derive(Debug)]
pub(crate) struct NewChannelQuery(Option<ChannelKind>);

impl FromQuery for NewChannelQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self(reader.parsed("kind", |text| text.parse::<ChannelKind>()))
    }
}

struct ChannelRow {
    name: String,
    kind: &'static str,
    host: Option<String>,
    lang: &'static str,
    is_enabled: bool,
    last_delivery: Option<DeliveryRow>,
}

/// An attempt to deliver a message.
struct DeliveryRow {
    /// The CSS class and the word for the result.
    class: &'static str,
    word: &'static str,
    at: Moment,
    kind: &'static str,
    /// The subject of the message; read only for the list of deliveries, and `None` if the message is no longer stored.
    subject: Option<String>,
    /// The incident that the message is about; `None` for a test.
    incident: Option<String>,
    try_number: i32,
    latency_ms: i64,
    status: Option<i32>,
    error: Option<String>,
}

#[derive(Template)]
#[template(path = "channels.html")]
struct ChannelsPage {
    shell: Shell,
    t: &'static Texts,
    rows: Vec<ChannelRow>,
    /// The kinds of channels with their names.
    kinds: Vec<(&'static str, &'static str)>,
    missing_role: Option<&'static str>,
    code: AsCode,
}

/// Why the caller may not change channels; `None` if the caller may.
fn missing_role<Q>(page: &Page<Q>) -> Option<&'static str> {
    let is_allowed = page.call.caller.rights.allow(Permission::Admin, page.call.namespace.id, None);
    (!is_allowed).then_some(page.t.channels_needs_admin)
}

pub(super) async fn list(page: Page) -> Result<Response, Problem> {
    page.call.check(None, crate::call::forbidden_problem)?;
    let (store, t, now) = (page.engine().store(), page.t, page.engine().now());
    let last_deliveries = store.last_deliveries(page.call.namespace.id).await?;
    let channels = store.channels(page.call.namespace.id).await?;
    let row = |channel: &Channel| ChannelRow {
        name: channel.name.clone(),
        kind: kind_name(channel.kind, t),
        host: channels::view(channel).host,
        lang: lang_name(channel.lang),
        is_enabled: channel.is_enabled,
        last_delivery: last_deliveries
            .iter()
            .find(|delivery| delivery.channel == channel.id)
            .map(|delivery| delivery_row(delivery, now, t)),
    };
    let template = ChannelsPage {
        rows: channels.iter().map(row).collect(),
        kinds: ChannelKind::ALL.iter().map(|kind| (kind.as_str(), kind_name(*kind, t))).collect(),
        missing_role: missing_role(&page),
        code: page.code(("GET", "/api/v1/channels"), None, "alert channel list"),
        t,
        shell: page.shell(Nav::Alerts),
    };
    html(StatusCode::OK, &template)
}

const fn lang_name(lang: Lang) -> &'static str {
    match lang {
        Lang::En => "English",
        Lang::Zh => "中文",
    }
}

fn delivery_row(delivery: &Delivery, now: Timestamp, t: &Texts) -> DeliveryRow {
    let (class, word) = match delivery.verdict.as_str() {
        "sent" => ("succeeded", t.channels_sent),
        "retry" => ("waiting", t.channels_retry),
        _ => ("failed", t.channels_given_up),
    };
    DeliveryRow {
        class,
        word,
        at: Moment::new(delivery.at, now, t),
        kind: notice_name(delivery.kind, t),
        subject: None,
        incident: delivery.incident.map(|id| id.to_string()),
        try_number: delivery.try_number,
        latency_ms: delivery.latency_ms,
        status: (delivery.status != 0).then_some(delivery.status),
        error: delivery.error.as_ref().map(|error| localized(t.lang(), error).into_owned()),
    }
}

pub(super) const fn notice_name(kind: NoticeKind, t: &Texts) -> &'static str {
    match kind {
        NoticeKind::Firing => t.notice_firing,
        NoticeKind::Resolved => t.notice_resolved,
        NoticeKind::Reminder => t.notice_reminder,
        NoticeKind::Digest => t.notice_digest,
        NoticeKind::Escalated => t.notice_escalated,
        NoticeKind::Acknowledged => t.notice_acknowledged,
        NoticeKind::Test => t.notice_test,
        NoticeKind::Report => t.notice_report,
    }
}

#[derive(Template)]
#[template(path = "channel.html")]
struct ChannelPage {
    shell: Shell,
    t: &'static Texts,
    /// `None` for a channel that does not exist yet.
    channel: Option<SavedChannel>,
    form: ChannelForm,
    missing_role: Option<&'static str>,
    /// The result of a test.
    test_delivery: Option<DeliveryRow>,
    /// The name and the URL of each object that still uses the channel, after a refused deletion.
    dependents: Vec<(String, String)>,
    /// Whether more objects use the channel.
    has_more_dependents: bool,
    /// A signing key that was just generated.
    signing_key: Option<String>,
    attempts: Vec<DeliveryRow>,
    path: String,
    next_url: Option<String>,
    is_first: bool,
    code: AsCode,
}

struct SavedChannel {
    name: String,
    kind: &'static str,
    host: Option<String>,
    is_enabled: bool,
}

/// The state of the page: the outcome of its form, and the cursor of its deliveries.
#[derive(Default)]
struct PageState {
    test_delivery: Option<Delivery>,
    uses: Vec<ChannelUse>,
    signing_key: Option<String>,
    cursor: Option<String>,
}

/// The form for a new channel.
pub(super) async fn blank(page: Page<NewChannelQuery>) -> Result<Response, Problem> {
    page.call.check(None, crate::call::forbidden_problem)?;
    let kind = page.query().0.unwrap_or(ChannelKind::Email);
    let form = ChannelForm::new(kind, None, page.t);
    render_page(&page, StatusCode::OK, None, form, PageState::default()).await
}

pub(super) async fn create(page: Page, fields: Fields) -> Result<Response, Problem> {
    page.call.check(None, crate::call::forbidden_problem)?;
    let kind = fields.get("kind").parse().unwrap_or(ChannelKind::Email);
    let form = ChannelForm { version: Some(0), ..ChannelForm::from_fields(kind, &fields, page.t) };
    let name = form.name.clone();
    page.call.note.set_object(&name);
    if channels::find(page.engine(), page.call.namespace.id, &name).await?.is_some() {
        let form = form.with_error("name", page.t.channels_exists);
        return render_page(&page, StatusCode::UNPROCESSABLE_ENTITY, None, form, PageState::default()).await;
    }
    save_form(&page, None, form).await
}

pub(super) async fn page(page: Page<CursorQuery>, Named(name, ..): Named<path::Channel>) -> Result<Response, Problem> {
    let channel = find(&page.call, &name).await?;
    let form = ChannelForm::new(channel.kind, Some(&channel), page.t);
    let state = PageState { cursor: page.query().0.clone(), ..PageState::default() };
    render_page(&page, StatusCode::OK, Some(&channel), form, state).await
}

pub(super) async fn save(
    page: Page,
    Named(name, ..): Named<path::Channel>,
    fields: Fields,
) -> Result<Response, Problem> {
    let channel = find(&page.call, &name).await?;
    let mut form = ChannelForm::from_fields(channel.kind, &fields, page.t);
    form.name.clone_from(&channel.name);
    form.mark_set_secrets(&channel, page.t);
    save_form(&page, Some(&channel), form).await
}

/// Saves the channel in the form. If the form has errors, shows it again.
async fn save_form(page: &Page, existing_channel: Option<&Channel>, form: ChannelForm) -> Result<Response, Problem> {
    if let Some(existing_channel) = existing_channel {
        page.call.note.before(&audit_document(existing_channel));
    }
    match channels::save(page.engine(), &page.call.namespace, &form.to_channel()).await {
        Ok(saved_channel) => {
            page.call.note.changed_to(&audit_document(&saved_channel.channel));
            if saved_channel.signing_key.is_none() {
                return Ok(redirect_to(&format!("/alerts/channels/{}", saved_channel.channel.name)));
            }
            let form = ChannelForm::new(saved_channel.channel.kind, Some(&saved_channel.channel), page.t);
            let state = PageState { signing_key: saved_channel.signing_key, ..PageState::default() };
            render_page(page, StatusCode::OK, Some(&saved_channel.channel), form, state).await
        }
        Err(error) => {
            let problem = Problem::from(error);
            if matches!(problem.code(), Code::Internal | Code::Unavailable) {
                return Err(problem);
            }
            if problem.code() == Code::VersionMismatch {
                let form = match existing_channel {
                    Some(_) => form.with_error("", page.t.channels_conflict),
                    None => form.with_error("name", page.t.channels_exists),
                };
                return render_page(page, StatusCode::CONFLICT, existing_channel, form, PageState::default()).await;
            }
            let form = form.with_problem(&problem, page.t.lang());
            render_page(page, StatusCode::UNPROCESSABLE_ENTITY, existing_channel, form, PageState::default()).await
        }
    }
}

/// A channel with the values of its secrets hidden, for the audit log.
fn audit_document(channel: &Channel) -> serde_json::Value {
    let view = channels::view(channel);
    let (kind, lang) = (channel.kind, channel.lang);
    json!({
        "kind": kind, "lang": lang, "enabled": channel.is_enabled, "settings": view.settings, "secrets": view.secrets,
    })
}

pub(super) async fn test(page: Page, Named(name, ..): Named<path::Channel>) -> Result<Response, Problem> {
    let channel = find(&page.call, &name).await?;
    let caller_name = page.call.caller.name();
    let delivery = channels::test(page.engine(), &page.call.namespace, &channel, caller_name).await?;
    page.call.note.changed_to(&delivery_for_audit(&delivery));
    let form = ChannelForm::new(channel.kind, Some(&channel), page.t);
    render_page(
        &page,
        StatusCode::OK,
        Some(&channel),
        form,
        PageState { test_delivery: Some(delivery), ..PageState::default() },
    )
    .await
}

pub(super) async fn delete(page: Page, Named(name, ..): Named<path::Channel>) -> Result<Response, Problem> {
    let channel = find(&page.call, &name).await?;
    page.call.note.before(&audit_document(&channel));
    // Without an expected version, there is no conflict.
    match page.engine().store().delete_channel(page.call.namespace.id, &name, None).await? {
        ChannelDeleted::Deleted | ChannelDeleted::NotFound | ChannelDeleted::Conflict(_) => {
            Ok(redirect_to("/alerts/channels"))
        }
        ChannelDeleted::Used(uses) => {
            let form = ChannelForm::new(channel.kind, Some(&channel), page.t);
            render_page(&page, StatusCode::CONFLICT, Some(&channel), form, PageState { uses, ..PageState::default() })
                .await
        }
    }
}

/// The name of an object that uses a channel, and the URL of the page on which to choose another channel for it.
fn use_link(channel_use: &ChannelUse, t: &Texts) -> (String, String) {
    match channel_use {
        ChannelUse::Rule(name) => (format!("{} {name}", t.alerts_rule), format!("/alerts/rules/{name}")),
        ChannelUse::Job(name) => (format!("{} {name}", t.col_job), format!("/jobs/{name}")),
        ChannelUse::Report => (t.report_weekly.to_owned(), "/reports#weekly".to_owned()),
    }
}

async fn render_page<Q>(
    page: &Page<Q>,
    status: StatusCode,
    channel: Option<&Channel>,
    form: ChannelForm,
    state: PageState,
) -> Result<Response, Problem> {
    let (t, now) = (page.t, page.engine().now());
    let (mut deliveries, mut next_url) = (Vec::new(), None);
    if let Some(channel) = channel {
        let listing = Listing::new("deliveries page", channel.id);
        let before_id = state.cursor.as_deref().map(|cursor| listing.position::<DeliveryId>(cursor)).transpose()?;
        deliveries = page.engine().store().deliveries(channel.id, before_id, PAGE_ITEM_COUNT + 1).await?;
        let page_url_after = |last: &Delivery| {
            format!("/alerts/channels/{}?{}", channel.name, query_pair("cursor", &listing.cursor(last.id)))
        };
        next_url = cut_to_page(&mut deliveries, PAGE_ITEM_COUNT).map(page_url_after);
    }
    let subjects = message_subjects(&page.call, &deliveries).await?;
    let saved_channel = channel.map(|channel| SavedChannel {
        name: channel.name.clone(),
        kind: kind_name(channel.kind, t),
        host: channels::view(channel).host,
        is_enabled: channel.is_enabled,
    });
    let template = ChannelPage {
        code: channel_code(&page.call.namespace.name, &form),
        channel: saved_channel,
        form,
        missing_role: missing_role(page),
        test_delivery: state.test_delivery.as_ref().map(|delivery| delivery_row(delivery, now, t)),
        dependents: state.uses.iter().take(CHANNEL_USE_COUNT_MAX).map(|channel_use| use_link(channel_use, t)).collect(),
        has_more_dependents: state.uses.len() > CHANNEL_USE_COUNT_MAX,
        signing_key: state.signing_key,
        path: channel.map(|channel| format!("/alerts/channels/{}", channel.name)).unwrap_or_default(),
        attempts: deliveries
            .iter()
            .map(|delivery| DeliveryRow {
                subject: subjects.get(&delivery.message).cloned(),
                ..delivery_row(delivery, now, t)
            })
            .collect(),
        next_url,
        is_first: state.cursor.is_none(),
        t,
        shell: page.shell(Nav::Alerts),
    };
    html(status, &template)
}

/// The form as an API request and as a command, both without secrets.
fn channel_code(namespace: &str, form: &ChannelForm) -> AsCode {
    let name = if form.name.is_empty() { "NAME" } else { &form.name };
    let new_channel = form.to_channel();
    let secrets: Values = fields(form.kind)
        .iter()
        .filter(|field| field.is_secret && field.is_required)
        .map(|field| (field.name.to_owned(), "…".to_owned()))
        .collect();
    let mut settings = new_channel.settings;
    settings.retain(|_, value| !value.is_empty());
    let body = json!({"kind": form.kind, "lang": new_channel.lang, "settings": settings, "secrets": secrets});
    let flags = settings.iter().filter(|(name, _)| !name.ends_with("_template"));
    let flags: Vec<String> = flags
        .map(|(name, value)| super::as_code::shell_quoted(&format!("{name}={value}")))
        .map(|argument| format!(" --set {argument}"))
        .collect();
    let secret = secrets.keys().next().map(|field| format!(" --secret-stdin {field}")).unwrap_or_default();
    let command = format!("alert channel set {name} --kind {}{}{secret}", form.kind, flags.concat());
    AsCode::new(namespace, ("PUT", &format!("/api/v1/channels/{name}")), Some(&body), &command)
}

//! The settings: the permissions of roles, the tokens that a user may manage, failure webhooks, and how users sign in.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::failure_webhook::{SavedWebhook, WebhookError};
use rondel_core::TokenId;
use rondel_core::access::{Permission, Role};
use rondel_store::access::{TokenKind, TokenRecord};
use serde_json::json;

use super::as_code::AsCode;
use super::form::Fields;
use super::grants_form::{GrantChoices, GrantPicker, grant_text, role_choices};
use super::moment::{Moment, length_text};
use super::prefs::Prefs;
use super::sentences::localized;
use super::shell::{Nav, NoQuery, PAGE_ITEM_COUNT, Page, Shell, User, WithLang, html};
use super::texts::Texts;
use super::toast::{self, Toast};
use crate::api::tokens::{manageable_tokens, tokens_json};
use crate::call::{GlobalCall, forbidden_problem, visible_namespace, visible_namespaces};
use crate::cursor::{CursorQuery, Listing, cut_to_page};
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::redirect::{query_pair, redirect_to};

/// A token that expires within this time is marked.
const EXPIRY_WARNING_LENGTH: std::time::Duration = std::time::Duration::from_secs(7 * 86_400);

type PageCall<Q = NoQuery> = GlobalCall<WithLang<Q>>;

fn is_admin<Q>(call: &GlobalCall<Q>) -> bool {
    call.caller.may_anywhere(Permission::Cluster)
}

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage {
    shell: Shell,
    t: &'static Texts,
    is_admin: bool,
    /// The roles, each with whether it grants the permission of each column.
    roles: Vec<(&'static str, Vec<bool>)>,
    columns: [&'static str; 5],
    /// The caller's own grants, as text.
    own_roles: Vec<String>,
}

/// Shows the permissions of each role, and the roles of the caller.
pub(super) async fn page(call: PageCall, prefs: Prefs) -> Result<Response, Problem> {
    let shell = Shell::new(prefs, Nav::Settings, Some(User::of_global_call(&call).await), "/settings");
    let t = shell.t;
    let grants = call.caller.rights.grants();
    let names = crate::grants::GrantNames::read(call.engine(), grants.iter()).await?;
    let permission_cells = |role: Role| {
        use Permission::{Admin, Edit, Operate, View};
        let mut cells: Vec<bool> =
            [View, Operate, Edit, Admin].into_iter().map(|permission| role.permits(permission)).collect();
        cells.push(role == Role::Executor);
        cells
    };
    let role_permissions =
        |(word, name): (&str, &'static str)| (name, word.parse().map(permission_cells).unwrap_or_default());
    let template = SettingsPage {
        t,
        is_admin: is_admin(&call),
        roles: role_choices(t).into_iter().map(role_permissions).collect(),
        columns: [t.permit_view, t.permit_operate, t.permit_edit, t.permit_admin, t.permit_executor],
        own_roles: names.to_json(grants).iter().map(|grant| grant_text(grant, t)).collect(),
        shell,
    };
    html(StatusCode::OK, &template)
}

#[derive(Template)]
#[template(path = "settings_tokens.html")]
struct TokensPage {
    shell: Shell,
    t: &'static Texts,
    is_admin: bool,
    rows: Vec<TokenRow>,
    next_url: Option<String>,
    is_first: bool,
    picker: GrantPicker,
    code: AsCode,
}

struct TokenRow {
    id: String,
    name: String,
    prefix: String,
    kind: &'static str,
    is_own: bool,
    grants: Vec<String>,
    made_at: Moment,
    ends_at: Option<Moment>,
    used_at: Option<Moment>,
    /// The CSS class and the word of its state: valid, about to expire, or ended.
    class: &'static str,
    word: &'static str,
    has_ended: bool,
}

/// Shows all tokens that the caller may manage.
pub(super) async fn tokens(call: PageCall<CursorQuery>, prefs: Prefs) -> Result<Response, Problem> {
    let shell = Shell::new(prefs, Nav::Settings, Some(User::of_global_call(&call).await), "/settings/tokens");
    let (t, now) = (shell.t, call.engine().now());
    let listing = Listing::new("settings tokens", call.caller.account);
    let cursor = call.query.0.0.as_deref();
    let after_id = listing.id_after(cursor, TokenId::get)?;
    let is_first = cursor.is_none();
    let mut records = manageable_tokens(&call, true, after_id, PAGE_ITEM_COUNT).await?;
    let last_record = cut_to_page(&mut records, PAGE_ITEM_COUNT);
    let next_url =
        last_record.map(|last| format!("/settings/tokens?{}", query_pair("cursor", &listing.cursor(last.id))));
    let token_texts = tokens_json(&call, &records).await?;
    let row = |(record, token): (&TokenRecord, crate::api::tokens::TokenJson)| {
        let has_ended = !record.is_valid(now);
        let ends_soon = record.expires_at.is_some_and(|end| end <= now + EXPIRY_WARNING_LENGTH);
        let (class, word) = match (record.revoked_at.is_some(), has_ended, ends_soon) {
            (true, ..) => ("cancelled", t.token_revoked),
            (false, true, _) => ("failed", t.token_expired),
            (false, false, true) => ("timed_out", t.token_ends_soon),
            (false, false, false) => ("online", t.token_works),
        };
        TokenRow {
            id: record.id.to_string(),
            name: record.name.clone(),
            prefix: record.prefix.clone(),
            kind: match record.kind {
                TokenKind::Api => t.token_api,
                TokenKind::Executor => t.token_executor,
                TokenKind::Xxl => t.token_xxl,
            },
            is_own: record.owner.is_some() && record.owner == call.caller.account,
            grants: token.grants.iter().map(|grant| grant_text(grant, t)).collect(),
            made_at: Moment::new(record.created_at, now, t),
            ends_at: record.expires_at.map(|at| Moment::new(at, now, t)),
            used_at: record.last_used_at.map(|at| Moment::new(at, now, t)),
            class,
            word,
            has_ended,
        }
    };
    let template = TokensPage {
        t,
        is_admin: is_admin(&call),
        rows: records.iter().zip(token_texts).map(row).collect(),
        next_url,
        is_first,
        picker: GrantChoices::read(&call, t).await?.picker(Vec::new()),
        code: AsCode::without_namespace(("GET", "/api/v1/tokens?all=true"), None, "token list --everybody"),
        shell,
    };
    html(StatusCode::OK, &template)
}

#[derive(Template)]
#[template(path = "settings_sign_in.html")]
struct SignInPage {
    shell: Shell,
    t: &'static Texts,
    is_admin: bool,
    is_tls: bool,
    /// The settings of the OIDC provider: name, description and value of each. `None` if no provider is configured.
    oidc: Option<Vec<(&'static str, &'static str, String)>>,
}

/// Shows how users sign in, as configured when the server started.
pub(super) async fn sign_in(call: PageCall, prefs: Prefs) -> Result<Response, Problem> {
    let shell = Shell::new(prefs, Nav::Settings, Some(User::of_global_call(&call).await), "/settings/sign-in");
    let t = shell.t;
    let oidc = call.web.config.oidc.as_ref().map(|oidc| {
        let config = oidc.config();
        let yes_or_no = |is_set: bool| if is_set { t.word_yes } else { t.word_no }.to_owned();
        vec![
            ("oidc.issuer", t.oidc_issuer, config.issuer.clone()),
            ("oidc.client-id", t.oidc_client, config.client_id.clone()),
            ("oidc.redirect-url", t.oidc_redirect, config.redirect_url.clone()),
            ("oidc.scopes", t.oidc_scopes, config.scopes.join(" ")),
            ("oidc.groups-claim", t.oidc_groups, config.groups_claim.clone()),
            ("oidc.group-roles", t.oidc_group_roles, config.group_roles.len().to_string()),
            ("oidc.create-accounts", t.oidc_create, yes_or_no(config.create_accounts)),
        ]
    });
    let is_tls = call.web.config.tls;
    html(StatusCode::OK, &SignInPage { t, is_admin: is_admin(&call), is_tls, oidc, shell })
}

#[derive(Template)]
#[template(path = "settings_webhooks.html")]
struct WebhooksPage {
    shell: Shell,
    t: &'static Texts,
    is_admin: bool,
    rows: Vec<WebhookRow>,
    /// The secret of a webhook that was just created.
    secret: Option<String>,
}

struct WebhookRow {
    namespace: String,
    url: String,
    /// The error in the input.
    error: Option<String>,
    /// The result of a test message.
    test_text: Option<String>,
    updated_at: Option<Moment>,
    is_set: bool,
    code: AsCode,
}

/// The outcome of a form.
enum WebhookOutcome {
    Nothing,
    /// The secret of a webhook that was just created.
    Secret(String),
    /// The namespace, the URL as the user typed it, and its error.
    Refused(String, String, String),
    /// The namespace, and the result of a test message.
    Tested(String, String),
}

pub(super) async fn webhooks(page: Page) -> Result<Response, Problem> {
    render_webhooks(&page, StatusCode::OK, WebhookOutcome::Nothing).await
}

async fn render_webhooks(page: &Page, status: StatusCode, outcome: WebhookOutcome) -> Result<Response, Problem> {
    let (engine, t, now) = (page.engine(), page.t, page.engine().now());
    let mut rows = Vec::new();
    for namespace in visible_namespaces(engine, &page.call.caller).await? {
        if !page.call.caller.rights.allow(Permission::Admin, namespace.id, None) {
            continue;
        }
        let webhook = engine.store().failure_webhook(namespace.id).await?;
        let (refused_input, test_text) = match &outcome {
            WebhookOutcome::Refused(name, url, message) if *name == namespace.name => (Some((url, message)), None),
            WebhookOutcome::Tested(name, text) if *name == namespace.name => (None, Some(text.clone())),
            _ => (None, None),
        };
        let path = format!("/api/v1/namespaces/{}/failure-webhook", namespace.name);
        let body = json!({"url": "https://example.com/rondel"});
        let command = format!("api PUT /namespaces/{}/failure-webhook -d '{body}'", namespace.name);
        rows.push(WebhookRow {
            url: match (refused_input, &webhook) {
                (Some((url, _)), _) => url.clone(),
                (None, Some(webhook)) => webhook.url.clone(),
                (None, None) => String::new(),
            },
            error: refused_input.map(|(_, message)| localized(t.lang(), message).into_owned()),
            test_text,
            updated_at: webhook.as_ref().map(|webhook| Moment::new(webhook.updated_at, now, t)),
            is_set: webhook.is_some(),
            code: AsCode::without_namespace(("PUT", &path), Some(&body), &command),
            namespace: namespace.name,
        });
    }
    let is_admin = page.call.caller.may_anywhere(Permission::Cluster);
    let secret = if let WebhookOutcome::Secret(secret) = outcome { Some(secret) } else { None };
    html(status, &WebhooksPage { shell: page.shell(Nav::Settings), t, is_admin, rows, secret })
}

/// Sends a test message. The result is a toast or, without the script, part of the page.
pub(super) async fn test_webhook(page: Page, Named(name, ..): Named<path::Namespace>) -> Result<Response, Problem> {
    let (engine, t) = (page.engine(), page.t);
    let namespace = visible_namespace(engine, &page.call.caller, &name).await?;
    if !page.call.caller.rights.allow(Permission::Admin, namespace.id, None) {
        return Err(forbidden_problem());
    }
    page.call.note.set_namespace(&name);
    page.call.note.set_object(&name);
    let test_result = engine.test_failure_webhook((namespace.id, &name)).await?;
    let test_result = test_result.ok_or_else(|| Problem::new(Code::WebhookNotFound, t.webhooks_none))?;
    page.call.note.changed_to(&json!({"status": test_result.status}));
    let latency = length_text(test_result.took, t);
    let text = match (test_result.status, test_result.error) {
        (Some(status), None) => t.webhook_test_good(status, latency),
        (Some(status), Some(_)) => t.webhook_test_refused(status, latency),
        (None, error) => t.webhook_test_failed(error.unwrap_or_default(), latency),
    };
    if page.is_part() {
        return toast::toast_response(&page, Toast { text, ..Toast::default() }, "/settings/webhooks");
    }
    render_webhooks(&page, StatusCode::OK, WebhookOutcome::Tested(name, text)).await
}

/// Sets the webhook of a namespace. An empty URL removes it.
pub(super) async fn set_webhook(
    page: Page,
    Named(name, ..): Named<path::Namespace>,
    fields: Fields,
) -> Result<Response, Problem> {
    let engine = page.engine();
    let namespace = visible_namespace(engine, &page.call.caller, &name).await?;
    if !page.call.caller.rights.allow(Permission::Admin, namespace.id, None) {
        return Err(forbidden_problem());
    }
    page.call.note.set_namespace(&name);
    page.call.note.set_object(&name);
    let webhook_before = engine.store().failure_webhook(namespace.id).await?;
    page.call.note.before(&json!({"url": webhook_before.map(|webhook| webhook.url)}));
    let url = fields.get("url").to_owned();
    page.call.note.changed_to(&json!({"url": Some(url.as_str()).filter(|url| !url.is_empty())}));
    if url.is_empty() {
        engine.store().delete_failure_webhook(namespace.id).await?;
        return Ok(redirect_to("/settings/webhooks"));
    }
    match engine.put_failure_webhook(namespace.id, &url).await {
        Ok(SavedWebhook::Changed) => Ok(redirect_to("/settings/webhooks")),
        Ok(SavedWebhook::Created(webhook)) => {
            render_webhooks(&page, StatusCode::OK, WebhookOutcome::Secret(webhook.secret)).await
        }
        Err(WebhookError::Url(message)) => {
            let status = StatusCode::from_u16(Code::InvalidBody.status()).unwrap_or(StatusCode::UNPROCESSABLE_ENTITY);
            render_webhooks(&page, status, WebhookOutcome::Refused(name, url, message)).await
        }
        Err(WebhookError::Store(error)) => Err(error.into()),
    }
}

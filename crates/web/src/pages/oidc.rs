//! Signs users in through an OIDC provider: the redirect to the provider, and the return from it.

use std::net::IpAddr;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::header::{LOCATION, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use rondel_admin::oidc::{AccountUpdate, Callback, Identity, Oidc, OidcError, PENDING_SIGN_IN_LIFETIME, Refusal};
use rondel_admin::sign_in::{self, SignInOwner};
use rondel_core::AuditId;
use rondel_core::name::NAME_LEN_MAX;
use rondel_store::access::{AttemptDecision, AuditEntry, AuthMethod, INCOMPLETE, Verdict};
use serde_json::json;

use super::sign_in::{Browser, add_cookie, begin_session, too_many_attempts_problem};
use crate::grants::GrantNames;
use crate::problem::{Code, Problem};
use crate::query::Reader;
use crate::redirect::own_path;
use crate::state::Web;
use crate::{audit, cookies};

/// Redirects a browser to the provider, with the state that the browser must bring back.
pub(super) async fn redirect_to_provider(State(web): State<Web>, uri: Uri) -> Result<Response, Problem> {
    let mut reader = Reader::new(&uri);
    let (next_path, _) = (reader.single("next"), reader.single("lang"));
    reader.finish()?;
    let oidc = configured_provider(&web)?;
    let next_path = next_path.as_deref().and_then(own_path).unwrap_or("/");
    let begun_sign_in =
        oidc.begin(web.engine.store(), next_path, web.engine.now()).await.map_err(|error| oidc_problem(&error))?;
    let location = HeaderValue::from_str(&begun_sign_in.url)
        .map_err(|_| oidc_problem(&OidcError::Unavailable("the address of its page cannot be a header".to_owned())))?;
    let mut response = (StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response();
    add_cookie(
        &mut response,
        cookies::set_oidc_sign_in(&begun_sign_in.cookie, PENDING_SIGN_IN_LIFETIME, oidc.config().is_tls()),
    );
    Ok(response)
}

/// Completes the sign-in of a browser that returns from the provider, with the account of the user whom the provider has authenticated.
pub(super) async fn return_from_provider(
    State(web): State<Web>,
    headers: HeaderMap,
    uri: Uri,
    browser: Browser,
) -> Result<Response, Problem> {
    let oidc = configured_provider(&web)?;
    let is_tls = oidc.config().is_tls();
    let pending_cookie = cookies::oidc_sign_in(&headers, is_tls);
    // Without a pending sign-in, the attempt is refused before it is counted: another site can send a browser here, and must not be able
    // to use up the attempts of the browser's address.
    if pending_cookie.is_none() {
        return Err(Problem::new(Code::SignInRefused, Refusal::NotBegun.to_string()));
    }
    // Counts the attempt before doing any work: the next step calls the provider.
    if let AttemptDecision::Blocked(until) = count_arrival(&web, &browser).await? {
        return Err(too_many_attempts_problem(until, web.engine.now()));
    }
    // The cookie is removed, whatever the outcome.
    let expired_cookie = cookies::set_oidc_sign_in("", Duration::ZERO, is_tls);
    match resolve_account(&web, oidc, (pending_cookie, browser.address()), &parse_callback(&uri)).await {
        Ok((identity, account_update, next)) => {
            let name = account_update.account.name.clone();
            let account_change = begin_change(&web, &browser, oidc, &identity, &account_update).await?;
            let store_result = account_update.save(web.engine.store()).await;
            if let Some(account_change) = account_change {
                end_change(
                    &web,
                    account_change,
                    store_result.as_ref().is_ok_and(|store_result| store_result.is_changed),
                )
                .await;
            }
            let account = store_result.map_err(|error| oidc_problem(&error))?.account;
            audit_sign_in(&web, &browser, oidc, &name).await?;
            let mut response = begin_session(&web, &browser, SignInOwner::Account(account), &next).await?;
            add_cookie(&mut response, expired_cookie);
            Ok(response)
        }
        Err(OidcError::Refused(refusal)) => {
            let mut response = record_refusal(&web, &browser, oidc, &refusal).await?.into_response();
            add_cookie(&mut response, expired_cookie);
            Ok(response)
        }
        Err(error) => Err(oidc_problem(&error)),
    }
}

async fn resolve_account(
    web: &Web,
    oidc: &Oidc,
    browser: (Option<&str>, Option<IpAddr>),
    callback: &Callback,
) -> Result<(Identity, AccountUpdate, String), OidcError> {
    let (store, now) = (web.engine.store(), web.engine.now());
    let (identity, next) = oidc.finish(store, browser, callback, now).await?;
    let account_update = oidc.account(store, &identity, web.engine.new_id(), now).await?;
    Ok((identity, account_update, next))
}

async fn count_arrival(web: &Web, browser: &Browser) -> Result<AttemptDecision, Problem> {
    Ok(sign_in::count_arrival(web.engine.store(), browser.address(), web.engine.now()).await?)
}

fn configured_provider(web: &Web) -> Result<&Oidc, Problem> {
    let detail = "this server has no provider of sign-ins; sign in with a password";
    web.config.oidc.as_deref().ok_or_else(|| Problem::new(Code::NotFound, detail))
}

/// The provider's answer, from the query. Unknown parameters of providers are ignored.
fn parse_callback(uri: &Uri) -> Callback {
    let mut reader = Reader::new(uri);
    Callback {
        state: reader.single("state"),
        code: reader.single("code"),
        error: reader.single("error"),
        issuer: reader.single("iss"),
    }
}

/// Records a refused sign-in, and returns its problem. After too many refusals from one address, further attempts are blocked.
async fn record_refusal(web: &Web, browser: &Browser, oidc: &Oidc, refusal: &Refusal) -> Result<Problem, Problem> {
    let (store, now) = (web.engine.store(), web.engine.now());
    if let AttemptDecision::Blocked(until) = sign_in::count_attempt_from(store, browser.address(), now).await? {
        return Err(too_many_attempts_problem(until, now));
    }
    let document_after = json!({"by": oidc.config().issuer, "refused": refusal.to_string()});
    let name = refusal.user_email().unwrap_or_default();
    let entry = audit_entry(web, browser, (name, AuthMethod::Anonymous), ("session.create", Verdict::Denied));
    audit::store_entry(web, &AuditEntry { after: Some(document_after.to_string()), ..entry }).await;
    Ok(Problem::new(Code::SignInRefused, refusal.to_string()))
}

/// If the provider's answer requires a change of the account, stores the audit entry before the change; if that fails, the change is not
/// made. Returns the entry with the fields that it gets once the change has succeeded; `None` if no change is required.
async fn begin_change(
    web: &Web,
    browser: &Browser,
    oidc: &Oidc,
    identity: &Identity,
    account_update: &AccountUpdate,
) -> Result<Option<AuditEntry>, Problem> {
    if !account_update.changes_account() {
        return Ok(None);
    }
    let account = &account_update.account;
    let grants_before = account_update.grants_before.as_deref().unwrap_or_default();
    let names = GrantNames::read(&web.engine, grants_before.iter().chain(&account.grants)).await?;
    let issuer = &oidc.config().issuer;
    let mut document_after = json!({"by": issuer, "groups": identity.groups, "grants": names.to_json(&account.grants)});
    let (action, grants_before) = if account_update.is_new {
        document_after["display_name"] = json!(account.display_name);
        ("user.create", None)
    } else {
        ("user.change", Some(json!({"grants": names.to_json(grants_before)}).to_string()))
    };
    let entry = audit_entry(web, browser, (&account.name, AuthMethod::Session), (action, Verdict::Allowed));
    let entry = AuditEntry {
        object: account.name.clone(),
        before: grants_before,
        after: Some(document_after.to_string()),
        ..entry
    };
    web.engine.store().add_audit(&AuditEntry { after: Some(INCOMPLETE.to_owned()), ..entry.clone() }).await?;
    Ok(Some(entry))
}

/// Stores the outcome of a change in its audit entry.
async fn end_change(web: &Web, entry: AuditEntry, has_succeeded: bool) {
    let entry = if has_succeeded { entry } else { AuditEntry { verdict: Verdict::Failed, after: None, ..entry } };
    audit::complete_entry(web, &entry).await;
}

/// Records the sign-in in the audit log. If that fails, the user is not signed in.
async fn audit_sign_in(web: &Web, browser: &Browser, oidc: &Oidc, name: &str) -> Result<(), Problem> {
    let entry = audit_entry(web, browser, (name, AuthMethod::Session), ("session.create", Verdict::Allowed));
    let document_after = json!({"by": oidc.config().issuer}).to_string();
    Ok(web.engine.store().add_audit(&AuditEntry { after: Some(document_after), ..entry }).await?)
}

fn audit_entry(
    web: &Web,
    browser: &Browser,
    (actor, auth_method): (&str, AuthMethod),
    (action, verdict): (&str, Verdict),
) -> AuditEntry {
    AuditEntry {
        id: AuditId::new(web.engine.new_id()),
        at: web.engine.now(),
        actor: actor.chars().take(NAME_LEN_MAX).collect(),
        auth_method,
        token: None,
        address: browser.address().map(|address| address.to_string()),
        request_id: browser.request_id.clone(),
        action: action.to_owned(),
        object: String::new(),
        namespace: None,
        verdict,
        before: None,
        after: None,
    }
}

/// The problem for a sign-in that failed because of the provider or the database.
fn oidc_problem(error: &OidcError) -> Problem {
    match error {
        OidcError::Store(error) => Problem::of_store_error(error),
        OidcError::Refused(refusal) => Problem::new(Code::SignInRefused, refusal.to_string()),
        OidcError::Unavailable(cause) => Problem::new(
            Code::ProviderUnavailable,
            "the provider of sign-ins does not answer; try again in a moment, or sign in with a password",
        )
        .with_header(RETRY_AFTER, HeaderValue::from_static("5"))
        .with_cause(cause.clone()),
    }
}

//! The caller's own account, roles and sign-ins.

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use rondel_core::access::Permission::SignedIn;
use rondel_core::{AccountId, SessionId, Timestamp};
use rondel_store::access::WebSession;
use schemars::JsonSchema;
use serde::Serialize;

use super::page::Page;
use crate::answer::json_response;
use crate::call::{GlobalCall, quoted_input, shown_namespace};
use crate::grants::{GrantJson, GrantNames};
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::routes::Routes;

/// The caller.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Me")]
pub(super) struct MeJson<'a> {
    name: &'a str,
    /// How the request was authenticated: by token or by session.
    #[schemars(extend("enum" = ["session", "token", "executor"]))]
    #[serde(rename = "means")]
    auth_method: &'static str,
    /// Null for a token that belongs to the server.
    account: Option<String>,
    grants: Vec<GrantJson>,
    /// The namespace of requests that name none.
    namespace: Option<String>,
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/me",
            SignedIn,
            get,
            Doc::new("Get the caller", "The caller with its roles.").json::<MeJson<'static>>(200, "The caller."),
        )
        .get(
            "/api/v1/sessions",
            SignedIn,
            list_sessions,
            Doc::new("List the caller's sign-ins", "Where the caller is signed in to the console.")
                .json::<Page<SessionJson>>(200, "The sign-ins."),
        )
        .delete(
            "/api/v1/sessions/{id}",
            SignedIn,
            end_session,
            Doc::new("End one of the caller's sign-ins", "The sign-in ends immediately.")
                .empty("The sign-in has ended."),
        )
}

async fn get(call: GlobalCall) -> Result<Response, Problem> {
    let caller = &call.caller;
    let account = match caller.account {
        Some(id) => call.engine().store().account(id).await?.map(|account| account.name),
        None => None,
    };
    let names = GrantNames::read(call.engine(), caller.rights.grants().iter()).await?;
    let grants = names.to_json(caller.rights.grants());
    let namespace = shown_namespace(call.engine(), caller, None).await;
    json_response(
        StatusCode::OK,
        &MeJson { name: caller.name(), auth_method: caller.auth_method().as_str(), account, grants, namespace },
    )
}

/// A sign-in as its owner sees it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Session")]
pub(super) struct SessionJson {
    id: SessionId,
    created_at: Timestamp,
    last_seen_at: Timestamp,
    expires_at: Timestamp,
    address: String,
    user_agent: String,
    /// Whether the request was made with this sign-in.
    #[serde(rename = "is_this")]
    is_current: bool,
}

async fn list_sessions(call: GlobalCall) -> Result<Response, Problem> {
    let sessions = match account_of_sign_ins(&call).await? {
        Some(account) => call.engine().store().sign_ins(account).await?,
        None => Vec::new(),
    };
    let show = |session: WebSession| session_json(&call, session);
    json_response(StatusCode::OK, &Page { items: sessions.into_iter().map(show).collect(), next_cursor: None })
}

/// The account whose sign-ins the caller may see and end. `None` for a caller without an account, or if its token has fewer rights than
/// its account.
pub(crate) async fn account_of_sign_ins<Q>(call: &GlobalCall<Q>) -> Result<Option<AccountId>, Problem> {
    let Some(id) = call.caller.account else { return Ok(None) };
    let account = call.engine().store().account(id).await?;
    let account = account.filter(|account| call.caller.actor().may_manage_sign_ins(&account.grants));
    if account.is_none() {
        call.note.mark_denied();
    }
    Ok(account.map(|account| account.id))
}

fn session_json<Q>(call: &GlobalCall<Q>, session: WebSession) -> SessionJson {
    SessionJson {
        id: session.id,
        created_at: session.created_at,
        last_seen_at: session.last_seen_at,
        expires_at: session.expires_at,
        address: session.address,
        user_agent: session.user_agent,
        is_current: Some(session.id) == call.caller.session,
    }
}

/// Records in the audit log the sign-in that the caller is about to end.
pub(crate) async fn audit_session<Q>(call: &GlobalCall<Q>, account: AccountId, id: SessionId) -> Result<(), Problem> {
    let sessions = call.engine().store().sign_ins(account).await?;
    if let Some(session) = sessions.into_iter().find(|session| session.id == id) {
        call.note.before(&session_json(call, session));
    }
    Ok(())
}

async fn end_session(call: GlobalCall, Named(id, ..): Named<path::SignIn>) -> Result<Response, Problem> {
    let not_found = || Problem::new(Code::SessionNotFound, format!("you have no sign-in {}", quoted_input(&id)));
    let session = id.parse::<SessionId>().ok();
    let (Some(account), Some(session)) = (account_of_sign_ins(&call).await?, session) else { return Err(not_found()) };
    audit_session(&call, account, session).await?;
    if call.engine().store().end_sign_in(session, Some(account)).await? {
        Ok(StatusCode::NO_CONTENT.into_response())
    } else {
        Err(not_found())
    }
}

//! API tokens: creates, lists, replaces and revokes them. A secret is shown only once.

use std::time::Duration;

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use rondel_admin::auth::{self, Token};
use rondel_core::access::Permission::SignedIn;
use rondel_core::access::{Permission, Role};
use rondel_core::authority::TokenTarget;
use rondel_core::schema::DurationText;
use rondel_core::time::parse_duration;
use rondel_core::{NamespaceId, Timestamp, TokenId};
use rondel_store::access::{TokenKind, TokenQuery, TokenRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::page::{LIMIT_DEFAULT, LIMIT_MAX, Page};
use super::token_descent::{self, TokenDescent};
use super::{token_limit, token_name};
use crate::access::unauthenticated_problem;
use crate::answer::json_response;
use crate::body::{JsonBody, OptionalJsonBody, refuse_value};
use crate::call::{GlobalCall, quoted_input, visible_namespace};
use crate::caller::Caller;
use crate::cursor::{Listing, cut_to_page};
use crate::grants::{GrantJson, GrantNames, check_covered, resolve_grants};
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

/// How long an API token works if the caller gives no time.
const LIFETIME_DEFAULT: Duration = Duration::from_secs(90 * 24 * 3600);
/// How long a replaced token keeps working: the default, and the maximum.
const OVERLAP_DEFAULT: Duration = Duration::from_secs(24 * 3600);
pub(super) const OVERLAP_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// How many tokens are read at a time while searching for those that the caller may manage.
pub(super) const TOKEN_BATCH_COUNT: u32 = 500;

/// The query parameters for the list of tokens.
#[derive(Debug)]
pub(crate) struct TokenListQuery {
    wants_all: bool,
    limit: u32,
    cursor: Option<String>,
}

impl FromQuery for TokenListQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self {
            wants_all: reader.flag(
                "all",
                "All tokens that the caller may manage, also executors' tokens and, for admins of everything, those of all owners.",
            ),
            limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX),
            cursor: reader.single(Parameter::cursor()),
        }
    }
}

/// What a token is for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "TokenKind")]
enum Kind {
    Api,
    Executor,
    /// Executors of one app that use XXL-JOB's protocol.
    Xxl,
}

/// A token to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewToken {
    kind: Kind,
    /// A name by which users recognise it, on one line.
    #[schemars(length(min = 1, max = 100))]
    name: String,
    /// What the token may do; for an executor's token, the scopes of its apps.
    grants: Vec<GrantJson>,
    /// The namespace of requests that name none.
    #[serde(default)]
    namespace: Option<String>,
    /// Whether executors with this token may declare jobs in their code; false if left out.
    #[serde(default)]
    declares: bool,
    /// How long it is valid: a duration, or `never`.
    #[serde(default)]
    expires_in: Option<String>,
}

/// How a token is replaced.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "TokenRotation")]
pub(super) struct RotateRequest {
    /// How long the old token remains valid, such as `24h`; at most 30 days.
    #[schemars(with = "Option<DurationText>")]
    overlap: Option<String>,
}

/// A token as the API shows it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Token")]
pub(crate) struct TokenJson {
    pub(crate) id: TokenId,
    #[schemars(with = "Kind")]
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) prefix: String,
    pub(crate) grants: Vec<GrantJson>,
    declares: bool,
    /// The token that created this one; this one ends with it. Null if no token created it.
    minted_by: Option<TokenId>,
    /// The first token of its series. A token that rotates itself and its successors are a series: revoking one ends them all.
    series: TokenId,
    pub(crate) created_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) last_used_at: Option<Timestamp>,
    pub(crate) revoked_at: Option<Timestamp>,
    /// Shown once, to the caller that creates it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    /// Warnings for the token's user; only in an answer that shows its secret.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

impl TokenJson {
    fn new(record: &TokenRecord, names: &GrantNames) -> Self {
        Self {
            id: record.id,
            kind: record.kind.as_str(),
            name: record.name.clone(),
            prefix: record.prefix.clone(),
            grants: names.to_json(&record.grants),
            declares: record.declares,
            minted_by: record.minted_by,
            series: record.series,
            created_at: record.created_at,
            expires_at: record.expires_at,
            last_used_at: record.last_used_at,
            revoked_at: record.revoked_at,
            token: None,
            warnings: Vec::new(),
        }
    }
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/tokens",
            SignedIn,
            list,
            Doc::new("List tokens", "The caller's tokens, newest first, without their secrets.")
                .json::<Page<TokenJson>>(200, "A page of tokens."),
        )
        .post(
            "/api/v1/tokens",
            SignedIn,
            create,
            Doc::new(
                "Create a token",
                "A token for the API, with at most its creator's rights; for executors of some apps; or for executors of one \
                 app that use XXL-JOB's protocol (`xxl`). It ends with the token that creates it.",
            )
            .json::<TokenJson>(201, "The token, with `token`, which is shown only this once.")
            .refuses(&[Code::NamespaceNotFound, Code::TooManyTokens])
            .example(json!({"kind": "api", "name": "deploy", "grants": [{"role": "viewer"}], "expires_in": "30d"})),
        )
        .delete(
            "/api/v1/tokens/{id}",
            SignedIn,
            revoke,
            Doc::new(
                "Revoke a token",
                "The token ends, with everything that it created: tokens, sign-ins and links. Revoking it again is no error.",
            )
            .empty("The token was revoked."),
        )
        .post(
            "/api/v1/tokens/{id}/rotate",
            SignedIn,
            rotate,
            Doc::new(
                "Replace a token's secret",
                "The old token remains valid for `overlap`, at most until its own expiry. What it created belongs to the new token.",
            )
            .json::<TokenJson>(201, "The new token, with `token`, which is shown only this once.")
            .refuses(&[Code::TokenOver, Code::TooManyTokens])
            .example(json!({"overlap": "24h"})),
        )
}

/// Lists the caller's own tokens or, with `all`, all tokens that it may manage. Admins of the cluster manage all tokens, admins of a
/// namespace or an app the tokens of its executors.
async fn list(call: GlobalCall<TokenListQuery>) -> Result<Response, Problem> {
    let caller = &call.caller;
    let listing = Listing::new("tokens", (call.query.wants_all, caller.account));
    let after_id = listing.id_after(call.query.cursor.as_deref(), TokenId::get)?;
    let limit = call.query.limit;
    let mut records = manageable_tokens(&call, call.query.wants_all, after_id, limit).await?;
    let next_cursor = cut_to_page(&mut records, limit).map(|last| listing.cursor(last.id));
    let items = tokens_json(&call, &records).await?;
    json_response(StatusCode::OK, &Page { items, next_cursor })
}

/// The caller's own tokens, or all tokens that it may manage: more than `limit` if there are more.
pub(crate) async fn manageable_tokens<Q>(
    call: &GlobalCall<Q>,
    wants_all: bool,
    mut after_id: Option<TokenId>,
    limit: u32,
) -> Result<Vec<TokenRecord>, Problem> {
    let owner = if wants_all { None } else { call.caller.account };
    // A caller without an account has no tokens of its own.
    if owner.is_none() && !wants_all {
        return Ok(Vec::new());
    }
    let (limit, store) = (usize::try_from(limit).unwrap_or(usize::MAX), call.engine().store());
    let token_scope = if owner.is_none() { token_limit::manageable_scope(call).await? } else { None };
    let mut tokens = Vec::new();
    while tokens.len() <= limit {
        let batch = store
            .tokens(&TokenQuery { owner, scope: token_scope.clone(), after: after_id, limit: TOKEN_BATCH_COUNT })
            .await?;
        let is_last = batch.len() < usize::try_from(TOKEN_BATCH_COUNT).unwrap_or(usize::MAX);
        after_id = batch.last().map(|last| last.id);
        tokens.extend(batch.into_iter().filter(|token| may_manage(&call.caller, token)));
        if is_last {
            break;
        }
    }
    Ok(tokens)
}

/// Whether the caller may read, rotate and revoke a token.
pub(crate) fn may_manage(caller: &Caller, token: &TokenRecord) -> bool {
    let is_executor = token.kind.is_of_executors();
    caller.actor().may_manage_token(TokenTarget { owner: token.owner, is_executor, grants: &token.grants })
}

/// The newest tokens of the caller's account that the caller may manage.
pub(crate) async fn own_tokens<Q>(call: &GlobalCall<Q>, limit: u32) -> Result<Vec<TokenRecord>, Problem> {
    let Some(owner) = call.caller.account else { return Ok(Vec::new()) };
    let query = TokenQuery { owner: Some(owner), limit, ..TokenQuery::default() };
    let mut records = call.engine().store().tokens(&query).await?;
    records.retain(|token| may_manage(&call.caller, token));
    Ok(records)
}

/// Tokens as the API shows them.
pub(crate) async fn tokens_json<Q>(call: &GlobalCall<Q>, records: &[TokenRecord]) -> Result<Vec<TokenJson>, Problem> {
    let names = GrantNames::read(call.engine(), records.iter().flat_map(|token| &token.grants)).await?;
    Ok(records.iter().map(|token| TokenJson::new(token, &names)).collect())
}

async fn create(call: GlobalCall, body: JsonBody<NewToken>) -> Result<Response, Problem> {
    let token = create_token(&call, body.read()?).await?;
    json_response(StatusCode::CREATED, &token)
}

/// Creates a token. An API token belongs to its creator and never has more rights than the creator. A token for executors belongs to the
/// server: it keeps working after its creator has left.
pub(crate) async fn create_token<Q>(call: &GlobalCall<Q>, new_token: NewToken) -> Result<TokenJson, Problem> {
    let engine = call.engine();
    call.note.set_object(&new_token.name);
    token_name::check(&new_token.name)?;
    let kind = match new_token.kind {
        Kind::Api => TokenKind::Api,
        Kind::Executor => TokenKind::Executor,
        Kind::Xxl => TokenKind::Xxl,
    };
    check_roles(kind, &new_token.grants)?;
    if kind == TokenKind::Xxl && new_token.declares {
        return Err(refuse_value("/declares", "executors of XXL-JOB declare no jobs; leave it out"));
    }
    let namespace = match &new_token.namespace {
        None => None,
        Some(name) => Some(visible_namespace(engine, &call.caller, name).await?.id),
    };
    // This checks the roles before it creates an app that a grant names: only a caller who may grant the role in the whole namespace may
    // create one.
    let grants = covered_grants(call, &new_token.grants).await?;
    let now = engine.now();
    let expires_at = parse_expiry(kind, new_token.expires_in.as_deref(), now)?;
    let descent = token_descent::descent_of_new(call, expires_at, new_token.expires_in.is_some()).await?;
    let TokenDescent { minted_by, line, expires_at, is_expiry_limited, .. } = descent;
    let secret = Token::generate_for(kind);
    let owner = call.caller.account.filter(|_| kind == TokenKind::Api);
    let namespace = namespace.or_else(|| default_namespace(&grants));
    let record = secret.record(engine.new_id(), kind, now);
    let (name, declares) = (new_token.name, new_token.declares);
    let line = line.unwrap_or(record.id);
    let record = TokenRecord { name, owner, namespace, minted_by, line, declares, expires_at, grants, ..record };
    token_limit::check(call, &record).await?;
    let names = GrantNames::read(engine, record.grants.iter()).await?;
    // Adding fails if the caller's own token has ended since it was checked.
    if !auth::add(engine.store(), &record).await? {
        return Err(unauthenticated_problem());
    }
    Ok(with_secret(call, (&record, &names), (&secret, is_expiry_limited)))
}

/// The token as the API shows it, with its secret, which is not written to the audit log. A token for executors gets a warning if another
/// token limits its lifetime. Reads nothing from the store: after an error, the token's secret would be lost.
fn with_secret<Q>(
    call: &GlobalCall<Q>,
    (record, names): (&TokenRecord, &GrantNames),
    (secret, is_expiry_limited): (&Token, bool),
) -> TokenJson {
    let body = TokenJson::new(record, names);
    call.note.changed_to(&body);
    let inherited_expiry = record.expires_at.filter(|_| is_expiry_limited && record.kind.is_of_executors());
    let warning = |inherited_expiry: Timestamp| {
        format!(
            "this token expires at {inherited_expiry}, because a token made it that cannot give it a later end; its executors are refused \
             from then on. Make the token in the console, signed in with an account, if it is to last"
        )
    };
    let warnings = inherited_expiry.map(warning).into_iter().collect();
    TokenJson { token: Some(secret.reveal().to_owned()), warnings, ..body }
}

/// The requested grants. Refused if they go beyond the caller's own.
async fn covered_grants<Q>(
    call: &GlobalCall<Q>,
    requested_grants: &[GrantJson],
) -> Result<Vec<rondel_core::access::Grant>, Problem> {
    for grant in requested_grants {
        // Checked first: the answer must not reveal whether a namespace exists that the caller may not see.
        if let Some(namespace) = &grant.namespace {
            visible_namespace(call.engine(), &call.caller, namespace).await?;
        }
    }
    let grants_without_apps: Vec<GrantJson> =
        requested_grants.iter().map(|grant| GrantJson { app: None, ..grant.clone() }).collect();
    let grants_without_apps = resolve_grants(call.engine(), &grants_without_apps).await?;
    if check_covered(&call.caller, &grants_without_apps).is_err() {
        // A caller with roles only on single apps may name only existing apps.
        for grant in requested_grants {
            check_visible_app(call, grant).await?;
        }
    }
    let grants = resolve_grants(call.engine(), requested_grants).await?;
    check_covered(&call.caller, &grants)?;
    Ok(grants)
}

async fn check_visible_app<Q>(call: &GlobalCall<Q>, grant: &GrantJson) -> Result<(), Problem> {
    let (Some(namespace), Some(app)) = (&grant.namespace, &grant.app) else { return Ok(()) };
    let store = call.engine().store();
    let namespace = visible_namespace(call.engine(), &call.caller, namespace).await?;
    let app_record = match rondel_core::name::check(app) {
        Ok(()) => store.app(namespace.id, app).await?,
        Err(_) => None,
    };
    match app_record {
        Some(app) if call.caller.rights.allow(Permission::View, namespace.id, Some(app.id)) => Ok(()),
        _ => Err(Problem::new(Code::Forbidden, format!("your roles do not cover app {}", quoted_input(app)))),
    }
}

fn check_roles(kind: TokenKind, grants: &[GrantJson]) -> Result<(), Problem> {
    if grants.is_empty() {
        return Err(refuse_value("/grants", "a token without a role can do nothing; name at least one"));
    }
    let role_fits_kind = |grant: &GrantJson| (grant.role == Role::Executor) == kind.is_of_executors();
    if let Some(index) = grants.iter().position(|grant| !role_fits_kind(grant)) {
        let sentence = "executor is the one role of tokens of the kinds executor and xxl, and of no others";
        return Err(refuse_value(&format!("/grants/{index}/role"), sentence));
    }
    let is_of_app = |grant: &GrantJson| grant.namespace.is_some() && grant.app.is_some();
    if kind == TokenKind::Xxl && !(grants.len() == 1 && grants.iter().all(is_of_app)) {
        let sentence = "a token of kind xxl is for one app: name one role, with its namespace and app";
        return Err(refuse_value("/grants", sentence));
    }
    Ok(())
}

/// The default namespace of a token: the namespace of its grants, if they are all in the same one.
fn default_namespace(grants: &[rondel_core::access::Grant]) -> Option<NamespaceId> {
    let first_namespace = grants.first()?.namespace?;
    grants.iter().all(|grant| grant.namespace == Some(first_namespace)).then_some(first_namespace)
}

fn parse_expiry(kind: TokenKind, expires_in: Option<&str>, now: Timestamp) -> Result<Option<Timestamp>, Problem> {
    match (kind, expires_in) {
        (_, Some("never")) | (TokenKind::Executor | TokenKind::Xxl, None) => Ok(None),
        (TokenKind::Api, None) => Ok(Some(now + LIFETIME_DEFAULT)),
        (_, Some(text)) => {
            let refuse = |message: String| refuse_value("/expires_in", message);
            let lifetime = parse_duration(text).map_err(|error| refuse(error.to_string()))?;
            if lifetime.is_zero() || lifetime > Duration::from_secs(3650 * 24 * 3600) {
                return Err(refuse(format!("{text:?} is not a time from now up to ten years; or write \"never\"")));
            }
            Ok(Some(now + lifetime))
        }
    }
}

fn parse_overlap(overlap_text: Option<&str>) -> Result<Duration, Problem> {
    let Some(text) = overlap_text else { return Ok(OVERLAP_DEFAULT) };
    let overlap = parse_duration(text).map_err(|error| refuse_value("/overlap", error.to_string()))?;
    if overlap > OVERLAP_MAX {
        return Err(refuse_value("/overlap", "two secrets can be valid at the same time for at most 30 days"));
    }
    Ok(overlap)
}

/// Replaces a token by a new one. The old one keeps working for a while.
async fn rotate(
    call: GlobalCall,
    Named(id, ..): Named<path::Token>,
    body: OptionalJsonBody<RotateRequest>,
) -> Result<Response, Problem> {
    let replaced_token = find(&call, &id).await?;
    let overlap = parse_overlap(body.read()?.overlap.as_deref())?;
    json_response(StatusCode::CREATED, &replace(&call, replaced_token, overlap).await?)
}

/// Replaces a token; the old one keeps working for the default overlap.
pub(crate) async fn rotate_token<Q>(call: &GlobalCall<Q>, id: &str) -> Result<TokenJson, Problem> {
    let replaced_token = find(call, id).await?;
    replace(call, replaced_token, OVERLAP_DEFAULT).await
}

async fn replace<Q>(
    call: &GlobalCall<Q>,
    replaced_token: TokenRecord,
    overlap: Duration,
) -> Result<TokenJson, Problem> {
    let (engine, now) = (call.engine(), call.engine().now());
    let secret = Token::generate_for(replaced_token.kind);
    let new_record = secret.record(engine.new_id(), replaced_token.kind, now);
    let descent = token_descent::descent_of_replacement(call, &replaced_token, now).await?;
    let TokenDescent { minted_by, line, is_same_series, expires_at, is_expiry_limited } = descent;
    let record = TokenRecord {
        id: new_record.id,
        hash: new_record.hash,
        prefix: new_record.prefix,
        created_at: now,
        last_used_at: None,
        minted_by,
        line: line.unwrap_or(replaced_token.line),
        series: if is_same_series { replaced_token.series } else { new_record.series },
        expires_at,
        ..replaced_token.clone()
    };
    token_limit::check_replacement(call, (&replaced_token, overlap), &record).await?;
    let names = GrantNames::read(engine, record.grants.iter()).await?;
    if !auth::rotate(engine.store(), replaced_token.id, now + overlap, &record).await? {
        return Err(Problem::new(Code::TokenOver, "the token was revoked or has expired; create a new one"));
    }
    Ok(with_secret(call, (&record, &names), (&secret, is_expiry_limited)))
}

async fn revoke(call: GlobalCall, Named(id, ..): Named<path::Token>) -> Result<Response, Problem> {
    revoke_token(&call, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Revokes a token. Revoking it twice is no error.
pub(crate) async fn revoke_token<Q>(call: &GlobalCall<Q>, id: &str) -> Result<(), Problem> {
    let record = find(call, id).await?;
    let now = call.engine().now();
    call.note.changed_to(&serde_json::json!({"revoked_at": now}));
    call.engine().store().revoke_token(record.id, now).await?;
    Ok(())
}

/// The token with this id, if the caller may manage it.
async fn find<Q>(call: &GlobalCall<Q>, id: &str) -> Result<TokenRecord, Problem> {
    let stored_token = match id.parse::<TokenId>().ok().filter(|id| id.get() > 0) {
        Some(id) => call.engine().store().token_by_id(id).await?,
        None => None,
    };
    let is_stored = stored_token.is_some();
    let Some(token) = stored_token.filter(|token| may_manage(&call.caller, token)) else {
        if is_stored {
            call.note.mark_denied();
        }
        return Err(Problem::new(Code::TokenNotFound, format!("there is no token {}", quoted_input(id))));
    };
    call.note.set_object(&token.name);
    let names = GrantNames::read(call.engine(), token.grants.iter()).await?;
    call.note.before(&TokenJson::new(&token, &names));
    Ok(token)
}

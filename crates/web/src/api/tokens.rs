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
use crate::grants::{GrantJson, GrantNames, check_covered, read_grants};
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
const OVERLAP_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// How many tokens are read at a time while searching for those that the caller may manage.
const BATCH: u32 = 500;

/// The URL's parameters for the list of tokens.
#[derive(Debug)]
pub(crate) struct ListTokens {
    all: bool,
    limit: u32,
    cursor: Option<String>,
}

impl FromQuery for ListTokens {
    fn from_query(reader: &mut Reader) -> Self {
        Self {
            all: reader.flag(
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
pub(super) struct Rotate {
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
async fn list(call: GlobalCall<ListTokens>) -> Result<Response, Problem> {
    let caller = &call.caller;
    let listing = Listing::new("tokens", (call.query.all, caller.account));
    let after = listing.id_after(call.query.cursor.as_deref(), TokenId::get)?;
    let limit = call.query.limit;
    let mut found = manageable_tokens(&call, call.query.all, after, limit).await?;
    let next_cursor = cut_to_page(&mut found, limit).map(|last| listing.cursor(last.id));
    let items = tokens_json(&call, &found).await?;
    json_response(StatusCode::OK, &Page { items, next_cursor })
}

/// The caller's own tokens, or all tokens that it may manage: more than `limit` if there are more.
pub(crate) async fn manageable_tokens<Q>(
    call: &GlobalCall<Q>,
    all: bool,
    mut after: Option<TokenId>,
    limit: u32,
) -> Result<Vec<TokenRecord>, Problem> {
    let owner = if all { None } else { call.caller.account };
    // A caller without an account has no tokens of its own.
    if owner.is_none() && !all {
        return Ok(Vec::new());
    }
    let (limit, store) = (usize::try_from(limit).unwrap_or(usize::MAX), call.engine().store());
    let scope = if owner.is_none() { token_limit::manageable_scope(call).await? } else { None };
    let mut tokens = Vec::new();
    while tokens.len() <= limit {
        let batch = store.tokens(&TokenQuery { owner, scope: scope.clone(), after, limit: BATCH }).await?;
        let is_last = batch.len() < usize::try_from(BATCH).unwrap_or(usize::MAX);
        after = batch.last().map(|last| last.id);
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
    let mut found = call.engine().store().tokens(&query).await?;
    found.retain(|token| may_manage(&call.caller, token));
    Ok(found)
}

/// Tokens as the API shows them.
pub(crate) async fn tokens_json<Q>(call: &GlobalCall<Q>, found: &[TokenRecord]) -> Result<Vec<TokenJson>, Problem> {
    let names = GrantNames::read(call.engine(), found.iter().flat_map(|token| &token.grants)).await?;
    Ok(found.iter().map(|token| TokenJson::new(token, &names)).collect())
}

async fn create(call: GlobalCall, body: JsonBody<NewToken>) -> Result<Response, Problem> {
    let made = create_token(&call, body.read()?).await?;
    json_response(StatusCode::CREATED, &made)
}

/// Creates a token. An API token belongs to its creator and never has more rights than the creator. A token for executors belongs to the
/// server: it keeps working after its creator has left.
pub(crate) async fn create_token<Q>(call: &GlobalCall<Q>, new: NewToken) -> Result<TokenJson, Problem> {
    let engine = call.engine();
    call.note.object(&new.name);
    token_name::check(&new.name)?;
    let kind = match new.kind {
        Kind::Api => TokenKind::Api,
        Kind::Executor => TokenKind::Executor,
        Kind::Xxl => TokenKind::Xxl,
    };
    check_roles(kind, &new.grants)?;
    if kind == TokenKind::Xxl && new.declares {
        return Err(refuse_value("/declares", "executors of XXL-JOB declare no jobs; leave it out"));
    }
    let namespace = match &new.namespace {
        None => None,
        Some(name) => Some(visible_namespace(engine, &call.caller, name).await?.id),
    };
    // Checks the roles before it creates an app by its name: only a caller who may grant the role in the whole namespace may do that.
    let grants = covered_grants(call, &new.grants).await?;
    let now = engine.now();
    let expires_at = parse_expiry(kind, new.expires_in.as_deref(), now)?;
    let descent = token_descent::descent_of_new(call, expires_at, new.expires_in.is_some()).await?;
    let TokenDescent { minted_by, line, expires_at, is_inherited, .. } = descent;
    let secret = Token::generate_for(kind);
    let owner = call.caller.account.filter(|_| kind == TokenKind::Api);
    let namespace = namespace.or_else(|| default_namespace(&grants));
    let record = secret.record(engine.new_id(), kind, now);
    let (name, declares) = (new.name, new.declares);
    let line = line.unwrap_or(record.id);
    let record = TokenRecord { name, owner, namespace, minted_by, line, declares, expires_at, grants, ..record };
    token_limit::check(call, &record).await?;
    let names = GrantNames::read(engine, record.grants.iter()).await?;
    // Adding fails if the caller's own token has ended since it was checked.
    if !auth::add(engine.store(), &record).await? {
        return Err(unauthenticated_problem());
    }
    Ok(with_secret(call, (&record, &names), (&secret, is_inherited)))
}

/// The token as the API shows it, with its secret, which is not written to the audit log. A token for executors gets a warning if the
/// expiry of its maker's token limits its own. Reads nothing: after an error, the secret of a stored token would be lost.
fn with_secret<Q>(
    call: &GlobalCall<Q>,
    (record, names): (&TokenRecord, &GrantNames),
    (secret, is_inherited): (&Token, bool),
) -> TokenJson {
    let shown = TokenJson::new(record, names);
    call.note.changed_to(&shown);
    let end = record.expires_at.filter(|_| is_inherited && record.kind.is_of_executors());
    let warning = |end: Timestamp| {
        format!(
            "this token expires at {end}, because a token made it that cannot give it a later end; its executors are refused \
             from then on. Make the token in the console, signed in with an account, if it is to last"
        )
    };
    let warnings = end.map(warning).into_iter().collect();
    TokenJson { token: Some(secret.reveal().to_owned()), warnings, ..shown }
}

async fn covered_grants<Q>(
    call: &GlobalCall<Q>,
    wanted: &[GrantJson],
) -> Result<Vec<rondel_core::access::Grant>, Problem> {
    for one in wanted {
        // Checked first: the answer must not reveal whether a namespace exists that the caller may not see.
        if let Some(namespace) = &one.namespace {
            visible_namespace(call.engine(), &call.caller, namespace).await?;
        }
    }
    let whole: Vec<GrantJson> = wanted.iter().map(|one| GrantJson { app: None, ..one.clone() }).collect();
    let whole = read_grants(call.engine(), &whole).await?;
    if check_covered(&call.caller, &whole).is_err() {
        // A caller with roles only on single apps may name only existing apps.
        for one in wanted {
            check_known_app(call, one).await?;
        }
    }
    let grants = read_grants(call.engine(), wanted).await?;
    check_covered(&call.caller, &grants)?;
    Ok(grants)
}

async fn check_known_app<Q>(call: &GlobalCall<Q>, wanted: &GrantJson) -> Result<(), Problem> {
    let (Some(namespace), Some(app)) = (&wanted.namespace, &wanted.app) else { return Ok(()) };
    let store = call.engine().store();
    let namespace = visible_namespace(call.engine(), &call.caller, namespace).await?;
    let known = match rondel_core::name::check(app) {
        Ok(()) => store.app(namespace.id, app).await?,
        Err(_) => None,
    };
    match known {
        Some(app) if call.caller.rights.allow(Permission::View, namespace.id, Some(app.id)) => Ok(()),
        _ => Err(Problem::new(Code::Forbidden, format!("your roles do not cover app {}", quoted_input(app)))),
    }
}

fn check_roles(kind: TokenKind, grants: &[GrantJson]) -> Result<(), Problem> {
    if grants.is_empty() {
        return Err(refuse_value("/grants", "a token without a role can do nothing; name at least one"));
    }
    let fits = |grant: &GrantJson| (grant.role == Role::Executor) == kind.is_of_executors();
    if let Some(index) = grants.iter().position(|grant| !fits(grant)) {
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
    let first = grants.first()?.namespace?;
    grants.iter().all(|grant| grant.namespace == Some(first)).then_some(first)
}

fn parse_expiry(kind: TokenKind, wanted: Option<&str>, now: Timestamp) -> Result<Option<Timestamp>, Problem> {
    match (kind, wanted) {
        (_, Some("never")) | (TokenKind::Executor | TokenKind::Xxl, None) => Ok(None),
        (TokenKind::Api, None) => Ok(Some(now + LIFETIME_DEFAULT)),
        (_, Some(text)) => {
            let refuse = |message: String| refuse_value("/expires_in", message);
            let length = parse_duration(text).map_err(|error| refuse(error.to_string()))?;
            if length.is_zero() || length > Duration::from_secs(3650 * 24 * 3600) {
                return Err(refuse(format!("{text:?} is not a time from now up to ten years; or write \"never\"")));
            }
            Ok(Some(now + length))
        }
    }
}

fn parse_overlap(wanted: Option<&str>) -> Result<Duration, Problem> {
    let Some(text) = wanted else { return Ok(OVERLAP_DEFAULT) };
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
    body: OptionalJsonBody<Rotate>,
) -> Result<Response, Problem> {
    let old = find(&call, &id).await?;
    let overlap = parse_overlap(body.read()?.overlap.as_deref())?;
    json_response(StatusCode::CREATED, &replace(&call, old, overlap).await?)
}

/// Replaces a token; the old one keeps working for the default overlap.
pub(crate) async fn rotate_token<Q>(call: &GlobalCall<Q>, id: &str) -> Result<TokenJson, Problem> {
    let old = find(call, id).await?;
    replace(call, old, OVERLAP_DEFAULT).await
}

async fn replace<Q>(call: &GlobalCall<Q>, old: TokenRecord, overlap: Duration) -> Result<TokenJson, Problem> {
    let (engine, now) = (call.engine(), call.engine().now());
    let secret = Token::generate_for(old.kind);
    let fresh = secret.record(engine.new_id(), old.kind, now);
    let descent = token_descent::descent_of_replacement(call, &old, now).await?;
    let TokenDescent { minted_by, line, is_same_series, expires_at, is_inherited } = descent;
    let record = TokenRecord {
        id: fresh.id,
        hash: fresh.hash,
        prefix: fresh.prefix,
        created_at: now,
        last_used_at: None,
        minted_by,
        line: line.unwrap_or(old.line),
        series: if is_same_series { old.series } else { fresh.series },
        expires_at,
        ..old.clone()
    };
    token_limit::check(call, &record).await?;
    let names = GrantNames::read(engine, record.grants.iter()).await?;
    if !auth::rotate(engine.store(), old.id, now + overlap, &record).await? {
        return Err(Problem::new(Code::TokenOver, "the token was revoked or has expired; create a new one"));
    }
    Ok(with_secret(call, (&record, &names), (&secret, is_inherited)))
}

async fn revoke(call: GlobalCall, Named(id, ..): Named<path::Token>) -> Result<Response, Problem> {
    revoke_token(&call, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Revokes a token. Revoking it twice is no error.
pub(crate) async fn revoke_token<Q>(call: &GlobalCall<Q>, id: &str) -> Result<(), Problem> {
    let found = find(call, id).await?;
    let now = call.engine().now();
    call.note.changed_to(&serde_json::json!({"revoked_at": now}));
    call.engine().store().revoke_token(found.id, now).await?;
    Ok(())
}

/// The token with this id, if the caller may manage it.
async fn find<Q>(call: &GlobalCall<Q>, id: &str) -> Result<TokenRecord, Problem> {
    let stored = match id.parse::<TokenId>().ok().filter(|id| id.get() > 0) {
        Some(id) => call.engine().store().token_by_id(id).await?,
        None => None,
    };
    let is_stored = stored.is_some();
    let Some(token) = stored.filter(|token| may_manage(&call.caller, token)) else {
        if is_stored {
            call.note.mark_denied();
        }
        return Err(Problem::new(Code::TokenNotFound, format!("there is no token {}", quoted_input(id))));
    };
    call.note.object(&token.name);
    let names = GrantNames::read(call.engine(), token.grants.iter()).await?;
    call.note.before(&TokenJson::new(&token, &names));
    Ok(token)
}

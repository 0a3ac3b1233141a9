//! The user's own account: password, sign-ins and tokens.

use askama::Template;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use rondel_admin::current_password::{self, PasswordCheck};
use rondel_admin::sign_in::{self, SESSION_LIFETIME, SignInClient, SignInOwner};
use rondel_core::access::Permission;
use rondel_core::words::Lang;
use rondel_core::{SessionId, Timestamp};
use rondel_store::access::{Account, KeptAccess, WebSession};

use super::form::Fields;
use super::grants_form::{
    GrantChoices, GrantPicker, GrantRow, grant_text, mark_wrong_rows, rows_of_grants, sent_grants, sent_rows,
};
use super::moment::Moment;
use super::prefs::Prefs;
use super::sentences::localized;
use super::shell::{Nav, NoQuery, PAGE_ITEM_COUNT, Shell, User, WithLang, html};
use super::sign_in::{add_cookie, sign_in_problem, too_many_attempts_problem};
use super::texts::Texts;
use crate::access::missing_session_problem;
use crate::api::me::{account_of_sign_ins, audit_session};
use crate::api::tokens::{self, NewToken, TokenJson};
use crate::api::users::{self, hash_password};
use crate::body::{read_value, refuse_value};
use crate::call::GlobalCall;
use crate::cookies;
use crate::grants::{GrantJson, GrantNames};
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::redirect::{own_path, redirect_to};

#[derive(Template)]
#[template(path = "account.html")]
struct AccountPage {
    shell: Shell,
    t: &'static Texts,
    name: String,
    grants: Vec<String>,
    /// Whether the account itself has signed in, without a token.
    is_account: bool,
    /// Whether the sign-ins of the account are shown.
    has_sign_ins: bool,
    has_password: bool,
    is_admin: bool,
    sessions: Vec<SessionRow>,
    tokens: Vec<TokenRow>,
    /// How many valid tokens the account has. A new password revokes them unless the user keeps them.
    valid_token_count: u64,
    /// The secret of the token that was just created, and its expiry if the token behind this sign-in limits it.
    new_token: Option<(String, Option<Moment>)>,
    error: Option<String>,
    picker: GrantPicker,
    form: TokenForm,
}

/// The fields of a new token as the user typed them, without its grants.
#[derive(Default)]
struct TokenForm {
    name: String,
    kind: String,
    expires_in: String,
}

impl TokenForm {
    fn from_fields(fields: &Fields) -> Self {
        let text = |field| fields.get(field).to_owned();
        Self { name: text("name"), kind: text("kind"), expires_in: text("expires_in") }
    }
}

struct SessionRow {
    id: String,
    address: String,
    user_agent: String,
    began_at: Moment,
    seen_at: Moment,
    is_current: bool,
}

struct TokenRow {
    id: String,
    name: String,
    prefix: String,
    grants: Vec<String>,
    ends_at: Option<Moment>,
    used_at: Option<Moment>,
    has_ended: bool,
}

impl TokenRow {
    fn new(token: TokenJson, now: Timestamp, t: &'static Texts) -> Self {
        Self {
            id: token.id.to_string(),
            has_ended: token.revoked_at.is_some() || token.expires_at.is_some_and(|end| end <= now),
            grants: token.grants.iter().map(|grant| grant_text(grant, t)).collect(),
            ends_at: token.expires_at.map(|at| Moment::new(at, now, t)),
            used_at: token.last_used_at.map(|at| Moment::new(at, now, t)),
            name: token.name,
            prefix: token.prefix,
        }
    }
}

type PageCall = GlobalCall<WithLang<NoQuery>>;

/// A grant as text: `operator default/billing`.
pub(super) fn grant_line(grant: &GrantJson) -> String {
    match (&grant.namespace, &grant.app) {
        (Some(namespace), Some(app)) => format!("{} {namespace}/{app}", grant.role),
        (Some(namespace), None) => format!("{} {namespace}", grant.role),
        (None, _) => grant.role.to_string(),
    }
}

/// Parses grants, one per line, such as `operator orders/billing`.
pub(super) fn parse_grant_lines(text: &str) -> Result<Vec<GrantJson>, Problem> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty()).enumerate();
    let grant = |(index, line): (usize, &str)| {
        let (role, scope_text) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let role = role.parse().map_err(|message: String| refuse_value(&format!("/grants/{index}/role"), message))?;
        let (namespace, app) = match scope_text.trim().split_once('/') {
            Some((namespace, app)) => (Some(namespace), Some(app)),
            None => (Some(scope_text.trim()).filter(|scope_text| !scope_text.is_empty()), None),
        };
        Ok(GrantJson { role, namespace: namespace.map(str::to_owned), app: app.map(str::to_owned) })
    };
    lines.map(grant).collect()
}

pub(super) async fn page(call: PageCall, prefs: Prefs) -> Result<Response, Problem> {
    render_page(&call, prefs, StatusCode::OK, PageState::default()).await
}

/// The state of the page: the outcome of its form, and the fields as the user typed them.
#[derive(Default)]
struct PageState {
    new_token: Option<TokenJson>,
    error: Option<String>,
    typed_grants: Vec<GrantRow>,
    form: TokenForm,
}

async fn render_page(call: &PageCall, prefs: Prefs, status: StatusCode, state: PageState) -> Result<Response, Problem> {
    let (engine, caller) = (call.engine(), &call.caller);
    let store = engine.store();
    let shell = Shell::new(prefs, Nav::None, Some(User::of_global_call(call).await), "/account");
    let (t, now) = (shell.t, engine.now());
    let account = match caller.account {
        Some(id) => store.account(id).await?,
        None => None,
    };
    let sign_in_account = account.as_ref().filter(|account| caller.actor().may_manage_sign_ins(&account.grants));
    let sessions = match sign_in_account {
        Some(account) => store.sign_ins(account.id).await?,
        None => Vec::new(),
    };
    let token_records = tokens::own_tokens(call, PAGE_ITEM_COUNT).await?;
    let names = GrantNames::read(engine, caller.rights.grants().iter()).await?;
    let session_row = |session: WebSession| SessionRow {
        id: session.id.to_string(),
        is_current: Some(session.id) == caller.session,
        address: session.address,
        user_agent: session.user_agent,
        began_at: Moment::new(session.created_at, now, t),
        seen_at: Moment::new(session.last_seen_at, now, t),
    };
    let token_row = |token| TokenRow::new(token, now, t);
    let new_token = state.new_token.and_then(|token| {
        let end = token.expires_at.filter(|_| !token.warnings.is_empty());
        Some((token.token?, end.map(|at| Moment::new(at, now, t))))
    });
    let valid_token_count = match &account {
        Some(account) => store.count_valid_tokens(account.id, now).await?,
        None => 0,
    };
    let template = AccountPage {
        t,
        name: caller.name().to_owned(),
        grants: names.to_json(caller.rights.grants()).iter().map(|grant| grant_text(grant, t)).collect(),
        is_account: account.is_some() && caller.token.is_none(),
        has_sign_ins: sign_in_account.is_some(),
        has_password: account.as_ref().is_some_and(|account| account.password.is_some()),
        is_admin: caller.may_anywhere(Permission::Cluster),
        sessions: sessions.into_iter().map(session_row).collect(),
        tokens: tokens::tokens_json(call, &token_records).await?.into_iter().map(token_row).collect(),
        valid_token_count,
        new_token,
        error: state.error,
        picker: GrantChoices::read(call, t).await?.picker(state.typed_grants),
        form: state.form,
        shell,
    };
    html(status, &template)
}

/// The signed-in account. A sign-in by a token is refused, even if the account owns the token: tokens cannot set passwords.
async fn signed_in_account(call: &PageCall) -> Result<(Account, SessionId), Problem> {
    let caller = &call.caller;
    let refuse = |detail: &str| Problem::new(Code::Forbidden, detail);
    let (Some(id), Some(session)) = (caller.account, caller.session) else {
        return Err(refuse("this sign-in belongs to no account"));
    };
    if !caller.actor().may_change_sign_in_of(id) {
        return Err(refuse(
            "a token began this sign-in, and a token sets no password; sign in with the account itself",
        ));
    }
    let account = call.engine().store().account(id).await?;
    Ok((account.ok_or_else(|| refuse("the account is gone"))?, session))
}

/// Sets a new password for a user who knows the old one. All sign-ins end, and this browser gets a new one. The tokens are revoked too,
/// unless the form keeps them: an attacker with a stolen sign-in may have created some.
pub(super) async fn password(
    call: PageCall,
    prefs: Prefs,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, Problem> {
    let (account, session) = signed_in_account(&call).await?;
    let (store, now) = (call.engine().store(), call.engine().now());
    if account.password.is_some() {
        let typed_password = fields.raw("current");
        let check_result =
            current_password::check(store, &call.web.passwords, (&account, session), typed_password, now).await;
        match check_result.map_err(sign_in_problem)? {
            PasswordCheck::Right => {}
            PasswordCheck::Blocked(until) => return Err(too_many_attempts_problem(until, now)),
            PasswordCheck::Wrong => {
                let error = Some(prefs.lang.texts().password_wrong.to_owned());
                call.note.mark_denied();
                return render_page(&call, prefs, StatusCode::FORBIDDEN, PageState { error, ..PageState::default() })
                    .await;
            }
        }
    }
    let password_hash = match hash_password(&call.web, fields.raw("password"), &account.name).await {
        Ok(password_hash) => password_hash,
        Err(problem) if problem.code() == Code::Internal => return Err(problem),
        Err(problem) => {
            let error = Some(localized(prefs.lang.texts().lang(), problem.detail()).into_owned());
            return render_page(
                &call,
                prefs,
                StatusCode::UNPROCESSABLE_ENTITY,
                PageState { error, ..PageState::default() },
            )
            .await;
        }
    };
    // The checks above take a while. If the password was reset meanwhile, this sign-in has ended, and must not replace the new password.
    let present_account = store.account(account.id).await?;
    if present_account.is_none_or(|present| present.disabled || present.password != account.password) {
        return Err(missing_session_problem());
    }
    let keep_tokens = fields.get("keep_tokens") == "1";
    users::audit_password(&call, &account, (now, keep_tokens));
    store
        .set_password(account.id, &password_hash, KeptAccess { session: None, keeps_tokens: keep_tokens }, now)
        .await?;
    let user_agent =
        headers.get(http::header::USER_AGENT).and_then(|user_agent| user_agent.to_str().ok()).unwrap_or_default();
    let client = SignInClient { address: None, user_agent: user_agent.to_owned() };
    let cookie = sign_in::begin(store, call.engine().new_id(), SignInOwner::Account(account.id), &client, now).await?;
    let mut response = redirect_to("/account");
    add_cookie(&mut response, cookies::set_session(cookie.reveal(), SESSION_LIFETIME, call.web.config.tls));
    Ok(response)
}

pub(super) async fn end_session(call: PageCall, Named(id, ..): Named<path::SignIn>) -> Result<Response, Problem> {
    let lacks_rights_problem = || {
        Problem::new(Code::Forbidden, "this sign-in has fewer rights than those of its account, so it cannot end them")
    };
    let account = account_of_sign_ins(&call).await?.ok_or_else(lacks_rights_problem)?;
    // Ending a sign-in twice is no error.
    if let Ok(id) = id.parse::<SessionId>() {
        audit_session(&call, account, id).await?;
        call.engine().store().end_sign_in(id, Some(account)).await?;
    }
    Ok(redirect_to("/account"))
}

pub(super) async fn submit_token(call: PageCall, prefs: Prefs, fields: Fields) -> Result<Response, Problem> {
    let token_result = create_token(&call, &fields).await;
    let typed_grants = match sent_rows(&fields) {
        Some(rows) => rows,
        None => parse_grant_lines(fields.get("grants")).map(|grants| rows_of_grants(&grants)).unwrap_or_default(),
    };
    render_new_token(&call, prefs, token_result, (typed_grants, TokenForm::from_fields(&fields))).await
}

/// Replaces a token by a new one that has the same lifetime.
pub(super) async fn rotate_token(
    call: PageCall,
    prefs: Prefs,
    Named(id, ..): Named<path::Token>,
) -> Result<Response, Problem> {
    let token_result = tokens::rotate_token(&call, &id).await;
    render_new_token(&call, prefs, token_result, (Vec::new(), TokenForm::default())).await
}

async fn render_new_token(
    call: &PageCall,
    prefs: Prefs,
    token_result: Result<TokenJson, Problem>,
    (mut typed_grants, form): (Vec<GrantRow>, TokenForm),
) -> Result<Response, Problem> {
    match token_result {
        Ok(token) => {
            render_page(call, prefs, StatusCode::OK, PageState { new_token: Some(token), ..PageState::default() }).await
        }
        Err(problem) if matches!(problem.code(), Code::Internal | Code::Unavailable | Code::TokenNotFound) => {
            Err(problem)
        }
        Err(problem) => {
            let t = prefs.lang.texts();
            let is_marked = mark_wrong_rows(&mut typed_grants, &problem);
            let error = if is_marked { t.user_error_grants.to_owned() } else { token_error(&problem, t) };
            let status = StatusCode::from_u16(problem.code().status()).unwrap_or(StatusCode::UNPROCESSABLE_ENTITY);
            render_page(call, prefs, status, PageState { error: Some(error), typed_grants, form, new_token: None })
                .await
        }
    }
}

/// Why no token was created, with the label of the field that is wrong.
fn token_error(problem: &Problem, t: &Texts) -> String {
    let complaint = problem.complaints().first();
    let label = match complaint.and_then(|complaint| complaint.pointer.as_deref()) {
        Some("/name") => t.field_name,
        Some("/expires_in") => t.token_lives,
        _ => "",
    };
    let colon = match t.lang() {
        _ if label.is_empty() => "",
        Lang::En => ": ",
        Lang::Zh => "：",
    };
    let message = complaint.map_or(problem.detail(), |complaint| complaint.message.as_str());
    format!("{} {label}{colon}{}", t.token_error_other, localized(t.lang(), message))
}

async fn create_token(call: &PageCall, fields: &Fields) -> Result<TokenJson, Problem> {
    let document = serde_json::json!({
        "kind": match fields.get("kind") {
            kind @ ("executor" | "xxl") => kind,
            _ => "api",
        },
        "name": fields.get("name"),
        "grants": sent_grants(fields)?.unwrap_or_default(),
        "expires_in": Some(fields.get("expires_in")).filter(|text| !text.is_empty()),
    });
    let new_token: NewToken = read_value("", document)?;
    tokens::create_token(call, new_token).await
}

pub(super) async fn revoke_token(
    call: PageCall,
    Named(id, ..): Named<path::Token>,
    fields: Fields,
) -> Result<Response, Problem> {
    tokens::revoke_token(&call, &id).await?;
    Ok(own_path(fields.get("back")).map_or_else(|| redirect_to("/account"), redirect_to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_in_lines_are_read_as_they_are_written() {
        let text = "viewer\n operator default \n\neditor default/billing";
        let found = parse_grant_lines(text).unwrap();
        let again: Vec<String> = found.iter().map(grant_line).collect();
        assert_eq!(again, ["viewer", "operator default", "editor default/billing"]);
        assert_eq!(parse_grant_lines("root").unwrap_err().complaints()[0].pointer.as_deref(), Some("/grants/0/role"));
    }
}

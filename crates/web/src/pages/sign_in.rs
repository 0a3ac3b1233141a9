//! Signs users in and out, creates the first account, and stores the preferences of a browser.

use std::net::IpAddr;
use std::time::Duration;

use askama::Template;
use axum::extract::{FromRequestParts, State};
use axum::response::Response;
use http::header::{RETRY_AFTER, SET_COOKIE, USER_AGENT};
use http::request::Parts;
use http::{HeaderValue, StatusCode, Uri};
use rondel_admin::auth::Token;
use rondel_admin::gateway::Peer;
use rondel_admin::oidc::Refusal;
use rondel_admin::passwords;
use rondel_admin::sign_in::{self, SESSION_LIFETIME, SignIn, SignInClient, SignInError, SignInOwner};
use rondel_core::access::{Grant, Role};
use rondel_core::{AccountId, AuditId, Timestamp, name, plain};
use rondel_store::access::{Account, AttemptDecision, AuditEntry, AuthMethod, LinkPurpose, SignInLink, Verdict};

use super::form::Fields;
use super::prefs::{LANG_COOKIE, Prefs, THEME_COOKIE, Theme};
use super::sentences::localized;
use super::shell::{Nav, Shell, html};
use super::texts::{Lang, Texts};
use super::zones::{CLOCK_COOKIE, Clock};
use crate::access::{RequestId, caller_of_session, cross_origin_problem};
use crate::api::users::hash_password;
use crate::problem::{Code, Problem};
use crate::query::Reader;
use crate::redirect::{own_path, query_pair, redirect_to};
use crate::state::Web;
use crate::{audit, cookies};

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage {
    shell: Shell,
    t: &'static Texts,
    /// The token of a sign-in link. Without it the page asks for name and password.
    token: Option<String>,
    /// The path to open after the sign-in.
    next_path: String,
    /// Whether another page has redirected the browser to this one, because that page needs a sign-in.
    was_sent_here: bool,
    /// The name that the user typed, if the sign-in failed.
    name: String,
    error: Option<String>,
    /// Whether no account exists yet.
    needs_first_account: bool,
    /// The URL to sign in through the OIDC provider, if one is configured.
    oidc: Option<String>,
}

#[derive(Template)]
#[template(path = "set_up.html")]
struct SetUpPage {
    shell: Shell,
    t: &'static Texts,
    token: String,
    name: String,
    error: Option<String>,
}

/// The browser that sends a request, signed in or not: its address, user agent and cookie.
#[derive(Debug)]
pub(crate) struct Browser {
    pub(super) client: SignInClient,
    pub(super) request_id: Option<String>,
    is_same_origin: bool,
    cookie: Option<String>,
}

impl FromRequestParts<Web> for Browser {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, web: &Web) -> Result<Self, Problem> {
        let user_agent = parts.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let address = parts.extensions.get::<Peer>().map(|Peer(address)| *address);
        Ok(Self {
            client: SignInClient { address, user_agent: user_agent.to_owned() },
            request_id: parts.extensions.get::<RequestId>().map(|RequestId(id)| id.clone()),
            is_same_origin: web.config.endpoint().is_from_own_pages(&parts.headers, &parts.uri, &parts.extensions),
            cookie: cookies::session(&parts.headers, web.config.tls).map(str::to_owned),
        })
    }
}

impl Browser {
    fn check_origin(&self, web: &Web) -> Result<(), Problem> {
        if self.is_same_origin { Ok(()) } else { Err(cross_origin_problem(web)) }
    }

    pub(super) const fn address(&self) -> Option<IpAddr> {
        self.client.address
    }
}

/// Shows the sign-in page. A link is only checked here and not used up, since previews of links open it too.
pub(super) async fn page(
    State(web): State<Web>,
    prefs: Prefs,
    uri: Uri,
    browser: Browser,
) -> Result<Response, Problem> {
    let mut reader = Reader::new(&uri);
    let (token, sent_path, _) = (reader.single("token"), reader.single("next"), reader.single("lang"));
    reader.finish()?;
    let next_path = sent_path.as_deref().and_then(own_path);
    let (store, now) = (web.engine.store(), web.engine.now());
    if let Some(token) = &token
        && !sign_in::is_link_valid(store, token, LinkPurpose::SignIn, now).await?
    {
        return Err(spent_link_problem());
    }
    if token.is_none() && caller_of_session(&web, browser.cookie.as_deref(), browser.client.address).await?.is_some() {
        return Ok(redirect_to(next_path.unwrap_or("/")));
    }
    // A path that is too long, as by its filter, is not returned to. Scripts detect by the status 401 that the session has ended, so the
    // answer has it for every path.
    let was_sent_here = sent_path.is_some() && token.is_none();
    let page_url = match (&token, next_path) {
        (Some(token), _) => format!("/sign-in?{}", query_pair("token", token)),
        (None, Some(next_path)) => format!("/sign-in?{}", query_pair("next", next_path)),
        (None, None) => "/sign-in".to_owned(),
    };
    let shell = Shell::new(prefs, Nav::None, None, &page_url);
    let (t, next_path, name) = (shell.t, next_path.unwrap_or("/").to_owned(), String::new());
    let oidc = oidc_link(&web, &next_path);
    let needs_first_account = !store.has_admin_account().await?;
    let page = SignInPage { shell, t, token, next_path, was_sent_here, name, error: None, needs_first_account, oidc };
    html(if was_sent_here { StatusCode::UNAUTHORIZED } else { StatusCode::OK }, &page)
}

fn oidc_link(web: &Web, next_path: &str) -> Option<String> {
    web.config.oidc.as_ref().map(|_| format!("/sign-in/oidc?{}", query_pair("next", next_path)))
}

/// Signs a user in by a link, which is thereby used up, or by name and password.
pub(super) async fn submit_sign_in(
    State(web): State<Web>,
    prefs: Prefs,
    browser: Browser,
    fields: Fields,
) -> Result<Response, Problem> {
    browser.check_origin(&web)?;
    let next_path = own_path(fields.get("next")).unwrap_or("/");
    if !fields.get("token").is_empty() {
        let redeemed_link = check_link(&web, &browser, fields.get("token")).await?;
        let owner = SignInOwner::of_link(&redeemed_link).ok_or_else(spent_link_problem)?;
        let name = sign_in::name_of(web.engine.store(), owner).await?.ok_or_else(spent_link_problem)?;
        if is_locked(&web, redeemed_link.account).await? {
            let entry = audit_entry(&web, &browser, &name, AuthMethod::Anonymous);
            audit::store_entry(&web, &AuditEntry { verdict: Verdict::Denied, ..entry }).await;
            return Err(Problem::new(Code::Forbidden, Refusal::Disabled(name).to_string()));
        }
        record_sign_in(&web, &browser, &name).await?;
        return begin_session(&web, &browser, owner, next_path).await;
    }
    let (name, password) = (fields.get("name"), fields.raw("password"));
    let (store, now) = (web.engine.store(), web.engine.now());
    let outcome = sign_in::by_password(store, &web.passwords, (name, password), browser.address(), now).await;
    match outcome.map_err(sign_in_problem)? {
        SignIn::Welcome(account) => {
            record_sign_in(&web, &browser, &account.name).await?;
            let (id, at) = (web.engine.new_id(), web.engine.now());
            match sign_in::begin_by_password(store, id, &account, &browser.client, at).await? {
                Some(cookie) => finish_sign_in(&web, &browser, &cookie, next_path).await,
                None => show_wrong_password(&web, prefs, &browser, (name, next_path)).await,
            }
        }
        SignIn::Wrong => show_wrong_password(&web, prefs, &browser, (name, next_path)).await,
        SignIn::Blocked(until) => Err(too_many_attempts_problem(until, now)),
    }
}

/// Shows the sign-in page again after a wrong name or password.
async fn show_wrong_password(
    web: &Web,
    prefs: Prefs,
    browser: &Browser,
    (name, next_path): (&str, &str),
) -> Result<Response, Problem> {
    // Names of accounts have no colon, so a reader of the audit log cannot mistake the typed name for an account.
    let entry = audit_entry(web, browser, &format!("typed:{}", plain::cleaned(name)), AuthMethod::Anonymous);
    audit::store_entry(web, &AuditEntry { verdict: Verdict::Denied, ..entry }).await;
    let shell = Shell::new(prefs, Nav::None, None, &format!("/sign-in?{}", query_pair("next", next_path)));
    let t = shell.t;
    let (next_path, name, error) = (next_path.to_owned(), name.to_owned(), Some(t.sign_in_wrong.to_owned()));
    let oidc = oidc_link(web, &next_path);
    let needs_first_account = !web.engine.store().has_admin_account().await?;
    let was_sent_here = false;
    let page = SignInPage { shell, t, token: None, next_path, was_sent_here, name, error, needs_first_account, oidc };
    html(StatusCode::UNAUTHORIZED, &page)
}

async fn check_link(web: &Web, browser: &Browser, secret: &str) -> Result<SignInLink, Problem> {
    let (store, now) = (web.engine.store(), web.engine.now());
    let redeemed_link = sign_in::redeem(store, secret, LinkPurpose::SignIn, now).await?;
    if redeemed_link.is_none()
        && let AttemptDecision::Blocked(until) = sign_in::count_attempt_from(store, browser.address(), now).await?
    {
        return Err(too_many_attempts_problem(until, now));
    }
    redeemed_link.ok_or_else(spent_link_problem)
}

async fn is_locked(web: &Web, account: Option<AccountId>) -> Result<bool, Problem> {
    let Some(id) = account else { return Ok(false) };
    Ok(web.engine.store().account(id).await?.is_some_and(|account| account.disabled))
}

/// Begins a new session, and ends the one that the browser had before.
pub(super) async fn begin_session(
    web: &Web,
    browser: &Browser,
    owner: SignInOwner,
    next_path: &str,
) -> Result<Response, Problem> {
    let (id, now) = (web.engine.new_id(), web.engine.now());
    let cookie = sign_in::begin(web.engine.store(), id, owner, &browser.client, now).await?;
    finish_sign_in(web, browser, &cookie, next_path).await
}

/// Sets the cookie of the browser's new session, and ends the session that the browser had before.
async fn finish_sign_in(web: &Web, browser: &Browser, cookie: &Token, next_path: &str) -> Result<Response, Problem> {
    if let Some(old_cookie) = &browser.cookie {
        sign_in::end(web.engine.store(), old_cookie).await?;
    }
    let mut response = redirect_to(next_path);
    add_cookie(&mut response, cookies::set_session(cookie.reveal(), SESSION_LIFETIME, web.config.tls));
    Ok(response)
}

pub(super) async fn sign_out(State(web): State<Web>, browser: Browser) -> Result<Response, Problem> {
    browser.check_origin(&web)?;
    if let Some(cookie) = &browser.cookie {
        sign_in::end(web.engine.store(), cookie).await?;
    }
    let mut response = redirect_to("/sign-in");
    add_cookie(&mut response, cookies::set_session("", Duration::ZERO, web.config.tls));
    Ok(response)
}

/// The page that creates the first account. The server prints a link to it at its start.
pub(super) async fn set_up(State(web): State<Web>, prefs: Prefs, uri: Uri) -> Result<Response, Problem> {
    let mut reader = Reader::new(&uri);
    let (token, _) = (reader.single("token").unwrap_or_default(), reader.single("lang"));
    reader.finish()?;
    let (store, now) = (web.engine.store(), web.engine.now());
    if !sign_in::is_link_valid(store, &token, LinkPurpose::Setup, now).await? || store.has_admin_account().await? {
        return Err(spent_link_problem());
    }
    let shell = Shell::new(prefs, Nav::None, None, &format!("/set-up?{}", query_pair("token", &token)));
    let t = shell.t;
    html(StatusCode::OK, &SetUpPage { shell, t, token, name: String::new(), error: None })
}

/// Creates the first account, which is an admin of the cluster, and signs it in.
pub(super) async fn set_up_account(
    State(web): State<Web>,
    prefs: Prefs,
    browser: Browser,
    fields: Fields,
) -> Result<Response, Problem> {
    browser.check_origin(&web)?;
    let (store, now) = (web.engine.store(), web.engine.now());
    let (token, name, password) = (fields.get("token"), fields.get("name"), fields.raw("password"));
    let needs_first_account = !store.has_admin_account().await?;
    if !needs_first_account || !sign_in::is_link_valid(store, token, LinkPurpose::Setup, now).await? {
        if let AttemptDecision::Blocked(until) = sign_in::count_attempt_from(store, browser.address(), now).await? {
            return Err(too_many_attempts_problem(until, now));
        }
        return Err(spent_link_problem());
    }
    let is_taken = name::check_account(name).is_ok() && store.account_by_name(name).await?.is_some();
    let check_name_is_free =
        || (!is_taken).then_some(()).ok_or_else(|| format!("an account has the name {name:?}; choose another one"));
    let complaint = name::check_account(name)
        .and_then(|()| check_name_is_free())
        .and_then(|()| passwords::check(password, name))
        .err();
    if let Some(error) = complaint {
        let shell = Shell::new(prefs, Nav::None, None, &format!("/set-up?{}", query_pair("token", token)));
        let (t, token, name) = (shell.t, token.to_owned(), name.to_owned());
        let error = Some(localized(t.lang(), &error).into_owned());
        return html(StatusCode::UNPROCESSABLE_ENTITY, &SetUpPage { shell, t, token, name, error });
    }
    let account = Account {
        id: AccountId::new(web.engine.new_id()),
        name: name.to_owned(),
        display_name: name.to_owned(),
        password: Some(hash_password(&web, password, name).await?),
        disabled: false,
        created_at: now,
        password_changed_at: Some(now),
        provider_linked_at: None,
        grants: vec![Grant::everywhere(Role::Admin)],
    };
    if sign_in::redeem(store, token, LinkPurpose::Setup, now).await?.is_none() {
        return Err(spent_link_problem());
    }
    let entry = audit_entry(&web, &browser, name, AuthMethod::Anonymous);
    let entry = AuditEntry { action: "user.create".to_owned(), object: name.to_owned(), ..entry };
    store.add_audit(&entry).await?;
    // Fails if another link was used in the meantime: every start of a server prints a link.
    if !store.create_first_admin(&account).await? {
        return Err(spent_link_problem());
    }
    record_sign_in(&web, &browser, name).await?;
    begin_session(&web, &browser, SignInOwner::Account(account.id), "/").await
}

/// Stores a language, theme or clock in a cookie, and returns to the page with the form.
pub(super) async fn set_preference(
    State(web): State<Web>,
    browser: Browser,
    fields: Fields,
) -> Result<Response, Problem> {
    browser.check_origin(&web)?;
    let lang = Lang::from_word(fields.get("lang")).map(|lang| (LANG_COOKIE, lang.as_str()));
    let theme = Theme::from_word(fields.get("theme")).map(|theme| (THEME_COOKIE, theme.as_str()));
    let clock = Clock::from_word(fields.get("times")).map(|clock| (CLOCK_COOKIE, clock.as_str()));
    let preferences: Vec<_> = lang.into_iter().chain(theme).chain(clock).collect();
    if preferences.is_empty() {
        return Err(Problem::new(Code::InvalidBody, "neither a language, nor a theme, nor a clock that there is"));
    }
    let mut response = redirect_to(own_path(fields.get("back")).unwrap_or("/"));
    for (name, value) in preferences {
        add_cookie(&mut response, cookies::set_preference(name, value, web.config.tls));
    }
    Ok(response)
}

/// Records a sign-in in the audit log. If this fails, the user is not signed in.
async fn record_sign_in(web: &Web, browser: &Browser, actor: &str) -> Result<(), Problem> {
    Ok(web.engine.store().add_audit(&audit_entry(web, browser, actor, AuthMethod::Session)).await?)
}

fn audit_entry(web: &Web, browser: &Browser, actor: &str, auth_method: AuthMethod) -> AuditEntry {
    AuditEntry {
        id: AuditId::new(web.engine.new_id()),
        at: web.engine.now(),
        actor: actor.chars().take(name::NAME_LEN_MAX).collect(),
        auth_method,
        token: None,
        address: browser.address().map(|address| address.to_string()),
        request_id: browser.request_id.clone(),
        action: "session.create".to_owned(),
        object: String::new(),
        namespace: None,
        verdict: Verdict::Allowed,
        before: None,
        after: None,
    }
}

pub(super) fn add_cookie(response: &mut Response, cookie: Option<HeaderValue>) {
    if let Some(cookie) = cookie {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
}

pub(super) fn too_many_attempts_problem(blocked_until: Timestamp, now: Timestamp) -> Problem {
    let seconds = blocked_until.since(now).as_secs().max(1);
    let problem =
        Problem::new(Code::TooManyAttempts, format!("there were too many attempts; try again in {seconds} s"));
    match HeaderValue::from_str(&seconds.to_string()) {
        Ok(value) => problem.with_header(RETRY_AFTER, value),
        Err(_) => problem,
    }
}

pub(super) fn sign_in_problem(error: SignInError) -> Problem {
    match error {
        SignInError::Store(error) => error.into(),
        SignInError::Password(error) => Problem::internal(error.to_string()),
    }
}

fn spent_link_problem() -> Problem {
    Problem::new(Code::LinkSpent, "a link works once, and not for long")
}

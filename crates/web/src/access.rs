//! Who is calling, and whether that caller may. The check comes before path, query and body are looked at, so that
//! nobody without a right can tell what exists from what does not. What was done, or refused, is written to the audit log
//! here, whatever the handler does.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Uri};
use rondel_admin::auth::{Principal, authenticate, has_secret, signature};
use rondel_admin::gateway::Peer;
use rondel_admin::sign_in::{self, SignedIn};
use rondel_core::access::{Grant, Rights, Role};
use rondel_core::authority::Actor;
use rondel_core::{AccountId, NamespaceId, SessionId, TokenId};
use rondel_store::access::{Means, TokenKind};

use crate::app::Web;
use crate::call::{named_namespace, shown_namespace};
use crate::limits::CallerKey;
use crate::note::{self, Asked, Note};
use crate::problem::{Code, Problem};
use crate::redirect::{pair, to};
use crate::{api, cookies, health, load, rate, shares, trace};

pub use rondel_core::access::Permission;

/// Somebody whose token was good, or who signed in.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    name: String,
    means: Means,
    namespace: Option<NamespaceId>,
    pub(crate) rights: Rights,
    /// The account behind it; none behind a token of the server's.
    pub(crate) account: Option<AccountId>,
    pub(crate) token: Option<TokenId>,
    /// The token that the line of its token began with: without an account it is counted by that.
    line: Option<TokenId>,
    pub(crate) session: Option<SessionId>,
    /// The token that made the link by which the account signed in.
    minted_by: Option<TokenId>,
}

impl From<Principal> for Caller {
    fn from(principal: Principal) -> Self {
        let Principal { token, owner, rights } = principal;
        let means = match token.kind {
            TokenKind::Api => Means::Token,
            TokenKind::Executor => Means::Executor,
        };
        Self {
            name: signature(&token, owner.as_ref()),
            means,
            namespace: token.namespace,
            rights,
            account: owner.map(|owner| owner.id),
            token: Some(token.id),
            line: Some(token.line),
            session: None,
            minted_by: None,
        }
    }
}

impl From<SignedIn> for Caller {
    fn from(signed_in: SignedIn) -> Self {
        let SignedIn { session, account, token, rights } = signed_in;
        let name = match (&account, &token) {
            (Some(account), _) => account.name.clone(),
            (None, Some(token)) => signature(token, None),
            (None, None) => String::new(),
        };
        Self {
            name,
            means: Means::Session,
            namespace: token.as_ref().and_then(|token| token.namespace),
            rights,
            account: account.map(|account| account.id),
            line: token.as_ref().map(|token| token.line),
            token: token.map(|token| token.id),
            session: Some(session.id),
            minted_by: session.minted_by,
        }
    }
}

impl Caller {
    /// The bearer of the secret for metrics, of whom no row is read.
    fn metrics_reader() -> Self {
        Self {
            name: "metrics".to_owned(),
            means: Means::System,
            namespace: None,
            rights: Rights::new(vec![Grant::everywhere(Role::Viewer)]),
            account: None,
            token: None,
            line: None,
            session: None,
            minted_by: None,
        }
    }

    /// Somebody with a token.
    #[cfg(test)]
    pub(crate) fn for_tests(rights: Rights) -> Self {
        Self {
            name: String::new(),
            means: Means::Token,
            namespace: None,
            rights,
            account: None,
            token: Some(TokenId::new(1)),
            line: Some(TokenId::new(1)),
            session: None,
            minted_by: None,
        }
    }

    /// What changes are signed with.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn means(&self) -> Means {
        self.means
    }

    /// The namespace that a request without one means; `None` stands for `default`.
    pub(crate) const fn namespace(&self) -> Option<NamespaceId> {
        self.namespace
    }

    /// The caller where accounts, sign-ins and tokens are concerned.
    pub(crate) const fn actor(&self) -> Actor<'_> {
        Actor { rights: &self.rights, account: self.account, is_token: self.token.is_some() }
    }

    /// The token that all tokens and links end with which the caller makes.
    pub(crate) fn minting_token(&self) -> Option<TokenId> {
        self.token.or(self.minted_by)
    }

    /// What its requests are counted by.
    pub(crate) fn key(&self) -> CallerKey {
        match (self.account, self.line, self.session) {
            _ if self.means == Means::Executor => CallerKey::Executor(self.token.unwrap_or(TokenId::new(0))),
            (Some(account), ..) => CallerKey::Account(account),
            (None, Some(line), _) => CallerKey::Token(line),
            (None, None, session) => CallerKey::Session(session.unwrap_or(SessionId::new(0))),
        }
    }

    /// Whether there is any place where it may. An executor's token is for opening sessions alone.
    pub(crate) fn may(&self, permission: Permission) -> bool {
        self.means != Means::Executor && self.rights.allow_somewhere(permission)
    }
}

/// On a request: who came through the gate, and what for.
#[derive(Clone, Debug)]
pub(crate) struct Admitted {
    pub(crate) caller: Caller,
    pub(crate) needs: Permission,
    pub(crate) note: Note,
}

/// On a request: under which id it stands in the log.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);

/// The gate of a route, with what that route asks for.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(crate) web: Web,
    pub(crate) permission: Permission,
    /// The path of the route, its parameters in braces.
    pub(crate) path: &'static str,
}

impl Gate {
    /// The longest body that the route takes.
    fn body_len_max(&self) -> usize {
        if self.path == api::apply::PATH { api::apply::LEN_MAX } else { self.web.config.body_len_max }
    }
}

/// Whether a request is for a change.
fn is_change(gate: &Gate, request: &Request) -> bool {
    !request.method().is_safe() && !is_question(gate.path)
}

/// What is known of a request before it is handled.
fn asked(gate: &Gate, request: &Request) -> Asked {
    Asked {
        action: note::action(request.method(), gate.path),
        object: note::object(gate.path, request.uri().path()),
        address: address(request),
        request_id: request.extensions().get::<RequestId>().map(|RequestId(id)| id.clone()),
    }
}

/// Questions that come with a body: they change nothing.
pub(crate) fn is_question(path: &str) -> bool {
    matches!(path, "/api/v1/schedules/preview" | "/job-params")
}

/// Where a request comes from.
pub(crate) fn address(request: &Request) -> Option<IpAddr> {
    request.extensions().get::<Peer>().map(|Peer(address)| *address)
}

/// Lets a request pass whose caller may.
pub(crate) async fn guard(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let authorization = match authorization(request.headers()) {
        Ok(authorization) => authorization,
        Err(problem) => return problem.into_response(),
    };
    let secret = gate.web.config.metrics_token.as_ref().filter(|_| gate.path == health::METRICS_PATH);
    if secret.is_some_and(|secret| has_secret(authorization.as_deref(), secret)) {
        return pass(&gate, Caller::metrics_reader(), request, next).await;
    }
    match authenticated(&gate.web, authorization).await {
        Ok(caller) => pass(&gate, caller, request, next).await,
        Err(problem) => problem.into_response(),
    }
}

/// Lets a request for a page pass whose session is good: others are sent to the page that says how to sign in.
pub(crate) async fn guard_page(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let is_safe = request.method().is_safe();
    let entrance = gate.web.config.entrance();
    if !is_safe && !entrance.is_same(request.headers(), request.uri(), request.extensions()) {
        return cross_origin(&gate.web).into_response();
    }
    let cookie = cookies::session(request.headers(), gate.web.config.tls).map(str::to_owned);
    let uri = request.uri().clone();
    let caller = match signed_in(&gate.web, cookie.as_deref()).await {
        Ok(caller) => caller,
        Err(problem) => return problem.into_response(),
    };
    let Some(caller) = caller else {
        let is_whole = is_safe && !request.headers().contains_key("hx-request");
        return if is_whole { to_sign_in(request.uri()) } else { signed_out().into_response() };
    };
    let mut response = pass(&gate, caller.clone(), request, next).await;
    // The page of a problem shows the namespace too.
    if response.extensions().get::<Problem>().is_some()
        && let Some(called_by) = response.extensions_mut().get_mut::<CalledBy>()
        && called_by.namespace.is_none()
    {
        called_by.namespace = shown_namespace(&gate.web.engine, &caller, named_namespace(&uri).as_deref()).await;
    }
    response
}

/// Handles what may be done, and writes down what was: a change before it is made. What is refused for its number alone is
/// refused first, so that it costs neither a row nor a permit.
async fn pass(gate: &Gate, caller: Caller, request: Request, next: Next) -> Response {
    trace::routed(request.method(), gate.path);
    let note = Note::default();
    let (mut response, counted) = match rate::count(&gate.web, caller.key()) {
        Ok(counted) => (within_rate(gate, &caller, &note, request, next).await, counted),
        Err((problem, counted)) => (problem.into_response(), Some(counted)),
    };
    // What is refused for want of a right looks the same on every path, whether it exists or not.
    if let Some(counted) = counted.filter(|_| caller.may(gate.permission)) {
        counted.describe(response.headers_mut());
    }
    response.extensions_mut().insert(CalledBy { name: caller.name, namespace: note.shown_namespace() });
    response
}

async fn within_rate(gate: &Gate, caller: &Caller, note: &Note, request: Request, next: Next) -> Response {
    let web = &gate.web;
    let asked = asked(gate, &request);
    if let Err(problem) = load::admit_caller(web, &request, caller.key()) {
        return problem.into_response();
    }
    if !caller.may(gate.permission) {
        asked.refused(web, caller, note).await;
        return forbidden(caller).into_response();
    }
    let is_change = is_change(gate, &request);
    let turn = match is_change {
        true => None,
        false => match shares::turn(web, caller.key()).await {
            Ok(turn) => Some(turn),
            Err(problem) => return problem.into_response(),
        },
    };
    let (mut request, work) = match load::arrived(web, request, (Some(caller.key()), gate.body_len_max())).await {
        Ok(arrived) => arrived,
        Err(problem) => return problem.into_response(),
    };
    request.extensions_mut().insert(Admitted { caller: caller.clone(), needs: gate.permission, note: note.clone() });
    let response = if is_change {
        match asked.begin(web, caller).await {
            Err(problem) => problem.into_response(),
            Ok(begun) => {
                let response = next.run(request).await;
                begun.end(web, response.status(), note).await;
                response
            }
        }
    } else {
        let response = next.run(request).await;
        if note::is_refusal(response.status(), note) {
            asked.refused(web, caller, note).await;
        }
        response
    };
    drop((work, turn));
    shares::count_answer(web, caller.key(), is_change, response)
}

fn forbidden(caller: &Caller) -> Problem {
    let detail = match caller.means {
        Means::Executor => "this token does not allow it: an executor's token opens sessions only",
        Means::Session => "your roles do not allow it anywhere",
        Means::Token | Means::System | Means::Anonymous => {
            "this token does not allow it: its roles do not reach so far"
        }
    };
    Problem::new(Code::Forbidden, detail).without_instance()
}

/// Who signed in with this cookie.
pub(crate) async fn signed_in(web: &Web, cookie: Option<&str>) -> Result<Option<Caller>, Problem> {
    let Some(cookie) = cookie else { return Ok(None) };
    let found = sign_in::by_cookie(web.engine.store(), cookie, web.engine.now()).await?;
    Ok(found.map(Caller::from))
}

/// The refusal of a change that another site asks for.
pub(crate) fn cross_origin(web: &Web) -> Problem {
    let detail = match &web.config.advertised {
        Some(url) => {
            format!("the request comes from another site than {url}, which the server advertises; open that one")
        }
        None => {
            "the request comes from another site; if a proxy is in between, it must keep Host, or be trusted and send \
                 X-Forwarded-Host"
                .to_owned()
        }
    };
    Problem::new(Code::CrossOrigin, detail)
}

/// The refusal of a page without a session.
pub(crate) fn signed_out() -> Problem {
    Problem::new(Code::Unauthenticated, "there is no session; sign in, or ask for a link by rondel sign-in-link")
}

fn to_sign_in(uri: &Uri) -> Response {
    let wanted = uri.path_and_query().map_or("/", |path| path.as_str());
    to(&format!("/sign-in?{}", pair("next", wanted)))
}

/// On a response: who called, for the log line and the page of a problem.
#[derive(Clone, Debug)]
pub(crate) struct CalledBy {
    pub(crate) name: String,
    /// The namespace of the request, where it has one.
    pub(crate) namespace: Option<String>,
}

async fn authenticated(web: &Web, authorization: Option<String>) -> Result<Caller, Problem> {
    let engine = &web.engine;
    let token = authenticate(engine.store(), authorization.as_deref(), engine.now()).await?;
    token.map(Caller::from).ok_or_else(unauthenticated)
}

/// The caller with this `Authorization` header, if it is a good one and may.
pub(crate) async fn admit(web: &Web, permission: Permission, authorization: Option<String>) -> Result<Caller, Problem> {
    let caller = authenticated(web, authorization).await?;
    rate::count(web, caller.key()).map_err(|(problem, _)| problem)?;
    if caller.may(permission) { Ok(caller) } else { Err(forbidden(&caller)) }
}

pub(crate) fn unauthenticated() -> Problem {
    Problem::new(Code::Unauthenticated, "send a valid token as \"Authorization: Bearer …\"")
        .without_instance()
        .with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"rondel\""))
}

/// The header, taken out of the request before anything waits. Of two it would depend on the proxies in between which one counts.
pub(crate) fn authorization(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let first = values.next();
    let more = values.count();
    if more > 0 {
        let detail = format!("Authorization was sent {} times; send it once", more + 1);
        return Err(Problem::new(Code::InvalidHeader, detail).without_instance());
    }
    Ok(first.and_then(|value| value.to_str().ok()).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use rondel_admin::auth::Token;
    use rondel_core::Timestamp;
    use rondel_store::access::TokenRecord;

    use super::*;

    #[test]
    fn tokens_of_a_line_are_one_caller() {
        let caller = |id: i64, kind: TokenKind, line: i64| {
            let record = Token::generate_for(kind).record(id, kind, Timestamp::EPOCH);
            let token = TokenRecord { line: TokenId::new(line), ..record };
            Caller::from(Principal { token, owner: None, rights: Rights::new(Vec::new()) }).key()
        };
        assert_eq!(caller(2, TokenKind::Api, 1), caller(3, TokenKind::Api, 1));
        assert_ne!(caller(2, TokenKind::Api, 1), caller(3, TokenKind::Api, 3));
        assert_eq!(caller(2, TokenKind::Executor, 1), CallerKey::Executor(TokenId::new(2)), "executors share no bound");
    }
}

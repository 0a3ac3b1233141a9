//! Who is calling, and whether that caller may. The check comes before path, query and body are looked at, so that
//! nobody without a right can tell what exists from what does not.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Uri};
use rondel_admin::auth::{Principal, authenticate};
use rondel_core::NamespaceId;
use rondel_core::access::{Grant, Rights, Role};
use rondel_store::access::{Means, TokenKind};

use crate::app::Web;
use crate::problem::{Code, Problem};
use crate::redirect::{pair, to};
use crate::{cookies, origin};

pub use rondel_core::access::Permission;

/// Somebody whose token was good, or who signed in.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    name: String,
    means: Means,
    namespace: Option<NamespaceId>,
    pub(crate) rights: Rights,
}

impl From<Principal> for Caller {
    fn from(principal: Principal) -> Self {
        let Principal { token, rights, .. } = principal;
        let means = match token.kind {
            TokenKind::Api => Means::Token,
            TokenKind::Executor => Means::Executor,
        };
        Self { name: token.name, means, namespace: token.namespace, rights }
    }
}

impl Caller {
    /// Who starts the server.
    pub(crate) fn admin() -> Self {
        let rights = Rights::new(vec![Grant::everywhere(Role::Admin)]);
        Self { name: "admin".to_owned(), means: Means::Session, namespace: None, rights }
    }

    /// What changes are signed with.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The namespace that a request without one means; `None` stands for `default`.
    pub(crate) const fn namespace(&self) -> Option<NamespaceId> {
        self.namespace
    }

    /// Whether there is any place where it may. An executor's token is for opening sessions alone.
    fn may(&self, permission: Permission) -> bool {
        self.means != Means::Executor && self.rights.allow_somewhere(permission)
    }
}

/// On a request: who came through the gate, and what for.
#[derive(Clone, Debug)]
pub(crate) struct Admitted {
    pub(crate) caller: Caller,
    pub(crate) needs: Permission,
}

/// The gate of a route, with what that route asks for.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(crate) web: Web,
    pub(crate) permission: Permission,
}

/// Lets a request pass whose caller may.
pub(crate) async fn guard(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let authorization = authorization(request.headers());
    match admit(&gate.web, gate.permission, authorization).await {
        Ok(caller) => {
            let name = caller.name().to_owned();
            request.extensions_mut().insert(Admitted { caller, needs: gate.permission });
            let mut response = next.run(request).await;
            response.extensions_mut().insert(CalledBy(name));
            response
        }
        Err(problem) => problem.into_response(),
    }
}

/// Lets a request for a page pass whose session is good: others are sent to the page that says how to sign in.
pub(crate) async fn guard_page(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let is_safe = request.method().is_safe();
    if !is_safe && !origin::is_same(request.headers(), request.uri()) {
        return cross_origin().into_response();
    }
    let session = cookies::session(request.headers(), gate.web.config.tls);
    let Some(caller) = session.and_then(|session| gate.web.config.sign_ins.caller(session)) else {
        let is_whole = is_safe && !request.headers().contains_key("hx-request");
        return if is_whole { to_sign_in(request.uri()) } else { signed_out().into_response() };
    };
    if !caller.may(gate.permission) {
        return Problem::new(Code::Forbidden, "this sign-in does not allow it").into_response();
    }
    let name = caller.name().to_owned();
    request.extensions_mut().insert(Admitted { caller, needs: gate.permission });
    let mut response = next.run(request).await;
    response.extensions_mut().insert(CalledBy(name));
    response
}

/// The refusal of a change that another site asks for.
pub(crate) fn cross_origin() -> Problem {
    Problem::new(Code::CrossOrigin, "the request comes from another site; if a proxy is in between, it must keep Host")
}

/// The refusal of a page without a session.
pub(crate) fn signed_out() -> Problem {
    Problem::new(Code::Unauthenticated, "there is no session; rondel sign-in-link prints a link that begins one")
}

fn to_sign_in(uri: &Uri) -> Response {
    let wanted = uri.path_and_query().map_or("/", |path| path.as_str());
    to(&format!("/sign-in?{}", pair("next", wanted)))
}

/// On a response: who called, for the log line.
#[derive(Clone, Debug)]
pub(crate) struct CalledBy(pub(crate) String);

/// The caller with this `Authorization` header, if it is a good one and may.
pub(crate) async fn admit(web: &Web, permission: Permission, authorization: Option<String>) -> Result<Caller, Problem> {
    let engine = &web.engine;
    let token = authenticate(engine.store(), authorization.as_deref(), engine.now()).await?;
    let caller = token.map(Caller::from).ok_or_else(unauthenticated)?;
    if caller.may(permission) {
        Ok(caller)
    } else {
        Err(Problem::new(Code::Forbidden, "this token does not allow it: an executor's token opens sessions only")
            .without_instance())
    }
}

fn unauthenticated() -> Problem {
    Problem::new(Code::Unauthenticated, "send a valid token as \"Authorization: Bearer …\"")
        .without_instance()
        .with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"rondel\""))
}

/// The header, taken out of the request before anything waits.
pub(crate) fn authorization(headers: &HeaderMap) -> Option<String> {
    Some(headers.get(AUTHORIZATION)?.to_str().ok()?.to_owned())
}

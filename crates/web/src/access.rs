//! Who is calling, and whether that caller may. The check comes before path, query and body are looked at, so that
//! nobody without a right can tell what exists from what does not.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue};
use rondel_admin::auth::authenticate;
use rondel_core::NamespaceId;
use rondel_store::catalog::{TokenKind, TokenRecord};

use crate::app::Web;
use crate::problem::{Code, Problem};

/// What a route asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// To look.
    View,
    /// To start, cancel, pause and resume what others have defined.
    Operate,
    /// To define, change and delete.
    Edit,
    /// To see and change the cluster itself.
    Admin,
}

/// Somebody whose token was good.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    token: TokenRecord,
}

impl Caller {
    /// What changes are signed with.
    pub(crate) fn name(&self) -> &str {
        &self.token.name
    }

    /// The namespace that a request without one means; `None` stands for `default`.
    pub(crate) const fn namespace(&self) -> Option<NamespaceId> {
        self.token.namespace
    }

    /// Every right belongs to an admin's token, none to an executor's, which is for opening sessions alone.
    const fn may(&self, permission: Permission) -> bool {
        match (self.token.kind, permission) {
            (TokenKind::Admin, Permission::View | Permission::Operate | Permission::Edit | Permission::Admin) => true,
            (TokenKind::Executor, _) => false,
        }
    }
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
            request.extensions_mut().insert(caller);
            let mut response = next.run(request).await;
            response.extensions_mut().insert(CalledBy(name));
            response
        }
        Err(problem) => problem.into_response(),
    }
}

/// On a response: who called, for the log line.
#[derive(Clone, Debug)]
pub(crate) struct CalledBy(pub(crate) String);

/// The caller with this `Authorization` header, if it is a good one and may.
pub(crate) async fn admit(web: &Web, permission: Permission, authorization: Option<String>) -> Result<Caller, Problem> {
    let engine = &web.engine;
    let token = authenticate(engine.store(), authorization.as_deref(), engine.now()).await?;
    let caller = token.map(|token| Caller { token }).ok_or_else(unauthenticated)?;
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

//! The route table: each route with its access rule.

use http::Method;
use rondel_core::access::Permission;

/// The path of the metrics. Besides tokens with the permission, this path accepts a configured secret.
pub(crate) const METRICS_PATH: &str = "/metrics";

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Open to every caller, without a token.
    Open,
    /// Callers whose token has this permission.
    Needs(Permission),
    /// Users who are signed in to the console and have this permission.
    SignedIn(Permission),
}

#[derive(Clone, Debug)]
pub struct RouteInfo {
    pub method: Method,
    /// The path, with its parameters in braces.
    pub path: &'static str,
    /// Who may use it.
    pub access: Access,
}

/// How a route handles an `Idempotency-Key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUse {
    /// The call is made once, and its answer is stored.
    Stored,
    /// The request is refused, because answers of this route are not stored.
    Refused,
    /// The request changes nothing, so the key has no meaning.
    Ignored,
}

impl RouteInfo {
    /// How the route handles an `Idempotency-Key`. Answers with a secret that is shown only once must not be stored.
    pub(crate) fn key_use(&self) -> KeyUse {
        if self.method.is_safe() || is_read_only_post(self.path) {
            return KeyUse::Ignored;
        }
        match self.access {
            Access::Needs(Permission::SignedIn | Permission::Cluster) | Access::Open | Access::SignedIn(_) => {
                KeyUse::Refused
            }
            Access::Needs(_) if self.method == Method::POST => KeyUse::Stored,
            Access::Needs(_) => KeyUse::Refused,
        }
    }

    pub(crate) fn is_keyed(&self) -> bool {
        self.key_use() == KeyUse::Stored
    }
}

/// Whether a route only answers a question whose arguments are in the body. Such a `POST` changes nothing.
pub(crate) fn is_read_only_post(path: &str) -> bool {
    matches!(
        path,
        "/api/v1/schedules/preview" | "/api/v1/alert-rules/preview" | "/job-code" | "/job-params" | "/job-yaml"
    )
}

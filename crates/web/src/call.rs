//! What every endpoint of the API gets: who calls, in which namespace, and the query, each part of it read.

use axum::extract::FromRequestParts;
use http::request::Parts;
use rondel_admin::Engine;
use rondel_core::name;
use rondel_store::catalog::Namespace;

use crate::access::Caller;
use crate::app::Web;
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};

const DEFAULT_NAMESPACE: &str = "default";

/// A call of an endpoint, with its query as `Q`; `()` is a query with nothing but a namespace in it.
#[derive(Debug)]
pub(crate) struct Call<Q = ()> {
    pub(crate) web: Web,
    pub(crate) caller: Caller,
    pub(crate) namespace: Namespace,
    pub(crate) query: Q,
    /// Whether the query named the namespace: then links back name it too.
    is_explicit: bool,
}

impl<Q> Call<Q> {
    pub(crate) const fn engine(&self) -> &Engine {
        &self.web.engine
    }

    /// `path` as a link that means the same namespace.
    pub(crate) fn link(&self, path: &str) -> String {
        if self.is_explicit { format!("{path}?namespace={}", self.namespace.name) } else { path.to_owned() }
    }
}

impl<Q: FromQuery + Send> FromRequestParts<Web> for Call<Q> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, web: &Web) -> Result<Self, Problem> {
        let caller = parts.extensions.get::<Caller>().cloned().ok_or_else(|| {
            Problem::new(Code::Internal, "the log of the server has the cause under this request id")
                .with_cause("a route of the API has no gate".to_owned())
        })?;
        let mut reader = Reader::new(&parts.uri);
        let named = reader.one("namespace");
        let query = Q::from_query(&mut reader);
        reader.finish()?;
        let namespace = match &named {
            Some(name) => namespace_by_name(&web.engine, name).await?,
            None => namespace_of_caller(&web.engine, &caller).await?,
        };
        Ok(Self { web: web.clone(), caller, namespace, query, is_explicit: named.is_some() })
    }
}

/// The namespace with this name.
pub(crate) async fn namespace_by_name(engine: &Engine, wanted: &str) -> Result<Namespace, Problem> {
    // What cannot be a name is not looked up: no text of the caller's reaches the database unchecked.
    let found = if name::check(wanted).is_ok() { engine.store().namespace(wanted).await? } else { None };
    found.ok_or_else(|| Problem::new(Code::NamespaceNotFound, format!("there is no namespace {}", quoted(wanted))))
}

async fn namespace_of_caller(engine: &Engine, caller: &Caller) -> Result<Namespace, Problem> {
    let Some(id) = caller.namespace() else { return namespace_by_name(engine, DEFAULT_NAMESPACE).await };
    let all = engine.store().namespaces().await?;
    let found = all.into_iter().find(|namespace| namespace.id == id);
    found.ok_or_else(|| Problem::new(Code::NamespaceNotFound, "the namespace of this token does not exist any more"))
}

/// A text of the caller's for a sentence: in quotes, cut, without control characters.
pub(crate) fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(name::NAME_LEN_MAX).collect();
    format!("{cut:?}")
}

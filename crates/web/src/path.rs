//! The extractor for the name or id in a path. It is generic over the kind of object.

use std::marker::PhantomData;

use axum::extract::{FromRequestParts, Path};
use http::request::Parts;
use rondel_core::schema::ACCOUNT_PATTERN;

use crate::openapi::{HandlerInputs, Input};
use crate::parameter::Parameter;
use crate::problem::{Code, Problem};

/// A kind of object that a path can name.
pub(crate) trait Noun {
    const PARAMETER: Parameter;
    /// The code of the answer if the object does not exist.
    const MISSING_CODE: Code;
}

macro_rules! nouns {
    ($($noun:ident: $parameter:expr, $about:literal, $missing:ident;)+) => {$(
        #[derive(Debug)]
        pub(crate) enum $noun {}

        impl Noun for $noun {
            const PARAMETER: Parameter = $parameter.about($about);
            const MISSING_CODE: Code = Code::$missing;
        }
    )+};
}

nouns! {
    AlertRule: Parameter::name("name"), "The rule.", AlertRuleNotFound;
    App: Parameter::name("app"), "The app.", AppNotFound;
    Calendar: Parameter::name("name"), "The calendar.", CalendarNotFound;
    Channel: Parameter::name("name"), "The channel.", ChannelNotFound;
    Executor: Parameter::name("name"), "The executor.", NotFound;
    Incident: Parameter::id("id"), "The incident.", IncidentNotFound;
    Job: Parameter::name("name"), "The job.", JobNotFound;
    Namespace: Parameter::name("name"), "The namespace.", NamespaceNotFound;
    Node: Parameter::name("name"), "The server.", NodeNotFound;
    Run: Parameter::id("id"), "The run.", RunNotFound;
    Maintenance: Parameter::id("id"), "The maintenance window.", MaintenanceNotFound;
    Script: Parameter::name("name"), "The script.", ScriptNotFound;
    Silence: Parameter::id("id"), "The silence.", SilenceNotFound;
    SignIn: Parameter::id("id"), "The sign-in.", SessionNotFound;
    Token: Parameter::id("id"), "The token.", TokenNotFound;
    User: Parameter::pattern("user", ACCOUNT_PATTERN), "The user.", UserNotFound;
}

/// The name or the id in a path, as text.
#[derive(Debug)]
pub(crate) struct Named<N>(pub(crate) String, pub(crate) PhantomData<fn() -> N>);

impl<N: Noun> Input for Named<N> {
    fn describe(inputs: &mut HandlerInputs) {
        inputs.path.push(N::PARAMETER);
        inputs.refusals.push(N::MISSING_CODE);
    }
}

impl<N: Noun, S: Send + Sync> FromRequestParts<S> for Named<N> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = Path::<String>::from_request_parts(parts, state).await.ok().map(|Path(text)| text);
        // PostgreSQL does not accept NUL in a text.
        let Some(text) = text.filter(|text| !text.contains('\0')) else {
            let noun = if N::PARAMETER.name == "id" { "id" } else { "name" };
            return Err(Problem::new(N::MISSING_CODE, format!("the path has no readable {noun}")));
        };
        Ok(Self(text, PhantomData))
    }
}

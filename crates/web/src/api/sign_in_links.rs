//! Creates links that sign the owner of a token in to the console.

use axum::response::Response;
use http::StatusCode;
use rondel_admin::sign_in::{self, LINK_LIFETIME, SignInOwner};
use rondel_core::Timestamp;
use rondel_core::access::Permission::SignedIn;
use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::json_response;
use crate::call::GlobalCall;
use crate::openapi::Doc;
use crate::problem::{Code, Problem};
use crate::routes::Routes;

/// A link that signs in once.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SignInLink")]
pub(super) struct LinkJson {
    /// The path of the link, to be appended to the server's URL.
    pub(super) path: String,
    pub(super) expires_at: Timestamp,
}

pub(super) fn routes() -> Routes {
    Routes::new().post(
        "/api/v1/sign-in-links",
        SignedIn,
        create,
        Doc::new(
            "Create a sign-in link to the console",
            "The link signs a browser in with the rights of the token, once, within 15 minutes.",
        )
        .json::<LinkJson>(201, "The link."),
    )
}

/// Creates a link that works once. The session acts as the caller with the rights of the token, and ends when the token ends.
async fn create(call: GlobalCall) -> Result<Response, Problem> {
    let token = call.caller.token.ok_or_else(|| Problem::new(Code::Forbidden, "only a token can create links"))?;
    let now = call.engine().now();
    let secret = sign_in::create_link(call.engine().store(), SignInOwner::Token(token), now).await?;
    call.note.changed_to(&serde_json::json!({"expires_at": now + LINK_LIFETIME}));
    let path = format!("/sign-in?token={}", secret.reveal());
    json_response(StatusCode::CREATED, &LinkJson { path, expires_at: now + LINK_LIFETIME })
}

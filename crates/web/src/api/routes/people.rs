//! People, what they and programs come in by, and what was done.

use serde_json::json;

use crate::access::Permission::{Cluster, Own};
use crate::api::{Page, audit, me, sign_in_links, tokens, users};
use crate::openapi::Doc;
use crate::problem::Code;
use crate::routes::Routes;

pub(super) fn routes() -> Routes {
    oneself().and(of_tokens()).and(of_users())
}

fn oneself() -> Routes {
    Routes::new()
        .get(
            "/api/v1/me",
            Own,
            me::get,
            Doc::new("Get the caller", "With its roles.").json::<me::MeJson<'static>>(200, "The caller."),
        )
        .get(
            "/api/v1/sessions",
            Own,
            me::sessions,
            Doc::new("List one's own sign-ins", "Where one is signed in to the console.")
                .json::<Page<me::SessionJson>>(200, "The sign-ins."),
        )
        .delete(
            "/api/v1/sessions/{id}",
            Own,
            me::end_session,
            Doc::new("End one of one's own sign-ins", "At once.").empty("It is over."),
        )
        .post(
            "/api/v1/sign-in-links",
            Own,
            sign_in_links::create,
            Doc::new(
                "Make a link into the console",
                "It signs a browser in with the rights of the token, once, within 15 minutes.",
            )
            .json::<sign_in_links::LinkJson>(201, "The link."),
        )
}

fn of_tokens() -> Routes {
    Routes::new()
        .get(
            "/api/v1/tokens",
            Own,
            tokens::list,
            Doc::new("List tokens", "One's own, newest first, without their secrets.")
                .json::<Page<tokens::TokenJson>>(200, "A page of tokens."),
        )
        .post(
            "/api/v1/tokens",
            Own,
            tokens::create,
            Doc::new(
                "Create a token",
                "Of the API, which can do no more than its creator; or of executors of some apps. It ends with the token that makes it.",
            )
            .json::<tokens::TokenJson>(201, "The token, with `token`, which is shown this once.")
            .refuses(&[Code::NamespaceNotFound, Code::TooManyTokens])
            .example(json!({"kind": "api", "name": "deploy", "grants": [{"role": "viewer"}], "expires_in": "30d"})),
        )
        .delete(
            "/api/v1/tokens/{id}",
            Own,
            tokens::revoke,
            Doc::new(
                "Revoke a token",
                "It works no more, and all that it made ends with it: tokens, sign-ins, links. To revoke one twice is no fault.",
            )
            .empty("It is revoked."),
        )
        .post(
            "/api/v1/tokens/{id}/rotate",
            Own,
            tokens::rotate,
            Doc::new(
                "Replace a token's secret",
                "The old one works on for `overlap`, and no longer than it would have. What it made belongs to the new one.",
            )
            .json::<tokens::TokenJson>(201, "The new token, with `token`, which is shown this once.")
            .refuses(&[Code::TokenOver, Code::TooManyTokens])
            .example(json!({"overlap": "24h"})),
        )
}

fn of_users() -> Routes {
    Routes::new()
        .get(
            "/api/v1/users",
            Cluster,
            users::list,
            Doc::new("List users", "By name, with their roles.").json::<Page<users::UserJson>>(200, "A page of users."),
        )
        .post(
            "/api/v1/users",
            Cluster,
            users::create,
            Doc::new("Create a user", "Without a password, the user comes in by a link and sets it.")
                .json::<users::UserJson>(201, "The user.")
                .refuses(&[Code::UserExists])
                .example(json!({"name": "ann@example.com", "grants": [{"role": "operator", "namespace": "default"}]})),
        )
        .get(
            "/api/v1/users/{user}",
            Cluster,
            users::get,
            Doc::new("Get a user", "With the user's roles.").json::<users::UserJson>(200, "The user."),
        )
        .patch(
            "/api/v1/users/{user}",
            Cluster,
            users::change,
            Doc::new(
                "Change a user",
                "What is left out stays. New roles, and locking out, end the user's sign-ins at once.",
            )
            .json::<users::UserJson>(200, "The user.")
            .refuses(&[Code::LastAdmin])
            .example(json!({"disabled": true})),
        )
        .delete(
            "/api/v1/users/{user}",
            Cluster,
            users::delete,
            Doc::new("Delete a user", "With the user's tokens and sign-ins.")
                .empty("The user is deleted.")
                .refuses(&[Code::LastAdmin]),
        )
        .post(
            "/api/v1/users/{user}/password",
            Cluster,
            users::set_password,
            Doc::new(
                "Set a user's password",
                "The user's sign-ins end, and the tokens with all that they made, unless `keep_tokens` is true. Not of oneself.",
            )
                .empty("It is set.")
                .example(json!({"password": "correct horse battery"})),
        )
        .post(
            "/api/v1/users/{user}/sign-in-link",
            Cluster,
            users::link,
            Doc::new("Make a link for a user", "It signs in as the user, once, within 15 minutes.")
                .json::<sign_in_links::LinkJson>(201, "The link."),
        )
        .get(
            "/api/v1/audit",
            Cluster,
            audit::list,
            Doc::new(
                "Read the audit log",
                "Newest first. With `Accept: application/x-ndjson`, all of it as JSON lines.",
            )
            .json::<Page<audit::EntryJson<'static>>>(200, "A page of entries.")
            .text("application/x-ndjson"),
        )
}

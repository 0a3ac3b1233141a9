//! Users: who can sign in, with which roles; for users who may do everything.

use askama::Template;
use axum::response::Response;
use http::StatusCode;

use super::account::{line, lines};
use super::form::Fields;
use super::prefs::Prefs;
use super::shell::{Asked, Nav, Plain, Shell, User, html};
use super::texts::Texts;
use crate::api::users::{self, ChangeUser, NewPassword, NewUser, UserJson};
use crate::call::Person;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::redirect::to;

/// How many users the page shows.
const COUNT: u32 = 500;

#[derive(Template)]
#[template(path = "users.html")]
struct UsersPage {
    shell: Shell,
    t: &'static Texts,
    rows: Vec<UserRow>,
    error: Option<String>,
    /// A link for a user, made just now.
    link: Option<String>,
}

struct UserRow {
    name: String,
    display_name: String,
    disabled: bool,
    has_password: bool,
    grants: String,
    /// Whether it is the account of the caller, whose password is set on the page of the account.
    is_own: bool,
}

type Visitor = Person<Asked<Plain>>;

pub(super) async fn page(visitor: Visitor, prefs: Prefs) -> Result<Response, Problem> {
    show(&visitor, prefs, StatusCode::OK, (None, None)).await
}

async fn show(
    visitor: &Visitor,
    prefs: Prefs,
    status: StatusCode,
    (error, link): (Option<String>, Option<String>),
) -> Result<Response, Problem> {
    let shell = Shell::new(prefs, Nav::None, Some(User::of_person(visitor).await), "/users");
    let row = |user: UserJson| UserRow {
        is_own: Some(user.id) == visitor.caller.account,
        grants: user.grants.iter().map(line).collect::<Vec<_>>().join("\n"),
        name: user.name,
        display_name: user.display_name,
        disabled: user.disabled,
        has_password: user.has_password,
    };
    let rows = users::page(visitor, None, COUNT).await?.into_iter().map(row).collect();
    html(status, &UsersPage { t: shell.t, shell, rows, error, link })
}

/// Goes back to the list, or shows what was wrong in it.
async fn answered(visitor: &Visitor, prefs: Prefs, outcome: Result<(), Problem>) -> Result<Response, Problem> {
    match outcome {
        Ok(()) => Ok(to("/users")),
        Err(problem) if matches!(problem.code(), Code::Internal | Code::Unavailable | Code::UserNotFound) => {
            Err(problem)
        }
        Err(problem) => {
            let status = StatusCode::from_u16(problem.code().status()).unwrap_or(StatusCode::UNPROCESSABLE_ENTITY);
            show(visitor, prefs, status, (Some(problem.detail().to_owned()), None)).await
        }
    }
}

pub(super) async fn create(visitor: Visitor, prefs: Prefs, fields: Fields) -> Result<Response, Problem> {
    let text = |name: &str| Some(fields.get(name).to_owned()).filter(|text| !text.is_empty());
    let outcome = match lines(fields.get("grants")) {
        Err(problem) => Err(problem),
        Ok(grants) => {
            let password = Some(fields.raw("password").to_owned()).filter(|text| !text.is_empty());
            let name = fields.get("name").to_owned();
            let new = NewUser { name, display_name: text("display_name"), password, grants };
            users::make(&visitor, new).await.map(drop)
        }
    };
    answered(&visitor, prefs, outcome).await
}

pub(super) async fn change(
    visitor: Visitor,
    prefs: Prefs,
    Named(name, ..): Named<path::User>,
    fields: Fields,
) -> Result<Response, Problem> {
    // What the form does not have stays as it is.
    let outcome = match fields.sent("grants").map(lines).transpose() {
        Err(problem) => Err(problem),
        Ok(grants) => {
            let disabled = fields.sent("disabled").map(|sent| sent == "1");
            let change = ChangeUser { display_name: None, disabled, grants, provider_sign_in: None };
            users::apply(&visitor, &name, change).await.map(drop)
        }
    };
    answered(&visitor, prefs, outcome).await
}

pub(super) async fn delete(
    visitor: Visitor,
    prefs: Prefs,
    Named(name, ..): Named<path::User>,
) -> Result<Response, Problem> {
    let outcome = users::remove(&visitor, &name).await;
    answered(&visitor, prefs, outcome).await
}

/// Sets the password of another user.
pub(super) async fn password(
    visitor: Visitor,
    prefs: Prefs,
    Named(name, ..): Named<path::User>,
    fields: Fields,
) -> Result<Response, Problem> {
    let keep_tokens = fields.get("keep_tokens") == "1";
    let new = NewPassword { password: fields.raw("password").to_owned(), keep_tokens };
    let outcome = users::reset_password(&visitor, &name, new).await;
    answered(&visitor, prefs, outcome).await
}

/// A link that signs a user in; shown once.
pub(super) async fn link(
    visitor: Visitor,
    prefs: Prefs,
    Named(name, ..): Named<path::User>,
) -> Result<Response, Problem> {
    match users::new_link(&visitor, &name).await {
        Ok((path, _)) => show(&visitor, prefs, StatusCode::OK, (None, Some(path))).await,
        Err(problem) => answered(&visitor, prefs, Err(problem)).await,
    }
}

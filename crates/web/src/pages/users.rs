//! The page of users and their roles, for admins of the cluster.

use askama::Template;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use rondel_core::name;
use serde_json::json;

use super::account::grant_line;
use super::as_code::{AsCode, shell_quoted};
use super::form::Fields;
use super::grants_form::{
    GrantChoices, GrantPicker, GrantRow, grant_text, mark_wrong_rows, rows_of_grants, sent_grants, sent_rows,
};
use super::prefs::Prefs;
use super::sentences::localized;
use super::shell::{Nav, Shell, User, WithLang, html};
use super::texts::Texts;
use crate::api::users::{self, NewPassword, NewUser, UserChange, UserJson};
use crate::call::GlobalCall;
use crate::cursor::{CursorQuery, Listing, cut_to_page};
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::redirect::{percent_encode, query_pair, redirect_to};

/// How many users a page shows.
const PAGE_USER_COUNT: u32 = 200;

#[derive(Template)]
#[template(path = "users.html")]
struct UsersPage {
    shell: Shell,
    t: &'static Texts,
    rows: Vec<UserRow>,
    next_url: Option<String>,
    is_first: bool,
    /// The query of this page, for its forms; empty on the first page.
    query: String,
    /// The form of a new user, with the input so far.
    new_form: NewForm,
    error: Option<FormError>,
    /// A link for a user who was just created.
    link: Option<String>,
    /// The API request and the command that list users.
    code: AsCode,
    /// The API request and the command that create a user, with an example of a role.
    new_code: AsCode,
}

struct UserRow {
    name: String,
    display_name: String,
    is_disabled: bool,
    has_password: bool,
    grants: Vec<String>,
    /// Whether it is the caller's own account. Its password is set on another page.
    is_own: bool,
    picker: GrantPicker,
    /// The roles and the lock that the page shows. The form returns them, so that a save detects that they have changed since.
    shown_state: String,
    /// Whether its form is open, because it has an error.
    is_open: bool,
    /// The API request and the command that set the user's current roles, and whether the user is disabled.
    code: AsCode,
}

struct NewForm {
    name: String,
    display_name: String,
    picker: GrantPicker,
}

/// An error in a form, and the field to which it belongs.
struct FormError {
    field: &'static str,
    message: String,
    /// The engine's message, if the page has no message for this error.
    detail: Option<String>,
}

/// The state of the page: the outcome of its form, and the fields as the user typed them.
#[derive(Default)]
struct PageState {
    problem: Option<Problem>,
    link: Option<String>,
    /// The refused input: of the user `user_name`, or of a new user.
    fields: Option<Fields>,
    user_name: Option<String>,
}

type PageCall = GlobalCall<WithLang<CursorQuery>>;

/// The query that leads back to this page; empty for the first page.
fn query_of(call: &PageCall) -> String {
    call.query.0.0.as_deref().map_or_else(String::new, |cursor| format!("?{}", query_pair("cursor", cursor)))
}

/// The users on this page, and the URL of the next page.
async fn read_page(call: &PageCall) -> Result<(Vec<UserJson>, Option<String>), Problem> {
    let listing = Listing::new("users page", ());
    let after_name = listing.name_after(call.query.0.0.as_deref(), name::check_account)?;
    let mut accounts = users::page(call, after_name.as_deref(), PAGE_USER_COUNT + 1).await?;
    let last_account = cut_to_page(&mut accounts, PAGE_USER_COUNT);
    let next_url = last_account.map(|last| format!("/users?{}", query_pair("cursor", &listing.cursor(&last.name))));
    Ok((accounts, next_url))
}

pub(super) async fn page(call: PageCall, prefs: Prefs) -> Result<Response, Problem> {
    render_page(&call, prefs, StatusCode::OK, PageState::default()).await
}

async fn render_page(call: &PageCall, prefs: Prefs, status: StatusCode, state: PageState) -> Result<Response, Problem> {
    let query = query_of(call);
    let page_url = format!("/users{query}");
    let shell = Shell::new(prefs, Nav::Settings, Some(User::of_global_call(call).await), &page_url);
    let t = shell.t;
    let choices = GrantChoices::read(call, t).await?.for_users();
    let mut sent_grant_rows = state.fields.as_ref().and_then(sent_rows).unwrap_or_default();
    let is_marked = state.problem.as_ref().is_some_and(|problem| mark_wrong_rows(&mut sent_grant_rows, problem));
    let typed_text = |field: &str| state.fields.as_ref().map(|fields| fields.get(field).to_owned()).unwrap_or_default();
    let is_new = state.user_name.is_none();
    let row = |user: UserJson| {
        let is_open = state.user_name.as_ref() == Some(&user.name);
        let rows =
            if is_open && !sent_grant_rows.is_empty() { sent_grant_rows.clone() } else { rows_of_grants(&user.grants) };
        UserRow {
            code: change_code(&user),
            shown_state: state_text(&user),
            is_own: Some(user.id) == call.caller.account,
            grants: user.grants.iter().map(|grant| grant_text(grant, t)).collect(),
            picker: choices.picker(rows),
            name: user.name,
            display_name: user.display_name,
            is_disabled: user.disabled,
            has_password: user.has_password,
            is_open,
        }
    };
    let (accounts, next_url) = read_page(call).await?;
    let rows = accounts.into_iter().map(row).collect();
    let new_rows = if is_new { sent_grant_rows.clone() } else { Vec::new() };
    let new_rows = if new_rows.is_empty() { vec![GrantRow::default()] } else { new_rows };
    let template = UsersPage {
        t,
        rows,
        next_url,
        is_first: query.is_empty(),
        query,
        new_form: NewForm {
            name: if is_new { typed_text("name") } else { String::new() },
            display_name: if is_new { typed_text("display_name") } else { String::new() },
            picker: choices.picker(new_rows),
        },
        error: state.problem.map(|problem| error_of_problem(&problem, is_marked, t)),
        link: state.link,
        shell,
        code: AsCode::without_namespace(("GET", "/api/v1/users"), None, "user list --all"),
        new_code: create_code(),
    };
    html(status, &template)
}

/// The name in the example of a new user.
const EXAMPLE_NAME: &str = "maria";

/// The API request and the command that create a user.
fn create_code() -> AsCode {
    let body = json!({"name": EXAMPLE_NAME, "grants": [{"role": "operator", "namespace": "default"}]});
    let command = format!("user create {EXAMPLE_NAME} --role operator:default");
    AsCode::without_namespace(("POST", "/api/v1/users"), Some(&body), &command)
}

/// The API request and the command that set the roles of a user, and whether the user is disabled, with the current values.
fn change_code(user: &UserJson) -> AsCode {
    let body = json!({"grants": user.grants, "disabled": user.disabled});
    let mut command = format!("user change {}", shell_quoted(&user.name));
    for grant in &user.grants {
        let scope_path = [&grant.namespace, &grant.app].into_iter().flatten().map(String::as_str).collect::<Vec<_>>();
        let scope_path = if scope_path.is_empty() { String::new() } else { format!(":{}", scope_path.join("/")) };
        command.push_str(&format!(" --role {}", shell_quoted(&format!("{}{scope_path}", grant.role))));
    }
    command.push_str(if user.disabled { " --disable" } else { " --enable" });
    AsCode::without_namespace(
        ("PATCH", &format!("/api/v1/users/{}", percent_encode(&user.name))),
        Some(&body),
        &command,
    )
}

/// The roles of a user, and whether the user is locked, in one line.
fn state_text(user: &UserJson) -> String {
    let lock_word = if user.disabled { "locked" } else { "unlocked" };
    std::iter::once(lock_word.to_owned()).chain(user.grants.iter().map(grant_line)).collect::<Vec<_>>().join(",")
}

/// Refuses a form whose page showed other roles or another lock than the user has now: saving it would undo the change of another caller.
async fn check_shown_state(call: &PageCall, name: &str, fields: &Fields) -> Result<(), Problem> {
    let Some(shown_state) = fields.get_if_sent("shown") else { return Ok(()) };
    let user = users::user_json(call, &users::find(call, name).await?).await?;
    if shown_state == state_text(&user) {
        return Ok(());
    }
    Err(Problem::new(Code::VersionMismatch, format!("user {name} was changed in the meantime")))
}

/// The error of a problem, in the words of this page.
fn error_of_problem(problem: &Problem, is_marked: bool, t: &Texts) -> FormError {
    let pointer = problem.complaints().first().and_then(|complaint| complaint.pointer.clone()).unwrap_or_default();
    let (field, message) = match (problem.code(), pointer.as_str()) {
        _ if is_marked => ("grants", t.user_error_grants),
        (Code::UserExists, _) => ("name", t.user_error_taken),
        (Code::LastAdmin, _) => ("form", t.user_error_last),
        (Code::VersionMismatch, _) => ("form", t.user_error_changed),
        (_, "/name") => ("name", t.user_error_name),
        (_, "/password") => ("password", t.user_error_password),
        (_, "/display_name") => ("display_name", t.user_error_display),
        (_, pointer) if pointer.starts_with("/grants") => ("grants", t.user_error_grants),
        _ => ("form", t.user_error_other),
    };
    let detail = (field == "form" && !matches!(problem.code(), Code::LastAdmin | Code::VersionMismatch))
        .then(|| localized(t.lang(), problem.detail()).into_owned());
    FormError { field, message: message.to_owned(), detail }
}

/// Redirects to the list or, after an error, shows the list with the error.
async fn respond(
    call: &PageCall,
    prefs: Prefs,
    outcome: Result<(), Problem>,
    (fields, user_name): (Option<Fields>, Option<String>),
) -> Result<Response, Problem> {
    match outcome {
        Ok(()) => Ok(redirect_to(&format!("/users{}", query_of(call)))),
        Err(problem) if matches!(problem.code(), Code::Internal | Code::Unavailable | Code::UserNotFound) => {
            Err(problem)
        }
        Err(problem) => {
            let status = StatusCode::from_u16(problem.code().status()).unwrap_or(StatusCode::UNPROCESSABLE_ENTITY);
            render_page(call, prefs, status, PageState { problem: Some(problem), link: None, fields, user_name }).await
        }
    }
}

/// Creates a user. An invited user has no password and gets a link to sign in, which is shown only once.
pub(super) async fn create(
    call: PageCall,
    prefs: Prefs,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, Problem> {
    let text = |name: &str| Some(fields.get(name).to_owned()).filter(|text| !text.is_empty());
    let is_invited = fields.get("do") == "invite";
    let outcome = match sent_grants(&fields) {
        Err(problem) => Err(problem),
        Ok(grants) => {
            let password = Some(fields.raw("password").to_owned()).filter(|text| !text.is_empty() && !is_invited);
            let name = fields.get("name").to_owned();
            let new_user =
                NewUser { name, display_name: text("display_name"), password, grants: grants.unwrap_or_default() };
            users::create_user(&call, new_user).await.map(drop)
        }
    };
    if is_invited && outcome.is_ok() {
        return render_new_link(&call, prefs, &headers, fields.get("name")).await;
    }
    respond(&call, prefs, outcome, (Some(fields), None)).await
}

pub(super) async fn change(
    call: PageCall,
    prefs: Prefs,
    Named(name, ..): Named<path::User>,
    fields: Fields,
) -> Result<Response, Problem> {
    // Values that the form does not have remain unchanged.
    let outcome = match check_shown_state(&call, &name, &fields).await.and_then(|()| sent_grants(&fields)) {
        Err(problem) => Err(problem),
        Ok(grants) => {
            let is_disabled = fields.get_if_sent("disabled").map(|sent| sent == "1");
            let user_change = UserChange { display_name: None, disabled: is_disabled, grants, provider_sign_in: None };
            users::apply_change(&call, &name, user_change).await.map(drop)
        }
    };
    respond(&call, prefs, outcome, (Some(fields), Some(name))).await
}

pub(super) async fn delete(
    call: PageCall,
    prefs: Prefs,
    Named(name, ..): Named<path::User>,
) -> Result<Response, Problem> {
    let outcome = users::remove(&call, &name).await;
    respond(&call, prefs, outcome, (None, Some(name))).await
}

/// Sets the password of another user.
pub(super) async fn password(
    call: PageCall,
    prefs: Prefs,
    Named(name, ..): Named<path::User>,
    fields: Fields,
) -> Result<Response, Problem> {
    let keep_tokens = fields.get("keep_tokens") == "1";
    let new_password = NewPassword { password: fields.raw("password").to_owned(), keep_tokens };
    let outcome = users::reset_password(&call, &name, new_password).await;
    respond(&call, prefs, outcome, (None, Some(name))).await
}

/// Creates a link that signs a user in. It is shown only once.
pub(super) async fn link(
    call: PageCall,
    prefs: Prefs,
    headers: HeaderMap,
    Named(name, ..): Named<path::User>,
) -> Result<Response, Problem> {
    render_new_link(&call, prefs, &headers, &name).await
}

async fn render_new_link(call: &PageCall, prefs: Prefs, headers: &HeaderMap, name: &str) -> Result<Response, Problem> {
    match users::create_sign_in_link(call, name).await {
        Ok((path, _)) => {
            let host = headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
            let scheme = if call.web.config.tls { "https" } else { "http" };
            let link = host.map_or_else(|| path.clone(), |host| format!("{scheme}://{host}{path}"));
            let state = PageState { link: Some(link), ..PageState::default() };
            render_page(call, prefs, StatusCode::OK, state).await
        }
        Err(problem) => respond(call, prefs, Err(problem), (None, Some(name.to_owned()))).await,
    }
}

//! Users: who can sign in, and with which roles.

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use rondel_admin::sign_in::{self, LINK_LIFETIME, SignInOwner};
use rondel_admin::{accounts, passwords};
use rondel_core::access::Permission::Cluster;
use rondel_core::schema::ACCOUNT_PATTERN;
use rondel_core::{AccountId, Timestamp, name, plain};
use rondel_store::access::{Account, AccountChange, AccountChanged, KeptAccess, PasswordHash, ProviderLink};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::page::{Page, PageQuery};
use super::sign_in_links::LinkJson;
use crate::answer::json_response;
use crate::body::{JsonBody, refuse_value};
use crate::call::{GlobalCall, quoted_input};
use crate::cursor::{Listing, cut_to_page};
use crate::grants::{GrantJson, GrantNames, resolve_grants_of_user};
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::read_again::read_again;
use crate::routes::Routes;
use crate::state::Web;

/// Maximum length of a display name, in characters.
const DISPLAY_NAME_LEN_MAX: usize = 100;

/// A user as the API shows it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "User")]
pub(crate) struct UserJson {
    pub(crate) id: AccountId,
    pub(crate) name: String,
    pub(crate) display_name: String,
    pub(crate) disabled: bool,
    /// Whether the user can sign in by a password.
    pub(crate) has_password: bool,
    /// Whether the user can sign in through the provider of sign-ins; with a password, only after an administrator has allowed it.
    provider_sign_in: bool,
    pub(crate) grants: Vec<GrantJson>,
    created_at: Timestamp,
    password_changed_at: Option<Timestamp>,
}

impl UserJson {
    fn new(account: &Account, names: &GrantNames) -> Self {
        Self {
            id: account.id,
            name: account.name.clone(),
            display_name: account.display_name.clone(),
            disabled: account.disabled,
            has_password: account.password.is_some(),
            provider_sign_in: account.password.is_none() || account.provider_linked_at.is_some(),
            grants: names.to_json(&account.grants),
            created_at: account.created_at,
            password_changed_at: account.password_changed_at,
        }
    }
}

/// A user to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewUser {
    /// An email address, or a shorter name.
    #[schemars(regex(pattern = ACCOUNT_PATTERN))]
    pub(crate) name: String,
    /// The name that is shown; the user name if left out.
    #[serde(default)]
    #[schemars(length(max = 100))]
    pub(crate) display_name: Option<String>,
    /// If left out, the user signs in by a one-time link and sets a password.
    #[serde(default)]
    pub(crate) password: Option<String>,
    #[serde(default)]
    pub(crate) grants: Vec<GrantJson>,
}

/// The fields to change; others stay as they are.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "UserChange")]
pub(crate) struct UserChange {
    #[serde(default)]
    pub(crate) display_name: Option<String>,
    #[serde(default)]
    pub(crate) disabled: Option<bool>,
    #[serde(default)]
    pub(crate) grants: Option<Vec<GrantJson>>,
    /// Whether the user can sign in through the provider of sign-ins despite having a password.
    #[serde(default)]
    pub(crate) provider_sign_in: Option<bool>,
}

/// A new password.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewPassword {
    pub(crate) password: String,
    /// Whether the user's tokens stay valid. If not, all of them are revoked, with everything that they created.
    #[serde(default)]
    pub(crate) keep_tokens: bool,
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/users",
            Cluster,
            list,
            Doc::new("List users", "By name, with their roles.").json::<Page<UserJson>>(200, "A page of users."),
        )
        .post(
            "/api/v1/users",
            Cluster,
            create,
            Doc::new("Create a user", "Without a password, the user signs in by a one-time link and sets one.")
                .json::<UserJson>(201, "The user.")
                .refuses(&[Code::UserExists])
                .example(json!({"name": "ann@example.com", "grants": [{"role": "operator", "namespace": "default"}]})),
        )
        .get(
            "/api/v1/users/{user}",
            Cluster,
            get,
            Doc::new("Get a user", "The user with all roles.").json::<UserJson>(200, "The user."),
        )
        .patch(
            "/api/v1/users/{user}",
            Cluster,
            change,
            Doc::new(
                "Change a user",
                "Fields that are left out do not change. Changing the roles or locking the user out ends the user's sign-ins \
                 immediately.",
            )
            .json::<UserJson>(200, "The user.")
            .refuses(&[Code::LastAdmin])
            .example(json!({"disabled": true})),
        )
        .delete(
            "/api/v1/users/{user}",
            Cluster,
            delete,
            Doc::new("Delete a user", "Also deletes the user's tokens and sign-ins.")
                .empty("The user is deleted.")
                .refuses(&[Code::LastAdmin]),
        )
        .post(
            "/api/v1/users/{user}/password",
            Cluster,
            set_password,
            Doc::new(
                "Set a user's password",
                "Ends the user's sign-ins, and revokes the user's tokens with everything that they created, unless `keep_tokens` is true. \
                 Callers cannot set their own password here.",
            )
                .empty("The password was set.")
                .example(json!({"password": "correct horse battery"})),
        )
        .post(
            "/api/v1/users/{user}/sign-in-link",
            Cluster,
            link,
            Doc::new("Create a sign-in link for a user", "The link signs in as the user, once, within 15 minutes.")
                .json::<LinkJson>(201, "The link."),
        )
}

async fn list(call: GlobalCall<PageQuery>) -> Result<Response, Problem> {
    let listing = Listing::new("users", ());
    let after_name = listing.name_after(call.query.cursor.as_deref(), name::check_account)?;
    let limit = call.query.limit;
    let mut items = page(&call, after_name.as_deref(), limit + 1).await?;
    let next_cursor = cut_to_page(&mut items, limit).map(|last| listing.cursor(&last.name));
    json_response(StatusCode::OK, &Page { items, next_cursor })
}

/// A page of users in the order of their names, as the API shows them.
pub(crate) async fn page<Q>(
    call: &GlobalCall<Q>,
    after_name: Option<&str>,
    limit: u32,
) -> Result<Vec<UserJson>, Problem> {
    let accounts = call.engine().store().accounts(after_name, limit).await?;
    let names = GrantNames::read(call.engine(), accounts.iter().flat_map(|account| &account.grants)).await?;
    Ok(accounts.iter().map(|account| UserJson::new(account, &names)).collect())
}

async fn create(call: GlobalCall, body: JsonBody<NewUser>) -> Result<Response, Problem> {
    let account = create_user(&call, body.read()?).await?;
    json_response(StatusCode::CREATED, &read_again(|| Box::pin(user_json(&call, &account))).await?)
}

pub(crate) async fn create_user<Q>(call: &GlobalCall<Q>, new_user: NewUser) -> Result<Account, Problem> {
    let engine = call.engine();
    call.note.set_object(&new_user.name);
    name::check_account(&new_user.name).map_err(|message| refuse_value("/name", message))?;
    let display_name = checked_display_name(new_user.display_name.as_deref().unwrap_or(&new_user.name))?;
    let grants = resolve_grants_of_user(engine, &new_user.grants).await?;
    let password = match &new_user.password {
        None => None,
        Some(password) => Some(hash_password(&call.web, password, &new_user.name).await?),
    };
    let now = engine.now();
    let account = Account {
        id: AccountId::new(engine.new_id()),
        name: new_user.name,
        display_name,
        password_changed_at: password.is_some().then_some(now),
        password,
        disabled: false,
        created_at: now,
        provider_linked_at: None,
        grants,
    };
    // Read before the account is stored: after an error the call would be repeated, and find that the user exists.
    let audit_document = user_json(call, &account).await?;
    if accounts::create(engine.store(), &account).await? {
        call.note.changed_to(&audit_document);
        Ok(account)
    } else {
        Err(Problem::new(Code::UserExists, format!("user {} exists", account.name)))
    }
}

/// Checks and hashes a password.
pub(crate) async fn hash_password(web: &Web, password: &str, name: &str) -> Result<PasswordHash, Problem> {
    passwords::check(password, name).map_err(|message| refuse_value("/password", message))?;
    web.passwords.hash(password).await.map_err(|error| Problem::internal(error.to_string()))
}

fn checked_display_name(text: &str) -> Result<String, Problem> {
    let text = text.trim();
    plain::check_line(text, DISPLAY_NAME_LEN_MAX).map_err(|message| refuse_value("/display_name", message))?;
    Ok(text.to_owned())
}

async fn get(call: GlobalCall, Named(name, ..): Named<path::User>) -> Result<Response, Problem> {
    let account = find(&call, &name).await?;
    json_response(StatusCode::OK, &user_json(&call, &account).await?)
}

async fn change(
    call: GlobalCall,
    Named(name, ..): Named<path::User>,
    body: JsonBody<UserChange>,
) -> Result<Response, Problem> {
    // Checked first, so that a missing user is reported before errors in the body.
    find(&call, &name).await?;
    json_response(StatusCode::OK, &apply_change(&call, &name, body.read()?).await?)
}

pub(crate) async fn apply_change<Q>(
    call: &GlobalCall<Q>,
    name: &str,
    request: UserChange,
) -> Result<UserJson, Problem> {
    let account = find(call, name).await?;
    call.note.before(&user_json(call, &account).await?);
    let grants = match &request.grants {
        None => None,
        Some(grants) => Some(resolve_grants_of_user(call.engine(), grants).await?),
    };
    // Unchanged roles are not saved again: saving roles ends the user's sign-ins.
    let grants = grants.filter(|grants| *grants != account.grants);
    let display_name = request.display_name.as_deref().map(checked_display_name).transpose()?;
    if request.provider_sign_in.is_some() && !call.caller.actor().may_change_sign_in_of(account.id) {
        return Err(Problem::new(Code::Forbidden, "a token cannot change how its own account signs in"));
    }
    let provider_link = request.provider_sign_in.map(|is_linked| match is_linked {
        true => ProviderLink::Since(account.provider_linked_at.unwrap_or_else(|| call.engine().now())),
        false => ProviderLink::None,
    });
    let change = AccountChange { display_name, disabled: request.disabled, grants, provider_link };
    check_changed(call.engine().store().change_account(account.id, &change).await?, name)?;
    let user = user_json(call, &find(call, name).await?).await?;
    call.note.changed_to(&user);
    Ok(user)
}

/// Sets the password of another user. This ends the user's sign-ins, and also the tokens unless the request keeps them.
async fn set_password(
    call: GlobalCall,
    Named(name, ..): Named<path::User>,
    body: JsonBody<NewPassword>,
) -> Result<Response, Problem> {
    // Checked first, so that a missing user is reported before errors in the body.
    find(&call, &name).await?;
    reset_password(&call, &name, body.read()?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Sets a new password for a user other than the caller.
pub(crate) async fn reset_password<Q>(
    call: &GlobalCall<Q>,
    name: &str,
    new_password: NewPassword,
) -> Result<(), Problem> {
    let account = find(call, name).await?;
    if call.caller.account == Some(account.id) {
        let detail = "your own password is set on the page Account, by the user who knows the current one; a token cannot set it";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    let hash = hash_password(&call.web, &new_password.password, name).await?;
    let now = call.engine().now();
    let kept_access = KeptAccess { session: None, keeps_tokens: new_password.keep_tokens };
    audit_password(call, &account, (now, new_password.keep_tokens));
    if call.engine().store().set_password(account.id, &hash, kept_access, now).await? {
        Ok(())
    } else {
        Err(missing_user_problem(name))
    }
}

/// Records in the audit log that a password was changed.
pub(crate) fn audit_password<Q>(call: &GlobalCall<Q>, account: &Account, (now, keep_tokens): (Timestamp, bool)) {
    call.note.set_object(&account.name);
    call.note.before(&serde_json::json!({"changed_at": account.password_changed_at}));
    call.note.changed_to(&serde_json::json!({"changed_at": now, "keep_tokens": keep_tokens}));
}

/// Creates a link that signs a user in once, for the first sign-in or after a forgotten password.
async fn link(call: GlobalCall, Named(name, ..): Named<path::User>) -> Result<Response, Problem> {
    let (path, expires_at) = create_sign_in_link(&call, &name).await?;
    json_response(StatusCode::CREATED, &LinkJson { path, expires_at })
}

/// Creates a link that signs the user in. Returns its path and its expiry.
pub(crate) async fn create_sign_in_link<Q>(call: &GlobalCall<Q>, name: &str) -> Result<(String, Timestamp), Problem> {
    let account = find(call, name).await?;
    if !call.caller.actor().may_change_sign_in_of(account.id) {
        let detail = "a token cannot create a link that signs in as its own account; POST /api/v1/sign-in-links creates one with the token's rights";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    let now = call.engine().now();
    call.note.changed_to(&serde_json::json!({"expires_at": now + LINK_LIFETIME}));
    let owner = match call.caller.minting_token() {
        Some(token) => SignInOwner::AccountBy(account.id, token),
        None => SignInOwner::Account(account.id),
    };
    let secret = sign_in::create_link(call.engine().store(), owner, now).await?;
    Ok((format!("/sign-in?token={}", secret.reveal()), now + LINK_LIFETIME))
}

async fn delete(call: GlobalCall, Named(name, ..): Named<path::User>) -> Result<Response, Problem> {
    remove(&call, &name).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Deletes a user and the user's tokens.
pub(crate) async fn remove<Q>(call: &GlobalCall<Q>, name: &str) -> Result<(), Problem> {
    let account = find(call, name).await?;
    call.note.before(&user_json(call, &account).await?);
    check_changed(call.engine().store().delete_account(account.id).await?, name)
}

fn check_changed(outcome: AccountChanged, name: &str) -> Result<(), Problem> {
    match outcome {
        AccountChanged::Done => Ok(()),
        AccountChanged::NotFound => Err(missing_user_problem(name)),
        AccountChanged::LastAdmin => {
            Err(Problem::new(Code::LastAdmin, "no user who can sign in would be left who may do everything"))
        }
    }
}

pub(crate) async fn user_json<Q>(call: &GlobalCall<Q>, account: &Account) -> Result<UserJson, Problem> {
    Ok(UserJson::new(account, &GrantNames::read(call.engine(), account.grants.iter()).await?))
}

pub(crate) async fn find<Q>(call: &GlobalCall<Q>, name: &str) -> Result<Account, Problem> {
    let account = match name::check_account(name) {
        Ok(()) => call.engine().store().account_by_name(name).await?,
        Err(_) => None,
    };
    account.ok_or_else(|| missing_user_problem(name))
}

fn missing_user_problem(name: &str) -> Problem {
    Problem::new(Code::UserNotFound, format!("there is no user {}", quoted_input(name)))
}

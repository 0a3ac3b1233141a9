//! Executors that speak XXL-JOB's protocol and are registered by hand: each app has a fixed list of their addresses.

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use rondel_admin::xxl::{Address, BY_HAND_COUNT_MAX, ByHandError, add_by_hand, remove_by_hand, with_ended_token};
use rondel_core::Timestamp;
use rondel_core::access::Permission::{Edit, View};
use rondel_store::catalog::App;
use rondel_store::xxl::XxlExecutor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::jobs::find_app;
use super::page::Page;
use crate::answer::json_response;
use crate::body::{JsonBody, refuse_value};
use crate::call::{Call, quoted_input};
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

/// An address to register.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewAddress {
    /// Where the executor listens: `http://10.0.0.5:9999/`.
    #[schemars(length(min = 1, max = 255))]
    pub(crate) address: String,
    /// The token that the executor is configured with: of kind `xxl`, for this app.
    #[schemars(length(min = 1, max = 500))]
    pub(crate) token: String,
}

/// An executor that is registered by hand.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Address")]
pub(crate) struct AddressJson {
    pub(crate) address: String,
    /// The name that the executor has in the list of executors.
    pub(crate) executor: String,
    /// Whether it answers this server.
    pub(crate) online: bool,
    /// Whether its token has expired or was revoked: its callbacks are refused, and it gets no runs.
    pub(crate) token_ended: bool,
    /// When it was registered by hand.
    pub(crate) added_at: Option<Timestamp>,
    /// When it last registered itself; null if it never did.
    last_registered_at: Option<Timestamp>,
}

/// The query parameter that names an address.
#[derive(Debug)]
pub(crate) struct AddressQuery(Option<String>);

impl FromQuery for AddressQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self(reader.single(Parameter::text("address").about("The address, as it is listed.").required()))
    }
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/apps/{app}/addresses",
            View,
            list,
            Doc::new(
                "List executors that are registered by hand",
                "The addresses of XXL-JOB executors that are registered by hand, at most 200 per app. Executors that register \
                 themselves are in the list of executors.",
            )
            .json::<Page<AddressJson>>(200, "The addresses."),
        )
        .post(
            "/api/v1/apps/{app}/addresses",
            Edit,
            add,
            Doc::new(
                "Register an executor by hand",
                "Each server calls `/beat` of the XXL-JOB executor at this address, and sends it runs while it answers. The address must \
                 be in a network of `xxl_networks`. Registering the address again changes the token.",
            )
            .json::<AddressJson>(201, "The executor. It is online once it has answered.")
            .example(json!({"address": "http://10.0.0.5:9999/", "token": "rondel_xxl_…"})),
        )
        .delete(
            "/api/v1/apps/{app}/addresses",
            Edit,
            remove,
            Doc::new(
                "Remove an executor that is registered by hand",
                "The executor gets no more runs, unless it registers itself. Removing it again is no error.",
            )
            .empty("It was removed."),
        )
}

/// The addresses that are registered by hand for the app `name`.
pub(crate) async fn addresses_of_app<Q>(call: &Call<Q>, name: &str) -> Result<Vec<AddressJson>, Problem> {
    let app = find_app(call, name).await?;
    let registered_addresses = call.engine().store().xxl_registered_by_hand(Some(app), BY_HAND_COUNT_MAX).await?;
    let ended_ids = with_ended_token(call.engine(), &registered_addresses).await?;
    let has_ended_token = |executor: &XxlExecutor| ended_ids.contains(&executor.id);
    Ok(registered_addresses.iter().map(|executor| address_json(call, executor, has_ended_token(executor))).collect())
}

async fn list(call: Call, Named(name, ..): Named<path::App>) -> Result<Response, Problem> {
    let items = addresses_of_app(&call, &name).await?;
    json_response(StatusCode::OK, &Page { items, next_cursor: None })
}

async fn add(call: Call, Named(name, ..): Named<path::App>, body: JsonBody<NewAddress>) -> Result<Response, Problem> {
    // Checks the permission before the body is read, so that a caller without it gets no errors about the body.
    find_app(&call, &name).await?;
    json_response(StatusCode::CREATED, &register_address(&call, &name, body.read()?).await?)
}

/// Registers an executor by hand and records it in the audit log.
pub(crate) async fn register_address<Q>(
    call: &Call<Q>,
    name: &str,
    new_address: NewAddress,
) -> Result<AddressJson, Problem> {
    let app = app(call, name).await?;
    let executor = add_by_hand(call.engine(), &app, &new_address.address, &new_address.token).await.map_err(
        |error| match error {
            ByHandError::Store(error) => error.into(),
            ByHandError::Token(sentence) => refuse_value("/token", sentence),
            ByHandError::Address(sentence) => refuse_value("/address", sentence),
            error @ (ByHandError::NotServed | ByHandError::TooMany) => refuse_value("/address", error.to_string()),
        },
    )?;
    call.note.changed_to(&json!({"address": executor.address}));
    Ok(address_json(call, &executor, false))
}

async fn remove(call: Call<AddressQuery>, Named(name, ..): Named<path::App>) -> Result<Response, Problem> {
    let address = call.query.0.clone().unwrap_or_default();
    remove_address(&call, &name, &address).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Removes an executor that was registered by hand and records it in the audit log.
pub(crate) async fn remove_address<Q>(call: &Call<Q>, name: &str, address: &str) -> Result<(), Problem> {
    let app = app(call, name).await?;
    if address.trim().is_empty() || address.contains('\0') {
        let detail = format!("address: {} is not an address; write it as http://10.0.0.5:9999/", quoted_input(address));
        return Err(Problem::new(Code::InvalidQuery, detail));
    }
    call.note.before(&json!({"address": address}));
    remove_by_hand(call.engine().store(), &app, address).await?;
    Ok(())
}

async fn app<Q>(call: &Call<Q>, name: &str) -> Result<App, Problem> {
    let id = find_app(call, name).await?;
    Ok(App { id, namespace: call.namespace.id, name: name.to_owned() })
}

fn address_json<Q>(call: &Call<Q>, executor: &XxlExecutor, token_ended: bool) -> AddressJson {
    let is_online = call.engine().online_names().iter().any(|online| online.id == executor.id);
    AddressJson {
        address: executor.address.clone(),
        executor: Address::parse(&executor.address).map(|address| address.name()).unwrap_or_default(),
        online: is_online,
        token_ended,
        added_at: executor.by_hand_at,
        last_registered_at: Some(executor.last_seen_at).filter(|at| *at > Timestamp::EPOCH),
    }
}

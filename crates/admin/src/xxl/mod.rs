//! Addresses of XXL-JOB executors: parsing them, checking whether this server may call them, and registering them by hand. The calls themselves
//! are in `rondel-xxl`.

mod address;

use std::collections::{HashMap, HashSet};

use rondel_core::access::Role;
use rondel_core::outgoing::AllowedAddresses;
use rondel_core::{AppId, ExecutorId, NamespaceId};
use rondel_outgoing::check_host;
use rondel_store::access::TokenKind;
use rondel_store::catalog::App;
use rondel_store::xxl::XxlExecutor;
use rondel_store::{Store, StoreError};

pub use self::address::Address;
use crate::identity::tokens::{Token, principal_of};
use crate::node::Node;

/// Maximum number of executors of an app registered by hand. Concurrent callers can exceed it: each counts the executors before it adds its
/// own.
pub const BY_HAND_COUNT_MAX: u32 = 200;

/// Why an executor cannot be registered by hand.
#[derive(Debug, thiserror::Error)]
pub enum ByHandError {
    /// This server calls no XXL-JOB executors.
    #[error("this server serves no executors of XXL-JOB: start it with --xxl-networks and the network of the executor")]
    NotServed,
    /// The address is not valid, or outside the networks.
    #[error("{0}")]
    Address(String),
    /// The token is not valid for the app.
    #[error("{0}")]
    Token(String),
    /// The app has reached its maximum.
    #[error("the app has {BY_HAND_COUNT_MAX} executors that are registered by hand, the maximum; remove one first")]
    TooMany,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Parses an address, and checks that a server with these networks may call it. A host name is resolved only when the executor is called.
///
/// # Errors
/// A sentence with the address and the expected form.
pub fn allowed_address(text: &str, networks: &AllowedAddresses) -> Result<Address, String> {
    let address = Address::parse(text)?;
    check_host(address.url(), &networks.clone().without_public()).map_err(|refused| refused.to_string())?;
    Ok(address)
}

/// Registers an executor of an app by its address, with the token that the executor is configured with. The server calls the executor with
/// this token, and the executor's callbacks must carry it. Registering the executor again changes the token.
///
/// # Errors
/// [`ByHandError`].
pub async fn add_by_hand(node: &Node, app: &App, address: &str, token: &str) -> Result<XxlExecutor, ByHandError> {
    let networks = &node.shared().config.xxl_networks;
    if networks.is_empty() {
        return Err(ByHandError::NotServed);
    }
    let address = allowed_address(address, networks).map_err(ByHandError::Address)?;
    let (store, now) = (node.store(), node.now());
    if !is_token_of(node, (app.namespace, app.id), token).await? {
        let sentence = format!(
            "the token is not a valid one of kind xxl for app {}: create one with rondel token create NAME --kind xxl --role \
             executor:NAMESPACE/{}, and configure the executor with it",
            app.name, app.name
        );
        return Err(ByHandError::Token(sentence));
    }
    let registered_executors = store.xxl_registered_by_hand(Some(app.id), BY_HAND_COUNT_MAX).await?;
    let is_new = !registered_executors.iter().any(|known| known.address == address.as_str());
    if is_new && registered_executors.len() >= usize::try_from(BY_HAND_COUNT_MAX).unwrap_or(usize::MAX) {
        return Err(ByHandError::TooMany);
    }
    let mut executor = XxlExecutor {
        id: ExecutorId::new(node.new_id()),
        namespace: app.namespace,
        app: app.id,
        address: address.as_str().to_owned(),
        token: token.trim().to_owned(),
        first_seen_at: now,
        last_seen_at: rondel_core::Timestamp::EPOCH,
        left_at: None,
        by_hand_at: Some(now),
    };
    executor.id = store.register_xxl_by_hand(&executor, now).await?;
    Ok(executor)
}

/// Removes an executor that was registered by hand. Returns false if the app has no such executor.
///
/// # Errors
/// The store's.
pub async fn remove_by_hand(store: &dyn Store, app: &App, address: &str) -> Result<bool, StoreError> {
    let text = address.trim().trim_end_matches('/');
    store.unregister_xxl_by_hand(app.id, text).await
}

/// The ids of the executors whose token is no longer valid for their app. Their callbacks are refused, and they get no runs.
///
/// # Errors
/// The store's.
pub async fn with_ended_token(node: &Node, executors: &[XxlExecutor]) -> Result<HashSet<ExecutorId>, StoreError> {
    // Many executors of an app have the same token.
    let mut validity: HashMap<(AppId, &str), bool> = HashMap::new();
    let mut ended = HashSet::new();
    for executor in executors {
        let key = (executor.app, executor.token.as_str());
        let is_valid = match validity.get(&key) {
            Some(is_valid) => *is_valid,
            None => is_token_of(node, (executor.namespace, executor.app), &executor.token).await?,
        };
        validity.insert(key, is_valid);
        if !is_valid {
            ended.insert(executor.id);
        }
    }
    Ok(ended)
}

async fn is_token_of(node: &Node, (namespace, app): (NamespaceId, AppId), token: &str) -> Result<bool, StoreError> {
    let (store, now) = (node.store(), node.now());
    let Some(record) = store.token(&Token::from_text(token).hash()).await? else { return Ok(false) };
    let Some(principal) = principal_of(store, record, now).await? else { return Ok(false) };
    let is_executor_grant = |grant: &rondel_core::access::Grant| {
        grant.role == Role::Executor && grant.namespace == Some(namespace) && grant.app == Some(app)
    };
    // A token whose namespace was deleted has no grants left.
    let has_grant = matches!(principal.rights.grants(), [grant] if is_executor_grant(grant));
    Ok(principal.token.kind == TokenKind::Xxl && has_grant)
}

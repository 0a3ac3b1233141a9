//! Creates accounts.

use rondel_store::access::Account;
use rondel_store::{Store, StoreError};

use crate::store_once::store_once;

/// Stores a new account. Returns false if another account has its name.
///
/// # Errors
/// The store's.
pub async fn create(store: &dyn Store, account: &Account) -> Result<bool, StoreError> {
    if store_once(|| store.create_account(account)).await? {
        return Ok(true);
    }
    // An earlier try may have stored the account although its answer was lost.
    Ok(store.account_by_name(&account.name).await?.is_some_and(|known| known.id == account.id))
}

//! How many tokens an account may have, and which of all tokens are looked through for a caller.

use rondel_core::AccountId;
use rondel_core::access::{Permission, Reach};
use rondel_store::access::TokenScope;

use crate::call::Person;
use crate::problem::{Code, Problem};

/// How many tokens of one account may work at the same time.
const LIVING_COUNT_MAX: u64 = 200;

/// Whether the account may have one token more.
pub(super) async fn check<Q>(person: &Person<Q>, owner: Option<AccountId>) -> Result<(), Problem> {
    let Some(owner) = owner else { return Ok(()) };
    let engine = person.engine();
    if engine.store().living_tokens(owner, engine.now()).await? < LIVING_COUNT_MAX {
        return Ok(());
    }
    let detail = format!("{LIVING_COUNT_MAX} tokens of this account work already; revoke those that are not needed");
    Err(Problem::new(Code::TooManyTokens, detail))
}

/// Which of all tokens the caller may have a say in; `None` for all of them.
pub(super) async fn scope<Q>(person: &Person<Q>) -> Result<Option<TokenScope>, Problem> {
    let rights = &person.caller.rights;
    if rights.allow_somewhere(Permission::Cluster) {
        return Ok(None);
    }
    let store = person.engine().store();
    let mut scope = TokenScope { account: person.caller.account, ..TokenScope::default() };
    for namespace in store.namespaces().await? {
        if rights.allow_executor(namespace.id, None) {
            scope.namespaces.push(namespace.id);
            scope.apps.extend(store.apps(namespace.id).await?.into_iter().map(|app| app.id));
        } else if let Reach::Apps(apps) = rights.reach(Permission::View, namespace.id) {
            scope.apps.extend(apps.into_iter().filter(|app| rights.allow_executor(namespace.id, Some(*app))));
        }
    }
    Ok(Some(scope))
}

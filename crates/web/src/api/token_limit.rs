//! Limits the number of tokens of an account, and decides which tokens a caller may manage.

use std::time::Duration;

use rondel_core::access::{Permission, PermittedApps};
use rondel_store::access::{TokenRecord, TokenScope};

use crate::call::GlobalCall;
use crate::problem::{Code, Problem};

/// Maximum number of valid tokens of one account or, without an account, of one line of tokens.
const VALID_TOKEN_COUNT_MAX: u64 = 200;

/// Checks that the account may have one more token. A token without an account counts in its line: all tokens that descend from the same
/// first token. Tokens of executors have no limit: they belong to the server, and the admins of their apps decide how many there are.
pub(super) async fn check<Q>(call: &GlobalCall<Q>, token: &TokenRecord) -> Result<(), Problem> {
    let (store, now) = (call.engine().store(), call.engine().now());
    let (count, owner_text) = match token.owner {
        Some(owner) => (store.count_valid_tokens(owner, now).await?, "of this account are valid already"),
        None if token.kind.is_of_executors() => return Ok(()),
        None => {
            let count = store.count_valid_tokens_of_line(token.line, now).await?;
            (count, "that descend from the same token are valid already")
        }
    };
    if count < VALID_TOKEN_COUNT_MAX {
        return Ok(());
    }
    let detail = format!("{VALID_TOKEN_COUNT_MAX} tokens {owner_text}; revoke those that are not needed");
    Err(Problem::new(Code::TooManyTokens, detail))
}

/// Like [`check`], for a token that replaces another one. If the replaced token ends at once, the number of valid tokens stays the same: a
/// leaked token can be replaced also at the limit.
pub(super) async fn check_replacement<Q>(
    call: &GlobalCall<Q>,
    (replaced_token, overlap): (&TokenRecord, Duration),
    token: &TokenRecord,
) -> Result<(), Problem> {
    let is_counted_together = token.owner.is_some() || token.line == replaced_token.line;
    if overlap.is_zero() && is_counted_together { Ok(()) } else { check(call, token).await }
}

/// The scope of the tokens that the caller may manage; `None` for all tokens.
pub(super) async fn manageable_scope<Q>(call: &GlobalCall<Q>) -> Result<Option<TokenScope>, Problem> {
    let rights = &call.caller.rights;
    if rights.allow_somewhere(Permission::Cluster) {
        return Ok(None);
    }
    let store = call.engine().store();
    let mut scope = TokenScope { account: call.caller.account, ..TokenScope::default() };
    for namespace in store.namespaces().await? {
        if rights.allow_executor(namespace.id, None) {
            scope.namespaces.push(namespace.id);
            scope.apps.extend(store.apps(namespace.id).await?.into_iter().map(|app| app.id));
        } else if let PermittedApps::Apps(apps) = rights.permitted_apps(Permission::View, namespace.id) {
            scope.apps.extend(apps.into_iter().filter(|app| rights.allow_executor(namespace.id, Some(*app))));
        }
    }
    Ok(Some(scope))
}

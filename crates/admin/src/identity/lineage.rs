//! Descent of tokens: a token ends with the token that created it, so each token records its creator.

use rondel_core::access::{Grant, Role};
use rondel_core::{Timestamp, TokenId};
use rondel_store::access::TokenRecord;
use rondel_store::{Store, StoreError};

/// Maximum length of a chain of tokens that created one another. It is bounded because each rotation reads the row of every token in the
/// chain.
pub const CHAIN_LEN_MAX: usize = 17;

/// A token and its ancestors, the nearest first; at most [`CHAIN_LEN_MAX`].
///
/// # Errors
/// The store's.
pub async fn ancestors(store: &dyn Store, token: TokenId) -> Result<Vec<TokenRecord>, StoreError> {
    let (mut chain, mut next_token) = (Vec::new(), Some(token));
    while let Some(id) = next_token.filter(|_| chain.len() < CHAIN_LEN_MAX) {
        let Some(token) = store.token_by_id(id).await? else { break };
        next_token = token.minted_by;
        chain.push(token);
    }
    Ok(chain)
}

/// The line of a token that `minter` creates; `None` if the new token begins a line. A line is a token with all its descendants; the number of
/// valid tokens in it is limited. A token with all rights could also create accounts, whose tokens are counted separately, so each token that
/// it creates begins a line.
#[must_use]
pub fn line_of_child(minter: &TokenRecord) -> Option<TokenId> {
    let has_all_rights = minter.owner.is_none() && minter.grants.contains(&Grant::everywhere(Role::Admin));
    (!has_all_rights).then_some(minter.line)
}

/// The parent of a token's replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descent {
    /// The replacement descends from this token; `None` if it descends from none.
    From(Option<TokenId>),
    /// The replacement continues the series of the replaced token, and keeps its parent.
    SameSeries,
    /// The caller's token descends from the token to be replaced, with which it has to end.
    Reversed,
    /// The chain already has [`CHAIN_LEN_MAX`] tokens.
    TooLong,
}

/// Decides the parent of the token that replaces `replaced_token`. `caller` is the token that requests this, or `None` if an account does.
/// - If the caller belongs to the series of `replaced_token`, the replacement continues that series: revoking one of its tokens ends the replacement
///   too.
/// - If the caller is an account, or a token from which `replaced_token` descends, the replacement keeps the parent of `replaced_token`. Ancestors that have
///   ended are skipped.
/// - Any other caller becomes the parent: the replacement ends with it.
///
/// # Errors
/// The store's.
pub async fn of_replacement(
    store: &dyn Store,
    replaced_token: &TokenRecord,
    caller: Option<TokenId>,
    now: Timestamp,
) -> Result<Descent, StoreError> {
    let replaced_ancestors = ancestors(store, replaced_token.id).await?;
    // An ancestor may have ended because it rotated itself under an older server. The nearest valid ancestor then takes its place.
    let nearest_valid_ancestor =
        replaced_ancestors.iter().skip(1).find(|token| token.is_valid(now)).map(|token| token.id);
    let Some(caller) = caller else { return Ok(Descent::From(nearest_valid_ancestor)) };
    let caller_ancestors = ancestors(store, caller).await?;
    let series_of_caller = caller_ancestors.first().map(|token| token.series);
    if series_of_caller == Some(replaced_token.series) {
        return Ok(Descent::SameSeries);
    }
    let has_series = |chain: &[TokenRecord], series| chain.iter().any(|token| Some(token.series) == series);
    Ok(if has_series(&caller_ancestors, Some(replaced_token.series)) {
        Descent::Reversed
    } else if has_series(&replaced_ancestors, series_of_caller) {
        Descent::From(nearest_valid_ancestor)
    } else if caller_ancestors.len() >= CHAIN_LEN_MAX || replaced_ancestors.len() >= CHAIN_LEN_MAX {
        Descent::TooLong
    } else {
        Descent::From(Some(caller))
    })
}

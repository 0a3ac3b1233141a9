//! Which tokens made one another: what a token makes ends with it, so it must be known who made what.

use rondel_core::access::{Grant, Role};
use rondel_core::{Timestamp, TokenId};
use rondel_store::access::TokenRecord;
use rondel_store::{Store, StoreError};

/// How many tokens may have made one another in a row. Each rotation of a token reads the row that it descends from.
pub const GENERATION_MAX: usize = 16;

/// A token and those that it descends from, the nearest first; at most one more than [`GENERATION_MAX`].
///
/// # Errors
/// The store's.
pub async fn ancestors(store: &dyn Store, token: TokenId) -> Result<Vec<TokenRecord>, StoreError> {
    let (mut line, mut next) = (Vec::new(), Some(token));
    while let Some(id) = next.filter(|_| line.len() <= GENERATION_MAX) {
        let Some(token) = store.token_by_id(id).await? else { break };
        next = token.minted_by;
        line.push(token);
    }
    Ok(line)
}

/// The line that a token made by this one goes on with; none where it begins a line of its own. Who may do everything makes
/// accounts too, each a caller of its own: the tokens that such a token makes are counted each by itself.
#[must_use]
pub fn line_below(maker: &TokenRecord) -> Option<TokenId> {
    let may_all = maker.owner.is_none() && maker.grants.contains(&Grant::everywhere(Role::Admin));
    (!may_all).then_some(maker.line)
}

/// Which token the replacement of a token descends from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descent {
    /// This one; none where no token had a part in it.
    From(Option<TokenId>),
    /// From the one that made the replaced token, as the next token of its series.
    SameSeries,
    /// The caller's token was made by the one that it wants to replace, and would outlive it.
    Reversed,
    /// There are more than [`GENERATION_MAX`] in a row already.
    TooLong,
}

/// Which token the replacement of `old` descends from when the token `caller` asks for it. What replaces a token by its own
/// secret, or by one of its series, goes on with the series: revoking one of its tokens ends the replacement too. An account, and
/// a token that made the old one, leave the descent as it was, apart from makers that are over. Else the replacement is as good as
/// made by the caller, and ends with it.
///
/// # Errors
/// The store's.
pub async fn of_replacement(
    store: &dyn Store,
    old: &TokenRecord,
    caller: Option<TokenId>,
    now: Timestamp,
) -> Result<Descent, StoreError> {
    let of_old = ancestors(store, old.id).await?;
    // A maker that is over has rotated itself under an older server: what works still is its successor.
    let maker = of_old.iter().skip(1).find(|token| token.is_good(now)).map(|token| token.id);
    let Some(caller) = caller else { return Ok(Descent::From(maker)) };
    let of_caller = ancestors(store, caller).await?;
    let series_of_caller = of_caller.first().map(|token| token.series);
    if series_of_caller == Some(old.series) {
        return Ok(Descent::SameSeries);
    }
    let has = |line: &[TokenRecord], series| line.iter().any(|token| Some(token.series) == series);
    Ok(if has(&of_caller, Some(old.series)) {
        Descent::Reversed
    } else if has(&of_old, series_of_caller) {
        Descent::From(maker)
    } else if of_caller.len() > GENERATION_MAX || of_old.len() > GENERATION_MAX {
        Descent::TooLong
    } else {
        Descent::From(Some(caller))
    })
}

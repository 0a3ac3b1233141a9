//! The descent of tokens: a token ends together with the token that made it. Decides which token a new token descends from, and when the
//! new token expires.

use std::time::Duration;

use rondel_admin::lineage::{self, CHAIN_LEN_MAX, Descent};
use rondel_core::time::earlier_of;
use rondel_core::{Timestamp, TokenId};
use rondel_store::access::{TokenQuery, TokenRecord};
use rondel_store::{Store, StoreError};

use super::tokens::{OVERLAP_MAX, TOKEN_BATCH_COUNT};
use crate::access::unauthenticated_problem;
use crate::body::refuse_value;
use crate::call::GlobalCall;
use crate::problem::{Code, Problem};

/// The descent and the expiry of a new token.
pub(super) struct TokenDescent {
    pub(super) minted_by: Option<TokenId>,
    /// The first token of the line that the token joins; a line is a token with all its descendants. `None` if the token begins a new
    /// line, or stays in the line of the token that it replaces.
    pub(super) line: Option<TokenId>,
    /// Whether the token belongs to the same series as the token that it replaces.
    pub(super) is_same_series: bool,
    pub(super) expires_at: Option<Timestamp>,
    /// Whether a token shortened the lifetime: the one from which the new token descends, or the one that rotates the replaced token.
    pub(super) is_expiry_limited: bool,
}

/// The descent of a new token. Refused if the caller asks for an expiry later than that of the caller's own token.
pub(super) async fn descent_of_new<Q>(
    call: &GlobalCall<Q>,
    requested_expiry: Option<Timestamp>,
    is_expiry_requested: bool,
) -> Result<TokenDescent, Problem> {
    let Some(token) = call.caller.minting_token() else {
        return Ok(TokenDescent {
            minted_by: None,
            line: None,
            is_same_series: false,
            expires_at: requested_expiry,
            is_expiry_limited: false,
        });
    };
    let ancestors = lineage::ancestors(call.engine().store(), token).await?;
    if ancestors.len() >= CHAIN_LEN_MAX {
        return Err(too_long_problem());
    }
    let parent = ancestors.first().ok_or_else(unauthenticated_problem)?;
    let (line, parent_expiry) = (lineage::line_of_child(parent), parent.expires_at);
    let expires_at = earlier_of(requested_expiry, parent_expiry);
    match parent_expiry {
        Some(parent_expiry) if is_expiry_requested && expires_at != requested_expiry => Err(refuse_value(
            "/expires_in",
            format!(
                "your own token expires at {parent_expiry}, and a token that it creates cannot be valid longer; leave this field out"
            ),
        )),
        _ => Ok(TokenDescent {
            minted_by: Some(token),
            line,
            is_same_series: false,
            expires_at,
            is_expiry_limited: expires_at != requested_expiry,
        }),
    }
}

/// The descent of the token that replaces `replaced_token`. If the caller is an account, the new token gets the lifetime of the old one,
/// counted from now, but expires no later than the token from which it descends. If the caller is a token, the new one expires
/// no later than the caller's token and the old one.
pub(super) async fn descent_of_replacement<Q>(
    call: &GlobalCall<Q>,
    replaced_token: &TokenRecord,
    now: Timestamp,
) -> Result<TokenDescent, Problem> {
    let store = call.engine().store();
    let caller = call.caller.minting_token();
    let (minted_by, is_same_series) = match lineage::of_replacement(store, replaced_token, caller, now).await? {
        Descent::From(token) => (token, false),
        Descent::SameSeries => (replaced_token.minted_by, true),
        Descent::TooLong => return Err(too_long_problem()),
        Descent::Reversed => {
            let detail = "your own token was created by this one, and cannot replace it";
            return Err(Problem::new(Code::Forbidden, detail));
        }
    };
    let lifetime = match caller {
        // The end of the old token is the limit in any case.
        Some(_) => lifetime_of(replaced_token),
        None => full_lifetime(store, replaced_token, now).await?,
    };
    let end_of_full_lifetime = lifetime.map(|lifetime| now + lifetime);
    let mut expires_at = if caller.is_some() { replaced_token.expires_at } else { end_of_full_lifetime };
    let mut line = None;
    // Within a series, the token that made the old one may have ended already, so the expiry of the old token is the limit instead.
    for token in [caller, minted_by.filter(|_| !is_same_series)].into_iter().flatten() {
        let token = store.token_by_id(token).await?.ok_or_else(unauthenticated_problem)?;
        expires_at = earlier_of(expires_at, token.expires_at);
        // If the caller's token makes the new one but did not make the old one, the new token joins the line of the caller's token.
        let is_new_maker = caller == minted_by && minted_by == Some(token.id) && replaced_token.minted_by != minted_by;
        line = line.or_else(|| lineage::line_of_child(&token).filter(|_| is_new_maker && !is_same_series));
    }
    Ok(TokenDescent {
        minted_by,
        line,
        is_same_series,
        expires_at,
        is_expiry_limited: expires_at != end_of_full_lifetime,
    })
}

/// From its creation to its end; `None` if it has no end.
fn lifetime_of(token: &TokenRecord) -> Option<Duration> {
    token.expires_at.map(|end| end.since(token.created_at))
}

/// The lifetime of a token before any rotation; `None` if it had no end. A token that was rotated expires at the end of its overlap, so the
/// lifetimes of its replacements count too. These are in its line, with its name and roles.
async fn full_lifetime(store: &dyn Store, token: &TokenRecord, now: Timestamp) -> Result<Option<Duration>, StoreError> {
    let Some(end) = token.expires_at else { return Ok(None) };
    let mut lifetime = end.since(token.created_at);
    // A token in its overlap ends within the maximum of an overlap.
    if end > now + OVERLAP_MAX {
        return Ok(Some(lifetime));
    }
    let is_replacement = |other: &&TokenRecord| {
        let is_same_use = (other.kind, other.owner, other.line) == (token.kind, token.owner, token.line);
        // The overlap began when the replacement was made.
        let is_in_overlap = (other.created_at..=other.created_at + OVERLAP_MAX).contains(&end);
        other.id > token.id && is_same_use && is_in_overlap && other.name == token.name && other.grants == token.grants
    };
    let mut query = TokenQuery { owner: token.owner, limit: TOKEN_BATCH_COUNT, ..TokenQuery::default() };
    loop {
        let batch = store.tokens(&query).await?;
        for replacement in batch.iter().filter(is_replacement) {
            let Some(own_lifetime) = lifetime_of(replacement) else { return Ok(None) };
            lifetime = lifetime.max(own_lifetime);
        }
        // The newest tokens come first, so all replacements come before the token.
        query.after = batch.last().map(|last| last.id).filter(|last| *last > token.id);
        if query.after.is_none() {
            return Ok(Some(lifetime));
        }
    }
}

fn too_long_problem() -> Problem {
    let detail =
        format!("this token is the last of a chain of {CHAIN_LEN_MAX} tokens; use one that was created in the console");
    Problem::new(Code::Forbidden, detail)
}

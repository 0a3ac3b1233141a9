//! What tokens make ends with them: which token a new one descends from, and how long it may work.

use rondel_admin::lineage::{self, Descent, GENERATION_MAX};
use rondel_core::{Timestamp, TokenId};
use rondel_store::access::TokenRecord;

use crate::access::unauthenticated;
use crate::body::refuse_value;
use crate::call::Person;
use crate::problem::{Code, Problem};

/// Which token made another one, and when the other one expires.
pub(super) struct Bounds {
    pub(super) minted_by: Option<TokenId>,
    pub(super) expires_at: Option<Timestamp>,
}

/// The bounds of a token that the caller makes. A later end that was asked for by name is refused.
pub(super) async fn of_new<Q>(
    person: &Person<Q>,
    wanted: Option<Timestamp>,
    is_asked: bool,
) -> Result<Bounds, Problem> {
    let Some(token) = person.caller.minting_token() else {
        return Ok(Bounds { minted_by: None, expires_at: wanted });
    };
    let line = lineage::ancestors(person.engine().store(), token).await?;
    if line.len() > GENERATION_MAX {
        return Err(too_long());
    }
    let end = line.first().ok_or_else(unauthenticated)?.expires_at;
    let expires_at = earlier(wanted, end);
    match end {
        Some(end) if is_asked && expires_at != wanted => Err(refuse_value(
            "/expires_in",
            format!(
                "your own token expires at {end}, and a token that it makes cannot work longer; leave this field out"
            ),
        )),
        _ => Ok(Bounds { minted_by: Some(token), expires_at }),
    }
}

/// The bounds of the token that takes the place of `old`.
pub(super) async fn of_replacement<Q>(
    person: &Person<Q>,
    old: &TokenRecord,
    wanted: Option<Timestamp>,
) -> Result<Bounds, Problem> {
    let store = person.engine().store();
    let minted_by = match lineage::of_replacement(store, old, person.caller.minting_token()).await? {
        Descent::From(token) => token,
        Descent::TooLong => return Err(too_long()),
        Descent::Reversed => {
            let detail = "your own token was made by this one, and cannot replace it";
            return Err(Problem::new(Code::Forbidden, detail));
        }
    };
    let end = match minted_by {
        Some(maker) => store.token_by_id(maker).await?.and_then(|maker| maker.expires_at),
        None => None,
    };
    Ok(Bounds { minted_by, expires_at: earlier(wanted, end) })
}

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn too_long() -> Problem {
    let detail =
        format!("{GENERATION_MAX} tokens have made one another in a row; use one that was made in the console");
    Problem::new(Code::Forbidden, detail)
}

//! Removes the tokens, sign-ins and links that tokens created.

use std::collections::BTreeSet;

use rondel_core::{AccountId, Timestamp, TokenId};

use crate::access::TokenRecord;
use crate::mem::access::AccessRows;

impl AccessRows {
    pub(super) fn tokens_of(&self, account: AccountId) -> BTreeSet<TokenId> {
        self.tokens.values().filter(|token| token.owner == Some(account)).map(|token| token.id).collect()
    }

    /// Ends the sign-ins and links of a family: of these tokens, of the other tokens of their series, and of all tokens that one of them
    /// created. Returns the tokens of the family.
    pub(super) fn end_family(&mut self, mut family: BTreeSet<TokenId>) -> BTreeSet<TokenId> {
        loop {
            let members = self.tokens.values().filter(|token| family.contains(&token.id));
            let series: BTreeSet<TokenId> = members.map(|token| token.series).collect();
            let is_of_family = |token: &&TokenRecord| {
                series.contains(&token.series) || token.minted_by.is_some_and(|parent| family.contains(&parent))
            };
            let family_members: Vec<TokenId> =
                self.tokens.values().filter(is_of_family).map(|token| token.id).collect();
            let count = family.len();
            family.extend(family_members);
            if family.len() == count {
                break;
            }
        }
        let is_made_by_family = |token: Option<TokenId>| token.is_some_and(|token| family.contains(&token));
        self.sessions.retain(|_, session| !is_made_by_family(session.token) && !is_made_by_family(session.minted_by));
        self.links.retain(|_, link| !is_made_by_family(link.token) && !is_made_by_family(link.minted_by));
        family
    }

    pub(super) fn revoke_family(&mut self, family: BTreeSet<TokenId>, now: Timestamp) {
        for id in self.end_family(family) {
            if let Some(token) = self.tokens.get_mut(&id).filter(|token| token.is_valid(now)) {
                token.revoked_at = Some(now);
            }
        }
    }

    pub(super) fn move_access(&mut self, old_token: TokenId, new: TokenId) {
        let tokens = self.tokens.values_mut().filter(|token| token.id != new).map(|token| &mut token.minted_by);
        let sessions = self.sessions.values_mut().flat_map(|session| [&mut session.token, &mut session.minted_by]);
        let links = self.links.values_mut().flat_map(|link| [&mut link.token, &mut link.minted_by]);
        for holder in tokens.chain(sessions).chain(links).filter(|holder| **holder == Some(old_token)) {
            *holder = Some(new);
        }
    }
}

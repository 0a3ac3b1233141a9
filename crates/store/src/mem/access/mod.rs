//! The rows of the access tables.

mod accounts;
mod audit;
mod lineage;
mod sign_ins;
mod tokens;

use std::collections::{BTreeMap, HashMap};

use rondel_core::access::Grant;
use rondel_core::{AccountId, AuditId, NamespaceId, SessionId, Timestamp, TokenId};

use crate::access::{Account, AuditEntry, SignInLink, TokenRecord, WebSession};

#[derive(Default)]
pub(super) struct AccessRows {
    accounts: BTreeMap<AccountId, Account>,
    sessions: BTreeMap<SessionId, WebSession>,
    links: HashMap<String, SignInLink>,
    /// By bucket: the number of attempts, and when the count began.
    attempts: HashMap<i64, (u32, Timestamp)>,
    /// The networks that each account signed in from, and when it last did.
    addresses: BTreeMap<(AccountId, String), Timestamp>,
    server_keys: HashMap<String, String>,
    tokens: BTreeMap<TokenId, TokenRecord>,
    audit: BTreeMap<AuditId, AuditEntry>,
}

/// Grants without duplicates and sorted, as a table with a unique key returns them.
fn sorted_grants(grants: &[Grant]) -> Vec<Grant> {
    let mut grants = grants.to_vec();
    grants.sort_unstable();
    grants.dedup();
    grants
}

impl AccessRows {
    /// Removes every role in a namespace.
    pub(super) fn remove_namespace(&mut self, namespace: NamespaceId) {
        let grants = self.accounts.values_mut().map(|account| &mut account.grants);
        for grants in grants.chain(self.tokens.values_mut().map(|token| &mut token.grants)) {
            grants.retain(|grant| grant.namespace != Some(namespace));
        }
    }
}

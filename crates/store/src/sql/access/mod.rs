//! Accounts, sign-ins, tokens and the audit log.

pub(super) mod accounts;
pub(super) mod audit;
pub(super) mod lineage;
pub(super) mod sign_ins;
pub(super) mod tokens;

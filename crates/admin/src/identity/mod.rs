//! Identifies callers by accounts with passwords, sign-ins, API tokens, and the provider of `OpenID` Connect.
//!
//! - [`tokens`] creates tokens and authenticates their bearers, [`lineage`] decides from which token a new token descends;
//! - [`lookups`] bounds how many credentials are looked up concurrently;
//! - [`accounts`] creates accounts, [`passwords`] hashes and checks passwords, [`current_password`] bounds the attempts of a signed-in account;
//! - [`sign_in`] begins and ends sign-ins and their links, [`oidc`] signs users in through a provider.
//!
//! This module depends on the store, but not on the engine.

pub mod accounts;
pub mod current_password;
pub mod lineage;
pub mod lookups;
pub mod oidc;
pub mod passwords;
pub mod sign_in;
pub mod tokens;

//! Runs, from claim to verdict: each trait of [`crate::ledger`] in the file of its name.

pub(super) mod adopt;
mod attempts;
pub(super) mod broadcast;
pub(super) mod cancel;
pub(super) mod claim;
pub(super) mod delay;
pub(super) mod dispatch;
mod ends;
pub(super) mod finish;
pub(super) mod follow;
pub(super) mod job_page;
pub(super) mod limits;
pub(super) mod r#move;
pub(super) mod open_rows;
pub(super) mod open_runs;
pub(super) mod read;
pub(super) mod relay;
pub(super) mod search;
pub(super) mod stored_fires;
mod trigger_keys;

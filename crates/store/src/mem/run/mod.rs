//! Runs, from claim to verdict: each trait of [`crate::ledger`] in the file of its name.

mod adopt;
mod broadcast;
mod cancel;
mod claim;
mod delay;
mod dispatch;
mod finish;
mod follow;
mod limits;
mod r#move;
mod read;
mod relay;
mod search;

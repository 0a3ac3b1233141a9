//! The API from outside: requests in, answers out, over an engine on the store in memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on reports it by its panic")]

mod access;
mod accounts;
mod apply;
mod audit;
mod bad_input;
mod calendar_pages;
mod calendars;
mod contract;
mod custody;
mod documents;
mod edit_pages;
mod events;
mod executors;
mod fires;
mod fires_pages;
mod harness;
mod heavy;
mod incidents;
mod jobs;
mod keyed;
mod limits;
mod logs;
mod lookups;
mod markup;
mod matrix;
mod offers;
mod openapi;
mod own_namespace;
mod pages;
mod port;
mod races;
mod reach;
mod rotation;
mod run_tree;
mod runs;
mod schedules;
mod scoped;
mod visitor;
mod webhooks;

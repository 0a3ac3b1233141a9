//! The API from outside: requests in, answers out, over an engine on the store in memory.

mod access;
mod bad_input;
mod documents;
mod harness;
mod jobs;
mod logs;
mod port;
mod runs;

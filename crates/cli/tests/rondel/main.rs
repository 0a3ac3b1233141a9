//! The real binary, as a person or a script meets it.

mod bad_starts;
mod client;
mod cron;
mod dev;
mod process;
mod settings;

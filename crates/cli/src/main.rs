//! `rondel`: the one binary. `args` has the command tree; each noun has its own module.
//!
//! - `dev`, `server` and `agent` assemble the other crates; `handover` and `run_as` keep the agent's secrets from the
//!   programs that it starts; `config`, `startup_files`, `token_file`, `node_name`, `telemetry` and `runtime` implement
//!   their start and stop;
//! - `job`, `calendar`, `script`, `alert`, `report`, `run`, `executor`, `node`, `app` and `sign_in` call the REST API
//!   through `client`, wait with `retry` for a server that restarts, and print through `view` and `table`;
//! - `context`, `status`, `doctor` and `api` are about the server itself, and `server_clock` reads its time; `contexts`
//!   holds the user's own names for servers; `completion`, `complete` and `manual` are for shells and readers;
//! - `bench` measures; `cron` and `import` work offline; `exit` and `output` define exit codes and output.

mod agent;
mod alert;
mod api;
mod app;
mod args;
mod audit;
mod bench;
mod bulk;
mod calendar;
mod client;
mod clock;
mod complete;
mod completion;
mod config;
mod context;
mod contexts;
mod cron;
mod delete;
mod dev;
mod doctor;
mod events;
mod executor;
mod exit;
mod failpoints;
mod foreign_url;
mod format;
mod handover;
mod import;
mod input;
mod job;
mod lang;
mod list;
mod manual;
mod namespace;
mod node;
mod node_name;
mod open_files;
mod output;
mod overview;
mod paint;
mod progress;
#[cfg(test)]
mod reference;
mod report;
mod retry;
mod roles;
mod run;
mod run_as;
mod runtime;
mod script;
mod secret_key;
mod server;
mod server_clock;
mod shadow;
mod sign_in;
mod startup_files;
mod status;
mod table;
mod telemetry;
mod terminal;
mod token;
mod token_file;
mod user;
mod view;
mod why;

use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::args::Cli;

fn main() -> ExitCode {
    completion::answer_shell(Cli::command);
    Cli::read().run()
}

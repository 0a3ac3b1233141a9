//! Settings of `rondel server` and `rondel agent`. Flags override the environment, which overrides the file, which
//! overrides the defaults. The result is checked as a whole before anything is opened.
//!
//! Each setting has one name: `--admin-token-file` is `RONDEL_SERVER_ADMIN_TOKEN_FILE` in the environment and
//! `admin_token_file` in the `[server]` section of the file. Settings for signing in through a provider have a section
//! of their own.

mod agent;
mod check;
mod file;
mod http;
mod layer;
mod oidc;
mod reference;
mod server;
mod values;
mod variables;
mod xxl;

pub(crate) use agent::{AgentConfig, AgentSettings};
pub(crate) use file::{ConfigFileArgs, checked_server, print_agent, print_server};
pub(crate) use http::{HttpConfig, HttpSettings};
pub(crate) use oidc::OidcSettings;
pub(crate) use reference::{reference, with_defaults};
pub(crate) use server::{DATA_DIR, ServerConfig, ServerSettings, ServerValues};
pub(crate) use values::{Database, DatabaseParser, DurationText, ListenAddress};
pub(crate) use variables::{report_unknown_variables, warn_of_unknown_variables};

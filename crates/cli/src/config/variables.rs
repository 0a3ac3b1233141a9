//! Warns about environment variables that have the prefix of settings but name no setting. Without a warning, a mistyped variable
//! would be ignored silently.

use std::collections::BTreeSet;

use clap::{Args, Command};

use super::agent::AgentSettings;
use super::http::HttpSettings;
use super::oidc::OidcSettings;
use super::server::ServerSettings;
use crate::{handover, output};

/// The prefixes of the environment variables that set settings.
const PREFIXES: [&str; 4] = ["RONDEL_SERVER_", "RONDEL_HTTP_", "RONDEL_OIDC_", "RONDEL_AGENT_"];

/// The unknown variables of this process. The settings of both server and agent count as known, because the two may share an
/// environment.
fn unknown_variables() -> Vec<String> {
    unknown_settings_among(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

/// Prints a warning for each unknown variable, for `check-config`.
pub(crate) fn report_unknown_variables() {
    for variable in unknown_variables() {
        output::print_message(&format!("warning: {variable} is named like a setting, but is not one"));
    }
}

/// Logs a warning for each unknown variable.
pub(crate) fn warn_of_unknown_variables() {
    for variable in unknown_variables() {
        tracing::warn!(
            variable,
            "an environment variable is named like a setting, but is not one; rondel config-reference lists all settings"
        );
    }
}

fn unknown_settings_among(names: impl Iterator<Item = String>) -> Vec<String> {
    let known_names = [
        variables_of_section::<ServerSettings>(),
        variables_of_section::<HttpSettings>(),
        variables_of_section::<OidcSettings>(),
        variables_of_section::<AgentSettings>(),
    ];
    let is_known =
        |name: &String| known_names.iter().any(|section| section.contains(name)) || name == handover::HANDOVER_VARIABLE;
    let has_prefix = |name: &String| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let mut unknown_names: Vec<String> =
        names.filter(|name| has_prefix(name) && !is_known(name) && !is_kubernetes_service(name)).collect();
    unknown_names.sort();
    unknown_names
}

fn variables_of_section<S: Args>() -> BTreeSet<String> {
    let command = S::augment_args(Command::new("settings"));
    command.get_arguments().filter_map(|arg| arg.get_env()?.to_str().map(str::to_owned)).collect()
}

/// Whether Kubernetes may have set the variable: each pod gets variables with the addresses of the services in its
/// namespace. For a service named `rondel-server`, their names begin with `RONDEL_SERVER_`.
fn is_kubernetes_service(name: &str) -> bool {
    name.ends_with("_PORT") || ["_PORT_", "_SERVICE_HOST", "_SERVICE_PORT"].iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_variables_that_are_named_like_settings_are_found() {
        let names = [
            "RONDEL_SERVER_TRUSTED_PROXIES",
            "RONDEL_SERVER_LISTEN",
            "RONDEL_HTTP_TRUSTED_PROXIES",
            "RONDEL_AGENT_SERVERS",
            "RONDEL_AGENT_SERVER",
            "RONDEL_AGENT_HANDOVER",
            "RONDEL_SERVER",
            "RONDEL_TOKEN",
            "RONDEL_SERVER_PORT",
            "RONDEL_SERVER_PORT_8080_TCP_ADDR",
            "RONDEL_SERVER_SERVICE_HOST",
            "RONDEL_SERVER_SERVICE_PORT_HTTP",
        ];
        let unknown = unknown_settings_among(names.into_iter().map(str::to_owned));
        assert_eq!(unknown, ["RONDEL_AGENT_SERVER", "RONDEL_SERVER_TRUSTED_PROXIES"]);
    }
}

//! The config file, and the effective settings after flags and environment override it.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::agent::AgentSettings;
use super::http::HttpSettings;
use super::layer::Layer as _;
use super::oidc::OidcSettings;
use super::server::{ServerConfig, ServerSettings};
use crate::exit::Failure;
use crate::output;

/// Which file is read.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConfigFileArgs {
    /// A TOML file with settings, in sections [server], [oidc], [http] and [agent]
    #[arg(long, global = true, env = "RONDEL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The config file, which server and agent can share.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) server: Option<ServerSettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) oidc: Option<OidcSettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) http: Option<HttpSettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) agent: Option<AgentSettings>,
}

impl ConfigFileArgs {
    /// Whether a file is given.
    pub(crate) const fn is_given(&self) -> bool {
        self.config.is_some()
    }

    fn read(&self) -> Result<ConfigFile, Failure> {
        match &self.config {
            Some(path) => read(path),
            None => Ok(ConfigFile::default()),
        }
    }

    /// The effective settings of the server, with flags and environment applied.
    pub(crate) fn server(&self, settings: ServerSettings) -> Result<ServerSettings, Failure> {
        let (log_level, otlp_endpoint) = (unless_empty(settings.log_level), unless_empty(settings.otlp_endpoint));
        let settings = ServerSettings { log_level, otlp_endpoint, ..settings };
        Ok(settings.with_file_and_defaults(self.read()?.server))
    }

    /// The effective settings for signing in through a provider, with flags and environment applied.
    pub(crate) fn oidc(&self, settings: OidcSettings) -> Result<OidcSettings, Failure> {
        Ok(settings.with_file_and_defaults(self.read()?.oidc))
    }

    /// The effective settings of the server's port, with flags and environment applied.
    pub(crate) fn http(&self, settings: HttpSettings) -> Result<HttpSettings, Failure> {
        Ok(settings.with_file_and_defaults(self.read()?.http))
    }

    /// The effective settings of the agent, with flags and environment applied.
    pub(crate) fn agent(&self, settings: AgentSettings) -> Result<AgentSettings, Failure> {
        let (log_level, otlp_endpoint) = (unless_empty(settings.log_level), unless_empty(settings.otlp_endpoint));
        let settings = AgentSettings { log_level, otlp_endpoint, ..settings };
        Ok(settings.with_file_and_defaults(self.read()?.agent))
    }
}

/// The value of a variable that other programs use too, unless it is empty. Many environments contain `RUST_LOG=` although the program
/// should log as usual, and OpenTelemetry treats its empty variables as unset.
fn unless_empty(value: Option<String>) -> Option<String> {
    value.filter(|text| !text.trim().is_empty())
}

/// The effective settings of all sections that a server has, checked as a whole.
pub(crate) fn checked_server(
    settings: ServerSettings,
    oidc: OidcSettings,
    http: HttpSettings,
) -> Result<ServerConfig, Failure> {
    let mut config = ServerConfig::try_from(settings)?;
    config.oidc = oidc.checked()?;
    config.http = http.checked()?;
    Ok(config)
}

fn read(path: &Path) -> Result<ConfigFile, Failure> {
    let path_text = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::refused(format!("cannot read the config file {path_text}: {error}")))?;
    toml::from_str(&text).map_err(|error| {
        // TOML's own message quotes the file over several lines; a line number is enough.
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        Failure::refused(format!("the config file {path_text}, line {line}: {}", error.message().replace('\n', ", ")))
    })
}

/// Prints the effective settings as sections of a config file, without passwords.
pub(crate) fn print_server(settings: ServerSettings, oidc: OidcSettings, http: HttpSettings) -> Result<(), Failure> {
    let settings = ServerSettings {
        watchdog_url: settings.watchdog_url.as_deref().map(without_password),
        otlp_endpoint: settings.otlp_endpoint.as_deref().map(without_password),
        ..settings
    };
    let oidc = oidc.issuer.is_some().then_some(oidc);
    print(&ConfigFile { server: Some(settings), oidc, http: Some(http), agent: None })
}

/// Prints the agent's effective settings.
pub(crate) fn print_agent(settings: AgentSettings) -> Result<(), Failure> {
    let otlp_endpoint = settings.otlp_endpoint.as_deref().map(without_password);
    let settings = AgentSettings { otlp_endpoint, ..settings };
    print(&ConfigFile { server: None, oidc: None, http: None, agent: Some(settings) })
}

/// The URL with its password hidden. The type of the database's URL hides the password itself.
fn without_password(url: &str) -> String {
    match reqwest::Url::parse(url) {
        Ok(mut parsed_url) if parsed_url.password().is_some() => {
            parsed_url.set_password(Some("***")).ok();
            parsed_url.to_string()
        }
        _ => url.to_owned(),
    }
}

fn print(file: &ConfigFile) -> Result<(), Failure> {
    let text = toml::to_string(file).map_err(|error| Failure::of("cannot print the settings", &error))?;
    output::print_lines(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ConfigFile, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn unknown_sections_and_keys_are_refused() {
        for text in ["[sever]", "[server]\nlitsen = \"127.0.0.1:1\"", "[agent]\nlease = \"5s\"", "x = 1"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("").is_ok());
    }

    #[test]
    fn passwords_in_urls_are_hidden() {
        for (url, shown) in [
            ("https://me:secret@hc.example.com/id", "https://me:***@hc.example.com/id"),
            ("https://hc.example.com/id", "https://hc.example.com/id"),
            ("http://127.0.0.1:4317", "http://127.0.0.1:4317"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn empty_variables_that_programs_share_are_none() {
        let files = ConfigFileArgs::default();
        let server = ServerSettings { log_level: Some(String::new()), ..ServerSettings::default() };
        assert_eq!(files.server(server).unwrap().log_level.as_deref(), Some("info"));
        let agent = AgentSettings { log_level: Some(" ".to_owned()), ..AgentSettings::default() };
        assert_eq!(files.agent(agent).unwrap().log_level.as_deref(), Some("info"));
        let server = ServerSettings { otlp_endpoint: Some(String::new()), ..ServerSettings::default() };
        assert_eq!(files.server(server).unwrap().otlp_endpoint, None);
        let agent = AgentSettings { otlp_endpoint: Some(String::new()), ..AgentSettings::default() };
        assert_eq!(files.agent(agent).unwrap().otlp_endpoint, None);
        let given = ServerSettings { log_level: Some("debug".to_owned()), ..ServerSettings::default() };
        assert_eq!(files.server(given).unwrap().log_level.as_deref(), Some("debug"));
    }

    #[test]
    fn the_higher_layer_wins() {
        let file = parse("[server]\nlease = \"8s\"\nlisten = \"127.0.0.1:1\"").unwrap().server.unwrap();
        let flags = ServerSettings { listen: Some("127.0.0.1:2".parse().unwrap()), ..ServerSettings::default() };
        let settings = flags.with_file_and_defaults(Some(file));
        assert_eq!(settings.listen.unwrap().to_string(), "127.0.0.1:2");
        assert_eq!(settings.lease.unwrap().to_string(), "8s");
        assert_eq!(settings.drain_grace.unwrap().to_string(), "30s");
    }
}

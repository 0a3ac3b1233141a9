//! Settings of `rondel agent`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rondel::{LogLimit, agent};
use rondel_core::name;
use rondel_core::outgoing::AllowedAddresses;
use serde::{Deserialize, Serialize};

use super::{Length, LogFormat, Size, check_url, outgoing_allow, wrong};
use crate::exit::Failure;
use crate::telemetry::{self, RATIO_DEFAULT, TelemetrySettings};

const SECTION: &str = "agent";
const NO_APP: &str = "is missing: give --app, RONDEL_AGENT_APP or the config file's app, the one that its jobs name";
/// Less would not hold a few long lines.
const LOG_SIZE_MIN: usize = 64 * 1024;

/// One layer of settings, or several laid over each other.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AgentSettings {
    /// A server's URL; once per server, one of them is enough to find the others
    #[arg(long = "server", global = true, value_name = "URL", env = "RONDEL_AGENT_SERVERS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) servers: Option<Vec<String>>,
    /// The app whose jobs this agent runs
    #[arg(long, global = true, value_name = "NAME", env = "RONDEL_AGENT_APP")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) app: Option<String>,
    /// The namespace of the app
    #[arg(long, global = true, value_name = "NAME", env = "RONDEL_AGENT_NAMESPACE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    /// This agent's name, the same at each of its starts; else kept in the data folder, or made of the host's name
    #[arg(long, global = true, value_name = "NAME", env = "RONDEL_AGENT_NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The file with the token; the environment variable `RONDEL_TOKEN` goes before it
    #[arg(long, global = true, value_name = "FILE", env = "RONDEL_AGENT_TOKEN_FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
    /// The file with certificates to trust for https servers, beside the well-known ones
    #[arg(long, global = true, value_name = "FILE", env = "RONDEL_AGENT_CA_FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca_file: Option<PathBuf>,
    /// The file with a certificate, for servers that ask executors for one
    #[arg(long, global = true, value_name = "FILE", env = "RONDEL_AGENT_CERT_FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cert_file: Option<PathBuf>,
    /// The file with its key
    #[arg(long, global = true, value_name = "FILE", env = "RONDEL_AGENT_KEY_FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_file: Option<PathBuf>,
    /// The folder for results that no server has acknowledged yet; without it they live in memory
    #[arg(long, global = true, value_name = "DIR", env = "RONDEL_AGENT_DATA_DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data_dir: Option<PathBuf>,
    /// How many runs at the same time; each of them may be a process
    #[arg(long, global = true, value_name = "N", env = "RONDEL_AGENT_SLOTS", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slots: Option<u32>,
    /// A label that jobs can ask for; once per label
    #[arg(long = "label", global = true, value_name = "KEY=VALUE", env = "RONDEL_AGENT_LABELS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) labels: Option<Vec<String>>,
    /// This agent's share where runs are dealt by weight
    #[arg(long, global = true, value_name = "N", env = "RONDEL_AGENT_WEIGHT", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) weight: Option<u32>,
    /// Run script text that comes with a job, not only programs named by it
    #[arg(long, global = true, env = "RONDEL_AGENT_ALLOW_SCRIPTS", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allow_scripts: Option<bool>,
    /// The folder with one file per secret, for `{{secret.NAME}}` in parameters
    #[arg(long, global = true, value_name = "DIR", env = "RONDEL_AGENT_SECRETS_DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secrets_dir: Option<PathBuf>,
    /// The folder for the working directories of runs; else work in the data folder, or one in the host's temporary folder
    #[arg(long, global = true, value_name = "DIR", env = "RONDEL_AGENT_WORK_DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) work_dir: Option<PathBuf>,
    /// A script language that is not offered although this host has it: python, node, php or powershell; once per language
    #[arg(
        long = "without-language",
        global = true,
        value_name = "NAME",
        env = "RONDEL_AGENT_WITHOUT_LANGUAGES",
        value_delimiter = ','
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) without_languages: Option<Vec<String>>,
    /// A variable of the agent's environment that runs get beside PATH, HOME, LANG and the like; once per variable
    #[arg(long = "pass-env", global = true, value_name = "NAME", env = "RONDEL_AGENT_PASS_ENV", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pass_env: Option<Vec<String>>,
    /// A program that may be started, by its absolute path, interpreters of scripts too; once per program, without it any
    #[arg(
        long = "allow-program",
        global = true,
        value_name = "PATH",
        env = "RONDEL_AGENT_ALLOW_PROGRAMS",
        value_delimiter = ','
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allow_programs: Option<Vec<PathBuf>>,
    /// The user as whom programs are started, with that user's groups; only for an agent that is root
    #[arg(long, global = true, value_name = "USER", env = "RONDEL_AGENT_RUN_AS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run_as: Option<String>,
    #[arg(
        long,
        global = true,
        value_name = "NETWORK",
        env = "RONDEL_AGENT_OUTGOING_ALLOW",
        value_delimiter = ',',
        help = "A network that the handler http may go to beside the public internet, such as 10.1.0.0/16; once per network"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outgoing_allow: Option<Vec<String>>,
    /// How many bytes of what one attempt logs are kept; of what is more, the beginning and the end
    #[arg(long, global = true, value_name = "SIZE", env = "RONDEL_AGENT_LOG_SIZE_MAX")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_size_max: Option<Size>,
    /// How many lines of what one attempt logs are kept
    #[arg(long, global = true, value_name = "N", env = "RONDEL_AGENT_LOG_LINES_MAX", value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_lines_max: Option<u32>,
    /// How long a stopping agent waits for the runs it holds
    #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_AGENT_DRAIN_GRACE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) drain_grace: Option<Length>,
    /// What this agent logs: a level, or filters such as info,tonic=debug
    #[arg(long, global = true, value_name = "FILTER", env = "RUST_LOG")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_level: Option<String>,
    /// How lines of the log look
    #[arg(long, global = true, value_name = "FORM", env = "RONDEL_AGENT_LOG_FORMAT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_format: Option<LogFormat>,
    /// Where traces go: the URL of a collector that takes OTLP over gRPC; without it there are none
    #[arg(long, global = true, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) otlp_endpoint: Option<String>,
    /// The share of traces that begin here to export, from 0 to 1; for other traces the decision of their origin holds
    #[arg(long, global = true, value_name = "SHARE", env = "RONDEL_AGENT_TRACE_RATIO")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_ratio: Option<f64>,
}

impl AgentSettings {
    /// The lowest layer.
    pub(crate) fn defaults() -> Self {
        Self {
            namespace: Some("default".to_owned()),
            slots: Some(16),
            weight: Some(1),
            allow_scripts: Some(false),
            without_languages: Some(Vec::new()),
            pass_env: Some(Vec::new()),
            outgoing_allow: Some(Vec::new()),
            log_size_max: Some(Size(LogLimit::default().bytes as u64)),
            log_lines_max: u32::try_from(LogLimit::default().lines).ok(),
            drain_grace: Some(Length(Duration::from_secs(60))),
            log_level: Some("info".to_owned()),
            log_format: Some(LogFormat::Text),
            trace_ratio: Some(RATIO_DEFAULT),
            ..Self::default()
        }
    }

    /// These settings, and those of a lower layer for those that are not set.
    pub(crate) fn over(self, lower: Self) -> Self {
        Self {
            servers: self.servers.or(lower.servers),
            app: self.app.or(lower.app),
            namespace: self.namespace.or(lower.namespace),
            name: self.name.or(lower.name),
            token_file: self.token_file.or(lower.token_file),
            data_dir: self.data_dir.or(lower.data_dir),
            slots: self.slots.or(lower.slots),
            labels: self.labels.or(lower.labels),
            weight: self.weight.or(lower.weight),
            allow_scripts: self.allow_scripts.or(lower.allow_scripts),
            ca_file: self.ca_file.or(lower.ca_file),
            cert_file: self.cert_file.or(lower.cert_file),
            key_file: self.key_file.or(lower.key_file),
            secrets_dir: self.secrets_dir.or(lower.secrets_dir),
            work_dir: self.work_dir.or(lower.work_dir),
            without_languages: self.without_languages.or(lower.without_languages),
            pass_env: self.pass_env.or(lower.pass_env),
            allow_programs: self.allow_programs.or(lower.allow_programs),
            run_as: self.run_as.or(lower.run_as),
            outgoing_allow: self.outgoing_allow.or(lower.outgoing_allow),
            log_size_max: self.log_size_max.or(lower.log_size_max),
            log_lines_max: self.log_lines_max.or(lower.log_lines_max),
            drain_grace: self.drain_grace.or(lower.drain_grace),
            log_level: self.log_level.or(lower.log_level),
            log_format: self.log_format.or(lower.log_format),
            otlp_endpoint: self.otlp_endpoint.or(lower.otlp_endpoint),
            trace_ratio: self.trace_ratio.or(lower.trace_ratio),
        }
    }
}

/// Settings that were checked.
#[derive(Clone, Debug)]
pub(crate) struct AgentConfig {
    pub(crate) servers: Vec<String>,
    pub(crate) app: String,
    pub(crate) namespace: String,
    pub(crate) name: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) slots: u32,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) weight: u32,
    pub(crate) allow_scripts: bool,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) secrets_dir: Option<PathBuf>,
    pub(crate) work_dir: Option<PathBuf>,
    pub(crate) without_languages: Vec<String>,
    pub(crate) pass_env: Vec<String>,
    pub(crate) allow_programs: Option<Vec<PathBuf>>,
    pub(crate) run_as: Option<String>,
    pub(crate) outgoing_allow: AllowedAddresses,
    pub(crate) log_limit: LogLimit,
    pub(crate) drain_grace: Duration,
    pub(crate) log_level: String,
    pub(crate) log_format: LogFormat,
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) trace_ratio: f64,
}

impl TryFrom<AgentSettings> for AgentConfig {
    type Error = Failure;

    fn try_from(settings: AgentSettings) -> Result<Self, Failure> {
        let settings = settings.over(AgentSettings::defaults());
        let missing = |key: &str| wrong(SECTION, key, "is missing");
        let servers = settings.servers.unwrap_or_default();
        if servers.is_empty() {
            let sentence = "is missing: give --server, RONDEL_AGENT_SERVERS or the config file's servers, such as \
                http://127.0.0.1:8080";
            return Err(wrong(SECTION, "servers", sentence));
        }
        let labels = settings.labels.unwrap_or_default();
        let config = Self {
            servers,
            app: settings.app.ok_or_else(|| wrong(SECTION, "app", NO_APP))?,
            namespace: settings.namespace.ok_or_else(|| missing("namespace"))?,
            name: settings.name,
            token_file: settings.token_file,
            data_dir: settings.data_dir,
            slots: settings.slots.ok_or_else(|| missing("slots"))?,
            labels: labels.iter().map(|label| split_label(label)).collect::<Result<_, _>>()?,
            weight: settings.weight.ok_or_else(|| missing("weight"))?,
            allow_scripts: settings.allow_scripts.unwrap_or(false),
            ca_file: settings.ca_file,
            certificate: match (settings.cert_file, settings.key_file) {
                (Some(certificate), Some(key)) => Some((certificate, key)),
                (None, None) => None,
                (Some(_), None) => return Err(wrong(SECTION, "key_file", "is missing: the key of cert_file")),
                (None, Some(_)) => return Err(wrong(SECTION, "cert_file", "is missing: the certificate of key_file")),
            },
            secrets_dir: settings.secrets_dir,
            work_dir: settings.work_dir,
            without_languages: settings.without_languages.unwrap_or_default(),
            pass_env: settings.pass_env.unwrap_or_default(),
            allow_programs: settings.allow_programs,
            run_as: settings.run_as,
            outgoing_allow: outgoing_allow(SECTION, settings.outgoing_allow)?,
            log_limit: LogLimit {
                bytes: settings.log_size_max.ok_or_else(|| missing("log_size_max"))?.as_usize(),
                lines: settings.log_lines_max.ok_or_else(|| missing("log_lines_max"))? as usize,
            },
            drain_grace: settings.drain_grace.ok_or_else(|| missing("drain_grace"))?.0,
            log_level: settings.log_level.ok_or_else(|| missing("log_level"))?,
            log_format: settings.log_format.ok_or_else(|| missing("log_format"))?,
            otlp_endpoint: settings.otlp_endpoint,
            trace_ratio: settings.trace_ratio.ok_or_else(|| missing("trace_ratio"))?,
        };
        config.check()?;
        Ok(config)
    }
}

impl AgentConfig {
    /// What the program logs and traces of itself.
    pub(crate) fn telemetry(&self) -> TelemetrySettings<'_> {
        TelemetrySettings {
            filter: &self.log_level,
            format: self.log_format,
            endpoint: self.otlp_endpoint.as_deref(),
            ratio: self.trace_ratio,
            service: "rondel-agent",
        }
    }

    fn check(&self) -> Result<(), Failure> {
        for url in &self.servers {
            check_url(SECTION, "servers", url)?;
        }
        let names = [("app", Some(&self.app)), ("namespace", Some(&self.namespace)), ("name", self.name.as_ref())];
        for (key, value) in names {
            if let Some(value) = value {
                name::check(value).map_err(|sentence| wrong(SECTION, key, sentence))?;
            }
        }
        if self.slots == 0 {
            return Err(wrong(SECTION, "slots", "0 slots can run nothing"));
        }
        if let Some(folder) = self.secrets_dir.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(wrong(SECTION, "secrets_dir", format!("{} is not a folder", folder.display())));
        }
        let is_known = |name: &String| agent::languages().any(|language| language == name);
        if let Some(name) = self.without_languages.iter().find(|name| !is_known(name)) {
            let known = agent::languages().collect::<Vec<_>>().join(", ");
            return Err(wrong(SECTION, "without_languages", format!("{name:?} is none of {known}")));
        }
        self.check_programs()?;
        if self.log_limit.bytes < LOG_SIZE_MIN || self.log_limit.lines == 0 {
            return Err(wrong(SECTION, "log_size_max", "a log needs room for at least one line and 64KiB"));
        }
        if let Some(url) = &self.otlp_endpoint {
            telemetry::check_endpoint(url).map_err(|sentence| wrong(SECTION, "otlp_endpoint", sentence))?;
        }
        telemetry::check_ratio(self.trace_ratio).map_err(|sentence| wrong(SECTION, "trace_ratio", sentence))?;
        telemetry::check(&self.log_level).map_err(|sentence| wrong(SECTION, "log_level", sentence))
    }
}

impl AgentConfig {
    fn check_programs(&self) -> Result<(), Failure> {
        if let Some(name) = self.pass_env.iter().find(|name| name.starts_with("RONDEL_") || name.contains('=')) {
            let sentence =
                format!("{name:?} is not the name of a variable that runs can get: those of RONDEL_ are the agent's");
            return Err(wrong(SECTION, "pass_env", sentence));
        }
        let is_program = |path: &&PathBuf| path.is_absolute() && path.is_file();
        if let Some(path) = self.allow_programs.iter().flatten().find(|path| !is_program(path)) {
            let sentence = format!("{} is not the absolute path of a program on this host", path.display());
            return Err(wrong(SECTION, "allow_programs", sentence));
        }
        Ok(())
    }
}

fn split_label(label: &str) -> Result<(String, String), Failure> {
    match label.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(wrong(SECTION, "labels", format!("{label:?} is not of the form KEY=VALUE"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_settings_are_named() {
        const GOOD: &str = "servers = [\"http://127.0.0.1:1\"]\napp = \"demo\"\n";
        for (text, key) in [
            ("app = \"demo\"", "servers"),
            ("servers = [\"x\"]\napp = \"demo\"", "servers"),
            ("servers = [\"http://127.0.0.1:1\"]", "app"),
            (&format!("{GOOD}name = \"Ä\""), "name"),
            (&format!("{GOOD}labels = [\"zone\"]"), "labels"),
            (&format!("{GOOD}slots = 0"), "slots"),
            (&format!("{GOOD}without_languages = [\"perl\"]"), "without_languages"),
            (&format!("{GOOD}outgoing_allow = [\"10.0.0.0/8\", \"inside\"]"), "outgoing_allow"),
            (&format!("{GOOD}log_size_max = \"1KiB\""), "log_size_max"),
            (&format!("{GOOD}pass_env = [\"RONDEL_TOKEN\"]"), "pass_env"),
            (&format!("{GOOD}allow_programs = [\"date\"]"), "allow_programs"),
            (&format!("{GOOD}allow_programs = [\"/nowhere/date\"]"), "allow_programs"),
            (&format!("{GOOD}secrets_dir = \"/nowhere\""), "secrets_dir"),
        ] {
            let settings: AgentSettings = toml::from_str(text).unwrap();
            let refused = format!("{:?}", AgentConfig::try_from(settings).unwrap_err());
            assert!(refused.contains(&format!("agent.{key}")), "{text}: {refused}");
        }
        let settings: AgentSettings = toml::from_str(&format!("{GOOD}labels = [\"zone=a=b\"]")).unwrap();
        assert_eq!(AgentConfig::try_from(settings).unwrap().labels, [("zone".to_owned(), "a=b".to_owned())]);
    }
}

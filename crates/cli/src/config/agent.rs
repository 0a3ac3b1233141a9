//! Settings of `rondel agent`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rondel::{LogLimit, agent};
use rondel_core::name;
use rondel_core::outgoing::AllowedAddresses;

use super::check::{self, bad_setting};
use super::layer::{Layer, settings};
use super::values::{DurationText, Size};
use crate::exit::Failure;
use crate::telemetry::{LogFormat, RATIO_DEFAULT, TelemetrySettings};

const SECTION: &str = AgentSettings::SECTION;
const NO_APP: &str = "is missing: give --app, RONDEL_AGENT_APP or the config file's app, the one that its jobs name";
/// Minimum size of a log, in bytes: it must hold a few long lines.
const LOG_SIZE_MIN: usize = 64 * 1024;

settings! {
    /// One layer of settings, or several merged layers.
    "agent", AgentSettings => AgentValues {
        /// A server's URL; several may be given, but one is enough to find the others
        #[arg(long = "server", global = true, value_name = "URL", env = "RONDEL_AGENT_SERVERS", value_delimiter = ',')]
        servers: Vec<String>, example "[\"http://rondel-1.example.com:8080\", \"http://rondel-2.example.com:8080\"]";
        /// The app whose jobs this agent runs
        #[arg(long, global = true, value_name = "NAME", env = "RONDEL_AGENT_APP")]
        app: String, example "\"billing\"";
        /// The namespace of the app
        #[arg(long, global = true, value_name = "NAME", env = "RONDEL_AGENT_NAMESPACE")]
        namespace: String = "default".to_owned();
        /// This agent's name, the same at each of its starts; by default stored in the data folder, or made from the host's name
        #[arg(long, global = true, value_name = "NAME", env = "RONDEL_AGENT_NAME")]
        name: String, example "\"billing-1\"";
        /// The file with the token; the environment variable `RONDEL_TOKEN` takes precedence
        #[arg(long, global = true, value_name = "FILE", env = "RONDEL_AGENT_TOKEN_FILE")]
        token_file: PathBuf, example "\"/etc/rondel/executor.token\"";
        /// The file with certificates to trust for https servers, in addition to the well-known ones
        #[arg(long, global = true, value_name = "FILE", env = "RONDEL_AGENT_CA_FILE")]
        ca_file: PathBuf, example "\"/etc/rondel/tls/ca.pem\"";
        /// The file with a certificate, for servers that require one from executors
        #[arg(long, global = true, value_name = "FILE", env = "RONDEL_AGENT_CERT_FILE")]
        cert_file: PathBuf, example "\"/etc/rondel/tls/agent.pem\"";
        /// The file with the key of this certificate
        #[arg(long, global = true, value_name = "FILE", env = "RONDEL_AGENT_KEY_FILE")]
        key_file: PathBuf, example "\"/etc/rondel/tls/agent-key.pem\"";
        /// The folder for results that no server has acknowledged yet; without it, the results are only in memory
        #[arg(long, global = true, value_name = "DIR", env = "RONDEL_AGENT_DATA_DIR")]
        data_dir: PathBuf, example "\"/var/lib/rondel-agent\"";
        /// Maximum number of concurrent runs; each of them may be a process
        #[arg(long, global = true, value_name = "N", env = "RONDEL_AGENT_SLOTS", value_parser = clap::value_parser!(u32).range(1..=10_000))]
        slots: u32 = 16;
        /// A label by which jobs can select this agent; several may be given
        #[arg(long = "label", global = true, value_name = "KEY=VALUE", env = "RONDEL_AGENT_LABELS", value_delimiter = ',')]
        labels: Vec<String>, example "[\"zone=cn-east-1\", \"disk=ssd\"]";
        /// This agent's weight for jobs whose runs are distributed by weight
        #[arg(long, global = true, value_name = "N", env = "RONDEL_AGENT_WEIGHT", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
        weight: u32 = 1;
        /// Run script text that comes with a job, not only programs named by it
        #[arg(long, global = true, env = "RONDEL_AGENT_ALLOW_SCRIPTS", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
        allow_scripts: bool = false;
        /// A file with a public key made by rondel script key; several may be given. Only scripts signed with one of these keys are run
        #[arg(long = "script-key", global = true, value_name = "FILE", env = "RONDEL_AGENT_SCRIPT_KEYS", value_delimiter = ',')]
        script_keys: Vec<PathBuf> = Vec::new();
        /// The folder with one file per secret, for `{{secret.NAME}}` in parameters
        #[arg(long, global = true, value_name = "DIR", env = "RONDEL_AGENT_SECRETS_DIR")]
        secrets_dir: PathBuf, example "\"/etc/rondel/secrets\"";
        /// The folder for the working directories of runs; by default work in the data folder, or a folder in the host's temporary folder
        #[arg(long, global = true, value_name = "DIR", env = "RONDEL_AGENT_WORK_DIR")]
        work_dir: PathBuf, example "\"/var/tmp/rondel-agent\"";
        /// A script language that this agent does not offer, even if this host has its interpreter: python, node, php or powershell; several may be given
        #[arg(
            long = "without-language",
            global = true,
            value_name = "NAME",
            env = "RONDEL_AGENT_WITHOUT_LANGUAGES",
            value_delimiter = ','
        )]
        without_languages: Vec<String> = Vec::new();
        /// An environment variable of the agent that runs get too, in addition to PATH, HOME, LANG and similar variables; several may be given
        #[arg(long = "pass-env", global = true, value_name = "NAME", env = "RONDEL_AGENT_PASS_ENV", value_delimiter = ',')]
        pass_env: Vec<String> = Vec::new();
        /// The absolute path of a program, or of an interpreter of scripts, that may be started; several may be given. By default all programs may be started
        #[arg(
            long = "allow-program",
            global = true,
            value_name = "PATH",
            env = "RONDEL_AGENT_ALLOW_PROGRAMS",
            value_delimiter = ','
        )]
        allow_programs: Vec<PathBuf>, example "[\"/usr/bin/rsync\", \"/opt/reports/bin/report\"]";
        /// The user as whom programs are started, with that user's groups; only for an agent that is root
        #[arg(long, global = true, value_name = "USER", env = "RONDEL_AGENT_RUN_AS")]
        run_as: String, example "\"jobs\"";
        #[arg(
            long,
            global = true,
            value_name = "NETWORK",
            env = "RONDEL_AGENT_OUTGOING_ALLOW",
            value_delimiter = ',',
            help = "A network that the handler http may call, in addition to the public internet, such as 10.1.0.0/16; several may be given"
        )]
        outgoing_allow: Vec<String> = Vec::new();
        /// Maximum size of one attempt's log; of a longer log, the beginning and the end are kept
        #[arg(long, global = true, value_name = "SIZE", env = "RONDEL_AGENT_LOG_SIZE_MAX")]
        log_size_max: Size = Size(LogLimit::default().bytes as u64);
        /// Maximum number of lines of one attempt's log
        #[arg(long, global = true, value_name = "N", env = "RONDEL_AGENT_LOG_LINES_MAX", value_parser = clap::value_parser!(u32).range(1..))]
        log_lines_max: u32 = u32::try_from(LogLimit::default().lines).unwrap_or(u32::MAX);
        /// How long a stopping agent waits for its open runs
        #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_AGENT_DRAIN_GRACE")]
        drain_grace: DurationText = DurationText(Duration::from_secs(60));
        /// What this agent logs: a level, or filters such as info,tonic=debug
        #[arg(long, global = true, value_name = "FILTER", env = "RUST_LOG")]
        log_level: String = "info".to_owned();
        /// The format of log lines
        #[arg(long, global = true, value_name = "FORM", env = "RONDEL_AGENT_LOG_FORMAT")]
        log_format: LogFormat = LogFormat::Text;
        /// The URL of a collector that takes traces by OTLP over gRPC; without it, no traces are exported
        #[arg(long, global = true, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
        otlp_endpoint: String, example "\"http://127.0.0.1:4317\"";
        /// The share of the traces begun here that is exported, from 0 to 1; for other traces, the program that began them decides
        #[arg(long, global = true, value_name = "SHARE", env = "RONDEL_AGENT_TRACE_RATIO")]
        trace_ratio: f64 = RATIO_DEFAULT;
    }
}

/// Checked settings.
#[derive(Clone, Debug)]
pub(crate) struct AgentConfig {
    pub(crate) settings: AgentValues,
    pub(crate) servers: Vec<String>,
    pub(crate) app: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) certificate_and_key: Option<(PathBuf, PathBuf)>,
    pub(crate) outgoing_allow: AllowedAddresses,
    pub(crate) log_limit: LogLimit,
    pub(crate) script_keys: Vec<agent::ScriptKey>,
}

impl TryFrom<AgentSettings> for AgentConfig {
    type Error = Failure;

    fn try_from(settings: AgentSettings) -> Result<Self, Failure> {
        let settings = settings.values();
        let servers = settings.servers.clone().unwrap_or_default();
        if servers.is_empty() {
            let sentence = "is missing: give --server, RONDEL_AGENT_SERVERS or the config file's servers, such as \
                http://127.0.0.1:8080";
            return Err(bad_setting(SECTION, "servers", sentence));
        }
        let config = Self {
            servers,
            app: settings.app.clone().ok_or_else(|| bad_setting(SECTION, "app", NO_APP))?,
            labels: settings.labels.iter().flatten().map(|label| split_label(label)).collect::<Result<_, _>>()?,
            certificate_and_key: match (settings.cert_file.clone(), settings.key_file.clone()) {
                (Some(certificate), Some(key)) => Some((certificate, key)),
                (None, None) => None,
                (Some(_), None) => {
                    return Err(bad_setting(SECTION, "key_file", "is missing: the key of cert_file"));
                }
                (None, Some(_)) => {
                    return Err(bad_setting(SECTION, "cert_file", "is missing: the certificate of key_file"));
                }
            },
            outgoing_allow: check::parse_outgoing_allow(SECTION, settings.outgoing_allow.clone())?,
            log_limit: LogLimit { bytes: settings.log_size_max.as_usize(), lines: settings.log_lines_max as usize },
            script_keys: settings.script_keys.iter().map(|path| script_key(path)).collect::<Result<_, _>>()?,
            settings,
        };
        config.check()?;
        Ok(config)
    }
}

impl AgentConfig {
    /// The settings for the program's own logs and traces.
    pub(crate) fn telemetry(&self) -> TelemetrySettings<'_> {
        TelemetrySettings {
            filter: &self.settings.log_level,
            format: self.settings.log_format,
            endpoint: self.settings.otlp_endpoint.as_deref(),
            ratio: self.settings.trace_ratio,
            service: "rondel-agent",
        }
    }

    fn check(&self) -> Result<(), Failure> {
        for url in &self.servers {
            check::check_url(SECTION, "servers", url)?;
        }
        let names = [
            ("app", Some(&self.app)),
            ("namespace", Some(&self.settings.namespace)),
            ("name", self.settings.name.as_ref()),
        ];
        for (key, value) in names {
            if let Some(value) = value {
                name::check(value).map_err(|sentence| bad_setting(SECTION, key, sentence))?;
            }
        }
        check::check_range(SECTION, "slots", self.settings.slots, (1, 10_000))?;
        check::check_range(SECTION, "weight", self.settings.weight, (0, 1_000_000))?;
        if let Some(folder) = self.settings.secrets_dir.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(bad_setting(SECTION, "secrets_dir", format!("{} is not a folder", folder.display())));
        }
        let is_known = |name: &String| agent::languages().any(|language| language == name);
        if let Some(name) = self.settings.without_languages.iter().find(|name| !is_known(name)) {
            let language_names = agent::languages().collect::<Vec<_>>().join(", ");
            return Err(bad_setting(SECTION, "without_languages", format!("{name:?} is none of {language_names}")));
        }
        let is_repeated = |(index, (key, value)): &(usize, &(String, String))| {
            self.labels[..*index].iter().any(|(earlier_key, other_value)| earlier_key == key && other_value != value)
        };
        if let Some((_, (key, value))) = self.labels.iter().enumerate().find(is_repeated) {
            let sentence = format!("\"{key}={value}\" is a second value of {key:?}; a label has one");
            return Err(bad_setting(SECTION, "labels", sentence));
        }
        self.check_programs()?;
        if self.log_limit.bytes < LOG_SIZE_MIN || self.log_limit.lines == 0 {
            return Err(bad_setting(SECTION, "log_size_max", "a log needs room for at least one line and 64KiB"));
        }
        check::check_telemetry(SECTION, self.telemetry())
    }
}

impl AgentConfig {
    fn check_programs(&self) -> Result<(), Failure> {
        if let Some(name) = self.settings.pass_env.iter().find(|name| name.starts_with("RONDEL_") || name.contains('='))
        {
            let sentence =
                format!("{name:?} is not the name of a variable that runs can get: those of RONDEL_ are the agent's");
            return Err(bad_setting(SECTION, "pass_env", sentence));
        }
        let is_program = |path: &&PathBuf| path.is_absolute() && path.is_file();
        if let Some(path) = self.settings.allow_programs.iter().flatten().find(|path| !is_program(path)) {
            let sentence = format!("{} is not the absolute path of a program on this host", path.display());
            return Err(bad_setting(SECTION, "allow_programs", sentence));
        }
        Ok(())
    }
}

fn script_key(path: &Path) -> Result<agent::ScriptKey, Failure> {
    let text = std::fs::read_to_string(path);
    let text =
        text.map_err(|error| bad_setting(SECTION, "script_keys", format!("cannot read {}: {error}", path.display())))?;
    agent::ScriptKey::from_pem(&text)
        .map_err(|sentence| bad_setting(SECTION, "script_keys", format!("{} {sentence}", path.display())))
}

fn split_label(label: &str) -> Result<(String, String), Failure> {
    match label.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(bad_setting(SECTION, "labels", format!("{label:?} is not of the form KEY=VALUE"))),
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
            (&format!("{GOOD}labels = [\"zone=a\", \"zone=b\"]"), "labels"),
            (&format!("{GOOD}slots = 0"), "slots"),
            (&format!("{GOOD}slots = 10001"), "slots"),
            (&format!("{GOOD}weight = 1000001"), "weight"),
            (&format!("{GOOD}without_languages = [\"perl\"]"), "without_languages"),
            (&format!("{GOOD}outgoing_allow = [\"10.0.0.0/8\", \"inside\"]"), "outgoing_allow"),
            (&format!("{GOOD}log_size_max = \"1KiB\""), "log_size_max"),
            (&format!("{GOOD}pass_env = [\"RONDEL_TOKEN\"]"), "pass_env"),
            (&format!("{GOOD}allow_programs = [\"date\"]"), "allow_programs"),
            (&format!("{GOOD}allow_programs = [\"/nowhere/date\"]"), "allow_programs"),
            (&format!("{GOOD}secrets_dir = \"/nowhere\""), "secrets_dir"),
        ] {
            let settings: AgentSettings = toml::from_str(text).unwrap();
            let refusal = format!("{:?}", AgentConfig::try_from(settings).unwrap_err());
            assert!(refusal.contains(&format!("agent.{key}")), "{text}: {refusal}");
        }
        let settings: AgentSettings = toml::from_str(&format!("{GOOD}labels = [\"zone=a=b\"]")).unwrap();
        assert_eq!(AgentConfig::try_from(settings).unwrap().labels, [("zone".to_owned(), "a=b".to_owned())]);
        let settings: AgentSettings = toml::from_str(&format!("{GOOD}labels = [\"zone=a\", \"zone=a\"]")).unwrap();
        assert!(AgentConfig::try_from(settings).is_ok(), "the same value twice is one value");
    }
}

//! The reference config: every key with what it means and its default, generated from the code.

use std::fmt::Write as _;

use clap::{Args, Command};
use serde::Serialize;

use super::{AgentSettings, HttpSettings, OidcSettings, ServerSettings};
use crate::exit::Failure;

/// Keys without a default, with a value that shows what one looks like.
const EXAMPLES: &[(&str, &str)] = &[
    ("database", "\"sqlite:///var/lib/rondel/rondel.db\""),
    ("node_name", "\"rondel-1\""),
    ("advertise", "\"http://rondel-1.example.com:8080\""),
    ("secret_key_file", "\"/etc/rondel/secret.key\""),
    ("tls_cert", "\"/etc/rondel/tls/cert.pem\""),
    ("tls_key", "\"/etc/rondel/tls/key.pem\""),
    ("tls_client_ca", "\"/etc/rondel/tls/executors-ca.pem\""),
    ("executor_certificates", "\"named\""),
    ("issuer", "\"https://id.example.com/realms/main\""),
    ("client_id", "\"rondel\""),
    ("client_secret_file", "\"/etc/rondel/oidc.secret\""),
    ("redirect_url", "\"https://rondel.example.com/sign-in/oidc/callback\""),
    ("ca_file", "\"/etc/rondel/tls/ca.pem\""),
    ("cert_file", "\"/etc/rondel/tls/agent.pem\""),
    ("key_file", "\"/etc/rondel/tls/agent-key.pem\""),
    ("admin_token_file", "\"/etc/rondel/admin.token\""),
    ("metrics_token_file", "\"/etc/rondel/metrics.token\""),
    ("servers", "[\"http://rondel-1.example.com:8080\", \"http://rondel-2.example.com:8080\"]"),
    ("app", "\"billing\""),
    ("name", "\"billing-1\""),
    ("token_file", "\"/etc/rondel/executor.token\""),
    ("data_dir", "\"/var/lib/rondel-agent\""),
    ("labels", "[\"zone=cn-east-1\", \"disk=ssd\"]"),
    ("secrets_dir", "\"/etc/rondel/secrets\""),
    ("otlp_endpoint", "\"http://127.0.0.1:4317\""),
    ("allow_programs", "[\"/usr/bin/rsync\", \"/opt/reports/bin/report\"]"),
    ("run_as", "\"jobs\""),
    ("work_dir", "\"/var/tmp/rondel-agent\""),
];

/// A config file with the default of each setting; keys without a default are commented out.
pub(crate) fn reference() -> Result<String, Failure> {
    let mut text = String::from("# Settings of `rondel server` and `rondel agent`. Each key may be left out.\n");
    section::<ServerSettings>(&mut text, "server", &ServerSettings::defaults())?;
    section::<OidcSettings>(&mut text, "oidc", &OidcSettings::defaults())?;
    section::<HttpSettings>(&mut text, "http", &HttpSettings::defaults())?;
    section::<AgentSettings>(&mut text, "agent", &AgentSettings::defaults())?;
    Ok(text)
}

fn section<S: Args>(text: &mut String, name: &str, defaults: &impl Serialize) -> Result<(), Failure> {
    let table = toml::Table::try_from(defaults).map_err(|error| Failure::of("cannot print the defaults", &error))?;
    write!(text, "\n[{name}]\n")?;
    for arg in S::augment_args(Command::new("settings")).get_arguments() {
        let key = arg.get_id().as_str();
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let flag = arg.get_long().unwrap_or_default();
        let variable = arg.get_env().and_then(|name| name.to_str()).unwrap_or_default();
        writeln!(text, "# {help}.\n# --{flag}, {variable}")?;
        let example = EXAMPLES.iter().find(|(name, _)| *name == key).map_or("\"\"", |(_, example)| example);
        match table.get(key) {
            Some(value) => writeln!(text, "{key} = {value}\n")?,
            None => writeln!(text, "#{key} = {example}\n")?,
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    Ok(())
}

/// Puts the defaults of settings into the help of `server` and `agent`.
pub(crate) fn with_defaults(command: Command) -> Command {
    command
        .mut_subcommand("server", |server| {
            let server = shown(shown(server, &ServerSettings::defaults()), &OidcSettings::defaults());
            shown(server, &HttpSettings::defaults())
        })
        .mut_subcommand("agent", |agent| shown(agent, &AgentSettings::defaults()))
}

fn shown(command: Command, defaults: &impl Serialize) -> Command {
    let table = toml::Table::try_from(defaults).unwrap_or_default();
    command.mut_args(|arg| {
        let text = match table.get(arg.get_id().as_str()) {
            Some(toml::Value::String(text)) => text.clone(),
            Some(value) if value.as_array().is_none_or(|all| !all.is_empty()) => value.to_string(),
            Some(_) | None => return arg,
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{help} [default: {text}]"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::ConfigFile;
    use super::*;

    #[test]
    fn the_reference_is_a_config_file_with_every_key() {
        let text = reference().unwrap();
        let file: ConfigFile = toml::from_str(&text).unwrap();
        assert_eq!(
            toml::to_string(&file.server.unwrap()).unwrap(),
            toml::to_string(&ServerSettings::defaults()).unwrap()
        );
        assert_eq!(toml::to_string(&file.http.unwrap()).unwrap(), toml::to_string(&HttpSettings::defaults()).unwrap());
        assert_eq!(toml::to_string(&file.oidc.unwrap()).unwrap(), toml::to_string(&OidcSettings::defaults()).unwrap());
        assert_eq!(
            toml::to_string(&file.agent.unwrap()).unwrap(),
            toml::to_string(&AgentSettings::defaults()).unwrap()
        );
        let uncommented: String = text
            .lines()
            .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
            .fold(String::new(), |text, line| text + line + "\n");
        let examples: toml::Table = uncommented.parse().unwrap();
        toml::from_str::<ConfigFile>(&uncommented).unwrap();
        assert!(!uncommented.contains("= \"\""), "a key has neither default nor example");
        assert_eq!(examples.len(), 4);
    }

    #[test]
    fn the_document_holds_the_reference() {
        let document = include_str!("../../../../docs/CONFIGURATION.md");
        let (_, rest) = document.split_once("```toml\n").expect("docs/CONFIGURATION.md has a block of TOML");
        let (block, _) = rest.split_once("```").expect("the block ends");
        let text = reference().unwrap();
        assert!(block == text, "docs/CONFIGURATION.md is not what `rondel config-reference` prints:\n{text}");
    }
}

//! The reference config: every key with its help and its default, generated from the code.

use std::fmt::Write as _;

use clap::Command;

use super::agent::AgentSettings;
use super::http::HttpSettings;
use super::layer::Layer;
use super::oidc::OidcSettings;
use super::server::ServerSettings;
use crate::exit::Failure;

/// A config file with the default of each setting; keys without a default are commented out.
pub(crate) fn reference() -> Result<String, Failure> {
    let mut text = String::from("# Settings of `rondel server` and `rondel agent`. Each key may be left out.\n");
    write_section::<ServerSettings>(&mut text)?;
    write_section::<OidcSettings>(&mut text)?;
    write_section::<HttpSettings>(&mut text)?;
    write_section::<AgentSettings>(&mut text)?;
    Ok(text)
}

fn write_section<S: Layer>(text: &mut String) -> Result<(), Failure> {
    let table =
        toml::Table::try_from(S::defaults()).map_err(|error| Failure::of("cannot print the defaults", &error))?;
    write!(text, "\n[{}]\n", S::SECTION)?;
    for arg in S::augment_args(Command::new("settings")).get_arguments() {
        let key = arg.get_id().as_str();
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let flag = arg.get_long().unwrap_or_default();
        let variable = arg.get_env().and_then(|name| name.to_str()).unwrap_or_default();
        writeln!(text, "# {help}.\n# --{flag}, {variable}")?;
        let example = S::EXAMPLES.iter().find(|(name, _)| *name == key).map_or("\"\"", |(_, example)| example);
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
            add_defaults::<HttpSettings>(add_defaults::<OidcSettings>(add_defaults::<ServerSettings>(server)))
        })
        .mut_subcommand("agent", add_defaults::<AgentSettings>)
}

fn add_defaults<S: Layer>(command: Command) -> Command {
    let table = toml::Table::try_from(S::defaults()).unwrap_or_default();
    command.mut_args(|arg| {
        let text = match table.get(arg.get_id().as_str()) {
            Some(toml::Value::String(text)) => text.clone(),
            Some(value) if value.as_array().is_none_or(|values| !values.is_empty()) => value.to_string(),
            Some(_) | None => return arg,
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{help} [default: {text}]"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::file::ConfigFile;
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

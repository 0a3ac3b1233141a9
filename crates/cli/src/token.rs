//! `rondel token`: API tokens, for programs and for executors.

use std::io::IsTerminal as _;

use clap::{Args, Subcommand, ValueEnum};
use rondel_core::Timestamp;
use serde_json::{Value, json};

use crate::client::{Client, ClientArgs, text_of, time_text};
use crate::delete::delete;
use crate::exit::{Exit, Failure};
use crate::format::{Format, FormatArgs};
use crate::roles::{parse_roles, role_argument, with_place_hint};
use crate::server_clock::server_now;
use crate::view::View;
use crate::{list, output};

#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// The API
    Api,
    /// Executors
    Executor,
    /// Executors of one app that speak XXL-JOB's protocol
    Xxl,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Executor => "executor",
            Self::Xxl => "xxl",
        }
    }
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// List your own tokens; their secrets are not stored
    List {
        /// List the tokens of all users and of executors
        #[arg(long)]
        everybody: bool,
        #[command(flatten)]
        bounds: list::BoundArgs,
    },
    /// Create a token, and print it: it is not shown again
    #[command(
        after_help = "Examples:\n  umask 077 && rondel token create ci --role operator:default/billing --expires-in 30d > ci.token\n  umask 077 && rondel token create agents --kind executor --role executor:default/billing > agent.token"
    )]
    Create {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
        /// What the token is for
        #[arg(long, value_enum, default_value_t = Kind::Api)]
        kind: Kind,
        /// What the token may do: ROLE, ROLE:NAMESPACE or ROLE:NAMESPACE/APP; executor:NAMESPACE/APP for tokens of executors
        #[arg(long = "role", value_name = "ROLE[:PLACE]", required = true)]
        roles: Vec<String>,
        /// How long the token is valid, or never for no end; by default 90 days for the API, and no end for executors
        #[arg(long, value_name = "DURATION")]
        expires_in: Option<String>,
        /// Executors with this token may declare jobs in their code
        #[arg(long)]
        declares: bool,
        /// Executors with this token may not declare jobs: the default
        #[arg(long, conflicts_with = "declares", hide = true)]
        no_declares: bool,
    },
    /// Replace a token's secret and print the new secret; the old secret stays valid for a while
    Rotate {
        /// The token's id, or its name if no other token has it
        #[arg(value_name = "ID")]
        id: String,
        /// How long the old secret stays valid
        #[arg(long, value_name = "DURATION", default_value = "24h")]
        overlap: String,
    },
    /// End a token
    Revoke {
        /// The token's id, or its name if no other token has it
        #[arg(value_name = "ID")]
        id: String,
    },
}

const VIEW: View =
    View { name: "id", headers: &["ID", "NAME", "KIND", "BEGINS WITH", "ROLES", "EXPIRES", "LAST USED", "STATE"], row };

impl TokenArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let (client, format) = (self.client.client()?, self.format);
        match self.command {
            TokenCommand::List { everybody, bounds } => {
                let query: &[(&str, &str)] = if everybody { &[("all", "true")] } else { &[] };
                let tokens = list::read(&client, "tokens", query, &bounds).await?;
                VIEW.print_list(&tokens, format)?;
                if !everybody && tokens.page()?.items.is_empty() {
                    output::print_message(
                        "no token belongs to your account; those of others and of no account: rondel token list --everybody",
                    );
                }
                Ok(())
            }
            TokenCommand::Create { name, kind, roles: role_words, expires_in, declares, no_declares: _ } => {
                check_kind(kind, &role_words)?;
                let new_apps = missing_apps(&client, &role_words).await;
                let body = json!({
                    "kind": kind.as_str(), "name": name, "grants": parse_roles(&role_words)?, "expires_in": expires_in,
                    "declares": declares,
                });
                let token = client.post(&["tokens"], &body.to_string()).await;
                let token = token.map_err(|failure| with_place_hint(failure, &role_words))?;
                for app in new_apps {
                    output::print_message(&format!(
                        "note: app {app} was not there and was made; if the name is misspelt, no job will find its executors"
                    ));
                }
                print_secret(&token, format)
            }
            TokenCommand::Rotate { id, overlap } => {
                let id = token_id(&client, &id).await?;
                let body = json!({ "overlap": overlap }).to_string();
                print_secret(&client.post(&["tokens", &id, "rotate"], &body).await?, format)
            }
            TokenCommand::Revoke { id } => {
                let id = token_id(&client, &id).await?;
                let sentence =
                    format!("revoked {id}; what it opened, such as executors' streams, ends within a minute");
                delete(&client, &["tokens", &id], &[], &sentence, format).await
            }
        }
    }
}

/// The id of the requested token, which may be given by its name.
async fn token_id(client: &Client, id_or_name: &str) -> Result<String, Failure> {
    if id_or_name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(id_or_name.to_owned());
    }
    let token_list = list::read(client, "tokens", &[("all", "true")], &list::BoundArgs::unlimited()).await?.value()?;
    let tokens = token_list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let matching_tokens = tokens_of_name(tokens, id_or_name, server_now(client).await);
    let matching_ids: Vec<String> = matching_tokens.into_iter().map(|token| text_of(&token["id"])).collect();
    match matching_ids.as_slice() {
        [id] => Ok(id.clone()),
        [] => Err(Failure::new(
            Exit::NotFound,
            format!(
                "there is no token {id_or_name:?} that is not revoked; rondel token list --everybody shows ids and names"
            ),
        )),
        ids => Err(Failure::refused(format!(
            "several tokens are called {id_or_name:?}; give one of their ids: {}",
            ids.join(", ")
        ))),
    }
}

/// The tokens with this name that have not ended: each rotation leaves one with the name that expires. If there are none, those that have
/// expired.
fn tokens_of_name<'t>(tokens: &'t [Value], name: &str, now: Timestamp) -> Vec<&'t Value> {
    let in_state = |state: &str| -> Vec<&'t Value> {
        tokens.iter().filter(|token| token["name"] == name && state_text(token, now) == state).collect()
    };
    let valid_tokens = in_state("");
    if valid_tokens.is_empty() { in_state("expired") } else { valid_tokens }
}

/// Checks that a token for executors has only the role executor, and that a token for the API does not have it.
fn check_kind(kind: Kind, role_words: &[String]) -> Result<(), Failure> {
    let is_executor = |word: &&String| word.split(':').next() == Some("executor");
    match kind {
        Kind::Api => match role_words.iter().find(is_executor) {
            Some(word) => Err(Failure::refused(format!("--role {word} is for executors: add --kind executor"))),
            None => Ok(()),
        },
        Kind::Executor | Kind::Xxl => match role_words.iter().find(|word| !is_executor(word)) {
            Some(word) => Err(Failure::refused(format!(
                "--role {word} is none for executors: leave out --kind {}, or give --role executor:NAMESPACE/APP",
                kind.as_str()
            ))),
            None => Ok(()),
        },
    }
}

/// The apps of these roles that do not exist yet, as far as the caller can see.
async fn missing_apps(client: &Client, role_words: &[String]) -> Vec<String> {
    let mut missing_apps = Vec::new();
    for app_place in role_words.iter().filter_map(|word| word.strip_prefix("executor:")) {
        let Some((namespace, app)) = app_place.split_once('/') else { continue };
        let stored_apps = client.in_namespace(namespace).get(&["apps"], &[]).await.and_then(|body| body.value());
        let is_new = stored_apps.is_ok_and(|stored_apps| {
            stored_apps["items"].as_array().is_some_and(|apps| apps.iter().all(|app_object| app_object["name"] != app))
        });
        if is_new {
            missing_apps.push(app_place.to_owned());
        }
    }
    missing_apps
}

/// Prints the secret alone on stdout, so that it can be written to a file. With JSON or YAML, prints the whole answer instead.
fn print_secret(token: &crate::client::Body, format: FormatArgs) -> Result<(), Failure> {
    if matches!(format.format, Format::Json | Format::Jsonl | Format::Yaml) {
        return output::print_document(token.text(), format.format);
    }
    let value = token.value()?;
    for warning in value["warnings"].as_array().into_iter().flatten() {
        output::print_message(&format!("warning: {}", text_of(warning)));
    }
    let (id, name) = (text_of(&value["id"]), text_of(&value["name"]));
    output::print_message(&match std::io::stdout().is_terminal() {
        true => format!("token {id} ({name}); it is not shown again:"),
        false => format!("token {id} ({name}): its secret goes to standard output, and is not shown again"),
    });
    output::print_lines(&text_of(&value["token"]))
}

fn row(token: &Value, now: Timestamp) -> Vec<String> {
    let roles =
        token["grants"].as_array().map(|grants| grants.iter().map(role_argument).collect::<Vec<_>>().join(", "));
    vec![
        text_of(&token["id"]),
        text_of(&token["name"]),
        text_of(&token["kind"]),
        text_of(&token["prefix"]),
        roles.unwrap_or_default(),
        time_text(&token["expires_at"], now),
        time_text(&token["last_used_at"], now),
        state_text(token, now).to_owned(),
    ]
}

fn state_text(token: &Value, now: Timestamp) -> &'static str {
    let ends_at = token["expires_at"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    match (token["revoked_at"].is_null(), ends_at) {
        (false, _) => "revoked",
        (true, Some(end)) if end <= now => "expired",
        (true, _) => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_tokens_are_marked() {
        let now = Timestamp::from_secs(100);
        for (token, word) in [
            (json!({"revoked_at": null, "expires_at": null}), ""),
            (json!({"revoked_at": null, "expires_at": "1970-01-01T00:02:00Z"}), ""),
            (json!({"revoked_at": null, "expires_at": "1970-01-01T00:01:40Z"}), "expired"),
            (json!({"revoked_at": "1970-01-01T00:01:00Z", "expires_at": "1970-01-01T00:01:30Z"}), "revoked"),
        ] {
            assert_eq!(state_text(&token, now), word, "{token}");
        }
    }

    #[test]
    fn a_name_stands_for_the_tokens_that_have_not_ended() {
        let now = Timestamp::from_secs(100);
        let token = |id: &str, name: &str, expires_at: Option<&str>, revoked_at: Option<&str>| json!({"id": id, "name": name, "expires_at": expires_at, "revoked_at": revoked_at});
        let (past, soon) = (Some("1970-01-01T00:01:00Z"), Some("1970-01-01T00:02:00Z"));
        let tokens = [
            token("1", "a", past, None),
            token("2", "a", None, None),
            token("3", "a", None, past),
            token("4", "b", past, None),
            token("5", "b", past, past),
            token("6", "c", soon, None),
            token("7", "c", None, None),
        ];
        for (name, expected) in [("a", &["2"][..]), ("b", &["4"]), ("c", &["6", "7"]), ("d", &[])] {
            let found: Vec<String> =
                tokens_of_name(&tokens, name, now).into_iter().map(|token| text_of(&token["id"])).collect();
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn kinds_and_roles_go_together() {
        let checked =
            |kind, role: &str| check_kind(kind, &[role.to_owned()]).map_err(|failure| failure.message().to_owned());
        assert!(checked(Kind::Api, "executor:default/billing").unwrap_err().contains("add --kind executor"));
        assert!(checked(Kind::Executor, "viewer").unwrap_err().contains("--role executor:NAMESPACE/APP"));
        assert_eq!(checked(Kind::Api, "viewer"), Ok(()));
        assert_eq!(checked(Kind::Executor, "executor:default/billing"), Ok(()));
        assert_eq!(checked(Kind::Xxl, "executor:default/billing"), Ok(()));
        assert!(checked(Kind::Xxl, "viewer").unwrap_err().contains("leave out --kind xxl"));
    }
}

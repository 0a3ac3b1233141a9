//! `rondel user`: the users of the console.

use std::io::{BufRead as _, IsTerminal as _, Read as _};

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use serde_json::{Map, Value, json};

use crate::client::{ClientArgs, text_of, time_text};
use crate::delete::delete;
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::roles::{parse_roles, role_argument, with_place_hint};
use crate::view::View;
use crate::{list, output};

#[derive(Debug, Args)]
pub(crate) struct UserArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Debug, Subcommand)]
enum UserCommand {
    /// List the users by name
    List(list::BoundArgs),
    /// Show a user
    Get(NameArgs),
    /// Create a user, and print a link with which they sign in and set their password
    #[command(after_help = "Example:\n  rondel user create ann --role viewer --role editor:default/billing")]
    Create {
        /// The name with which the user signs in
        #[arg(value_name = "USER")]
        name: String,
        /// The displayed name
        #[arg(long, value_name = "TEXT")]
        display_name: Option<String>,
        /// A role and where: viewer, operator:NAMESPACE, editor:NAMESPACE/APP; may be repeated
        #[arg(long = "role", value_name = "ROLE[:PLACE]")]
        roles: Vec<String>,
    },
    /// Change a user's roles, or lock the user out; the user's sign-ins end
    Change {
        /// The user's name
        #[arg(value_name = "USER")]
        name: String,
        /// The new roles, which replace the current roles; may be repeated
        #[arg(long = "role", value_name = "ROLE[:PLACE]")]
        roles: Vec<String>,
        /// Lock the user out
        #[arg(long, conflicts_with = "enable")]
        disable: bool,
        /// Unlock the user
        #[arg(long)]
        enable: bool,
        /// Whether the user may sign in through the provider even with a password
        #[arg(long, value_name = "BOOL")]
        provider_sign_in: Option<bool>,
    },
    /// Set a user's password, read from stdin; their sign-ins and tokens end
    Password {
        /// The user's name
        #[arg(value_name = "USER")]
        name: String,
        /// Keep the user's tokens valid, with everything that they created
        #[arg(long)]
        keep_tokens: bool,
    },
    /// Print a link with which a user signs in, once, within 15 minutes
    Link(NameArgs),
    /// Delete a user, with their tokens
    Delete(NameArgs),
}

#[derive(Debug, Args)]
struct NameArgs {
    /// The user's name
    #[arg(value_name = "USER")]
    name: String,
}

/// Maximum number of bytes read from stdin for a password.
const PASSWORD_LEN_MAX: u64 = 4_096;

const VIEW: View = View { name: "name", headers: &["NAME", "DISPLAY NAME", "ROLES", "STATE", "CREATED"], row };

impl UserArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let (client, format) = (self.client.client()?, self.format);
        let sign_in_url = async |name: &str| {
            let link = client.post(&["users", name, "sign-in-link"], "{}").await?;
            Ok::<_, Failure>(format!("{}{}", client.server_url(), text_of(&link.value()?["path"])))
        };
        match self.command {
            UserCommand::List(bounds) => VIEW.print_list(&list::read(&client, "users", &[], &bounds).await?, format),
            UserCommand::Get(args) => VIEW.print_object(&client.get(&["users", &args.name], &[]).await?, format),
            UserCommand::Create { name, display_name, roles: role_words } => {
                let body = json!({"name": name, "display_name": display_name, "grants": parse_roles(&role_words)?});
                let user = client.post(&["users"], &body.to_string()).await;
                VIEW.print_row(&user.map_err(|failure| with_place_hint(failure, &role_words))?, format)?;
                output::print_message(&format!(
                    "first sign-in, once, within 15 minutes: {}",
                    sign_in_url(&name).await?
                ));
                output::print_message(&format!("too late? rondel user link {name} prints another"));
                Ok(())
            }
            UserCommand::Change { name, roles: role_words, disable, enable, provider_sign_in } => {
                let mut body = Map::new();
                if !role_words.is_empty() {
                    body.insert("grants".to_owned(), parse_roles(&role_words)?);
                }
                if disable || enable {
                    body.insert("disabled".to_owned(), Value::from(disable));
                }
                if let Some(may_sign_in) = provider_sign_in {
                    body.insert("provider_sign_in".to_owned(), Value::from(may_sign_in));
                }
                if body.is_empty() {
                    let detail = "nothing to change: give --role, --disable, --enable or --provider-sign-in";
                    return Err(Failure::refused(detail));
                }
                VIEW.print_row(&client.patch(&["users", &name], &Value::Object(body).to_string()).await?, format)
            }
            UserCommand::Password { name, keep_tokens } => {
                let body = json!({"password": read_password(&name)?, "keep_tokens": keep_tokens});
                client.post(&["users", &name, "password"], &body.to_string()).await?;
                output::print_message(&format!("{name} has a new password; {}", ended_sentence(keep_tokens)));
                Ok(())
            }
            UserCommand::Link(NameArgs { name }) => {
                let (url, user) = (sign_in_url(&name).await?, client.get(&["users", &name], &[]).await?);
                if user.value()?["disabled"] == true {
                    let enable_command = format!("rondel user change {name} --enable");
                    output::print_message(&format!(
                        "note: {name} is locked out; the link is refused until {enable_command}"
                    ));
                }
                output::print_lines(&url)
            }
            UserCommand::Delete(args) => {
                delete(&client, &["users", &args.name], &[], &format!("deleted {}", args.name), format).await
            }
        }
    }
}

/// Reads the password from the first line of stdin: other users of the machine could read an argument.
fn read_password(name: &str) -> Result<String, Failure> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        output::print_message(&format!("new password of {name}, which is shown as it is typed:"));
    }
    let mut typed_line = String::new();
    stdin
        .lock()
        .take(PASSWORD_LEN_MAX)
        .read_line(&mut typed_line)
        .map_err(|error| Failure::refused(format!("cannot read stdin: {error}")))?;
    let password = typed_line.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        return Err(Failure::refused("no password on stdin: give it as its first line"));
    }
    Ok(password.to_owned())
}

const fn ended_sentence(keep_tokens: bool) -> &'static str {
    if keep_tokens { "the sign-ins ended" } else { "the sign-ins and tokens ended" }
}

fn row(user: &Value, now: Timestamp) -> Vec<String> {
    let roles = user["grants"].as_array().map(|grants| grants.iter().map(role_argument).collect::<Vec<_>>().join(", "));
    let state = match (user["disabled"].as_bool(), user["has_password"].as_bool()) {
        (Some(true), _) => "locked out",
        (_, Some(false)) => "no password",
        _ => "",
    };
    vec![
        text_of(&user["name"]),
        text_of(&user["display_name"]),
        roles.unwrap_or_default(),
        state.to_owned(),
        time_text(&user["created_at"], now),
    ]
}

//! `rondel context`, which names servers, and `rondel login` and `rondel logout`, which store and delete the token of a context.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use rondel_admin::auth::Token;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde_json::json;
use tokio::sync::oneshot;

use crate::client::{Body, ClientArgs, Credential, check_server, text_of};
use crate::contexts::{Context, Contexts};
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::view::View;
use crate::{output, token_file};

#[derive(Debug, Args)]
pub(crate) struct ContextArgs {
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: ContextCommand,
}

#[derive(Debug, Subcommand)]
enum ContextCommand {
    /// Name a server, or change the server of a name
    Add(AddArgs),
    /// List the contexts
    List,
    /// Show the current context
    Show,
    /// Make commands use this server from now on
    Use(NameArgs),
    /// Delete a context and its token
    Remove(NameArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  rondel context add prod --url https://rondel.example.com --use\n  rondel login")]
struct AddArgs {
    /// The name
    #[arg(value_name = "NAME")]
    name: String,
    /// The server's URL
    #[arg(long, value_name = "URL")]
    url: String,
    /// The namespace that commands use; without it, an existing context with the same URL keeps its namespace
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Use the token in this file; without it, rondel login can store a token later
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Use this context from now on
    #[arg(long = "use")]
    is_used: bool,
}

#[derive(Debug, Args)]
struct NameArgs {
    /// The context's name
    #[arg(value_name = "NAME", add = crate::complete::context_names())]
    name: String,
}

const VIEW: View = View {
    name: "name",
    headers: &["NAME", "CURRENT", "SERVER", "NAMESPACE", "TOKEN"],
    row: |context, _| ["name", "current", "server", "namespace", "token"].map(|key| text_of(&context[key])).to_vec(),
};

impl ContextArgs {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut contexts = Contexts::read()?;
        match self.command {
            ContextCommand::Add(args) => args.run(&mut contexts),
            ContextCommand::List => {
                let items = contexts.all().map(|(name, context)| context_json(&contexts, name, context));
                let items = items.collect::<Result<Vec<_>, _>>()?;
                VIEW.print_list(&Body::new(json!({ "items": items, "next_cursor": null }).to_string()), self.format)
            }
            ContextCommand::Show => {
                let Some(name) = contexts.current() else {
                    return Err(Failure::from_text(
                        "no context is in use; rondel context add NAME --url URL makes one",
                    ));
                };
                let context = contexts.get(name)?;
                VIEW.print_row(&Body::new(context_json(&contexts, name, context)?.to_string()), self.format)
            }
            ContextCommand::Use(args) => {
                contexts.select(&args.name)?;
                output::print_message(&format!("commands use {} now", contexts.get(&args.name)?.server));
                if let Some(name) = deciding_variable(&args.name) {
                    output::print_message(&format!("not in this environment: the variable {name} decides here"));
                }
                Ok(())
            }
            ContextCommand::Remove(args) => {
                contexts.remove(&args.name)?;
                output::print_message(&format!("removed {}", args.name));
                Ok(())
            }
        }
    }
}

/// The environment variable that overrides the context `context_name`, if there is one.
fn deciding_variable(context_name: &str) -> Option<&'static str> {
    let is_other_context = token_file::env_variable("RONDEL_CONTEXT").is_some_and(|name| name != context_name);
    let is_server_set = token_file::env_variable("RONDEL_SERVER").is_some();
    if is_server_set { Some("RONDEL_SERVER") } else { is_other_context.then_some("RONDEL_CONTEXT") }
}

fn context_json(contexts: &Contexts, name: &str, context: &Context) -> Result<serde_json::Value, Failure> {
    let has_token = contexts.token(name)?.is_some();
    let token = if has_token { contexts.token_path(name).display().to_string() } else { String::new() };
    let is_current = contexts.current() == Some(name);
    Ok(json!({
        "name": name, "current": if is_current { "*" } else { "" }, "server": context.server,
        "namespace": context.namespace, "token": token,
    }))
}

impl AddArgs {
    fn run(self, contexts: &mut Contexts) -> Result<(), Failure> {
        check_server("--url", &self.url)?;
        let token = self.token_file.as_deref().map(token_file::read_existing).transpose()?;
        let is_token_deleted = contexts.put(&self.name, Context { server: self.url, namespace: self.namespace })?;
        if self.is_used {
            contexts.select(&self.name)?;
        }
        match token {
            Some(token) => contexts.store_token(&self.name, &token)?,
            None if is_token_deleted => {
                output::print_message(&format!(
                    "added {0}; the token that it had was for another server, and is deleted; rondel login --context {0} gives it a new one",
                    self.name
                ));
                return Ok(());
            }
            None if contexts.token(&self.name)?.is_none() => {
                output::print_message(&format!("added {0}; rondel login --context {0} gives it a token", self.name));
                return Ok(());
            }
            None => {}
        }
        output::print_message(&format!("added {}", self.name));
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "The token is read from standard input, never from a flag, and stored in a file of mode 0600.\n\n\
    Examples:\n  rondel login\n  rondel login --context prod < prod.token"
)]
pub(crate) struct LoginArgs {
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LogoutArgs {
    /// The context; by default the current one
    #[arg(long, env = "RONDEL_CONTEXT", value_name = "NAME", add = crate::complete::context_names())]
    context: Option<String>,
}

impl LoginArgs {
    /// Asks for a token, tries it, and stores it for the context.
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let contexts = Contexts::read()?;
        let Some(name) = self.client.context_name(&contexts) else {
            let message = "there is no context to sign in to; rondel context add NAME --url URL makes one";
            return Err(Failure::from_text(message));
        };
        let context = contexts.get(&name)?.clone();
        self.client.check_sign_in(&context)?;
        let token = read_token(&context.server).await?;
        let credential = Credential { token: token.clone(), source: "that was read".to_owned() };
        let client = self.client.for_sign_in_to(&context).client_with_token(Some(credential))?;
        client.get(&["jobs"], &[("limit", "1")]).await?;
        contexts.store_token(&name, &token)?;
        output::print_message(&format!("signed in to {}", client.server_url()));
        Ok(())
    }
}

impl LogoutArgs {
    /// Deletes the token.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let contexts = Contexts::read()?;
        let Some(name) = self.context.or_else(|| contexts.current().map(str::to_owned)) else {
            return Err(Failure::from_text("no context is in use"));
        };
        contexts.get(&name)?;
        let had_token = contexts.delete_token(&name)?;
        output::print_message(&if had_token {
            format!("signed out of {name}")
        } else {
            format!("{name} has no token")
        });
        Ok(())
    }
}

/// Reads a token from a line of standard input, without echo on a terminal. Ctrl-C still ends the command.
async fn read_token(server: &str) -> Result<Token, Failure> {
    let hidden_echo = if std::io::stdin().is_terminal() {
        write!(std::io::stderr(), "token for {server}: ").ok();
        HiddenInput::begin()
    } else {
        None
    };
    let (sender, receiver) = oneshot::channel();
    // A blocked read from a terminal cannot be cancelled. It has its own thread, because a runtime would wait for it at
    // shutdown.
    std::thread::Builder::new().name("token".to_owned()).spawn(move || {
        let mut line = String::new();
        let result = std::io::stdin().lock().read_line(&mut line);
        sender.send(result.map(|_| line)).ok();
    })?;
    let line_result = receiver.await;
    drop(hidden_echo);
    token_file::parse_token(&line_result??).ok_or_else(|| {
        Failure::refused("the input is not a token: expected one line of at least 16 visible characters")
    })
}

/// A terminal with its echo off. Dropping this restores the previous modes, also when the command is interrupted.
struct HiddenInput(Termios);

impl HiddenInput {
    fn begin() -> Option<Self> {
        let original_modes = tcgetattr(std::io::stdin()).ok()?;
        let mut silent_modes = original_modes.clone();
        silent_modes.local_modes.remove(LocalModes::ECHO);
        tcsetattr(std::io::stdin(), OptionalActions::Now, &silent_modes).ok()?;
        Some(Self(original_modes))
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0).ok();
        output::print_message("");
    }
}

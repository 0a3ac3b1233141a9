//! `rondel alert channel`: where alerts are sent.

use std::path::Path;

use clap::{Args, Subcommand, builder::PossibleValuesParser};
use rondel_core::Timestamp;
use rondel_core::channel::{ChannelKind, REFERENCES};
use serde_json::{Map, Value, json};

use crate::client::{Client, text_of, time_text};
use crate::delete::delete;
use crate::exit::{Failure, output_or_verdict};
use crate::format::FormatArgs;
use crate::input::read_text;
use crate::list;
use crate::view::View;

#[derive(Debug, Args)]
pub(crate) struct ChannelArgs {
    #[command(subcommand)]
    command: ChannelCommand,
}

#[derive(Debug, Subcommand)]
enum ChannelCommand {
    /// List the channels, with the result of their latest message
    List,
    /// Show a channel; the values of its secrets are hidden
    Show(NameArgs),
    /// Create or change a channel; settings that are left out stay unchanged
    Set(Box<SetArgs>),
    /// Delete a channel; its unsent messages are dropped
    Delete(NameArgs),
    /// Send a test message, and show the result
    Test(NameArgs),
    /// List the attempts to deliver messages, the latest first
    Deliveries(DeliveriesArgs),
}

#[derive(Debug, Args)]
struct NameArgs {
    /// The channel's name
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Debug, Args)]
struct DeliveriesArgs {
    /// The channel's name
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    bounds: list::BoundArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel alert channel set ops --kind slack --url-stdin < slack-url.txt\n  rondel alert channel set mail --kind email --set host=smtp.example.com --set from=rondel@example.com --set to=oncall@example.com\n  rondel alert channel set duty --kind pagerduty --secret-ref routing_key=file:pagerduty-key"
)]
struct SetArgs {
    /// The channel's name
    #[arg(value_name = "NAME")]
    name: String,
    /// The service; needed for a new channel
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(ChannelKind::WORDS))]
    kind: Option<String>,
    /// The language of its messages
    #[arg(long, value_name = "LANG", value_parser = ["en", "zh"])]
    lang: Option<String>,
    /// A setting, such as host=smtp.example.com; an empty value removes it
    #[arg(long = "set", value_name = "FIELD=VALUE", value_parser = parse_pair)]
    settings: Vec<(String, String)>,
    /// Read the URL from stdin
    #[arg(long)]
    url_stdin: bool,
    /// Read this secret from stdin
    #[arg(long, value_name = "FIELD", conflicts_with = "url_stdin")]
    secret_stdin: Option<String>,
    /// Read a secret from a file
    #[arg(long = "secret-file", value_name = "FIELD=FILE", value_parser = parse_pair)]
    secret_files: Vec<(String, String)>,
    /// Refer to a secret of the server: `file:NAME` in its `alert_secrets_dir`, or `env:NAME`
    #[arg(long = "secret-ref", value_name = "FIELD=REFERENCE", value_parser = parse_pair)]
    secret_references: Vec<(String, String)>,
    /// Send messages again
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Send nothing; messages for the channel are dropped
    #[arg(long)]
    disable: bool,
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (field, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not FIELD=VALUE"))?;
    Ok((field.to_owned(), value.to_owned()))
}

const VIEW: View =
    View { name: "name", headers: &["NAME", "KIND", "HOST", "LANG", "ENABLED", "LAST RESULT", "AT"], row };
const DELIVERY_VIEW: View = View {
    name: "id",
    headers: &["AT", "KIND", "SUBJECT", "INCIDENT", "TRY", "RESULT", "STATUS", "MS", "ERROR"],
    row: delivery_row,
};

impl ChannelArgs {
    pub(super) async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        match self.command {
            ChannelCommand::List => VIEW.print_list(&client.get(&["channels"], &[]).await?, format),
            ChannelCommand::Show(args) => VIEW.print_object(&client.get(&["channels", &args.name], &[]).await?, format),
            ChannelCommand::Set(args) => args.run(client, format).await,
            ChannelCommand::Delete(args) => {
                delete(client, &["channels", &args.name], &[], &format!("deleted {}", args.name), format).await
            }
            ChannelCommand::Test(args) => send_test(client, &args.name, format).await,
            ChannelCommand::Deliveries(args) => {
                let path = ["channels", &args.name, "deliveries"];
                DELIVERY_VIEW.print_list(&list::read_at(client, &path, &[], &args.bounds).await?, format)
            }
        }
    }
}

async fn send_test(client: &Client, name: &str, format: FormatArgs) -> Result<(), Failure> {
    let body = client.post(&["channels", name, "test"], "{}").await?;
    let print_result = DELIVERY_VIEW.print_row(&body, format);
    let delivery = body.value()?;
    if delivery["verdict"] == "sent" {
        return print_result;
    }
    let sentence = format!("the test was not delivered: {}", text_of(&delivery["error"]));
    output_or_verdict(print_result, Err(Failure::from_text(sentence)))
}

impl SetArgs {
    async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let stored_channel = client.get(&["channels"], &[]).await?.value()?;
        let stored_channel =
            stored_channel["items"].as_array().and_then(|items| items.iter().find(|item| item["name"] == self.name));
        let document = self.document(stored_channel)?;
        // With the version, the server refuses the save if another caller has changed the channel since it was read.
        let version = stored_channel.and_then(|stored_channel| stored_channel["version"].as_i64());
        let answer = client.put_if_version(&["channels", &self.name], version, &document.to_string()).await?;
        // Only this answer contains a generated signing key, so all fields are printed.
        if answer.value()?["signing_key"].is_string() {
            VIEW.print_object(&answer, format)
        } else {
            VIEW.print_row(&answer, format)
        }
    }

    /// The channel to save: the stored channel with the given flags applied. If the kind changes, the stored settings are
    /// dropped.
    fn document(&self, stored_channel: Option<&Value>) -> Result<Value, Failure> {
        let stored_text = |field: &str| stored_channel.and_then(|stored_channel| stored_channel[field].as_str());
        let kind =
            self.kind.as_deref().or_else(|| stored_text("kind")).ok_or_else(|| {
                Failure::refused(format!("there is no channel {}: give --kind for a new one", self.name))
            })?;
        let is_same_kind = stored_text("kind") == Some(kind);
        let settings =
            stored_channel.filter(|_| is_same_kind).and_then(|stored_channel| stored_channel["settings"].as_object());
        let mut settings = settings.cloned().unwrap_or_default();
        for (field, value) in &self.settings {
            settings.insert(field.clone(), json!(value));
        }
        let is_enabled = stored_channel.and_then(|stored_channel| stored_channel["enabled"].as_bool()).unwrap_or(true);
        Ok(json!({
            "kind": kind,
            "lang": self.lang.as_deref().or_else(|| stored_text("lang")).unwrap_or("en"),
            "enabled": self.enable || is_enabled && !self.disable,
            "settings": settings,
            "secrets": self.secrets()?,
        }))
    }

    fn secrets(&self) -> Result<Map<String, Value>, Failure> {
        let mut secrets = Map::new();
        for (field, reference) in &self.secret_references {
            if !REFERENCES.iter().any(|prefix| reference.starts_with(prefix)) {
                let sentence = format!("--secret-ref {field}: a reference begins with {}", REFERENCES.join(" or "));
                return Err(Failure::refused(sentence));
            }
            secrets.insert(field.clone(), json!(reference));
        }
        let stdin_field = if self.url_stdin { Some("url") } else { self.secret_stdin.as_deref() };
        let files = self.secret_files.iter().map(|(field, file)| (field.as_str(), file.as_str()));
        for (field, file) in files.chain(stdin_field.map(|field| (field, "-"))) {
            secrets.insert(field.to_owned(), json!(read_text(Path::new(file))?.trim()));
        }
        Ok(secrets)
    }
}

fn row(channel: &Value, now: Timestamp) -> Vec<String> {
    let last_delivery = &channel["last_delivery"];
    vec![
        text_of(&channel["name"]),
        text_of(&channel["kind"]),
        text_of(&channel["host"]),
        text_of(&channel["lang"]),
        text_of(&channel["enabled"]),
        text_of(&last_delivery["verdict"]),
        time_text(&last_delivery["at"], now),
    ]
}

fn delivery_row(delivery: &Value, now: Timestamp) -> Vec<String> {
    vec![
        time_text(&delivery["at"], now),
        text_of(&delivery["kind"]),
        text_of(&delivery["subject"]),
        text_of(&delivery["incident_id"]),
        text_of(&delivery["try_number"]),
        text_of(&delivery["verdict"]),
        text_of(&delivery["status"]),
        text_of(&delivery["latency_ms"]),
        text_of(&delivery["error"]),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Set {
        #[command(flatten)]
        args: SetArgs,
    }

    fn document(arguments: &[&str], stored_channel: Option<&Value>) -> Result<Value, String> {
        let parsed = Set::try_parse_from([["set", "ops"].as_slice(), arguments].concat());
        parsed
            .map_err(|error| error.to_string())?
            .args
            .document(stored_channel)
            .map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn options_that_are_left_out_keep_their_values() {
        let stored = json!({
            "name": "ops", "kind": "ntfy", "lang": "zh", "enabled": false,
            "settings": {"url": "https://ntfy.example.com", "priority": "4"}, "secrets": {"topic": "set"},
        });
        let changed = document(&["--set", "priority=5"], Some(&stored)).unwrap();
        assert_eq!(
            changed,
            json!({
                "kind": "ntfy", "lang": "zh", "enabled": false, "secrets": {},
                "settings": {"url": "https://ntfy.example.com", "priority": "5"},
            })
        );
        assert_eq!(document(&["--enable"], Some(&stored)).unwrap()["enabled"], true);
        let other = document(&["--kind", "slack", "--secret-ref", "url=env:X"], Some(&stored)).unwrap();
        assert_eq!((&other["settings"], &other["secrets"]), (&json!({}), &json!({"url": "env:X"})));
        assert!(document(&[], None).unwrap_err().contains("--kind"));
        assert!(document(&["--kind", "slack", "--secret-ref", "url=https://x"], None).unwrap_err().contains("file:"));
        assert!(document(&["--kind", "pigeon"], None).unwrap_err().contains("slack"));
        assert!(document(&["--set", "priority"], None).unwrap_err().contains("FIELD=VALUE"));
    }
}

//! Saves a file as a script, and signs it.

use std::path::{Path, PathBuf};

use clap::Args;
use rondel_core::name;
use rondel_core::script::LANGUAGES;
use serde_json::json;

use super::key::SigningKey;
use crate::client::{Body, Client};
use crate::exit::Failure;
use crate::input::read_text;
use crate::output;

/// The languages by the extension of the file's name.
const EXTENSION_LANGUAGES: [(&str, &str); 7] = [
    ("sh", "shell"),
    ("bash", "shell"),
    ("py", "python"),
    ("js", "node"),
    ("mjs", "node"),
    ("php", "php"),
    ("ps1", "powershell"),
];

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel script push close-orders close-orders.sh --note 'skips orders on hold'\n  rondel script push close-orders close-orders.sh --sign-key release.key"
)]
pub(super) struct PushArgs {
    #[command(flatten)]
    script: FileArgs,
    /// The note of this version
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Save only if this is the newest version now
    #[arg(long, value_name = "N")]
    if_version: Option<u32>,
    /// Sign the script with the secret key in this file
    #[arg(long, value_name = "FILE", conflicts_with = "signature")]
    sign_key: Option<PathBuf>,
    /// A signature that rondel script sign made
    #[arg(long, value_name = "BASE64")]
    signature: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  rondel script sign close-orders close-orders.sh --key release.key --namespace shop"
)]
pub(super) struct SignArgs {
    #[command(flatten)]
    script: FileArgs,
    /// The file with the secret key
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
}

#[derive(Debug, Args)]
struct FileArgs {
    /// The script's name
    #[arg(value_name = "NAME")]
    name: String,
    /// The file; - for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The language: shell, python, node, php or powershell; by default, the extension of the file decides
    #[arg(long, value_name = "LANGUAGE", value_parser = LANGUAGES)]
    language: Option<String>,
}

impl FileArgs {
    fn language(&self) -> Result<String, Failure> {
        let language_of_extension = || {
            let extension = self.file.extension()?.to_str()?.to_ascii_lowercase();
            EXTENSION_LANGUAGES
                .iter()
                .find(|(known_extension, _)| *known_extension == extension)
                .map(|(_, language)| (*language).to_owned())
        };
        self.language.clone().or_else(language_of_extension).ok_or_else(|| {
            let message = format!("{}: the name does not state the language; set --language", self.file.display());
            Failure::refused(message)
        })
    }

    fn signature(&self, key: &Path, namespace: &str, source: &str) -> Result<String, Failure> {
        SigningKey::read(key)?.sign(namespace, &self.name, &self.language()?, source)
    }
}

impl PushArgs {
    /// Saves the file as a version; returns the script.
    pub(super) async fn run(&self, client: &Client) -> Result<Body, Failure> {
        let source = read_text(&self.script.file)?;
        let mut body = json!({"language": self.script.language()?, "source": source});
        let mut client = client.clone();
        let signature = match &self.sign_key {
            Some(key) => {
                let namespace = namespace_of(&client).await?;
                client = client.in_namespace(&namespace);
                Some(self.script.signature(key, &namespace, &source)?)
            }
            None => self.signature.clone(),
        };
        if let Some(signature) = signature {
            body["signature"] = signature.into();
        }
        if let Some(note) = &self.note {
            body["note"] = note.as_str().into();
        }
        client.put_if_version(&["scripts", &self.script.name], self.if_version.map(i64::from), &body.to_string()).await
    }
}

/// The namespace of the client's requests. It is part of the signed text, so it must be known before the script is
/// saved. A signature must protect against the server too: if only the server names the namespace, it is printed for
/// the user to check.
async fn namespace_of(client: &Client) -> Result<String, Failure> {
    if let Some(namespace) = client.namespace() {
        return Ok(namespace.to_owned());
    }
    let caller = client.get(&["me"], &[]).await?.value()?;
    let namespace = caller["namespace"].as_str().ok_or_else(|| {
        Failure::refused("--sign-key signs the namespace, and the server does not name the token's: give --namespace")
    })?;
    output::print_message(&format!(
        "signing for the namespace {namespace}, which the server named; --namespace names it here"
    ));
    Ok(namespace.to_owned())
}

impl SignArgs {
    /// Prints the signature.
    pub(super) fn run(&self, namespace: Option<&str>) -> Result<(), Failure> {
        name::check(&self.script.name).map_err(Failure::refused)?;
        let source = read_text(&self.script.file)?;
        output::print_lines(&self.script.signature(&self.key, namespace.unwrap_or("default"), &source)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_language_of_a_file_is_in_its_name() {
        let language = |file: &str, given: Option<&str>| {
            let (name, file) = ("a".to_owned(), PathBuf::from(file));
            FileArgs { name, file, language: given.map(str::to_owned) }.language().ok()
        };
        assert_eq!(language("a.PY", None).as_deref(), Some("python"));
        assert_eq!(language("-", None), None);
        assert_eq!(language("a.py", Some("shell")).as_deref(), Some("shell"));
        assert!(EXTENSION_LANGUAGES.iter().all(|(_, language)| LANGUAGES.contains(language)));
    }
}

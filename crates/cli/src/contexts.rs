//! A user's own configuration of servers: `contexts.toml` in the XDG folder, and a file with a token for each context.
//! Only that user can read the files with tokens.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rondel_admin::auth::Token;
use rondel_core::name;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::exit::{Exit, Failure};
use crate::startup_files::StartupFiles;
use crate::token_file;

/// A server that a user has given a name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    /// The server's URL.
    pub(crate) server: String,
    /// The namespace that commands use; `None` leaves the choice to the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
}

/// All contexts by name, and the name of the current context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ContextFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

/// The user's contexts: the folder, and the contents of its file.
#[derive(Clone, Debug)]
pub(crate) struct Contexts {
    folder: PathBuf,
    file: ContextFile,
}

impl Contexts {
    /// Reads the contexts; without a file there are none.
    pub(crate) fn read() -> Result<Self, Failure> {
        Self::read_in(folder())
    }

    fn read_in(folder: PathBuf) -> Result<Self, Failure> {
        let path = folder.join("contexts.toml");
        let file = match std::fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).map_err(|error| {
                let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
                let message = error.message().replace('\n', ", ");
                Failure::refused(format!("{}, line {line}: {message}; mend the file or remove it", path.display()))
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => ContextFile::default(),
            Err(error) => return Err(Failure::of(format!("cannot read {}", path.display()), &error)),
        };
        Ok(Self { folder, file })
    }

    /// The contexts with their names, sorted by name.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&String, &Context)> {
        self.file.contexts.iter()
    }

    /// The name of the current context; `None` if no context is selected.
    pub(crate) fn current(&self) -> Option<&str> {
        self.file.current.as_deref()
    }

    /// The context with this name; an error if there is none.
    pub(crate) fn get(&self, name: &str) -> Result<&Context, Failure> {
        self.file.contexts.get(name).ok_or_else(|| {
            let known_names: Vec<&str> = self.file.contexts.keys().map(String::as_str).collect();
            let names_text = if known_names.is_empty() {
                "there are none".to_owned()
            } else {
                format!("there are {}", known_names.join(", "))
            };
            Failure::new(
                Exit::NotFound,
                format!("there is no context {name:?}; {names_text}; rondel context add makes one"),
            )
        })
    }

    /// Adds or changes a context, and selects it if no context is selected. If the server differs from the previous server,
    /// the stored token is deleted first, because no other server may get it. Returns whether a token was deleted. If the
    /// server is the same and no new namespace is given, the previous namespace remains.
    pub(crate) fn put(&mut self, name: &str, mut context: Context) -> Result<bool, Failure> {
        name::check(name).map_err(Failure::refused)?;
        let same_server_context =
            self.file.contexts.get(name).filter(|previous_context| previous_context.server == context.server);
        let is_same_server = same_server_context.is_some();
        context.namespace = context.namespace.or_else(|| same_server_context?.namespace.clone());
        let is_token_deleted = !is_same_server && self.delete_token(name)?;
        self.file.contexts.insert(name.to_owned(), context);
        self.file.current.get_or_insert_with(|| name.to_owned());
        self.write()?;
        Ok(is_token_deleted)
    }

    /// Makes a context the current context. Fails if there is no context with this name.
    pub(crate) fn select(&mut self, name: &str) -> Result<(), Failure> {
        self.get(name)?;
        self.file.current = Some(name.to_owned());
        self.write()
    }

    /// Deletes a context and its token.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), Failure> {
        self.get(name)?;
        self.file.contexts.remove(name);
        if self.file.current.as_deref() == Some(name) {
            self.file.current = None;
        }
        self.delete_token(name)?;
        self.write()
    }

    pub(crate) fn token(&self, name: &str) -> Result<Option<Token>, Failure> {
        token_file::read(&self.token_path(name))
    }

    /// The path of the file with a context's token.
    pub(crate) fn token_path(&self, name: &str) -> PathBuf {
        self.folder.join("tokens").join(name)
    }

    pub(crate) fn store_token(&self, name: &str, token: &Token) -> Result<(), Failure> {
        write_private_file(&self.token_path(name), &format!("{}\n", token.reveal()))
    }

    /// Deletes the token of a context; `false` if there was none.
    pub(crate) fn delete_token(&self, name: &str) -> Result<bool, Failure> {
        let path = self.token_path(name);
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Failure::of(format!("cannot remove {}", path.display()), &error)),
        }
    }

    fn write(&self) -> Result<(), Failure> {
        let text = toml::to_string(&self.file).map_err(|error| Failure::of("cannot write the contexts", &error))?;
        write_private_file(&self.folder.join("contexts.toml"), &text)
    }
}

/// Rondel's folder in the user's configuration.
fn folder() -> PathBuf {
    let nonempty_variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config_folder = nonempty_variable("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let config_folder = config_folder.or_else(|| Some(nonempty_variable("HOME")?.join(".config")));
    config_folder.unwrap_or_else(|| PathBuf::from(".config")).join("rondel")
}

/// Writes a file that only this user can read, and replaces the previous file atomically.
fn write_private_file(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut startup_files = StartupFiles::default();
    startup_files.make_folder(folder)?;
    startup_files.commit();
    let write = || -> std::io::Result<()> {
        // `NamedTempFile` creates files with mode 0600.
        let mut file = NamedTempFile::new_in(folder)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|error| Failure::of(format!("cannot write {}", path.display()), &error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn contexts_come_and_go_with_their_tokens() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("rondel");
        let read = || Contexts::read_in(folder.clone()).unwrap();
        let context = |server: &str| Context { server: server.to_owned(), namespace: None };
        let mut contexts = read();
        assert_eq!((contexts.current(), contexts.all().count()), (None, 0));
        contexts.put("prod", context("https://a")).unwrap();
        contexts.put("test", context("https://b")).unwrap();
        assert!(contexts.put("../x", context("https://b")).is_err());
        assert_eq!(read().current(), Some("prod"));
        contexts.select("test").unwrap();
        assert!(contexts.select("nosuch").is_err());
        let token = Token::generate();
        contexts.store_token("test", &token).unwrap();
        contexts.store_token("test", &token).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&contexts.token_path("test")), mode(&folder.join("contexts.toml"))), (0o600, 0o600));
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(read().token("test").unwrap().unwrap().reveal(), token.reveal());
        assert!(!contexts.put("test", context("https://b")).unwrap() && read().token("test").unwrap().is_some());
        assert!(contexts.put("test", context("https://c")).unwrap() && read().token("test").unwrap().is_none());
        contexts.put("test", Context { namespace: Some("team".to_owned()), ..context("https://c") }).unwrap();
        contexts.put("test", context("https://c")).unwrap();
        assert_eq!(read().get("test").unwrap().namespace.as_deref(), Some("team"));
        contexts.put("test", context("https://d")).unwrap();
        assert_eq!(read().get("test").unwrap().namespace, None);
        contexts.store_token("test", &token).unwrap();
        contexts.remove("test").unwrap();
        assert_eq!((read().current(), read().all().count()), (None, 1));
        assert!(read().token("test").unwrap().is_none());
        std::fs::write(folder.join("contexts.toml"), "\n[contexts.x]\nserve = 1\n").unwrap();
        assert!(Contexts::read_in(folder.clone()).unwrap_err().message().contains("line 3"));
    }
}

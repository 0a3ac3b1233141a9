//! Edits a definition in the caller's editor.

use std::fs::{OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use clap::Args;
use reqwest::{Method, StatusCode};

use super::files::{Entry, entries_of_yaml};
use super::print_saved;
use crate::client::{AnswerError, Body, Call, Client, answer_errors};
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::output;
use crate::runtime::LentTerminal;

#[derive(Debug, Args)]
#[command(
    after_help = "The editor is that of VISUAL, else of EDITOR, else vi. Errors of the server are shown in the file, to be corrected;\n\
    if it is left unchanged, the file is deleted. If it cannot be saved, it is kept, and its path is shown.\n\nExample:\n  EDITOR=nano rondel job edit report.daily"
)]
pub(super) struct EditArgs {
    /// The job's name
    #[arg(value_name = "JOB", add = crate::complete::job_names())]
    name: String,
}

impl EditArgs {
    pub(super) async fn run(&self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let job = client.get(&["jobs", &self.name], &[]).await?.value()?;
        let export = client.get(&["jobs", "export"], &[("name", &self.name), ("format", "yaml")]).await?;
        let etag = format!("\"v{}\"", job["version"]);
        let folder = private_folder()?;
        let file = folder.path().join(format!("{}.yaml", self.name));
        let mut remarks = vec![format!("Job {}. What is left out has its default; see docs/API.md.", self.name)];
        let original_text = export.text().to_owned();
        let mut text = original_text.clone();
        loop {
            write_private(&file, &with_remarks(&remarks, &text))?;
            if let Err(failure) = run_editor(&file).await {
                return Err(if text == original_text { failure } else { with_kept_file(failure, folder, &file) });
            }
            let edited_text = match std::fs::read_to_string(&file) {
                Ok(edited_text) => without_remarks(&edited_text),
                Err(error) => {
                    let failure = Failure::of("cannot read the edited file", &error);
                    return Err(with_kept_file(failure, folder, &file));
                }
            };
            if edited_text == original_text {
                output::print_message("nothing changed");
                return Ok(());
            }
            if edited_text == text {
                let failure = Failure::refused(format!("left as it was; nothing was saved: {}", remarks.join("; ")));
                return Err(with_kept_file(failure, folder, &file));
            }
            let errors = match entries_of_yaml(&edited_text, "the file") {
                Err(failure) => vec![failure.message().to_owned()],
                Ok(entries) => match self.put(client, &entries, &etag).await {
                    Ok(Ok(job)) => return print_saved(&job, format),
                    Ok(Err(errors)) => errors,
                    Err(failure) => return Err(with_kept_file(failure, folder, &file)),
                },
            };
            (remarks, text) = (errors, edited_text);
        }
    }

    /// Saves the definition, or returns its errors.
    async fn put(&self, client: &Client, entries: &[Entry], etag: &str) -> Result<Result<Body, Vec<String>>, Failure> {
        let [entry] = entries else { return Ok(Err(vec!["the file must have one job in it".to_owned()])) };
        let body = Some(("application/json", entry.value.to_string()));
        let (path, headers) = (["jobs", &self.name], [("if-match", etag)]);
        let answer =
            client.call(Call { method: Method::PUT, path: &path, query: &[], body, headers: &headers }).await?;
        match answer {
            Ok(job) => Ok(Ok(job)),
            Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
                let error_line = |error: AnswerError| format!("{}: {}", error.pointer, error.message);
                Ok(Err(answer_errors(&refusal.text).into_iter().map(error_line).collect()))
            }
            Err(refusal) => Err(client.failure(&refusal)),
        }
    }
}

/// Keeps the file that could not be saved, and names it in the failure.
fn with_kept_file(failure: Failure, folder: tempfile::TempDir, file: &Path) -> Failure {
    drop(folder.keep());
    failure.with_hint(&format!("; the edited file is {}", file.display()))
}

/// A folder that only its owner may enter: a definition, and the copies that an editor makes next to it, may contain text
/// that other users of the machine must not read.
fn private_folder() -> std::io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("rondel-edit-").permissions(Permissions::from_mode(0o700)).tempdir()
}

fn write_private(file: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
    file.write_all(text.as_bytes())
}

fn with_remarks(remarks: &[String], text: &str) -> String {
    let remarks = remarks.iter().flat_map(|remark| remark.lines()).map(|line| format!("#: {line}\n"));
    format!("{}{text}", remarks.collect::<String>())
}

fn without_remarks(text: &str) -> String {
    text.split_inclusive('\n').skip_while(|line| line.starts_with("#:")).collect()
}

/// Opens the editor and waits until it ends. `VISUAL` and `EDITOR` may hold a command with arguments, so the shell parses it.
async fn run_editor(file: &Path) -> Result<(), Failure> {
    let nonempty_variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let editor = nonempty_variable("VISUAL").or_else(|| nonempty_variable("EDITOR")).unwrap_or_else(|| "vi".into());
    let editor_text = editor.to_string_lossy().into_owned();
    let mut script = editor;
    script.push(" \"$@\"");
    let lent_terminal = LentTerminal::lend();
    let status = tokio::process::Command::new("sh").arg("-c").arg(script).arg("sh").arg(file).status().await;
    drop(lent_terminal);
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            Err(Failure::from_text(format!("the editor {editor_text:?} ended with {status}; nothing was saved")))
        }
        Err(error) => Err(Failure::of(format!("cannot start the editor {editor_text:?}; set EDITOR"), &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_cannot_read_the_file() {
        let folder = private_folder().unwrap();
        let file = folder.path().join("job.yaml");
        write_private(&file, "a longer text").unwrap();
        write_private(&file, "a text").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(folder.path()), mode(&file)), (0o700, 0o600));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a text");
    }

    #[test]
    fn remarks_come_and_go() {
        let text = "# a comment of the author\n- name: a\n";
        let shown = with_remarks(&["one\ntwo".to_owned()], text);
        assert_eq!(shown, "#: one\n#: two\n# a comment of the author\n- name: a\n");
        assert_eq!(without_remarks(&shown), text);
    }
}

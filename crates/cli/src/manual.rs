//! `rondel man`: a manual page for every command.

use std::path::PathBuf;

use clap::{Args, Command};

use crate::exit::Failure;
use crate::output;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  rondel man ~/.local/share/man/man1 && man rondel-job-apply")]
pub(crate) struct ManArgs {
    /// The folder for the pages; created if it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl ManArgs {
    /// Writes the pages.
    pub(crate) fn run(&self, command: Command) -> Result<(), Failure> {
        let folder = self.folder.display().to_string();
        let failure = |error: std::io::Error| Failure::of(format!("cannot write manual pages to {folder}"), &error);
        std::fs::create_dir_all(&self.folder).map_err(failure)?;
        clap_mangen::generate_to(command, &self.folder).map_err(failure)?;
        output::print_message(&format!("wrote the manual pages to {folder}"));
        Ok(())
    }
}

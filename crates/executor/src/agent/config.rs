//! The settings of an agent.

use std::path::PathBuf;

use rondel_core::outgoing::AllowedAddresses;

use super::confine::RunAs;
use super::signature::ScriptKey;
use crate::secrets::Secrets;

/// What an agent may do.
///
/// ```
/// let config = rondel::agent::AgentConfig { allow_scripts: true, ..Default::default() };
/// ```
#[derive(Clone, Debug, Default)]
pub struct AgentConfig {
    /// Whether the text of scripts is run. Off, jobs can only start programs that this host has.
    pub allow_scripts: bool,
    /// The keys of which one has signed each script that is run. With any, only signed scripts of the server are run: no text that
    /// comes with a job, and no programs but those of [`allow_programs`](Self::allow_programs).
    pub script_keys: Vec<ScriptKey>,
    /// Where scripts of the server are kept by their hash; `None` for memory alone.
    pub script_cache: Option<PathBuf>,
    /// Where the files with secrets are, beside the environment's `RONDEL_SECRET_*`.
    pub secrets_dir: Option<PathBuf>,
    /// Secrets by name that go before those of the environment: for an agent that has taken them out of it.
    pub secrets: Option<Secrets>,
    /// Where the working directories of runs are made; `None` for a folder of this user's in the host's temporary one.
    pub work_dir: Option<PathBuf>,
    /// Languages that are not offered although the host has their interpreter.
    pub without_languages: Vec<String>,
    /// A program and its first arguments, to be started beside the agent with one more argument: the folder that it is to
    /// give to [`clean_up_after`](super::clean_up_after). With it, a killed agent's processes end at once; without, when the next agent starts.
    pub watcher: Option<Vec<PathBuf>>,
    /// Variables of the agent's environment that its runs get beside the usual ones (`PATH`, `HOME`, `LANG` and the like).
    pub pass_env: Vec<String>,
    /// The only programs that are started, by their absolute paths, interpreters of scripts too; `None` for any.
    pub allow_programs: Option<Vec<PathBuf>>,
    /// The user as whom runs are started; `None` for the agent's own. The agent must be root.
    pub run_as: Option<RunAs>,
    /// Where the handler `http` may go beside the public internet: this host and its networks are closed to it.
    pub outgoing_allow: AllowedAddresses,
}

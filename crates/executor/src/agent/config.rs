//! The settings of an agent.

use std::path::PathBuf;

use rondel_core::outgoing::AllowedAddresses;

use super::confine::RunAs;
use super::signature::ScriptKey;
use crate::secrets::Secrets;

/// The settings of an agent.
///
/// ```
/// let config = rondel::agent::AgentConfig { allow_scripts: true, ..Default::default() };
/// ```
#[derive(Clone, Debug, Default)]
pub struct AgentConfig {
    /// Whether scripts are run. If false, jobs can only start programs of this host and make HTTP requests.
    pub allow_scripts: bool,
    /// Public keys, one of which must have signed each script. If there are any, the agent runs only signed scripts
    /// that the server stores. It then runs no script text that comes with a job, and starts no program except those of
    /// [`allow_programs`](Self::allow_programs).
    pub script_keys: Vec<ScriptKey>,
    /// Folder that caches scripts of the server by their hash; `None` to keep them in memory only.
    pub script_cache: Option<PathBuf>,
    /// Folder of secret files, in addition to the environment's `RONDEL_SECRET_*`.
    pub secrets_dir: Option<PathBuf>,
    /// Secrets whose values take precedence over the environment, for an agent that has removed its secrets from there;
    /// `None` for the environment alone.
    pub secrets: Option<Secrets>,
    /// Folder for the working directories of runs; `None` for a folder of this user in the host's temporary directory.
    pub work_dir: Option<PathBuf>,
    /// Languages that are not offered although the host has their interpreter.
    pub without_languages: Vec<String>,
    /// The command line of a watcher, a program that the agent starts beside itself; `None` for no watcher. The agent
    /// appends one argument: the folder that the program must pass to [`clean_up_after`](super::clean_up_after). If the
    /// agent is killed, the watcher ends the processes of the agent's runs immediately; without a watcher, the next
    /// agent ends them when it starts.
    pub watcher: Option<Vec<PathBuf>>,
    /// Variables of the agent's environment that its runs get in addition to the usual ones (`PATH`, `HOME`, `LANG` and
    /// the like).
    pub pass_env: Vec<String>,
    /// The only programs that may be started, interpreters included, by their absolute paths; `None` for any.
    pub allow_programs: Option<Vec<PathBuf>>,
    /// The user under which runs are started; `None` for the agent's own user. The agent must be root to use another
    /// user.
    pub run_as: Option<RunAs>,
    /// Non-public addresses that the handler `http` may call. By default, it can reach neither this host nor the
    /// host's networks.
    pub outgoing_allow: AllowedAddresses,
}

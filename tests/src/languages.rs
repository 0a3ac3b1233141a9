//! The script languages of the agent that this host has interpreters for.

use crate::settings;

/// Each handler with the programs that it runs.
const LANGUAGES: [(&str, &[&str]); 5] = [
    ("shell", &["sh"]),
    ("python", &["python3", "python"]),
    ("node", &["node", "nodejs"]),
    ("php", &["php"]),
    ("powershell", &["pwsh", "powershell"]),
];

/// Whether scripts of this handler can run here.
///
/// # Panics
/// For a handler that is not the agent's.
pub fn has_interpreter(handler: &str) -> bool {
    let known = LANGUAGES.iter().find(|(name, _)| *name == handler);
    has_one_of(known.unwrap_or_else(|| panic!("{handler} is no handler for scripts")).1)
}

/// The languages without an interpreter, one sentence each.
pub(crate) fn uncovered() -> impl Iterator<Item = String> {
    let missing = LANGUAGES.iter().filter(|(_, programs)| !has_one_of(programs));
    missing.map(|(name, programs)| format!("scripts in {name}, as there is no {} here", programs.join(" and no ")))
}

fn has_one_of(programs: &[&str]) -> bool {
    let path = settings::variable("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| programs.iter().any(|program| folder.join(program).is_file()))
}

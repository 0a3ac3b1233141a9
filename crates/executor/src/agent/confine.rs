//! Confinement of the processes of runs: a clean environment and, if the settings ask for it, another user and a list of the allowed programs.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::config::AgentConfig;
use super::process_tree::WORK_DIR;
use crate::job_error::JobError;

/// Variables of the agent's environment with this prefix are its settings and secrets. Runs do not inherit them, and a
/// job cannot set them.
pub(super) const OWN_PREFIX: &str = "RONDEL_";

/// Variables of the agent's environment that are passed to every run.
const INHERITED_VARIABLES: [&str; 9] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"];
/// Variables with this prefix are passed to every run, too.
const INHERITED_PREFIX: &str = "LC_";
/// Inherited variables that describe the agent's own user. Runs under another user do not inherit them.
const USER_VARIABLES: [&str; 5] = ["HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"];
/// Where programs are searched if the agent itself has no `PATH`.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";
/// Prefixes of variables that make the dynamic linker, interpreters or git run code other than the program's.
const CODE_LOADING_PREFIXES: [&str; 9] =
    ["BASH_FUNC_", "CORECLR_", "DYLD_", "GIT_", "LD_", "LUA_", "PERL", "PHP", "PYTHON"];
/// Variables that make shells, interpreters and usual programs run code other than the program's.
const CODE_LOADING_VARIABLES: [&str; 33] = [
    "BASHOPTS",
    "BASH_ENV",
    "BROWSER",
    "CDPATH",
    "CLASSPATH",
    "DOTNET_STARTUP_HOOKS",
    "EDITOR",
    "ENV",
    "GCONV_PATH",
    "IFS",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "LESSCLOSE",
    "LESSOPEN",
    "MAKEFILES",
    "MAKEFLAGS",
    "NODE_OPTIONS",
    "NODE_PATH",
    "OPENSSL_CONF",
    "PAGER",
    "PATH",
    "PROMPT_COMMAND",
    "PS4",
    "PSModulePath",
    "RSYNC_RSH",
    "RUBYLIB",
    "RUBYOPT",
    "SHELLOPTS",
    "TAR_OPTIONS",
    "VISUAL",
    "WGETRC",
    "ZDOTDIR",
    "_JAVA_OPTIONS",
];
/// Variables with a prefix of [`CODE_LOADING_PREFIXES`] that run no code.
const HARMLESS_VARIABLES: [&str; 4] = ["PYTHONDONTWRITEBYTECODE", "PYTHONIOENCODING", "PYTHONUNBUFFERED", "PYTHONUTF8"];

/// The user of this host under which runs are started. The agent must be root.
///
/// The standard library cannot set supplementary groups, so each program is started through `launcher`, which changes
/// the user and then becomes the program. Until then, the launcher runs as root, so nothing that a job chooses may
/// affect it. It gets the job's variables under names that begin with [`RunAs::VARIABLE_PREFIX`], and enters the job's
/// directory only after it has changed the user.
#[derive(Clone, Debug)]
pub struct RunAs {
    /// The user's name.
    pub name: String,
    /// The user's numeric id.
    pub uid: u32,
    /// The id of the user's primary group.
    pub gid: u32,
    /// The user's home directory, for `HOME`.
    pub home: PathBuf,
    /// The user's shell, for `SHELL`.
    pub shell: PathBuf,
    /// A program and its first arguments; `--cwd DIRECTORY -- PROGRAM ARGUMENT…` is appended. The launcher changes to
    /// this user and then becomes PROGRAM.
    pub launcher: Vec<OsString>,
    /// A program and its first arguments; a working directory is appended. The program fails, with a sentence on standard
    /// error, if this user cannot work in that directory or can read files that belong to the agent alone.
    pub probe: Vec<OsString>,
}

impl RunAs {
    /// Prefix of the names under which a launcher gets the variables of the program.
    pub const VARIABLE_PREFIX: &'static str = "RONDEL_RUN_ENV_";
}

/// Rules for each program that the agent starts.
#[derive(Clone, Debug, Default)]
pub(super) struct Confinement {
    /// Variables of the agent's environment that are passed to runs in addition to the usual ones.
    pass_env: Vec<String>,
    /// The only programs that may be started; `None` for any.
    allowed_programs: Option<Vec<PathBuf>>,
    /// Whether only signed scripts and the programs of `allowed_programs` may be started.
    is_signed_only: bool,
    pub(super) run_as: Option<RunAs>,
}

impl Confinement {
    pub(super) fn new(config: &AgentConfig) -> Self {
        Self {
            pass_env: config.pass_env.clone(),
            allowed_programs: config
                .allow_programs
                .as_ref()
                .map(|programs| programs.iter().map(|path| with_resolved_folder(path)).collect()),
            is_signed_only: !config.script_keys.is_empty(),
            run_as: config.run_as.clone(),
        }
    }

    /// Whether a program of this name may be started at all.
    pub(super) fn allows(&self, program: &str) -> bool {
        self.find(program, Path::new("/")).is_ok()
    }

    /// If only signed scripts may be started and there is no list of programs, refuses the program that a job names.
    pub(super) fn check_program(&self) -> Result<(), JobError> {
        if !self.is_signed_only || self.allowed_programs.is_some() {
            return Ok(());
        }
        Err(JobError::terminal(
            "this agent runs only signed scripts (--script-key); with --allow-program it also starts the programs of that list",
        ))
    }

    /// If only signed scripts may be started, refuses the interpreter that a job chooses: the interpreter's arguments
    /// may contain code.
    pub(super) fn check_interpreter(&self, interpreter: Option<&[String]>) -> Result<(), JobError> {
        if !self.is_signed_only || interpreter.is_none() {
            return Ok(());
        }
        Err(JobError::terminal(
            "params: interpreter cannot be chosen: this agent runs only signed scripts (--script-key)",
        ))
    }

    /// The command for a program and its arguments in a directory. `env` has the variables that the job sets; they
    /// override the inherited ones. `own_variables` has those that the agent sets for this run; they override `env`.
    pub(super) fn command(
        &self,
        argv: &[String],
        env: &BTreeMap<String, String>,
        own_variables: BTreeMap<&'static str, OsString>,
        cwd: &Path,
    ) -> Result<Command, JobError> {
        let (program, arguments) = argv.split_first().ok_or_else(|| JobError::terminal("params: argv is empty"))?;
        if let Some(name) = env.keys().find(|name| name.starts_with(OWN_PREFIX)) {
            return Err(JobError::terminal(format_args!("params: env: {name} is reserved for the agent")));
        }
        let has_nul = |text: &str| text.contains('\0');
        if let Some(position) = argv.iter().position(|text| has_nul(text)) {
            return Err(JobError::terminal(format_args!(
                "params: argument {position} contains a NUL, which cannot be passed to a program"
            )));
        }
        if let Some((name, _)) = env.iter().find(|(name, value)| has_nul(name) || has_nul(value)) {
            return Err(JobError::terminal(format_args!(
                "params: env: {name:?} contains a NUL, which cannot be passed to a program"
            )));
        }
        if env.contains_key("") {
            return Err(JobError::terminal("params: env: a variable has no name"));
        }
        // A variable named `PATH=/tmp` with the value `x` would set PATH to `/tmp=x`.
        if let Some(name) = env.keys().find(|name| name.contains('=')) {
            return Err(JobError::terminal(format_args!(
                "params: env: {name:?} is not the name of a variable: it contains ="
            )));
        }
        if let Some(name) = env.keys().find(|name| self.allowed_programs.is_some() && loads_code(name)) {
            return Err(JobError::terminal(format_args!(
                "params: env: {name} can run code other than the programs of --allow-program"
            )));
        }
        if let Some(name) = env.keys().find(|name| self.is_signed_only && loads_code(name)) {
            return Err(JobError::terminal(format_args!(
                "params: env: {name} can run code other than the signed script (--script-key)"
            )));
        }
        let path = self.find(program, cwd)?;
        let mut variables = self.inherited_variables(std::env::vars_os());
        variables.extend(env.iter().map(|(name, value)| (name.into(), value.into())));
        variables.extend(own_variables.into_iter().map(|(name, value)| (name.into(), value)));
        match &self.run_as {
            None => {
                let mut command = Command::new(&path);
                command.arg0(program).args(arguments).env_clear().envs(variables).current_dir(cwd);
                Ok(command)
            }
            Some(user) => user.command(&path, arguments, variables, cwd),
        }
    }

    /// The variables that runs get from the agent's environment, which is `agent_variables`. `PATH` has a default. If runs have another user, the
    /// variables that describe a user are that user's.
    fn inherited_variables(
        &self,
        agent_variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> BTreeMap<OsString, OsString> {
        let is_passed = |name: &OsStr| {
            let Some(name) = name.to_str() else { return false };
            let describes_agent_user = self.run_as.is_some() && USER_VARIABLES.contains(&name);
            let is_inherited = INHERITED_VARIABLES.contains(&name) || name.starts_with(INHERITED_PREFIX);
            let is_configured = self.pass_env.iter().any(|configured_name| configured_name == name);
            !name.starts_with(OWN_PREFIX) && ((is_inherited && !describes_agent_user) || is_configured)
        };
        let mut variables: BTreeMap<OsString, OsString> = agent_variables.filter(|(name, _)| is_passed(name)).collect();
        variables.entry("PATH".into()).or_insert_with(|| PATH_DEFAULT.into());
        if let Some(user) = &self.run_as {
            let home_variables = [("HOME", user.home.as_os_str()), ("SHELL", user.shell.as_os_str())];
            let name_variables = [("USER", user.name.as_ref()), ("LOGNAME", user.name.as_ref())];
            variables.extend(
                home_variables.into_iter().chain(name_variables).map(|(name, value)| (name.into(), value.into())),
            );
        }
        variables
    }

    /// The program to start for the name `program`: the name itself if every program may be started, else its absolute path, found in `cwd` if the
    /// name contains a slash, and in the agent's own `PATH` otherwise.
    fn find(&self, program: &str, cwd: &Path) -> Result<PathBuf, JobError> {
        if self.allowed_programs.is_none() && !self.is_signed_only {
            return Ok(PathBuf::from(program));
        }
        let path = std::env::var_os("PATH").unwrap_or_else(|| PATH_DEFAULT.into());
        let Some(program_path) = resolve(program, &path, cwd) else {
            return Err(JobError::failed(format_args!("cannot start {program:?}: there is no such program")));
        };
        let Some(allowed_programs) =
            self.allowed_programs.as_ref().filter(|allowed_programs| !allowed_programs.contains(&program_path))
        else {
            return Ok(program_path);
        };
        let names: Vec<String> = allowed_programs.iter().map(|path| path.display().to_string()).collect();
        Err(JobError::terminal(format_args!(
            "this agent does not start {}: it starts {} (--allow-program)",
            program_path.display(),
            names.join(", ")
        )))
    }

    /// If runs have another user, makes that user the owner of the working directory and of the files directly in it.
    pub(super) fn chown_to_user(&self, folder: &Path) -> io::Result<()> {
        let Some(user) = &self.run_as else { return Ok(()) };
        for entry in std::fs::read_dir(folder)? {
            std::os::unix::fs::lchown(entry?.path(), Some(user.uid), Some(user.gid))?;
        }
        std::os::unix::fs::lchown(folder, Some(user.uid), Some(user.gid))
    }
}

impl RunAs {
    fn command(
        &self,
        program: &Path,
        arguments: &[String],
        variables: BTreeMap<OsString, OsString>,
        cwd: &Path,
    ) -> Result<Command, JobError> {
        let (launcher, launcher_arguments) =
            self.launcher.split_first().ok_or_else(|| JobError::terminal("the agent has no launcher"))?;
        let cwd = std::path::absolute(cwd).unwrap_or_else(|_| cwd.to_owned());
        let mut command = Command::new(launcher);
        command
            .args(launcher_arguments)
            .arg("--cwd")
            .arg(cwd)
            .arg("--")
            .arg(program)
            .args(arguments)
            .env_clear()
            .current_dir("/");
        // `WORK_DIR` keeps its name, because it is the marker by which the agent finds the run's processes.
        command.envs(variables.get(OsStr::new(WORK_DIR)).map(|folder| (WORK_DIR, folder)));
        let with_prefix = |(name, value): (OsString, OsString)| {
            let mut prefixed_name = OsString::from(Self::VARIABLE_PREFIX);
            prefixed_name.push(name);
            (prefixed_name, value)
        };
        command.envs(variables.into_iter().map(with_prefix));
        Ok(command)
    }

    /// Checks that the user can work in `folder` and cannot read the agent's own files.
    pub(super) fn probe(&self, folder: &Path) -> io::Result<()> {
        let (program, arguments) = self.probe.split_first().ok_or_else(|| io::Error::other("there is no probe"))?;
        let mut command = std::process::Command::new(program);
        let output = command.args(arguments).arg(folder).env_clear().stdin(std::process::Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.trim().trim_start_matches("error: ");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message.to_owned()))
    }
}

/// Whether a variable is known to make an allowed program run other code. The list cannot be complete.
fn loads_code(name: &str) -> bool {
    let has_prefix = CODE_LOADING_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    CODE_LOADING_VARIABLES.contains(&name) || (has_prefix && !HARMLESS_VARIABLES.contains(&name))
}

/// The absolute path of a program, resolved as the system would; `None` if there is no such program.
fn resolve(program: &str, path: &OsStr, cwd: &Path) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(with_resolved_folder(&cwd.join(program))).filter(|candidate| is_program(candidate));
    }
    std::env::split_paths(path)
        .map(|folder| folder.join(program))
        .find(|candidate| is_program(candidate))
        .map(|path| with_resolved_folder(&path))
}

pub(super) fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// The path with the symbolic links of its folder resolved. The file name stays, because a program with several names
/// (busybox) does something different under each of them.
fn with_resolved_folder(path: &Path) -> PathBuf {
    match (path.parent().and_then(|folder| folder.canonicalize().ok()), path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowing(paths: &[&Path]) -> Confinement {
        let allow_programs = Some(paths.iter().map(|path| (*path).to_owned()).collect());
        Confinement::new(&AgentConfig { allow_programs, ..AgentConfig::default() })
    }

    fn names(confinement: &Confinement, own: &[&str]) -> Vec<String> {
        let own = own.iter().map(|name| (OsString::from(name), OsString::from("x")));
        confinement.inherited_variables(own).into_keys().map(|name| name.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn runs_get_the_listed_variables_alone() {
        let own =
            ["AWS_SECRET_ACCESS_KEY", "HOME", "LC_ALL", "OTEL_EXPORTER_OTLP_HEADERS", "RONDEL_TOKEN", "JAVA_HOME"];
        let mut confinement = Confinement::default();
        assert_eq!(names(&confinement, &own), ["HOME", "LC_ALL", "PATH"]);
        confinement.pass_env = ["JAVA_HOME", "RONDEL_TOKEN"].map(str::to_owned).to_vec();
        assert_eq!(names(&confinement, &own), ["HOME", "JAVA_HOME", "LC_ALL", "PATH"]);
    }

    fn jobs() -> RunAs {
        RunAs {
            name: "jobs".to_owned(),
            uid: 1,
            gid: 1,
            home: "/home/jobs".into(),
            shell: "/bin/sh".into(),
            launcher: ["rondel", "exec-as"].map(OsString::from).to_vec(),
            probe: Vec::new(),
        }
    }

    #[test]
    fn the_launcher_gets_no_variable_that_a_job_chooses() {
        let confinement = Confinement { run_as: Some(jobs()), ..Confinement::default() };
        let env = BTreeMap::from([("LD_PRELOAD".to_owned(), "/tmp/x.so".to_owned())]);
        let own = BTreeMap::from([(WORK_DIR, OsString::from("/work/run-1"))]);
        let argv = ["sh", "-c", "id"].map(str::to_owned);
        let command = confinement.command(&argv, &env, own, Path::new("/root")).unwrap();
        let command = command.as_std();
        let words: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        assert_eq!(words, ["exec-as", "--cwd", "/root", "--", "sh", "-c", "id"]);
        assert_eq!(command.get_current_dir(), Some(Path::new("/")));
        for (name, _) in command.get_envs() {
            let name = name.to_string_lossy();
            assert!(name.starts_with(RunAs::VARIABLE_PREFIX) || name == WORK_DIR, "{name}");
        }
        assert!(command.get_envs().any(|(name, _)| name == "RONDEL_RUN_ENV_LD_PRELOAD"));
    }

    #[test]
    fn another_user_has_its_own_home() {
        let confinement = Confinement { run_as: Some(jobs()), ..Confinement::default() };
        let passed = confinement
            .inherited_variables([("HOME".into(), "/root".into()), ("TMPDIR".into(), "/root/tmp".into())].into_iter());
        let value = |name: &str| passed.get(OsStr::new(name)).map(|value| value.to_string_lossy().into_owned());
        assert_eq!((value("HOME"), value("USER")), (Some("/home/jobs".to_owned()), Some("jobs".to_owned())));
        assert_eq!(value("TMPDIR"), None);
    }

    #[test]
    fn programs_are_allowed_by_their_absolute_path() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let (good, bad) = (make("good"), make("bad"));
        std::os::unix::fs::symlink(folder.path(), folder.path().join("link")).unwrap();
        std::os::unix::fs::symlink(&good, folder.path().join("other-name")).unwrap();
        let confinement = allowing(&[&good]);
        let is_allowed = |program: &str| confinement.find(program, folder.path());
        let text = |path: &Path| path.display().to_string();
        for program in [text(&good), "./good".to_owned(), "link/good".to_owned()] {
            assert!(is_allowed(&program).is_ok(), "{program}");
        }
        for program in
            [text(&bad), "./bad".to_owned(), "./other-name".to_owned(), "sh".to_owned(), "/bin/sh".to_owned()]
        {
            let refusal = is_allowed(&program).unwrap_err();
            assert!(!refusal.is_retryable() && refusal.message().contains("--allow-program"), "{program}: {refusal:?}");
        }
        assert!(is_allowed("./missing").unwrap_err().message().contains("no such program"));
        assert!(allowing(&[]).find("sh", Path::new("/")).is_err());
        assert!(Confinement::default().find("anything", Path::new("/")).is_ok());
    }

    #[test]
    fn variables_that_load_other_code_are_refused() {
        let sh = Path::new("/bin/sh");
        let command = |confinement: &Confinement, name: &str| {
            let env = BTreeMap::from([(name.to_owned(), "x".to_owned())]);
            confinement.command(&["/bin/sh".to_owned()], &env, BTreeMap::new(), Path::new("/")).map(drop)
        };
        assert!(command(&allowing(&[sh]), "LD_PRELOAD").unwrap_err().message().contains("LD_PRELOAD"));
        for name in
            ["BASH_ENV", "BASH_FUNC_ls%%", "ENV", "PYTHONSTARTUP", "NODE_OPTIONS", "PERL5OPT", "RUBYOPT", "GIT_SSH"]
        {
            assert!(command(&allowing(&[sh]), name).unwrap_err().message().contains(name), "{name}");
            assert!(command(&Confinement::default(), name).is_ok(), "{name}");
        }
        for name in ["GREETING", "PYTHONUNBUFFERED", "NODE_ENV"] {
            assert!(command(&allowing(&[sh]), name).is_ok(), "{name}");
        }
        assert!(command(&Confinement::default(), "LD_PRELOAD").is_ok());
        assert!(command(&Confinement::default(), "RONDEL_TOKEN").is_err());
        assert!(command(&Confinement::default(), "PATH=/tmp").unwrap_err().message().contains("it contains ="));
    }

    #[test]
    fn texts_that_no_program_can_get_are_refused_by_their_place() {
        for (argument, name, value, place) in [
            ("a\0b", "A", "x", "params: argument 1 contains a NUL"),
            ("a", "A", "x\0", "params: env: \"A\" contains a NUL"),
            ("a", "A\0", "x", "params: env: \"A\\0\" contains a NUL"),
            ("a", "", "x", "params: env: a variable has no name"),
        ] {
            let argv = ["echo", argument].map(str::to_owned);
            let env = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            let refusal = Confinement::default().command(&argv, &env, BTreeMap::new(), Path::new("/")).unwrap_err();
            assert!(!refusal.is_retryable() && refusal.message().starts_with(place), "{refusal:?}");
        }
    }

    #[test]
    fn a_job_chooses_no_interpreter_for_a_signed_script() {
        let confinement = Confinement { is_signed_only: true, ..Confinement::default() };
        let command = |program: &str, name: &str| {
            let env = BTreeMap::from([(name.to_owned(), "x".to_owned())]);
            confinement.command(&[program.to_owned()], &env, BTreeMap::new(), Path::new("/"))
        };
        let command_for_sh = command("sh", "GREETING").unwrap();
        let program = Path::new(command_for_sh.as_std().get_program());
        assert!(program.is_absolute() && program.ends_with("sh"), "{program:?}");
        assert!(command("no-such-program", "GREETING").unwrap_err().message().contains("no such program"));
        for name in ["PATH", "IFS", "SHELLOPTS", "PS4", "PROMPT_COMMAND", "BROWSER", "PYTHONWARNINGS", "PHPRC"] {
            let refusal = command("sh", name).unwrap_err();
            assert!(!refusal.is_retryable() && refusal.message().contains(name), "{name}: {refusal:?}");
        }
    }
}

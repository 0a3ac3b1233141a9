//! The command tree.

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::agent::AgentArgs;
use crate::alert::AlertArgs;
use crate::api::ApiArgs;
use crate::app::AppArgs;
use crate::audit::AuditArgs;
use crate::bench::BenchArgs;
use crate::calendar::CalendarArgs;
use crate::completion::CompletionArgs;
use crate::context::{ContextArgs, LoginArgs, LogoutArgs};
use crate::cron::CronArgs;
use crate::dev::DevArgs;
use crate::doctor::DoctorArgs;
use crate::events::EventsArgs;
use crate::executor::ExecutorArgs;
use crate::exit::{Exit, Failure};
use crate::import::ImportArgs;
use crate::job::JobArgs;
use crate::manual::ManArgs;
use crate::namespace::NamespaceArgs;
use crate::node::NodeArgs;
use crate::overview::{FiresArgs, StatsArgs};
use crate::report::ReportArgs;
use crate::run::RunArgs;
use crate::script::ScriptArgs;
use crate::server::ServerArgs;
use crate::shadow::ShadowArgs;
use crate::sign_in::SignInLinkArgs;
use crate::status::StatusArgs;
use crate::token::TokenArgs;
use crate::user::UserArgs;
use crate::why::WhyArgs;
use crate::{config, output, runtime};

/// A distributed job scheduler: a server decides when a job is due and which executor runs it.
#[derive(Debug, Parser)]
#[command(name = "rondel", version, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 refused input, 3 the run failed, 4 token refused, 5 not found, \
    6 conflict, 7 wait timed out, 8 server unreachable, 10 there are changes (plan --exit-code), \
    130 and 143 ended by a signal";

#[derive(Debug, Subcommand)]
enum Command {
    /// Start everything in one process on SQLite, with demo jobs
    Dev(DevArgs),
    /// Start a server
    Server(Box<ServerArgs>),
    /// Start an executor that runs commands and HTTP requests
    Agent(Box<AgentArgs>),
    /// Create, show, trigger and change jobs
    Job(JobArgs),
    /// Show, save, import and delete business calendars
    Calendar(CalendarArgs),
    /// Show, save, compare, restore and sign scripts that the server stores
    Script(Box<ScriptArgs>),
    /// Set up alerts: rules, channels, silences and maintenance windows
    Alert(Box<AlertArgs>),
    /// Show how runs ended over days and months, and send a weekly report
    Report(Box<ReportArgs>),
    /// Compare jobs in shadow mode with the scheduler that Rondel is to replace, and switch them over
    Shadow(Box<ShadowArgs>),
    /// Show runs and their logs, cancel and retry them
    Run(RunArgs),
    /// Show the executors, drain, stop and activate them
    Executor(ExecutorArgs),
    /// Show the servers of the cluster, drain, stop and activate them
    Node(NodeArgs),
    /// Show, create, drain, stop and activate apps
    App(AppArgs),
    /// Show, create and delete namespaces
    Namespace(NamespaceArgs),
    /// Show, create and change users and their roles
    User(UserArgs),
    /// Show, create, rotate and revoke API tokens
    Token(TokenArgs),
    /// Print events of runs, jobs, executors and servers as they happen
    Events(EventsArgs),
    /// Show the audit log: what was done, by which caller, from which address
    Audit(AuditArgs),
    /// Print a link that opens the console in a browser, once, within 15 minutes
    SignInLink(SignInLinkArgs),
    /// Show the cluster in one screen
    Status(StatusArgs),
    /// Explain why a job ran or did not run, by its name or the id of a run
    Why(WhyArgs),
    /// Count how runs ended over time
    Stats(StatsArgs),
    /// Show what fires next, across all jobs
    Fires(FiresArgs),
    /// Check for problems, with a remedy for each
    Doctor(DoctorArgs),
    /// Name servers, and choose the server that commands use
    Context(ContextArgs),
    /// Store a token for a server, read from standard input
    Login(LoginArgs),
    /// Delete the stored token of a server
    Logout(LogoutArgs),
    /// Call the REST API, and print the answer
    Api(ApiArgs),
    /// Print the REST API as an OpenAPI 3.1 document, without a server
    Openapi,
    /// Show when a cron expression fires, without a server
    Cron(CronArgs),
    /// Read the jobs of another scheduler: crontabs, Kubernetes, Quartz, XXL-JOB
    Import(ImportArgs),
    /// Measure the throughput of this machine and a database
    Bench(Box<BenchArgs>),
    /// Print the version
    Version,
    /// Print a completion script for a shell
    Completions(CompletionArgs),
    /// Write a manual page for every command
    Man(ManArgs),
    /// Print a config file with every setting and its default
    ConfigReference,
}

impl Cli {
    /// The command tree as help shows it, with the defaults of settings.
    pub(crate) fn command_tree() -> clap::Command {
        config::with_defaults(Self::command())
    }

    /// Parses the command line. Ends the program if the arguments are wrong or ask for help.
    pub(crate) fn read() -> Self {
        let matches = Self::command_tree().get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Runs the command, and reports a failure.
    pub(crate) fn run(self) -> ExitCode {
        match self.command.run() {
            Ok(exit) => exit.into(),
            Err(failure) => output::report_failure(&failure),
        }
    }
}

impl Command {
    fn run(self) -> Result<Exit, Failure> {
        match self {
            Self::Dev(args) => args.run(),
            Self::Server(args) => args.run(),
            Self::Agent(args) => args.run(),
            Self::Job(args) => ok_exit(runtime::run(args.run())),
            Self::Calendar(args) => ok_exit(runtime::run(args.run())),
            Self::Script(args) => ok_exit(runtime::run(args.run())),
            Self::Alert(args) => ok_exit(runtime::run(args.run())),
            Self::Report(args) => ok_exit(runtime::run(args.run())),
            Self::Shadow(args) => ok_exit(runtime::run(args.run())),
            Self::Run(args) => ok_exit(runtime::run(args.run())),
            Self::Executor(args) => ok_exit(runtime::run(args.run())),
            Self::Node(args) => ok_exit(runtime::run(args.run())),
            Self::App(args) => ok_exit(runtime::run(args.run())),
            Self::Namespace(args) => ok_exit(runtime::run(args.run())),
            Self::User(args) => ok_exit(runtime::run(args.run())),
            Self::Token(args) => ok_exit(runtime::run(args.run())),
            Self::Events(args) => ok_exit(runtime::run(args.run())),
            Self::Audit(args) => ok_exit(runtime::run(args.run())),
            Self::SignInLink(args) => ok_exit(runtime::run(args.run())),
            Self::Cron(args) => ok_exit(args.run()),
            Self::Import(args) => ok_exit(args.run()),
            Self::Bench(args) => args.run(),
            Self::Version => ok_exit(output::print_lines(concat!("rondel ", env!("CARGO_PKG_VERSION")))),
            Self::Completions(args) => ok_exit(args.run()),
            Self::Man(args) => ok_exit(args.run(Cli::command_tree())),
            Self::Status(args) => ok_exit(runtime::run(args.run())),
            Self::Why(args) => ok_exit(runtime::run(args.run())),
            Self::Stats(args) => ok_exit(runtime::run(args.run())),
            Self::Fires(args) => ok_exit(runtime::run(args.run())),
            Self::Doctor(args) => ok_exit(runtime::run(args.run())),
            Self::Context(args) => ok_exit(args.run()),
            Self::Login(args) => ok_exit(runtime::run(args.run())),
            Self::Logout(args) => ok_exit(args.run()),
            Self::Api(args) => ok_exit(runtime::run(args.run())),
            Self::Openapi => ok_exit(output::print_lines(rondel_web::openapi().trim_end())),
            Self::ConfigReference => ok_exit(config::reference().and_then(|text| output::print_lines(&text))),
        }
    }
}

fn ok_exit(result: Result<(), Failure>) -> Result<Exit, Failure> {
    result.map(|()| Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_sound() {
        Cli::command_tree().debug_assert();
    }
}

//! `rondel import`: turns the jobs of other schedulers into definitions, and reports for each job what it keeps and
//! what changes. Nothing is saved here: `rondel job plan` compares the definitions with the server, and `rondel job
//! apply` saves them, as often as needed.

mod crontab;
mod dump;
mod kubernetes;
mod names;
mod page;
mod quartz;
mod report;
mod result;
mod xxl_job;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use rondel_core::cron::parse_zone;
use rondel_core::name;
use rondel_core::words::counted;

use crate::exit::Failure;
use crate::input::read_text;
use crate::{clock, output, runtime};
use result::ImportResult;

#[derive(Debug, Args)]
#[command(after_help = "Definitions go to standard output as YAML, the report to standard error.\n\nExamples:\n  \
    rondel import crontab /etc/crontab --system --app backups --time-zone Europe/Berlin --disabled > jobs.yaml\n  \
    crontab -l | rondel import crontab - --app backups --time-zone Europe/Berlin --executor web1 --name-prefix web1- > jobs.yaml\n  \
    rondel import kubernetes-cronjob cronjobs.yaml --app batch | rondel job plan -f -\n  \
    rondel import quartz --database postgres://reader:PASSWORD@db/app --app billing --time-zone Europe/Berlin > jobs.yaml\n  \
    rondel import xxl-job --database mysql://reader:PASSWORD@db/xxl_job --time-zone Asia/Shanghai --report report.html > jobs.yaml\n  \
    rondel import xxl-job --dump xxl_job.sql --time-zone Asia/Shanghai --history scripts/ --commands beside.sh > jobs.yaml")]
pub(crate) struct ImportArgs {
    #[command(subcommand)]
    command: ImportCommand,
}

#[derive(Debug, Subcommand)]
enum ImportCommand {
    /// Read a crontab
    Crontab(CrontabArgs),
    /// Read cron jobs of Kubernetes
    KubernetesCronjob(KubernetesArgs),
    /// Read the tables of Quartz 2
    Quartz(QuartzArgs),
    /// Read the database of XXL-JOB, or a dump of it
    XxlJob(XxlJobArgs),
}

/// Where the report goes.
#[derive(Debug, Args)]
struct ReportArgs {
    /// Write the report to this file too: as a page if its name ends in .html, else as JSON; may be repeated
    #[arg(long, value_name = "FILE")]
    report: Vec<PathBuf>,
}

/// How the jobs are named.
#[derive(Debug, Args)]
struct NameArgs {
    /// Begin the names of all jobs with this, such as web1-: jobs of two sources with equal names would replace each other
    #[arg(long, value_name = "PREFIX")]
    name_prefix: Option<String>,
}

/// Whether the jobs fire once they are saved.
#[derive(Debug, Args)]
struct InitialStateArgs {
    /// Write the jobs paused: they fire nothing until they are resumed
    #[arg(long, conflicts_with = "shadow")]
    disabled: bool,
    /// Put the jobs in shadow mode: they are planned and routed here, and not sent
    #[arg(long)]
    shadow: bool,
}

#[derive(Debug, Args)]
struct CrontabArgs {
    /// The crontab; - for stdin, as in crontab -l | rondel import crontab -
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The app of the jobs, which is that of the agents that will run them
    #[arg(long, value_name = "APP")]
    app: String,
    /// The zone of the host that the crontab is from; not needed if the crontab sets `CRON_TZ`
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// The crontab names a user before each command, as /etc/crontab and the files in /etc/cron.d do
    #[arg(long)]
    system: bool,
    /// The only executor that may run the jobs, such as the agent on the host that the crontab is from
    #[arg(long, value_name = "NAME")]
    executor: Option<String>,
    #[command(flatten)]
    name: NameArgs,
    #[command(flatten)]
    initial_state: InitialStateArgs,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Debug, Args)]
struct KubernetesArgs {
    /// Files with cron jobs, as kubectl get cronjobs -o yaml prints them; - for stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The app that the jobs belong to
    #[arg(long, value_name = "APP")]
    app: String,
    #[command(flatten)]
    name: NameArgs,
    #[command(flatten)]
    initial_state: InitialStateArgs,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Debug, Args)]
struct QuartzArgs {
    /// The URL of the database with Quartz's tables, MySQL or PostgreSQL, with or without jdbc: at its beginning; the user needs only to read the tables
    #[arg(long, value_name = "URL", env = "RONDEL_IMPORT_DATABASE", hide_env_values = true)]
    database: String,
    /// The prefix of the tables' names
    #[arg(long, value_name = "PREFIX", default_value = "QRTZ_")]
    prefix: String,
    /// The app that the jobs belong to: its executors have a handler for each class
    #[arg(long, value_name = "APP")]
    app: String,
    /// The zone of the servers, for cron triggers without a zone
    #[arg(long, value_name = "ZONE")]
    time_zone: String,
    /// Read only this scheduler (the column `SCHED_NAME`); by default all schedulers of the tables
    #[arg(long, value_name = "NAME")]
    scheduler: Option<String>,
    #[command(flatten)]
    name: NameArgs,
    #[command(flatten)]
    initial_state: InitialStateArgs,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Debug, Args)]
struct XxlJobArgs {
    /// The database of XXL-JOB; the user needs only to read it
    #[arg(long, value_name = "URL", env = "RONDEL_IMPORT_DATABASE", hide_env_values = true)]
    #[arg(required_unless_present = "dump")]
    database: Option<String>,
    /// A dump of XXL-JOB's database by mysqldump, in place of --database; - for stdin
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// The zone that XXL-JOB's servers run in: they read cron expressions in it
    #[arg(long, value_name = "ZONE")]
    time_zone: String,
    /// Put the jobs in shadow mode: they are planned and routed here, and not sent, until they are promoted
    #[arg(long)]
    shadow: bool,
    /// The namespace that the jobs go to: the report's commands name it, and rondel job apply has the same flag
    #[arg(long, value_name = "NAME", default_value = "default")]
    namespace: String,
    /// Who runs the scripts of GLUE jobs
    #[arg(long, value_name = "WHO", value_enum, default_value_t)]
    scripts: xxl_job::Scripts,
    /// Write the earlier versions of scripts into this folder, a file for each
    #[arg(long, value_name = "FOLDER")]
    history: Option<PathBuf>,
    /// Write to this file a script for sh with the commands that make tokens, fixed addresses, alarm mail and users
    #[arg(long, value_name = "FILE")]
    commands: Option<PathBuf>,
    #[command(flatten)]
    name: NameArgs,
    #[command(flatten)]
    report: ReportArgs,
}

impl ImportArgs {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match &self.command {
            ImportCommand::Crontab(args) => args.run(),
            ImportCommand::KubernetesCronjob(args) => args.run(),
            ImportCommand::Quartz(args) => runtime::run(args.run()),
            ImportCommand::XxlJob(args) => runtime::run(args.run()),
        }
    }
}

impl NameArgs {
    /// The prefix; empty without the flag.
    fn checked_prefix(&self) -> Result<&str, Failure> {
        let Some(prefix) = self.name_prefix.as_deref() else { return Ok("") };
        names::check_prefix(prefix).map_err(|message| Failure::refused(format!("--name-prefix: {message}")))?;
        Ok(prefix)
    }
}

impl InitialStateArgs {
    /// Applies `--disabled` or `--shadow`. Without these flags, warns that the jobs would fire in both schedulers.
    fn apply(&self, result: &mut ImportResult, source: &str) {
        if self.disabled {
            result.disable();
        } else if self.shadow {
            result.put_in_shadow();
        } else if result.has_active() {
            result.remarks.push(format!(
                "the jobs are active: while {source} runs them too, they run twice; --disabled writes them paused, --shadow in shadow mode, in which nothing is sent"
            ));
        }
    }
}

impl CrontabArgs {
    fn run(&self) -> Result<(), Failure> {
        check_name("--app", &self.app)?;
        self.executor.as_deref().map_or(Ok(()), |executor| check_name("--executor", executor))?;
        self.time_zone.as_deref().map_or(Ok(()), check_zone)?;
        let (app, zone, executor) = (self.app.as_str(), self.time_zone.as_deref(), self.executor.as_deref());
        let source_text = source_name(&self.file);
        let file = Some(source_text.as_str()).filter(|_| self.file.as_os_str() != "-");
        let source = crontab::CrontabSource {
            app,
            zone,
            executor,
            file,
            prefix: self.name.checked_prefix()?,
            has_user: self.system,
        };
        let mut result = crontab::read(&read_text(&self.file)?, &source).map_err(Failure::refused)?;
        self.initial_state.apply(&mut result, "cron");
        write_output(&result, &source_text, &self.report)
    }
}

impl KubernetesArgs {
    fn run(&self) -> Result<(), Failure> {
        check_name("--app", &self.app)?;
        let mut result = ImportResult::with_prefix(self.name.checked_prefix()?);
        for file in &self.files {
            let name = source_name(file);
            kubernetes::read(&read_text(file)?, &name, &self.app, &mut result).map_err(Failure::refused)?;
        }
        let source_names: Vec<String> = self.files.iter().map(|file| source_name(file)).collect();
        let source_text = source_names.join(", ");
        if result.entries.is_empty() {
            let detail = format!(
                "{source_text}: no CronJob of Kubernetes is in it; give what kubectl get cronjobs -A -o yaml prints"
            );
            return Err(Failure::refused(detail));
        }
        self.initial_state.apply(&mut result, "Kubernetes");
        write_output(&result, &source_text, &self.report)
    }
}

impl QuartzArgs {
    async fn run(&self) -> Result<(), Failure> {
        check_name("--app", &self.app)?;
        check_zone(&self.time_zone)?;
        let prefix = self.name.checked_prefix()?;
        if self.prefix.len() > 50 || !self.prefix.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '$')) {
            let detail = format!(
                "--prefix: {:?} is no beginning of the names of tables: up to 50 letters, digits and '_'",
                self.prefix
            );
            return Err(Failure::refused(detail));
        }
        let mut tables = quartz::Tables::read(&self.database, &self.prefix).await?;
        if let Some(scheduler) = &self.scheduler {
            tables.keep_only(scheduler).map_err(|message| Failure::refused(format!("--scheduler: {message}")))?;
        }
        let options = quartz::ImportOptions { app: &self.app, zone: &self.time_zone, prefix, now: clock::now() };
        let mut result = quartz::convert(&tables, &options);
        self.initial_state.apply(&mut result, "Quartz");
        write_output(&result, "Quartz", &self.report)
    }
}

impl XxlJobArgs {
    async fn run(&self) -> Result<(), Failure> {
        check_zone(&self.time_zone)?;
        check_name("--namespace", &self.namespace)?;
        let prefix = self.name.checked_prefix()?;
        let tables = match (&self.dump, &self.database) {
            (Some(path), _) => {
                let mut source = open_dump(path)?;
                xxl_job::Tables::from_dump(&mut source, &source_name(path))?
            }
            (None, Some(url)) => xxl_job::Tables::read(url).await?,
            (None, None) => return Err(Failure::refused("--database or --dump is missing")),
        };
        let (zone, namespace) = (self.time_zone.as_str(), self.namespace.as_str());
        let (scripts, history) = (self.scripts, self.history.as_deref());
        let options = xxl_job::ImportOptions { zone, namespace, prefix, scripts, history };
        let mut result = xxl_job::convert(&tables, options);
        if self.shadow {
            result.put_in_shadow();
        } else if result.has_active() {
            let remark = "the jobs are active: while XXL-JOB runs them too, they run twice; --shadow writes jobs that send nothing until they are promoted";
            result.remarks.push(remark.to_owned());
        }
        if let Some(folder) = &self.history {
            let count = xxl_job::write_history(&tables, options).map_err(|error| write_failure(folder, &error))?;
            output::print_message(&format!("{} in {}", counted(count, "earlier script"), folder.display()));
        }
        if self.commands.is_none() && !result.script().is_empty() {
            let remark =
                "tokens, fixed addresses, alarm mail and users are commands for a shell: --commands FILE writes them";
            result.remarks.push(remark.to_owned());
        }
        if let Some(path) = &self.commands {
            std::fs::write(path, result.script()).map_err(|error| write_failure(path, &error))?;
        }
        write_output(&result, "XXL-JOB", &self.report)
    }
}

fn open_dump(path: &Path) -> Result<Box<dyn BufRead>, Failure> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::new(std::io::stdin())));
    }
    let file = std::fs::File::open(path)
        .map_err(|error| Failure::refused(format!("cannot read {}: {error}", path.display())))?;
    Ok(Box::new(BufReader::new(file)))
}

fn write_failure(path: &Path, error: &std::io::Error) -> Failure {
    Failure::refused(format!("cannot write {}: {error}", path.display()))
}

/// The name of a file in reports.
fn source_name(file: &Path) -> String {
    if file.as_os_str() == "-" { "stdin".to_owned() } else { file.display().to_string() }
}

fn check_name(flag: &str, value: &str) -> Result<(), Failure> {
    name::check(value).map_err(|message| Failure::refused(format!("{flag}: {message}")))
}

fn check_zone(value: &str) -> Result<(), Failure> {
    parse_zone(value).map(drop).map_err(|error| Failure::refused(format!("--time-zone: {error}")))
}

fn write_output(result: &ImportResult, source: &str, report_args: &ReportArgs) -> Result<(), Failure> {
    for path in &report_args.report {
        let is_page = path.extension().is_some_and(|extension| extension == "html" || extension == "htm");
        let report = if is_page { result.page(source) } else { result.json() };
        std::fs::write(path, report).map_err(|error| write_failure(path, &error))?;
    }
    output::print_lines(&result.yaml())?;
    output::print_message(&result.text(source));
    Ok(())
}

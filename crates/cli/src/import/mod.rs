//! `rondel import`: the jobs of other schedulers as definitions, and a report of what each keeps and what changes. Nothing is
//! saved here: `rondel job plan` compares the definitions with the server, `rondel job apply` saves them, again and again.

mod crontab;
mod found;
mod kubernetes;
mod xxl_job;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use rondel_core::cron::parse_zone;
use rondel_core::name;

use crate::exit::Failure;
use crate::input::read_text;
use crate::{output, runtime};
use found::Found;

#[derive(Debug, Args)]
#[command(after_help = "Definitions go to standard output as YAML, the report to standard error.\n\nExamples:\n  \
    rondel import crontab /etc/crontab --system --app backups --time-zone Europe/Berlin > jobs.yaml\n  \
    rondel import kubernetes-cronjob cronjobs.yaml --app batch | rondel job plan -f -\n  \
    rondel import xxl-job --database mysql://reader:PASSWORD@db/xxl_job --time-zone Asia/Shanghai --report report.json > jobs.yaml")]
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
    /// Read the database of XXL-JOB
    XxlJob(XxlJobArgs),
}

/// Where the report goes.
#[derive(Debug, Args)]
struct ReportArgs {
    /// Write the report to this file too, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct CrontabArgs {
    /// The crontab; - for stdin, as in crontab -l | rondel import crontab -
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The app that the jobs belong to: that of the agents that will run them
    #[arg(long, value_name = "APP")]
    app: String,
    /// The zone of the host that the crontab is from; not needed where it sets `CRON_TZ`
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// The crontab names a user before each command, as /etc/crontab and the files in /etc/cron.d do
    #[arg(long)]
    system: bool,
    /// The one executor that may run them, such as the agent on the host that the crontab is from
    #[arg(long, value_name = "NAME")]
    executor: Option<String>,
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
    report: ReportArgs,
}

#[derive(Debug, Args)]
struct XxlJobArgs {
    /// The database of XXL-JOB; a user who may read it is enough
    #[arg(long, value_name = "URL", env = "RONDEL_IMPORT_DATABASE", hide_env_values = true)]
    database: String,
    /// The zone that XXL-JOB's servers run in: they read cron expressions in it
    #[arg(long, value_name = "ZONE")]
    time_zone: String,
    /// Put the jobs in shadow mode: they are planned and routed here, and not sent, until they are promoted
    #[arg(long)]
    shadow: bool,
    #[command(flatten)]
    report: ReportArgs,
}

impl ImportArgs {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match &self.command {
            ImportCommand::Crontab(args) => args.run(),
            ImportCommand::KubernetesCronjob(args) => args.run(),
            ImportCommand::XxlJob(args) => runtime::run(args.run()),
        }
    }
}

impl CrontabArgs {
    fn run(&self) -> Result<(), Failure> {
        check_name("--app", &self.app)?;
        self.executor.as_deref().map_or(Ok(()), |executor| check_name("--executor", executor))?;
        self.time_zone.as_deref().map_or(Ok(()), check_zone)?;
        let (app, zone, executor) = (self.app.as_str(), self.time_zone.as_deref(), self.executor.as_deref());
        let host = crontab::Host { app, zone, executor, has_user: self.system };
        let found = crontab::read(&read_text(&self.file)?, &host).map_err(Failure::refused)?;
        finish(&found, &shown(&self.file), &self.report)
    }
}

impl KubernetesArgs {
    fn run(&self) -> Result<(), Failure> {
        check_name("--app", &self.app)?;
        let mut found = Found::default();
        for file in &self.files {
            let name = shown(file);
            kubernetes::read(&read_text(file)?, &name, &self.app, &mut found).map_err(Failure::refused)?;
        }
        let from: Vec<String> = self.files.iter().map(|file| shown(file)).collect();
        finish(&found, &from.join(", "), &self.report)
    }
}

impl XxlJobArgs {
    async fn run(&self) -> Result<(), Failure> {
        check_zone(&self.time_zone)?;
        let tables = xxl_job::Tables::read(&self.database).await?;
        let mut found = xxl_job::convert(&tables, &self.time_zone);
        if self.shadow {
            found.put_in_shadow();
        }
        finish(&found, "XXL-JOB", &self.report)
    }
}

/// What a file is called in reports.
fn shown(file: &Path) -> String {
    if file.as_os_str() == "-" { "stdin".to_owned() } else { file.display().to_string() }
}

fn check_name(flag: &str, given: &str) -> Result<(), Failure> {
    name::check(given).map_err(|message| Failure::refused(format!("{flag}: {message}")))
}

fn check_zone(given: &str) -> Result<(), Failure> {
    parse_zone(given).map(drop).map_err(|error| Failure::refused(format!("--time-zone: {error}")))
}

fn finish(found: &Found, from: &str, to: &ReportArgs) -> Result<(), Failure> {
    if let Some(path) = &to.report {
        std::fs::write(path, found.json())
            .map_err(|error| Failure::refused(format!("cannot write {}: {error}", path.display())))?;
    }
    output::data(&found.yaml())?;
    output::talk(&found.text(from));
    Ok(())
}

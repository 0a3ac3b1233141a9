//! `rondel doctor`: finds problems, and names a remedy for each.

mod alerts;
mod cluster;
mod jobs;
mod names;

use std::path::Path;
use std::time::Duration;

use clap::{Args, Command, FromArgMatches as _};
use reqwest::Method;
use rondel_core::Timestamp;
use serde_json::{Value, json};

use crate::client::{Call, Client, ClientArgs};
use crate::config::{self, ConfigFileArgs, HttpSettings, OidcSettings, ServerConfig, ServerSettings};
use crate::contexts::Contexts;
use crate::exit::{Exit, Failure, output_or_verdict};
use crate::format::{Format, FormatArgs};
use crate::paint::{Ink, Paint};
use crate::terminal::harmless_text;
use crate::{clock, output};

/// A clock further off than this makes displayed times misleading.
const SKEW_MAX: Duration = Duration::from_secs(2);
const DATABASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum free disk space for a server, in bytes.
const DISK_MIN: u64 = 1024 * 1024 * 1024;
/// The checks of `/readyz` that do not make a server unready, each with its remedy.
const NOTICES: &[(&str, &str)] = &[
    ("open_runs", "it ends by itself within seconds; if it stays, look at the loop adopt in the server's log"),
    ("history", "compare the ledger with what your handlers wrote"),
    ("clock", "let NTP set the clock of the database's host"),
];

/// Checks what commands need and, with `--config`, what a server needs.
#[derive(Debug, Args)]
#[command(
    after_help = "Checks: the contexts, whether the server answers and is ready, its clock, the token, versions, nodes, executors, apps without\nexecutors, jobs that no executor online can run, overdue runs, jobs that code declares and the server refuses,\nand alerts that are reported to a channel that does not exist or is disabled; and with --config FILE what a server on this machine needs: settings, database, disk.\n\n\
    Exit codes: 0 all is well, also with warnings; 1 something is wrong.\n\nExamples:\n  rondel doctor\n  rondel doctor --config /etc/rondel.toml"
)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    file: ConfigFileArgs,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Warning,
    Wrong,
}

/// The result of one check.
#[derive(Debug)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    /// What the check found.
    finding: String,
    /// What to do about it.
    remedy: String,
}

fn passed_check(name: &'static str, finding: impl Into<String>) -> Check {
    Check { name, verdict: Verdict::Good, finding: finding.into(), remedy: String::new() }
}

fn warning_check(name: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { name, verdict: Verdict::Warning, finding: finding.into(), remedy: remedy.into() }
}

fn failed_check(name: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { name, verdict: Verdict::Wrong, finding: finding.into(), remedy: remedy.into() }
}

/// A failed check. A `; ` in the failure's message separates the finding from the remedy; `default_remedy` is for a message
/// without `; `.
fn check_of_failure(name: &'static str, failure: &Failure, default_remedy: &str) -> Check {
    let (finding, remedy) = failure.message().split_once("; ").unwrap_or((failure.message(), default_remedy));
    failed_check(name, finding, remedy)
}

impl DoctorArgs {
    /// Runs the checks.
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let mut checks = vec![check_contexts()];
        match self.client.client() {
            Ok(client) => checks.extend(check_server(&client).await),
            Err(failure) => {
                checks.push(failed_check("client", failure.message(), "mend the flag, variable or file that it names"))
            }
        }
        if self.file.is_given() {
            checks.extend(check_config(&self.file).await);
        }
        let print_result = print_checks(&checks, self.format);
        let verdict = match checks.iter().filter(|check| check.verdict == Verdict::Wrong).count() {
            0 => Ok(()),
            count => Err(Failure::new(Exit::Failed, format!("{count} of {} checks failed", checks.len()))),
        };
        output_or_verdict(print_result, verdict)
    }
}

fn check_contexts() -> Check {
    match Contexts::read() {
        Ok(contexts) => match contexts.current() {
            Some(name) => passed_check("contexts", format!("{name} is in use")),
            None => passed_check("contexts", "none is in use: flags and the environment decide"),
        },
        Err(failure) => {
            failed_check("contexts", failure.message(), "mend the file, or remove it and add the contexts again")
        }
    }
}

async fn check_server(client: &Client) -> Vec<Check> {
    let server_url = client.server_url();
    let mut checks = Vec::new();
    let readiness = match client.get_outside_api("readyz?verbose").await {
        Ok(answer) => answer,
        Err(failure) => {
            return vec![check_of_failure("server", &failure, "start it, or name another one with --server")];
        }
    };
    checks.push(passed_check("server", format!("{server_url} answers")));
    checks.push(if readiness.status.is_success() {
        passed_check("readiness", "ready")
    } else {
        unready_check(&readiness.text)
    });
    checks.extend(notices(&readiness.text));
    checks.extend(readiness.date.map(check_skew));
    let call = Call { method: Method::GET, path: &["nodes"], query: &[], body: None, headers: &[] };
    match client.call(call).await {
        Ok(Ok(body)) => {
            checks.push(passed_check("token", "is good"));
            checks.extend(body.value().ok().map(|nodes| check_versions(&nodes)));
            // What is overdue depends on the time of the server.
            checks.extend(cluster::checks(client, readiness.date.unwrap_or_else(clock::now)).await);
        }
        Ok(Err(refusal)) => {
            checks.push(check_of_failure("token", &client.failure(&refusal), "ask for a token with the role viewer"))
        }
        Err(failure) => checks.push(failed_check("token", failure.message(), "see above")),
    }
    checks
}

/// A failed check whose finding lists the server's checks that make it unready. If `answer` lists none, such as the answer
/// of a proxy, the finding is the whole answer.
fn unready_check(answer: &str) -> Check {
    let readiness: Value = serde_json::from_str(answer).unwrap_or_default();
    let details = readiness["details"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_notice = |detail: &Value| NOTICES.iter().any(|(check, _)| detail["check"] == **check);
    let is_failed = |detail: &&Value| detail["ok"] == false && !is_notice(detail);
    let detail_text = |detail: &Value| {
        let [check, message] = ["check", "message"].map(|field| detail[field].as_str().unwrap_or_default().to_owned());
        format!("{check}: {message}")
    };
    let failed_texts: Vec<String> = details.iter().filter(is_failed).map(detail_text).collect();
    let finding = if failed_texts.is_empty() { answer.trim().to_owned() } else { failed_texts.join("; ") };
    failed_check(
        "readiness",
        finding,
        "the server's log has the cause; rondel node activate NAME turns a switch on again",
    )
}

/// Warnings for the failed checks in [`NOTICES`], which the server reports even if it is ready.
fn notices(readiness: &str) -> Vec<Check> {
    let readiness: Value = serde_json::from_str(readiness).unwrap_or_default();
    let details = readiness["details"].as_array().into_iter().flatten();
    let notice = |detail: &Value| {
        let (check, remedy) = NOTICES.iter().find(|(check, _)| detail["check"] == **check)?;
        Some(warning_check(check, detail["message"].as_str().unwrap_or_default(), *remedy))
    };
    details.filter(|detail| detail["ok"] == false).filter_map(notice).collect()
}

/// Compares the server's clock, from the answer's `Date` in whole seconds, with this machine's.
fn check_skew(server: Timestamp) -> Check {
    let now = clock::now();
    let difference = if server > now { server.since(now) } else { now.since(server) };
    if difference <= SKEW_MAX {
        passed_check("clock", "within 2s of the server's")
    } else {
        let finding = format!("{} apart from the server's", clock::rough_text(difference));
        warning_check("clock", finding, "times relative to now are off by that much; let NTP set both clocks")
    }
}

fn check_versions(nodes: &Value) -> Check {
    let own_version = env!("CARGO_PKG_VERSION");
    let items = nodes["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut server_versions: Vec<&str> = items.iter().filter_map(|node| node["server_version"].as_str()).collect();
    server_versions.sort_unstable();
    server_versions.dedup();
    match server_versions.as_slice() {
        [server_version] if *server_version == own_version => {
            passed_check("versions", format!("{own_version} here and there"))
        }
        [] => warning_check("versions", "the server names no nodes", "is its lease held? see readiness"),
        versions => {
            let finding = format!("{own_version} here, {} there", versions.join(" and "));
            warning_check("versions", finding, "use the same version on both sides")
        }
    }
}

/// Checks what a server with this config file needs.
async fn check_config(file: &ConfigFileArgs) -> Vec<Check> {
    let config = match server_config(file) {
        Ok(config) => config,
        Err(failure) => {
            return vec![failed_check("settings", failure.message(), "rondel config-reference has every setting")];
        }
    };
    let mut checks = vec![passed_check("settings", "are right")];
    checks.push(check_database(&config).await);
    checks.push(check_disk(&config.settings.data_dir));
    checks
}

/// The settings, read and checked as by a server that starts with this config file and this environment.
fn server_config(file: &ConfigFileArgs) -> Result<ServerConfig, Failure> {
    let (settings, oidc, http) = settings_of_environment().map_err(|error| {
        let text = error.to_string();
        Failure::refused(text.lines().next().unwrap_or_default().trim_start_matches("error: "))
    })?;
    config::checked_server(file.server(settings)?, file.oidc(oidc)?, file.http(http)?)
}

fn settings_of_environment() -> Result<(ServerSettings, OidcSettings, HttpSettings), clap::Error> {
    let command = Command::new("server").no_binary_name(true);
    let command = HttpSettings::augment_args(OidcSettings::augment_args(ServerSettings::augment_args(command)));
    let matches = command.try_get_matches_from(std::iter::empty::<&str>())?;
    Ok((
        ServerSettings::from_arg_matches(&matches)?,
        OidcSettings::from_arg_matches(&matches)?,
        HttpSettings::from_arg_matches(&matches)?,
    ))
}

/// Checks that the database's file or folder exists, or that a database server listens at its address. The database is not
/// opened: that would migrate its tables.
async fn check_database(config: &ServerConfig) -> Check {
    let database_text = config.database.to_string();
    if let Some(file) = config.database.0.sqlite_path() {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return match (file.is_file(), folder.is_dir()) {
            (true, _) => passed_check("database", database_text),
            (false, true) => passed_check("database", format!("{database_text} will be made at the first start")),
            (false, false) => {
                let finding = format!("there is no folder {}", folder.display());
                // A start creates the data folder, but no other folder.
                if folder == config.settings.data_dir {
                    warning_check("database", finding, "it is made at the first start; is the path right?")
                } else {
                    failed_check(
                        "database",
                        finding,
                        "make it for the server's user, or correct the path in server.database",
                    )
                }
            }
        };
    }
    let Ok(url) = reqwest::Url::parse(&database_text) else { return passed_check("database", database_text) };
    if let Some(socket) = socket_path(&url) {
        return match Path::new(&socket).exists() {
            true => passed_check("database", format!("{database_text}, by the socket of this machine at {socket}")),
            false => failed_check(
                "database",
                format!("{database_text}: there is no {socket}"),
                "does the database run on this machine?",
            ),
        };
    }
    let address = host_and_port(&url);
    let remedy = "check host, port and firewall of server.database, and whether the database runs";
    match tokio::time::timeout(DATABASE_TIMEOUT, tokio::net::TcpStream::connect(address)).await {
        Ok(Ok(_)) => passed_check("database", format!("a server listens at {database_text}")),
        Ok(Err(error)) => failed_check("database", format!("{database_text}: {error}"), remedy),
        Err(_) => {
            failed_check("database", format!("{database_text} does not answer within {DATABASE_TIMEOUT:?}"), remedy)
        }
    }
}

/// The local socket that a URL names in place of a host: MySQL's socket file, or the folder with PostgreSQL's socket.
fn socket_path(url: &reqwest::Url) -> Option<String> {
    let socket_parameter = url.query_pairs().find(|(key, _)| matches!(&**key, "host" | "socket"));
    let socket_parameter = socket_parameter.map(|(_, value)| value.into_owned());
    let encoded_host = || Some(url.host_str()?.replace("%2F", "/").replace("%2f", "/"));
    socket_parameter.or_else(encoded_host).filter(|path| path.starts_with('/'))
}

/// The host and the port of a database server.
fn host_and_port(url: &reqwest::Url) -> (String, u16) {
    let is_postgres = url.scheme().starts_with("postgres");
    // The parameters after the ? of a PostgreSQL URL can set host and port.
    let query_value = |name: &str| {
        let mut pairs = url.query_pairs().filter(|_| is_postgres);
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    };
    let port = query_value("port").and_then(|port| port.parse().ok()).or(url.port());
    // A URL has an IPv6 address in brackets.
    let url_host = || url.host_str().unwrap_or("localhost").trim_matches(['[', ']']).to_owned();
    (query_value("host").unwrap_or_else(url_host), port.unwrap_or(if is_postgres { 5432 } else { 3306 }))
}

fn check_disk(folder: &Path) -> Check {
    let existing_folder = folder.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."));
    match rustix::fs::statvfs(existing_folder) {
        Ok(stats) => {
            let free_bytes = stats.f_bavail.saturating_mul(stats.f_frsize);
            let finding = format!("{} MiB free at {}", free_bytes / 1024 / 1024, existing_folder.display());
            if free_bytes >= DISK_MIN {
                passed_check("disk", finding)
            } else {
                warning_check("disk", finding, "make room, or move server.data_dir")
            }
        }
        Err(error) => {
            warning_check("disk", format!("{}: {error}", existing_folder.display()), "can this user enter the folder?")
        }
    }
}

fn print_checks(checks: &[Check], format: FormatArgs) -> Result<(), Failure> {
    let verdict_word = |verdict| match verdict {
        Verdict::Good => "ok",
        Verdict::Warning => "warning",
        Verdict::Wrong => "failed",
    };
    let values = checks.iter().map(|check| {
        json!({ "name": check.name, "verdict": verdict_word(check.verdict), "found": check.finding, "remedy": check.remedy })
    });
    match format.format {
        Format::Json | Format::Yaml => {
            output::print_document(&json!({ "checks": values.collect::<Vec<_>>() }).to_string(), format.format)
        }
        Format::Jsonl => output::print_lines(&values.map(|value| value.to_string()).collect::<Vec<_>>().join("\n")),
        Format::Name => {
            let problem_checks = checks.iter().filter(|check| check.verdict != Verdict::Good);
            output::print_names(problem_checks.map(|check| check.name))
        }
        Format::Table | Format::Wide => {
            let paint = Paint::of_stdout();
            let check_line = |check: &Check| {
                let ink = match check.verdict {
                    Verdict::Good => Ink::Green,
                    Verdict::Warning => Ink::Yellow,
                    Verdict::Wrong => Ink::Red,
                };
                let verdict = paint.ink(ink, &format!("{:<8}", verdict_word(check.verdict)));
                let remedy = if check.remedy.is_empty() {
                    String::new()
                } else {
                    format!("\n{:22}-> {}", "", harmless_text(&check.remedy))
                };
                format!("{verdict} {:<12} {}{remedy}", check.name, harmless_text(&check.finding))
            };
            output::print_lines(&checks.iter().map(check_line).collect::<Vec<_>>().join("\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failed_checks_of_a_server_are_named() {
        let answer = r#"{"status": "not_ready", "checks": {"draining": false, "state": "draining"}, "details": [
            {"check": "lease", "ok": true}, {"check": "switch", "ok": false, "message": "the switch of this node: draining"}]}"#;
        assert_eq!(unready_check(answer).finding, "switch: the switch of this node: draining");
        assert_eq!(unready_check("bad gateway\n").finding, "bad gateway");
    }

    #[test]
    fn what_keeps_jobs_from_firing_on_a_ready_server_is_a_warning() {
        let answer = r#"{"status": "ready", "details": [{"check": "lease", "ok": true}, {"check": "open_runs", "ok": true},
            {"check": "clock", "ok": false, "message": "the database's clock stepped back; jobs are quiet until 02:00"}]}"#;
        let warnings: Vec<_> =
            notices(answer).into_iter().map(|check| (check.name, check.verdict, check.finding)).collect();
        let finding = "the database's clock stepped back; jobs are quiet until 02:00".to_owned();
        assert_eq!(warnings, [("clock", Verdict::Warning, finding)]);
        let unready = r#"{"details": [{"check": "clock", "ok": false, "message": "c"}, {"check": "lease", "ok": false, "message": "l"}]}"#;
        assert_eq!((unready_check(unready).finding.as_str(), notices(unready).len()), ("lease: l", 1));
        assert!(notices("bad gateway\n").is_empty());
    }

    #[test]
    fn a_socket_is_no_host() {
        for (url, expected) in [
            ("postgres:///rondel?host=/run/postgresql", Some("/run/postgresql")),
            ("postgres://me@%2Frun%2Fpostgresql/rondel", Some("/run/postgresql")),
            ("mysql://me@localhost/rondel?socket=/run/mysqld/mysqld.sock", Some("/run/mysqld/mysqld.sock")),
            ("postgres://me@db.example.com/rondel?sslmode=require", None),
            ("postgres://me@[::1]/rondel", None),
        ] {
            assert_eq!(socket_path(&url.parse().unwrap()).as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn the_place_of_a_database_server_can_be_connected_to() {
        for (url, host, port) in [
            ("postgres://me@[::1]/rondel", "::1", 5432),
            ("mysql://me@[fd00::7]:3307/rondel", "fd00::7", 3307),
            ("mariadb://me@db.example.com/rondel", "db.example.com", 3306),
            ("postgres:///rondel?host=db.example.com&port=5433", "db.example.com", 5433),
        ] {
            assert_eq!(host_and_port(&url.parse().unwrap()), (host.to_owned(), port), "{url}");
        }
    }
}

//! Jobs of XXL-JOB are imported from its database and from a dump of it, as definitions that a server accepts. A second
//! import changes nothing.

mod cron;
mod quartz;
mod schema;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use rondel_tests::{Api, Backend, Server, binary, millis, rondel, scratch};
use serde_json::{Value, json};

use self::schema::{CRONS, JOB_COUNT};

const DAYS: i64 = 30;
/// Columns that an import never reads, so that no report shows them.
const SECRETS: [&str; 3] = ["password", "token", "access_token"];

#[tokio::test]
async fn five_hundred_jobs_of_xxl_job_are_imported_twice() {
    let Some(foreign) = scratch(Backend::Mysql).await else { return };
    schema::fill(&foreign);
    let Some(own_db) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start_with(&own_db, &["--xxl-networks", "127.0.0.0/8"]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (jobs, report, page, history, script) =
        (path("jobs.yaml"), path("report.json"), path("report.html"), path("scripts"), path("beside.sh"));
    let mut import = vec!["import", "xxl-job", "--database", foreign.url(), "--time-zone", "Asia/Shanghai"];
    import.extend(["--report", &report, "--report", &page, "--history", &history, "--commands", &script]);
    let read = rondel(&import, &[]).await;
    assert!(read.code == Some(0) && read.stderr.contains("--shadow writes jobs that send nothing"), "{}", read.stderr);
    std::fs::write(&jobs, &read.stdout).expect("a file");
    let token = server.token_file().display().to_string();
    let client = [("RONDEL_SERVER", server.url()), ("RONDEL_TOKEN_FILE", token.as_str())];
    let saved = rondel(&["job", "apply", "-f", &jobs], &client).await;
    assert!(saved.code == Some(0), "{}", saved.stderr);
    let api = server.api();
    assert_eq!(api.all("/api/v1/jobs", &[]).await.len(), JOB_COUNT, "{}", read.stderr);

    // Every row and every column is in the report, once.
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&report).expect("a report")).expect("JSON");
    let entries = report["entries"].as_array().expect("a list");
    for (subject, table, count) in
        [("job", "xxl_job_info", JOB_COUNT), ("group", "xxl_job_group", 3), ("user", "xxl_job_user", 3)]
    {
        let its: Vec<&Value> = entries.iter().filter(|entry| entry["subject"] == subject).collect();
        let ids: BTreeSet<&str> = its.iter().filter_map(|entry| entry["from"].as_str()).collect();
        assert_eq!((its.len(), ids.len()), (count, count), "{subject}");
        let columns = foreign.sql(&format!("SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = '{table}'"));
        let columns: Vec<&str> = columns.lines().filter(|column| !SECRETS.contains(column)).collect();
        let filled = rows(&foreign.sql(&format!(
            "SELECT id, {} FROM {table}",
            columns.iter().map(|c| format!("`{c}` IS NOT NULL")).collect::<Vec<_>>().join(", ")
        )));
        for entry in its {
            assert!(subject != "job" || entry["job"].is_object(), "{entry:#}");
            let id = entry["from"].as_str().and_then(|from| from.split(' ').nth(1)).expect("an id");
            for (column, is_filled) in columns.iter().zip(&filled[id]) {
                let found = entry["fields"].as_array().expect("fields").iter().filter(|field| field["name"] == *column);
                assert_eq!(found.count(), usize::from(is_filled == "1"), "{column} of {entry:#}");
            }
        }
    }
    let page = std::fs::read_to_string(&page).expect("a page");
    // The option `--secret-file` of a command is not a secret.
    let shows_secret = |text: &str| text.replace("--secret-file", "").contains("secret-");
    assert!(page.contains("结算 &lt;b&gt;500&lt;/b&gt;") && !page.contains("<b>") && !shows_secret(&page), "{page}");
    assert_eq!(page.matches("<details>").count(), entries.len());
    assert!(!shows_secret(&read.stdout) && !shows_secret(&report.to_string()));
    the_jobs_are_as_they_were(&api).await;
    let old = std::fs::read_to_string(Path::new(&history).join("glue_shell-2/1.sh")).expect("an earlier script");
    assert_eq!(old, "echo old");

    // A second import that is applied changes nothing. A dump gives the same definitions.
    let again = rondel(&import, &[]).await;
    assert_eq!(again.stdout, read.stdout);
    let planned = rondel(&["job", "plan", "-f", &jobs, "--exit-code"], &client).await;
    assert!(planned.code == Some(0), "{} {}", planned.stdout, planned.stderr);
    let dump = path("dump.sql");
    std::fs::write(&dump, dump_of(foreign.url())).expect("a file");
    let from_dump = rondel(&["import", "xxl-job", "--dump", &dump, "--time-zone", "Asia/Shanghai"], &[]).await;
    assert_eq!(from_dump.stdout, read.stdout, "{}", from_dump.stderr);
    // The next plan shows what has changed in XXL-JOB, and nothing else.
    foreign.sql("UPDATE xxl_job_info SET schedule_conf = '0 0 3 * * ?' WHERE id = 3");
    std::fs::write(&jobs, rondel(&import, &[]).await.stdout).expect("a file");
    let planned = rondel(&["job", "plan", "-f", &jobs, "--exit-code"], &client).await;
    assert_eq!(planned.code, Some(10), "{}", planned.stderr);
    assert!(
        planned.stdout.contains("glue_python-3") && !planned.stdout.contains("glue_python2-4"),
        "{}",
        planned.stdout
    );

    the_commands_make_the_rest(&api, &script, &client).await;

    let wrong = rondel(&["import", "xxl-job", "--database", own_db.url(), "--time-zone", "UTC"], &[]).await;
    assert!(wrong.code != Some(0), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("mysql://USER:PASSWORD@HOST/NAME"), "{}", wrong.stderr);
}

/// For an account that may not read a table, the error names the statement that permits it.
#[tokio::test]
async fn an_import_names_the_right_that_its_account_lacks() {
    let Some(foreign) = scratch(Backend::Mysql).await else { return };
    schema::fill(&foreign);
    let (schema, reader) =
        (foreign.sql("SELECT DATABASE()").trim().to_owned(), format!("import_{}", std::process::id()));
    foreign.sql(&format!("CREATE USER '{reader}'@'%' IDENTIFIED BY 'word'"));
    let mut url = reqwest::Url::parse(foreign.url()).expect("a URL");
    url.set_username(&reader).expect("a user");
    url.set_password(Some("word")).expect("a password");
    let import = async || rondel(&["import", "xxl-job", "--database", url.as_str(), "--time-zone", "UTC"], &[]).await;
    let grant = |table: &str| format!("GRANT SELECT ON {schema}.{table} TO '{reader}'@'%'");
    foreign.sql(&grant("xxl_job_registry"));
    for table in ["xxl_job_group", "xxl_job_info"] {
        let refusal = import().await;
        assert!(refusal.code == Some(1) && refusal.stderr.contains(&grant(table)), "{refusal:?}");
        assert!(!refusal.stderr.contains("has no table"), "{refusal:?}");
        foreign.sql(&grant(table));
    }
    let read = import().await;
    let left_out = format!(
        "xxl_job_user is left out: the account may not read the table xxl_job_user; to allow it, run: {}",
        grant("xxl_job_user")
    );
    assert!(read.code == Some(0) && read.stderr.contains(&left_out), "{read:?}");
    foreign.sql(&format!("GRANT SELECT ON {schema}.* TO '{reader}'@'%'; DROP TABLE xxl_job_user"));
    assert!(import().await.stderr.contains("xxl_job_user is left out: the database has no table xxl_job_user"));
    foreign.sql(&format!("DROP USER '{reader}'@'%'"));
}

/// Tab-separated rows by their first column.
fn rows(text: &str) -> BTreeMap<String, Vec<String>> {
    let cells = |line: &str| line.split('\t').map(str::to_owned).collect::<Vec<_>>();
    text.lines().map(cells).map(|mut row| (row.remove(0), row)).collect()
}

/// A dump of the database by mysqldump.
fn dump_of(url: &str) -> Vec<u8> {
    let rest = url.trim_start_matches("mysql://");
    let (user, rest) = rest.split_once(':').expect("a user");
    let (password, rest) = rest.split_once('@').expect("a password");
    let (host, rest) = rest.split_once(':').expect("a host");
    let (port, name) = rest.split_once('/').expect("a port");
    let mut command = Command::new("mariadb-dump");
    command.args(["--no-defaults", "--protocol=tcp", "-h", host, "-P", port, "-u", user, name]);
    let ended = command.env("MYSQL_PWD", password).output().expect("mariadb-dump starts");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    ended.stdout
}

async fn the_jobs_are_as_they_were(api: &Api) {
    let job = async |name: &str| api.get(&format!("/api/v1/jobs/{name}")).await.expect(200);
    let script = job("glue_powershell-7").await;
    assert_eq!(script["labels"], json!({"author": "ann", "xxl-job-id": "7"}), "{script}");
    assert_eq!(
        (&script["handler"], &script["params"]["source"]),
        (&json!("GLUE_POWERSHELL"), &json!("echo '7'")),
        "{script}"
    );
    // Job 8 follows 2 and 15, and is enabled although it is stopped in XXL-JOB. 15 follows 2 and 9. 22 would close a
    // circle.
    let child = job("handler8-8").await;
    assert_eq!(
        (&child["schedule"]["after"], &child["enabled"]),
        (&json!(["glue_shell-2", "glue_python2-15"]), &json!(true)),
        "{child}"
    );
    assert_eq!(job("glue_python2-15").await["schedule"]["after"], json!(["glue_shell-2", "handler9-9"]));
    assert_eq!(job("handler22-22").await["schedule"]["after"], json!(["glue_python2-15"]));
    assert_eq!(job("handler30-30").await["schedule"]["cron"], CRONS[30], "a clock of its own is kept");
}

/// The commands run twice, and create each object once.
async fn the_commands_make_the_rest(api: &Api, script: &str, client: &[(&str, &str)]) {
    let bin = binary().parent().expect("a folder").display().to_string();
    let search = rondel_tests::variable("PATH").unwrap_or_default();
    let folder = tempfile::tempdir().expect("a folder");
    for _ in 0..2 {
        let mut command = Command::new("sh");
        command
            .arg(script)
            .current_dir(folder.path())
            .env("PATH", format!("{bin}:{search}"))
            .envs(client.iter().copied());
        std::fs::write(folder.path().join("password"), "geheim").expect("a file");
        let mail = [("HOST", "127.0.0.1"), ("FROM", "rondel@example.com"), ("USER", "ann b"), ("PORT", "2525")];
        let mail = mail.map(|(name, value)| (format!("SMTP_{name}"), value));
        let ended = command.envs(mail).env("SMTP_PASSWORD_FILE", "password").output().expect("sh starts");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
    let addresses = api.get("/api/v1/apps/mail/addresses").await.expect(200);
    assert_eq!(addresses["items"].as_array().expect("a list").len(), 2, "{addresses}");
    let ann = api.get("/api/v1/users/ann").await.expect(200);
    let grants: BTreeSet<(Option<&str>, Option<&str>)> = ann["grants"]
        .as_array()
        .expect("grants")
        .iter()
        .map(|grant| (grant["role"].as_str(), grant["app"].as_str()))
        .collect();
    let expected = ["billing", "mail"].map(|app| (Some("editor"), Some(app)));
    assert_eq!(grants, BTreeSet::from(expected), "{ann}");
    let channels = api.get("/api/v1/channels").await.expect(200);
    let settings = &channels["items"][0]["settings"];
    let given = ["security", "port", "username"].map(|name| settings[name].as_str().unwrap_or_default());
    assert_eq!(given, ["starttls", "2525", "ann b"], "{channels}");
    assert!(channels["items"][0]["secrets"]["password"].is_string(), "{channels}");
    let rules = api.get("/api/v1/alert-rules").await.expect(200);
    assert_eq!(rules["items"].as_array().map(Vec::len), Some(2), "{rules}");
}

/// For each form of cron, the preview has the instants that a brute-force search finds, in a zone without changes of
/// the clock and in a zone with changes to and from summer time.
#[tokio::test]
async fn every_cron_fires_at_the_same_instants() {
    let Some(own_db) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start(&own_db).await;
    let api = server.api();
    let now = rondel_tests::wall_clock_ms().div_euclid(1000);
    let day = 86_400;
    let spans = [
        ("Asia/Shanghai", now),
        ("Europe/Berlin", cron::BERLIN_CHANGES[1] - 10 * day),
        ("Europe/Berlin", cron::BERLIN_CHANGES[2] - 10 * day),
    ];
    for (zone, after) in spans {
        let until = after + DAYS * day;
        // Within some hours of a change of the clock, Rondel and Quartz differ: docs/MOVING.md.
        let is_far = |at: &i64| {
            zone != "Europe/Berlin" || cron::BERLIN_CHANGES.iter().all(|change| (at - change).abs() > 3 * 3600)
        };
        let mut total = 0;
        for expr in CRONS {
            let mut expected = cron::fires(expr, zone, after, until);
            let mut found = previewed_fires(&api, (expr, zone), after, until).await;
            (total, expected, found) = (total + expected.len(), kept(expected, is_far), kept(found, is_far));
            assert_eq!(found, expected, "{expr} in {zone} after {after}");
        }
        assert!(total > 800, "{total}");
    }
}

fn kept(mut fires: Vec<i64>, is_kept: impl Fn(&i64) -> bool) -> Vec<i64> {
    fires.retain(is_kept);
    fires
}

async fn previewed_fires(api: &Api, (expr, zone): (&str, &str), after: i64, until: i64) -> Vec<i64> {
    let (mut found, mut after) = (Vec::new(), after);
    loop {
        let at = cron::instant(after);
        let body = json!({"schedule": {"cron": expr, "time_zone": zone}, "count": 100, "after": at});
        let page = api.post("/api/v1/schedules/preview", body).await.expect(200);
        let fires: Vec<i64> = page["fires"]
            .as_array()
            .expect("fires")
            .iter()
            .map(|fire| fire["at"].as_str().and_then(millis).expect("an instant").div_euclid(1000))
            .collect();
        found.extend(fires.iter().copied().filter(|at| *at <= until));
        match fires.last() {
            Some(last) if *last <= until && fires.len() == 100 => after = *last,
            _ => return found,
        }
    }
}

//! Quartz's tables in MariaDB and PostgreSQL, as far as an import reads them.

use rondel_tests::{Backend, Server, rondel, scratch};
use serde_json::json;

/// The statements that create the tables with the types of a database: names in capital letters and `BLOB` in MySQL,
/// `BOOL` and `BYTEA` in PostgreSQL.
fn tables(prefix: &str, (boolean, bytes): (&str, &str)) -> [String; 4] {
    let key =
        "SCHED_NAME VARCHAR(120) NOT NULL, TRIGGER_NAME VARCHAR(190) NOT NULL, TRIGGER_GROUP VARCHAR(190) NOT NULL";
    let primary = "PRIMARY KEY (SCHED_NAME, TRIGGER_NAME, TRIGGER_GROUP)";
    [
        format!(
            "CREATE TABLE {prefix}JOB_DETAILS (SCHED_NAME VARCHAR(120) NOT NULL, JOB_NAME VARCHAR(190) NOT NULL, JOB_GROUP VARCHAR(190) NOT NULL, \
             DESCRIPTION VARCHAR(250), JOB_CLASS_NAME VARCHAR(250) NOT NULL, IS_DURABLE {boolean} NOT NULL, IS_NONCONCURRENT {boolean} NOT NULL, \
             IS_UPDATE_DATA {boolean} NOT NULL, REQUESTS_RECOVERY {boolean} NOT NULL, JOB_DATA {bytes}, PRIMARY KEY (SCHED_NAME, JOB_NAME, JOB_GROUP))"
        ),
        format!(
            "CREATE TABLE {prefix}TRIGGERS ({key}, JOB_NAME VARCHAR(190) NOT NULL, JOB_GROUP VARCHAR(190) NOT NULL, DESCRIPTION VARCHAR(250), \
             NEXT_FIRE_TIME BIGINT, PREV_FIRE_TIME BIGINT, PRIORITY INTEGER, TRIGGER_STATE VARCHAR(16) NOT NULL, TRIGGER_TYPE VARCHAR(8) NOT NULL, \
             START_TIME BIGINT NOT NULL, END_TIME BIGINT, CALENDAR_NAME VARCHAR(190), MISFIRE_INSTR SMALLINT, JOB_DATA {bytes}, {primary})"
        ),
        format!(
            "CREATE TABLE {prefix}CRON_TRIGGERS ({key}, CRON_EXPRESSION VARCHAR(120) NOT NULL, TIME_ZONE_ID VARCHAR(80), {primary})"
        ),
        format!(
            "CREATE TABLE {prefix}SIMPLE_TRIGGERS ({key}, REPEAT_COUNT BIGINT NOT NULL, REPEAT_INTERVAL BIGINT NOT NULL, \
             TIMES_TRIGGERED BIGINT NOT NULL, {primary})"
        ),
    ]
}

#[tokio::test]
async fn tables_of_quartz_are_imported_twice() {
    for backend in [Backend::Mysql, Backend::Postgres] {
        let Some(foreign) = scratch(backend).await else { continue };
        let (types, yes, no) = match backend {
            Backend::Postgres => (("BOOL", "BYTEA"), "true", "false"),
            _ => (("VARCHAR(1)", "BLOB"), "'1'", "'0'"),
        };
        let hex: String =
            "#\n#Mon Nov 23 10:00:00 CST 2026\nto=ops\n".bytes().map(|byte| format!("{byte:02x}")).collect();
        let data = if backend == Backend::Postgres { format!("decode('{hex}', 'hex')") } else { format!("x'{hex}'") };
        tables("APP_", types).iter().for_each(|table| drop(foreign.sql(table)));
        foreign.sql(&format!(
            "INSERT INTO APP_JOB_DETAILS VALUES ('main', 'report', 'DEFAULT', 'each night', 'com.acme.Report', {yes}, {yes}, {no}, {no}, {data}), \
             ('other', 'report', 'DEFAULT', NULL, 'com.acme.Report', {yes}, {yes}, {no}, {no}, NULL)"
        ));
        let trigger = |name: &str, kind: &str, state: &str| {
            format!(
                "('main', '{name}', 'T', 'report', 'DEFAULT', NULL, 0, -1, 5, '{state}', '{kind}', 1700000000000, 0, NULL, 2, NULL)"
            )
        };
        let rows = [
            trigger("nightly", "CRON", "WAITING"),
            trigger("rate", "SIMPLE", "PAUSED"),
            trigger("month", "CAL_INT", "WAITING"),
            trigger("over", "CRON", "COMPLETE"),
        ];
        foreign.sql(&format!("INSERT INTO APP_TRIGGERS VALUES {}", rows.join(", ")));
        foreign.sql(
            "INSERT INTO APP_CRON_TRIGGERS VALUES ('main', 'nightly', 'T', '0 30 2 ? * MON-FRI', 'ECT'), \
             ('main', 'over', 'T', '0 30 2 ? * MON-FRI', NULL)",
        );
        foreign.sql("INSERT INTO APP_SIMPLE_TRIGGERS VALUES ('main', 'rate', 'T', -1, 60000, 3)");

        let jdbc = format!("jdbc:{}", foreign.url());
        let all =
            ["import", "quartz", "--database", &jdbc, "--prefix", "APP_", "--app", "billing", "--time-zone", "UTC"];
        let import = [&all[..], &["--scheduler", "main"]].concat();
        let read = rondel(&import, &[]).await;
        assert!(read.code == Some(0) && read.stderr.contains("4 jobs from Quartz: "), "{}", read.stderr);
        assert!(
            read.stderr.contains("report-over (trigger T.over of job DEFAULT.report): left out: is complete"),
            "{read:?}"
        );
        assert!(read.stderr.contains("while Quartz runs them too, they run twice"), "{read:?}");
        let both = rondel(&all, &[]).await;
        assert!(both.stderr.contains("2 schedulers (main, other), and all are read"), "{both:?}");
        let lost = rondel(&[&all[..], &["--scheduler", "none"]].concat(), &[]).await;
        assert!(lost.code == Some(2) && lost.stderr.contains("--scheduler: \"none\" has no jobs"), "{lost:?}");
        let shadow = rondel(&[&import[..], &["--shadow"]].concat(), &[]).await;
        assert_eq!(shadow.stdout.matches("mode: shadow").count(), 2, "{shadow:?}");
        assert!(read.stderr.contains("triggers of the kind \"CAL_INT\""), "{}", read.stderr);
        assert_eq!(rondel(&import, &[]).await.stdout, read.stdout);
        let Some(own_db) = scratch(Backend::Sqlite).await else { return };
        let server = Server::start(&own_db).await;
        let (folder, token) = (tempfile::tempdir().expect("a folder"), server.token_file().display().to_string());
        let jobs = folder.path().join("jobs.yaml").display().to_string();
        std::fs::write(&jobs, &read.stdout).expect("a file");
        let client = [("RONDEL_SERVER", server.url()), ("RONDEL_TOKEN_FILE", token.as_str())];
        let saved = rondel(&["job", "apply", "-f", &jobs], &client).await;
        assert!(saved.code == Some(0), "{}", saved.stderr);
        let planned = rondel(&["job", "plan", "-f", &jobs, "--exit-code"], &client).await;
        assert!(planned.code == Some(0), "{} {}", planned.stdout, planned.stderr);
        let nightly = server.api().get("/api/v1/jobs/report-nightly").await.expect(200);
        assert_eq!(
            (&nightly["params"], &nightly["handler"], &nightly["schedule"]["time_zone"]),
            (&json!({"to": "ops"}), &json!("com.acme.Report"), &json!("Europe/Paris")),
            "{nightly}"
        );
        let rate = server.api().get("/api/v1/jobs/report-rate").await.expect(200);
        assert_eq!((&rate["enabled"], &rate["schedule"]["every"]), (&json!(false), &json!("60s")), "{rate}");
        let absent =
            rondel(&["import", "quartz", "--database", foreign.url(), "--app", "a", "--time-zone", "UTC"], &[]).await;
        assert!(absent.stderr.contains("the database has no table QRTZ_JOB_DETAILS"), "{}", absent.stderr);
    }
}

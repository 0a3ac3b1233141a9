//! Jobs of XXL-JOB, read from its database: as definitions that a server takes, once.

use rondel_tests::{Backend, Server, rondel, scratch};
use serde_json::Value;

const GROUPS: &str = "CREATE TABLE xxl_job_group (id int NOT NULL AUTO_INCREMENT PRIMARY KEY, app_name varchar(64) NOT NULL, \
    title varchar(12) NOT NULL, address_type tinyint NOT NULL DEFAULT 0, address_list text, update_time datetime)";
const JOBS: &str = "CREATE TABLE xxl_job_info (id int NOT NULL AUTO_INCREMENT PRIMARY KEY, job_group int NOT NULL, \
    job_desc varchar(255) NOT NULL, add_time datetime, update_time datetime, author varchar(64), alarm_email varchar(255), \
    schedule_type varchar(50) NOT NULL DEFAULT 'NONE', schedule_conf varchar(128), misfire_strategy varchar(50) NOT NULL DEFAULT 'DO_NOTHING', \
    executor_route_strategy varchar(50), executor_handler varchar(255), executor_param varchar(512), executor_block_strategy varchar(50), \
    executor_timeout int NOT NULL DEFAULT 0, executor_fail_retry_count int NOT NULL DEFAULT 0, glue_type varchar(50) NOT NULL, \
    glue_source mediumtext, glue_remark varchar(128), glue_updatetime datetime, child_jobid varchar(255), \
    trigger_status tinyint NOT NULL DEFAULT 0, trigger_last_time bigint NOT NULL DEFAULT 0, trigger_next_time bigint NOT NULL DEFAULT 0) \
    DEFAULT CHARSET=utf8mb4";
const JOB_COUNT: usize = 500;

/// Jobs of every route, block strategy, misfire strategy and kind of work.
fn rows() -> String {
    let routes = [
        "FIRST",
        "LAST",
        "ROUND",
        "RANDOM",
        "CONSISTENT_HASH",
        "LEAST_FREQUENTLY_USED",
        "LEAST_RECENTLY_USED",
        "FAILOVER",
        "BUSYOVER",
        "SHARDING_BROADCAST",
    ];
    let blocks = ["SERIAL_EXECUTION", "DISCARD_LATER", "COVER_EARLY"];
    let works = ["BEAN", "GLUE_SHELL", "GLUE_PYTHON", "GLUE_NODEJS", "GLUE_PHP", "GLUE_POWERSHELL", "BEAN"];
    let row = |n: usize| {
        let (kind, conf) = match n % 5 {
            0 => ("FIX_RATE", "30".to_owned()),
            1 => ("NONE", String::new()),
            _ => ("CRON", format!("{} {} {} ? * MON-FRI", n % 60, (n * 7) % 60, n % 24)),
        };
        let (route, block, work) = (routes[n % 10], blocks[n % 3], works[n % 7]);
        let (misfire, retries) = (if n.is_multiple_of(2) { "DO_NOTHING" } else { "FIRE_ONCE_NOW" }, n % 4);
        format!(
            "({}, '结算 <b>{n}</b>', 'ann', '{kind}', '{conf}', '{misfire}', '{route}', 'handler{}', 'p={n}', '{block}', {}, {retries}, \
             '{work}', 'echo \\'{n}\\'', {})",
            n % 3 + 1,
            n % 40,
            n % 90,
            n % 2
        )
    };
    (1..=JOB_COUNT).map(row).collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn five_hundred_jobs_of_xxl_job_are_imported_twice() {
    let Some(foreign) = scratch(Backend::Mysql).await else { return };
    foreign.sql(GROUPS);
    foreign.sql(JOBS);
    foreign.sql("INSERT INTO xxl_job_group (app_name, title) VALUES ('billing', 'a'), ('Mail', 'b'), ('stock', 'c')");
    let columns = "job_group, job_desc, author, schedule_type, schedule_conf, misfire_strategy, executor_route_strategy, executor_handler, \
        executor_param, executor_block_strategy, executor_timeout, executor_fail_retry_count, glue_type, glue_source, trigger_status";
    foreign.sql(&format!("INSERT INTO xxl_job_info ({columns}) VALUES {}", rows()));
    foreign.sql("UPDATE xxl_job_info SET child_jobid = '6,1' WHERE id = 1");
    let Some(own) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start(&own).await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (jobs, report) = (path("jobs.yaml"), path("report.json"));
    let import =
        ["import", "xxl-job", "--database", foreign.url(), "--time-zone", "Asia/Shanghai", "--report", &report];
    let read = rondel(&import, &[]).await;
    assert!(read.code == Some(0), "{}", read.stderr);
    std::fs::write(&jobs, &read.stdout).unwrap();
    let token = server.token_file().display().to_string();
    let client = [("RONDEL_SERVER", server.url()), ("RONDEL_TOKEN_FILE", token.as_str())];
    let saved = rondel(&["job", "apply", "-f", &jobs], &client).await;
    assert!(saved.code == Some(0), "{}", saved.stderr);
    assert_eq!(server.api().all("/api/v1/jobs", &[]).await.len(), JOB_COUNT);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    let entries = report["entries"].as_array().unwrap();
    assert!(entries.len() == JOB_COUNT && entries.iter().all(|entry| entry["job"].is_object()), "{report}");

    let child = server.api().get("/api/v1/jobs/glue_powershell-5").await.expect(200);
    assert_eq!(child["labels"], serde_json::json!({"author": "ann", "xxl-job-id": "5"}), "{child}");
    let follower = server.api().get("/api/v1/jobs/handler6-6").await.expect(200);
    assert_eq!(follower["schedule"]["after"], serde_json::json!(["glue_shell-1"]), "{follower}");

    // Read and applied again, nothing changes.
    let again = rondel(&import, &[]).await;
    assert_eq!(again.stdout, read.stdout);
    let planned = rondel(&["job", "plan", "-f", &jobs, "--exit-code"], &client).await;
    assert!(planned.code == Some(0), "{} {}", planned.stdout, planned.stderr);

    let wrong = rondel(&["import", "xxl-job", "--database", own.url(), "--time-zone", "UTC"], &[]).await;
    assert!(wrong.code != Some(0), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("mysql://USER:PASSWORD@HOST/NAME"), "{}", wrong.stderr);
}

//! The tables that version 3 of XXL-JOB has, and jobs of every kind in them.

use rondel_tests::ScratchDb;

pub(super) const JOB_COUNT: usize = 500;

const TABLES: [&str; 6] = [
    "CREATE TABLE xxl_job_group (id int NOT NULL AUTO_INCREMENT PRIMARY KEY, app_name varchar(64) NOT NULL, title varchar(64) NOT NULL, \
     address_type tinyint NOT NULL DEFAULT 0, address_list text, update_time datetime)",
    "CREATE TABLE xxl_job_info (id int NOT NULL AUTO_INCREMENT PRIMARY KEY, job_group int NOT NULL, job_desc varchar(255) NOT NULL, \
     add_time datetime, update_time datetime, author varchar(64), alarm_email varchar(255), schedule_type varchar(50) NOT NULL DEFAULT 'NONE', \
     schedule_conf varchar(128), misfire_strategy varchar(50) NOT NULL DEFAULT 'DO_NOTHING', executor_route_strategy varchar(50), \
     executor_handler varchar(255), executor_param text, executor_block_strategy varchar(50), executor_timeout int NOT NULL DEFAULT 0, \
     executor_fail_retry_count int NOT NULL DEFAULT 0, glue_type varchar(50) NOT NULL, glue_source mediumtext, glue_remark varchar(128), \
     glue_updatetime datetime, child_jobid varchar(255), trigger_status tinyint NOT NULL DEFAULT 0, trigger_last_time bigint NOT NULL DEFAULT 0, \
     trigger_next_time bigint NOT NULL DEFAULT 0)",
    "CREATE TABLE xxl_job_logglue (id int NOT NULL AUTO_INCREMENT PRIMARY KEY, job_id int NOT NULL, glue_type varchar(50), glue_source mediumtext, \
     glue_remark varchar(128) NOT NULL, add_time datetime, update_time datetime)",
    "CREATE TABLE xxl_job_user (id int NOT NULL AUTO_INCREMENT PRIMARY KEY, username varchar(50) NOT NULL UNIQUE, password varchar(100) NOT NULL, \
     token varchar(100), role tinyint NOT NULL, permission varchar(255))",
    "CREATE TABLE xxl_job_lock (lock_name varchar(50) NOT NULL PRIMARY KEY)",
    "CREATE TABLE xxl_job_registry (id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, registry_group varchar(50) NOT NULL, registry_key varchar(255) NOT NULL, \
     registry_value varchar(255) NOT NULL, update_time datetime)",
];

const ROUTES: [&str; 10] = [
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
const BLOCKS: [&str; 3] = ["SERIAL_EXECUTION", "DISCARD_LATER", "COVER_EARLY"];
const WORKS: [&str; 11] = [
    "BEAN",
    "GLUE_GROOVY",
    "GLUE_SHELL",
    "GLUE_PYTHON",
    "GLUE_PYTHON2",
    "GLUE_NODEJS",
    "GLUE_PHP",
    "GLUE_POWERSHELL",
    "BEAN",
    "BEAN",
    "BEAN",
];

/// Every form that Quartz has; none fires more often than some 1,000 times in 30 days.
pub(super) const CRONS: [&str; 36] = [
    "0 0 2 * * ?",
    "0 30 2 * * ?",
    "30 15 3 ? * *",
    "0 0 12 ? * WED",
    "0 15 10 ? * MON-FRI",
    "0 15 10 ? * 2-6",
    "0 0 8 ? * FRI-MON",
    "0 0 8 ? * 6-2",
    "0 0 22-2 ? * *",
    "0 0/30 8-10 * * ?",
    "0 5/20 9 * * ?",
    "10/25 0 6 * * ?",
    "0 0,10,20-25 7 * * ?",
    "*/30 59 23 ? * SAT",
    "0 0 0 L * ?",
    "0 0 1 L-3 * ?",
    "0 0 1 L-10 * ?",
    "0 0 2 LW * ?",
    "0 0 2 15W * ?",
    "0 0 2 1W * ?",
    "0 0 2 28W * ?",
    "0 10 4 ? * 6L",
    "0 10 4 ? * FRIL",
    "0 10 4 ? * L",
    "0 20 5 ? * 2#1",
    "0 20 5 ? * MON#5",
    "0 0 6 1,15 * ?",
    "0 0 6 1-7/2 * ?",
    "0 0 7 10/5 * ?",
    "0 0 9 ? JAN,MAR,NOV-DEC *",
    "0 0 9 * 10-4 ?",
    "0 0 9 */3 * ?",
    "0 45 11 * * ? 2026-2030",
    "0 45 11 * * ? 2026/1",
    "15 45 11 ? * mon,wed,FRI *",
    "0  0   13 * * ? ",
];

fn job(n: usize) -> String {
    let (kind, conf) = match n % 7 {
        0 => ("FIX_RATE", (n % 50 + 600).to_string()),
        1 => ("NONE", String::new()),
        _ => ("CRON", CRONS[n % CRONS.len()].to_owned()),
    };
    let (route, block, work) = (ROUTES[n % 10], BLOCKS[n % 3], WORKS[n % 11]);
    let misfire = if n.is_multiple_of(2) { "DO_NOTHING" } else { "FIRE_ONCE_NOW" };
    let children = match n {
        2 => "8,15,8",
        9 => "15,9,99999",
        15 => "8,22",
        22 => "15",
        29 => "30",
        _ => "",
    };
    let mail = if n.is_multiple_of(50) { "ops@example.com,night@example.com" } else { "" };
    format!(
        "({}, '结算 <b>{n}</b>', NOW(), NOW(), 'ann', '{mail}', '{kind}', '{conf}', '{misfire}', '{route}', 'handler{}', 'p={n}', '{block}', {}, {}, \
         '{work}', 'echo \\'{n}\\'', 'the first', NOW(), '{children}', {}, 0, 0)",
        n % 3 + 1,
        n % 40,
        n % 90,
        n % 4,
        n % 2
    )
}

pub(super) fn fill(db: &ScratchDb) {
    TABLES.iter().for_each(|table| drop(db.sql(table)));
    db.sql(
        "INSERT INTO xxl_job_group (app_name, title, address_type, address_list, update_time) VALUES ('billing', '结算', 0, \
         'http://10.0.0.5:9999/', NOW()), ('Mail', 'mail', 1, 'http://127.0.0.1:39999/,http://127.0.0.1:39998/', NOW()), ('stock', 'c', 0, NULL, NOW())",
    );
    let columns = "job_group, job_desc, add_time, update_time, author, alarm_email, schedule_type, schedule_conf, misfire_strategy, \
        executor_route_strategy, executor_handler, executor_param, executor_block_strategy, executor_timeout, executor_fail_retry_count, \
        glue_type, glue_source, glue_remark, glue_updatetime, child_jobid, trigger_status, trigger_last_time, trigger_next_time";
    let jobs: Vec<String> = (1..=JOB_COUNT).map(job).collect();
    db.sql(&format!("INSERT INTO xxl_job_info ({columns}) VALUES {}", jobs.join(", ")));
    db.sql(
        "INSERT INTO xxl_job_logglue (job_id, glue_type, glue_source, glue_remark, add_time, update_time) VALUES \
         (2, 'GLUE_SHELL', 'echo old', 'the first <b>', NOW(), NOW()), (2, 'GLUE_SHELL', 'echo \\'2\\'', 'the second', NOW(), NOW())",
    );
    db.sql(
        "INSERT INTO xxl_job_user (username, password, token, role, permission) VALUES ('boss', 'secret-of-boss', 'secret-token', 1, NULL), \
         ('ann', 'secret-of-ann', NULL, 0, '1,2'), ('nil', 'secret-of-nil', NULL, 0, '')",
    );
}

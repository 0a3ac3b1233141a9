//! Kinds of vulnerabilities that schedulers have had, tested on whole systems. The table of all is in `docs/SECURITY.md`;
//! those that need only a router are tested in `crates/web/tests/it/incidents.rs`.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use rondel_tests::{Agent, Api, Backend, ScratchDb, Server, scratch, wait_until};
use serde_json::{Value, json};

async fn server() -> (ScratchDb, Server) {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    server.api().post("/api/v1/apps", json!({"name": "files"})).await.expect(201);
    (db, server)
}

/// Runs a job once to its end.
async fn run(api: &Api, job: Value) -> Value {
    let name = job["name"].as_str().expect("a name").to_owned();
    api.post("/api/v1/jobs", job).await.expect(201);
    api.post(&format!("/api/v1/jobs/{name}/runs"), json!({})).await.expect(201);
    wait_until(Duration::from_secs(30), "the run ends", async || {
        let run = api.runs(&name).await.remove(0);
        if run["finished_at"].is_null() { Err(run) } else { Ok(run) }
    })
    .await
}

/// XXL-JOB before 2.2.0, `PowerJob` CVE-2026-82630: a client that reaches the executor's port runs programs there. Rondel's executor
/// opens no port.
#[tokio::test(flavor = "multi_thread")]
async fn xxl_job_2_2_0_an_executor_opens_no_port() {
    let (_db, server) = server().await;
    let mut agent = Agent::start(&server, "files").await;
    let pid = agent.process().id();
    let open: BTreeSet<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("the agent runs")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .map(|target| target.display().to_string())
        .collect();
    assert!(open.iter().any(|target| target.starts_with("socket:")), "it is connected: {open:?}");
    // The tenth column is the inode of the socket, the fourth its state: 0A listens, 07 is an unconnected UDP socket.
    for (table, state) in [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")] {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            assert!(columns[3] != state || !open.contains(&format!("socket:[{}]", columns[9])), "it listens: {line}");
        }
    }
}

/// XXL-JOB CVE-2022-43183 and #3375: the caller who triggers a run chooses the address to which it is sent, together
/// with the shared token.
#[tokio::test(flavor = "multi_thread")]
async fn xxl_job_cve_2022_43183_a_trigger_sends_no_secret_to_a_chosen_address() {
    let (_db, server) = server().await;
    let trap = TcpListener::bind("127.0.0.1:0").expect("a port");
    trap.set_nonblocking(true).expect("a port that can be asked");
    let url = format!("http://{}/", trap.local_addr().expect("an address"));
    let api = server.api();
    let job = json!({"name": "j", "app": "files", "handler": "shell", "params": {"argv": ["true"]}});
    api.post("/api/v1/jobs", job).await.expect(201);
    for field in ["addressList", "address_list", "address", "executorAddress", "url", "server", "callback"] {
        let refusal = api.post("/api/v1/jobs/j/runs", json!({"params": {}, field: url})).await.expect(422);
        assert_eq!(refusal["errors"][0]["code"], "unknown_field", "{field}: {refusal:#}");
    }
    // Rondel accepts only the name of a connected executor.
    let refusal = api.post("/api/v1/jobs/j/runs", json!({"params": {}, "executor": url})).await.expect(422);
    assert_eq!(refusal["errors"][0]["pointer"], "/executor", "{refusal:#}");
    // In the parameters, the address is only a parameter, which the handler refuses. No connection is opened.
    let _agent = Agent::start(&server, "files").await;
    api.post("/api/v1/jobs/j/runs", json!({"params": {"addressList": url}})).await;
    api.post("/api/v1/jobs/j/runs", json!({})).await.expect(201);
    wait_until(Duration::from_secs(30), "a run succeeds", async || {
        let runs = api.runs("j").await;
        if runs.iter().any(|run| run["status"] == "succeeded") { Ok(()) } else { Err(runs) }
    })
    .await;
    assert!(trap.accept().is_err(), "a connection was opened");
}

/// XXL-JOB CVE-2025-7787, `PowerJob` CVE-2025-14518: a job, or the test of a connection, requests an address that only the
/// server or the agent can reach.
#[tokio::test(flavor = "multi_thread")]
async fn xxl_job_cve_2025_7787_neither_agent_nor_server_reaches_inside() {
    let (_db, server) = server().await;
    let _agent = Agent::start(&server, "files").await;
    let port = server.url().rsplit_once(':').expect("a port").1.to_owned();
    let api = server.api();
    for (index, host) in ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "169.254.169.254"]
        .into_iter()
        .enumerate()
    {
        let params = json!({"url": format!("http://{host}:{port}/livez"), "timeout": "5s"});
        let job = json!({"name": format!("j{index}"), "app": "files", "handler": "http", "params": params});
        let run = run(&api, job).await;
        let message = run["message"].as_str().expect("a message");
        assert!(run["status"] == "failed" && message.contains("outgoing_allow"), "{host}: {run:#}");
    }
    for host in ["127.0.0.1", "2130706433", "[::1]", "10.0.0.1", "169.254.169.254"] {
        let url = json!({"url": format!("http://{host}:{port}/")});
        let refusal = api.put("/api/v1/namespaces/default/failure-webhook", url).await.expect(422);
        assert!(refusal["errors"][0]["message"].to_string().contains("outgoing_allow"), "{host}: {refusal:#}");
    }
}

/// Airflow CVE-2020-11978: the parameters of a run become a part of a command.
#[tokio::test(flavor = "multi_thread")]
async fn airflow_cve_2020_11978_parameters_are_no_shell() {
    let (_db, server) = server().await;
    let _agent = Agent::start(&server, "files").await;
    let folder = tempfile::tempdir().expect("a folder");
    let mark = folder.path().join("evil");
    let evil = format!("$(touch {0}); `touch {0}` && touch {0} | touch {0}\n touch {0}", mark.display());
    let params = json!({"argv": ["printf", "%s", evil], "env": {"EVIL": evil}});
    let run = run(&server.api(), json!({"name": "j", "app": "files", "handler": "shell", "params": params})).await;
    assert_eq!(run["status"], "succeeded", "{run:#}");
    assert!(!mark.exists());
}

/// Dkron #176 and #319: one key gives a shell on every host. In Rondel, script text runs only where the agent permits
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn dkron_176_script_text_is_run_only_where_the_agent_permits_it() {
    let (_db, server) = server().await;
    let _agent = Agent::start(&server, "files").await;
    let folder = tempfile::tempdir().expect("a folder");
    let mark = folder.path().join("evil");
    let params = json!({"script": format!("touch {}", mark.display())});
    let run = run(&server.api(), json!({"name": "j", "app": "files", "handler": "shell", "params": params})).await;
    assert!(run["status"] == "failed" && !mark.exists(), "{run:#}");
}

/// Rundeck CVE-2022-29186, XXL-JOB's `default_token`: the shipped files contain a key, so all installations share it.
#[tokio::test(flavor = "multi_thread")]
async fn rundeck_cve_2022_29186_two_installations_share_no_secret() {
    let ((_one, first), (_two, second)) = (server().await, server().await);
    let token = |server: &Server| std::fs::read_to_string(server.token_file()).expect("a token").trim().to_owned();
    let (of_first, of_second) = (token(&first), token(&second));
    assert!(of_first != of_second && of_first.len() >= 64, "they differ and are long");
    Api::new(second.url(), &of_first).get("/api/v1/jobs").await.expect(401);
    let binary = std::fs::read(rondel_tests::binary()).expect("the binary");
    let secrets = ["default_token", "-----BEGIN PRIVATE KEY", "-----BEGIN RSA PRIVATE KEY", "123456\",\"admin"];
    let search = aho_corasick::AhoCorasick::new(secrets).expect("a few short texts");
    let found: Vec<&str> = search.find_iter(&binary).map(|found| secrets[found.pattern().as_usize()]).collect();
    assert!(found.is_empty(), "in the binary: {found:?}");
    let compose = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docker-compose.yml"));
    assert!(!compose.expect("the file").contains("rondel_"), "no token of ours is in it");
}

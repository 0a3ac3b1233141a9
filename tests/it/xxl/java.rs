//! XXL-JOB's own executors in Java, unchanged: one version for each kind of interface that they had, and an agent on
//! the same server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rondel_tests::{Agent, Api, Backend, Process, Server, left_out_without, scratch, variable, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::python::free_port;
use super::{NETWORKS, job, online, start, token, wait_for_end, wait_for_log, wait_for_status};

/// Long enough for three Java virtual machines that start concurrently on two cores.
const LIMIT: Duration = Duration::from_secs(60);
/// The versions, each with the app of its executors.
const VERSIONS: [(&str, &str); 3] = [("2.2.0", "java22"), ("2.3.1", "java23"), ("3.3.2", "java33")];

/// The executors of a version.
struct Executors {
    classes: PathBuf,
    app: &'static str,
    token: String,
    url: String,
    places: [(TempDir, u16); 2],
}

impl Executors {
    async fn new(api: &Api, folder: &Path, (version, app): (&str, &'static str), url: &str) -> Self {
        for (name, handler, extra_fields) in [
            ("echo", "echo", json!({})),
            ("fail", "fail", json!({})),
            ("throw", "throw", json!({})),
            ("none", "nosuch", json!({})),
            ("shell", "GLUE_SHELL", json!({"overrides": "all"})),
            ("sleep", "sleep", json!({})),
            ("short", "sleep", json!({"timeout": "1s"})),
            ("all", "echo", json!({"route": "broadcast"})),
        ] {
            job(api, (&format!("{app}-{name}"), app, handler), extra_fields).await;
        }
        let place = || (tempfile::tempdir().expect("a folder"), free_port());
        let token = token(api, app).await;
        Self { classes: folder.join(version), app, token, url: url.to_owned(), places: [place(), place()] }
    }

    fn launch(&self, index: usize) -> Process {
        let (folder, port) = &self.places[index];
        let classes = self.classes.display();
        let mut command = Command::new("java");
        command.args([
            "-Xmx96m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            &format!("{classes}:{classes}/*"),
        ]);
        command.args(["Executor", &self.url, self.app, &self.token, &port.to_string()]).arg(folder.path());
        Process::start(&format!("{} {index}", self.app), command)
    }

    async fn start(&self, api: &Api, job: &str, params: Value) -> String {
        start(api, &format!("{}-{job}", self.app), params).await
    }

    /// Runs a job to its end, and checks the verdict and the message.
    async fn ends(&self, api: &Api, (job, params): (&str, Value), status: &str, words: &str) {
        let run = self.start(api, job, params).await;
        let ended_run = wait_for_end(api, &run).await;
        let message = ended_run["message"].as_str().unwrap_or_default();
        assert!(ended_run["status"] == status && message.contains(words), "{} {job}: {ended_run:#}", self.app);
    }

    /// Checks results, failures, scripts, logs, a timeout, a stop, and a broadcast to two executors.
    async fn work(&self, api: &Api) -> Process {
        let one = self.launch(0);
        online(api, self.app, 1).await;
        let echo = self.start(api, "echo", json!("你好 <b>&")).await;
        let ended_run = wait_for_status(api, &echo, "succeeded").await;
        assert_eq!(ended_run["message"], "你好 <b>& 0/1", "{} {}", self.app, one.last_words());
        wait_for_log(api, &echo, "echo of 你好 <b>&").await;
        self.ends(api, ("fail", Value::Null), "failed", "asked to fail").await;
        let thrown = self.start(api, "throw", Value::Null).await;
        wait_for_status(api, &thrown, "failed").await;
        wait_for_log(api, &thrown, "IllegalStateException: thrown").await;
        self.ends(api, ("none", Value::Null), "failed", "job handler [nosuch] not found").await;
        self.ends(api, ("short", Value::Null), "timed_out", "").await;
        let shell = self.start(api, "shell", json!({"source": "echo script of $1\n", "param": "p"})).await;
        wait_for_status(api, &shell, "succeeded").await;
        wait_for_log(api, &shell, "script of p").await;
        let sleep = self.start(api, "sleep", Value::Null).await;
        wait_for_status(api, &sleep, "running").await;
        wait_for_log(api, &sleep, "sleeping").await;
        api.post(&format!("/api/v1/runs/{sleep}/cancel"), json!({})).await;
        wait_for_status(api, &sleep, "cancelled").await;

        let two = self.launch(1);
        online(api, self.app, 2).await;
        let all = self.start(api, "all", json!("x")).await;
        wait_for_status(api, &all, "succeeded").await;
        drop(two);
        one
    }

    /// An executor dies during a run: the run ends as lost, and the next run succeeds once the executor is back.
    async fn die(&self, api: &Api, process: &mut Process) {
        let lost = self.start(api, "sleep", Value::Null).await;
        wait_for_status(api, &lost, "running").await;
        process.kill().await;
        *process = self.launch(0);
        let ended_run = wait_for_end(api, &lost).await;
        assert_eq!(ended_run["status"], "unknown", "{} {ended_run:#}", self.app);
        wait_until(LIMIT, "it runs again", async || {
            let run = self.start(api, "echo", json!("again")).await;
            let found = wait_for_end(api, &run).await;
            if found["status"] == "succeeded" { Ok(()) } else { Err((found, process.last_words())) }
        })
        .await;
    }
}

async fn cancel(api: &Api, run: &str) {
    api.post(&format!("/api/v1/runs/{run}/cancel"), json!({})).await;
    wait_for_status(api, run, "cancelled").await;
}

#[tokio::test]
async fn executors_in_java_work_as_they_are() {
    let Some(folder) = variable("RONDEL_TEST_XXL_JAVA").map(PathBuf::from) else {
        return left_out_without("xxl-job-core", "there are no executors of XXL-JOB in Java");
    };
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let mut server = Server::start_with(&db, &[&NETWORKS[..], &["--xxl-callback-timeout", "2s"]].concat()).await;
    let api = server.api();
    job(&api, ("agent-sleep", "agents", "shell"), json!({"params": {"argv": ["sleep", "600"]}})).await;
    let agent = Agent::start(&server, "agents").await;
    let (a, b, c) = tokio::join!(
        Executors::new(&api, &folder, VERSIONS[0], server.url()),
        Executors::new(&api, &folder, VERSIONS[1], server.url()),
        Executors::new(&api, &folder, VERSIONS[2], server.url()),
    );
    let (one, two, three) = tokio::join!(a.work(&api), b.work(&api), c.work(&api));
    let mut all = [(a, one), (b, two), (c, three)];

    // The server dies during a run of each executor, and the runs continue.
    let mut runs = vec![start(&api, "agent-sleep", Value::Null).await];
    for (executors, _) in &all {
        runs.push(executors.start(&api, "sleep", Value::Null).await);
    }
    for run in &runs {
        wait_for_status(&api, run, "running").await;
    }
    server.kill().await;
    server.restart().await;
    let api = server.api();
    for run in &runs {
        let found = wait_for_status(&api, run, "running").await;
        assert_eq!(found["attempt"], 1, "{found:#}");
    }
    for run in &runs {
        cancel(&api, run).await;
    }

    let [a, b, c] = &mut all;
    tokio::join!(a.0.die(&api, &mut a.1), b.0.die(&api, &mut b.1), c.0.die(&api, &mut c.1));
    drop(agent);
}

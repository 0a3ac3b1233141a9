//! Scripts that the server keeps: saved by the command line, run by a real agent, pinned, signed, refused.

use std::path::Path;

use rondel_tests::{Agent, Api, Backend, Server, rondel, scratch, wait_until};
use serde_json::{Value, json};

use crate::agent::log;
use crate::verdicts::{trigger, wait_for_verdict};

/// The command line, with the server that it calls.
struct Cli<'a> {
    server: &'a Server,
    token: String,
}

impl<'a> Cli<'a> {
    fn new(server: &'a Server) -> Self {
        Self { server, token: server.token_file().display().to_string() }
    }

    /// Runs a command, asserts its exit code, and returns its output.
    async fn script(&self, args: &[&str], code: i32) -> String {
        let place = ["--server", self.server.url(), "--token-file", &self.token];
        let output = rondel(&[&["script"], args, &place].concat(), &[]).await;
        assert_eq!(output.code, Some(code), "{args:?}: {output:?}");
        if code == 0 { output.stdout } else { output.stderr }
    }

    async fn push(&self, folder: &Path, text: &str, extra_args: &[&str]) -> String {
        let file = folder.join("greet.sh");
        std::fs::write(&file, text).expect("write a script");
        self.script(&[&["push", "greet", file.to_str().expect("UTF-8")], extra_args].concat(), 0).await
    }
}

async fn job(api: &Api, name: &str, app: &str, script: Value) {
    let job = json!({"name": name, "app": app, "handler": "shell", "params": {"script": script, "args": "you"}});
    api.post("/api/v1/jobs", job).await.expect(201);
}

/// Runs a job. Returns the line of its log that names the script, and what the script printed.
async fn printed(api: &Api, job: &str) -> (String, Vec<String>) {
    let run = trigger(api, job).await;
    let ended_run = wait_for_verdict(api, &run).await;
    assert_eq!(ended_run["status"], "succeeded", "{ended_run}");
    let mut lines = log(api, &run).await;
    (lines.remove(0), lines)
}

async fn failure(api: &Api, job: &str) -> String {
    let ended_run = wait_for_verdict(api, &trigger(api, job).await).await;
    assert_eq!(ended_run["status"], "failed", "{ended_run}");
    ended_run["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn jobs_run_the_newest_version_or_the_one_that_they_name() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let (api, cli) = (server.api(), Cli::new(&server));
    let folder = tempfile::tempdir().expect("make a folder");
    let (data, mute_data) = (folder.path().join("agent"), folder.path().join("mute"));
    for app in ["scripts", "mute"] {
        api.post("/api/v1/apps", json!({"name": app})).await.expect(201);
    }
    let new = json!({"name": "early", "app": "scripts", "handler": "shell", "params": {"script": {"name": "greet"}}});
    let refusal = api.post("/api/v1/jobs", new.clone()).await.expect(422);
    assert!(refusal.to_string().contains("there is no script \\\"greet\\\""), "{refusal}");

    cli.push(folder.path(), "echo one $1\n", &["--note", "the first"]).await;
    let data_dir = data.to_str().expect("UTF-8");
    let _agent = Agent::start_with(&server, "scripts", &["--allow-scripts", "--data-dir", data_dir]).await;
    let mute = ["--data-dir", mute_data.to_str().expect("UTF-8")];
    let _mute = Agent::start_with(&server, "mute", &mute).await;
    job(&api, "newest", "scripts", json!({"name": "greet"})).await;
    // `apply` compares jobs without their parameters, but it checks the script that they name.
    let pinned = json!({"name": "pinned", "app": "scripts", "handler": "shell", "params": {"args": "you"}});
    let applied = |script: Value| {
        let mut list = json!([pinned]);
        list[0]["params"]["script"] = script;
        api.post("/api/v1/jobs/apply", list)
    };
    applied(json!({"name": "greet", "version": 7})).await.expect(422);
    applied(json!({"name": "greet", "version": 1})).await.expect(200);
    job(&api, "refused", "mute", json!({"name": "greet"})).await;
    let (first, lines) = printed(&api, "newest").await;
    assert_eq!(lines, ["one you"]);
    assert!(first.starts_with("script greet, version 1, SHA-256 "), "{first}");
    let message = failure(&api, "refused").await;
    assert!(message.contains("does not run scripts of the server: start it with --allow-scripts"), "{message}");

    cli.push(folder.path(), "echo two $1\n", &["--if-version", "1"]).await;
    assert_eq!(printed(&api, "newest").await.1, ["two you"]);
    assert_eq!(printed(&api, "pinned").await.1, ["one you"]);
    cached_text_is_not_believed(&api, &data).await;

    let versions = cli.script(&["versions", "greet", "-o", "name"], 0).await;
    assert_eq!(versions.lines().collect::<Vec<_>>(), ["2", "1"]);
    let diff = cli.script(&["diff", "greet"], 0).await;
    assert!(diff.contains("- echo one $1") && diff.contains("+ echo two $1"), "{diff}");
    cli.script(&["restore", "greet", "1"], 0).await;
    assert_eq!(cli.script(&["show", "greet", "--source"], 0).await, "echo one $1\n");
    assert_eq!(printed(&api, "newest").await.1, ["one you"]);
    let jobs = cli.script(&["jobs", "greet", "-o", "name"], 0).await;
    assert_eq!(jobs.lines().collect::<Vec<_>>(), ["newest", "pinned", "refused"]);
    let used = cli.script(&["delete", "greet"], 6).await;
    assert!(used.contains("used by 3 jobs (newest, pinned, refused)"), "{used}");
    let conflict = api.request(reqwest::Method::PUT, "/api/v1/scripts/greet").header("if-match", "\"v1\"");
    let conflict = conflict.json(&json!({"language": "shell", "source": "true"}));
    api.answer(conflict).await.expect(412);
    let other = api.put("/api/v1/scripts/greet", json!({"language": "php", "source": "x"})).await.expect(422);
    assert!(other.to_string().contains("is shell, which cannot be changed"), "{other}");
    for job in ["newest", "pinned", "refused"] {
        api.delete(&format!("/api/v1/jobs/{job}")).await;
    }
    wait_until(std::time::Duration::from_secs(10), "the script is deleted", async || {
        let answer = api.delete("/api/v1/scripts/greet").await;
        if answer.status == 204 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}

/// A process that writes into the agent's folder cannot choose which script text runs.
async fn cached_text_is_not_believed(api: &Api, data: &Path) {
    let files: Vec<_> = std::fs::read_dir(data.join("scripts"))
        .expect("the cache")
        .map(|file| file.expect("a file of the cache").path())
        .collect();
    assert_eq!(files.len(), 2);
    for file in files {
        std::fs::write(file, "echo changed\n").expect("change the cache");
    }
    for (job, expected) in [("newest", "two you"), ("pinned", "one you")] {
        let (warning, lines) = printed(api, job).await;
        assert!(warning.contains("was changed on this host; it is fetched again"), "{warning}");
        assert_eq!(lines.last().map(String::as_str), Some(expected));
    }
}

#[tokio::test]
async fn an_agent_with_keys_runs_scripts_signed_with_them() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let (api, cli) = (server.api(), Cli::new(&server));
    let folder = tempfile::tempdir().expect("make a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (key, public, other) = (path("release.key"), path("release.key.pub"), path("other.key"));
    for key in [&key, &other] {
        cli.script(&["key", key], 0).await;
    }
    api.post("/api/v1/apps", json!({"name": "signed"})).await.expect(201);
    cli.push(folder.path(), "echo one\n", &["--sign-key", &key]).await;
    let _agent = Agent::start_with(&server, "signed", &["--allow-scripts", "--script-key", &public]).await;
    job(&api, "newest", "signed", json!({"name": "greet"})).await;
    job(&api, "text", "signed", json!("echo text")).await;
    let program =
        json!({"name": "program", "app": "signed", "handler": "shell", "params": {"argv": ["sh", "-c", "true"]}});
    api.post("/api/v1/jobs", program).await.expect(201);
    let chosen = json!({"script": {"name": "greet"}, "interpreter": ["sh", "-c", "true"]});
    let chosen = json!({"name": "chosen", "app": "signed", "handler": "shell", "params": chosen});
    api.post("/api/v1/jobs", chosen).await.expect(201);
    let loader = json!({"script": {"name": "greet"}, "env": {"LD_PRELOAD": "/tmp/x.so"}});
    let loader = json!({"name": "loader", "app": "signed", "handler": "shell", "params": loader});
    api.post("/api/v1/jobs", loader).await.expect(201);
    assert_eq!(printed(&api, "newest").await.1, ["one"]);
    for (job, expected) in [
        ("text", "not text that comes with a job"),
        ("program", "runs only signed scripts"),
        ("chosen", "interpreter cannot be chosen"),
        ("loader", "can run code other than the signed script"),
    ] {
        let message = failure(&api, job).await;
        assert!(message.contains(expected), "{job}: {message}");
    }
    for (text, extra_args, expected) in [
        ("echo two\n", &[][..], "is not signed"),
        ("echo three\n", &["--sign-key", &other], "not made with a key that this agent knows"),
    ] {
        cli.push(folder.path(), text, extra_args).await;
        let message = failure(&api, "newest").await;
        assert!(message.contains(expected), "{message}");
    }
    // A signature is valid for one text only.
    let file = path("greet.sh");
    std::fs::write(&file, "echo four\n").expect("write a script");
    let signature = cli.script(&["sign", "greet", &file, "--key", &key], 0).await;
    let body = |source: &str| json!({"language": "shell", "source": source, "signature": signature.trim()});
    api.put("/api/v1/scripts/greet", body("echo five\n")).await.expect(200);
    assert!(failure(&api, "newest").await.contains("not made with a key that this agent knows"));
    api.put("/api/v1/scripts/greet", body("echo four\n")).await.expect(200);
    assert_eq!(printed(&api, "newest").await.1, ["four"]);
    cli.script(&["restore", "greet", "1"], 0).await;
    assert_eq!(printed(&api, "newest").await.1, ["one"]);
}

#[tokio::test]
async fn a_script_is_signed_for_the_namespace_of_the_token() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let api = server.api();
    let folder = tempfile::tempdir().expect("make a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    api.post("/api/v1/namespaces", json!({"name": "shop"})).await.expect(201);
    let grants = json!([{"role": "editor", "namespace": "default"}, {"role": "editor", "namespace": "shop"}]);
    let token = json!({"kind": "api", "name": "release", "grants": grants, "namespace": "shop"});
    let token = api.post("/api/v1/tokens", token).await.expect(201);
    let cli = Cli { server: &server, token: path("token") };
    std::fs::write(&cli.token, token["token"].as_str().expect("a token")).expect("write a token");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&cli.token, private).expect("close it to others");
    let key = path("release.key");
    cli.script(&["key", &key], 0).await;
    cli.push(folder.path(), "echo one\n", &["--sign-key", &key]).await;
    let file = path("greet.sh");
    let signature = cli.script(&["sign", "greet", &file, "--key", &key, "--namespace", "shop"], 0).await;
    let saved = api.get("/api/v1/scripts/greet?namespace=shop").await.expect(200);
    assert_eq!(saved["signature"], signature.trim());
    api.get("/api/v1/scripts/greet").await.expect(404);
}

#[tokio::test]
async fn an_agent_checks_the_syntax_of_a_script_and_runs_nothing_of_it() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let (api, cli) = (server.api(), Cli::new(&server));
    let folder = tempfile::tempdir().expect("make a folder");
    cli.push(folder.path(), "echo printed\nif true; then\n", &[]).await;
    api.post("/api/v1/apps", json!({"name": "scripts"})).await.expect(201);
    let _agent = Agent::start_with(&server, "scripts", &["--allow-scripts"]).await;
    let job = json!({
        "name": "greet.try", "app": "scripts", "handler": "shell", "params": {"script": {"name": "greet"}},
        "overrides": ["/args", "/check"],
    });
    api.post("/api/v1/jobs", job).await.expect(201);
    let check = async || {
        let run = api.post("/api/v1/jobs/greet.try/runs", json!({"params": {"check": true}})).await.expect(201);
        let run = run["id"].as_str().expect("an id").to_owned();
        (wait_for_verdict(&api, &run).await, log(&api, &run).await)
    };
    let (wrong, lines) = check().await;
    assert_eq!(wrong["status"], "failed", "{wrong}");
    assert!(wrong["message"].as_str().is_some_and(|message| message.starts_with("exit code 2")), "{wrong}");
    assert!(!lines.iter().any(|line| line == "printed"), "{lines:?}");
    cli.push(folder.path(), "echo printed\nif true; then exit 9; fi\n", &[]).await;
    let (right, lines) = check().await;
    assert_eq!(right["status"], "succeeded", "{right}");
    assert_eq!(lines.len(), 1, "the script's name alone: {lines:?}");
}

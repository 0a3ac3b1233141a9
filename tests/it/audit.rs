//! If a server dies between a change and its answer, the audit log contains the change.

use std::time::Duration;

use rondel_tests::{ScratchDb, Server};
use serde_json::json;

use crate::on_each_database;

async fn a_change_whose_server_died_is_in_the_log(db: ScratchDb) {
    for (place, is_made) in [("create_job.written", false), ("create_job.committed", true)] {
        let mut server = Server::start_with(&db, &["--failpoint", place]).await;
        let name = place.replace(['.', '_'], "-");
        let job = json!({"name": name, "app": "files", "handler": "shell", "params": {"argv": ["true"]}});
        let url = format!("{}/api/v1/jobs", server.url());
        let token = std::fs::read_to_string(server.token_file()).expect("a token");
        server.api().get("/api/v1/jobs").await.expect(200);
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let sent = client.post(url).bearer_auth(token.trim()).json(&job).send().await;
        assert!(sent.is_err(), "the server died: {sent:?}");
        assert!(!server.process().wait(Duration::from_secs(20)).await.success());
        let server = Server::start_with_data_of(server, &[]).await;
        let found = server.api().get(&format!("/api/v1/jobs/{name}")).await;
        assert_eq!(found.status == 200, is_made, "{place}: {:#}", found.body);
        let log = server.api().get("/api/v1/audit?action=job.create&limit=1").await.expect(200);
        let entry = &log["items"][0];
        assert_eq!((&entry["verdict"], &entry["after"]), (&json!("allowed"), &json!({"unanswered": true})), "{log:#}");
        let mut server = server;
        server.stop().await;
    }
}
on_each_database!(a_change_whose_server_died_is_in_the_log);

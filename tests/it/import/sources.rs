//! Imports of crontabs and of Kubernetes cron jobs, while the old scheduler runs, and from several sources into one
//! namespace.

use std::path::Path;

use rondel_tests::{Backend, Server, rondel, scratch};
use serde_json::json;

/// Writes a file, and returns its path.
fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file");
    path.display().to_string()
}

#[tokio::test]
async fn a_crontab_is_imported_paused_and_a_second_one_does_not_take_over_its_jobs_unseen() {
    let Some(own_db) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start(&own_db).await;
    let token = server.token_file().display().to_string();
    let client = [("RONDEL_SERVER", server.url()), ("RONDEL_TOKEN_FILE", token.as_str())];
    let folder = tempfile::tempdir().expect("a folder");
    let crontab =
        file(folder.path(), "crontab", "HOME=/srv\n15 2 * * * /opt/backup.sh\n30 2 * * * /opt/backup.sh --all\n");
    let import = async |app: &str, flags: &[&str]| {
        let all = [&["import", "crontab", &crontab, "--app", app, "--time-zone", "UTC"][..], flags].concat();
        let read = rondel(&all, &[]).await;
        assert!(read.code == Some(0), "{read:?}");
        (file(folder.path(), "jobs.yaml", &read.stdout), read.stderr)
    };
    let job = async |name: &str| server.api().get(&format!("/api/v1/jobs/{name}")).await.expect(200);

    let (jobs, report) = import("web1", &["--disabled"]).await;
    assert!(!report.contains("they run twice"), "{report}");
    let saved = rondel(&["job", "apply", "-f", &jobs], &client).await;
    assert!(saved.code == Some(0), "{saved:?}");
    let backup = job("backup.sh").await;
    assert_eq!((&backup["enabled"], &backup["labels"]), (&json!(false), &json!({"cron-file": crontab})), "{backup}");
    assert_eq!((&backup["params"]["cwd"], &backup["params"]["env"]), (&json!("/srv"), &json!({"HOME": "/srv"})));

    // Another host with the same program: its jobs would replace those of the first.
    let (jobs, _) = import("web2", &[]).await;
    let planned = rondel(&["job", "plan", "-f", &jobs], &client).await;
    assert!(planned.stderr.contains("warning: 2 jobs: moves from app web1 to app web2"), "{planned:?}");
    let (jobs, _) = import("web2", &["--name-prefix", "web2-"]).await;
    let saved = rondel(&["job", "apply", "-f", &jobs], &client).await;
    assert!(saved.code == Some(0) && !saved.stderr.contains("moves from app"), "{saved:?}");
    assert_eq!((&job("web2-backup.sh").await["app"], &job("backup.sh").await["app"]), (&json!("web2"), &json!("web1")));

    let (jobs, _) = import("web1", &["--shadow"]).await;
    let saved = rondel(&["job", "apply", "-f", &jobs], &client).await;
    assert!(saved.code == Some(0) && job("backup.sh").await["mode"] == "shadow", "{saved:?}");
    let (jobs, report) = import("web1", &[]).await;
    assert!(report.contains("while cron runs them too, they run twice; --disabled"), "{report}");
    let switched = rondel(&["job", "apply", "-f", &jobs], &client).await;
    assert!(switched.code == Some(0) && switched.stderr.contains("leaves shadow mode"), "{switched:?}");

    let wrong =
        rondel(&["import", "crontab", &crontab, "--app", "web1", "--time-zone", "UTC", "--name-prefix", "Web"], &[])
            .await;
    assert!(wrong.code == Some(2) && wrong.stderr.contains("--name-prefix: no name begins with \"Web\""), "{wrong:?}");
}

#[tokio::test]
async fn a_file_without_cron_jobs_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = file(folder.path(), "service.yaml", "kind: Service\n");
    let refusal = rondel(&["import", "kubernetes-cronjob", &service, "--app", "shop"], &[]).await;
    assert!(refusal.code == Some(2) && refusal.stdout.is_empty(), "{refusal:?}");
    assert!(refusal.stderr.contains("service.yaml: no CronJob of Kubernetes is in it"), "{refusal:?}");
}

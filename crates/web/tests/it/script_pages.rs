//! Trying a script from its page.

use serde_json::json;

use crate::harness::Server;
use crate::visitor::{Visitor, location};

#[tokio::test]
async fn a_script_is_run_once_or_checked_from_its_page() {
    let server = Server::start().await;
    let source = json!({"language": "shell", "source": "echo $1\n"});
    server.with_body("PUT", "/api/v1/scripts/greet", source).await.expect(201);
    let mut visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/scripts/greet").await.text();
    assert!(page.contains("No executor that runs shell scripts"), "{page}");

    let run = location(&visitor.post("/scripts/greet/try", "app=files&args=&do=check").await);
    let run = server.get(&format!("/api/v1{run}")).await.expect(200);
    assert_eq!(run["params"], json!({"script": {"name": "greet"}, "check": true}), "{run}");
    let run = location(&visitor.post("/scripts/greet/try", "app=files&args=two+words&do=run").await);
    let run = server.get(&format!("/api/v1{run}")).await.expect(200);
    assert_eq!(run["params"], json!({"script": {"name": "greet"}, "args": "two words"}), "{run}");
    let job = server.get("/api/v1/jobs/greet.try").await.expect(200);
    assert_eq!((&job["app"], &job["handler"], &job["version"]), (&json!("files"), &json!("shell"), &json!(1)));
    assert_eq!(job["overrides"], json!(["/args", "/check"]));
    assert!(visitor.get("/scripts/greet").await.text().contains("href=\"/jobs/greet.try\""));

    let other = visitor.post("/scripts/greet/try", "app=others&args=&do=run").await;
    assert_eq!(other.status, 422);
    assert!(other.text().contains("The job greet.try already exists, but belongs to app files"), "{}", other.text());
    let none = visitor.post("/scripts/greet/try", "app=&args=&do=run").await;
    assert_eq!(none.status, 422);
    assert!(none.text().contains("an app whose executors run the script"), "{}", none.text());
    assert_eq!(visitor.post("/scripts/nosuch/try", "app=files&do=run").await.status, 404);
    visitor.language = "zh";
    let activity = visitor.get("/activity").await.text();
    assert!(activity.contains("试运行脚本"), "{activity}");
}

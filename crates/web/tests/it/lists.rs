//! Lists of runs and jobs: filters, orders, pages, suggestions, and actions on many objects.

use rondel_core::outcome::Outcome;
use serde_json::{Value, json};

use crate::harness::Server;
use crate::visitor::Visitor;

const FAILED: Outcome = Outcome::Failed { retryable: false };

async fn job(server: &Server, name: &str, app: &str, labels: Value) {
    let body = json!({"name": name, "app": app, "handler": "h", "labels": labels});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
}

/// Three jobs in two apps. Each has one failed run, one successful run, and one open run.
async fn create_jobs_and_runs(server: &Server) {
    for (name, app, labels) in [
        ("orders.close", "orders", json!({"team": "pay"})),
        ("orders.export", "orders", json!({"team": "ops"})),
        ("mail.send", "mail", json!({})),
    ] {
        job(server, name, app, labels).await;
        server.finish(server.trigger(name).await, FAILED).await;
        server.finish(server.trigger(name).await, Outcome::Succeeded).await;
        server.trigger(name).await;
    }
}

async fn found(server: &Server, q: &str) -> usize {
    let mut query = String::new();
    for byte in q.bytes() {
        query.push_str(&format!("%{byte:02X}"));
    }
    let page = server.get(&format!("/api/v1/runs?q={query}")).await.expect(200);
    page["items"].as_array().unwrap().len()
}

#[tokio::test]
async fn runs_are_filtered_by_all_that_the_grammar_names() {
    let server = Server::start().await;
    create_jobs_and_runs(&server).await;
    for (q, count) in [
        ("", 9),
        ("status:failed", 3),
        ("-status:failed", 6),
        ("status:failed -status:failed", 0),
        ("trigger:api -trigger:api", 0),
        ("status:failed app:orders", 2),
        ("status:failed -app:orders", 1),
        ("job:orders.*", 6),
        ("job:orders.close", 3),
        ("job:close", 3),
        ("job:nosuch", 0),
        ("app:nosuch", 0),
        ("-job:orders.* status:pending", 1),
        ("label:team=pay", 3),
        ("label:team", 6),
        ("-label:team", 3),
        ("trigger:api", 9),
        ("trigger:cron", 0),
        ("since:1h", 9),
        ("until:2020-01-01", 0),
        ("duration:>1h", 0),
        ("done", 6),
        ("orders", 6),
        ("orders done", 4),
        ("\"<b>done\" -mail", 4),
        ("应用:orders", 0),
    ] {
        assert_eq!(found(&server, q).await, count, "{q}");
    }
    let problem = server.get("/api/v1/runs?q=app:orders%20status:faild").await.expect(422);
    assert!(problem["errors"][0]["message"].as_str().unwrap().starts_with("column 19: \"faild\""), "{problem}");
}

#[tokio::test]
async fn pages_of_runs_go_forwards_and_back() {
    let server = Server::start().await;
    create_jobs_and_runs(&server).await;
    for sort in ["newest", "longest", "latest"] {
        let path = |cursor: &str| format!("/api/v1/runs?q=since:1d&limit=2&sort={sort}{cursor}");
        let ids = |page: &Value| -> Vec<Value> {
            page["items"].as_array().unwrap().iter().map(|item| item["id"].clone()).collect()
        };
        let mut pages = vec![server.get(&path("")).await.expect(200)];
        while let Some(next) = pages.last().unwrap()["next_cursor"].as_str() {
            pages.push(server.get(&path(&format!("&cursor={next}"))).await.expect(200));
        }
        let all: Vec<Value> = pages.iter().flat_map(ids).collect();
        assert_eq!(all.len(), 9, "{sort}");
        assert!(pages[0]["prev_cursor"].is_null());
        for (before, page) in pages.iter().zip(&pages[1..]) {
            let back = page["prev_cursor"].as_str().unwrap();
            let back = server.get(&path(&format!("&cursor={back}"))).await.expect(200);
            assert_eq!(ids(&back), ids(before), "{sort}");
        }
    }
}

#[tokio::test]
async fn the_page_of_runs_keeps_its_input() {
    let server = Server::start().await;
    create_jobs_and_runs(&server).await;
    let mut visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/runs?q=status:failed+app:orders").await;
    assert_eq!(page.status, 200);
    let text = page.text();
    assert!(text.contains("orders.close ·") && !text.contains("mail.send ·"), "{text}");
    // Each chip links to the list without its term.
    assert!(
        text.contains("href=\"/runs?q=app%3Aorders\"") && text.contains("href=\"/runs?q=status%3Afailed\""),
        "{text}"
    );
    for (language, expected) in [("en", "did you mean status:failed?"), ("zh", "是否想写 status:failed？")] {
        visitor.language = language;
        let page = visitor.get("/runs?q=app:orders+status:faild").await;
        assert_eq!(page.status, 422);
        let text = page.text();
        assert!(text.contains("value=\"app:orders status:faild\"") && text.contains("<mark>faild</mark>"), "{text}");
        assert!(text.contains(expected), "{text}");
    }
    for odd in ["orders+shell", "%E5%BA%94%E7%94%A8%3Aorders", "%22", "%3Cscript%3E", "job%3Aclo"] {
        assert_eq!(visitor.get(&format!("/runs?q={odd}")).await.status, 200, "{odd}");
    }
    let old = visitor.get("/runs?job=clos&status=failed").await;
    assert!(old.status == 200 && old.text().contains("orders.close ·"), "{}", old.text());
    let offered = visitor.get("/suggest/runs?q=app:or").await.text();
    assert!(offered.contains("data-text=\"app:orders \""), "{offered}");
    let offered = visitor.get("/suggest/jobs?q=label:p").await.text();
    assert!(offered.contains("label:team=pay"), "{offered}");
}

#[tokio::test]
async fn many_runs_are_retried_after_they_were_counted() {
    let server = Server::start().await;
    create_jobs_and_runs(&server).await;
    let count = json!({"action": "retry", "q": "status:failed app:orders", "dry_run": true});
    let counted = server.with_body("POST", "/api/v1/runs:bulk", count).await.expect(200);
    assert_eq!((&counted["matched"], &counted["done"]), (&json!(2), &json!(0)));
    let audit = server.get("/api/v1/audit?limit=1").await.expect(200);
    assert_eq!(audit["items"][0]["after"], json!({"dry_run": true}), "{audit}");
    let fewer = json!({"action": "retry", "q": "status:failed app:orders", "expected_count": 1});
    server.with_body("POST", "/api/v1/runs:bulk", fewer).await.expect(422);
    let retry = json!({"action": "retry", "q": "status:failed app:orders", "expected_count": 2});
    let done = server.with_body("POST", "/api/v1/runs:bulk", retry).await.expect(200);
    assert_eq!((&done["done"], done["made"].as_array().unwrap().len()), (&json!(2), 2));
    let cancel = json!({"action": "cancel", "ids": done["made"], "reason": "by mistake"});
    assert_eq!(server.with_body("POST", "/api/v1/runs:bulk", cancel).await.expect(200)["done"], 2);
    for bad in
        [json!({"action": "retry"}), json!({"action": "stop", "q": ""}), json!({"action": "retry", "q": "status:x"})]
    {
        assert_eq!(server.with_body("POST", "/api/v1/runs:bulk", bad).await.status, 422);
    }

    let visitor = Visitor::signed_in(&server).await;
    for chosen in ["&scope=all", ""] {
        let ask = visitor.post("/runs:bulk", &format!("do=retry{chosen}&q=status:failed&back=/runs")).await;
        assert!(ask.status == 200 && ask.text().contains("Run 3 runs again?"), "{}", ask.text());
    }
    assert_eq!(visitor.post("/runs:bulk", "do=cancel&q=&back=/runs").await.status, 303);
    let sure = visitor.post("/runs:bulk", "do=retry&scope=all&q=status:failed&back=/runs&expected=3").await;
    assert!(sure.text().contains("3 runs were started again"), "{}", sure.text());
    let audit = server.get("/api/v1/audit?limit=1").await.expect(200);
    assert_eq!(audit["items"][0]["after"]["done"], 3, "{audit}");
    let activity = visitor.get("/activity").await.text();
    assert!(activity.contains("<code>done</code> <ins>3</ins>"), "what an action on many runs did: {activity}");
}

/// The hidden fields of the form that confirms an action.
fn hidden(page: &str, action: &str) -> String {
    let (_, form) = page.split_once(&format!("action=\"{action}\" class=\"bar\">")).expect("a form to confirm");
    let form = form.split("</form>").next().unwrap();
    let field = |rest: &str| {
        let (name, rest) = rest.split_once("\" value=\"").unwrap();
        format!("{name}={}", rest.split('"').next().unwrap())
    };
    form.split("<input type=\"hidden\" name=\"").skip(1).map(field).collect::<Vec<_>>().join("&")
}

/// The confirmed action applies to the jobs that were shown, even if other jobs match the filter by then.
#[tokio::test]
async fn an_action_on_many_is_for_those_that_were_shown() {
    let server = Server::start().await;
    create_jobs_and_runs(&server).await;
    let pause = async |name: &str| server.bare("POST", &format!("/api/v1/jobs/{name}/pause")).await.expect(200);
    let visitor = Visitor::signed_in(&server).await;
    pause("orders.close").await;
    let ask = visitor.post("/jobs:bulk", "do=delete&q=is:paused&back=/jobs").await.text();
    assert!(ask.contains("Delete 1 job?"), "{ask}");
    server.bare("POST", "/api/v1/jobs/orders.close/resume").await.expect(200);
    pause("mail.send").await;
    let done = visitor.post("/jobs:bulk", &hidden(&ask, "/jobs:bulk")).await.text();
    assert!(done.contains("1 job deleted"), "{done}");
    server.get("/api/v1/jobs/mail.send").await.expect(200);
    server.get("/api/v1/jobs/orders.close").await.expect(404);

    let run = server.trigger("orders.export").await;
    server.finish(run, FAILED).await;
    let ask = visitor.post("/runs:bulk", "do=retry&q=status:failed&back=/runs").await.text();
    let fields = hidden(&ask, "/runs:bulk");
    assert!(fields.contains(&format!("run={run}")) && !fields.contains("scope="), "{fields}");
}

#[tokio::test]
async fn runs_are_exported() {
    let server = Server::start().await;
    create_jobs_and_runs(&server).await;
    let visitor = Visitor::signed_in(&server).await;
    let csv = visitor.get("/export/runs.csv?q=status:failed").await;
    assert_eq!(csv.headers["content-type"], "text/csv; charset=utf-8");
    assert!(csv.bytes.starts_with(b"\xef\xbb\xbfid,job,status"));
    assert_eq!(csv.text().lines().count(), 4);
    let lines = visitor.get("/export/runs.jsonl?q=app:orders").await.text();
    assert_eq!(lines.lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count(), 6);
}

#[tokio::test]
async fn jobs_are_filtered_and_changed_together() {
    let server = Server::start().await;
    create_jobs_and_runs(&server).await;
    let last = server.trigger("mail.send").await;
    server.finish(last, FAILED).await;
    server.count_runs().await;
    let names = |page: Value| -> Vec<String> {
        page["items"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap().to_owned()).collect()
    };
    for (q, expected) in [
        ("", vec!["mail.send", "orders.close", "orders.export"]),
        ("orders", vec!["orders.close", "orders.export"]),
        ("label:team=pay", vec!["orders.close"]),
        ("-label:team", vec!["mail.send"]),
        ("app:mail", vec!["mail.send"]),
        ("is:no_executor%20app:mail", vec!["mail.send"]),
        ("is:failing", vec!["mail.send"]),
        ("is:paused", vec![]),
    ] {
        assert_eq!(names(server.get(&format!("/api/v1/jobs?q={q}")).await.expect(200)), expected, "{q}");
    }
    let pause = json!({"action": "pause", "q": "app:orders"});
    let dry = json!({"action": "pause", "q": "app:orders", "dry_run": true});
    assert_eq!(server.with_body("POST", "/api/v1/jobs:bulk", dry).await.expect(200)["matched"], 2);
    let done = server.with_body("POST", "/api/v1/jobs:bulk", pause.clone()).await.expect(200);
    assert_eq!((done["jobs"].as_array().unwrap().len(), &done["unchanged"]), (2, &json!(0)));
    let again = server.with_body("POST", "/api/v1/jobs:bulk", pause).await.expect(200);
    assert_eq!((&again["jobs"], &again["unchanged"]), (&json!([]), &json!(2)));
    assert_eq!(names(server.get("/api/v1/jobs?q=is:paused").await.expect(200)), ["orders.close", "orders.export"]);
    let label = json!({"action": "label", "names": ["mail.send", "nosuch"], "label": "team=支付 组"});
    let done = server.with_body("POST", "/api/v1/jobs:bulk", label).await.expect(200);
    assert_eq!(done["jobs"], json!(["mail.send"]));
    let problems = done["problems"].as_array().unwrap();
    assert_eq!(
        (problems.len(), &problems[0]["job"], &problems[0]["code"]),
        (1, &json!("nosuch"), &json!("job_not_found"))
    );
    assert_eq!(server.get("/api/v1/jobs/mail.send").await.expect(200)["labels"], json!({"team": "支付 组"}));
    for label in ["", "team", "a b=c", "team="] {
        let bad = json!({"action": "label", "q": "", "label": label});
        assert_eq!(server.with_body("POST", "/api/v1/jobs:bulk", bad).await.status, 422, "{label}");
    }

    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/jobs?sort=app").await.text();
    assert!(page.contains("team=支付 组") && page.contains("2 jobs, 2 paused"), "{page}");
    assert!(page.contains("name=\"expected\" value=\"2\""), "a whole group is changed at once: {page}");
    let own = visitor.get("/jobs/mail.send").await.text();
    assert!(own.contains("href=\"/jobs?q=label%3A%22team%3D") && own.contains(">team=支付 组</a>"), "{own}");
    for chosen in ["scope=all", "page=1"] {
        // With a filter and no selected rows, the action applies to all jobs that match.
        let ask = visitor.post("/jobs:bulk", &format!("do=resume&{chosen}&q=app:orders&back=/jobs")).await;
        assert!(ask.text().contains("Resume 2 jobs?"), "{}", ask.text());
    }
    assert_eq!(visitor.post("/jobs:bulk", "do=delete&q=&back=/jobs").await.status, 303);
    let sure = visitor.post("/jobs:bulk", "do=resume&scope=all&q=app:orders&back=/jobs&expected=2").await;
    assert!(sure.text().contains("2 jobs resumed") && sure.text().contains("Undo"), "{}", sure.text());
    let deleted = visitor.post("/jobs:bulk", "do=delete&job=mail.send&expected=1").await;
    assert!(deleted.text().contains("1 job deleted"), "{}", deleted.text());
    assert!(!visitor.get("/jobs").await.text().contains("id=\"job-mail.send\""));
}

#[tokio::test]
async fn labels_are_checked() {
    let server = Server::start().await;
    for (labels, pointer) in
        [(json!({"a b": "c"}), "/labels"), (json!({"a": ""}), "/labels/a"), (json!({"a": 1}), "/labels/a")]
    {
        let body = json!({"name": "a", "app": "a", "handler": "h", "labels": labels});
        let problem = server.with_body("POST", "/api/v1/jobs", body).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
}

/// Jobs with the earliest next fire come first, and jobs that do not fire come last. Both orders are paginated.
#[tokio::test]
async fn jobs_are_sorted_by_their_next_fire() {
    let server = Server::start().await;
    for (name, schedule) in [
        ("a-manual", json!(null)),
        ("b-late", json!({"at": "2099-01-01T00:00:00Z"})),
        ("c-soon", json!({"at": "2098-01-01T00:00:00Z"})),
    ] {
        let job = json!({"name": name, "app": "app", "handler": "handler", "schedule": schedule});
        server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    }
    let visitor = Visitor::signed_in(&server).await;
    let order = async |sort: &str| {
        let text = visitor.get(&format!("/jobs?sort={sort}")).await.text();
        let mut places: Vec<(usize, &str)> = ["a-manual", "b-late", "c-soon"]
            .into_iter()
            .map(|name| (text.find(&format!("href=\"/jobs/{name}\"")).expect("each is listed"), name))
            .collect();
        places.sort_unstable();
        places.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
    };
    assert_eq!(order("next").await, ["c-soon", "b-late", "a-manual"]);
    assert_eq!(order("p95").await, ["a-manual", "b-late", "c-soon"], "nothing is known of any: by name");
    assert_eq!(visitor.get("/jobs?sort=size").await.status, 422);
}

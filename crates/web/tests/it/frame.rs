//! The parts around every page: the clock, short messages, the palette, the stream of events, and compression.

use axum::body::{Body, to_bytes};
use axum::http::HeaderMap;
use rondel_core::cron::parse_zone;
use rondel_core::outcome::Outcome;
use rondel_core::words;
use rondel_web::WebConfig;
use serde_json::json;
use tower::ServiceExt as _;

use crate::accounts::{signed_in, user};
use crate::harness::{Answer, Server};
use crate::visitor::{Visitor, location};

/// Submits a form like the script does.
async fn send_action(visitor: &Visitor<'_>, path: &str) -> Answer {
    let request = visitor.request("POST", path).header("hx-request", "true").header("origin", "http://here");
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    visitor.server.send(request.body(Body::from("back=/jobs")).unwrap()).await
}

/// The same visitor with additional cookies.
fn with_cookies<'s>(visitor: &Visitor<'s>, cookies: &str) -> Visitor<'s> {
    Visitor { server: visitor.server, cookie: format!("{}; {cookies}", visitor.cookie), language: visitor.language }
}

#[tokio::test]
async fn a_preference_leads_from_the_answer_of_a_form_to_a_page() {
    let server = Server::start().await;
    let job = json!({"name": "there", "app": "app", "handler": "handler"});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let visitor = Visitor::signed_in(&server).await;
    for (path, form, back) in [
        ("/jobs:bulk", "do=pause&job=there", "/n/default/jobs"),
        ("/runs:bulk", "do=cancel&scope=all", "/n/default/runs"),
        ("/alerts/silences", "for=until", "/n/default/alerts"),
        ("/jobs/there/edit?namespace=default", "version=7", "/n/default/jobs/there/edit"),
    ] {
        let page = visitor.post(path, form).await.text();
        assert!(page.contains(&format!("name=\"back\" value=\"{back}\"")), "{path}: {page}");
        assert_eq!(visitor.exactly(back).await.status, 200, "{back}");
    }
}

#[tokio::test]
async fn times_are_shown_on_the_clock_that_the_reader_chose() {
    let server = Server::start().await;
    let schedule = json!({"cron": "0 0 1 * * ?", "time_zone": "America/New_York"});
    let job = json!({"name": "there", "app": "app", "handler": "handler", "schedule": schedule, "enabled": false});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let run = server.trigger("there").await;
    let visitor = Visitor::signed_in(&server).await;
    let path = format!("/runs/{run}");
    let fire_at = server.engine.store().runs(&[run]).await.unwrap()[0].fire_at;
    let on = |zone: &str| words::instant_text(parse_zone(zone).unwrap(), fire_at)[..19].to_owned();
    for (cookies, zone) in [
        ("x=y", "UTC"),
        ("rondel_zone=Asia/Shanghai", "Asia/Shanghai"),
        ("rondel_zone=Asia/Shanghai; rondel_times=utc", "UTC"),
        ("rondel_zone=<script>", "UTC"),
    ] {
        let page = with_cookies(&visitor, cookies).get(&path).await.text();
        assert!(page.contains(&format!("\">{}</time>", on(zone))), "{cookies}: {} is not in {page}", on(zone));
        assert!(
            page.contains(&format!("Times in {zone}")) && page.contains(&format!("data-zone=\"{zone}\"")),
            "{page}"
        );
    }
    let page = with_cookies(&visitor, "rondel_zone=Asia/Shanghai; rondel_times=job").get("/jobs/there").await.text();
    assert!(page.contains("Times in America/New_York") && page.contains(">New York</button>"), "{page}");
    for path in ["/jobs/there/versions", "/jobs/there/edit", "/jobs/there/activity"] {
        let other = with_cookies(&visitor, "rondel_zone=Asia/Shanghai; rondel_times=job").get(path).await.text();
        assert!(
            other.contains("data-zone=\"America/New_York\"") && other.contains(">New York</button>"),
            "{path}: {other}"
        );
    }
    // The tooltip has the instant on the clock of the job, on that of the user, and in UTC.
    let title = format!("title=\"{}", on("America/New_York"));
    let title = page.split(&title).nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    assert!(title.contains(&on("Asia/Shanghai")) && title.contains(&on("UTC")), "{title}");
    server.bare("POST", "/api/v1/jobs/there/resume").await.expect(200);
    let list = with_cookies(&visitor, "rondel_zone=Asia/Shanghai; rondel_times=job").get("/jobs").await.text();
    assert!(list.contains("01:00</span> <span class=\"date\">New York</span>"), "{list}");
    let chosen = visitor.post("/preferences", "times=job&back=/jobs").await;
    assert!(chosen.headers["set-cookie"].to_str().unwrap().starts_with("rondel_times=job;"), "{chosen:?}");
    assert_eq!(location(&chosen), "/jobs");
    assert_eq!(visitor.post("/preferences", "times=mars").await.status, 422);
}

#[tokio::test]
async fn a_form_that_a_script_sent_is_answered_by_a_message_that_takes_it_back() {
    let server = Server::start().await;
    server.job("there").await;
    let visitor = Visitor::signed_in(&server).await;
    for (way, words, back) in [("pause", "Paused there.", "resume"), ("resume", "Resumed there.", "pause")] {
        let answer = send_action(&visitor, &format!("/n/default/jobs/there/{way}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let form = format!("<form method=\"post\" action=\"/n/default/jobs/there/{back}\" data-act>");
        assert!(answer.text().contains(words) && answer.text().contains(&form), "{}", answer.text());
        assert!(!answer.text().contains("<html"), "a part of a page");
        assert_eq!(location(&visitor.post(&format!("/jobs/there/{way}"), "back=/jobs").await), "/jobs", "no script");
    }
    let answer = send_action(&visitor, "/n/default/jobs/there/runs").await.text();
    assert!(answer.contains(" href=\"/n/default/runs/") && answer.contains("#there · "), "{answer}");
    assert_eq!(send_action(&visitor, "/n/default/jobs/nowhere/pause").await.status, 404);
}

#[tokio::test]
async fn the_palette_offers_jobs_pages_and_actions() {
    let server = Server::start().await;
    for number in 0..12 {
        server.job(&format!("orders.close-{number}")).await;
    }
    server.job("close-all").await;
    let visitor = Visitor::signed_in(&server).await;
    let find = async |query: &str| visitor.exactly(&format!("/n/default/palette?q={query}")).await.text();
    let page = find("close").await;
    assert_eq!(page.matches("class=\"hit\" href=\"/n/default/jobs/").count(), 8, "{page}");
    let first = page.split("class=\"hit\" href=\"").nth(1).unwrap();
    assert!(first.starts_with("/n/default/jobs/close-all\""), "what begins so comes first: {first}");
    assert!(page.contains("action=\"/n/default/jobs/close-all/pause\" data-act"), "{page}");
    let page = find("ORDERS+11").await;
    assert_eq!(page.matches("class=\"hit\" href=\"/n/default/jobs/").count(), 1, "{page}");
    let page = find("run+close-11").await;
    assert!(page.contains("action=\"/n/default/jobs/orders.close-11/runs\" data-act") && !page.contains("/pause\""));
    assert!(find("calend").await.contains("class=\"hit\" href=\"/n/default/calendars\""));
    for (query, part) in
        [("%3Cscript%3E", "Nothing matches these words."), ("%E6%97%A5", "Nothing matches"), ("%25_", "Nothing")]
    {
        let page = find(query).await;
        assert!(page.contains(part) && !page.contains("<script>"), "{query}: {page}");
    }
    let chinese = Visitor { server: &server, cookie: visitor.cookie.clone(), language: "zh" };
    let page = chinese.get("/palette?q=%E8%BF%90%E8%A1%8C+close-all").await.text();
    assert!(page.contains("action=\"/jobs/close-all/runs\"") && page.contains("立即运行 close-all"), "{page}");
    user(&server, "eye", json!([{"role": "viewer"}])).await;
    let page = signed_in(&server, "eye").await.get("/palette?q=run+close-all").await.text();
    assert!(page.contains("<button class=\"hit\" disabled title=\"Needs the role operator"), "{page}");
}

/// More jobs than the palette reads contain the typed word elsewhere in their names, and precede this job in the order of names.
#[tokio::test]
async fn the_palette_finds_the_job_whose_name_was_typed() {
    let server = Server::start().await;
    let names = (0..64).map(|number| format!("backup-orders-{number}"));
    let names = names.chain(["orders-late", "orders"].map(str::to_owned));
    let jobs: Vec<_> = names.map(|name| json!({"name": name, "app": "app", "handler": "h"})).collect();
    server.with_body("POST", "/api/v1/jobs/apply", json!(jobs)).await.expect(200);
    let page = Visitor::signed_in(&server).await.get("/palette?q=run+orders").await.text();
    let actions: Vec<&str> = page.split("action=\"/jobs/").skip(1).filter_map(|rest| rest.split('/').next()).collect();
    assert_eq!((actions.len(), &actions[..2]), (8, ["orders", "orders-late"].as_slice()), "{page}");
}

#[tokio::test]
async fn the_palette_finds_a_run_by_its_id() {
    let server = Server::start().await;
    server.job("orders").await;
    let run = server.trigger("orders").await;
    let visitor = Visitor::signed_in(&server).await;
    for typed in [run.to_string(), format!("run+{run}")] {
        let page = visitor.get(&format!("/palette?q={typed}")).await.text();
        assert!(page.contains(&format!("class=\"hit\" href=\"/runs/{run}\"")), "{typed}: {page}");
    }
    let page = visitor.get("/palette?q=77").await.text();
    assert!(page.contains("Nothing matches these words."), "{page}");
}

#[tokio::test]
async fn pages_hear_what_happens_by_one_stream() {
    let config = WebConfig { follow_timeout: std::time::Duration::from_secs(6), ..WebConfig::default() };
    let server = Server::start_with(config).await;
    server.job("there").await;
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.exactly("/n/default/jobs").await.text();
    assert!(page.contains("<body data-stream=\"/n/default/live\"") && page.contains("data-live=\"run job\""), "{page}");
    assert!(!page.contains("every 3s") && !page.contains("every 1s"), "{page}");
    let events = async {
        let request = visitor.request("GET", "/n/default/live");
        let request = request.header("accept-encoding", "gzip").body(Body::empty()).unwrap();
        let (mut parts, body) = request.into_parts();
        parts.headers.insert("accept", "text/event-stream".parse().unwrap());
        server.send(http::Request::from_parts(parts, body)).await
    };
    let happens = async {
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        let run = server.trigger("there").await;
        server.finish(run, Outcome::Succeeded).await;
    };
    let (answer, ()) = tokio::join!(events, happens);
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    assert!(!answer.headers.contains_key("content-encoding"), "each event is sent at once");
    let text = answer.text();
    assert!(
        text.contains("event: ready") && text.contains("event: run") && text.contains("\"job\":\"there\""),
        "{text}"
    );
    // A client that does not accept events only gets the end of the stream. Without a session, there is no stream.
    assert!(visitor.exactly("/n/default/live").await.text().contains("event: end"));
    assert_eq!(location(&Visitor::new(&server).exactly("/n/default/live").await), "/sign-in?next=/n/default/live");
}

/// The headers of an answer, and the length of its body as sent.
async fn compressed(server: &Server, request: http::request::Builder) -> (HeaderMap, usize) {
    let response = server.app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.headers, to_bytes(body, usize::MAX).await.unwrap().len())
}

#[tokio::test]
async fn answers_travel_compressed_and_keep_their_tags() {
    let server = Server::start().await;
    let description = "it closes the books ".repeat(40);
    let job = json!({"name": "there", "app": "app", "handler": "handler", "description": description});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.exactly("/n/default/jobs/there").await;
    assert!(!page.headers.contains_key("content-encoding"), "only where it is asked for");
    let style = page.text().split("rel=\"stylesheet\" href=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    for (encoding, path) in [("br", "/n/default/jobs/there"), ("gzip", "/n/default/jobs/there"), ("br", &style)] {
        let plain = visitor.exactly(path).await.bytes.len();
        let request = visitor.request("GET", path).header("accept-encoding", encoding);
        let (headers, len) = compressed(&server, request).await;
        assert_eq!(headers["content-encoding"], encoding, "{path}");
        assert!(headers.get_all("vary").iter().any(|vary| vary.as_bytes().eq_ignore_ascii_case(b"accept-encoding")));
        assert!(len * 2 < plain, "{path}: {len} of {plain}");
    }
    let request = server.request("GET", "/api/v1/jobs/there").header("accept-encoding", "gzip");
    let (headers, _) = compressed(&server, request).await;
    assert_eq!(headers["content-encoding"], "gzip");
    assert!(headers["etag"].to_str().unwrap().starts_with('"'), "the tag stays strong");
    // Compression polls a stream once more after its end.
    let request = server.request("GET", "/api/v1/jobs/export").header("accept-encoding", "gzip");
    let (headers, _) = compressed(&server, request).await;
    assert_eq!(headers["content-encoding"], "gzip");
}

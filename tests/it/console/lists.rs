//! A list of runs that stays open in a real browser: rows that leave the list are marked, since their last state is no longer theirs.

use std::time::Duration;

use rondel_tests::{Dev, left_out_without, wait_until};
use serde_json::json;

use super::browser::{Browser, program};
use super::sign_in;

#[tokio::test]
async fn a_row_that_left_its_list_is_marked() {
    let Some(program) = program() else { return left_out_without("chromium", "a list that stays open") };
    let mut dev = Dev::start().await;
    let mut browser = Browser::start(&program).await;
    sign_in(&mut dev, &mut browser).await;
    let (api, url) = (dev.api(), dev.url().to_owned());
    let job = json!({"name": "long.job", "app": "demo", "handler": "shell", "params": {"argv": ["sleep", "600"]}});
    api.post("/api/v1/jobs", job).await.expect(201);
    let run = api.post("/api/v1/jobs/long.job/runs", json!({})).await.expect(201);
    let run = run["id"].as_str().expect("an id").to_owned();
    wait_until(Duration::from_secs(30), "the run is running", async || {
        let run = api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
        if run["status"] == "running" { Ok(()) } else { Err(run) }
    })
    .await;
    browser.goto(&format!("{url}/n/default/runs?q=job%3Along.job%20status%3Arunning")).await;
    browser.until("the run is listed", &format!("document.querySelector('#run-{run}.line-running')")).await;
    assert_eq!(browser.eval("document.querySelector('[data-gone-rows]').hidden").await, true);
    api.post(&format!("/api/v1/runs/{run}/cancel"), json!({})).await.expect(202);
    browser.until("its row is marked", &format!("document.querySelector('#run-{run}.gone')")).await;
    browser.until("a note counts it", "document.querySelector('[data-gone-rows]:not([hidden])')").await;
    let note = browser.eval("document.querySelector('[data-gone-rows]').textContent").await;
    assert_eq!(note, "no longer on this page: 1");
    assert_eq!(browser.errors().await, [""; 0], "errors of the browser");
    assert!(dev.stop().await.success());
}

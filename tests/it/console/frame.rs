//! The console's frame in a browser: namespaces, the palette, keys, and live updates that do not move the page.

use std::path::Path;

use rondel_tests::Api;
use serde_json::json;

use super::browser::Browser;
use super::hand::{press, type_text};

/// Clicks lead from the first page to a job of another namespace, and all links there stay in that namespace.
pub(super) async fn walk_namespaces(browser: &mut Browser, url: &str, api: &Api, shots: &Path) {
    api.post("/api/v1/namespaces", json!({"name": "prod"})).await.expect(201);
    let job = json!({"name": "hidden.job", "app": "demo", "handler": "shell", "params": {"argv": ["true"]}});
    api.post("/api/v1/jobs?namespace=prod", job).await.expect(201);
    browser.goto(&format!("{url}/")).await;
    browser.click(".where summary").await;
    browser.until("the namespaces are listed", "document.querySelectorAll('.where li').length >= 2").await;
    browser.fill(".where input", "pro").await;
    browser.until("the list is narrow", "document.querySelectorAll('.where li:not([hidden])').length === 1").await;
    browser.take_screenshot(&shots.join("namespaces.png")).await;
    browser.follow(".where li:not([hidden]) a").await;
    browser.goto(&format!("{url}/n/prod/jobs")).await;
    browser.follow("a[href='/n/prod/jobs/hidden.job']").await;
    browser.click("#run-now").await;
    browser.follow(".toast a[href^='/n/prod/runs/']").await;
    browser.until("the run is shown", "location.pathname.startsWith('/n/prod/runs/')").await;
    let badge = browser.eval("document.querySelector('.where').className").await;
    assert!(badge.as_str().expect("text").contains("hue-prod"), "{badge}");
}

/// The palette finds a job by a few letters. Keys lead to other pages, and do nothing while the user types.
pub(super) async fn go_by_keys(browser: &mut Browser, url: &str, shots: &Path) {
    browser.goto(&format!("{url}/n/default/runs")).await;
    press(browser, "k", true).await;
    browser.until("the palette is open", "document.querySelector('#palette').open").await;
    type_text(browser, "close-m").await;
    let hit = "document.querySelector('#palette .hit.on')?.getAttribute('href')";
    browser.until("the job is found", &format!("{hit} === '/n/default/jobs/billing.close-month'")).await;
    browser.take_screenshot(&shots.join("palette.png")).await;
    browser.eval("window.isOld = true").await;
    press(browser, "Enter", false).await;
    browser.until("the job is shown", "!window.isOld && location.pathname.endsWith('/jobs/billing.close-month')").await;
    for (key, path) in [("j", "/n/default/jobs"), ("r", "/n/default/runs"), ("e", "/n/default/executors")] {
        browser.until("the page is there", "document.readyState === 'complete'").await;
        press(browser, "g", false).await;
        press(browser, key, false).await;
        browser.until(&format!("g {key} leads on"), &format!("location.pathname === '{path}'")).await;
    }
    browser.goto(&format!("{url}/n/default/jobs")).await;
    press(browser, "/", false).await;
    browser.until("the search has the focus", "document.activeElement.type === 'search'").await;
    for key in ["g", "r", "?"] {
        press(browser, key, false).await;
    }
    assert_eq!(browser.eval("location.pathname + document.activeElement.value").await, "/n/default/jobsgr?");
    browser.eval("document.activeElement.blur()").await;
    for key in ["j", "j"] {
        press(browser, key, false).await;
    }
    let row = browser
        .eval("[...document.querySelectorAll('main tbody tr')].findIndex(row => row.contains(document.activeElement))")
        .await;
    assert_eq!(row, 1, "the second row has the focus");
    press(browser, "?", false).await;
    browser.until("the keys are listed", "document.querySelector('#keys').open").await;
    browser.take_screenshot(&shots.join("keys.png")).await;
    browser.eval("document.querySelector('#keys input').click(); document.querySelector('#keys').close()").await;
    press(browser, "?", false).await;
    assert_eq!(browser.eval("document.querySelector('#keys').open").await, false, "they are turned off");
    browser.eval("document.querySelector('#keys input').click()").await;
}

/// A switch changes the job without moving the page, and the change can be undone. A hidden tab sends no requests.
pub(super) async fn stay_and_follow(browser: &mut Browser, url: &str, api: &Api, shots: &Path) {
    browser.size(1440, 420).await;
    browser.goto(&format!("{url}/n/default/jobs")).await;
    browser.until("the stream is open", "document.querySelector('#pulse').textContent.trim()").await;
    let switch = "#job-unserved\\.job .switch";
    let is = |state: &str| format!("document.querySelector({switch:?}).ariaChecked === '{state}'");
    browser
        .eval(&format!(
            "document.querySelector({switch:?}).scrollIntoView({{block: 'center'}}); window.isTheSame = true"
        ))
        .await;
    let place = browser.eval("scrollY").await;
    assert!(place.as_f64().expect("a number") > 0.0, "the page is longer than the window: {place}");
    browser.click(switch).await;
    browser.until("it is on", &is("true")).await;
    browser.until("there is a message", "document.querySelector('.toast form')").await;
    browser.take_screenshot(&shots.join("toast.png")).await;
    browser.click(".toast form button").await;
    browser.until("it is off again", &is("false")).await;
    assert_eq!(browser.eval("window.isTheSame").await, true, "the page was loaded again");
    assert_eq!(browser.eval("scrollY").await, place, "the page jumped");
    browser.click("#bulk button[value=pause]").await;
    browser.until("no row is selected", "document.querySelector('.toast.bad')").await;
    assert_eq!(browser.eval("window.isTheSame").await, true, "the page was loaded again");
    let hide = |is_hidden: bool| {
        format!(
            "Object.defineProperty(document, 'hidden', {{configurable: true, get: () => {is_hidden}}}); \
             document.dispatchEvent(new Event('visibilitychange'))"
        )
    };
    browser.eval(&hide(true)).await;
    let count = "performance.getEntriesByType('resource').length";
    let before = browser.eval(count).await;
    api.patch("/api/v1/jobs/unserved.job", json!({"enabled": true})).await.expect(200);
    // By the time that two more runs have ended, a visible list would have been refreshed.
    for _ in 0..2 {
        let run = api.post("/api/v1/jobs/inventory.sync/runs", json!({})).await.expect(201);
        let path = format!("/api/v1/runs/{}", run["id"].as_str().expect("an id"));
        rondel_tests::wait_until(std::time::Duration::from_secs(30), "the verdict", async || {
            let run = api.get(&path).await.expect(200);
            if run["status"] == "succeeded" { Ok(()) } else { Err(run) }
        })
        .await;
    }
    assert_eq!(browser.eval(count).await, before, "a hidden tab asks for nothing");
    assert_eq!(browser.eval(&is("false")).await, true);
    browser.eval(&hide(false)).await;
    browser.until("the list has noticed", &is("true")).await;
    api.patch("/api/v1/jobs/unserved.job", json!({"enabled": false})).await.expect(200);
    browser.until("the stream goes on", &is("false")).await;
    // The page of a job is updated too, including its head.
    browser.goto(&format!("{url}/n/default/jobs/legacy.import")).await;
    browser.eval("window.isTheSame = true").await;
    browser.click("main form[action$='/resume'] button").await;
    browser.until("it can be paused", "document.querySelector(\"main form[action$='/pause']\")").await;
    browser.click("main form[action$='/pause'] button").await;
    browser.until("it can be resumed", "document.querySelector(\"main form[action$='/resume']\")").await;
    assert_eq!(browser.eval("window.isTheSame").await, true, "the page was loaded again");
    browser.size(1440, 900).await;
}

/// No page is wider than the window, and a phone shows the status of a run without scrolling.
pub(super) async fn fit_every_width(browser: &mut Browser, url: &str, shots: &Path) {
    for width in [360, 390, 1024, 1440] {
        browser.size(width, 844).await;
        for path in ["jobs", "runs", "executors", "calendars", "account", "jobs/cache.warm"] {
            browser.goto(&format!("{url}/n/default/{path}")).await;
            let wide = browser.eval("document.documentElement.scrollWidth - innerWidth").await;
            browser.take_screenshot(&shots.join(format!("{}-{width}.png", path.replace('/', "-")))).await;
            assert!(wide.as_f64().expect("a number") <= 0.0, "{path} at {width}: {wide} px too wide");
        }
    }
    browser.size(390, 844).await;
    browser.goto(&format!("{url}/n/default/runs")).await;
    let right = browser.eval("document.querySelector('main tbody .status').getBoundingClientRect().right").await;
    assert!(right.as_f64().expect("a number") <= 390.0, "{right}");
    browser.size(1440, 900).await;
}

/// A page that has lost its server shows how old it is, and refreshes again when the server is back.
pub(super) async fn lose_the_server(browser: &mut Browser, url: &str, shots: &Path) {
    browser.goto(&format!("{url}/n/default/jobs")).await;
    browser.until("the stream is open", "document.querySelector('#pulse').dataset.state === 'live'").await;
    assert_eq!(browser.errors().await, [""; 0], "errors of the browser");
    let network = |is_offline: bool| json!({"offline": is_offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1});
    browser.call("Network.emulateNetworkConditions", network(true)).await;
    browser.until("the banner is shown", "!document.querySelector('#stale').hidden").await;
    let words = browser.eval("document.querySelector('#stale').textContent").await;
    assert!(words.as_str().expect("text").contains(':'), "the banner has the time: {words}");
    browser.take_screenshot(&shots.join("stale.png")).await;
    browser.call("Network.emulateNetworkConditions", network(false)).await;
    browser.until("the banner is gone", "document.querySelector('#stale').hidden").await;
    // The browser reports that it was offline as an error; it must report no other error.
    let errors = browser.errors().await;
    let is_offline = |error: &String| error.contains("ERR_INTERNET_DISCONNECTED") || error.contains("Failed to fetch");
    assert!(errors.iter().all(is_offline), "{errors:?}");
}

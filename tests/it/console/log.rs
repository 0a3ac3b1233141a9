//! A log of 60,000 lines in a real browser: it opens at its end, leads to any line and to the first error, follows new lines, and
//! loads only a small part. Also the pages of a run that was retried and of a run with shards.

use std::path::Path;
use std::time::Duration;

use rondel_tests::{Api, Dev, keeps, left_out_without, wait_until};
use serde_json::{Value, json};

use super::browser::{Browser, program};
use super::sign_in;

/// As many lines as the log of a nightly job may have. They are written no faster than the agent sends them.
const LONG: &str = r#"
for part in $(seq 0 29); do
  seq $((part * 2000 + 1)) $((part * 2000 + 2000)) | sed -e 's/^\(5000\|25000\|45000\)$/ERROR: row \1 was refused/' -e 's/^\([0-9]*\)$/row \1 imported/'
  sleep 0.2
done
echo "warning: 3 rows were refused" >&2"#;
const LIVE: &str = "for i in $(seq 1 400); do echo \"tick $i\"; sleep 0.2; done";
const LINE_COUNT: u64 = 60_001;
/// Maximum number of bytes that the page loads until it shows the first error.
pub(super) const LOADED_BYTES_MAX: u64 = 300_000;

/// All bytes that the page has loaded, as they were before compression.
pub(super) const LOADED: &str =
    "performance.getEntries().filter(one => one.decodedBodySize).reduce((sum, one) => sum + one.decodedBodySize, 0)";

#[tokio::test]
async fn a_log_of_60_000_lines_is_walked() {
    let Some(program) = program() else { return left_out_without("chromium", "a long log in a browser") };
    let mut shots = tempfile::Builder::new().prefix("rondel-log-shots-").tempdir().expect("make a folder");
    shots.disable_cleanup(keeps());
    let mut dev = Dev::start().await;
    let mut browser = Browser::start(&program).await;
    sign_in(&mut dev, &mut browser).await;
    let (api, url) = (dev.api(), dev.url().to_owned());
    let run = long_run(&api).await;
    open_at_the_end(&mut browser, &format!("{url}/runs/{run}")).await;
    jump_to_the_first_error(&mut browser).await;
    browser.take_screenshot(&shots.path().join("first-error.png")).await;
    search(&mut browser).await;
    lead_to_lines(&mut browser, &format!("{url}/runs/{run}")).await;
    scroll_through(&mut browser).await;
    follow(&mut browser, &api, &url).await;
    walk_the_runs(&mut browser, &api, &url, shots.path()).await;
    assert_eq!(browser.errors().await, [""; 0], "errors of the browser");
    assert!(dev.stop().await.success());
}

async fn job(api: &Api, name: &str, script: &str, extra_fields: Value) {
    let mut job = json!({"name": name, "app": "demo", "handler": "shell", "params": {"argv": ["sh", "-c", script]},
        "overrides": "all"});
    for (key, value) in extra_fields.as_object().expect("an object") {
        job[key] = value.clone();
    }
    api.post("/api/v1/jobs", job).await.expect(201);
}

async fn trigger(api: &Api, name: &str) -> String {
    let run = api.post(&format!("/api/v1/jobs/{name}/runs"), json!({})).await.expect(201);
    run["id"].as_str().expect("an id").to_owned()
}

async fn until_over(api: &Api, run: &str) {
    wait_until(Duration::from_secs(60), "the verdict", async || {
        let run = api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
        if run["finished_at"].is_null() { Err(run) } else { Ok(()) }
    })
    .await;
}

pub(super) async fn long_run(api: &Api) -> String {
    job(api, "import.rows", LONG, json!({})).await;
    let run = trigger(api, "import.rows").await;
    until_over(api, &run).await;
    wait_until(Duration::from_secs(10), "the whole log", async || {
        let found = api.get(&format!("/api/v1/runs/{run}/logs/search")).await.expect(200);
        if found["line_count"] == LINE_COUNT && found["complete"] == true { Ok(()) } else { Err(found) }
    })
    .await;
    run
}

async fn number(browser: &mut Browser, expression: &str) -> u64 {
    browser.eval(&format!("Math.round({expression})")).await.as_u64().expect(expression)
}

async fn open_at_the_end(browser: &mut Browser, page: &str) {
    browser.goto(page).await;
    browser.until("the last line is there", &format!("document.querySelector('#L{LINE_COUNT}')")).await;
    let is_seen = "(line => { const at = line.getBoundingClientRect(), log = document.querySelector('#log').getBoundingClientRect(); \
         return at.bottom <= log.bottom + 1 && at.top >= log.top; })";
    browser.until("it can be seen", &format!("{is_seen}(document.querySelector('#L{LINE_COUNT}'))")).await;
    browser.until("errors are counted", "document.querySelector('[data-severity=error] b').textContent === '3'").await;
    let height = number(browser, "document.documentElement.scrollHeight").await;
    assert!(height < 4_000, "the page is {height} px high");
    assert!(number(browser, "document.querySelectorAll('#log .l').length").await <= 2_000);
}

/// One click leads to the first error, without a search.
async fn jump_to_the_first_error(browser: &mut Browser) {
    browser.click("[data-severity=error]").await;
    browser.until("the first error is shown", "document.querySelector('.l.at')?.id === 'L5000'").await;
    let text = browser.eval("document.querySelector('.l.at').textContent").await;
    assert!(text.as_str().expect("text").contains("ERROR: row 5000 was refused"), "{text}");
    // The lines around it are loaded too.
    browser.until("its context is there", "document.querySelector('#L4990') && document.querySelector('#L5010')").await;
    let loaded = number(browser, LOADED).await;
    assert!(loaded < LOADED_BYTES_MAX, "{loaded} bytes");
    let key = "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'KEY', bubbles: true}))";
    let press = |key_name: &str| key.replace("document.dispatch", "document.body.dispatch").replace("KEY", key_name);
    browser.eval(&press("n")).await;
    browser.until("n leads to the next one", "document.querySelector('.l.at')?.id === 'L25000'").await;
    browser.eval(&press("N")).await;
    browser.until("N leads back", "document.querySelector('.l.at')?.id === 'L5000'").await;
    assert_eq!(browser.eval("document.querySelector('.log-hits output').textContent").await, "1 / 3");
}

async fn search(browser: &mut Browser) {
    browser.fill(".log-find [name=contains]", "ROW 4444").await;
    browser.click(".log-find button").await;
    browser.until("the first match is shown", "document.querySelector('.l.at')?.id === 'L4444'").await;
    assert_eq!(browser.eval("document.querySelector('.log-hits output').textContent").await, "1 / 11");
    browser.click("[data-step='0']").await;
    browser.until("the search is over", "!document.querySelector('.l.at, .l.found')").await;
}

async fn lead_to_lines(browser: &mut Browser, page: &str) {
    // A new address that differed only in its fragment would not load the page again, so another address comes first.
    browser.eval("window.isOld = true").await;
    browser.goto(&format!("{page}?line=1")).await;
    browser.goto(&format!("{page}#L30000")).await;
    browser.until("the page is another one", "!window.isOld").await;
    browser.until("line 30,000 is shown", "document.querySelector('#L30000.chosen')").await;
    let middle =
        "(at => Math.abs((at.top + at.bottom) / 2))(document.querySelector('#L30000').getBoundingClientRect())";
    let log = "(at => Math.abs((at.top + at.bottom) / 2))(document.querySelector('#log').getBoundingClientRect())";
    browser.until("it is in the middle", &format!("Math.abs({middle} - {log}) < 40")).await;
    browser.eval("location.hash = '#L10-L20'").await;
    browser.until("a range is marked", "document.querySelectorAll('.l.chosen').length === 11").await;
    browser.click("#L15 > a").await;
    browser.until("a click names its line", "location.hash === '#L15'").await;
}

/// Lines are loaded in both directions, and the page keeps a bounded number of them.
async fn scroll_through(browser: &mut Browser) {
    for _ in 0..6 {
        browser.eval("window.last = Number(document.querySelector('#log .l:last-child').id.slice(1))").await;
        browser.eval("(log => { log.scrollTop = log.scrollHeight; })(document.querySelector('#log'))").await;
        let is_later = "Number(document.querySelector('#log .l:last-child').id.slice(1)) > window.last";
        browser.until("later lines are loaded", is_later).await;
    }
    assert!(number(browser, "document.querySelectorAll('#log .l').length").await <= 2_000);
    let numbers = "[...document.querySelectorAll('#log .l')].map(line => Number(line.id.slice(1)))";
    let is_whole = format!("(all => all.every((one, place) => one === all[0] + place))({numbers})");
    assert_eq!(browser.eval(&is_whole).await, true, "no line is missing or there twice");
    browser.eval("window.first = Number(document.querySelector('#log .l').id.slice(1))").await;
    browser.eval("document.querySelector('#log').scrollTop = 0").await;
    browser
        .until("earlier lines are loaded", "Number(document.querySelector('#log .l').id.slice(1)) < window.first")
        .await;
    assert_eq!(browser.eval(&is_whole).await, true, "no line is missing or there twice");
}

async fn follow(browser: &mut Browser, api: &Api, url: &str) {
    job(api, "live.ticks", LIVE, json!({})).await;
    let run = trigger(api, "live.ticks").await;
    browser.goto(&format!("{url}/runs/{run}")).await;
    let lines = "document.querySelectorAll('#log .l').length";
    browser.until("the log begins", &format!("{lines} >= 3")).await;
    let first = number(browser, lines).await;
    browser.until("it grows", &format!("{lines} >= {}", first + 8)).await;
    let parts = "performance.getEntriesByType('resource').filter(one => one.name.includes('/log?') && one.name.includes('after='))";
    let largest = number(browser, &format!("Math.max(...{parts}.map(one => one.decodedBodySize))")).await;
    assert!(largest < 10_000, "a part of a growing log has {largest} bytes");
    let numbers = "[...document.querySelectorAll('#log .l')].map(line => line.id)";
    assert_eq!(
        browser.eval(&format!("new Set({numbers}).size === {numbers}.length")).await,
        true,
        "a line is there twice"
    );
    browser
        .until(
            "its end is followed",
            "(log => log.scrollHeight - log.scrollTop - log.clientHeight < 40)(document.querySelector('#log'))",
        )
        .await;
    api.post(&format!("/api/v1/runs/{run}/cancel"), json!({})).await.expect(202);
    until_over(api, &run).await;
    browser.until("nothing more is waited for", "!document.querySelector('rondel-log .tail')").await;
}

/// The pages of a retried run and of a broadcast, in both languages and themes, wide and narrow.
async fn walk_the_runs(browser: &mut Browser, api: &Api, url: &str, shots: &Path) {
    let retried = "echo start; sleep 0.3; echo 'ERROR connection refused' >&2; exit 3";
    job(api, "orders.close", "echo closed", json!({"retry": {"max": 2, "backoff": "1s"}, "overrides": "all"})).await;
    let good = trigger(api, "orders.close").await;
    until_over(api, &good).await;
    let params = json!({"params": {"argv": ["sh", "-c", retried]}});
    let bad = api.post("/api/v1/jobs/orders.close/runs", params).await.expect(201);
    let bad = bad["id"].as_str().expect("an id").to_owned();
    until_over(api, &bad).await;
    job(api, "inventory.sync", "test $RONDEL_SHARD_INDEX != 1 && sleep 0.$RONDEL_SHARD_INDEX", json!({"shards": 4}))
        .await;
    let whole = trigger(api, "inventory.sync").await;
    until_over(api, &whole).await;
    browser.goto(&format!("{url}/runs/{bad}")).await;
    assert_eq!(number(browser, "document.querySelectorAll('#waterfall li').length").await, 5, "axis, queue, attempts");
    assert_eq!(browser.eval("document.querySelector('#compare').open").await, true);
    browser.follow("#older").await;
    browser.until("the fire before", &format!("location.pathname.endsWith('/runs/{good}')")).await;
    browser.follow("#newer").await;
    browser.until("and back", &format!("location.pathname.endsWith('/runs/{bad}')")).await;
    for (lang, theme, width) in
        [("en", "light", 1440), ("en", "dark", 1440), ("zh", "light", 1440), ("zh", "dark", 390), ("en", "light", 390)]
    {
        browser.size(width, 1_000).await;
        browser.goto(&format!("{url}/runs/{bad}?lang={lang}")).await;
        browser.eval(&format!("document.documentElement.dataset.theme = '{theme}'")).await;
        browser.take_screenshot(&shots.join(format!("run-{lang}-{theme}-{width}.png"))).await;
        browser.goto(&format!("{url}/runs/{whole}?lang={lang}")).await;
        browser.eval(&format!("document.documentElement.dataset.theme = '{theme}'")).await;
        browser.take_screenshot(&shots.join(format!("shards-{lang}-{theme}-{width}.png"))).await;
        let is_wide = "document.documentElement.scrollWidth > innerWidth";
        assert_eq!(browser.eval(is_wide).await, false, "{lang} {width}: the page is wider than the screen");
    }
    browser.size(1440, 900).await;
}

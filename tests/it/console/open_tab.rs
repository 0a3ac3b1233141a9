//! A tab that stays open on the page *Now* while jobs run: its memory stays within bounds, its elements and listeners do not accumulate,
//! and it sends no requests while it is hidden. `TEST_TAB_MINUTES` sets the duration of the test, with 1,000 runs a minute;
//! `tests/open-tab` sets this variable.

use std::time::Duration;

use rondel_tests::{Dev, left_out_without, variable, wait_until};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::browser::{Browser, program};
use super::{print, sign_in};

/// How many runs are started each second.
const RUNS_PER_SECOND: u32 = 17;
/// The duration of the short form after the first third, in which caches are filled.
const SHORT: Duration = Duration::from_secs(24);
/// Maximum growth of the tab's heap since the first third.
const GROWTH_BYTES_MAX: i64 = 3_000_000;
/// Maximum growth of the number of elements, and of listeners.
const GROWTH_COUNT_MAX: i64 = 600;

/// Maximum growth of the server's memory; the server makes all the runs.
const GROWTH_KILOBYTES_MAX: i64 = 150_000;

/// The memory of a tab after a garbage collection, and that of the server.
#[derive(Clone, Copy, Debug)]
struct MemoryUse {
    heap: i64,
    nodes: i64,
    listeners: i64,
    server_kilobytes: i64,
}

#[tokio::test]
async fn a_tab_left_open_stays_small() {
    let Some(program) = program() else { return left_out_without("chromium", "a tab left open") };
    let minutes = variable("TEST_TAB_MINUTES").and_then(|text| text.parse::<u64>().ok());
    let length = minutes.map_or(SHORT, |minutes| Duration::from_secs(minutes * 60));
    let mut dev = Dev::start().await;
    let mut browser = Browser::start(&program).await;
    sign_in(&mut dev, &mut browser).await;
    let api = dev.api();
    let job = json!({"name": "busy.job", "app": "demo", "handler": "demo.hello", "overlap": {"policy": "allow"}});
    api.post("/api/v1/jobs", job).await.expect(201);
    browser.goto(&format!("{}/n/default/", dev.url())).await;
    browser.until("the stream is open", "document.querySelector('#pulse').dataset.state === 'live'").await;
    browser.eval("window.isTheSame = true").await;
    let (began, mut samples, mut printed_at) = (Instant::now(), Vec::new(), Instant::now());
    let mut beat = tokio::time::interval(Duration::from_secs(1));
    while began.elapsed() < length {
        beat.tick().await;
        for _ in 0..RUNS_PER_SECOND {
            api.post("/api/v1/jobs/busy.job/runs", json!({})).await.expect(201);
        }
        let is_due = printed_at.elapsed() >= length / 12;
        if is_due {
            let now = MemoryUse::read(&mut browser, dev.process().id()).await;
            print(&format!("after {} s: {now:?}", began.elapsed().as_secs()));
            samples.push(now);
            printed_at = Instant::now();
        }
    }
    let (first, last) = (samples[samples.len() / 3], samples[samples.len() - 1]);
    assert_eq!(browser.eval("window.isTheSame").await, true, "the page was loaded again");
    assert!(last.heap - first.heap < GROWTH_BYTES_MAX, "the heap of the tab: {first:?}, {last:?}");
    assert!(last.nodes - first.nodes < GROWTH_COUNT_MAX, "elements: {first:?}, {last:?}");
    assert!(last.listeners - first.listeners < GROWTH_COUNT_MAX, "listeners: {first:?}, {last:?}");
    assert!(last.server_kilobytes - first.server_kilobytes < GROWTH_KILOBYTES_MAX, "the server: {first:?}, {last:?}");
    hide(&mut browser, true).await;
    let count = "performance.getEntriesByType('resource').length";
    let before = browser.eval(count).await;
    for _ in 0..RUNS_PER_SECOND {
        api.post("/api/v1/jobs/busy.job/runs", json!({})).await.expect(201);
    }
    // Five more fires of a job that fires every five seconds: a visible page would have refreshed twice in this time.
    let fires = async || api.runs("demo-hello").await.iter().filter(|run| run["status"] == "succeeded").count();
    let (first, limit) = (fires().await, Duration::from_secs(120));
    wait_until(limit, "time goes by", async || {
        let now = fires().await;
        if now >= first + 5 { Ok(()) } else { Err(now) }
    })
    .await;
    assert_eq!(browser.eval(count).await, before, "a hidden tab asks for nothing");
    hide(&mut browser, false).await;
    browser.until("it goes on when it is seen", &format!("{count} > {before}")).await;
    assert_eq!(browser.errors().await, [""; 0], "errors of the browser");
    assert!(dev.stop().await.success());
}

async fn hide(browser: &mut Browser, is_hidden: bool) {
    let script = format!(
        "Object.defineProperty(document, 'hidden', {{configurable: true, get: () => {is_hidden}}}); \
         document.dispatchEvent(new Event('visibilitychange'))"
    );
    browser.eval(&script).await;
}

impl MemoryUse {
    async fn read(browser: &mut Browser, server: u32) -> Self {
        // The browser keeps entries of requests up to a bound of its own. They are not a leak of the page.
        browser.eval("performance.clearResourceTimings()").await;
        browser.call("HeapProfiler.enable", json!({})).await;
        browser.call("HeapProfiler.collectGarbage", json!({})).await;
        let counters = browser.call("Memory.getDOMCounters", json!({})).await;
        let heap = browser.call("Runtime.getHeapUsage", json!({})).await;
        let whole = |value: &Value| format!("{:.0}", value.as_f64().unwrap_or(0.0)).parse().unwrap_or(0);
        Self {
            heap: whole(&heap["usedSize"]),
            nodes: whole(&counters["nodes"]),
            listeners: whole(&counters["jsEventListeners"]),
            server_kilobytes: resident_kilobytes(server),
        }
    }
}

/// The resident memory of a process.
fn resident_kilobytes(process: u32) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

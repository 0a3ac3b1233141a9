//! The gaps of a lane with their reasons, and the rows of labels in the editor: by mouse and by keys.

use rondel_tests::{Api, Dev, left_out_without};
use serde_json::json;

use super::browser::{Browser, program};
use super::hand::{Hand, press, type_text};
use super::sign_in;

const JOB_COUNT: u32 = 30;
const RUN_COUNT: u32 = 3_000;
/// The text of the tooltip; empty while it is hidden.
const TOOLTIP_TEXT: &str = "(tip => tip.hidden ? '' : tip.textContent)(document.querySelector('rondel-timeline .tip'))";
/// The number of requests for gaps.
const GAP_REQUEST_COUNT: &str =
    "performance.getEntriesByType('resource').filter(one => one.name.includes('/gaps?')).length";
/// Finds a place of the lane without a mark: x, y and the instant, or `null`.
const FIND_FREE_PLACE: &str = "(() => { const lanes = document.querySelector('rondel-timeline'), track = lanes.querySelector('.track[data-gaps]');\
    const box = track.getBoundingClientRect(), { from, to } = lanes.dataset, y = box.top + box.height / 2;\
    for (let part = 0.02; part < 0.74; part += 0.003) {\
        const x = box.left + part * box.width, at = +from + part * (to - from);\
        if (document.elementFromPoint(x, y) === track && WANTED) return [x, y, at];\
    }\
    return null; })()";

#[tokio::test]
async fn gaps_name_their_reasons_and_labels_are_rows() {
    let Some(program) = program() else { return left_out_without("chromium", "there is no chromium") };
    let mut dev = Dev::start_seeded(JOB_COUNT, RUN_COUNT).await;
    let mut browser = Browser::start(&program).await;
    sign_in(&mut dev, &mut browser).await;
    let (api, url) = (dev.api(), dev.url().to_owned());
    let unserved = api.get("/api/v1/jobs?q=0007").await.expect(200);
    let unserved = unserved["items"][0]["name"].as_str().expect("a seeded job").to_owned();
    let lane = format!("{url}/n/default/timeline?q={unserved}");
    hover_a_gap(&mut browser, &lane).await;
    walk_the_gaps(&mut browser, &lane, &unserved).await;
    for is_by_keys in [false, true] {
        label_a_job(&mut Hand::new(&mut browser, is_by_keys), &url, &api).await;
    }
    assert_eq!(browser.errors().await, [""; 0], "errors of the browser");
    assert!(dev.stop().await.success());
}

async fn point_at(browser: &mut Browser, wanted: &str) {
    let free = FIND_FREE_PLACE.replace("WANTED", wanted);
    browser.until("there is such a gap", &free).await;
    let found = browser.eval(&free).await;
    let event = json!({"type": "mouseMoved", "x": found[0], "y": found[1]});
    browser.call("Input.dispatchMouseEvent", event).await;
}

/// The page sends one request for the lane, however many of its gaps the mouse visits.
async fn hover_a_gap(browser: &mut Browser, lane: &str) {
    browser.goto(lane).await;
    point_at(browser, "true").await;
    let known = "[...(document.querySelector('rondel-timeline').lanes?.values() ?? [])].flat()";
    browser.until("the gaps are known", &format!("{known}.length > 0")).await;
    let is_left_out = format!("{known}.some(gap => gap.at_ms !== null && gap.from_ms <= at && at < gap.to_ms)");
    point_at(browser, &is_left_out).await;
    browser.until("the tip names the reason", &format!("{TOOLTIP_TEXT}.includes('no executor of')")).await;
    point_at(browser, "true").await;
    point_at(browser, &is_left_out).await;
    assert_eq!(browser.eval(GAP_REQUEST_COUNT).await, 1, "one request for all gaps of the lane");
}

async fn walk_the_gaps(browser: &mut Browser, lane: &str, job: &str) {
    browser.goto(lane).await;
    let mut hand = Hand::new(browser, true);
    hand.point(".gap-key").await;
    browser.until("the newest gap is shown", &format!("/^\\d+\\/\\d+ · /.test({TOOLTIP_TEXT})")).await;
    let count = browser.eval(&format!("+{TOOLTIP_TEXT}.match(/\\/(\\d+)/)[1]")).await;
    assert!(count.as_u64() > Some(0), "{count}");
    press(browser, "ArrowRight", false).await;
    browser.until("the first gap follows the last", &format!("{TOOLTIP_TEXT}.startsWith('1/')")).await;
    let path = browser.eval("location.pathname").await;
    assert_eq!(path, "/n/default/timeline", "the arrows do not move the timeline here");
    assert_eq!(browser.eval(GAP_REQUEST_COUNT).await, 1);
    browser.eval("window.isOld = true").await;
    press(browser, "Enter", false).await;
    let is_asked = format!(
        "!window.isOld && location.pathname === '/n/default/jobs/{job}/fires' && location.search.includes('at=')"
    );
    browser.until("the gap is asked about", &is_asked).await;
}

/// Adds a label in the editor, removes one, and checks what is saved.
async fn label_a_job(hand: &mut Hand<'_>, url: &str, api: &Api) {
    hand.begin(&format!("{url}/n/default/jobs/new")).await;
    let rows = "document.querySelectorAll('[data-row]').length";
    for (key, value) in [("team", "pay"), ("tier", "<b>1")] {
        hand.click("[data-row-add]").await;
        type_text(hand.browser, key).await;
        press(hand.browser, "Tab", false).await;
        type_text(hand.browser, value).await;
    }
    assert_eq!(hand.browser.eval(rows).await, 2);
    hand.click("[data-row] [data-row-remove]").await;
    assert_eq!(hand.browser.eval(rows).await, 1);
    for (field, value) in [("name", "labelled"), ("app", "demo"), ("handler", "shell")] {
        hand.browser.fill(&format!("[name={field}]"), value).await;
    }
    hand.browser.click("[name=kind][value=none]").await;
    hand.browser.until("the fields are there", "document.querySelector('[name=\"param.json.argv\"]')").await;
    hand.browser.fill("[name=\"param.json.argv\"]", "[\"true\"]").await;
    hand.browser.follow("#create").await;
    let is_there = "location.pathname === '/n/default/jobs/labelled'";
    hand.browser.until("the job is shown", is_there).await;
    let job = api.get("/api/v1/jobs/labelled").await.expect(200);
    assert_eq!(job["labels"], json!({"tier": "<b>1"}));
    api.delete("/api/v1/jobs/labelled").await.expect(204);
}

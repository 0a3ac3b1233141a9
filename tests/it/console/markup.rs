//! Stores texts that try to become markup in every field that takes free text, and opens every page that shows them: no
//! text becomes markup, and the browser reports no error.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use rondel_tests::{Api, Dev, left_out_without, wait_until};
use serde_json::{Value, json};

use super::browser::{Browser, program};
use super::markup_alerts::look_at_rare_texts;
use super::{is_long_form, print, sign_in};

/// How texts try to close the element, attribute or comment around them.
const EXITS: [&str; 8] =
    ["", "\">", "'>", "</title></textarea></style></select>", "</script>", "-->", "]]>", "</svg></math></template>"];

/// The markup that would appear if a text succeeded: an element or attribute with the mark `data-hit`, which no page has.
const ENTRIES: [&str; 25] = [
    "<script data-hit>window.hit=1</script>",
    "<img data-hit src=x onerror=window.hit=1>",
    "<svg data-hit onload=window.hit=1>",
    "<svg><a data-hit xlink:href=\"javascript:window.hit=1\"><text>x</text></a></svg>",
    "<iframe data-hit srcdoc=\"<script>parent.hit=1</script>\"></iframe>",
    "<a data-hit href=\"javascript:window.hit=1\">x</a>",
    "<a data-hit href=\"java&#9;script:window.hit=1\">x</a>",
    "<details data-hit open ontoggle=window.hit=1>",
    "<input data-hit autofocus onfocus=window.hit=1>",
    "<video data-hit><source onerror=window.hit=1></video>",
    "<body data-hit onload=window.hit=1>",
    "<style data-hit>*{background:url(/hit)}</style>",
    "<link data-hit rel=stylesheet href=/hit>",
    "<meta data-hit http-equiv=refresh content=\"0;url=javascript:window.hit=1\">",
    "<base data-hit href=//hit.invalid/>",
    "<form data-hit action=/hit><button formaction=javascript:window.hit=1>x</button></form>",
    "<object data-hit data=javascript:window.hit=1></object>",
    "<math data-hit><mtext><img src=x onerror=window.hit=1></mtext></math>",
    "<div data-hit hx-get=/hit hx-trigger=load></div>",
    "<div data-hit hx-on::load=window.hit=1></div>",
    "<template data-hit shadowrootmode=open><script>window.hit=1</script></template>",
    "x\" data-hit onmouseover=\"window.hit=1",
    "x' data-hit onfocus='window.hit=1' autofocus='",
    "<SCRIPT/data-hit/x>window.hit=1</SCRIPT\t>",
    "\u{1b}[31m<b data-hit>\u{1b}[0m&lt;script data-hit&gt;window.hit=1&lt;/script&gt;",
];

/// Fetches and parses pages. Returns the addresses of pages with a marked element or with none of the expected statuses. Scripts of
/// pages that are parsed in this way do not run.
const PARSE: &str = "Promise.all(PATHS.map(async path => { \
    const answer = await fetch(path, METHOD); \
    const page = new DOMParser().parseFromString(await answer.text(), 'text/html'); \
    return STATUSES.includes(answer.status) && !page.querySelector('[data-hit]') ? null : `${answer.status} ${path}`; \
    })).then(found => found.filter(Boolean))";

/// The statuses for an address that contains a text: a filter or name may be refused, and the refusal shows it.
const OF_ADDRESSES: [u16; 3] = [200, 404, 422];

/// In the long form all texts, else a third of them, which the minute of the clock selects. Each third has every exit and every entry.
fn texts(is_long: bool) -> Vec<String> {
    let all: Vec<String> = EXITS.iter().flat_map(|exit| ENTRIES.map(|entry| format!("{exit}{entry}"))).collect();
    assert_eq!(all.len(), 200);
    if is_long {
        return all;
    }
    let minutes = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs() / 60);
    let first = usize::try_from(minutes % 3).unwrap_or(0);
    print(&format!("each third text, from number {first} on"));
    all.into_iter().skip(first).step_by(3).collect()
}

#[tokio::test]
async fn no_text_becomes_markup() {
    let Some(program) = program() else { return left_out_without("chromium", "there is no chromium") };
    let texts = texts(is_long_form());
    let mut dev = Dev::start().await;
    let api = dev.api();
    let mut browser = Browser::start(&program).await;
    sign_in(&mut dev, &mut browser).await;
    let runs = store(&api, &texts).await;
    let pages = pages(&texts, &runs);
    browser.goto(&format!("{}/jobs", dev.url())).await;
    parse(&mut browser, &pages, &[200], "{}").await;
    webhooks(&mut browser, &api, &texts).await;
    look_at_rare_texts(&mut browser, &api, &texts).await;
    // These pages are opened with their scripts: all lists, and every seventeenth other page, so that each kind is among them.
    for path in pages.iter().enumerate().filter(|(at, path)| at % 17 == 0 || is_list(path)).map(|(_, path)| path) {
        open(&mut browser, dev.url(), path).await;
    }
    assert_eq!(browser.errors().await, [""; 0], "errors of the browser");
    let addresses = addresses(&texts, &runs[0]);
    parse(&mut browser, &addresses, &OF_ADDRESSES, "{headers: {accept: 'text/html'}}").await;
    // The answers of forms to a script: a short message that the script puts into the page.
    let forms = (0..4).map(|number| format!("/jobs/text-{number}/runs")).collect::<Vec<_>>();
    let script = "{method: 'POST', headers: {'hx-request': 'true', accept: 'text/html'}, body: new URLSearchParams()}";
    parse(&mut browser, &forms, &[200], script).await;
    for path in addresses.iter().step_by(41) {
        open(&mut browser, dev.url(), path).await;
    }
    let errors = browser.errors().await;
    let is_refusal = |error: &String| error.contains("responded with a status of 4");
    assert!(errors.iter().all(is_refusal), "{errors:?}");
    assert!(dev.stop().await.success());
}

/// Asserts that no text has become an element on any of the pages.
pub(super) async fn parse(browser: &mut Browser, paths: &[String], statuses: &[u16], method: &str) {
    for paths in paths.chunks(40) {
        let script = PARSE.replace("PATHS", &Value::from(paths).to_string());
        let script = script.replace("STATUSES", &Value::from(statuses).to_string()).replace("METHOD", method);
        assert_eq!(browser.eval(&script).await, json!([]), "a text has become markup");
    }
}

/// Opens a page with its scripts, and asserts that no text has become markup.
async fn open(browser: &mut Browser, url: &str, path: &str) {
    browser.goto(&format!("{url}{path}")).await;
    let hit = "[window.hit === undefined, document.querySelectorAll('[data-hit]').length]";
    assert_eq!(browser.eval(hit).await, json!([true, 0]), "{path}");
}

/// Saves each text, if a URL may contain it, in the webhook to which a namespace reports failures.
async fn webhooks(browser: &mut Browser, api: &Api, texts: &[String]) {
    api.post("/api/v1/namespaces", json!({"name": "hooked"})).await.expect(201);
    let mut taken = 0;
    for text in texts {
        let hook = json!({"url": format!("https://hooks.invalid/{}", plain(text))});
        let answer = api.put("/api/v1/namespaces/hooked/failure-webhook", hook).await;
        assert!(matches!(answer.status, 200 | 201 | 422), "{}: {}", answer.status, answer.body);
        if answer.status != 422 {
            taken += 1;
            parse(browser, &["/n/hooked/settings/webhooks".to_owned()], &[200], "{}").await;
        }
    }
    assert!(taken > 0, "none of the texts was taken into an address");
}

/// Addresses that contain a text: searches, filters, questions, and names of objects that do not exist. Each text is in half of them,
/// in the long form in all.
fn addresses(texts: &[String], run: &str) -> Vec<String> {
    let step = if is_long_form() { 1 } else { 2 };
    let of_texts = texts.iter().enumerate();
    of_texts.flat_map(|(number, text)| of_text(text, run).into_iter().skip(number % step).step_by(step)).collect()
}

fn of_text(text: &str, run: &str) -> Vec<String> {
    let text = encoded(&plain(text));
    let mut addresses: Vec<_> = [
        "/jobs?q=",
        "/runs?q=",
        "/timeline?q=",
        "/palette?q=",
        "/api-docs?q=",
        "/suggest/jobs?at=3&q=",
        "/suggest/runs?at=3&q=",
        "/shadow?job=",
        "/shadow?source=",
    ]
    .map(|start| format!("{start}{text}"))
    .into();
    addresses.push(format!("/why?job={text}&at={text}&zone={text}"));
    addresses.push(format!("/why?job=text-0&at={text}"));
    addresses.push(format!("/activity?actor={text}&object={text}&in={text}&from={text}"));
    addresses.push(format!("/runs/{run}?contains={text}"));
    addresses.push(format!("/executors/new?app={text}"));
    // In a path, a slash would begin another part.
    let name = text.replace("%2f", "");
    addresses
        .extend(["/calendars/", "/scripts/", "/jobs/", "/executors/", "/runs/"].map(|start| format!("{start}{name}")));
    addresses
}

fn is_list(path: &str) -> bool {
    !path.contains('?') && path.matches('/').count() == 1
}

/// Stores the texts in every kind of object, and returns the ids of runs that contain them.
async fn store(api: &Api, texts: &[String]) -> Vec<String> {
    let mut runs = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        let name = format!("text-{number}");
        let params =
            json!({"argv": ["sh", "-c", "printf '%s\\n' \"$1\"; printf '%s\\n' \"$1\" >&2; exit 3", "sh", text]});
        let job = json!({"name": name, "app": "demo", "handler": "shell", "description": text, "params": params,
            "overrides": "all"});
        api.post("/api/v1/jobs", job).await.expect(201);
        let labels = json!({"labels": {"text": plain(text)}, "description": format!("{text} again")});
        api.patch(&format!("/api/v1/jobs/{name}"), labels).await.expect(200);
        let run = api.post(&format!("/api/v1/jobs/{name}/runs"), json!({})).await.expect(201);
        // A second run is cancelled, with the text as the reason.
        let slow = json!({"params": {"argv": ["sleep", "60"]}});
        let cancelled = api.post(&format!("/api/v1/jobs/{name}/runs"), slow).await.expect(201);
        let cancelled = cancelled["id"].as_str().expect("an id").to_owned();
        api.post(&format!("/api/v1/runs/{cancelled}/cancel"), json!({ "reason": plain(text) })).await.expect(202);
        api.post("/api/v1/users", json!({"name": format!("user-{number}"), "display_name": plain(text)}))
            .await
            .expect(201);
        runs.extend([run["id"].as_str().expect("an id").to_owned(), cancelled]);
    }
    let days: Vec<_> = dates(texts.len())
        .into_iter()
        .zip(texts)
        .map(|(date, text)| json!({"date": date, "name": plain(text)}))
        .collect();
    let calendar = json!({"description": texts[0], "rule": {"days": days}});
    api.put("/api/v1/calendars/texts", calendar).await.expect(201);
    store_scripts(api, texts).await;
    wait_until(Duration::from_secs(120), "all runs have ended", async || {
        let open = api.get("/api/v1/runs?status=pending,waiting,running&limit=1").await.expect(200);
        if open["items"] == json!([]) { Ok(()) } else { Err(open) }
    })
    .await;
    runs
}

/// The number of versions that the page of a script shows.
const VERSION_COUNT: usize = 30;

/// Stores all texts in a script with two versions, whose page shows the difference, and in the notes of further
/// scripts.
async fn store_scripts(api: &Api, texts: &[String]) {
    let save = async |name: &str, source: String, note: &str| {
        let script = json!({"language": "shell", "source": source, "note": note});
        let status = api.put(&format!("/api/v1/scripts/{name}"), script).await.status;
        assert!(matches!(status, 200 | 201), "{name}: {status}");
    };
    let lines: Vec<String> = texts.iter().map(|text| text.replace('\0', " ")).collect();
    save("texts", lines.join("\n"), "").await;
    save("texts", lines.iter().rev().map(String::as_str).collect::<Vec<_>>().join("\n"), "").await;
    for (number, texts) in texts.chunks(VERSION_COUNT).enumerate() {
        for text in texts {
            save(&format!("notes-{number}"), text.replace('\0', " "), &plain(text)).await;
        }
    }
}

/// Days of two years, one after the other.
fn dates(count: usize) -> Vec<String> {
    let months = (1..=12).flat_map(|month| (1..=28).map(move |day| format!("2027-{month:02}-{day:02}")));
    months.take(count).collect()
}

/// The text as a single-line field accepts it: without control characters, at most 100 characters.
pub(super) fn plain(text: &str) -> String {
    let line: String = text.chars().filter(|sign| !sign.is_control()).take(100).collect();
    line.trim().to_owned()
}

/// Every page that shows one of the texts.
fn pages(texts: &[String], runs: &[String]) -> Vec<String> {
    let mut pages: Vec<_> = [
        "/",
        "/jobs",
        "/runs",
        "/timeline",
        "/timeline?by=app",
        "/activity",
        "/why",
        "/settings/webhooks",
        "/settings/tokens",
        "/calendars",
        "/calendars/texts?year=2027",
        "/scripts",
        "/scripts/texts?from=1",
        "/executors",
        "/users",
        "/account",
    ]
    .map(str::to_owned)
    .into();
    pages.extend((0..texts.len().div_ceil(VERSION_COUNT)).map(|number| format!("/scripts/notes-{number}")));
    for number in 0..texts.len() {
        pages.extend(
            ["", "/edit", "/fires", "/activity", "/versions?from=1&to=2"]
                .map(|part| format!("/jobs/text-{number}{part}")),
        );
    }
    pages.extend(runs.iter().map(|run| format!("/runs/{run}")));
    pages
}

fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        write!(encoded, "%{byte:02x}").expect("write to a string");
    }
    encoded
}

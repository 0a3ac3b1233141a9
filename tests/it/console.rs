//! The console in a real browser: signs in by the link, creates and triggers a job, and sees its log grow, in both
//! languages and both themes, without an error or warning of the browser.

mod alerts;
mod axe;
mod browser;
mod budgets;
mod fixture;
mod frame;
mod hand;
mod lanes;
mod lists;
mod log;
mod markup;
mod markup_alerts;
mod old_scheduler;
mod open_tab;
mod pages;
mod pictures;
mod tasks;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rondel_tests::{Api, Dev, keeps, left_out_without, variable, wait_until};
use serde_json::{Value, json};

use self::browser::{Browser, program};

/// Prints a line each 300 ms. The first lines contain text that must not be taken for markup. The script ends once the
/// file `GATE` exists, so that even a slow browser sees the run while it is running.
const SCRIPT: &str = r#"
printf '<script>console.error("markup in a log was run")</script>\n'
printf '\033[1;32mgreen\033[0m, \033[31mred\033[0m, a bell \007 and a title \033]0;x\007\n'
echo "to stderr" >&2
for i in $(seq 1 20); do echo "line $i of 20"; sleep 0.3; done
until [ -e "GATE" ]; do sleep 0.1; done"#;

#[tokio::test]
async fn a_job_is_made_and_its_log_seen_growing() {
    let Some(program) = program() else { return left_out_without("chromium", "there is no chromium") };
    let mut shots = tempfile::Builder::new().prefix("rondel-shots-").tempdir().expect("make a folder");
    shots.disable_cleanup(keeps());
    let mut dev = Dev::start().await;
    let mut browser = Browser::start(&program).await;
    sign_in(&mut dev, &mut browser).await;
    make_a_job(&mut browser, shots.path()).await;
    watch_its_log(&mut browser, shots.path()).await;
    furnish(&dev.api()).await;
    look_at_everything(&mut browser, dev.url(), &dev.api(), shots.path()).await;
    frame::walk_namespaces(&mut browser, dev.url(), &dev.api(), shots.path()).await;
    frame::go_by_keys(&mut browser, dev.url(), shots.path()).await;
    frame::stay_and_follow(&mut browser, dev.url(), &dev.api(), shots.path()).await;
    frame::fit_every_width(&mut browser, dev.url(), shots.path()).await;
    assert_eq!(browser.errors().await, [""; 0], "errors of the browser");
    frame::lose_the_server(&mut browser, dev.url(), shots.path()).await;
    see_error_pages(&mut browser, dev.url(), shots.path()).await;
    assert!(dev.stop().await.success());
}

/// Prints a text, which is shown if the test fails, or with `--nocapture`.
fn print(text: &str) {
    std::io::Write::write_all(&mut std::io::stdout(), format!("{text}\n").as_bytes()).expect("print");
}

/// Whether to look at the pages in every combination, which takes several times as long: `RONDEL_TEST_CONSOLE=all`.
fn is_long_form() -> bool {
    variable("RONDEL_TEST_CONSOLE").is_some_and(|which| which == "all")
}

async fn sign_in(dev: &mut Dev, browser: &mut Browser) {
    let line = dev.process().wait_for_line(Duration::from_secs(10), "sign in: ").await;
    let link = line.split_once("sign in: ").expect("a link").1.to_owned();
    browser.goto(&format!("{}/runs?status=failed", dev.url())).await;
    browser.until("a caller without a session is sent to the sign-in", "location.pathname === '/sign-in'").await;
    assert!(!browser.errors().await.is_empty(), "the browser notes the 401");
    // Opening the link does not use it up.
    browser.goto(&link).await;
    browser.goto(&link).await;
    browser.follow("#sign-in").await;
    browser
        .until(
            "the first page is shown",
            "location.pathname === '/n/default/' && document.querySelector('nav a[aria-current]')",
        )
        .await;
    browser.goto(&format!("{}/n/default/jobs", dev.url())).await;
    browser.until("the jobs are shown", "document.querySelector('#job-demo-hello')").await;
    let cookies = browser.eval("document.cookie.replace(/^rondel_zone=[A-Za-z/_+-]*$/, '')").await;
    assert_eq!(cookies, "", "no script can read the session");
}

/// The file that lets the job end.
fn gate(shots: &Path) -> PathBuf {
    shots.join("may-end")
}

async fn make_a_job(browser: &mut Browser, shots: &Path) {
    let script = SCRIPT.replace("GATE", &gate(shots).display().to_string());
    browser.follow("a[href='/n/default/jobs/new']").await;
    browser.until("the preview has ten fires", "document.querySelectorAll('#preview li').length === 10").await;
    browser.fill("[name=cron]", "0 0 3 * * nosuch").await;
    browser.until("the preview shows an error", "document.querySelector('#preview .error')").await;
    browser.fill("[name=cron]", "0 30 2 ? * MON-FRI").await;
    browser.until("the preview is back", "document.querySelectorAll('#preview li').length === 10").await;
    browser.fill("[name=name]", "nightly-report").await;
    browser.fill("[name=description]", "Counts to twenty and logs each number").await;
    browser.fill("[name=app]", "demo").await;
    browser.fill("[name=handler]", "shell").await;
    // The handler declares its parameters: a field for each.
    browser.until("the fields are there", "document.querySelector('[name=\"param.json.argv\"]')").await;
    browser.fill("[name=\"param.json.argv\"]", &json!(["sh", "-c", script]).to_string()).await;
    browser.take_screenshot(&shots.join("new.png")).await;
    browser.follow("#create").await;
    browser.until("the job is shown", "location.pathname === '/n/default/jobs/nightly-report'").await;
    assert_eq!(browser.errors().await, [""; 0], "errors of the browser");
}

async fn watch_its_log(browser: &mut Browser, shots: &Path) {
    browser.click("#run-now").await;
    browser.follow(".toast a[href*='/runs/']").await;
    browser.until("the run is shown", "location.pathname.startsWith('/n/default/runs/')").await;
    browser.eval("window.isTheSame = true").await;
    let lines = "document.querySelectorAll('#log .l').length";
    browser.until("the log begins", &format!("{lines} >= 4")).await;
    let first = browser.eval(lines).await.as_u64().expect("a number");
    browser.until("it grows", &format!("{lines} >= {}", first + 4)).await;
    browser.until("the run is seen running", "document.querySelector('#status').dataset.status === 'running'").await;
    browser.take_screenshot(&shots.join("run-live.png")).await;
    std::fs::write(gate(shots), "").expect("open the gate");
    browser.until("the verdict is seen", "document.querySelector('#status').dataset.status === 'succeeded'").await;
    browser
        .until("the log is complete", &format!("{lines} === 23 && !document.querySelector('rondel-log .tail')"))
        .await;
    assert_eq!(browser.eval("window.isTheSame").await, true, "the page was loaded again");
    let text = browser.eval("document.querySelector('#log').textContent").await;
    let text = text.as_str().expect("text");
    assert!(text.contains("<script>") && text.contains("line 20 of 20"), "{text}");
    assert_eq!(browser.eval("document.querySelectorAll('#log script, #log [style]').length").await, 0);
    assert_eq!(browser.eval("document.querySelector('#log .a32').textContent").await, "green");
    assert_eq!(browser.errors().await, [""; 0], "errors of the browser");
}

/// Creates jobs and runs of many kinds for the pages to show.
async fn furnish(api: &Api) {
    let shell = |script: &str| json!({"argv": ["sh", "-c", script]});
    let jobs = [
        json!({"name": "billing.close-month", "handler": "shell", "params": shell("echo closing; exit 3"),
            "schedule": {"cron": "0 0 1 1 * ?", "time_zone": "Asia/Shanghai"}, "retry": {"max": 1, "backoff": "100ms"}}),
        json!({"name": "cache.warm", "handler": "shell", "params": shell("sleep 0.$(( $(date +%s) % 7 ))"),
            "schedule": {"every": "2s"}, "overlap": {"policy": "allow"}, "overrides": "all"}),
        json!({"name": "search.reindex", "handler": "shell", "params": shell("sleep 5"), "timeout": "1s",
            "overrides": "all"}),
        json!({"name": "inventory.sync", "handler": "shell", "params": shell("true"), "route": "broadcast",
            "schedule": {"cron": "0 */15 * * * ?"}}),
        json!({"name": "billing.report", "handler": "shell", "params": shell("echo $RONDEL_PARENTS"),
            "schedule": {"after": ["billing.close-month"], "on": "failure"}}),
        json!({"name": "billing.file", "handler": "shell", "params": shell("true"), "route": "broadcast",
            "schedule": {"after": ["billing.close-month", "billing.report"], "on": "either"}}),
        json!({"name": "unserved.job", "handler": "missing", "schedule": {"every": "1h"}, "enabled": false}),
        json!({"name": "legacy.import", "handler": "shell", "params": shell("true"),
            "schedule": {"cron": "0 0 4 * * ?"}, "enabled": false}),
    ];
    for mut job in jobs {
        job["app"] = Value::from("demo");
        api.post("/api/v1/jobs", job).await.expect(201);
    }
    let days = json!([{"date": "2027-01-01", "name": "New Year"}, {"date": "2027-02-05..2027-02-12", "name": "春节"}]);
    let rule = json!({"any": [{"days": days}, {"weekdays": ["sat", "sun"]}]});
    api.put("/api/v1/calendars/holidays", json!({ "rule": rule })).await.expect(201);
    let labels = json!({"labels": {"team": "search", "tier": "third"}});
    api.patch("/api/v1/jobs/cache.warm", labels).await.expect(200);
    api.patch("/api/v1/jobs/billing.close-month", json!({"description": "Closes the month"})).await.expect(200);
    api.post("/api/v1/namespaces", json!({"name": "empty"})).await.expect(201);
    alerts::watch_failures(api, "billing.close-month").await;
    // A history for the pages to show.
    for round in 0..16 {
        let (pause, end) = (round * 7 % 5, if round % 6 == 2 { "false" } else { "true" });
        for job in ["cache.warm", "search.reindex"] {
            let params = shell(&format!("sleep 0.{pause}; {end}"));
            api.post(&format!("/api/v1/jobs/{job}/runs"), json!({ "params": params })).await.expect(201);
        }
    }
    for job in ["billing.close-month", "search.reindex", "inventory.sync"] {
        api.post(&format!("/api/v1/jobs/{job}/runs"), json!({})).await.expect(201);
    }
    for (job, status) in
        [("billing.close-month", "failed"), ("search.reindex", "timed_out"), ("inventory.sync", "succeeded")]
    {
        wait_until(Duration::from_secs(30), "the verdict", async || {
            let runs = api.runs(job).await;
            if runs.iter().any(|run| run["status"] == status) { Ok(()) } else { Err(runs) }
        })
        .await;
    }
}

async fn look_at_everything(browser: &mut Browser, url: &str, api: &Api, shots: &Path) {
    let failed = api.runs("billing.close-month").await[0]["id"].as_str().expect("an id").to_owned();
    let whole = api.runs("inventory.sync").await.into_iter().find(|run| run["shard_index"].is_null()).expect("a root");
    let whole = whole["id"].as_str().expect("an id").to_owned();
    let nightly = api.runs("nightly-report").await[0]["id"].as_str().expect("an id").to_owned();
    let pages = [
        ("jobs", "/jobs".to_owned()),
        ("job", "/jobs/cache.warm".to_owned()),
        ("fires", "/jobs/billing.close-month/fires".to_owned()),
        ("edit", "/jobs/billing.close-month/edit".to_owned()),
        ("calendars", "/calendars".to_owned()),
        ("calendar", "/calendars/holidays?year=2027".to_owned()),
        ("new", "/jobs/new".to_owned()),
        ("runs", "/runs".to_owned()),
        ("run", format!("/runs/{nightly}")),
        ("run-failed", format!("/runs/{failed}")),
        ("run-broadcast", format!("/runs/{whole}")),
        ("run-search", format!("/runs/{nightly}?contains=line+1")),
        ("job-warned", "/jobs/unserved.job".to_owned()),
        ("executors", "/executors".to_owned()),
    ];
    for (lang, tag) in [("en", "en"), ("zh", "zh-CN")] {
        for theme in ["light", "dark"] {
            browser.goto(&format!("{url}/jobs")).await;
            browser.follow(&format!("button[name=lang][value={lang}]")).await;
            browser.follow(&format!("button[name=theme][value={theme}]")).await;
            let root = "document.documentElement";
            assert_eq!(
                browser.eval(&format!("{root}.lang + ' ' + {root}.dataset.theme")).await,
                format!("{tag} {theme}")
            );
            let scheme = browser.eval(&format!("getComputedStyle({root}).colorScheme")).await;
            assert_eq!(scheme, theme);
            for (name, path) in &pages {
                browser.goto(&format!("{url}{path}")).await;
                if matches!(*name, "new" | "edit") {
                    browser
                        .until(
                            "the preview",
                            "document.querySelectorAll('#preview li, #preview tbody tr').length >= 10",
                        )
                        .await;
                }
                browser.take_screenshot(&shots.join(format!("{name}-{lang}-{theme}.png"))).await;
            }
        }
    }
    switch_on_the_list(browser, url).await;
    select_on_the_list(browser, url).await;
    click_twice(browser, url).await;
    press_enter_before_the_hits(browser, url).await;
    ask_why(browser, url, shots).await;
    edit_a_job(browser, url).await;
    cancel_a_run(browser, url, api, shots).await;
    assert_eq!(browser.errors().await, [""; 0], "errors of the browser");
}

/// The switch of a row changes the job. Without a reload, the list shows changes by other users too.
async fn switch_on_the_list(browser: &mut Browser, url: &str) {
    browser.goto(&format!("{url}/jobs")).await;
    let switch = "#job-legacy\\.import .switch";
    let is = |state: &str| format!("document.querySelector({switch:?}).ariaChecked === '{state}'");
    browser.until("it is off", &is("false")).await;
    browser.click(switch).await;
    browser.until("it is on", &is("true")).await;
    browser.eval("window.isTheSame = true").await;
    let pause = "fetch('/jobs/legacy.import/pause', {method: 'POST', body: new URLSearchParams()}).then(answer => answer.status)";
    assert_eq!(browser.eval(pause).await, 200);
    browser.until("the list has noticed", &is("false")).await;
    assert_eq!(browser.eval("window.isTheSame").await, true, "the page was loaded again");
}

/// The table of jobs is outside of the form of its bar, although its check boxes belong to that form.
async fn select_on_the_list(browser: &mut Browser, url: &str) {
    browser.goto(&format!("{url}/jobs")).await;
    let all = "document.querySelector('[data-pick-all]')";
    let (boxes, ticked) = ("'tbody .pick input'", "document.querySelectorAll('tbody .pick input:checked').length");
    browser.click("[data-pick-all]").await;
    let is_whole = format!("{all}.checked && {ticked} === document.querySelectorAll({boxes}).length && {ticked} > 2");
    assert_eq!(browser.eval(&is_whole).await, true, "each box is ticked");
    browser.click("tbody .pick input").await;
    let is_part = format!(
        "{all}.indeterminate && document.querySelector('.picked').textContent.includes(document.querySelectorAll({boxes}).length - 1)"
    );
    assert_eq!(browser.eval(&is_part).await, true, "one box less is counted");
}

/// The second click of a double click sends nothing.
async fn click_twice(browser: &mut Browser, url: &str) {
    browser.goto(&format!("{url}/jobs")).await;
    let count = "(send => { window.posts = 0; window.fetch = (...all) => { window.posts += all[1]?.method === 'POST'; return send(...all); }; })(window.fetch)";
    browser.eval(count).await;
    let twice = "(button => { button.click(); button.click(); return window.posts; })(document.getElementById('job-cache.warm').querySelector('.act button'))";
    assert_eq!(browser.eval(twice).await, 1);
    browser.until("the run is reported", "document.querySelector('.toast')").await;
}

/// Enter opens the hit for the typed text, although the hits for an earlier text are still shown.
async fn press_enter_before_the_hits(browser: &mut Browser, url: &str) {
    browser.goto(&format!("{url}/jobs")).await;
    hand::press(browser, "k", true).await;
    browser.until("hits are shown", "document.querySelector('#palette .hit.on')").await;
    hand::type_text(browser, "billing.close-month").await;
    hand::press(browser, "Enter", false).await;
    browser.until("its page is there", "location.pathname === '/n/default/jobs/billing.close-month'").await;
}

/// A job's page lists the outcomes of its fires, and reads the time in a question on the clock of the schedule.
async fn ask_why(browser: &mut Browser, url: &str, shots: &Path) {
    browser.goto(&format!("{url}/jobs/cache.warm")).await;
    browser.until("the account is there", "document.querySelectorAll('#fires tbody tr').length >= 2").await;
    browser.until("succeeded fires are listed", "document.querySelector('#fires .s-succeeded')").await;
    browser.until("planned fires are listed", "document.querySelector('#fires .s-pending')").await;
    browser.goto(&format!("{url}/jobs/billing.close-month")).await;
    browser.fill("#why [name=at]", "2030-01-01T01:00").await;
    browser.follow("#why button").await;
    browser.until("the answer is there", "location.search && document.querySelector('.answer')").await;
    let found = browser.eval("document.querySelector('.answer .big').textContent").await;
    assert!(found.as_str().expect("text").contains("2030-01-01 01:00 Asia/Shanghai"), "{found}");
    assert_eq!(browser.eval("document.querySelector('#why [name=zone]').value").await, "Asia/Shanghai");
    browser.take_screenshot(&shots.join("why.png")).await;
    browser.goto(&format!("{url}/why?job=cache.warm")).await;
    let checks = browser.eval("document.querySelector('#why-now').textContent").await;
    let checks = checks.as_str().expect("text");
    assert!(checks.contains("“shell”") && checks.contains("dev") && !checks.contains("“dev”"), "{checks}");
}

/// The form of a job shows a preview, and saves changes.
async fn edit_a_job(browser: &mut Browser, url: &str) {
    browser.goto(&format!("{url}/jobs/billing.close-month")).await;
    browser.follow("#edit").await;
    browser
        .until(
            "the preview shows both clocks",
            "document.querySelector('#preview tbody tr')?.textContent.includes('Asia/Shanghai')",
        )
        .await;
    browser.fill("[name=cron]", "0 30 1 1 * ?").await;
    browser
        .until("it follows", "document.querySelector('#preview tr.plus')?.textContent.includes('01:30 Asia/Shanghai')")
        .await;
    browser.follow("#save").await;
    browser
        .until(
            "it is saved",
            "location.pathname === '/n/default/jobs/billing.close-month' && document.body.textContent.includes('0 30 1 1 * ?')",
        )
        .await;
}

/// A user who cancels is asked for the reason, and the verdict shows it.
async fn cancel_a_run(browser: &mut Browser, url: &str, api: &Api, shots: &Path) {
    api.patch("/api/v1/jobs/nightly-report", json!({"overrides": ["/argv"]})).await.expect(200);
    let params = json!({"params": {"argv": ["sleep", "60"]}});
    let run = api.post("/api/v1/jobs/nightly-report/runs", params).await.expect(201);
    browser.goto(&format!("{url}/runs/{}", run["id"].as_str().expect("an id"))).await;
    browser.until("it runs", "document.querySelector('#status').dataset.status === 'running'").await;
    browser.eval("document.querySelector('#live [popovertarget=cancel]').click()").await;
    let is_open = "document.querySelector('#cancel').matches(':popover-open')";
    browser.until("the form is there", is_open).await;
    browser.fill("#cancel [name=reason]", "the disk is full").await;
    // The page behind the dialog updates, and leaves the dialog unchanged.
    let seconds = "parseFloat(document.querySelector('#status .rel').textContent)";
    browser.eval(&format!("window.before = {seconds}")).await;
    browser.until("time goes on", &format!("{seconds} > window.before + 1.5")).await;
    assert_eq!(browser.eval(is_open).await, true);
    assert_eq!(browser.eval("document.querySelector('#cancel [name=reason]').value").await, "the disk is full");
    browser.take_screenshot(&shots.join("cancel.png")).await;
    browser.follow("#cancel-yes").await;
    browser.until("it is cancelled", "document.querySelector('#status').dataset.status === 'cancelled'").await;
    let found = browser.eval("document.querySelector('#status').textContent").await;
    assert!(found.as_str().expect("text").contains("the disk is full"), "{found}");
}

async fn see_error_pages(browser: &mut Browser, url: &str, shots: &Path) {
    for (name, path, title) in [
        ("no-run", "/runs/1", "没有这条运行记录"),
        ("no-job", "/jobs/%3Cscript%3E", "没有这个任务"),
        ("filter", "/runs?status=nosuch", "筛选条件无效"),
        ("nothing", "/nosuch", "找不到页面"),
        ("link", "/sign-in?token=spent", "此链接已失效"),
    ] {
        browser.goto(&format!("{url}{path}")).await;
        assert_eq!(browser.eval("document.querySelector('h1').textContent").await, title, "{path}");
        browser.take_screenshot(&shots.join(format!("problem-{name}.png"))).await;
        // The browser reports the status of the refusal as an error; it must report no other error.
        let errors = browser.errors().await;
        assert!(errors.iter().all(|error| error.contains("\"source\":\"network\"")), "{errors:?}");
    }
    browser.goto(&format!("{url}/jobs")).await;
    browser.follow("form[action='/sign-out'] button").await;
    browser.until("the session is over", "location.pathname === '/sign-in'").await;
    browser.goto(&format!("{url}/jobs")).await;
    browser.until("the jobs cannot be seen", "location.pathname === '/sign-in'").await;
    browser.take_screenshot(&shots.join("sign-in.png")).await;
}

//! Every screen at three widths, in both languages and both themes, around midnight: no screen is wider than its window. With
//! `TEST_PICTURES_OUT` (`tests/pictures` sets it), a picture of each screen is written into that folder, from a system with more jobs, two
//! servers and an agent for each app.

use std::path::PathBuf;

use rondel_tests::{Backend, Server, left_out_without, scratch, seed, variable, wall_clock_ms};
use serde_json::json;

use super::browser::{Browser, program, quoted};
use super::fixture::{Fixture, VIEWER_NAME, VIEWER_PASSWORD};
use super::pages::screens;

/// How much of a long page is in its picture, in pixels.
const HEIGHT_MAX: u32 = 2_400;

/// Steps on pages: a name, the page, the script of the step, and the element that it shows.
const STEPS: [(&str, &str, &str, &str); 16] = [
    ("palette-open", "/jobs", "document.querySelector('.jump').click()", "#palette[open] .hit"),
    ("keys", "/jobs", "document.getElementById('keys').showModal()", "#keys[open]"),
    ("menu-user", "/jobs", "document.querySelector('.menu.user').open = true", ".menu.user[open]"),
    ("menu-more", "/jobs", "document.querySelector('.nav-more').open = true", ".nav-more[open]"),
    ("menu-namespace", "/jobs", "document.querySelector('.menu.where summary').click()", ".where .choices a"),
    ("suggestions", "/runs", "suggest('sta')", ".suggestions:not([hidden]) *"),
    ("jobs-chosen", "/jobs", "pick()", "#bulk"),
    ("jobs-confirm", "/jobs", "pick(); document.querySelector('.bulk-bar button[value=pause]').click()", ".names"),
    (
        "runs-confirm",
        "/runs?q=status:failed",
        "pick(); document.querySelector('.bulk-bar button[value=retry]').click()",
        "[autofocus]",
    ),
    ("job-delete", "/jobs/JOB", "document.getElementById('delete').showPopover()", "#delete:popover-open"),
    ("job-started", "/jobs/JOB", "document.getElementById('run-now').click()", ".toast"),
    ("edit-yaml", "/jobs/JOB/edit", "document.getElementById('whole').open = true", "#whole[open]"),
    ("new-wrong", "/jobs/new", "document.getElementById('create').click()", ".error"),
    ("rule-wrong", "/alerts/rules/new", "document.getElementById('save').click()", "#errors"),
    (
        "channel-wrong",
        "/alerts/channels/new?kind=webhook",
        "document.getElementById('save').form.noValidate = true; \
        document.getElementById('save').click()",
        "#errors, .error",
    ),
    (
        "silence-form",
        "/alerts",
        "document.querySelectorAll('.alert-silence').forEach(one => one.open = true)",
        ".alert-silence[open]",
    ),
];
/// The functions that the steps call.
const HANDS: &str = "window.pick = () => [...document.querySelectorAll('main tbody .pick input')].slice(0, 3).forEach(box => box.click());\
    window.suggest = text => { const field = document.getElementById('filter'); field.focus(); field.value = text; \
    field.dispatchEvent(new Event('input', {bubbles: true})); }; 0";
/// The tables that are wider than the card around them.
const CUT_OFF: &str = "[...document.querySelectorAll('main .scroll:not(.as-table *), main .over')].filter(card => card.scrollWidth > card.clientWidth + 1)\
    .map(card => `${card.id || card.className}: ${card.scrollWidth} of ${card.clientWidth}`)";
/// Pages that are refused to a user who may do everything.
const REFUSED: [(&str, &str); 4] = [
    ("problem-page", "/nosuch"),
    ("problem-job", "/jobs/nosuch"),
    ("problem-run", "/runs/1"),
    ("problem-filter", "/runs?q=status:nosuch"),
];
/// Pages of a viewer, with controls that are disabled; the last two are refused.
const VIEWER: [(&str, &str); 7] = [
    ("viewer-jobs", "/jobs"),
    ("viewer-job", "/jobs/JOB"),
    ("viewer-executors", "/executors"),
    ("viewer-alerts", "/alerts"),
    ("viewer-settings", "/settings"),
    ("viewer-users", "/users"),
    ("viewer-activity", "/activity"),
];
/// Pages of a visitor who has not signed in.
const STRANGER: [(&str, &str); 2] = [("stranger-sign-in", "/sign-in"), ("stranger-jobs", "/jobs")];

/// Looks at pages in one language, theme and width.
struct Camera {
    browser: Browser,
    url: String,
    out: Option<PathBuf>,
    /// The names of the wanted screens; all screens if there are none.
    only: Vec<String>,
    look: (&'static str, &'static str, u32),
    too_wide: Vec<String>,
}

#[tokio::test]
async fn every_screen_fits_its_window() {
    let Some(program) = program() else { return left_out_without("chromium", "the screens at three widths") };
    let out = variable("TEST_PICTURES_OUT").map(PathBuf::from);
    let backend = if out.is_some() { Backend::Postgres } else { Backend::Sqlite };
    let Some(db) = scratch(backend).await else { return };
    let (jobs, runs) = if out.is_some() { (150, 30_000) } else { (30, 2_000) };
    seed(db.url(), jobs, runs).await;
    let fixture = Fixture::new(Server::start(&db).await, out.is_some().then_some(&db)).await;
    let some = [("en", "light", 390), ("zh", "dark", 1_024), ("en", "dark", 1_024)];
    let mut looks = some.to_vec();
    if out.is_some() {
        let themes = ["en", "zh"].map(|lang| ["light", "dark"].map(|theme| (lang, theme)));
        let widths = |(lang, theme)| [390, 1_024, 1_440].map(|width| (lang, theme, width));
        looks = themes.into_iter().flatten().flat_map(widths).collect();
    }
    if let Some(wanted) = variable("TEST_PICTURES_LOOKS") {
        let wanted: Vec<&str> = wanted.split_whitespace().collect();
        looks.retain(|(lang, theme, width)| wanted.contains(&format!("{lang}-{theme}-{width}").as_str()));
    }
    let only = variable("TEST_PICTURES_ONLY").unwrap_or_default();
    let mut camera = Camera {
        browser: Browser::start(&program).await,
        url: fixture.server.url().to_owned(),
        out,
        only: only.split_whitespace().map(str::to_owned).collect(),
        look: some[0],
        too_wide: Vec::new(),
    };
    sign_in(&mut camera.browser, &fixture.server).await;
    for look in looks.iter().copied() {
        camera.prefer("/account", look).await;
        for screen in screens(&fixture.subjects) {
            camera.take(screen.name, &screen.path, screen.is_main).await;
        }
        assert_eq!(camera.browser.errors().await, [""; 0], "errors of the browser");
        for (name, path, step, shown) in STEPS {
            camera.take_after(name, &path.replace("JOB", &fixture.subjects.job), step, shown).await;
        }
        for (name, path) in REFUSED {
            camera.take(name, path, false).await;
        }
        camera.expect_refusals().await;
    }
    camera.browser.call("Network.clearBrowserCookies", json!({})).await;
    for look in looks.iter().copied() {
        camera.prefer("/sign-in", look).await;
        for (name, path) in STRANGER {
            camera.take(name, path, false).await;
        }
    }
    enter_as_viewer(&mut camera).await;
    for look in looks {
        camera.prefer("/account", look).await;
        for (name, path) in VIEWER {
            camera.take(name, &path.replace("JOB", &fixture.subjects.job), false).await;
        }
    }
    assert_eq!(camera.too_wide, [""; 0], "pages that are larger than what they show");
    camera.expect_refusals().await;
}

impl Camera {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|one| one == name)
    }

    /// Asserts that the browser complained only about the statuses of refusals.
    async fn expect_refusals(&mut self) {
        let errors = self.browser.errors().await;
        let is_refusal = |error: &String| error.contains("responded with a status of 4");
        assert!(errors.iter().all(is_refusal), "{errors:?}");
    }

    /// Chooses language, theme and width, on a page with their switches.
    async fn prefer(&mut self, path: &str, look: (&'static str, &'static str, u32)) {
        let (lang, theme, width) = look;
        self.browser.size(1_440, 900).await;
        // Each width is shown just before midnight and just after it.
        let hour = if (lang == "en") == (theme == "dark") { 0 } else { 23 };
        self.browser.set_time_zone(&self.url, &zone_where_it_is(hour)).await;
        self.browser.goto(&format!("{}{path}", self.url)).await;
        self.browser.follow(&format!("button[name=lang][value={lang}]")).await;
        self.browser.follow(&format!("button[name=theme][value={theme}]")).await;
        self.browser.size(width, if width < 720 { 844 } else { 900 }).await;
        self.look = look;
    }

    async fn take(&mut self, name: &str, path: &str, with_window: bool) {
        if self.wants(name) {
            self.open(path).await;
            self.keep(name, with_window).await;
        }
    }

    async fn take_after(&mut self, name: &str, path: &str, step: &str, shown: &str) {
        if self.wants(name) {
            self.open(path).await;
            self.browser.eval(HANDS).await;
            self.browser.eval(&format!("{{ {step} }}; 0")).await;
            self.browser.until(name, &format!("document.querySelector({})", quoted(shown))).await;
            self.settle().await;
            self.keep(name, true).await;
        }
    }

    async fn open(&mut self, path: &str) {
        self.browser.goto(&format!("{}{path}", self.url)).await;
        self.settle().await;
    }

    async fn settle(&mut self) {
        // Waits for the parts that the page loads later: they are in the picture, too.
        self.browser.until("its parts are there", "!document.querySelector('[hx-trigger=load], .htmx-request')").await;
        self.browser.until("its font is there", "document.fonts.status === 'loaded'").await;
    }

    /// Measures the page that is shown, and writes its pictures.
    async fn keep(&mut self, name: &str, with_window: bool) {
        let (lang, theme, width) = self.look;
        let how = format!("{name}-{lang}-{theme}-{width}");
        let size = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight - document.body.offsetHeight]";
        let size = self.browser.eval(size).await;
        if size[0].as_u64() > Some(u64::from(width)) || size[1].as_i64() > Some(8) {
            self.too_wide.push(format!("{how}: {size}"));
        }
        let cut = self.browser.eval(CUT_OFF).await;
        if !cut.as_array().is_some_and(Vec::is_empty) {
            self.too_wide.push(format!("{how}: {cut}"));
        }
        if let Some(out) = &self.out {
            self.browser.take_screenshot_of_page(&out.join(format!("{how}.png")), HEIGHT_MAX).await;
            if with_window {
                self.browser.take_screenshot_of_window(&out.join(format!("window-{how}.png"))).await;
            }
        }
    }
}

/// A time zone in which it is this hour now. Just before midnight most coming fires are on another day, and just after it most past
/// runs are. Their times then take more room than at noon, at whichever hour the test runs.
fn zone_where_it_is(hour: i64) -> String {
    let hours_of_utc = wall_clock_ms() / 3_600_000;
    match (hour - hours_of_utc).rem_euclid(24) {
        0 => "UTC".to_owned(),
        // The sign of these names is reversed: `Etc/GMT-8` is to the east of Greenwich.
        east @ 1..=14 => format!("Etc/GMT-{east}"),
        east => format!("Etc/GMT+{}", 24 - east),
    }
}

/// Signs in a user who may only look.
async fn enter_as_viewer(camera: &mut Camera) {
    camera.browser.goto(&format!("{}/sign-in", camera.url)).await;
    camera.browser.fill("[name=name]", VIEWER_NAME).await;
    camera.browser.fill("[name=password]", VIEWER_PASSWORD).await;
    camera.browser.follow("#sign-in").await;
}

async fn sign_in(browser: &mut Browser, server: &Server) {
    let link = server.api().post("/api/v1/sign-in-links", json!({})).await.expect(201);
    browser.goto(&format!("{}{}", server.url(), link["path"].as_str().expect("a path"))).await;
    browser.follow("#sign-in").await;
}

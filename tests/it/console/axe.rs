//! Runs axe-core, the rule engine of browsers' accessibility tools, on the pages of the console.

use rondel_tests::{Api, Dev, left_out_without, variable};
use serde_json::json;

use super::browser::{Browser, program};
use super::pages::{Subjects, save_script, screens};
use super::{furnish, is_long_form, sign_in};

/// Runs the rules of WCAG 2.2, levels A and AA, and axe's best practices. In the dark theme, which has the same elements, it runs only the
/// rules about colours.
const RUN: &str = "axe.run(document, {resultTypes: ['violations'], ...(document.documentElement.dataset.theme === 'dark' && \
    {runOnly: {type: 'rule', values: ['color-contrast', 'link-in-text-block']}})}).then(found => found.violations\
    .filter(rule => ['serious', 'critical'].includes(rule.impact))\
    .map(rule => rule.id + ': ' + rule.nodes.slice(0, 3).map(node => node.target.join(' ')).join(' | ')))";

/// A browser with axe, and the findings so far.
struct Walk {
    browser: Browser,
    axe: String,
    findings: Vec<String>,
}

#[tokio::test]
async fn no_page_has_a_serious_finding() {
    let Some(program) = program() else { return left_out_without("chromium", "there is no chromium") };
    let Some(axe) = variable("RONDEL_TEST_AXE") else {
        return left_out_without("axe", "there is no axe-core");
    };
    let axe = std::fs::read_to_string(axe).expect("read axe-core");
    let mut dev = Dev::start().await;
    let mut browser = Browser::start(&program).await;
    sign_in(&mut dev, &mut browser).await;
    let (api, url) = (dev.api(), dev.url().to_owned());
    furnish(&api).await;
    save_script(&api).await;
    let subjects = Subjects::of_furnished(&api).await;
    for (list, filter) in [("jobs", "is:paused"), ("runs", "status:failed")] {
        browser.goto(&format!("{url}/n/default/{list}?q={filter}")).await;
        browser.fill(".save-filter [name=name]", "<b>mine</b>").await;
        browser.follow(".save-filter button").await;
        browser
            .until("the filter is kept", "document.querySelector('.saved-filter a').textContent === '<b>mine</b>'")
            .await;
    }
    let mut walk = Walk { browser, axe, findings: Vec::new() };
    // No colour depends on the language, so the short form leaves out the dark theme in Chinese.
    let hows = [("en", "light"), ("en", "dark"), ("zh", "light"), ("zh", "dark")];
    for (lang, theme) in hows.into_iter().take(if is_long_form() { 4 } else { 3 }) {
        walk.browser.goto(&format!("{url}/jobs")).await;
        walk.browser.follow(&format!("button[name=theme][value={theme}]")).await;
        walk.browser.follow(&format!("button[name=lang][value={lang}]")).await;
        for screen in screens(&subjects).into_iter().filter(|screen| lang == "en" || screen.is_main) {
            walk.browser.goto(&format!("{url}{}", screen.path)).await;
            walk.look(&format!("{}, {lang} {theme}", screen.name)).await;
        }
        walk.selections(&url, &format!("{lang} {theme}")).await;
        assert_eq!(walk.browser.errors().await, [""; 0], "errors of the browser");
        walk.refusals(&url, &format!("{lang} {theme}")).await;
    }
    walk.as_viewer(&api, &url).await;
    assert!(walk.findings.is_empty(), "{}", walk.findings.join("\n"));
    assert!(dev.stop().await.success());
}

impl Walk {
    /// Checks the page that is shown.
    async fn look(&mut self, name: &str) {
        // Waits for the parts that the page loads later: they are checked, too.
        self.browser.until("its parts are there", "!document.querySelector('.htmx-request')").await;
        self.browser.eval(&self.axe).await;
        let found = self.browser.eval(RUN).await;
        self.findings
            .extend(found.as_array().expect("axe gives a list").iter().map(|finding| format!("{name}: {finding}")));
    }

    /// Checks the lists with a selection, the pages that ask for consent, and the two dialogs.
    async fn selections(&mut self, url: &str, how: &str) {
        for (list, action) in [("jobs", "pause"), ("runs", "retry")] {
            self.browser.goto(&format!("{url}/n/default/{list}")).await;
            self.browser.click("main tbody .pick input").await;
            self.look(&format!("{list} with a selection, {how}")).await;
            self.browser.follow(&format!(".bulk-bar button[value={action}]")).await;
            self.look(&format!("confirmation of {list}, {how}")).await;
        }
        for dialog in ["palette", "keys"] {
            self.browser.eval(&format!("document.getElementById('{dialog}').showModal()")).await;
            self.look(&format!("dialog {dialog}, {how}")).await;
            self.browser.eval(&format!("document.getElementById('{dialog}').close()")).await;
        }
    }

    /// Checks pages that refuse a request.
    async fn refusals(&mut self, url: &str, how: &str) {
        for path in
            ["/nosuch", "/jobs/nosuch", "/runs/1", "/runs?q=status:nosuch", "/calendars/nosuch", "/timeline?zoom=9"]
        {
            self.browser.goto(&format!("{url}{path}")).await;
            self.look(&format!("{path}, {how}")).await;
        }
        self.only_refused().await;
    }

    /// Asserts that the browser complained only about the statuses of refusals.
    async fn only_refused(&mut self) {
        let errors = self.browser.errors().await;
        let is_refusal = |error: &String| error.contains("responded with a status of 4");
        assert!(errors.iter().all(is_refusal), "{errors:?}");
    }

    /// Checks the page of the sign-in, and the pages of a user with few rights, who sees disabled controls and
    /// refusals.
    async fn as_viewer(&mut self, api: &Api, url: &str) {
        let viewer = json!({"name": "eye", "grants": [{"role": "viewer", "namespace": "default"}], "password": "look but not touch"});
        api.post("/api/v1/users", viewer).await.expect(201);
        self.browser.call("Network.clearBrowserCookies", json!({})).await;
        self.browser.goto(&format!("{url}/sign-in")).await;
        self.look("sign-in").await;
        self.browser.fill("[name=name]", "eye").await;
        self.browser.fill("[name=password]", "look but not touch").await;
        self.browser.follow("#sign-in").await;
        for path in ["/jobs", "/jobs/cache.warm", "/runs", "/executors", "/settings", "/activity", "/users"] {
            self.browser.goto(&format!("{url}/n/default{path}")).await;
            self.look(&format!("{path} of a viewer")).await;
        }
        self.only_refused().await;
    }
}

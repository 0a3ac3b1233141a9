//! Stores the texts that try to become markup in alerts, filters and the comparison with another scheduler. There are only few objects of
//! these kinds, so each text overwrites the one before it.

use rondel_tests::{Api, instant_in, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

use super::browser::{Browser, quoted};
use super::markup::{parse, plain};

/// The pages that show the texts: in a rule, a silence, a maintenance window and its banner, a channel, and the comparison with another
/// scheduler.
const PAGES: [&str; 5] = ["/alerts", "/alerts/rules/text", "/alerts/channels/text", "/account", "/shadow?source=text-"];
/// The longest name of a saved filter.
const NAME_LEN_MAX: usize = 60;

/// Puts each text into each of these fields, and looks at the pages that show them.
pub(super) async fn look_at_rare_texts(browser: &mut Browser, api: &Api, texts: &[String]) {
    let fire = shadow_fire(api).await;
    let ends_at = instant_in(Duration::from_secs(7_200));
    let mut template_count = 0;
    for (number, text) in texts.iter().enumerate() {
        let text = plain(text);
        let rule =
            json!({"condition": {"failed": {}}, "scope": {"app": "demo"}, "channels": ["text"], "description": text});
        let channel = |settings: Value| {
            json!({"kind": "webhook", "enabled": false, "settings": settings,
                "secrets": {"url": "https://alerts.example.invalid/"}})
        };
        // The text may be an invalid template, which the server refuses.
        let settings = json!({"title_template": text, "body_template": text});
        let status = api.put("/api/v1/channels/text", channel(settings)).await.status;
        template_count += usize::from(matches!(status, 200 | 201));
        if status == 422 {
            let status = api.put("/api/v1/channels/text", channel(json!({}))).await.status;
            assert!(matches!(status, 200 | 201), "{status}");
        }
        let status = api.put("/api/v1/alert-rules/text", rule).await.status;
        assert!(matches!(status, 200 | 201), "{status}");
        let silence = json!({"app": "demo", "reason": text, "ends_at": ends_at});
        let silence = api.post("/api/v1/silences", silence).await.expect(201);
        let window = json!({"app": "demo", "reason": text, "length": "1h"});
        let window = api.post("/api/v1/maintenance", window).await.expect(201);
        let mut fire = fire.clone();
        fire["executor"] = text.clone().into();
        let fires = json!({"source": format!("text-{number}"), "fires": [fire]});
        api.post("/api/v1/shadow/fires", fires).await.expect(200);
        let mut pages: Vec<String> = PAGES.map(str::to_owned).into();
        pages[4].push_str(&number.to_string());
        parse(browser, &pages, &[200], "{}").await;
        save_filter(browser, &text).await;
        for (noun, made) in [("silences", &silence), ("maintenance", &window)] {
            let id = made["id"].as_str().expect("an id");
            api.delete(&format!("/api/v1/{noun}/{id}")).await;
        }
    }
    assert!(template_count > 0, "no channel took a text as its template");
}

/// A fire of a job in shadow mode, as another scheduler would report it.
async fn shadow_fire(api: &Api) -> Value {
    let job = json!({"name": "shadow.text", "app": "demo", "handler": "shell", "mode": "shadow",
        "params": {"argv": ["true"]}, "schedule": {"every": "1s"}});
    api.post("/api/v1/jobs", job).await.expect(201);
    let run = wait_until(Duration::from_secs(60), "a fire in shadow mode", async || {
        let runs = api.runs("shadow.text").await;
        runs.iter().find(|run| run["reason"] == "shadow" && run["detail"]["executor"] == "dev").cloned().ok_or(runs)
    })
    .await;
    api.patch("/api/v1/jobs/shadow.text", json!({"enabled": false})).await.expect(200);
    json!({"job": "shadow.text", "source_id": 1, "due_at": run["fire_at"], "started_at": run["fire_at"]})
}

/// Saves a filter under the text, looks at the list that offers it, and deletes it.
async fn save_filter(browser: &mut Browser, text: &str) {
    let name: String = text.chars().take(NAME_LEN_MAX).collect();
    let send = |action: &str| {
        format!(
            "fetch('{action}', {{method: 'POST', body: new URLSearchParams({{list: 'jobs', q: 'is:paused', name: {}}})}})\
             .then(answer => answer.status)",
            quoted(name.trim())
        )
    };
    assert_eq!(browser.eval(&send("/saved-filters")).await, 200, "{name}");
    parse(browser, &["/jobs?q=is:paused".to_owned()], &[200], "{}").await;
    assert_eq!(browser.eval(&send("/saved-filters/delete")).await, 200, "{name}");
}

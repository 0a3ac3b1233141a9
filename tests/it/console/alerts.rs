//! Rules, channels, a silence and incidents, for tests that look at their pages.

use std::time::Duration;

use rondel_tests::{Api, instant_in, wait_until};
use serde_json::{Value, json};

/// The channel and the rule whose own pages the tests open.
pub(super) const CHANNEL: &str = "ops-pager";
pub(super) const RULE: &str = "run-failed";

/// Makes channels whose hosts do not exist, and a rule that holds for each failed run of a job. Nothing leaves this machine.
pub(super) async fn watch_failures(api: &Api, job: &str) {
    let channels = [
        (CHANNEL, json!({"kind": "webhook", "secrets": {"url": "https://alerts.example.invalid/rondel"}})),
        (
            "slack-oncall",
            json!({"kind": "slack", "secrets": {"url": "https://hooks.example.invalid/services/T0/B0/x"}}),
        ),
        (
            "feishu-night",
            json!({"kind": "feishu", "lang": "zh", "enabled": false, "secrets": {"url": "https://open.example.invalid/hook/1"}}),
        ),
    ];
    for (name, body) in channels {
        let status = api.put(&format!("/api/v1/channels/{name}"), body).await.status;
        assert!(matches!(status, 200 | 201), "{name}: {status}");
    }
    let rule = json!({"condition": {"failed": {}}, "scope": {"job": job}, "severity": "critical", "channels": [CHANNEL],
        "escalate": {"channel": "slack-oncall", "after": "30m"}, "description": "Call the owner of the ledger: +49 30 1234"});
    let status = api.put(&format!("/api/v1/alert-rules/{RULE}"), rule).await.status;
    assert!(matches!(status, 200 | 201), "{RULE}: {status}");
}

/// Creates a rule with each kind of condition, and two silences.
pub(super) async fn watch_much(api: &Api, job: &str) {
    let rules = [
        (
            "three-in-a-row",
            json!({"condition": {"failures_in_row": {"count": 3}}, "channels": [CHANNEL, "slack-oncall"]}),
        ),
        (
            "too-many-fail",
            json!({"condition": {"failure_rate": {"percent": 20, "window": "6h", "min_runs": 20}}, "scope": {"app": "orders"}, "channels": ["slack-oncall"]}),
        ),
        (
            "closed-by-six",
            json!({"condition": {"not_succeeded_by": {"time": "06:00", "zone": "Europe/Berlin", "weekdays": ["mon", "tue", "wed", "thu", "fri"]}},
            "scope": {"job": job}, "severity": "critical", "channels": [CHANNEL]}),
        ),
        (
            "no-success-for-a-day",
            json!({"condition": {"no_success_for": {"length": "1d"}}, "scope": {"label": "team=payments"}}),
        ),
        ("late", json!({"condition": {"late": {"by": "5m"}}, "channels": ["slack-oncall"]})),
        ("runs-too-long", json!({"condition": {"running_longer": {"times_p95": 3}}, "enabled": false})),
        ("skipped-without-executor", json!({"condition": {"skipped": {"reasons": ["no_executor"]}}})),
        (
            "app-without-executor",
            json!({"condition": {"no_executor": {}}, "severity": "critical", "channels": [CHANNEL]}),
        ),
        (
            "server-lost",
            json!({"condition": {"node_lost": {}}, "severity": "critical", "channels": [CHANNEL, "slack-oncall"]}),
        ),
        ("loop-fails", json!({"condition": {"loop_failing": {"length": "5m"}}})),
        ("token-ends", json!({"condition": {"token_expiring": {"within": "14d"}}, "channels": ["slack-oncall"]})),
    ];
    for (name, rule) in rules {
        api.put(&format!("/api/v1/alert-rules/{name}"), rule).await.expect(201);
    }
    // An instant of the next days.
    let ends_at = api.get(&format!("/api/v1/jobs/{job}")).await.expect(200)["next_fire_at"].clone();
    let silences = [
        json!({"app": "mail", "reason": "The mail provider moves, OPS-2214", "ends_at": ends_at}),
        json!({"rule": "late", "job": job, "reason": "月末结账", "ends_at": ends_at}),
    ];
    for silence in silences {
        api.post("/api/v1/silences", silence).await.expect(201);
    }
}

/// Plans a maintenance window that opens soon, and one of an app within the hour.
pub(super) async fn plan_maintenance(api: &Api, namespace: &str) {
    let windows = [
        json!({"length": "4h", "fires": "hold", "reason": "The database moves to version 17, OPS-2231"}),
        json!({"app": "mail", "length": "2h", "fires": "skip", "reason": "邮件服务迁移", "starts_at": instant_in(Duration::from_secs(2_700))}),
    ];
    for window in windows {
        api.post(&format!("/api/v1/maintenance?namespace={namespace}"), window).await.expect(201);
    }
}

/// Waits for an incident of the rule, and returns its id.
pub(super) async fn incident(api: &Api) -> String {
    let found = wait_until(Duration::from_secs(60), "an incident", async || {
        let all = api.get("/api/v1/incidents").await.expect(200);
        let items = all["items"].as_array().cloned().unwrap_or_default();
        items.into_iter().find(|one| one["rule"] == RULE).ok_or(all)
    })
    .await;
    Value::as_str(&found["id"]).unwrap_or_default().to_owned()
}

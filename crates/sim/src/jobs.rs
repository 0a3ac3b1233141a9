//! The jobs that a seed draws: of every kind for which the engine guarantees something.

use rondel_core::{JobSpec, Timestamp};
use serde_json::{Value, json};

use crate::profile::Profile;
use crate::rng::{SeededRng, mix};

/// Salt that keeps the draw of modes independent of other draws of the same seed.
const SHADOW_SALT: u64 = 0x0005_4ad0_77e1;
/// Salt that keeps the draw of limits independent of other draws of the same seed.
const LIMIT_SALT: u64 = 0x0011_3175;

/// Draws the jobs of a world; their schedules end at `ends_at`.
pub(crate) fn draw_jobs(rng: &mut SeededRng, profile: &Profile, ends_at: Timestamp) -> Vec<JobSpec> {
    let mut specs: Vec<JobSpec> = Vec::new();
    for index in 0..profile.job_count {
        let parents: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
        let document = document(rng, profile, index, &parents, ends_at);
        let spec: JobSpec =
            serde_json::from_value(document).unwrap_or_else(|error| unreachable!("a bad draw: {error}"));
        specs.push(spec);
    }
    specs
}

fn document(rng: &mut SeededRng, profile: &Profile, index: usize, parents: &[String], ends_at: Timestamp) -> Value {
    let mut job = json!({
        "name": format!("j{index}"),
        "app": format!("app{}", rng.index(profile.app_count)),
        "handler": "h",
        "queue_timeout": *rng.pick(&["2s", "5s", "15s"]),
    });
    if let Some(schedule) = schedule(rng, parents, ends_at) {
        job["schedule"] = schedule;
    }
    job["overlap"] = match rng.below(10) {
        0..=5 => json!({"policy": "serial"}),
        6 => json!({"policy": "discard"}),
        7 => json!({"policy": "cover"}),
        8 => json!({"policy": "serial", "scope": "executor"}),
        _ => json!({"policy": "allow", "max": rng.below(3)}),
    };
    if rng.happens(350_000) {
        job["delivery"] = json!("at_most_once");
    }
    if let Some(seed) = profile.silence_seed {
        let mut rng = SeededRng::new(mix(seed ^ mix(index as u64)));
        match rng.below(4) {
            0 => job["on_silence"] = json!("stop"),
            1 | 2 => job["on_silence"] = json!("continue"),
            _ => {}
        }
    }
    if let Some(seed) = profile.shadow_seed {
        put_in_shadow_mode(&mut job, SeededRng::new(mix(seed ^ SHADOW_SALT ^ mix(index as u64))), ends_at);
    }
    if rng.happens(400_000) {
        let backoff = *rng.pick(&["1s", "500ms", "2s"]);
        job["retry"] = json!({"max": rng.between(1, 2), "backoff": backoff});
    }
    if rng.happens(300_000) {
        job["timeout"] = json!(*rng.pick(&["1s", "2s"]));
    }
    job["misfire"] = match rng.below(4) {
        0 | 1 => json!({"policy": "skip", "tolerance": *rng.pick(&["2s", "5s", "30s"])}),
        2 => json!({"policy": "once", "tolerance": "2s"}),
        _ => json!({"policy": "all", "max": rng.between(1, 10), "tolerance": "2s"}),
    };
    let routes = ["first", "round", "random", "consistent_hash", "lru", "failover", "busyover", "least_active"];
    match rng.below(8) {
        0 => job["route"] = json!("broadcast"),
        1 => job["shards"] = json!(rng.between(2, 3)),
        _ => job["route"] = json!(*rng.pick(&routes)),
    }
    if rng.happens(100_000) {
        job["concurrency"] = json!({"key": "k", "max": rng.between(1, 2)});
    }
    if let Some(seed) = profile.limit_seed {
        put_under_limit(&mut job, seed, SeededRng::new(mix(seed ^ LIMIT_SALT ^ mix(index as u64))));
    }
    job
}

/// Puts a job in shadow mode, sometimes only from an instant on or up to it.
fn put_in_shadow_mode(job: &mut Value, mut rng: SeededRng, ends_at: Timestamp) {
    if !rng.happens(300_000) {
        return;
    }
    let change_at = rng.happens(600_000).then(|| (ends_at - rng.millis(2_000, 12_000)).to_string());
    job["mode"] = match change_at.is_some() && rng.happens(500_000) {
        true => json!("active"),
        false => json!("shadow"),
    };
    if let Some(change_at) = change_at {
        job["mode_from"] = json!(change_at);
    }
}

/// Puts a job under one of two limits, in most cases. Most jobs of a seed have the same `max`.
fn put_under_limit(job: &mut Value, seed: u64, mut rng: SeededRng) {
    if rng.happens(750_000) {
        let key = if rng.happens(700_000) { "k" } else { "l" };
        let max = if rng.happens(800_000) { seed % 3 + 1 } else { rng.between(1, 3) };
        job["concurrency"] = json!({"key": key, "max": max});
    }
}

fn schedule(rng: &mut SeededRng, parents: &[String], ends_at: Timestamp) -> Option<Value> {
    let ends_at = ends_at.to_string();
    let kind = rng.below(12);
    match kind {
        0..=5 => Some(json!({"every": *rng.pick(&["1s", "2s", "3s", "5s"]), "end_at": ends_at})),
        6 | 7 => {
            let cron = *rng.pick(&["*/2 * * * * ?", "*/3 * * * * ?", "0/5 * * * * ?", "* * * * * ?"]);
            Some(json!({"cron": cron, "end_at": ends_at}))
        }
        8 => Some(json!({"delay": *rng.pick(&["1s", "2s"]), "end_at": ends_at})),
        9 | 10 if !parents.is_empty() => {
            let parent_outcome = *rng.pick(&["success", "either", "failure"]);
            Some(json!({"after": [rng.pick(parents)], "on": parent_outcome}))
        }
        9 | 10 => Some(json!({"every": "2s", "end_at": ends_at})),
        _ => None,
    }
}

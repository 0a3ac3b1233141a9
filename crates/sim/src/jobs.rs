//! The jobs that a seed draws: of every kind for which the engine guarantees something.

use rondel_core::{JobSpec, Timestamp};
use serde_json::{Value, json};

use crate::chance::{Chance, mix};
use crate::profile::Profile;

/// Salt that keeps the draw of modes independent of other draws of the same seed.
const SHADOWS: u64 = 0x0005_4ad0_77e1;

/// Draws the jobs of a world; their schedules end at `end`.
pub(crate) fn draw(chance: &mut Chance, profile: &Profile, end: Timestamp) -> Vec<JobSpec> {
    let mut specs: Vec<JobSpec> = Vec::new();
    for index in 0..profile.job_count {
        let parents: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
        let document = document(chance, profile, index, &parents, end);
        let spec: JobSpec =
            serde_json::from_value(document).unwrap_or_else(|error| unreachable!("a bad draw: {error}"));
        specs.push(spec);
    }
    specs
}

fn document(chance: &mut Chance, profile: &Profile, index: usize, parents: &[String], end: Timestamp) -> Value {
    let mut job = json!({
        "name": format!("j{index}"),
        "app": format!("app{}", chance.index(profile.app_count)),
        "handler": "h",
        "queue_timeout": *chance.pick(&["2s", "5s", "15s"]),
    });
    if let Some(schedule) = schedule(chance, parents, end) {
        job["schedule"] = schedule;
    }
    job["overlap"] = match chance.below(10) {
        0..=5 => json!({"policy": "serial"}),
        6 => json!({"policy": "discard"}),
        7 => json!({"policy": "cover"}),
        8 => json!({"policy": "serial", "scope": "executor"}),
        _ => json!({"policy": "allow", "max": chance.below(3)}),
    };
    if chance.happens(350_000) {
        job["delivery"] = json!("at_most_once");
    }
    if let Some(seed) = profile.silences {
        let mut chance = Chance::new(mix(seed ^ mix(index as u64)));
        match chance.below(4) {
            0 => job["on_silence"] = json!("stop"),
            1 | 2 => job["on_silence"] = json!("continue"),
            _ => {}
        }
    }
    if let Some(seed) = profile.shadows {
        shadow(&mut job, Chance::new(mix(seed ^ SHADOWS ^ mix(index as u64))), end);
    }
    if chance.happens(400_000) {
        let backoff = *chance.pick(&["1s", "500ms", "2s"]);
        job["retry"] = json!({"max": chance.between(1, 2), "backoff": backoff});
    }
    if chance.happens(300_000) {
        job["timeout"] = json!(*chance.pick(&["1s", "2s"]));
    }
    job["misfire"] = match chance.below(4) {
        0 | 1 => json!({"policy": "skip", "tolerance": *chance.pick(&["2s", "5s", "30s"])}),
        2 => json!({"policy": "once", "tolerance": "2s"}),
        _ => json!({"policy": "all", "max": chance.between(1, 10), "tolerance": "2s"}),
    };
    let routes = ["first", "round", "random", "consistent_hash", "lru", "failover", "busyover", "least_active"];
    match chance.below(8) {
        0 => job["route"] = json!("broadcast"),
        1 => job["shards"] = json!(chance.between(2, 3)),
        _ => job["route"] = json!(*chance.pick(&routes)),
    }
    if chance.happens(100_000) {
        job["concurrency"] = json!({"key": "k", "max": chance.between(1, 2)});
    }
    job
}

/// Puts a job in shadow mode, sometimes only from an instant on or up to it.
fn shadow(job: &mut Value, mut chance: Chance, end: Timestamp) {
    if !chance.happens(300_000) {
        return;
    }
    let seam = chance.happens(600_000).then(|| (end - chance.millis(2_000, 12_000)).to_string());
    job["mode"] = match seam.is_some() && chance.happens(500_000) {
        true => json!("active"),
        false => json!("shadow"),
    };
    if let Some(seam) = seam {
        job["mode_from"] = json!(seam);
    }
}

fn schedule(chance: &mut Chance, parents: &[String], end: Timestamp) -> Option<Value> {
    let end = end.to_string();
    let kind = chance.below(12);
    match kind {
        0..=5 => Some(json!({"every": *chance.pick(&["1s", "2s", "3s", "5s"]), "end_at": end})),
        6 | 7 => {
            let cron = *chance.pick(&["*/2 * * * * ?", "*/3 * * * * ?", "0/5 * * * * ?", "* * * * * ?"]);
            Some(json!({"cron": cron, "end_at": end}))
        }
        8 => Some(json!({"delay": *chance.pick(&["1s", "2s"]), "end_at": end})),
        9 | 10 if !parents.is_empty() => {
            let on = *chance.pick(&["success", "either", "failure"]);
            Some(json!({"after": [chance.pick(parents)], "on": on}))
        }
        9 | 10 => Some(json!({"every": "2s", "end_at": end})),
        _ => None,
    }
}

//! One address attacks in every way concurrently. Meanwhile, callers from other addresses are answered, and the server's
//! memory stays bounded. Good callers at the attacker's own address are tested too.

mod attack;
mod wire;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rondel_tests::{Backend, ScratchDb, Server, scratch, wait_until};
use serde_json::json;
use tokio::time::Instant;

use attack::Attack;
use wire::ExecutorStream;

const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const GOOD: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));
/// Maximum wait of a good caller.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// On a slow machine, a good caller may wait this many times as long as without an attack.
const CALM_FACTOR: u32 = 5;
/// How long the waits without an attack are measured.
const CALM: Duration = Duration::from_secs(1);
/// Maximum peak of the server's resident set.
const MEMORY_MAX_KIB: u64 = 256 * 1024;
const LIMIT: Duration = Duration::from_secs(60);
/// How long the attack lasts.
const LENGTH: Duration = Duration::from_secs(8);

struct Target {
    _db: ScratchDb,
    server: Server,
    address: String,
    viewer: String,
    cookie: String,
}

impl Target {
    async fn start() -> Self {
        let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
        let server = Server::start(&db).await;
        let api = server.api();
        api.post("/api/v1/jobs", json!({"name": "quiet", "app": "siege", "handler": "none"})).await.expect(201);
        let user = json!({"name": "ann", "password": "correct horse", "grants": [{"role": "admin"}]});
        api.post("/api/v1/users", user).await.expect(201);
        let viewer = json!({"kind": "api", "name": "eye", "grants": [{"role": "viewer"}]});
        let viewer = api.post("/api/v1/tokens", viewer).await.expect(201);
        let viewer = viewer["token"].as_str().expect("a secret").to_owned();
        let address = server.url().strip_prefix("http://").expect("plain HTTP").to_owned();
        let mut target = Self { _db: db, server, address, viewer, cookie: String::new() };
        let (status, cookie) = target.sign_in(GOOD).await;
        assert_eq!(status, 303);
        target.cookie = cookie;
        target
    }

    /// A browser with a connection of its own.
    fn browser(&self, from: IpAddr) -> reqwest::Client {
        let builder = reqwest::Client::builder().no_proxy().local_address(from).timeout(Duration::from_secs(20));
        builder.redirect(reqwest::redirect::Policy::none()).build().expect("a client")
    }

    async fn sign_in(&self, from: IpAddr) -> (u16, String) {
        let url = self.server.url();
        let request = self.browser(from).post(format!("{url}/sign-in")).header("origin", url);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let Ok(answer) = request.body("name=ann&password=correct+horse").send().await else {
            return (0, String::new());
        };
        let cookie = answer.headers().get("set-cookie").and_then(|value| value.to_str().ok()).unwrap_or_default();
        (answer.status().as_u16(), cookie.split(';').next().unwrap_or_default().to_owned())
    }

    async fn get(&self, from: IpAddr, path: &str) -> u16 {
        self.get_as(&self.cookie, from, path).await
    }

    async fn get_as(&self, cookie: &str, from: IpAddr, path: &str) -> u16 {
        let request = self.browser(from).get(format!("{}{path}", self.server.url())).header("cookie", cookie);
        request.send().await.map_or(0, |answer| answer.status().as_u16())
    }

    /// The peak of the resident set so far.
    fn peak_kib(&mut self) -> u64 {
        let pid = self.server.process().id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }
}

/// The longest wait of each kind of good caller.
#[derive(Debug, Default)]
struct Waits(Vec<(&'static str, Duration)>);

impl Waits {
    async fn time<T>(&mut self, description: &'static str, call: impl Future<Output = T>) -> T {
        let began_at = Instant::now();
        let answer = call.await;
        let took = began_at.elapsed();
        match self.0.iter_mut().find(|(known, _)| *known == description) {
            Some((_, longest)) => *longest = took.max(*longest),
            None => self.0.push((description, took)),
        }
        answer
    }

    /// Asserts that no wait is too long. `calm` has the waits without an attack.
    fn check(&self, calm: &Self) {
        let max = |description: &str| {
            let calm =
                calm.0.iter().find(|(known, _)| *known == description).map_or(Duration::ZERO, |(_, longest)| *longest);
            ANSWER_MAX.max(calm * CALM_FACTOR)
        };
        assert!(
            self.0.iter().all(|(description, longest)| *longest < max(description)),
            "{self:?}; without an attack {calm:?}"
        );
    }
}

/// Calls as users, probes and an executor do, for this long.
async fn good_callers(target: &Target, stream: &mut ExecutorStream, length: Duration) -> Waits {
    let (mut waits, began_at) = (Waits::default(), Instant::now());
    while began_at.elapsed() < length {
        assert_eq!(waits.time("/readyz", target.get(GOOD, "/readyz")).await, 200);
        // An account has a bounded number of sign-ins: the newest is used.
        let (status, cookie) = waits.time("sign-in", target.sign_in(GOOD)).await;
        assert_eq!(status, 303);
        assert_eq!(waits.time("page", target.get_as(&cookie, GOOD, "/n/default/jobs")).await, 200);
        waits.time("executor stream", stream.heartbeat()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    waits
}

/// The statuses of probes and of pages that a signed-in caller gets at the attacker's address; 0 for a connection that ended.
async fn neighbour(target: &Target) -> (Vec<u16>, Vec<u16>) {
    let (mut probes, mut pages, began_at) = (Vec::new(), Vec::new(), Instant::now());
    while began_at.elapsed() < LENGTH {
        probes.push(target.get(ATTACKER, "/readyz").await);
        pages.push(target.get(ATTACKER, "/n/default/jobs").await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    (probes, pages)
}

fn share(statuses: &[u16], wanted: u16) -> f64 {
    let count = statuses.iter().filter(|status| **status == wanted).count();
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / f64::from(u32::try_from(statuses.len()).unwrap_or(1).max(1))
}

/// Waits until each of these limits has stopped a part of the attack.
async fn wait_for_limits(target: &Target, limits: &[&str]) {
    let api = target.server.api();
    wait_until(LIMIT, "the attack was held up by every limit", async || {
        let metrics = api.get("/metrics").await.expect(200);
        let metrics = metrics.as_str().expect("text");
        let count = |limit: &str| {
            let name = format!("rondel_http_limited_total{{limit=\"{limit}\"}}");
            metrics.lines().find(|line| line.starts_with(&name)).unwrap_or_default().to_owned()
        };
        let counts: Vec<String> = limits.iter().map(|limit| count(limit)).collect();
        if counts.iter().all(|line| !line.is_empty() && !line.ends_with(" 0")) { Ok(()) } else { Err(counts) }
    })
    .await;
}

/// Half-sent bodies, idle connections, slow readers and floods of streams, all from one address.
#[tokio::test(flavor = "multi_thread")]
async fn one_address_that_attacks_delays_no_other_caller() {
    let mut target = Target::start().await;
    let token = std::fs::read_to_string(target.server.token_file()).expect("a token");
    let mut stream = ExecutorStream::open(&target.address, GOOD, token.trim(), "good", &[]).await.expect("welcome");
    stream.heartbeat().await;
    let calm = good_callers(&target, &mut stream, CALM).await;
    let mut attack = Attack::new(&target.address, ATTACKER);
    attack.half_sent_bodies(10, 125);
    attack.idle_connections(2_000);
    attack.slow_readers(100, "/sign-in", None);
    attack.slow_readers(100, "/api/v1/openapi.json", Some(&target.viewer));
    attack.stream_floods(4);
    attack.gateway_floods(4);
    // Every part of the attack takes effect before anything is measured.
    attack.wait_until_effective().await;
    let (waits, (probes, pages)) = tokio::join!(good_callers(&target, &mut stream, LENGTH), neighbour(&target));
    wait_for_limits(&target, &["connections_per_address", "bodies_per_address", "requests_per_address"]).await;
    attack.end().await;
    let peak = target.peak_kib();
    println!("{waits:?}; peak {peak} KiB; at the attacker's address: /readyz {probes:?}, a page {pages:?}");
    waits.check(&calm);
    assert!(peak < MEMORY_MAX_KIB, "{peak} KiB");
    // At the attacker's address a signed-in caller and a probe are served too; now and then one is asked to retry.
    assert!(share(&probes, 200) > 0.5 && share(&pages, 200) > 0.5, "{probes:?} {pages:?}");
    let log = target.server.process().stderr();
    let lines = log.matches("a limit of the port was reached").count();
    assert!((1..=40).contains(&lines), "{lines} lines");
}

/// Each made-up token is looked up in the database, where the lease is renewed too.
#[tokio::test(flavor = "multi_thread")]
async fn made_up_tokens_neither_make_a_server_unready_nor_fill_its_log() {
    let mut target = Target::start().await;
    let mut attack = Attack::new(&target.address, ATTACKER);
    attack.made_up_tokens(300);
    attack.wait_until_effective().await;
    let (mut probes, began_at) = (Vec::new(), Instant::now());
    while began_at.elapsed() < LENGTH {
        probes.push(target.get(GOOD, "/readyz").await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    attack.end().await;
    // The attack itself uses a core or two of the machine.
    assert!(share(&probes, 200) > 0.8, "{probes:?}");
    let stderr = target.server.process().stderr();
    for status in [401, 503] {
        let lines = stderr.lines().filter(|line| line.contains(&format!("status={status} elapsed"))).count();
        assert!(lines <= 40, "{lines} lines with status {status}");
    }
    assert!(stderr.contains("status=401 elapsed"), "the first ones are logged: {stderr}");
}

/// Several editors send lists of the maximum length, in which each job differs from the stored one.
#[tokio::test(flavor = "multi_thread")]
async fn long_lists_of_several_editors_are_compared_in_bounded_memory() {
    let mut target = Target::start().await;
    let api = target.server.api();
    let list = |text: &str| -> Vec<serde_json::Value> {
        let params = json!({"text": text.repeat(2_700)});
        let job = |number| json!({"name": format!("job-{number}"), "app": "siege", "handler": "h", "params": params});
        (0..5_000).map(job).collect()
    };
    for part in list("a").chunks(250) {
        api.post("/api/v1/jobs/apply", json!(part)).await.expect(200);
    }
    let (other, mut editors) = (json!(list("b")).to_string(), Vec::new());
    for number in 0..4 {
        let editor = json!({"kind": "api", "name": format!("editor-{number}"), "grants": [{"role": "editor"}]});
        let made = api.post("/api/v1/tokens", editor).await.expect(201);
        editors.push(made["token"].as_str().expect("a secret").to_owned());
    }
    let url = format!("{}/api/v1/jobs/apply?dry_run=true", target.server.url());
    let client = reqwest::Client::builder().no_proxy().timeout(LIMIT).build().expect("a client");
    let mut looks = tokio::task::JoinSet::new();
    for editor in &editors {
        let request = client.post(&url).bearer_auth(editor).header("content-type", "application/json");
        let request = request.body(other.clone()).send();
        looks.spawn(async move {
            let answer = request.await.expect("an answer");
            (answer.status().as_u16(), answer.bytes().await.map_or(0, |bytes| bytes.len()))
        });
    }
    let answers = looks.join_all().await;
    let peak = target.peak_kib();
    println!("{answers:?}; peak {peak} KiB");
    let found = answers.iter().filter(|(status, len)| *status == 200 && *len > 20_000_000).count();
    assert!(found > 0 && answers.iter().all(|(status, _)| matches!(status, 200 | 429 | 503)), "{answers:?}");
    assert!(peak < MEMORY_MAX_KIB, "{peak} KiB");
}

/// One viewer requests the largest answers, on as many connections as it may have, and reads them very slowly.
#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_of_large_answers_delay_no_other_caller() {
    let mut target = Target::start().await;
    let token = std::fs::read_to_string(target.server.token_file()).expect("a token");
    let mut stream = ExecutorStream::open(&target.address, GOOD, token.trim(), "good", &[]).await.expect("welcome");
    let params = json!({"text": "x".repeat(60_000)});
    let job = |number| json!({"name": format!("large-{number}"), "app": "siege", "handler": "none", "params": params});
    let api = target.server.api();
    for from in (0..200).step_by(20) {
        let list: serde_json::Value = (from..from + 20).map(job).collect();
        api.post("/api/v1/jobs/apply", list).await.expect(200);
    }
    let mut attack = Attack::new(&target.address, ATTACKER);
    attack.slow_readers(80, "/api/v1/jobs?limit=200", Some(&target.viewer));
    attack.slow_readers(40, "/api/v1/jobs/export", Some(&target.viewer));
    attack.wait_until_effective().await;
    let waits = good_callers(&target, &mut stream, LENGTH).await;
    wait_for_limits(&target, &["answer_size", "exports_per_caller"]).await;
    attack.end().await;
    let peak = target.peak_kib();
    println!("{waits:?}; peak {peak} KiB");
    assert!(peak < MEMORY_MAX_KIB, "{peak} KiB");
}

/// A schema with four times as many alternatives on each level, and parameters that are checked against all of them.
#[tokio::test(flavor = "multi_thread")]
async fn schema_bombs_of_one_executor_delay_no_other_caller() {
    let mut target = Target::start().await;
    let token = std::fs::read_to_string(target.server.token_file()).expect("a token");
    let mut stream = ExecutorStream::open(&target.address, GOOD, token.trim(), "good", &[]).await.expect("welcome");
    let bomb = json!({
        "$defs": {"node": {"anyOf": [
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}, "required": ["a", "x"]},
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}, "required": ["a", "y"]},
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}, "required": ["a", "z"]},
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}, "required": ["a", "w"]},
        ]}},
        "$ref": "#/$defs/node",
    });
    let nested = (0..18).fold(json!(1), |inner, _| json!({"a": inner}));
    let (address, api) = (target.address.clone(), target.server.api());
    let calm = good_callers(&target, &mut stream, CALM).await;
    let attack = async {
        // The server may refuse or accept the schema: the test is about the effect on other callers.
        let bomber =
            ExecutorStream::open(&address, ATTACKER, token.trim(), "bomber", &[("boom", &bomb.to_string())]).await;
        let job = json!({"name": "boom", "app": "siege", "handler": "boom", "params": nested});
        for number in 0..5 {
            let job = json!({"name": format!("boom-{number}"), "app": job["app"], "handler": "boom", "params": nested});
            let status = api.post("/api/v1/jobs", job).await.status;
            assert!(matches!(status, 201 | 422), "{status}");
        }
        drop(bomber);
    };
    let (waits, ()) = tokio::join!(good_callers(&target, &mut stream, LENGTH), attack);
    let peak = target.peak_kib();
    println!("{waits:?}; peak {peak} KiB");
    waits.check(&calm);
    assert!(peak < MEMORY_MAX_KIB, "{peak} KiB");
}

//! Executors that die, are paused, return and are cut off: each run ends as its job defines, and the checker finds
//! nothing.

use std::time::Duration;

use rondel_tests::check::{Rules, Start};
use rondel_tests::{Backend, ScratchDb, Server, scratch, wait_at_most, wait_until};
use tokio::time::Instant;

use super::fixture::{Chance, Journal, Worker, create_mixed_jobs, judge_all, print, server};
use super::proxy::{Cut, Proxy};

const JOB_COUNT: usize = 60;
/// After this silence an executor is lost; 30 s by default.
const LOST: Duration = Duration::from_secs(17);
const PATIENCE: [&str; 8] = ["--heartbeat", "1s", "--silence", "5s", "--lost-after", "17s", "--continue-max", "30s"];
/// The time within which a lost executor is given up. A server that was paused until it lost its lease, or for half
/// of its lease, begins this wait again, and then waits for as long as runs may continue in silence.
const GIVEN_UP: Duration = Duration::from_secs(17 + 30 + 13);
/// The limit if the executor restarts and proves its predecessor: the server need not wait until the predecessor is
/// lost.
const AT_ONCE: Duration = Duration::from_secs(15);

/// Two servers, one executor that the test harms, and one that it leaves alone.
struct Scene {
    journal: Journal,
    first: Server,
    second: Server,
    proxies: [Proxy; 2],
    victim: Worker,
    _other: Worker,
    chance: Chance,
}

impl Scene {
    async fn begin(db: &ScratchDb, data: bool) -> Self {
        let chance = Chance::new();
        let journal = Journal::new();
        let [first, second] = [server(db, &PATIENCE).await, server(db, &PATIENCE).await];
        create_mixed_jobs(&first.api(), JOB_COUNT, 100).await;
        let proxies = [Proxy::start(first.url()).await, Proxy::start(second.url()).await];
        let urls = proxies.iter().map(|proxy| proxy.url.clone()).collect();
        let folder = journal.folder().join("victim-data");
        let data = data.then_some(folder.as_path());
        let victim = Worker::start_at(&first, urls, "victim", &journal, data, &[]).await;
        let other = Worker::start(&[&first, &second], "other", &journal, None, &[]).await;
        for worker in [&victim, &other] {
            worker.wait_until_listed(&second.api()).await;
        }
        journal.wait_for_starts(2 * JOB_COUNT).await;
        Self { journal, first, second, proxies, victim, _other: other, chance }
    }

    /// The starts that the victim has not ended.
    fn in_hand(&self) -> Vec<Start> {
        let pid = i64::from(self.victim.process.id());
        self.journal.starts().into_iter().filter(|start| start.pid == pid && start.end.is_none()).collect()
    }

    /// Waits for a random moment at which the victim has a run.
    async fn busy_moment(&mut self) {
        tokio::time::sleep(self.chance.millis(1_200)).await;
        wait_until(LOST, "the victim is busy", async || if self.in_hand().is_empty() { Err(()) } else { Ok(()) }).await;
    }

    /// Waits until each of these runs has a verdict or another attempt, and prints how long that took.
    async fn settles(&self, runs: Vec<Start>, since: Instant, limit: Duration, what: &str) {
        let api = self.second.api();
        for start in &runs {
            let path = format!("/api/v1/runs/{}", start.run);
            wait_at_most(
                limit.saturating_sub(since.elapsed()),
                &format!("a run in hand is settled: {what}"),
                async || {
                    let run = api.get(&path).await.expect(200);
                    let is_settled = !run["finished_at"].is_null() || run["attempt"].as_i64() > Some(start.attempt);
                    if is_settled { Ok(()) } else { Err(run) }
                },
            )
            .await;
        }
        print(&format!("{what}: {} in hand, settled after {:.1} s", runs.len(), since.elapsed().as_secs_f32()));
    }

    async fn judge(self, what: &str) {
        self.journal.wait_for_starts(3 * JOB_COUNT).await;
        let report =
            judge_all(&self.first.api().recording(self.journal.folder()), &self.journal, Rules::default()).await;
        print(&format!("{what}: {report}"));
        report.assert_clean();
    }
}

#[tokio::test]
async fn a_killed_executor_that_comes_back_with_its_folder_is_settled_at_once() {
    let Some(db) = scratch(Backend::Postgres).await else { return };
    let mut scene = Scene::begin(&db, true).await;
    for _ in 0..3 {
        scene.busy_moment().await;
        let killed = Instant::now();
        scene.victim.kill(&scene.journal).await;
        let in_hand = scene.in_hand();
        scene.victim.restart(&[]);
        scene.settles(in_hand, killed, AT_ONCE, "killed, and back with its folder").await;
    }
    scene.judge("killed with a folder").await;
}

#[tokio::test]
async fn a_killed_executor_without_a_folder_is_given_up_when_it_was_silent_for_long() {
    let Some(db) = scratch(Backend::Postgres).await else { return };
    let mut scene = Scene::begin(&db, false).await;
    scene.busy_moment().await;
    let killed = Instant::now();
    scene.victim.kill(&scene.journal).await;
    let in_hand = scene.in_hand();
    // A new executor with the same name, but without a proof, is a second executor: it settles no run of the first.
    scene.victim.restart(&[]);
    scene.settles(in_hand, killed, GIVEN_UP, "killed without a folder").await;
    scene.judge("killed without a folder").await;
}

#[tokio::test]
async fn an_executor_that_sleeps_until_it_is_given_up_comes_back_too_late() {
    let Some(db) = scratch(Backend::Postgres).await else { return };
    let mut scene = Scene::begin(&db, false).await;
    scene.busy_moment().await;
    let asleep = Instant::now();
    scene.victim.pause(LOST + Duration::from_secs(4), &scene.journal).await;
    let in_hand = scene.in_hand();
    scene.settles(in_hand, asleep, GIVEN_UP, "asleep until it was given up").await;
    scene.judge("asleep").await;
}

#[tokio::test]
async fn a_cut_network_ends_as_it_should() {
    let Some(db) = scratch(Backend::Postgres).await else { return };
    let scene = Scene::begin(&db, false).await;
    for (name, cuts, seconds) in [
        ("one server cut off", [Cut::Everything, Cut::Nothing], 6),
        ("both servers cut off", [Cut::Everything, Cut::Everything], 18),
        ("the executor not heard", [Cut::ToServer, Cut::ToServer], 18),
        ("the servers not heard", [Cut::ToExecutor, Cut::ToExecutor], 18),
    ] {
        let cut_at = Instant::now();
        for (proxy, cut) in scene.proxies.iter().zip(cuts) {
            proxy.cut(cut);
        }
        tokio::time::sleep(Duration::from_secs(seconds) + Duration::from_millis(137)).await;
        scene.proxies.iter().for_each(|proxy| proxy.cut(Cut::Nothing));
        scene.journal.wait_for_starts(JOB_COUNT).await;
        print(&format!("{name}: mended after {:.1} s, and on it goes", cut_at.elapsed().as_secs_f32()));
    }
    scene.judge("cut networks").await;
}

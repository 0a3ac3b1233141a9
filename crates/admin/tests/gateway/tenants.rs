//! An executor with a token of app A attacks app B. It can neither register for B, nor receive B's runs, nor report
//! their results.

use std::time::Duration;

use rondel_admin::EngineConfig;
use rondel_admin::auth::Token;
use rondel_admin::jobs;
use rondel_core::access::{Grant, Role};
use rondel_core::{AppId, ExecutorId, JobSpec, NamespaceId, Run};
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::v1::server_message::Body as Down;
use rondel_store::access::{TokenKind, TokenRecord};
use rondel_store::{Catalog as _, Namespaces as _, Tokens as _};
use serde_json::json;
use tonic::Code;

use super::world::{LIMIT, Line, World, create, hello, request, runs, store, success_result};

const HERE: NamespaceId = NamespaceId::new(1);

/// The victim `b` of app `files`, which holds a run, and an app `billing` with its own token.
struct Stage {
    world: World,
    victim: Line,
    trigger: v1::Trigger,
    stranger: Token,
}

const VICTIM: i64 = 1;

impl Stage {
    async fn new() -> Self {
        let world = World::start().await;
        let now = world.engine.now();
        let billing = world.store.ensure_app(AppId::new(9), HERE, "billing", now).await.unwrap();
        let stranger = Token::generate_for(TokenKind::Executor);
        let record = stranger.record(world.engine.new_id(), TokenKind::Executor, now);
        let grants = vec![Grant { role: Role::Executor, namespace: Some(HERE), app: Some(billing.id) }];
        world
            .store
            .add_token(&TokenRecord { name: "stranger".to_owned(), declares: true, grants, ..record })
            .await
            .unwrap();
        let job = create(&world, json!({})).await;
        request(&world, &job).await;
        let mut victim = world.dial(Some(&world.token), hello("b", VICTIM)).await.unwrap();
        let trigger = victim.trigger().await;
        Self { world, victim, trigger, stranger }
    }

    async fn dial(&self, hello: v1::Hello) -> Result<Line, tonic::Status> {
        self.world.dial(Some(&self.stranger), v1::Hello { app: "billing".to_owned(), ..hello }).await
    }

    async fn run(&self) -> Run {
        let all = runs(&self.world).await;
        all.into_iter().find(|run| run.id.get() == self.trigger.run_id).unwrap()
    }

    /// Checks that the victim still holds the run in its first attempt, and that the victim's result is stored.
    async fn check_unharmed(mut self) {
        let run = self.run().await;
        assert!(!run.status.is_terminal() && run.attempt == 1, "{run:?}");
        self.victim.send(success_result(&self.trigger)).await;
        assert_eq!(self.victim.ack().await.kind(), v1::result_ack::Kind::Stored);
        let run = self.run().await;
        assert_eq!((run.attempt, run.executor.as_deref()), (1, Some("b")), "{run:?}");
        drop(self.victim);
        self.world.end().await;
    }
}

fn held_refs(trigger: &v1::Trigger) -> Vec<v1::RunRef> {
    vec![v1::RunRef { run_id: trigger.run_id, attempt: trigger.attempt, ..v1::RunRef::default() }]
}

/// Waits until everything sent before has been processed.
async fn round_trip(line: &mut Line) {
    line.send(Up::Heartbeat(v1::Heartbeat { sequence: 77, ..v1::Heartbeat::default() })).await;
    line.receive(|body| match body {
        Down::HeartbeatReply(reply) if reply.sequence == 77 => Some(()),
        _ => None,
    })
    .await;
}

/// An open stream does not outlive the token that opened it.
#[tokio::test]
async fn a_token_that_is_revoked_ends_the_streams_that_it_opened() {
    let config = EngineConfig { token_recheck: Duration::from_millis(50), ..EngineConfig::default() };
    let world = World::start_on(store(), config).await;
    let now = world.engine.now();
    let token = Token::generate_for(TokenKind::Executor);
    let record = token.record(world.engine.new_id(), TokenKind::Executor, now);
    let grants = vec![Grant { role: Role::Executor, namespace: Some(HERE), app: Some(AppId::new(7)) }];
    let record = TokenRecord { name: "stolen".to_owned(), grants, ..record };
    world.store.add_token(&record).await.unwrap();
    let mut line = world.dial(Some(&token), hello("b", VICTIM)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    round_trip(&mut line).await;
    assert!(world.store.revoke_token(record.id, world.engine.now()).await.unwrap());
    line.wait_for_end().await;
    assert_eq!(world.dial(Some(&token), hello("b", 2)).await.err().unwrap().code(), Code::Unauthenticated);
    world.end().await;
}

#[tokio::test]
async fn an_executor_of_app_a_cannot_register_for_app_b() {
    let stage = Stage::new().await;
    let as_other = stage.world.dial(Some(&stage.stranger), hello("b", 2)).await.err().unwrap();
    assert_eq!(as_other.code(), Code::PermissionDenied, "{as_other}");
    // A second hello on an open stream is ignored as well.
    let mut line = stage.dial(hello("x", 3)).await.unwrap();
    line.send(Up::Hello(hello("x", 3))).await;
    round_trip(&mut line).await;
    let online = stage.world.engine.online_executors();
    let of_files = online.iter().filter(|online| online.app_name == "files").map(|online| online.name.as_str());
    assert_eq!(of_files.collect::<Vec<_>>(), ["b"]);
    stage.check_unharmed().await;
}

#[tokio::test]
async fn an_executor_of_app_a_cannot_use_the_incarnation_of_an_executor_of_app_b() {
    let mut stage = Stage::new().await;
    let refused = stage.dial(hello("b", VICTIM)).await.err().unwrap();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    // Nor is it admitted while that executor is disconnected for a moment.
    stage.victim.hang_up();
    let gone = async {
        while stage.world.engine.online_executors().iter().any(|online| online.id == ExecutorId::new(VICTIM)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, gone).await.unwrap();
    let refused = stage.dial(hello("b", VICTIM)).await.err().unwrap();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    let back = v1::Hello { held: held_refs(&stage.trigger), ..hello("b", VICTIM) };
    stage.victim = stage.world.dial(Some(&stage.world.token), back).await.unwrap();
    stage.check_unharmed().await;
}

#[tokio::test]
async fn an_executor_of_app_a_cannot_receive_runs_of_app_b() {
    let mut stage = Stage::new().await;
    let mut line = stage.dial(hello("b", 2)).await.unwrap();
    // The victim's app has one more run, and the victim takes no more runs. Only the stranger has a free slot.
    stage.victim.send(Up::Draining(v1::Draining::default())).await;
    round_trip(&mut stage.victim).await;
    let job = create(&stage.world, json!({"name": "k"})).await;
    request(&stage.world, &job).await;
    let got = tokio::time::timeout(Duration::from_secs(2), line.trigger()).await;
    assert!(got.is_err(), "{got:?}");
    stage.check_unharmed().await;
}

#[tokio::test]
async fn an_executor_of_app_a_cannot_inherit_runs_of_app_b_by_naming_a_predecessor() {
    let stage = Stage::new().await;
    for (incarnation, finished) in [(2, Vec::new()), (3, held_refs(&stage.trigger))] {
        let heir = v1::Hello { predecessor: VICTIM, finished, ..hello("b", incarnation) };
        let mut line = stage.dial(heir).await.unwrap();
        round_trip(&mut line).await;
        line.send(success_result(&stage.trigger)).await;
        assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::NoSuchRun);
    }
    stage.check_unharmed().await;
}

fn declaring_hello(incarnation: i64, job: &serde_json::Value) -> v1::Hello {
    let declared = vec![v1::DeclaredJob { spec_json: job.to_string() }];
    v1::Hello { declared, ..hello("x", incarnation) }
}

/// The problem with the declared job, once the server has checked it.
async fn problem(line: &mut Line) -> String {
    line.receive(|body| match body {
        Down::DeclarationProblems(found) => found.problems.first().map(|problem| problem.message.clone()),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn code_of_app_a_cannot_change_a_job_that_was_moved_to_app_b() {
    let stage = Stage::new().await;
    let line = stage.dial(declaring_hello(2, &json!({"name": "moved", "handler": "h"}))).await.unwrap();
    let world = &stage.world;
    let declared = async {
        loop {
            if let Some(record) =
                world.store.job(HERE, "moved").await.unwrap().filter(|record| record.declared.is_some())
            {
                break record;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let record = tokio::time::timeout(LIMIT, declared).await.unwrap();
    drop(line);
    let spec = JobSpec { app: "files".to_owned(), ..record.spec.clone() };
    jobs::change(&world.engine, &record, spec, None, "root").await.unwrap();
    let mut line = stage.dial(declaring_hello(3, &json!({"name": "moved", "handler": "evil"}))).await.unwrap();
    assert_eq!(problem(&mut line).await, "a job of another app has this name");
    assert_eq!(world.store.job(HERE, "moved").await.unwrap().unwrap().spec.handler, "h");
    stage.check_unharmed().await;
}

/// Otherwise, its job would receive the results of the other app's jobs, and reveal when they run.
#[tokio::test]
async fn code_of_app_a_cannot_follow_jobs_of_app_b() {
    let stage = Stage::new().await;
    let mut messages = Vec::new();
    for (incarnation, parent) in [(2, "j"), (3, "nosuch")] {
        let spy = json!({"name": "spy", "handler": "h", "schedule": {"after": [parent]}});
        let mut line = stage.dial(declaring_hello(incarnation, &spy)).await.unwrap();
        messages.push(problem(&mut line).await.replace(&format!("{parent:?}"), "\"#\""));
    }
    assert_eq!(messages[0], messages[1], "existing and missing jobs get the same message");
    assert!(messages[0].starts_with("there is no job \"#\" in app \"billing\""), "{}", messages[0]);
    assert!(stage.world.store.job(HERE, "spy").await.unwrap().is_none());
    stage.check_unharmed().await;
}

#[tokio::test]
async fn an_executor_of_app_a_cannot_report_results_of_app_b_under_the_same_name() {
    let stage = Stage::new().await;
    let mut line = stage.dial(hello("b", 2)).await.unwrap();
    line.send(success_result(&stage.trigger)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::NoSuchRun);
    stage.check_unharmed().await;
}

#[tokio::test]
async fn an_executor_of_app_a_cannot_refuse_log_or_report_progress_of_runs_of_app_b() {
    let stage = Stage::new().await;
    let mut line = stage.dial(hello("b", 2)).await.unwrap();
    let reply = |kind: v1::reply::Kind| v1::Reply {
        kind: kind.into(),
        run_id: stage.trigger.run_id,
        attempt: stage.trigger.attempt,
        done: 9,
        total: 9,
        ..v1::Reply::default()
    };
    use v1::reply::Kind::{Progress, Refused, Started};
    line.send(Up::Replies(v1::Replies { replies: [Refused, Started, Progress].map(reply).to_vec() })).await;
    let text = v1::LogLine { text: "forged".to_owned(), ..v1::LogLine::default() };
    let chunk = v1::LogChunk {
        run_id: stage.trigger.run_id,
        attempt: stage.trigger.attempt,
        lines: vec![text],
        ..v1::LogChunk::default()
    };
    line.send(Up::Logs(v1::Logs { chunks: vec![chunk] })).await;
    line.receive(|body| matches!(body, Down::LogAcks(_)).then_some(())).await;
    round_trip(&mut line).await;
    let run = stage.run().await;
    assert_eq!(stage.world.engine.progress(&run), None);
    let page = rondel_store::Logs::log_chunks(stage.world.store.as_ref(), run.id, 1, -1, 10).await.unwrap();
    assert!(page.is_empty(), "{page:?}");
    stage.check_unharmed().await;
}

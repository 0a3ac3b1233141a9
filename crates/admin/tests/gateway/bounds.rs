//! Limits on one message: a message at the limit is accepted, and a larger one ends the stream with the reason.

use std::time::Duration;

use rondel_admin::EngineConfig;
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::{
    ATTEMPT_COUNT_MAX, ITEM_COUNT_MAX, LINE_COUNT_MAX, MESSAGE_BYTES_MAX, PROBED_COUNT_MAX, encoded_len,
};
use tonic::Code;

use super::world::{LIMIT, World, hello, store};

async fn check(world: &World, field: &str, max: usize, body: impl Fn(usize) -> Up) {
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    line.send(body(max)).await;
    line.wait_until_read(7).await;
    line.send(body(max + 1)).await;
    let status = line.refusal().await;
    assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status}");
    let found = format!("{field}: there are {}; at most {max} are accepted", max + 1);
    assert_eq!(status.message(), found);
}

fn chunks(count: usize, lines: usize) -> v1::Logs {
    let lines = vec![v1::LogLine::default(); lines];
    v1::Logs { chunks: vec![v1::LogChunk { lines, ..v1::LogChunk::default() }; count] }
}

#[tokio::test]
async fn a_message_with_too_many_parts_ends_its_stream_with_the_reason() {
    let world = World::start().await;
    check(&world, "replies", ITEM_COUNT_MAX, |n| Up::Replies(v1::Replies { replies: vec![v1::Reply::default(); n] }))
        .await;
    check(&world, "results", ITEM_COUNT_MAX, |n| Up::Results(v1::Results { results: vec![v1::Result::default(); n] }))
        .await;
    check(&world, "chunks", ITEM_COUNT_MAX, |n| Up::Logs(chunks(n, 0))).await;
    check(&world, "lines", LINE_COUNT_MAX, |n| Up::Logs(chunks(1, n))).await;
    let probed = |n| Up::ProbeReplies(v1::ProbeReplies { probe_id: 1, free_job_ids: vec![1; n] });
    check(&world, "free_job_ids", PROBED_COUNT_MAX, probed).await;
    let refs = |n| vec![v1::RunRef::default(); n];
    check(&world, "held and finished", ATTEMPT_COUNT_MAX, |n| {
        Up::FenceReply(v1::FenceReply { held: refs(n - 1), finished: refs(1), ..v1::FenceReply::default() })
    })
    .await;
    world.end().await;
}

#[tokio::test]
async fn a_message_that_is_too_large_ends_its_stream_with_the_reason() {
    let world = World::start().await;
    let body = |bytes: usize| {
        let result = v1::Result { result: "x".repeat(bytes), ..v1::Result::default() };
        Up::Results(v1::Results { results: vec![result] })
    };
    let whole = |bytes| encoded_len(&v1::ExecutorMessage { body: Some(body(bytes)) });
    let beside = whole(MESSAGE_BYTES_MAX - 100) - (MESSAGE_BYTES_MAX - 100);
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    line.send(body(MESSAGE_BYTES_MAX - beside)).await;
    line.wait_until_read(7).await;
    line.send(body(MESSAGE_BYTES_MAX - beside + 1)).await;
    let status = line.refusal().await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("found 2097153 bytes, the limit is: 2097152 bytes"), "{status}");
    world.end().await;
}

#[tokio::test]
async fn a_hello_with_too_long_lists_is_refused() {
    let world = World::start().await;
    let refs = |n| vec![v1::RunRef::default(); n];
    let infos = |n| vec![v1::HandlerInfo::default(); n];
    for (good, bad, message) in [
        (
            v1::Hello { held: refs(ATTEMPT_COUNT_MAX - 2), finished: refs(2), ..hello("a", 1) },
            v1::Hello { held: refs(ATTEMPT_COUNT_MAX - 2), finished: refs(3), ..hello("a", 2) },
            "held and finished: there are 131073; at most 131072 are accepted",
        ),
        (
            v1::Hello { handler_infos: infos(1_000), ..hello("b", 3) },
            v1::Hello { handler_infos: infos(1_001), ..hello("b", 4) },
            "handler_infos: there are 1001; at most 1000 are accepted",
        ),
    ] {
        world.dial(Some(&world.token), good).await.unwrap().wait_until_read(1).await;
        let status = world.dial(Some(&world.token), bad).await.map(drop).unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, message));
    }
    world.end().await;
}

#[tokio::test]
async fn a_hello_that_is_too_large_is_refused_with_the_same_message() {
    let world = World::start().await;
    let large = v1::Hello { sdk_version: "x".repeat(MESSAGE_BYTES_MAX), ..hello("a", 1) };
    let status = world.dial(Some(&world.token), large).await.err().unwrap();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().starts_with("message: "), "{status}");
    assert!(status.message().contains(&MESSAGE_BYTES_MAX.to_string()), "{status}");
    assert!(world.dial(Some(&world.token), hello("a", 2)).await.is_ok());
    world.end().await;
}

#[tokio::test]
async fn streams_of_executors_with_one_token_are_limited() {
    let config = EngineConfig { executor_streams_per_token: 2, ..EngineConfig::default() };
    let world = World::start_on(store(), config).await;
    let first = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    let _second = world.dial(Some(&world.token), hello("b", 2)).await.unwrap();
    let status = world.dial(Some(&world.token), hello("c", 3)).await.err().unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().contains("executor_streams_per_token"), "{status}");
    let metrics = world.engine.metrics().await.unwrap();
    assert!(metrics.contains("limit=\"executor_streams_per_token\"} 1"), "{metrics}");
    drop(first);
    let end = tokio::time::Instant::now() + LIMIT;
    while let Err(status) = world.dial(Some(&world.token), hello("c", 3)).await {
        assert!(tokio::time::Instant::now() < end, "an ended stream frees its place: {status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    world.end().await;
}

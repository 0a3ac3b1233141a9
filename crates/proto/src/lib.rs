//! The gRPC protocol between servers and executors, generated from `proto/`.
//!
//! The generated file is committed, so that users of the SDK need neither `protoc` nor the `.proto` files; the test
//! `generated` generates it again and compares. To change the protocol: edit `proto/`, then run `RONDEL_REGENERATE=1
//! cargo test -p rondel-proto`.

mod refusal;

pub use refusal::Refusal;

/// The version of the protocol that this crate implements: executors send it in their hello, servers in their welcome.
///
/// It rises when a side must not talk to a peer that lacks a feature. Since version 1, executors answer a fence: the
/// message with which a server announces that a lease has ended.
pub const PROTOCOL: u32 = 1;

/// The largest message that a server accepts from an executor, in encoded bytes.
pub const MESSAGE_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The largest number of replies, of results, of chunks of logs, or of pump reports with their items in one message of
/// an executor.
pub const ITEM_COUNT_MAX: usize = 1_000;
/// The largest number of lines in one message with logs.
pub const LINE_COUNT_MAX: usize = 50_000;
/// The largest chunk of a log, in encoded bytes.
pub const CHUNK_BYTES_MAX: usize = 256 * 1024;
/// The largest number of attempts that one message lists: the attempts that the executor holds plus the attempts that it has
/// finished.
pub const ATTEMPT_COUNT_MAX: usize = 131_072;
/// The largest number of jobs that an executor names in one answer to a probe.
pub const PROBED_COUNT_MAX: usize = 1_000;

/// The encoded size of a message or a part of it, in bytes.
pub fn encoded_len(message: &impl prost::Message) -> usize {
    message.encoded_len()
}

/// Version 1 of the protocol.
#[expect(
    clippy::doc_markdown,
    clippy::large_enum_variant,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    unused_qualifications,
    reason = "generated code"
)]
pub mod v1 {
    include!("generated/rondel.v1.rs");
}

//! The gRPC protocol between servers and executors, generated from `proto/`.
//!
//! The generated file is committed, so that users of the SDK need neither `protoc` nor the `.proto` files;
//! the test `generated` makes it anew and compares. To change the protocol: edit `proto/`, then run
//! `RONDEL_REGENERATE=1 cargo test -p rondel-proto`.

/// The version of the protocol that this crate speaks: executors send it in their hello, servers in their welcome.
///
/// It rises when one side must not talk to another that does not know something: version 1 answers fences.
pub const PROTOCOL: u32 = 1;

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

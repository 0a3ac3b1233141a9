//! Records that several checks store.

use rondel_core::{AppId, ExecutorId, Timestamp};

use super::{DEFAULT, name, next_id};
use crate::cluster::ExecutorRecord;

pub(super) fn executor(app: AppId, first_seen_at: Timestamp) -> ExecutorRecord {
    ExecutorRecord {
        id: ExecutorId::new(next_id()),
        namespace: DEFAULT,
        app,
        name: name("executor"),
        predecessor: None,
        sdk_version: "0.2.0".to_owned(),
        labels: "{}".to_owned(),
        weight: 1,
        slots: 1,
        handlers: "[]".to_owned(),
        secret_hash: None,
        first_seen_at,
        last_seen_at: first_seen_at,
    }
}

//! The rows of scripts in memory.

use std::collections::BTreeMap;

use rondel_core::{NamespaceId, ScriptId, Timestamp};

use crate::scripts::{ScriptRecord, ScriptVersion};

pub(super) struct StoredScript {
    pub(super) id: ScriptId,
    pub(super) language: String,
    pub(super) created_at: Timestamp,
    /// Each version with its source.
    pub(super) versions: BTreeMap<i64, (ScriptVersion, String)>,
}

impl StoredScript {
    pub(super) fn newest_version(&self) -> i64 {
        self.versions.keys().next_back().copied().unwrap_or(0)
    }

    pub(super) fn record(&self, (namespace, name): (NamespaceId, &str)) -> Option<ScriptRecord> {
        let (newest_version, _) = self.versions.values().next_back()?;
        Some(ScriptRecord {
            id: self.id,
            namespace,
            name: name.to_owned(),
            language: self.language.clone(),
            created_at: self.created_at,
            newest: newest_version.clone(),
        })
    }
}

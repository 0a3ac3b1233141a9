//! The handlers of the program, and the jobs declared in its code.

use std::collections::BTreeMap;

use rondel_proto::v1;

use crate::handler::JobHandler;

/// The longest schema sent to servers, in bytes.
const SCHEMA_BYTES_MAX: usize = 64 * 1024;

pub(crate) struct Catalog {
    pub(crate) handlers: BTreeMap<String, JobHandler>,
    pub(crate) declared_jobs: Vec<v1::DeclaredJob>,
}

impl Catalog {
    /// The schemas of the handlers' parameters. A schema that is too long is left out: servers then do not check the
    /// parameters of that handler, and a run with wrong parameters fails only when the handler reads them.
    pub(crate) fn handler_infos(&self) -> Vec<v1::HandlerInfo> {
        let schema = |handler: &JobHandler| handler.params_schema().map(|schema| schema.to_string());
        let infos = self.handlers.iter().filter_map(|(name, handler)| Some((name, schema(handler)?)));
        let infos = infos.filter(|(_, schema)| schema.len() <= SCHEMA_BYTES_MAX);
        infos.map(|(name, params_schema)| v1::HandlerInfo { name: name.clone(), params_schema }).collect()
    }
}

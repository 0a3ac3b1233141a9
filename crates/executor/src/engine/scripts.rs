//! Sends the requests with which runs ask servers for scripts.

use std::sync::Arc;

use super::Engine;
use crate::table::{LinkItem, TableLink as _};

pub(super) struct ScriptLoop {
    engine: Arc<Engine>,
}

impl ScriptLoop {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    pub(super) async fn run(self) {
        let setup = &self.engine.setup;
        loop {
            tokio::select! {
                () = setup.lifecycle.hard.cancelled() => return,
                () = setup.script_requests.wait_until_ready() => self.engine.send_script_requests(),
            }
        }
    }
}

impl Engine {
    /// Sends each request to one server. Without a connected server the request is dropped: its run asks again.
    fn send_script_requests(&self) {
        let requests = self.setup.script_requests.take_unsent();
        let table = self.table();
        let link_count = table.outbox.links().count();
        for (turn_number, request) in requests {
            if let Some(link) = turn_number.checked_rem(link_count).and_then(|index| table.outbox.links().nth(index)) {
                link.push(LinkItem::Script(request));
            }
        }
    }
}

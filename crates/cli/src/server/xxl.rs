//! The bridge to executors of XXL-JOB, as endpoints of the port.

use std::pin::Pin;

use http::{HeaderName, Method};
use rondel_web::{Mounted, MountedAnswer, MountedCall};
use rondel_xxl::{ApiCall, Bridge};

const TOKEN_HEADER: HeaderName = HeaderName::from_static("xxl-job-access-token");

/// The endpoints that executors of XXL-JOB call.
#[derive(Clone, Debug)]
pub(super) struct XxlEndpoints(pub(super) Bridge);

impl Mounted for XxlEndpoints {
    fn paths(&self) -> Vec<String> {
        self.0.paths()
    }

    fn names(&self) -> &'static [&'static str] {
        &["registry", "registryRemove", "callback"]
    }

    fn not_served(&self, path: &str) -> MountedAnswer {
        let answer = self.0.answer_console_call(path);
        (answer.status, answer.body)
    }

    fn call(&self, call: MountedCall) -> Pin<Box<dyn Future<Output = MountedAnswer> + Send + '_>> {
        let api_call = ApiCall {
            method: call.name.clone(),
            is_post: call.method == Method::POST,
            token: call.header(&TOKEN_HEADER).map(str::to_owned),
            client: call.client,
            len: call.len,
            on_authenticated: call.on_authenticated.clone(),
            body: call.into_body(),
        };
        Box::pin(async move {
            let answer = self.0.call(api_call).await;
            (answer.status, answer.body)
        })
    }
}

//! The fields of a submitted form.

use axum::extract::{Form, FromRequest, Request};
use http::StatusCode;

use crate::problem::{Code, Problem};
use crate::state::Web;

/// Names and values. If a name occurs more than once, the last value counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    /// The trimmed value of a field; empty if it was not sent.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.iter().rfind(|(key, _)| key == name).map_or("", |(_, value)| value.trim())
    }

    /// The trimmed value of a field; `None` if it was not sent.
    pub(crate) fn get_if_sent(&self, name: &str) -> Option<&str> {
        self.0.iter().rfind(|(key, _)| key == name).map(|(_, value)| value.trim())
    }

    /// The value of a field without trimming: a password may begin with a blank.
    pub(crate) fn raw(&self, name: &str) -> &str {
        self.0.iter().rfind(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// The fields whose names have this prefix, in the order in which they were sent.
    pub(super) fn with_prefix(&self, prefix: &str) -> impl Iterator<Item = (&str, &str)> {
        let fields = self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        fields.filter(move |(key, _)| key.starts_with(prefix))
    }
}

/// Browsers send each line break as CR LF; this replaces them by LF.
pub(super) fn with_line_feeds(text: &str) -> String {
    text.replace("\r\n", "\n")
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Fields {
    fn from(pairs: [(&str, &str); N]) -> Self {
        Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec())
    }
}

impl FromRequest<Web> for Fields {
    type Rejection = Problem;

    async fn from_request(request: Request, web: &Web) -> Result<Self, Problem> {
        match Form::<Vec<(String, String)>>::from_request(request, web).await {
            Ok(Form(pairs)) => Ok(Self(pairs)),
            Err(rejection) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                let len_max = web.config.body_len_max;
                Err(Problem::new(Code::BodyTooLarge, format!("a form has at most {len_max} bytes")))
            }
            Err(rejection) => Err(Problem::new(Code::InvalidBody, rejection.body_text())),
        }
    }
}

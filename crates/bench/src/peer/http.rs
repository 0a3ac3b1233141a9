//! Requests to an admin server, and its answers.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, COOKIE, HeaderMap, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde_json::Value;

use crate::BenchError;

const TIMEOUT: Duration = Duration::from_secs(30);
/// How many characters of an answer an error quotes.
const QUOTE_LEN: usize = 200;

/// A client with the cookie of a sign-in.
pub(crate) struct Session {
    client: Client,
    cookie: String,
}

impl Session {
    pub(crate) fn new() -> Result<Self, BenchError> {
        rustls::crypto::ring::default_provider().install_default().ok();
        // Redirects are not followed: they lead to the sign-in page, which is not an answer.
        let client = Client::builder().no_proxy().redirect(Policy::none()).timeout(TIMEOUT).build();
        let client = client.map_err(|error| BenchError::failed(format!("no client for HTTP: {error}")))?;
        Ok(Self { client, cookie: String::new() })
    }

    /// Sends this cookie with each further request.
    pub(crate) fn with_cookie(self, cookie: String) -> Self {
        Self { cookie, ..self }
    }

    pub(crate) async fn get(&self, url: &str, fields: &[(&str, &str)]) -> Result<Answer, BenchError> {
        let full_url = if fields.is_empty() { url.to_owned() } else { format!("{url}?{}", form(fields)) };
        self.send(url, self.client.get(full_url)).await
    }

    pub(crate) async fn post_form(&self, url: &str, fields: &[(&str, &str)]) -> Result<Answer, BenchError> {
        let request = self.client.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        self.send(url, request.body(form(fields))).await
    }

    pub(crate) async fn post_json(&self, url: &str, body: &Value) -> Result<Answer, BenchError> {
        self.send(url, self.client.post(url).json(body)).await
    }

    /// Sends JSON with one more header.
    pub(crate) async fn post_json_with_header(
        &self,
        url: &str,
        header: (&'static str, &str),
        body: &Value,
    ) -> Result<Answer, BenchError> {
        self.send(url, self.client.post(url).header(header.0, header.1).json(body)).await
    }

    async fn send(&self, url: &str, request: RequestBuilder) -> Result<Answer, BenchError> {
        let unreachable_error =
            |source: reqwest::Error| BenchError::Unreachable { url: url.to_owned(), source: source.without_url() };
        let request = if self.cookie.is_empty() { request } else { request.header(COOKIE, &self.cookie) };
        let response = request.send().await.map_err(unreachable_error)?;
        let (status, cookie) = (response.status(), cookies(response.headers()));
        let text = response.text().await.map_err(unreachable_error)?;
        Ok(Answer { url: url.to_owned(), status, cookie, text })
    }
}

/// An answer with any status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) url: String,
    pub(crate) status: StatusCode,
    /// The cookies that it sets, as a client sends them back.
    pub(crate) cookie: String,
    pub(crate) text: String,
}

impl Answer {
    /// Its body, if that is JSON.
    pub(crate) fn json(&self) -> Option<Value> {
        serde_json::from_str(&self.text).ok()
    }

    /// Describes the answer, for use inside a sentence.
    pub(crate) fn describe(&self) -> String {
        let text = self.text.split_whitespace().collect::<Vec<_>>().join(" ");
        let quote: String = text.chars().take(QUOTE_LEN).collect();
        let ellipsis = if quote.len() < text.len() { "…" } else { "" };
        let body = if quote.is_empty() { "an empty body".to_owned() } else { format!("{quote}{ellipsis}") };
        format!("{} answered {} with {body}", self.url, self.status.as_u16())
    }

    /// The error for an answer that does not follow the protocol.
    pub(crate) fn unexpected(&self) -> BenchError {
        BenchError::failed(format!("--peer-url: {}", self.describe()))
    }
}

/// Encodes fields for the body of a form or the query of a URL.
fn form(fields: &[(&str, &str)]) -> String {
    let url = Url::parse_with_params("http://form/", fields).ok();
    url.and_then(|url| url.query().map(str::to_owned)).unwrap_or_default()
}

fn cookies(headers: &HeaderMap) -> String {
    let set_cookies = headers.get_all(SET_COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = set_cookies.filter_map(|text| text.split(';').next()).map(str::trim);
    // A server deletes a cookie by setting an empty value.
    let set_pairs = pairs.filter(|pair| pair.split_once('=').is_some_and(|(_, value)| !matches!(value, "" | "\"\"")));
    set_pairs.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn forms_are_escaped() {
        assert_eq!(form(&[("cron", "* * * * * ?"), ("ids[]", "7")]), "cron=*+*+*+*+*+%3F&ids%5B%5D=7");
        assert_eq!(form(&[]), "");
    }

    #[test]
    fn cookies_are_kept_without_their_attributes() {
        let mut headers = HeaderMap::new();
        for text in ["ratch_job_token=abc; HttpOnly; Path=/", "ratch_captcha_token=; Path=/", "b=2"] {
            headers.append(SET_COOKIE, HeaderValue::from_static(text));
        }
        assert_eq!(cookies(&headers), "ratch_job_token=abc; b=2");
    }

    #[test]
    fn an_answer_is_quoted_in_one_line() {
        let answer = |text: String| {
            let (url, cookie) = ("http://peer/login".to_owned(), String::new());
            Answer { url, status: StatusCode::NOT_FOUND, cookie, text }.describe()
        };
        assert_eq!(answer("<b>\n no  page".to_owned()), "http://peer/login answered 404 with <b> no page");
        assert_eq!(answer(String::new()), "http://peer/login answered 404 with an empty body");
        assert!(answer("ä".repeat(900)).ends_with("ä…"));
    }
}

//! A browser without JavaScript, signed in or not.

use axum::body::Body;
use axum::http::Request;

use crate::harness::{Answer, Server};

pub(crate) struct Visitor<'s> {
    pub(crate) server: &'s Server,
    pub(crate) cookie: String,
    pub(crate) language: &'static str,
}

impl<'s> Visitor<'s> {
    pub(crate) fn new(server: &'s Server) -> Self {
        Self { server, cookie: String::new(), language: "en" }
    }

    pub(crate) async fn signed_in(server: &'s Server) -> Self {
        let mut visitor = Self::new(server);
        let link = server.bare("POST", "/api/v1/sign-in-links").await.expect(201);
        let token = link["path"].as_str().unwrap().strip_prefix("/sign-in?token=").unwrap().to_owned();
        let answer = visitor.post("/sign-in", &format!("token={token}&next=/jobs")).await;
        assert_eq!((answer.status.as_u16(), &answer.headers["location"]), (303, &"/jobs".parse().unwrap()));
        let cookie = answer.headers["set-cookie"].to_str().unwrap();
        assert!(cookie.ends_with("; HttpOnly; SameSite=Lax") && cookie.contains("; Path=/;"), "{cookie}");
        visitor.cookie = cookie.split(';').next().unwrap().to_owned();
        visitor
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> http::request::Builder {
        let request = Request::builder().method(method).uri(path).header("accept", "text/html").header("host", "here");
        request.header("cookie", &self.cookie).header("accept-language", self.language)
    }

    /// Requests a page. Like a browser, it follows a redirect to the URL with the visitor's namespace. The namespace is then removed from
    /// the URLs in the page, so that tests can compare them with those in the templates.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        let answer = self.exactly(path).await;
        let led = answer.headers.get("location").and_then(|to| to.to_str().ok()).map(str::to_owned);
        match led.as_deref().and_then(|led| Some((led, led.strip_suffix(path)?.strip_prefix("/n/")?))) {
            Some((led, namespace)) if answer.status == 303 => {
                let mut answer = self.exactly(led).await;
                if answer.headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"text/html")) {
                    answer.bytes = answer.text().replace(&format!("\"/n/{namespace}/"), "\"/").into_bytes();
                }
                answer
            }
            _ => answer,
        }
    }

    /// The answer to exactly this URL, without following a redirect.
    pub(crate) async fn exactly(&self, path: &str) -> Answer {
        self.server.send(self.request("GET", path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, form: &str) -> Answer {
        let request = self.request("POST", path).header("content-type", "application/x-www-form-urlencoded");
        self.server.send(request.header("origin", "http://here").body(Body::from(form.to_owned())).unwrap()).await
    }
}

#[track_caller]
pub(crate) fn location(answer: &Answer) -> String {
    assert_eq!(answer.status, 303, "{}", answer.text());
    answer.headers["location"].to_str().unwrap().to_owned()
}

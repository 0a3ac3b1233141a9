//! The REST API as the client commands use it: a path in, the body as it stands out.

mod answer;
mod body;
mod lines;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use reqwest::{Method, RequestBuilder, Url};
use rondel_admin::auth::Token;

pub(crate) use body::{Body, fields, text_of, time_of};
pub(crate) use lines::Lines;

use crate::config::DATA_DIR;
use crate::exit::{Exit, Failure, chain};
use crate::token_file;

/// Where the help lists these flags.
const HEADING: &str = "Server";
const JSON: &str = "application/json";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Which server, and as whom.
#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    /// The server's URL
    #[arg(long, global = true, env = "RONDEL_SERVER", default_value = "http://127.0.0.1:8080", value_name = "URL", help_heading = HEADING)]
    server: String,
    /// The file with the API token. Without it: the environment's `RONDEL_TOKEN`, the file named by `RONDEL_TOKEN_FILE`,
    /// or, for a server on this machine, ./rondel-data/admin.token
    #[arg(long, global = true, value_name = "FILE", help_heading = HEADING)]
    token_file: Option<PathBuf>,
    /// The namespace; else the token's own, else default
    #[arg(long, global = true, env = "RONDEL_NAMESPACE", value_name = "NAME", help_heading = HEADING)]
    namespace: Option<String>,
}

/// A server's API, as one token sees it.
#[derive(Debug)]
pub(crate) struct Client {
    base: Url,
    token: Option<Token>,
    namespace: Option<String>,
    http: reqwest::Client,
}

impl ClientArgs {
    /// The client that these flags describe. Nothing is sent yet.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let base =
            Url::parse(&self.server).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let Some(base) = base else {
            return Err(Failure::refused(format!(
                "--server: {:?} is not a URL such as http://127.0.0.1:8080",
                self.server
            )));
        };
        // Another part of the program may have set one, which is just as good.
        rustls::crypto::ring::default_provider().install_default().ok();
        let builder = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT);
        let builder = builder.user_agent(concat!("rondel/", env!("CARGO_PKG_VERSION")));
        // A proxy cannot reach what is on this machine.
        let builder = if is_here(&base) { builder.no_proxy() } else { builder };
        let http = builder.build().map_err(|error| Failure::of("cannot make an HTTP client", &error))?;
        Ok(Client { token: self.token(&base)?, base, namespace: self.namespace.clone(), http })
    }

    fn token(&self, base: &Url) -> Result<Option<Token>, Failure> {
        if let Some(path) = &self.token_file {
            return token_file::read_existing(path).map(Some);
        }
        if let Some(token) = token_file::from_environment()? {
            return Ok(Some(token));
        }
        if let Some(path) = token_file::path_from_environment() {
            return token_file::read_existing(&path).map(Some);
        }
        // The token of `rondel dev` is nothing that other machines should see.
        if is_here(base) { token_file::read(&Path::new(DATA_DIR).join("admin.token")) } else { Ok(None) }
    }
}

fn is_here(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()),
        None => false,
    }
}

impl Client {
    /// GET. `path` is what follows `/api/v1`, in segments, so that no name can break out of it.
    pub(crate) async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Body, Failure> {
        self.send(Method::GET, path, query, None).await
    }

    /// POST with a JSON text.
    pub(crate) async fn post(&self, path: &[&str], body: &str) -> Result<Body, Failure> {
        self.send(Method::POST, path, &[], Some((JSON, body.to_owned()))).await
    }

    /// PUT with a JSON text.
    pub(crate) async fn put(&self, path: &[&str], body: &str) -> Result<Body, Failure> {
        self.send(Method::PUT, path, &[], Some((JSON, body.to_owned()))).await
    }

    /// POST with a file's text, whose kind the query says.
    pub(crate) async fn post_file(&self, path: &[&str], query: &[(&str, &str)], text: String) -> Result<Body, Failure> {
        self.send(Method::POST, path, query, Some(("text/plain; charset=utf-8", text))).await
    }

    /// DELETE.
    pub(crate) async fn delete(&self, path: &[&str]) -> Result<Body, Failure> {
        self.send(Method::DELETE, path, &[], None).await
    }

    /// GET of an answer that may take for ever: a line at a time.
    pub(crate) async fn follow(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Lines, Failure> {
        let request = self.request(Method::GET, path, query)?.header("accept", "application/x-ndjson");
        let silent = || Failure::new(Exit::Unreachable, format!("the server {} does not answer", self.place()));
        let answered = tokio::time::timeout(ANSWER_TIMEOUT, request.send()).await.map_err(|_| silent())?;
        let response = answered.map_err(|error| self.unreachable(error))?;
        if response.status().is_success() {
            return Ok(Lines::new(response));
        }
        let (status, text) = (response.status(), response.text().await.unwrap_or_default());
        Err(answer::failure(status, &text, self.token.is_some()))
    }

    async fn send(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<(&str, String)>,
    ) -> Result<Body, Failure> {
        let mut request =
            self.request(method, path, query)?.header("accept", "application/json").timeout(ANSWER_TIMEOUT);
        if let Some((kind, body)) = body {
            request = request.header("content-type", kind).body(body);
        }
        let response = request.send().await.map_err(|error| self.unreachable(error))?;
        let status = response.status();
        let text = response.text().await.map_err(|error| self.unreachable(error))?;
        if status.is_success() {
            Ok(Body::new(text))
        } else {
            Err(answer::failure(status, &text, self.token.is_some()))
        }
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, &str)]) -> Result<RequestBuilder, Failure> {
        // The server shows that a person stands behind what is triggered.
        let request = self.http.request(method, self.url(path, query)?).header("rondel-client", "cli");
        Ok(match &self.token {
            Some(token) => request.bearer_auth(token.reveal()),
            None => request,
        })
    }

    fn url(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Url, Failure> {
        let mut url = self.base.clone();
        // "." and ".." would vanish from a URL.
        if let Some(name) = path.iter().find(|name| matches!(**name, "" | "." | "..")) {
            return Err(Failure::refused(format!("{name:?} is not a name")));
        }
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["api", "v1"]).extend(path);
        }
        let namespace = self.namespace.as_deref().map(|namespace| ("namespace", namespace));
        let pairs: Vec<_> = namespace.into_iter().chain(query.iter().copied()).collect();
        if !pairs.is_empty() {
            url.query_pairs_mut().extend_pairs(pairs);
        }
        Ok(url)
    }

    /// The server's URL, without a slash at its end.
    pub(crate) fn place(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    fn unreachable(&self, error: reqwest::Error) -> Failure {
        let place = self.place();
        let (is_timeout, is_connect) = (error.is_timeout(), error.is_connect());
        let error = error.without_url();
        let cause = if is_connect { last_cause(&error) } else { chain(&error) };
        match (is_timeout, is_connect) {
            (_, true) => Failure::new(Exit::Unreachable, format!("cannot reach the server {place}: {cause}")),
            (true, false) => Failure::new(Exit::Unreachable, format!("the server {place} does not answer: {cause}")),
            (false, false) => {
                Failure::new(Exit::Unreachable, format!("the connection to the server {place} broke: {cause}"))
            }
        }
    }
}

/// Of a failed connection, the layers above only say that it failed.
fn last_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    chain(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(server: &str, namespace: Option<&str>) -> Client {
        let args = ClientArgs { server: server.to_owned(), token_file: None, namespace: namespace.map(str::to_owned) };
        args.client().unwrap()
    }

    #[test]
    fn names_cannot_break_out_of_the_path() {
        let client = client("http://127.0.0.1:1/rondel/", Some("team a"));
        let url = client.url(&["jobs", "a/../b?x#y"], &[("status", "failed")]).unwrap();
        let expected = "http://127.0.0.1:1/rondel/api/v1/jobs/a%2F..%2Fb%3Fx%23y?namespace=team+a&status=failed";
        assert_eq!(url.as_str(), expected);
        assert!(client.url(&["jobs", ".."], &[]).is_err());
        assert!(client.url(&["jobs", ""], &[]).is_err());
    }

    #[test]
    fn this_machine_is_known_by_its_names() {
        for (url, here) in [
            ("http://127.0.0.1:8080", true),
            ("http://localhost", true),
            ("http://[::1]:1", true),
            ("http://10.0.0.1", false),
            ("https://localhost.example.com", false),
        ] {
            assert_eq!(is_here(&Url::parse(url).unwrap()), here, "{url}");
        }
    }
}

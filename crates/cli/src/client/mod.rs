//! The REST API as the client commands use it: a path in, the unchanged body out.

mod address;
mod answer;
mod body;
mod connection;
mod lines;
mod near;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use rondel_admin::auth::Token;
use rondel_core::Timestamp;

pub(crate) use address::check_server;
use address::{SERVER_DEFAULT, is_loopback, is_same_server};
pub(crate) use answer::{AnswerError, answer_errors};
pub(crate) use body::{Body, object_fields, text_of, time_text};
pub(crate) use lines::Lines;

use crate::config::DATA_DIR;
use crate::contexts::{Context, Contexts};
use crate::exit::{Exit, Failure};
use crate::token_file;

/// The heading under which the help lists these flags.
const HEADING: &str = "Server";
pub(crate) const JSON: &str = "application/json";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than the 30 s after which a server aborts a request, so that the server's own error arrives.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(45);

/// The server to call, and the credentials.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ClientArgs {
    // `from_environment` reads the variables. If clap read them, its usage line would show a flag as required when its
    // variable is set.
    /// The server's URL. Default, in this order: the URL of `--context`, `RONDEL_SERVER`, the URL of the current context, `http://127.0.0.1:8080`
    #[arg(long, global = true, value_name = "URL", help_heading = HEADING)]
    server: Option<String>,
    /// The context to use; by default `RONDEL_CONTEXT`, else the current context. With this flag, its server,
    /// namespace and token take precedence over environment variables; see rondel context
    #[arg(long, global = true, value_name = "NAME", help_heading = HEADING, add = crate::complete::context_names())]
    context: Option<String>,
    /// The file with the API token. Default, in this order: the token that rondel login stored for `--context`,
    /// `RONDEL_TOKEN`, the file named by `RONDEL_TOKEN_FILE`, the token that rondel login stored for the current
    /// context, and for a server on this machine ./rondel-data/admin.token
    #[arg(long, global = true, value_name = "FILE", help_heading = HEADING)]
    token_file: Option<PathBuf>,
    /// The file with certificates to trust for an https server, in addition to those of the host; by default `RONDEL_CA_FILE`
    #[arg(long, global = true, value_name = "FILE", help_heading = HEADING)]
    ca_file: Option<PathBuf>,
    /// The namespace. Default, in this order: the namespace of `--context`, `RONDEL_NAMESPACE`, the namespace of the current context, the token's namespace, default
    #[arg(long, global = true, value_name = "NAME", help_heading = HEADING)]
    namespace: Option<String>,
}

/// A token, and a description of where it comes from.
#[derive(Clone, Debug)]
pub(crate) struct Credential {
    pub(crate) token: Token,
    pub(crate) source: String,
}

/// A server's API, called with one token.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    base_url: Url,
    token: Option<Credential>,
    namespace: Option<String>,
    http: reqwest::Client,
}

/// A call of the API.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    /// The segments after `/api/v1`. They are separate, so that a `/` in a name does not begin another segment.
    pub(crate) path: &'a [&'a str],
    pub(crate) query: &'a [(&'a str, &'a str)],
    /// The content type, and the text.
    pub(crate) body: Option<(&'a str, String)>,
    pub(crate) headers: &'a [(&'a str, &'a str)],
}

/// The answer to a call of a path outside of the API.
#[derive(Debug)]
pub(crate) struct PlainAnswer {
    pub(crate) status: StatusCode,
    /// The time of the answer by the server's clock; `None` without a valid `date` header.
    pub(crate) date: Option<Timestamp>,
    pub(crate) text: String,
}

/// An answer whose status is not a success.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

impl ClientArgs {
    /// The client that these flags, the environment and the contexts describe. Nothing is sent yet.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        self.client_from_contexts(&Contexts::read()?, Self::from_environment())
    }

    /// The client for these flags and environment variables. A context named by a flag takes precedence over the variables,
    /// which may belong to another server.
    fn client_from_contexts(&self, contexts: &Contexts, variables: Self) -> Result<Client, Failure> {
        let is_context_from_flag = self.context.is_some();
        let name = self.context.as_deref().or(variables.context.as_deref()).or(contexts.current());
        let context = name.map(|name| contexts.get(name)).transpose()?;
        let context_url = context.map(|context| context.server.as_str());
        let named_url = self.server.as_deref().or(context_url.filter(|_| is_context_from_flag));
        let server = named_url.or(variables.server.as_deref()).or(context_url).unwrap_or(SERVER_DEFAULT);
        let base_url = check_server("--server", server)?;
        // A context's token and namespace are only for that context's server.
        let context = context.filter(|context| is_same_server(&context.server, server));
        let stored_token = name.filter(|_| context.is_some()).map(|name| contexts.token(name)).transpose()?.flatten();
        let stored_token = stored_token.map(|token| Credential { token, source: "stored by rondel login".to_owned() });
        let token = self.token(&base_url, stored_token)?;
        let context_namespace = context.and_then(|context| context.namespace.clone());
        let namespace = self
            .namespace
            .clone()
            .or(context_namespace.clone().filter(|_| is_context_from_flag))
            .or(variables.namespace)
            .or(context_namespace);
        let ca_file = self.ca_file.clone().or(variables.ca_file);
        Self { namespace, ca_file, server: Some(server.to_owned()), ..self.clone() }.client_with_token(token)
    }

    /// The values that environment variables give to these flags; `token` reads the variables of the token.
    fn from_environment() -> Self {
        let variable = |name: &str| std::env::var_os(name)?.into_string().ok().filter(|value| !value.is_empty());
        let [server, context, namespace] = ["RONDEL_SERVER", "RONDEL_CONTEXT", "RONDEL_NAMESPACE"].map(variable);
        let ca_file = variable("RONDEL_CA_FILE").map(PathBuf::from);
        Self { server, context, token_file: None, ca_file, namespace }
    }

    /// The flags that select a context's server and namespace.
    pub(crate) fn from_context(context: &Context) -> Self {
        Self { server: Some(context.server.clone()), namespace: context.namespace.clone(), ..Self::default() }
    }

    /// The flags that select a context's server and namespace, with the CA file of these flags, or else of the environment.
    pub(crate) fn for_sign_in_to(&self, context: &Context) -> Self {
        let ca_file = self.ca_file.clone().or_else(|| Self::from_environment().ca_file);
        Self { ca_file, ..Self::from_context(context) }
    }

    /// Refuses flags that a sign-in to a context's server would ignore: the token must not go to another server than the user
    /// named.
    pub(crate) fn check_sign_in(&self, context: &Context) -> Result<(), Failure> {
        let is_other_server = self.server.as_deref().is_some_and(|server| !is_same_server(server, &context.server));
        let given_flags = [
            ("--server", is_other_server),
            ("--namespace", self.namespace.is_some() && self.namespace != context.namespace),
            ("--token-file", self.token_file.is_some()),
        ];
        let Some((flag, _)) = given_flags.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
        Err(Failure::refused(format!(
            "{flag} is not for signing in: the server and the namespace are those of the context (rondel context add), and \
             the token is read from standard input"
        )))
    }

    /// The name of the context to use: from the flag, else from the environment, else the current one.
    pub(crate) fn context_name(&self, contexts: &Contexts) -> Option<String> {
        let given_name = self.context.clone().or_else(|| Self::from_environment().context);
        given_name.or_else(|| contexts.current().map(str::to_owned))
    }

    /// A client with this token for `self.server`. Contexts and the environment are not consulted.
    pub(crate) fn client_with_token(&self, token: Option<Credential>) -> Result<Client, Failure> {
        let base_url = check_server("--server", self.server.as_deref().unwrap_or(SERVER_DEFAULT))?;
        // Fails if a provider is already installed. The installed provider works too.
        rustls::crypto::ring::default_provider().install_default().ok();
        // A redirect would turn a POST into a GET, and the success of the GET would be taken for the success of the POST.
        let builder = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).redirect(Policy::none());
        let builder = builder.user_agent(concat!("rondel/", env!("CARGO_PKG_VERSION")));
        // A proxy cannot reach a server on this machine.
        let builder = if is_loopback(&base_url) { builder.no_proxy() } else { builder };
        let builder = match &self.ca_file {
            None => builder,
            Some(path) => {
                let ca_failure = |error: &dyn std::fmt::Display| {
                    Failure::refused(format!("--ca-file: {} cannot be used: {error}", path.display()))
                };
                let pem = std::fs::read(path).map_err(|error| ca_failure(&error))?;
                let certificates = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| ca_failure(&error))?;
                if certificates.is_empty() {
                    return Err(ca_failure(&"it contains no certificate in PEM"));
                }
                builder.tls_certs_merge(certificates)
            }
        };
        let http = builder.build().map_err(|error| Failure::of("cannot make an HTTP client", &error))?;
        Ok(Client { token, base_url, namespace: self.namespace.clone(), http })
    }

    /// The token to send; `None` if there is none. `stored_token` is the token stored for the context's server.
    fn token(&self, base_url: &Url, stored_token: Option<Credential>) -> Result<Option<Credential>, Failure> {
        let file_credential = |path: &Path, variable: &str| {
            let source = format!("of {variable} {}", path.display());
            token_file::read_existing(path).map(|token| Some(Credential { token, source }))
        };
        if let Some(path) = &self.token_file {
            return file_credential(path, "--token-file");
        }
        if self.context.is_some() && stored_token.is_some() {
            return Ok(stored_token);
        }
        if let Some(token) = token_file::from_environment()? {
            return Ok(Some(Credential { token, source: "of RONDEL_TOKEN".to_owned() }));
        }
        if let Some(path) = token_file::path_from_environment() {
            return file_credential(&path, "RONDEL_TOKEN_FILE");
        }
        if stored_token.is_some() {
            return Ok(stored_token);
        }
        // The token of `rondel dev` must not be sent to other machines.
        if !is_loopback(base_url) {
            return Ok(None);
        }
        let path = Path::new(DATA_DIR).join("admin.token");
        let source = format!("of {}", path.display());
        Ok(token_file::read(&path)?.map(|token| Credential { token, source }))
    }
}

impl Client {
    /// The namespace to send; `None` leaves the choice to the server.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// A copy of this client for another namespace.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self.clone() }
    }

    /// Sends a GET. `path` holds the segments after `/api/v1`, so that a `/` in a name does not begin another segment.
    pub(crate) async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Body, Failure> {
        self.send(Method::GET, path, query, None).await
    }

    /// Sends a POST with a JSON text.
    pub(crate) async fn post(&self, path: &[&str], body: &str) -> Result<Body, Failure> {
        self.send(Method::POST, path, &[], Some((JSON, body.to_owned()))).await
    }

    /// Sends a POST with a JSON text and a query.
    pub(crate) async fn post_with_query(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        body: &str,
    ) -> Result<Body, Failure> {
        self.send(Method::POST, path, query, Some((JSON, body.to_owned()))).await
    }

    /// Sends a PUT with a JSON text.
    pub(crate) async fn put(&self, path: &[&str], body: &str) -> Result<Body, Failure> {
        self.send(Method::PUT, path, &[], Some((JSON, body.to_owned()))).await
    }

    /// Sends a PUT with a JSON text. The server accepts it only if the resource still has this version, or if `version` is
    /// `None`.
    pub(crate) async fn put_if_version(
        &self,
        path: &[&str],
        version: Option<i64>,
        body: &str,
    ) -> Result<Body, Failure> {
        let tag = version.map(|version| format!("\"v{version}\""));
        let headers: Vec<_> = tag.as_deref().map(|tag| ("if-match", tag)).into_iter().collect();
        let body = Some((JSON, body.to_owned()));
        let answer = self.call(Call { method: Method::PUT, path, query: &[], body, headers: &headers }).await?;
        answer.map_err(|refusal| self.failure(&refusal))
    }

    /// Sends a PATCH with a JSON text: fields that are left out stay as they are.
    pub(crate) async fn patch(&self, path: &[&str], body: &str) -> Result<Body, Failure> {
        self.send(Method::PATCH, path, &[], Some((JSON, body.to_owned()))).await
    }

    /// Sends a POST with the text of a file. The query names the format.
    pub(crate) async fn post_file(&self, path: &[&str], query: &[(&str, &str)], text: String) -> Result<Body, Failure> {
        self.send(Method::POST, path, query, Some(("text/plain; charset=utf-8", text))).await
    }

    /// Sends a DELETE.
    pub(crate) async fn delete(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Body, Failure> {
        self.send(Method::DELETE, path, query, None).await
    }

    /// Sends a GET whose answer may have no end, and returns the answer to be read line by line.
    pub(crate) async fn follow(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Lines, Failure> {
        let request = self.request(Method::GET, path, query)?.header("accept", "application/x-ndjson");
        self.send_for_lines(request).await?.map_err(|refusal| self.failure(&refusal))
    }

    async fn send(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<(&str, String)>,
    ) -> Result<Body, Failure> {
        match self.call(Call { method, path, query, body, headers: &[] }).await? {
            Ok(body) => Ok(body),
            Err(refusal) => Err(self.failure(&refusal).with_hint(&self.similar_jobs_hint(path, query, &refusal).await)),
        }
    }

    /// A hint with the names of similar jobs if a job was not found; otherwise empty.
    async fn similar_jobs_hint(&self, path: &[&str], query: &[(&str, &str)], refusal: &Refusal) -> String {
        let ["jobs", path_name, ..] = path else { return String::new() };
        // An export names its job in the query.
        let query_name = query.iter().find(|(key, _)| (*path_name, *key) == ("export", "name")).map(|(_, name)| name);
        let name = query_name.unwrap_or(path_name);
        if refusal.status != StatusCode::NOT_FOUND || !refusal.text.contains("\"job_not_found\"") {
            return String::new();
        }
        let name_start: String = name.chars().take(2).collect();
        let query = [("q", name_start.as_str()), ("limit", "200")];
        let call = Call { method: Method::GET, path: &["jobs"], query: &query, body: None, headers: &[] };
        let jobs = match self.call(call).await {
            Ok(Ok(body)) => body.value().unwrap_or_default(),
            Ok(Err(_)) | Err(_) => return String::new(),
        };
        let names = jobs["items"].as_array().into_iter().flatten().filter_map(|job| job["name"].as_str());
        match near::similar(name, names).as_slice() {
            [] => String::new(),
            similar_names => format!("; did you mean {}?", similar_names.join(" or ")),
        }
    }

    /// Sends any call. A refusal is returned for the caller to handle.
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<Result<Body, Refusal>, Failure> {
        let headers = call.headers;
        // The server reads the first value of a header, so a default must not precede the caller's value.
        let is_given = |header_name: &str| headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(header_name));
        let mut request = self.request(call.method, call.path, call.query)?.timeout(ANSWER_TIMEOUT);
        if !is_given("accept") {
            request = request.header("accept", "application/json, application/yaml;q=0.9");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some((content_type, body)) = call.body {
            if !is_given("content-type") {
                request = request.header("content-type", content_type);
            }
            request = request.body(body);
        }
        let response = request.send().await.map_err(|error| self.unreachable_failure(error))?;
        self.check_origin(&response)?;
        let status = response.status();
        let text = response.text().await.map_err(|error| self.unreachable_failure(error))?;
        Ok(if status.is_success() { Ok(Body::new(text)) } else { Err(Refusal { status, text }) })
    }

    /// Sends a POST with a JSON text. The answer comes line by line.
    pub(crate) async fn post_for_lines(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        body: String,
    ) -> Result<Result<Lines, Refusal>, Failure> {
        let request = self.request(Method::POST, path, query)?.header("accept", "application/x-ndjson");
        self.send_for_lines(request.header("content-type", JSON).body(body)).await
    }

    async fn send_for_lines(&self, request: RequestBuilder) -> Result<Result<Lines, Refusal>, Failure> {
        let sentence = || format!("the server {} does not answer", self.server_url());
        let silence_failure = || Failure::new(Exit::Unreachable, sentence()).temporary();
        let result = tokio::time::timeout(ANSWER_TIMEOUT, request.send()).await.map_err(|_| silence_failure())?;
        let response = result.map_err(|error| self.unreachable_failure(error))?;
        self.check_origin(&response)?;
        if response.status().is_success() {
            return Ok(Ok(Lines::new(response)));
        }
        let (status, text) = (response.status(), response.text().await.unwrap_or_default());
        Ok(Err(Refusal { status, text }))
    }

    /// The command's failure for a refusal.
    pub(crate) fn failure(&self, refusal: &Refusal) -> Failure {
        answer::failure(refusal.status, &refusal.text, self.token.as_ref().map(|token| token.source.as_str()))
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, &str)]) -> Result<RequestBuilder, Failure> {
        // Lets the server show that a user triggered the run from the command line.
        let request = self.http.request(method, self.url(path, query)?).header("rondel-client", "cli");
        Ok(match &self.token {
            Some(Credential { token, .. }) => request.bearer_auth(token.reveal()),
            None => request,
        })
    }

    fn url(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Url, Failure> {
        let mut url = self.base_url.clone();
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

    /// Sends a GET to a path outside the API, without a token.
    pub(crate) async fn get_outside_api(&self, path: &str) -> Result<PlainAnswer, Failure> {
        let mut url = self.base_url.clone();
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push(path);
        }
        url.set_query(query);
        let response =
            self.http.get(url).timeout(ANSWER_TIMEOUT).send().await.map_err(|error| self.unreachable_failure(error))?;
        self.check_origin(&response)?;
        let date = response.headers().get("date").and_then(|value| value.to_str().ok());
        let date = date.and_then(|text| chrono::DateTime::parse_from_rfc2822(text).ok());
        let (status, date) = (response.status(), date.map(|date| date.to_utc().into()));
        let text = response.text().await.map_err(|error| self.unreachable_failure(error))?;
        Ok(PlainAnswer { status, date, text })
    }

    /// The server's URL, without a slash at its end.
    pub(crate) fn server_url(&self) -> &str {
        self.base_url.as_str().trim_end_matches('/')
    }

    fn unreachable_failure(&self, error: reqwest::Error) -> Failure {
        connection::unreachable_failure(self.server_url(), error)
    }

    fn check_origin(&self, response: &Response) -> Result<(), Failure> {
        connection::check_origin(self.server_url(), response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(server: &str, namespace: Option<&str>) -> Client {
        let context = Context { server: server.to_owned(), namespace: namespace.map(str::to_owned) };
        ClientArgs::from_context(&context).client_with_token(None).unwrap()
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
    fn a_sign_in_trusts_the_named_certificates() {
        let context = Context { server: "https://rondel.example.com".to_owned(), namespace: None };
        let flags = ClientArgs {
            server: Some("https://elsewhere.example.com".to_owned()),
            ca_file: Some(PathBuf::from("ca.pem")),
            ..ClientArgs::default()
        };
        let flags = flags.for_sign_in_to(&context);
        assert_eq!(flags.server.as_deref(), Some("https://rondel.example.com"));
        assert_eq!(flags.ca_file.as_deref(), Some(Path::new("ca.pem")));
    }

    #[test]
    fn a_sign_in_sends_no_token_elsewhere() {
        let context = Context { server: "https://rondel.example.com".to_owned(), namespace: None };
        let check = |server: &str| {
            let flags = ClientArgs { server: Some(server.to_owned()), ..ClientArgs::default() };
            flags.check_sign_in(&context).map_err(|failure| failure.exit())
        };
        assert_eq!(check("https://rondel.example.com/"), Ok(()));
        assert_eq!(check("https://elsewhere.example.com"), Err(Exit::Refused));
    }
}

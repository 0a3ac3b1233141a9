//! Puts the namespace of a page into the path of its URL: `/n/NAMESPACE/jobs`.
//!
//! Routes, handlers and templates do not see this: [`namespace_into_query`] rewrites the URL to `/jobs?namespace=NAMESPACE` before
//! routing, and [`OwnNamespace::add_to`] adds the namespace to every link, form and redirect of the answer. This happens in the finished
//! HTML of every page, so no template can forget it, and no form can act in another namespace than the one shown. A URL without a
//! namespace redirects to the caller's default namespace ([`redirect_to_own_namespace`]).

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use http::{HeaderValue, Uri};
use rondel_core::error_chain::chain;
use rondel_core::name;

use crate::call::{AdmittedCaller, named_namespace, shown_namespace};
use crate::problem::Problem;
use crate::redirect::redirect_to;
use crate::state::Web;

/// The attributes that contain URLs.
const URL_ATTRIBUTES: [&str; 10] = [
    " href=\"/",
    " action=\"/",
    " formaction=\"/",
    " hx-get=\"/",
    " hx-post=\"/",
    " data-load=\"/",
    " data-href=\"/",
    " data-runs=\"/",
    " data-gaps=\"/",
    " data-stream=\"/",
];
/// The prefixes of paths that belong to no namespace.
const PREFIXES_WITHOUT_NAMESPACE: [&str; 10] = [
    "/static/",
    "/sign-in",
    "/sign-out",
    "/set-up",
    "/preferences",
    "/api/",
    "/livez",
    "/readyz",
    "/metrics",
    "/rondel.",
];
/// The prefix of the paths of pages in a namespace.
const NAMESPACE_PREFIX: &str = "/n/";
/// Maximum length of a page, in bytes. The lists and logs in pages have limits, so no page should reach it.
const PAGE_LEN_MAX: usize = 32 * 1024 * 1024;

/// Extension of a request whose URL had the namespace in its path.
#[derive(Clone, Copy, Debug)]
struct NamespaceInPath;

/// The namespace in the URL of a page.
#[derive(Debug)]
pub(crate) struct OwnNamespace(String);

/// Moves the namespace of a request from the path into the query, before the request is routed.
pub(crate) fn namespace_into_query(mut request: Request) -> Request {
    let page_url = request.uri().path_and_query().map_or("/", |page_url| page_url.as_str());
    if let Some(path_and_query) =
        url_with_namespace_in_query(page_url).and_then(|path_and_query| path_and_query.parse().ok())
    {
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = Some(path_and_query);
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
            request.extensions_mut().insert(NamespaceInPath);
        }
    }
    request
}

/// Turns `/n/ops/jobs?q=a` into `/jobs?q=a&namespace=ops`. `None` if the path has no namespace.
fn url_with_namespace_in_query(url: &str) -> Option<String> {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let (namespace, path_below) =
        path.strip_prefix(NAMESPACE_PREFIX)?.split_once('/').unwrap_or((&path[NAMESPACE_PREFIX.len()..], ""));
    let path = format!("/{path_below}");
    if name::check(namespace).is_err() || has_no_namespace(&path) {
        return None;
    }
    let namespace_pair = format!("namespace={namespace}");
    let other_pairs = query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("namespace="));
    let pairs: Vec<&str> = other_pairs.chain([namespace_pair.as_str()]).collect();
    Some(format!("{path}?{}", pairs.join("&")))
}

/// Turns `/jobs?q=a&namespace=ops` into `/n/ops/jobs?q=a`. A URL that names no namespace is returned unchanged.
pub(crate) fn namespace_into_path(url: &str) -> String {
    let query_namespace =
        url.split_once('?').and_then(|(_, query)| query.split('&').find_map(|pair| pair.strip_prefix("namespace=")));
    match query_namespace.filter(|query_namespace| name::check(query_namespace).is_ok()) {
        Some(namespace) => OwnNamespace(namespace.to_owned()).rewrite_url(url, "&"),
        None => url.to_owned(),
    }
}

/// Redirects a request for a page to the URL with the namespace in its path, unless the namespace is already there. Requests for parts of
/// pages are not redirected.
pub(crate) async fn redirect_to_own_namespace(State(web): State<Web>, request: Request, next: Next) -> Response {
    let is_full_page = request.method().is_safe() && !request.headers().contains_key("hx-request");
    if is_full_page
        && request.extensions().get::<NamespaceInPath>().is_none()
        && let Some(admitted) = request.extensions().get::<AdmittedCaller>()
    {
        let query_namespace = named_namespace(request.uri());
        let namespace = shown_namespace(&web.engine, &admitted.caller, query_namespace.as_deref()).await;
        let page_url = request.uri().path_and_query().map_or("/", |page_url| page_url.as_str());
        if let Some(namespace) = namespace {
            return redirect_to(&OwnNamespace(namespace).rewrite_url(page_url, "&"));
        }
    }
    next.run(request).await
}

/// The namespace in the URL of a request for a page; `None` if it has none.
pub(crate) fn own_namespace_of(request: &Request) -> Option<OwnNamespace> {
    let path = request.uri().path();
    let namespace = (!has_no_namespace(path)).then(|| named_namespace(request.uri())).flatten();
    namespace.filter(|namespace| name::check(namespace).is_ok()).map(OwnNamespace)
}

fn has_no_namespace(path: &str) -> bool {
    path == "/api" || PREFIXES_WITHOUT_NAMESPACE.iter().any(|prefix| path.starts_with(prefix))
}

impl OwnNamespace {
    /// Adds the namespace to the redirect, links and forms of a response. A page that is too long or breaks off is replaced by a problem:
    /// without the namespace, its forms would act in another one.
    pub(crate) async fn add_to(&self, mut response: Response) -> Response {
        let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        if let Some(location) =
            location.filter(|location| location.starts_with('/')).map(|location| self.rewrite_url(location, "&"))
            && let Ok(location) = HeaderValue::from_str(&location)
        {
            response.headers_mut().insert(LOCATION, location);
        }
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|content_type| content_type.to_str().ok());
        if !content_type.is_some_and(|content_type| content_type.starts_with("text/html")) {
            return response;
        }
        let (mut parts, body) = response.into_parts();
        match to_bytes(body, PAGE_LEN_MAX).await {
            Ok(bytes) => {
                parts.headers.remove(CONTENT_LENGTH);
                Response::from_parts(parts, Body::from(self.rewrite_html(&String::from_utf8_lossy(&bytes))))
            }
            Err(error) => {
                let cause = format!("a page cannot get its namespace: {}", chain(&error));
                let mut response = Problem::internal(cause).into_response();
                // The log line of the request and its problem page need the extensions, such as the caller.
                response.extensions_mut().extend(parts.extensions);
                response
            }
        }
    }

    /// Adds the namespace to every URL in a page. Templates escape quotation marks in text and values, so everything that looks like an
    /// attribute is one.
    fn rewrite_html(&self, html: &str) -> String {
        let (mut rewritten_html, mut remaining_html) = (String::with_capacity(html.len() + html.len() / 8), html);
        while let Some((tag, html_after)) = next_tag(remaining_html) {
            rewritten_html.push_str(&remaining_html[..tag.start]);
            match &remaining_html[tag] {
                tag if tag.contains("=\"/") => rewritten_html.push_str(&self.rewrite_tag(tag)),
                tag => rewritten_html.push_str(tag),
            }
            remaining_html = html_after;
        }
        rewritten_html.push_str(remaining_html);
        rewritten_html
    }

    fn rewrite_tag(&self, tag: &str) -> String {
        URL_ATTRIBUTES.iter().fold(tag.to_owned(), |tag, attribute| {
            let Some(attribute_index) = tag.find(attribute) else { return tag };
            let start_index = attribute_index + attribute.len() - 1;
            let end_index = tag[start_index..].find('"').map_or(tag.len(), |len| start_index + len);
            let url = tag[start_index..end_index].replace("&#38;", "&amp;");
            format!("{}{}{}", &tag[..start_index], self.rewrite_url(&url, "&amp;"), &tag[end_index..])
        })
    }

    /// Adds the namespace to the path of a URL of this server. If the query names a namespace, that one is used instead. `separator` is the
    /// separator of the query.
    fn rewrite_url(&self, url: &str, separator: &str) -> String {
        if url.starts_with("//") || url.starts_with(NAMESPACE_PREFIX) || has_no_namespace(url) {
            return url.to_owned();
        }
        let (url, fragment) = url
            .rfind('#')
            .filter(|fragment_index| !url[..*fragment_index].ends_with('&'))
            .map_or((url, ""), |fragment_index| url.split_at(fragment_index));
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let query_namespace = query.split(separator).find_map(|pair| pair.strip_prefix("namespace="));
        let namespace =
            query_namespace.filter(|query_namespace| name::check(query_namespace).is_ok()).unwrap_or(&self.0);
        let other_pairs: Vec<&str> =
            query.split(separator).filter(|pair| !pair.is_empty() && !pair.starts_with("namespace=")).collect();
        let query = if other_pairs.is_empty() { String::new() } else { format!("?{}", other_pairs.join(separator)) };
        format!("/n/{namespace}{path}{query}{fragment}")
    }
}

/// The range of the next opening tag, and the text after it. Templates escape `>` in values, so the first `>` ends the tag.
fn next_tag(html: &str) -> Option<(std::ops::Range<usize>, &str)> {
    let start_index = html
        .match_indices('<')
        .map(|(index, _)| index)
        .find(|index| html[index + 1..].starts_with(|c: char| c.is_ascii_alphabetic()))?;
    let end_index = start_index + html[start_index..].find('>')? + 1;
    Some((start_index..end_index, &html[end_index..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_keep_the_namespace_once() {
        let own = OwnNamespace("ops".to_owned());
        for (address, expected) in [
            ("/", "/n/ops/"),
            ("/jobs", "/n/ops/jobs"),
            ("/jobs?q=a", "/n/ops/jobs?q=a"),
            ("/jobs?namespace=default&q=a", "/n/default/jobs?q=a"),
            ("/n/default/jobs", "/n/default/jobs"),
            ("/runs/1#L5", "/n/ops/runs/1#L5"),
            ("/static/console.js", "/static/console.js"),
            ("/api/v1/jobs", "/api/v1/jobs"),
            ("/sign-out", "/sign-out"),
            ("//elsewhere", "//elsewhere"),
        ] {
            assert_eq!(own.rewrite_url(address, "&"), expected);
        }
    }

    #[test]
    fn a_path_with_a_namespace_means_a_query_with_it() {
        for (address, expected) in [
            ("/n/ops/jobs?q=a", Some("/jobs?q=a&namespace=ops")),
            ("/n/ops/", Some("/?namespace=ops")),
            ("/n/ops", Some("/?namespace=ops")),
            ("/n/ops/jobs?namespace=default", Some("/jobs?namespace=ops")),
            ("/n/%3Cb%3E/jobs", None),
            ("/n/ops/metrics", None),
            ("/n/ops/api/v1/jobs", None),
            ("/jobs", None),
            ("/n/", None),
        ] {
            assert_eq!(url_with_namespace_in_query(address).as_deref(), expected, "{address}");
        }
        assert_eq!(namespace_into_path("/jobs?q=a&namespace=ops"), "/n/ops/jobs?q=a");
        assert_eq!(namespace_into_path("/jobs?q=a"), "/jobs?q=a");
        assert_eq!(namespace_into_path("/jobs?namespace=%3C"), "/jobs?namespace=%3C");
    }

    #[test]
    fn tags_are_written_anew_and_text_is_not() {
        let own = OwnNamespace("ops".to_owned());
        let html = concat!(
            "<a class=\"x\" href=\"/jobs/a?b=1&#38;c=2\">1 < 2</a><form action=\"/jobs\" role=\"search\">",
            "<form method=\"post\" action=\"/jobs/a/delete\"><p> href=&#34;/jobs&#34;</p>",
            "<div hx-get=\"/x\" hx-post=\"/y\"><a href=\"#L1\"></a>"
        );
        let expected = concat!(
            "<a class=\"x\" href=\"/n/ops/jobs/a?b=1&amp;c=2\">1 < 2</a><form action=\"/n/ops/jobs\" role=\"search\">",
            "<form method=\"post\" action=\"/n/ops/jobs/a/delete\"><p> href=&#34;/jobs&#34;</p>",
            "<div hx-get=\"/n/ops/x\" hx-post=\"/n/ops/y\"><a href=\"#L1\"></a>"
        );
        assert_eq!(own.rewrite_html(html), expected);
    }

    #[tokio::test]
    async fn a_page_that_cannot_be_read_is_replaced_by_a_problem() {
        let own = OwnNamespace("ops".to_owned());
        let too_long = Body::from(vec![b' '; PAGE_LEN_MAX + 1]);
        let pieces = [Ok("<a href=\"/jobs\">"), Err(std::io::Error::other("the handler ended"))];
        let broken_off = Body::from_stream(futures_util::stream::iter(pieces));
        for (body, expected) in [(too_long, "length limit"), (broken_off, "the handler ended")] {
            let mut response = Response::new(body);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
            let response = own.add_to(response).await;
            assert_eq!(response.status(), 500);
            let cause = response.extensions().get::<Problem>().and_then(Problem::cause).unwrap_or_default();
            assert!(cause.contains(expected), "{cause}");
        }
    }
}

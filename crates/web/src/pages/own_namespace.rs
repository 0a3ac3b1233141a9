//! Keeps the namespace that a page was opened with on everything that leads on from it: links, forms and redirects.
//!
//! It is done once, for every page, on the finished HTML: a template cannot forget it, and a form that would act in another
//! namespace than the one shown cannot exist.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use http::HeaderValue;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use rondel_core::name;

use crate::call::named_namespace;

/// The attributes that name an address.
const ATTRIBUTES: [&str; 4] = [" href=\"/", " action=\"/", " hx-get=\"/", " hx-post=\"/"];
/// Addresses that belong to no namespace, and refuse one.
const WITHOUT: [&str; 5] = ["/static/", "/sign-in", "/sign-out", "/set-up", "/preferences"];
/// The longest page that is read whole. Pages have bounded lists and parts of logs.
const PAGE_LEN_MAX: usize = 32 * 1024 * 1024;

/// The namespace that the address of a page names.
#[derive(Debug)]
pub(crate) struct OwnNamespace(String);

/// The namespace in the address of a request for a page; none where it names none.
pub(crate) fn of(request: &Request) -> Option<OwnNamespace> {
    let path = request.uri().path();
    let is_page = !path.starts_with("/api/") && !is_without(path);
    let named = is_page.then(|| named_namespace(request.uri())).flatten();
    named.filter(|named| name::check(named).is_ok()).map(OwnNamespace)
}

fn is_without(path: &str) -> bool {
    WITHOUT.iter().any(|without| path.starts_with(without))
}

impl OwnNamespace {
    /// Adds the namespace to what leads on from a response.
    pub(crate) async fn keep(&self, mut response: Response) -> Response {
        let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
        if let Some(to) = to.filter(|to| to.starts_with('/')).map(|to| self.address(to, "&"))
            && let Ok(to) = HeaderValue::from_str(&to)
        {
            response.headers_mut().insert(LOCATION, to);
        }
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        if !kind.is_some_and(|kind| kind.starts_with("text/html")) {
            return response;
        }
        let (mut parts, body) = response.into_parts();
        let html = to_bytes(body, PAGE_LEN_MAX).await.ok().and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
        parts.headers.remove(CONTENT_LENGTH);
        Response::from_parts(parts, html.map_or_else(Body::empty, |html| Body::from(self.html(&html))))
    }

    /// A page with the namespace on every address. In text and values quotation marks are escaped, so whatever looks like an
    /// attribute is one.
    fn html(&self, html: &str) -> String {
        let (mut kept, mut rest) = (String::with_capacity(html.len() + html.len() / 8), html);
        while let Some((tag, after)) = next_tag(rest) {
            kept.push_str(&rest[..tag.start]);
            let text = self.tag(&rest[tag]);
            kept.push_str(&text);
            if text.starts_with("<form") && !text.contains(" method=\"post\"") {
                // The fields of a form that is sent by GET replace the query of its address.
                kept.push_str(&format!("<input type=\"hidden\" name=\"namespace\" value=\"{}\">", self.0));
            }
            rest = after;
        }
        kept.push_str(rest);
        kept
    }

    fn tag(&self, tag: &str) -> String {
        ATTRIBUTES.iter().fold(tag.to_owned(), |tag, attribute| {
            let Some(place) = tag.find(attribute) else { return tag };
            let begin = place + attribute.len() - 1;
            let end = tag[begin..].find('"').map_or(tag.len(), |len| begin + len);
            format!("{}{}{}", &tag[..begin], self.address(&tag[begin..end], "&amp;"), &tag[end..])
        })
    }

    /// An address of this server with the namespace; `and` stands between the parts of its query.
    fn address(&self, address: &str, and: &str) -> String {
        let has_one = |query: &str| query.split(['&', ';']).any(|pair| pair.starts_with("namespace="));
        let (address, fragment) = address
            .rfind('#')
            .filter(|at| !address[..*at].ends_with('&'))
            .map_or((address, ""), |at| address.split_at(at));
        match address.split_once('?') {
            _ if address.starts_with("//") || is_without(address) => format!("{address}{fragment}"),
            None => format!("{address}?namespace={}{fragment}", self.0),
            Some((_, query)) if has_one(query) => format!("{address}{fragment}"),
            Some(_) => format!("{address}{and}namespace={}{fragment}", self.0),
        }
    }
}

/// The place of the next opening tag, and what comes after it. A `>` in a value is escaped.
fn next_tag(html: &str) -> Option<(std::ops::Range<usize>, &str)> {
    let begin = html
        .match_indices('<')
        .map(|(at, _)| at)
        .find(|at| html[at + 1..].starts_with(|c: char| c.is_ascii_alphabetic()))?;
    let end = begin + html[begin..].find('>')? + 1;
    Some((begin..end, &html[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_keep_the_namespace_once() {
        let own = OwnNamespace("ops".to_owned());
        for (address, expected) in [
            ("/jobs", "/jobs?namespace=ops"),
            ("/jobs?q=a", "/jobs?q=a&namespace=ops"),
            ("/jobs?namespace=ops&q=a", "/jobs?namespace=ops&q=a"),
            ("/runs/1#L5", "/runs/1?namespace=ops#L5"),
            ("/static/console.js", "/static/console.js"),
            ("/sign-out", "/sign-out"),
            ("//elsewhere", "//elsewhere"),
        ] {
            assert_eq!(own.address(address, "&"), expected);
        }
    }

    #[test]
    fn tags_and_forms_are_written_anew_and_text_is_not() {
        let own = OwnNamespace("ops".to_owned());
        let html = concat!(
            "<a class=\"x\" href=\"/jobs/a?b=1&#38;c=2\">1 < 2</a><form action=\"/jobs\" role=\"search\">",
            "<form method=\"post\" action=\"/jobs/a/delete\"><p> href=&#34;/jobs&#34;</p>",
            "<div hx-get=\"/x\" hx-post=\"/y\"><a href=\"#L1\"></a>"
        );
        let expected = concat!(
            "<a class=\"x\" href=\"/jobs/a?b=1&#38;c=2&amp;namespace=ops\">1 < 2</a>",
            "<form action=\"/jobs?namespace=ops\" role=\"search\"><input type=\"hidden\" name=\"namespace\" value=\"ops\">",
            "<form method=\"post\" action=\"/jobs/a/delete?namespace=ops\"><p> href=&#34;/jobs&#34;</p>",
            "<div hx-get=\"/x?namespace=ops\" hx-post=\"/y?namespace=ops\"><a href=\"#L1\"></a>"
        );
        assert_eq!(own.html(html), expected);
    }
}

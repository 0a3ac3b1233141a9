//! Redirects browsers, but only to paths of this server.

use axum::response::{IntoResponse as _, Response};
use http::header::LOCATION;
use http::{HeaderValue, StatusCode};

/// Maximum length of a path to return to.
const PATH_LEN_MAX: usize = 512;

/// Redirects to a path, which the browser then requests with `GET`.
pub(crate) fn redirect_to(path: &str) -> Response {
    let location = HeaderValue::from_str(path).unwrap_or(HeaderValue::from_static("/"));
    (StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response()
}

/// A path that a request names as the target of a redirect; `None` unless it is a path of this server with at most [`PATH_LEN_MAX`] visible
/// ASCII characters.
pub(crate) fn own_path(path: &str) -> Option<&str> {
    let without_slash = path.strip_prefix('/')?;
    let is_visible_ascii =
        path.len() <= PATH_LEN_MAX && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    (is_visible_ascii && !without_slash.starts_with('/')).then_some(path)
}

/// A URL without the parameter `lang`, so that a link can add another language.
pub(crate) fn without_lang(path_and_query: &str) -> String {
    let Some((path, query)) = path_and_query.split_once('?') else { return path_and_query.to_owned() };
    let other_pairs: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("lang=")).collect();
    if other_pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", other_pairs.join("&")) }
}

/// `key=value` for a query, with the value percent-encoded.
pub(crate) fn query_pair(key: &str, value: &str) -> String {
    format!("{key}={}", percent_encode(value))
}

/// Percent-encodes a text for a query.
pub(crate) fn percent_encode(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'/') {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").ok();
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_paths_are_followed() {
        for good in ["/", "/jobs", "/runs?status=failed&job=a%20b"] {
            assert_eq!(own_path(good), Some(good));
        }
        for bad in ["", "jobs", "//evil", "/\\evil", "https://evil", "/a\nb", "/a b", &format!("/{}", "a".repeat(600))]
        {
            assert_eq!(own_path(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_language_is_taken_out() {
        assert_eq!(without_lang("/a"), "/a");
        assert_eq!(without_lang("/a?lang=zh"), "/a");
        assert_eq!(without_lang("/a?x=1&lang=zh&y=2"), "/a?x=1&y=2");
    }

    #[test]
    fn text_is_encoded() {
        assert_eq!(query_pair("next", "/jobs?a=b&c=ä"), "next=/jobs%3Fa%3Db%26c%3D%C3%A4");
    }
}

//! Whether a request that changes something comes from our own pages. Browsers say so in `Sec-Fetch-Site`, or at least in
//! `Origin`; what says neither is no browser and sends no cookie by itself.

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Uri};

/// Whether no other site is behind the request.
pub(crate) fn is_same(headers: &HeaderMap, uri: &Uri) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(site) = text("sec-fetch-site") {
        return matches!(site, "same-origin" | "none");
    }
    let Some(origin) = text(ORIGIN.as_str()) else { return true };
    let host = uri.authority().map(|authority| authority.as_str()).or_else(|| text(HOST.as_str()));
    let origin_host = origin.split_once("://").map(|(_, host)| host);
    origin_host.is_some() && origin_host == host
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[track_caller]
    fn check(headers: &[(&'static str, &'static str)], expected: bool) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_static(value));
        }
        assert_eq!(is_same(&map, &Uri::from_static("/x")), expected, "{headers:?}");
    }

    #[test]
    fn other_sites_are_told_apart() {
        check(&[], true);
        check(&[("sec-fetch-site", "same-origin"), ("origin", "http://evil")], true);
        check(&[("sec-fetch-site", "none")], true);
        check(&[("sec-fetch-site", "cross-site")], false);
        check(&[("sec-fetch-site", "same-site")], false);
        check(&[("host", "a:1"), ("origin", "http://a:1")], true);
        check(&[("host", "a:1"), ("origin", "http://a:2")], false);
        check(&[("host", "a:1"), ("origin", "null")], false);
        check(&[("origin", "http://a")], false);
    }
}

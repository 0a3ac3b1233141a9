//! Whether a request that changes something comes from our own pages. Browsers say so in `Sec-Fetch-Site`, or at least in
//! `Origin`; what says neither is no browser and sends no cookie by itself.

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Uri};

/// Whether no other site is behind the request. `is_tls` says by which scheme browsers reach the server: over plain http anybody
/// on the way can be a page of the same host.
pub(crate) fn is_same(headers: &HeaderMap, uri: &Uri, is_tls: bool) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(site) = text("sec-fetch-site") {
        return matches!(site, "same-origin" | "none");
    }
    let Some(origin) = text(ORIGIN.as_str()) else { return true };
    let host = uri.authority().map(|authority| authority.as_str()).or_else(|| text(HOST.as_str()));
    let (scheme, port) = if is_tls { ("https", ":443") } else { ("http", ":80") };
    let plain = |host: &str| host.strip_suffix(port).unwrap_or(host).to_ascii_lowercase();
    match (origin.split_once("://"), host) {
        (Some((of_origin, there)), Some(here)) => of_origin == scheme && plain(there) == plain(here),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[track_caller]
    fn check(headers: &[(&'static str, &'static str)], expected: bool) {
        check_over(false, headers, expected);
    }

    #[track_caller]
    fn check_over(is_tls: bool, headers: &[(&'static str, &'static str)], expected: bool) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_static(value));
        }
        assert_eq!(is_same(&map, &Uri::from_static("/x"), is_tls), expected, "{is_tls} {headers:?}");
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

    #[test]
    fn scheme_host_and_port_are_compared() {
        check_over(true, &[("host", "a"), ("origin", "https://a")], true);
        check_over(true, &[("host", "a:443"), ("origin", "https://A")], true);
        check_over(true, &[("host", "a"), ("origin", "http://a")], false);
        check_over(true, &[("host", "a"), ("origin", "https://a:8443")], false);
        check_over(false, &[("host", "a"), ("origin", "http://a:80")], true);
        check_over(false, &[("host", "a"), ("origin", "https://a")], false);
        check_over(false, &[("host", "a"), ("origin", "ftp://a")], false);
    }
}

//! Checks that a request for a change comes from the pages of this server, and not from another site. Browsers send
//! `Sec-Fetch-Site`, or at least `Origin`. A client that sends neither is not a browser, so no site can make it send the
//! cookie of a sign-in.
//!
//! `Origin` is compared with the URL that the server advertises. If the server advertises none, it is compared with the address of the
//! request: the one in the headers of a trusted proxy, else `Host`.

use http::header::{HOST, ORIGIN};
use http::{Extensions, HeaderMap, HeaderName, Uri};

const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Scheme, host and port in the form that browsers use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin(String);

impl Origin {
    fn new(scheme: &str, authority: &str) -> Self {
        let (scheme, authority) = (scheme.to_ascii_lowercase(), authority.to_ascii_lowercase());
        let port = if scheme == "https" { ":443" } else { ":80" };
        let host = authority.strip_suffix(port).unwrap_or(&authority);
        Self(format!("{scheme}://{host}"))
    }

    /// The origin of a URL with a scheme and a host.
    pub(crate) fn of_url(url: &str) -> Option<Self> {
        let (scheme, url_without_scheme) = url.split_once("://")?;
        let authority = url_without_scheme.split(['/', '?', '#']).next()?;
        let host = authority.rsplit('@').next().filter(|host| !host.is_empty())?;
        Some(Self::new(scheme, host))
    }
}

/// Extension of a request from a trusted proxy: the host and scheme with which the browser reached the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProxiedOrigin {
    host: Option<String>,
    scheme: Option<String>,
}

impl ProxiedOrigin {
    /// Reads the headers of a trusted proxy. The proxy appends its value to each header, so only the last value counts. If two headers
    /// disagree, one of them came from the client, and neither is used.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let last_element = |name: &HeaderName| {
            let header_value = headers.get_all(name).iter().next_back()?.to_str().ok()?;
            Some(header_value.rsplit(',').next().unwrap_or_default().trim())
        };
        let forwarded_element = last_element(&FORWARDED);
        let forwarded_value = |wanted: &str| {
            let pairs = forwarded_element
                .into_iter()
                .flat_map(|forwarded_element| forwarded_element.split(';'))
                .filter_map(|pair| pair.split_once('='));
            let mut values = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case(wanted));
            values.next().map(|(_, value)| value.trim().trim_matches('"'))
        };
        Self {
            host: common_value(forwarded_value("host"), last_element(&FORWARDED_HOST)),
            scheme: common_value(forwarded_value("proto"), last_element(&FORWARDED_PROTO)),
        }
    }
}

fn common_value(first: Option<&str>, second: Option<&str>) -> Option<String> {
    let text = match (first, second) {
        (Some(first), Some(second)) if !first.eq_ignore_ascii_case(second) => return None,
        (first, second) => first.or(second)?,
    };
    (!text.is_empty()).then(|| text.to_owned())
}

/// How browsers reach the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublicEndpoint<'a> {
    /// The advertised URL.
    pub(crate) advertised_url: Option<&'a str>,
    /// Whether browsers use TLS. Over plain HTTP an attacker on the network can pose as the same host.
    pub(crate) is_tls: bool,
}

impl PublicEndpoint<'_> {
    /// The origin of the pages of this server, if it can be determined.
    fn origin(self, headers: &HeaderMap, uri: &Uri, extensions: &Extensions) -> Option<Origin> {
        if let Some(url) = self.advertised_url {
            return Origin::of_url(url);
        }
        let proxied_origin = extensions.get::<ProxiedOrigin>();
        let scheme = proxied_origin.and_then(|proxied_origin| proxied_origin.scheme.as_deref());
        let scheme = scheme.unwrap_or(if self.is_tls { "https" } else { "http" });
        let proxied_host = proxied_origin.and_then(|proxied_origin| proxied_origin.host.as_deref());
        let own_host =
            || uri.authority().map(|authority| authority.as_str()).or_else(|| headers.get(HOST)?.to_str().ok());
        Some(Origin::new(scheme, proxied_host.or_else(own_host)?))
    }

    /// Whether the request comes from the pages of this server, or from a client that is not a browser.
    pub(crate) fn is_from_own_pages(self, headers: &HeaderMap, uri: &Uri, extensions: &Extensions) -> bool {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        if let Some(site) = text("sec-fetch-site") {
            return matches!(site, "same-origin" | "none");
        }
        let Some(origin) = text(ORIGIN.as_str()) else { return true };
        let own_origin = self.origin(headers, uri, extensions);
        own_origin.is_some() && Origin::of_url(origin) == own_origin
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[track_caller]
    fn check(headers: &[(&'static str, &'static str)], expected: bool) {
        check_over(false, headers, expected);
    }

    #[track_caller]
    fn check_over(is_tls: bool, headers: &[(&'static str, &'static str)], expected: bool) {
        let endpoint = PublicEndpoint { advertised_url: None, is_tls };
        let found = endpoint.is_from_own_pages(&map(headers), &Uri::from_static("/x"), &Extensions::new());
        assert_eq!(found, expected, "{is_tls} {headers:?}");
    }

    #[test]
    fn other_sites_are_recognized() {
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

    #[test]
    fn the_advertised_url_takes_precedence_over_the_host_header() {
        for (url, origin, expected) in [
            ("https://jobs.example.com/", "https://jobs.example.com", true),
            ("https://jobs.example.com:443", "https://jobs.example.com", true),
            ("HTTPS://Jobs.example.com:8443/x", "https://jobs.example.com:8443", true),
            ("https://jobs.example.com", "http://jobs.example.com", false),
            ("https://jobs.example.com", "https://jobs.example.com:8443", false),
            ("https://jobs.example.com", "https://rebound.example.net", false),
            ("https://jobs.example.com", "null", false),
            ("http://[::1]:80", "http://[::1]", true),
        ] {
            let endpoint = PublicEndpoint { advertised_url: Some(url), is_tls: true };
            let headers = map(&[("origin", origin), ("host", "rebound.example.net")]);
            assert_eq!(
                endpoint.is_from_own_pages(&headers, &Uri::from_static("/x"), &Extensions::new()),
                expected,
                "{url} {origin}"
            );
        }
    }

    #[test]
    fn a_trusted_proxy_names_host_and_scheme() {
        for (headers, origin, expected) in [
            (vec![("x-forwarded-host", "a.example"), ("x-forwarded-proto", "https")], "https://a.example", true),
            (vec![("forwarded", "for=1.2.3.4;host=\"a.example:8443\";proto=https")], "https://a.example:8443", true),
            (
                vec![("x-forwarded-host", "evil, a.example"), ("x-forwarded-proto", "http, https")],
                "https://a.example",
                true,
            ),
            (vec![("x-forwarded-host", "evil, a.example"), ("x-forwarded-proto", "https")], "https://evil", false),
            (vec![("x-forwarded-host", "a"), ("forwarded", "host=evil")], "http://evil", false),
            (vec![("x-forwarded-host", "a"), ("forwarded", "host=evil")], "http://inner", true),
            (vec![], "http://inner", true),
        ] {
            let mut all = headers.clone();
            all.extend([("host", "inner"), ("origin", origin)]);
            let mut extensions = Extensions::new();
            extensions.insert(ProxiedOrigin::from_headers(&map(&headers)));
            let endpoint = PublicEndpoint { advertised_url: None, is_tls: false };
            assert_eq!(
                endpoint.is_from_own_pages(&map(&all), &Uri::from_static("/x"), &extensions),
                expected,
                "{all:?}"
            );
        }
    }
}

//! Reads cookies by name, and writes cookies that are bound to this host.

use std::time::Duration;

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

/// How long browsers store a preference.
const PREFERENCE_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// The name of the session cookie. Over TLS it has the prefix that makes browsers accept it only from exactly this host.
const fn session_name(is_tls: bool) -> &'static str {
    if is_tls { "__Host-rondel_session" } else { "rondel_session" }
}

pub(crate) fn read<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let header_values = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut cookies = header_values.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    cookies.find(|(key, _)| *key == name).map(|(_, value)| value)
}

pub(crate) fn session(headers: &HeaderMap, is_tls: bool) -> Option<&str> {
    read(headers, session_name(is_tls))
}

/// The `Set-Cookie` header for the session cookie; `None` if `value` is not valid in a header. An empty value with a lifetime of zero
/// removes the cookie.
pub(crate) fn set_session(value: &str, lifetime: Duration, is_tls: bool) -> Option<HeaderValue> {
    guarded_cookie(session_name(is_tls), value, lifetime, is_tls)
}

/// The name of the cookie that identifies a pending sign-in at the OIDC provider.
const fn oidc_sign_in_name(is_tls: bool) -> &'static str {
    if is_tls { "__Host-rondel_oidc" } else { "rondel_oidc" }
}

/// The value of the cookie of a pending sign-in.
pub(crate) fn oidc_sign_in(headers: &HeaderMap, is_tls: bool) -> Option<&str> {
    read(headers, oidc_sign_in_name(is_tls))
}

/// Like [`set_session`], for the cookie of a pending sign-in.
pub(crate) fn set_oidc_sign_in(value: &str, lifetime: Duration, is_tls: bool) -> Option<HeaderValue> {
    guarded_cookie(oidc_sign_in_name(is_tls), value, lifetime, is_tls)
}

fn guarded_cookie(name: &str, value: &str, lifetime: Duration, is_tls: bool) -> Option<HeaderValue> {
    let (secure, age) = (if is_tls { "; Secure" } else { "" }, lifetime.as_secs());
    HeaderValue::from_str(&format!("{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax{secure}")).ok()
}

/// The `Set-Cookie` header for a preference. The value must be a plain word.
pub(crate) fn set_preference(name: &str, value: &str, is_tls: bool) -> Option<HeaderValue> {
    let age = PREFERENCE_LIFETIME.as_secs();
    let secure_flag = if is_tls { "; Secure" } else { "" };
    HeaderValue::from_str(&format!("{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax{secure_flag}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferences_travel_by_tls_alone_where_browsers_use_it() {
        let cookie = |is_tls| set_preference("rondel_lang", "zh", is_tls).unwrap();
        assert!(cookie(true).to_str().unwrap().ends_with("; Secure"));
        assert!(!cookie(false).to_str().unwrap().contains("Secure"));
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("a=1; rondel_session=x=y;b=2"));
        headers.append(COOKIE, HeaderValue::from_static("c=3"));
        assert_eq!(session(&headers, false), Some("x=y"));
        assert_eq!(session(&headers, true), None);
        assert_eq!(read(&headers, "c"), Some("3"));
        assert_eq!(read(&headers, "session"), None);
    }
}

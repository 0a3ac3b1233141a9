//! The language and theme of a page, from the query, a cookie or a header.

use axum::extract::FromRequestParts;
use http::header::{ACCEPT_LANGUAGE, COOKIE};
use http::request::Parts;
use http::{HeaderMap, Uri};

use super::texts::{Lang, Texts};
use crate::cookies;
use crate::state::Web;

pub(crate) const LANG_COOKIE: &str = "rondel_lang";
pub(crate) const THEME_COOKIE: &str = "rondel_theme";

rondel_core::plain_word_enum! {
    /// Light or dark.
    pub(crate) Theme {
        /// The theme of the operating system or browser.
        Auto = "auto",
        Light = "light",
        Dark = "dark",
    }
}

impl Theme {
    pub(crate) const fn name(self, t: &Texts) -> &'static str {
        match self {
            Self::Auto => t.theme_auto,
            Self::Light => t.theme_light,
            Self::Dark => t.theme_dark,
        }
    }
}

/// The preferences of a browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefs {
    pub(crate) lang: Lang,
    pub(crate) theme: Theme,
}

impl Prefs {
    pub(crate) fn new(uri: &Uri, headers: &HeaderMap) -> Self {
        let query = uri.query().unwrap_or_default();
        let lang_of_query = query.split('&').find_map(|pair| Lang::from_word(pair.strip_prefix("lang=")?));
        let lang_of_cookie = || Lang::from_word(cookies::read(headers, LANG_COOKIE)?);
        let lang_of_header = || Lang::from_header(headers.get(ACCEPT_LANGUAGE)?.to_str().ok()?);
        Self {
            lang: lang_of_query.or_else(lang_of_cookie).or_else(lang_of_header).unwrap_or(Lang::En),
            theme: cookies::read(headers, THEME_COOKIE).and_then(Theme::from_word).unwrap_or(Theme::Auto),
        }
    }

    /// The request headers on which pages depend, for `Vary`.
    pub(crate) fn vary_value() -> String {
        format!("{COOKIE}, {ACCEPT_LANGUAGE}")
    }
}

impl FromRequestParts<Web> for Prefs {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _web: &Web) -> Result<Self, Self::Rejection> {
        Ok(Self::new(&parts.uri, &parts.headers))
    }
}

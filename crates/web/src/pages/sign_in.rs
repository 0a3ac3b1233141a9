//! Signing in and out, and what a browser prefers.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};

use super::form::Fields;
use super::prefs::{LANG_COOKIE, Prefs, THEME_COOKIE, Theme};
use super::shell::{Nav, Shell, html};
use super::texts::{Lang, Texts};
use crate::access::cross_origin;
use crate::app::Web;
use crate::problem::{Code, Problem};
use crate::query::Reader;
use crate::redirect::{own_path, pair, to};
use crate::sign_in::SESSION_LIFETIME;
use crate::{cookies, origin};

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage {
    shell: Shell,
    t: &'static Texts,
    /// The link's token; without one the page says how to get a link.
    token: Option<String>,
    next: String,
    was_sent_here: bool,
}

/// Looks at a link without using it up: whoever previews links may do so.
pub(super) async fn page(
    State(web): State<Web>,
    prefs: Prefs,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let mut reader = Reader::new(&uri);
    let (token, next, _) = (reader.one("token"), reader.one("next"), reader.one("lang"));
    reader.finish()?;
    let next = next.as_deref().and_then(own_path);
    if token.as_deref().is_some_and(|token| !web.config.sign_ins.is_open(token)) {
        return Err(spent());
    }
    let is_signed_in =
        cookies::session(&headers, web.config.tls).is_some_and(|session| web.config.sign_ins.caller(session).is_some());
    if token.is_none() && is_signed_in {
        return Ok(to(next.unwrap_or("/")));
    }
    let was_sent_here = next.is_some() && token.is_none();
    let here = match (&token, next) {
        (Some(token), _) => format!("/sign-in?{}", pair("token", token)),
        (None, Some(next)) => format!("/sign-in?{}", pair("next", next)),
        (None, None) => "/sign-in".to_owned(),
    };
    let shell = Shell::new(prefs, Nav::None, None, &here);
    let t = shell.t;
    let page = SignInPage { shell, t, token, next: next.unwrap_or("/").to_owned(), was_sent_here };
    html(if was_sent_here { StatusCode::UNAUTHORIZED } else { StatusCode::OK }, &page)
}

/// Uses a link up.
pub(super) async fn enter(
    State(web): State<Web>,
    uri: Uri,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, Problem> {
    check_origin(&headers, &uri)?;
    let session = web.config.sign_ins.redeem(fields.get("token")).ok_or_else(spent)?;
    let mut response = to(own_path(fields.get("next")).unwrap_or("/"));
    add_cookie(&mut response, cookies::set_session(session.reveal(), SESSION_LIFETIME, web.config.tls));
    Ok(response)
}

pub(super) async fn leave(State(web): State<Web>, uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    check_origin(&headers, &uri)?;
    if let Some(session) = cookies::session(&headers, web.config.tls) {
        web.config.sign_ins.end(session);
    }
    let mut response = to("/sign-in");
    add_cookie(&mut response, cookies::set_session("", std::time::Duration::ZERO, web.config.tls));
    Ok(response)
}

/// Keeps a language or a theme, and goes back to where that was asked for.
pub(super) async fn prefer(uri: Uri, headers: HeaderMap, fields: Fields) -> Result<Response, Problem> {
    check_origin(&headers, &uri)?;
    let lang = Lang::from_word(fields.get("lang")).map(|lang| (LANG_COOKIE, lang.word()));
    let theme = Theme::from_word(fields.get("theme")).map(|theme| (THEME_COOKIE, theme.word()));
    if lang.is_none() && theme.is_none() {
        return Err(Problem::new(Code::InvalidBody, "neither a language nor a theme that there is"));
    }
    let mut response = to(own_path(fields.get("back")).unwrap_or("/"));
    for (name, value) in lang.into_iter().chain(theme) {
        add_cookie(&mut response, cookies::set_preference(name, value));
    }
    Ok(response)
}

fn add_cookie(response: &mut Response, cookie: Option<HeaderValue>) {
    if let Some(cookie) = cookie {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
}

fn check_origin(headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
    if origin::is_same(headers, uri) { Ok(()) } else { Err(cross_origin()) }
}

fn spent() -> Problem {
    Problem::new(Code::LinkSpent, "a link works once, within 15 minutes, with the server that made it")
}

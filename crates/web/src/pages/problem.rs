//! Shows problems as pages, for browsers.

use std::borrow::Cow;

use askama::Template;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::header::ACCEPT;

use super::prefs::Prefs;
use super::sentences::localized;
use super::shell::{Nav, Shell, User, set_page_headers};
use super::texts::Texts;
use crate::access::CalledBy;
use crate::problem::{Code, Complaint, Problem};
use rondel_core::words::Lang;

/// The facts about a request that its problem page needs.
#[derive(Debug)]
pub(crate) struct ProblemPageContext {
    prefs: Prefs,
    /// The URL of the request, to return to after a preference was changed; `/` if the request was a change.
    return_url: String,
    /// Whether the request is for `/set-up`, where a link printed by the server creates the first account.
    is_set_up: bool,
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage<'a> {
    shell: Shell,
    t: &'static Texts,
    status: u16,
    title: &'static str,
    hint: &'static str,
    detail: Cow<'a, str>,
    complaints: Vec<(Option<&'a str>, Cow<'a, str>)>,
    request_id: &'a str,
    shows_sign_in_help: bool,
    /// Whether the page has a link to the sign-in page.
    can_sign_in_again: bool,
}

/// The context of a problem page. `None` for requests to the API, and for clients other than browsers.
pub(crate) fn page_context(request: &Request) -> Option<ProblemPageContext> {
    let path = request.uri().path();
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let is_page = !path.starts_with("/api") && accept.contains("text/html");
    is_page.then(|| ProblemPageContext {
        prefs: Prefs::new(request.uri(), request.headers()),
        is_set_up: path == "/set-up",
        return_url: if request.method().is_safe() { request.uri().to_string() } else { "/".to_owned() },
    })
}

impl ProblemPageContext {
    /// Replaces the body of a response that has a problem by the page.
    pub(crate) fn render(&self, response: &mut Response, problem: &Problem, request_id: &str) {
        let caller = response.extensions().get::<CalledBy>();
        let user = caller.map(|caller| User {
            name: caller.name.clone(),
            namespace: caller.namespace.clone(),
            is_admin: caller.is_admin,
        });
        let t = self.prefs.lang.texts();
        let (title, hint) = t.problem(problem.code());
        let is_spent_set_up_link = self.is_set_up && problem.code() == Code::LinkSpent;
        let hint = if is_spent_set_up_link { t.problem_set_up_spent_hint } else { hint };
        let page = ProblemPage {
            shell: Shell::new(self.prefs, Nav::None, user, &self.return_url),
            t,
            status: problem.code().status(),
            title,
            hint,
            detail: localized(t.lang(), problem.detail()),
            complaints: problem.complaints().iter().map(|complaint| place_and_message(complaint, t.lang())).collect(),
            request_id,
            shows_sign_in_help: matches!(problem.code(), Code::Unauthenticated | Code::LinkSpent)
                && !is_spent_set_up_link,
            can_sign_in_again: is_spent_set_up_link
                || matches!(problem.code(), Code::Unauthenticated | Code::SignInRefused | Code::ProviderUnavailable),
        };
        *response.body_mut() = Body::from(page.render().unwrap_or_default());
        set_page_headers(response.headers_mut());
    }
}

/// The place of a complaint, and its message.
fn place_and_message(complaint: &Complaint, lang: Lang) -> (Option<&str>, Cow<'_, str>) {
    (complaint.parameter.as_deref().or(complaint.pointer.as_deref()), localized(lang, &complaint.message))
}

//! The short message about what a form did: shown in a corner by the page's script, which sent the form and stays where it is.
//! Without a script the form leads back to its page.

use askama::Template;
use axum::response::Response;
use http::StatusCode;

use super::shell::{Page, html};
use super::texts::Texts;
use crate::problem::Problem;
use crate::redirect::to;

/// What was done, and what can be done about it.
#[derive(Debug, Default)]
pub(super) struct Toast {
    pub(super) text: String,
    /// The words of a link, and its address.
    pub(super) link: Option<(String, String)>,
    /// Where the form that takes it back is sent to.
    pub(super) undo: Option<String>,
}

#[derive(Template)]
#[template(path = "toast.html")]
struct ToastPart {
    t: &'static Texts,
    toast: Toast,
}

/// Answers a form: a script gets the message, a browser without one is led to `back`.
pub(super) fn answer<Q>(page: &Page<Q>, toast: Toast, back: &str) -> Result<Response, Problem> {
    if page.is_part() { html(StatusCode::OK, &ToastPart { t: page.t, toast }) } else { Ok(to(back)) }
}

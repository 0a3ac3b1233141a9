//! The short message about what a form did. The page's script sends the form, stays on the page, and shows the message in a corner; without
//! a script the form leads back to its page.

use askama::Template;
use axum::response::Response;
use http::StatusCode;

use super::shell::{Page, html};
use super::texts::Texts;
use crate::problem::Problem;
use crate::redirect::to;

/// What was done, and the actions that can follow.
#[derive(Debug, Default)]
pub(super) struct Toast {
    pub(super) text: String,
    /// The text and the address of a link.
    pub(super) link: Option<(String, String)>,
    /// The address to which the form that reverts the action is sent.
    pub(super) undo: Option<String>,
}

#[derive(Template)]
#[template(path = "toast.html")]
struct ToastPart {
    t: &'static Texts,
    toast: Toast,
}

/// Answers a form: a script gets the message, a browser without one is redirected to `back`.
pub(super) fn answer<Q>(page: &Page<Q>, toast: Toast, back: &str) -> Result<Response, Problem> {
    if page.is_part() { html(StatusCode::OK, &ToastPart { t: page.t, toast }) } else { Ok(to(back)) }
}

//! A short message about the outcome of a form. The script sends the form, stays on the page, and shows the message in a corner. Without
//! the script, the browser is redirected to the page of the form.

use askama::Template;
use axum::response::Response;
use http::StatusCode;

use super::shell::{Page, html};
use super::texts::Texts;
use crate::problem::Problem;
use crate::redirect::redirect_to;

/// The outcome of a form, and the actions that may follow.
#[derive(Debug, Default)]
pub(super) struct Toast {
    pub(super) text: String,
    /// The text and the URL of a link.
    pub(super) link: Option<(String, String)>,
    /// The URL of the form that reverts the action.
    pub(super) undo_url: Option<String>,
}

#[derive(Template)]
#[template(path = "toast.html")]
struct ToastPart {
    t: &'static Texts,
    toast: Toast,
}

/// Answers a form. The script gets the message; a browser without the script is redirected to `return_url`.
pub(super) fn toast_response<Q>(page: &Page<Q>, toast: Toast, return_url: &str) -> Result<Response, Problem> {
    if page.is_part() { html(StatusCode::OK, &ToastPart { t: page.t, toast }) } else { Ok(redirect_to(return_url)) }
}

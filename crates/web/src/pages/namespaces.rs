//! The choice of a namespace: pages show one at a time.

use askama::Template;
use axum::response::Response;
use http::StatusCode;

use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use crate::call::visible_namespaces;
use crate::problem::Problem;

#[derive(Template)]
#[template(path = "namespaces.html")]
struct NamespacesPage {
    shell: Shell,
    t: &'static Texts,
    names: Vec<String>,
    /// The namespace that the other pages show now.
    current: String,
}

pub(super) async fn list(page: Page) -> Result<Response, Problem> {
    let seen = visible_namespaces(page.engine(), &page.call.caller).await?;
    let names = seen.into_iter().map(|namespace| namespace.name).collect();
    let current = page.call.namespace.name.clone();
    html(StatusCode::OK, &NamespacesPage { shell: page.shell(Nav::None), t: page.t, names, current })
}

//! The page to choose a namespace. All other pages show one namespace at a time.

use askama::Template;
use axum::response::Response;
use http::StatusCode;

use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use crate::call::visible_namespaces;
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};

#[derive(Template)]
#[template(path = "namespaces.html")]
struct NamespacesPage {
    shell: Shell,
    t: &'static Texts,
    names: Vec<String>,
    /// The namespace that the other pages currently show.
    current_namespace: String,
    /// The page to which the links lead.
    target_path: &'static str,
}

/// The page to open after the choice.
#[derive(Debug)]
pub(super) struct TargetQuery(&'static str);

impl FromQuery for TargetQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self(reader.single("to").as_deref().and_then(Nav::known_path).unwrap_or("/jobs"))
    }
}

pub(super) async fn list(page: Page<TargetQuery>) -> Result<Response, Problem> {
    let namespaces = visible_namespaces(page.engine(), &page.call.caller).await?;
    let names = namespaces.into_iter().map(|namespace| namespace.name).collect();
    let current_namespace = page.call.namespace.name.clone();
    let target_path = page.query().0;
    html(
        StatusCode::OK,
        &NamespacesPage { shell: page.shell(Nav::None), t: page.t, names, current_namespace, target_path },
    )
}

//! Jobs as documents that `apply` takes unchanged.

use std::io;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{Stream, unfold};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use rondel_core::{AppId, NamespaceId};
use rondel_store::StoreError;
use rondel_store::catalog::{JobQuery, JobRecord};

use super::jobs::{find, find_app};
use crate::app::Web;
use crate::call::Call;
use crate::parameter::Parameter;
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::yaml;
use rondel_core::error_chain::chain;

/// Jobs that are read at once.
const PAGE: u32 = 200;

/// What is to be written.
#[derive(Debug)]
pub(crate) struct ExportQuery {
    app: Option<String>,
    /// One job.
    name: Option<String>,
    form: Form,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Form {
    #[default]
    Json,
    Yaml,
}

impl FromQuery for ExportQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let form = |text: &str| match text {
            "json" => Ok(Form::Json),
            "yaml" => Ok(Form::Yaml),
            other => Err(format!("{other:?} is neither json nor yaml")),
        };
        Self {
            app: reader.one(Parameter::name("app").about("Only jobs of this app.")),
            name: reader.one(Parameter::name("name").about("Only this job.")),
            form: reader
                .parsed(Parameter::word("format", &["json", "yaml"]).about("`json` if left out."), form)
                .unwrap_or_default(),
        }
    }
}

struct Exporter {
    web: Web,
    namespace: NamespaceId,
    app: Option<AppId>,
    /// The apps that the caller may see.
    within: Option<Vec<AppId>>,
    form: Form,
    after_name: Option<String>,
    has_begun: bool,
    is_over: bool,
}

pub(super) async fn get(call: Call<ExportQuery>) -> Result<Response, Problem> {
    let app = match &call.query.app {
        Some(app) => Some(find_app(&call, app).await?),
        None => None,
    };
    let form = call.query.form;
    if let Some(name) = &call.query.name {
        let record = find(&call, name).await?;
        return Ok(answer(form, Body::from(form.whole(&[record]))));
    }
    let mut exporter = Exporter {
        web: call.web.clone(),
        namespace: call.namespace.id,
        app,
        within: call.seen_apps(),
        form,
        after_name: None,
        has_begun: false,
        is_over: false,
    };
    // The first page before the answer begins: a database that is away is a problem like any other.
    let first = exporter.page().await?;
    Ok(answer(form, Body::from_stream(stream(exporter, first))))
}

fn answer(form: Form, body: Body) -> Response {
    let mut response = Response::new(body);
    let kind = match form {
        Form::Json => "application/json",
        Form::Yaml => "application/yaml",
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

impl Form {
    fn whole(self, records: &[JobRecord]) -> String {
        match self {
            Self::Json => as_json(records, true, true),
            Self::Yaml => as_yaml(records),
        }
    }
}

fn stream(exporter: Exporter, first: Bytes) -> impl Stream<Item = Result<Bytes, io::Error>> {
    unfold((exporter, Some(first)), async |(mut exporter, first)| {
        if let Some(first) = first {
            return Some((Ok(first), (exporter, None)));
        }
        if exporter.is_over {
            return None;
        }
        let page = exporter.page().await.map_err(|error| {
            tracing::warn!(target: "http", error = chain(&error), "export of jobs broken off");
            exporter.is_over = true;
            io::Error::other("the database did not answer")
        });
        Some((page, (exporter, None)))
    })
}

impl Exporter {
    async fn page(&mut self) -> Result<Bytes, StoreError> {
        let query = JobQuery {
            app: self.app,
            within: self.within.clone(),
            after_name: self.after_name.take(),
            limit: PAGE,
            ..JobQuery::default()
        };
        let records = self.web.engine.store().jobs(self.namespace, &query).await?;
        self.is_over = records.len() < usize::try_from(PAGE).unwrap_or(usize::MAX);
        self.after_name = records.last().map(|record| record.spec.name.clone());
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let text = match self.form {
            Form::Json => as_json(&records, is_first, self.is_over),
            // A list without anything in it is said where there is nothing at all.
            Form::Yaml if records.is_empty() && !is_first => String::new(),
            Form::Yaml => as_yaml(&records),
        };
        Ok(text.into())
    }
}

fn as_json(records: &[JobRecord], is_first: bool, is_last: bool) -> String {
    let mut text = if is_first { "[".to_owned() } else { String::new() };
    for (index, record) in records.iter().enumerate() {
        text.push_str(if is_first && index == 0 { "\n" } else { ",\n" });
        text.push_str(&serde_json::to_string(&record.spec.document()).unwrap_or_default());
    }
    if is_last {
        text.push_str("\n]\n");
    }
    text
}

fn as_yaml(records: &[JobRecord]) -> String {
    let documents: Vec<_> = records.iter().map(|record| record.spec.document()).collect();
    let items: Vec<Vec<_>> =
        documents.iter().map(|document| document.fields.iter().map(|(name, value)| (*name, value)).collect()).collect();
    yaml::write(&items)
}

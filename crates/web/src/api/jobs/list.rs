//! Lists jobs.

use axum::response::Response;
use rondel_admin::jobs;
use rondel_core::access::Permission::View;
use rondel_core::name;
use rondel_store::catalog::JobQuery;

use super::find::find_app;
use super::job_json::JobJson;
use crate::api::filling::Filling;
use crate::api::page::{LIMIT_DEFAULT, LIMIT_MAX, Page};
use crate::call::Call;
use crate::cursor::{Listing, invalid};
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

/// The query of the list.
#[derive(Debug)]
pub(crate) struct ListJobs {
    app: Option<String>,
    contains: Option<String>,
    limit: u32,
    cursor: Option<String>,
}

impl FromQuery for ListJobs {
    fn from_query(reader: &mut Reader) -> Self {
        let part = |text: &str| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
            if text.len() <= name::NAME_LEN_MAX && text.chars().all(plain) {
                Ok(text.to_owned())
            } else {
                Err("is no part of a name: a-z, 0-9, '.', '_' and '-'".to_owned())
            }
        };
        Self {
            app: reader.one(Parameter::name("app").about("Only jobs of this app.")),
            contains: reader.parsed(Parameter::pattern("q", "^[a-z0-9._-]{0,100}$").about("Part of the name."), part),
            limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX),
            cursor: reader.one(Parameter::cursor()),
        }
    }
}

pub(super) fn routes() -> Routes {
    Routes::new().get(
        "/api/v1/jobs",
        View,
        list,
        Doc::new("List jobs", "By name, each with its whole definition and its next fire.")
            .json::<Page<JobJson<'static>>>(200, "A page of jobs.")
            .refuses(&[Code::AppNotFound]),
    )
}

async fn list(call: Call<ListJobs>) -> Result<Response, Problem> {
    let query = &call.query;
    let listing = Listing::new("jobs", (call.namespace.id, &query.app, &query.contains));
    let after_name = match &query.cursor {
        None => None,
        Some(cursor) => Some(listing.position::<String>(cursor)?),
    };
    if after_name.as_deref().is_some_and(|after| name::check(after).is_err()) {
        return Err(invalid("does not hold a name"));
    }
    let app = match &query.app {
        None => None,
        Some(app) => Some(find_app(&call, app).await?),
    };
    let mut wanted = JobQuery {
        app,
        within: call.seen_apps(),
        name_contains: query.contains.clone(),
        after_name,
        ..JobQuery::default()
    };
    let mut page = Filling::new(query.limit);
    let cursor = |last: &Option<String>| last.as_ref().map(|name| listing.cursor(name));
    while let Some(count) = page.wanted() {
        // One more shows whether there are more.
        wanted.limit = count + 1;
        let mut records = call.engine().store().jobs(call.namespace.id, &wanted).await?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let has_more = records.len() > count;
        records.truncate(count);
        let fires = jobs::next_fires(call.engine(), &records).await?;
        for (record, next) in records.iter().zip(fires) {
            if !page.add(&JobJson::new(record, &call.namespace.name, next))? {
                return page.answer(cursor(&wanted.after_name));
            }
            wanted.after_name = Some(record.spec.name.clone());
        }
        if !has_more {
            return page.answer(None);
        }
    }
    page.answer(cursor(&wanted.after_name))
}

//! Calendars, and schedules before they are saved.

use rondel_core::calendar::CalendarSpec;
use serde_json::json;

use crate::access::Permission::{Edit, View};
use crate::api::{Page, calendars, schedules};
use crate::openapi::{Doc, Either};
use crate::problem::Code;
use crate::routes::Routes;

type Calendar = calendars::CalendarJson<'static>;

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/calendars",
            View,
            calendars::list,
            Doc::new("List calendars", "By name, without their rules.")
                .json::<Page<calendars::CalendarItem<'static>>>(200, "A page of calendars."),
        )
        .get(
            "/api/v1/calendars/{name}",
            View,
            calendars::get,
            Doc::new("Get a calendar", "With its rule.").json::<Calendar>(200, "The calendar.").with("ETag"),
        )
        .put(
            "/api/v1/calendars/{name}",
            Edit,
            calendars::put,
            Doc::new(
                "Save a calendar",
                "Answers when every job that is planned by it has moved on: no fire due more than a second later runs under the old one.",
            )
            .json::<Calendar>(200, "The calendar, changed.")
            .with("ETag")
            .json::<Calendar>(201, "The calendar, new.")
            .with("ETag")
            .refuses(&[Code::TooManyCalendars])
            .example(json!({
                "description": "days off", "rule": {"days": ["2026-12-24", {"date": "2026-10-01..2026-10-07", "name": "国庆节"}]},
            })),
        )
        .delete(
            "/api/v1/calendars/{name}",
            Edit,
            calendars::delete,
            Doc::new("Delete a calendar", "Refused while a job uses it or another calendar names it.")
                .empty("It is deleted.")
                .refuses(&[Code::CalendarUsed]),
        )
        .post(
            "/api/v1/calendars/{name}/import",
            Edit,
            calendars::import_file,
            Doc::new(
                "Import a calendar",
                "The body is an iCalendar or CSV file of at most 1 MiB, whatever type it is declared as. A CSV file has a header `date`, and `name` and \
                 `kind` (`holiday` or `workday`) where wanted.",
            )
            .json::<Either<Calendar, CalendarSpec>>(200, "The calendar, changed; or with `dry_run`, what it would be.")
            .json::<Calendar>(201, "The calendar, new.")
            .with("ETag")
            .refuses(&[Code::TooManyCalendars]),
        )
        .get(
            "/api/v1/calendars/{name}/users",
            View,
            calendars::users,
            Doc::new("List what uses a calendar", "Calendars that name it and jobs that are planned by it.")
                .json::<Page<calendars::UserJson>>(200, "A page of users."),
        )
        .post(
            "/api/v1/schedules/preview",
            View,
            schedules::post,
            Doc::new("Explain a schedule", "In sentences, with the next fires and warnings, without saving anything.")
                .json::<schedules::PreviewJson>(200, "What it means.")
                .example(json!({"schedule": {"cron": "0 30 2 * * ?", "time_zone": "Europe/Berlin"}, "count": 3})),
        )
}

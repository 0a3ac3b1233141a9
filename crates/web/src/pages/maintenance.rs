//! Forms for maintenance windows, on the page of alerts: plans and ends them.

use std::time::Duration;

use axum::response::Response;
use http::StatusCode;
use rondel_admin::rules::WindowEnd;
use rondel_core::Timestamp;
use rondel_core::maintenance::FiresInside;

use super::alerts::{AlertForms, redirect_back, render_page};
use super::form::Fields;
use super::maintenance_rows::WindowForm;
use super::shell::Page;
use super::texts::Texts;
use super::zones;
use crate::api::maintenance;
use crate::body::refuse_value;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};

impl WindowForm {
    fn from_fields(fields: &Fields) -> Self {
        let text = |field| fields.get(field).trim().to_owned();
        Self {
            app: text("app"),
            reason: text("reason"),
            holds_fires: fields.get("fires") == "hold",
            starts_at: text("starts"),
            until: text("until"),
        }
    }

    fn start_and_end(
        &self,
        length_word: &str,
        now: Timestamp,
        t: &Texts,
    ) -> Result<(Option<Timestamp>, WindowEnd), Problem> {
        let instant = |field: &str, text: &str| {
            zones::typed_instant(zones::clock_and_zone().1, text, now)
                .ok_or_else(|| refuse_value(field, t.alerts_bad_until.to_owned()))
        };
        let starts_at = (!self.starts_at.is_empty()).then(|| instant("/starts_at", &self.starts_at)).transpose()?;
        let after_hours = |count: u64| WindowEnd::After(Duration::from_secs(count * 3600));
        let window_end = match length_word {
            "1h" => after_hours(1),
            "4h" => after_hours(4),
            "8h" => after_hours(8),
            _ => WindowEnd::At(instant("/ends_at", &self.until)?),
        };
        Ok((starts_at, window_end))
    }
}

pub(super) async fn add(page: Page, fields: Fields) -> Result<Response, Problem> {
    let form = WindowForm::from_fields(&fields);
    let app = Some(form.app.clone()).filter(|app| !app.is_empty());
    let fires = if form.holds_fires { FiresInside::Hold } else { FiresInside::Skip };
    let outcome = match form.start_and_end(fields.get("for"), page.engine().now(), page.t) {
        Ok(start_and_end) => {
            maintenance::add_window(&page.call, (app, fires), start_and_end, form.reason.clone()).await.map(|_| ())
        }
        Err(problem) => {
            let permission = match &app {
                Some(app) => page.call.check_app_name(app).await.map(drop),
                None => page.call.check(None, crate::call::forbidden_problem),
            };
            permission.and(Err(problem))
        }
    };
    match outcome {
        Ok(()) => Ok(redirect_back(&fields)),
        Err(problem) if matches!(problem.code(), Code::InvalidBody | Code::TooManyAlerts | Code::AppNotFound) => {
            let errors = super::calendar_form::error_lines(&problem, page.t.lang());
            let forms = AlertForms { window: form, ..AlertForms::default() };
            render_page(&page, StatusCode::UNPROCESSABLE_ENTITY, (forms, errors)).await
        }
        Err(problem) => Err(problem),
    }
}

pub(super) async fn end(
    page: Page,
    Named(id, ..): Named<path::Maintenance>,
    fields: Fields,
) -> Result<Response, Problem> {
    maintenance::end_window(&page.call, &id).await?;
    Ok(redirect_back(&fields))
}

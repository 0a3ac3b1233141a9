//! The frame of every page, with its user, language and headers.

use askama::Template;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use rondel_admin::Engine;
use rondel_core::AppId;
use rondel_core::access::Permission;
use rondel_core::cron::Tz;
use serde_json::Value;

use super::as_code::AsCode;
use super::assets::Assets;
use super::maintenance_rows::{WindowRow, window_row};
pub(crate) use super::nav::Nav;
use super::own_namespace::namespace_into_path;
use super::prefs::{Prefs, Theme};
use super::texts::{Lang, Texts};
use super::zones::{self, Clock};
use crate::call::{Call, GlobalCall};
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::{query_pair, without_lang};
use crate::state::Web;

/// The content security policy of pages. They have no inline scripts or styles; both are loaded from `/static`.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
    connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// How many items a page of a list has.
pub(super) const PAGE_ITEM_COUNT: u32 = 50;

/// The signed-in user, and the namespace that the page shows.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) name: String,
    /// `None` if the user sees no namespace.
    pub(crate) namespace: Option<String>,
    /// Whether the user is an admin of the whole cluster.
    pub(crate) is_admin: bool,
}

/// How many hues the badges of namespaces have.
const HUE_COUNT: u32 = 6;

impl User {
    /// The user of a page that belongs to no namespace. Links on the page keep the namespace in its URL.
    pub(crate) async fn of_global_call<Q>(call: &GlobalCall<Q>) -> Self {
        let is_admin = call.caller.may_anywhere(Permission::Cluster);
        Self { name: call.caller.name().to_owned(), namespace: call.shown_namespace().await, is_admin }
    }
}

/// The data of the layout.
#[derive(Debug)]
pub(crate) struct Shell {
    pub(crate) t: &'static Texts,
    pub(crate) lang: Lang,
    pub(crate) theme: Theme,
    pub(crate) nav: Nav,
    pub(crate) user: Option<User>,
    /// The URL to return to after a preference was changed.
    pub(crate) return_to: String,
    /// The maintenance windows that are open or begin within the hour.
    pub(crate) windows: Vec<WindowRow>,
}

impl Shell {
    pub(crate) fn new(prefs: Prefs, nav: Nav, user: Option<User>, page_url: &str) -> Self {
        Self {
            t: prefs.lang.texts(),
            lang: prefs.lang,
            theme: prefs.theme,
            nav,
            user,
            return_to: namespace_into_path(&without_lang(page_url)),
            windows: Vec::new(),
        }
    }

    /// The CSS class of a namespace's badge. The colour of a name never changes; production namespaces are red.
    pub(crate) fn hue(&self, name: &str) -> String {
        let is_production = name.split(['-', '.', '_']).any(|part| matches!(part, "prod" | "production" | "live"));
        if is_production {
            return "hue-prod".to_owned();
        }
        let hash = name.bytes().fold(0_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
        format!("hue-{}", hash % HUE_COUNT)
    }

    pub(crate) fn style(&self) -> &'static str {
        Assets::style()
    }

    pub(crate) fn script(&self) -> &'static str {
        Assets::script()
    }

    pub(crate) fn run_style(&self) -> &'static str {
        Assets::run_style()
    }

    pub(crate) fn log_script(&self) -> &'static str {
        Assets::log_script()
    }

    pub(crate) fn htmx(&self) -> &'static str {
        Assets::htmx()
    }

    pub(crate) fn logo(&self) -> &'static str {
        Assets::logo()
    }

    pub(crate) fn themes(&self) -> [(Theme, &'static str); 3] {
        Theme::ALL.map(|theme| (theme, theme.name(self.t)))
    }

    /// The clocks to select from. On the page of a job, the job's clock is labelled with its zone.
    pub(crate) fn clocks(&self) -> [(Clock, String); 3] {
        let zone = zones::job_zone();
        Clock::ALL.map(|clock| {
            // If the job's zone is UTC, its button would have the same label as the one for UTC.
            let zone = zone.filter(|zone| clock == Clock::Job && *zone != Tz::UTC);
            (clock, zone.map_or_else(|| clock.name(self.t).to_owned(), zones::short_zone_name))
        })
    }

    /// The clock that the user chose.
    pub(crate) fn clock(&self) -> Clock {
        zones::clock_and_zone().0
    }

    /// The time zone in which the page shows instants.
    pub(crate) fn zone(&self) -> &'static str {
        zones::clock_and_zone().1.name()
    }

    pub(crate) fn langs(&self) -> [Lang; 2] {
        Lang::ALL
    }

    pub(crate) fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }
}

/// The extractor for a signed-in user's request of a page.
#[derive(Debug)]
pub(crate) struct Page<Q = NoQuery> {
    pub(crate) call: Call<WithLang<Q>>,
    pub(crate) prefs: Prefs,
    pub(crate) t: &'static Texts,
    /// The URL of the request, with the namespace in its path.
    page_url: String,
    /// Whether the path of the request also has a page. Most forms are sent to paths of their own.
    is_at_page: bool,
    /// Whether the script requests only a part of the page.
    is_part: bool,
}

/// The query of a page: the parameters of `Q`, and the parameter `lang`, which every page accepts and `Prefs` reads.
#[derive(Debug)]
pub(crate) struct WithLang<Q>(pub(crate) Q);

impl<Q: FromQuery> FromQuery for WithLang<Q> {
    fn from_query(reader: &mut Reader) -> Self {
        reader.single("lang");
        Self(Q::from_query(reader))
    }
}

/// A query without parameters of its own.
#[derive(Debug)]
pub(crate) struct NoQuery;

impl FromQuery for NoQuery {
    fn from_query(_reader: &mut Reader) -> Self {
        Self
    }
}

/// The roles that the caller lacks, as tooltips of the disabled buttons. `None` for a role that the caller has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MissingRoles {
    /// The role to start, cancel and pause.
    pub(crate) operator: Option<&'static str>,
    /// The role to change and delete.
    pub(crate) editor: Option<&'static str>,
}

impl<Q> Page<Q> {
    /// The roles that the caller lacks on an app or, without an app, on the whole namespace.
    pub(crate) fn missing_roles(&self, app: Option<AppId>) -> MissingRoles {
        let is_allowed = |permission| self.call.caller.rights.allow(permission, self.call.namespace.id, app);
        let editor = if app.is_some() { self.t.needs_editor } else { self.t.needs_editor_everywhere };
        MissingRoles {
            operator: (!is_allowed(Permission::Operate)).then_some(self.t.needs_operator),
            editor: (!is_allowed(Permission::Edit)).then_some(editor),
        }
    }

    /// Why the caller may not create a job in this namespace; `None` if the caller may create one in at least one app.
    pub(crate) fn missing_new_job_role(&self) -> Option<&'static str> {
        let may_edit_nowhere = self.call.apps_with(Permission::Edit).is_some_and(|apps| apps.is_empty());
        may_edit_nowhere.then_some(self.t.needs_editor_somewhere)
    }

    pub(crate) const fn engine(&self) -> &Engine {
        self.call.engine()
    }

    pub(crate) const fn query(&self) -> &Q {
        &self.call.query.0
    }

    pub(super) const fn is_part(&self) -> bool {
        self.is_part
    }

    pub(crate) fn page_url(&self) -> &str {
        &self.page_url
    }

    /// A request in the namespace of this page, as code.
    pub(super) fn code(&self, request: (&str, &str), body: Option<&Value>, command: &str) -> AsCode {
        AsCode::new(&self.call.namespace.name, request, body, command)
    }

    pub(crate) fn shell(&self, nav: Nav) -> Shell {
        let user = User {
            name: self.call.caller.name().to_owned(),
            namespace: Some(self.call.namespace.name.clone()),
            is_admin: self.call.caller.may_anywhere(Permission::Cluster),
        };
        let (call, now) = (&self.call, self.engine().now());
        let mut open_windows = rondel_admin::rules::near_maintenance(call.engine(), call.namespace.id);
        open_windows.retain(|record| crate::api::maintenance::is_visible(call, record));
        let windows = open_windows.iter().map(|record| window_row(record, now, self.t)).collect();
        let page_url = match self.is_at_page {
            true => self.page_url.clone(),
            false => format!("{}?{}", nav.path(), query_pair("namespace", &self.call.namespace.name)),
        };
        Shell { windows, ..Shell::new(self.prefs, nav, Some(user), &page_url) }
    }
}

/// Whether the form at this path belongs to the page at the same path.
fn is_page(path: &str) -> bool {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    matches!(parts.as_slice(), ["jobs", _, "edit"] | ["calendars" | "scripts", _] | ["alerts", "channels" | "rules", _])
}

impl<Q: FromQuery + Send> FromRequestParts<Web> for Page<Q> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, web: &Web) -> Result<Self, Problem> {
        let prefs = Prefs::new(&parts.uri, &parts.headers);
        let page_url =
            namespace_into_path(parts.uri.path_and_query().map_or("/", |path_and_query| path_and_query.as_str()));
        let is_at_page = parts.method.is_safe() || is_page(parts.uri.path());
        let is_part = parts.headers.contains_key("hx-request");
        let call = Call::from_request_parts(parts, web).await?;
        Ok(Self { call, prefs, t: prefs.lang.texts(), page_url, is_at_page, is_part })
    }
}

pub(crate) fn html(status: StatusCode, template: &impl Template) -> Result<Response, Problem> {
    let text = template.render().map_err(|error| Problem::internal(format!("a page cannot be written: {error}")))?;
    let mut response = (status, text).into_response();
    set_page_headers(response.headers_mut());
    Ok(response)
}

pub(crate) fn set_page_headers(headers: &mut HeaderMap) {
    let vary = HeaderValue::from_str(&Prefs::vary_value()).unwrap_or(HeaderValue::from_static("*"));
    let pairs: [(HeaderName, HeaderValue); 4] = [
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY)),
        // Without a referrer, browsers would not send the `Origin` of a form.
        (REFERRER_POLICY, HeaderValue::from_static("same-origin")),
        (VARY, vary),
    ];
    for (name, value) in pairs {
        headers.insert(name, value);
    }
}

//! The arguments of every API endpoint: the caller, the namespace and the parsed query.

use std::collections::BTreeSet;

use axum::extract::FromRequestParts;
use http::Uri;
use http::request::Parts;
use rondel_admin::Engine;
use rondel_admin::jobs::JobError;
use rondel_core::access::{Permission, PermittedApps};
use rondel_core::{AppId, FieldError, JobSpec, Run, TraceParent, name};
use rondel_store::catalog::Namespace;

use crate::audit::AuditNote;
use crate::body::refuse_value;
use crate::caller::Caller;
use crate::openapi::{HandlerInputs, Input};
use crate::parameter::Parameter;
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};
use crate::state::Web;
use crate::trace::Trace;

pub(crate) const DEFAULT_NAMESPACE: &str = "default";
const NAMESPACE_PARAMETER: Parameter =
    Parameter::name("namespace").about("The namespace; if left out, the token's own, else `default`.");
/// The parameter `namespace` of a call that belongs to no namespace. It is accepted for clients that send it with every request.
const UNUSED_NAMESPACE_PARAMETER: Parameter =
    Parameter::name("namespace").about("Ignored: the operation does not depend on a namespace.");

/// Extension of a request that has passed the gate: the caller, and the permission that the route needs.
#[derive(Clone, Debug)]
pub(crate) struct AdmittedCaller {
    pub(crate) caller: Caller,
    pub(crate) needed_permission: Permission,
    pub(crate) note: AuditNote,
}

/// A call of an endpoint with the parsed query `Q`. `()` is a query that has at most a namespace.
#[derive(Debug)]
pub(crate) struct Call<Q = ()> {
    pub(crate) web: Web,
    pub(crate) caller: Caller,
    pub(crate) namespace: Namespace,
    pub(crate) query: Q,
    pub(crate) note: AuditNote,
    /// The request's span, the parent of the spans of all work that the call causes.
    pub(crate) trace: Option<TraceParent>,
    /// The permission that the route needs.
    needed_permission: Permission,
    /// Whether the query named the namespace. If it did, links in the answer name it too.
    is_namespace_in_query: bool,
}

/// A call that belongs to no namespace, such as one about users or the cluster. For it, the gate's check of the permission is sufficient;
/// the handler of a [`Call`] must also check the app.
#[derive(Debug)]
pub(crate) struct GlobalCall<Q = ()> {
    pub(crate) web: Web,
    pub(crate) caller: Caller,
    pub(crate) query: Q,
    pub(crate) note: AuditNote,
    /// The namespace in the query, which pages show as the current one.
    query_namespace: Option<String>,
}

impl<Q> GlobalCall<Q> {
    /// The namespace that a page shows as the current one.
    pub(crate) async fn shown_namespace(&self) -> Option<String> {
        shown_namespace(self.engine(), &self.caller, self.query_namespace.as_deref()).await
    }

    pub(crate) const fn engine(&self) -> &Engine {
        &self.web.engine
    }
}

fn describe_query<Q: FromQuery>(inputs: &mut HandlerInputs) {
    let parameters = Reader::parameters_of::<Q>();
    inputs.refusals.push(Code::InvalidQuery);
    inputs.refusals.extend(parameters.iter().any(Parameter::is_cursor).then_some(Code::InvalidCursor));
    inputs.query.extend(parameters);
}

impl<Q: FromQuery> Input for GlobalCall<Q> {
    fn describe(inputs: &mut HandlerInputs) {
        inputs.query.push(UNUSED_NAMESPACE_PARAMETER);
        describe_query::<Q>(inputs);
    }
}

impl<Q: FromQuery> Input for Call<Q> {
    fn describe(inputs: &mut HandlerInputs) {
        inputs.query.push(NAMESPACE_PARAMETER);
        inputs.refusals.push(Code::NamespaceNotFound);
        describe_query::<Q>(inputs);
    }
}

impl<Q: FromQuery + Send> FromRequestParts<Web> for GlobalCall<Q> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, web: &Web) -> Result<Self, Problem> {
        let AdmittedCaller { caller, note, .. } = admitted_caller(parts)?;
        let mut reader = Reader::new(&parts.uri);
        let query_namespace = reader.single(UNUSED_NAMESPACE_PARAMETER);
        let query = Q::from_query(&mut reader);
        reader.finish()?;
        Ok(Self { web: web.clone(), caller, query, note, query_namespace })
    }
}

fn admitted_caller(parts: &Parts) -> Result<AdmittedCaller, Problem> {
    parts.extensions.get::<AdmittedCaller>().cloned().ok_or_else(|| Problem::internal("a route has no gate"))
}

impl<Q> Call<Q> {
    pub(crate) const fn engine(&self) -> &Engine {
        &self.web.engine
    }

    /// Checks that the caller has the route's permission on `app` or, without an app, on the namespace. A caller who may not even see the
    /// object gets `not_found`, the answer for an object that does not exist.
    pub(crate) fn check(&self, app: Option<AppId>, not_found: impl FnOnce() -> Problem) -> Result<(), Problem> {
        let is_allowed = |permission| self.caller.rights.allow(permission, self.namespace.id, app);
        if is_allowed(self.needed_permission) {
            Ok(())
        } else if is_allowed(Permission::View) {
            Err(self.missing_role_problem(app))
        } else {
            self.note.mark_denied();
            Err(not_found())
        }
    }

    /// The refusal of a caller who may see the object, with the role that the call needs.
    fn missing_role_problem(&self, app: Option<AppId>) -> Problem {
        let role = role_for(self.needed_permission);
        let detail = if app.is_some() {
            format!("your roles let you view it, but do not allow this: it needs the role {role} for its app")
        } else {
            format!(
                "your roles let you view it, but do not allow this: it needs the role {role} for the whole namespace"
            )
        };
        Problem::new(Code::Forbidden, detail)
    }

    /// Like `check`, for the app with this name; returns its id if it exists. Without the permission on the whole namespace, an app that
    /// does not exist is refused like an existing one, so that callers cannot learn which apps exist.
    pub(crate) async fn check_app_name(&self, app: &str) -> Result<Option<AppId>, Problem> {
        let app_id =
            if name::check(app).is_ok() { self.engine().store().app(self.namespace.id, app).await? } else { None };
        let app_id = app_id.map(|app| app.id);
        if self.caller.rights.allow(self.needed_permission, self.namespace.id, app_id) {
            return Ok(app_id);
        }
        self.note.set_object(app);
        Err(Problem::new(Code::Forbidden, format!("your roles do not cover app {}", quoted_input(app))))
    }

    /// Checks that the caller may save this definition: the caller needs the permission on the app, and must be able to see the parent
    /// jobs.
    pub(crate) async fn check_definition(&self, spec: &JobSpec) -> Result<(), Problem> {
        self.check_app_name(&spec.app).await?;
        if self.apps_with(Permission::View).is_none() {
            return Ok(());
        }
        for parent in spec.parents() {
            let parent_job = match name::check(parent.name) {
                Ok(()) => self.engine().store().job(self.namespace.id, parent.name).await?,
                Err(_) => None,
            };
            if !parent_job.is_some_and(|parent_job| self.may_view(parent_job.app)) {
                let message = format!("there is no job {} that you may see", quoted_input(parent.name));
                return Err(refuse_value("/schedule", message));
            }
        }
        Ok(())
    }

    /// Whether the caller may see the job with this name.
    pub(crate) async fn may_view_job(&self, name: &str) -> Result<bool, Problem> {
        if self.visible_apps().is_none() {
            return Ok(true);
        }
        Ok(self.engine().store().job(self.namespace.id, name).await?.is_some_and(|job| self.may_view(job.app)))
    }

    /// Which of these names belong to existing jobs that the caller may not see.
    pub(crate) async fn hidden_jobs(&self, names: &[String]) -> Result<BTreeSet<String>, Problem> {
        if self.visible_apps().is_none() || names.is_empty() {
            return Ok(BTreeSet::new());
        }
        // An invalid name is not looked up: the database never gets unchecked text from a caller.
        let names: BTreeSet<&str> = names.iter().map(String::as_str).filter(|name| name::check(name).is_ok()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let jobs = self.engine().store().listed_jobs_named(self.namespace.id, &names).await?;
        Ok(jobs.iter().filter(|job| !self.may_view(job.app())).map(|job| job.name().to_owned()).collect())
    }

    /// The problem for an error. It does not name jobs that the caller may not see.
    pub(crate) async fn job_problem(&self, error: JobError) -> Problem {
        match error {
            JobError::IsParent { children } => match self.hidden_jobs(&children).await {
                Ok(hidden_children) => {
                    let visible_children = children.iter().filter(|name| !hidden_children.contains(*name));
                    Problem::of_parent_job(
                        &visible_children.map(String::as_str).collect::<Vec<_>>(),
                        hidden_children.len(),
                    )
                }
                Err(problem) => problem,
            },
            JobError::Invalid(errors) => match self.complaints(errors).await {
                Ok(complaints) => Problem::of_complaints(Code::InvalidBody, complaints),
                Err(problem) => problem,
            },
            error => error.into(),
        }
    }

    /// The complaints for errors in definitions. `…` replaces the names of jobs that the caller may not see.
    pub(crate) async fn complaints(&self, errors: Vec<FieldError>) -> Result<Vec<Complaint>, Problem> {
        let names: Vec<String> = errors.iter().flat_map(|error| &error.jobs).cloned().collect();
        let hidden_names = self.hidden_jobs(&names).await?;
        let complaint = |error: FieldError| {
            let shown_name = |name: &String| if hidden_names.contains(name) { "…" } else { name.as_str() }.to_owned();
            let shown_names = error.jobs.iter().map(shown_name).collect::<Vec<_>>().join(" -> ");
            let mut complaint = Complaint::from(error);
            if !shown_names.is_empty() {
                complaint.message.push_str(&format!(": {shown_names}"));
            }
            complaint
        };
        Ok(errors.into_iter().map(complaint).collect())
    }

    /// Which of these apps do not exist, or may not be seen by the caller. Empty for a caller who may see the whole namespace.
    pub(crate) async fn hidden_apps(&self, names: BTreeSet<String>) -> Result<BTreeSet<String>, Problem> {
        self.apps_without(Permission::View, names).await
    }

    /// Which of these apps do not exist, or which the caller lacks `permission` on. Empty for a caller who has it on the whole namespace.
    pub(crate) async fn apps_without(
        &self,
        permission: Permission,
        names: BTreeSet<String>,
    ) -> Result<BTreeSet<String>, Problem> {
        let mut refused_apps = BTreeSet::new();
        if self.apps_with(permission).is_none() {
            return Ok(refused_apps);
        }
        for name in names {
            let app = self.engine().store().app(self.namespace.id, &name).await?;
            let is_allowed = |app: AppId| self.caller.rights.allow(permission, self.namespace.id, Some(app));
            if app.is_none_or(|app| !is_allowed(app.id)) {
                refused_apps.insert(name);
            }
        }
        Ok(refused_apps)
    }

    /// Whether the caller may see the objects of this app.
    pub(crate) fn may_view(&self, app: AppId) -> bool {
        self.caller.rights.allow(Permission::View, self.namespace.id, Some(app))
    }

    /// The apps on which the caller has `permission`; `None` if the caller has it on the whole namespace.
    pub(crate) fn apps_with(&self, permission: Permission) -> Option<Vec<AppId>> {
        match self.caller.rights.permitted_apps(permission, self.namespace.id) {
            PermittedApps::All => None,
            PermittedApps::Apps(apps) => Some(apps.into_iter().collect()),
        }
    }

    /// The apps that the caller may see; `None` for the whole namespace.
    pub(crate) fn visible_apps(&self) -> Option<Vec<AppId>> {
        self.apps_with(Permission::View)
    }

    /// The names of the apps that the caller may see; `None` for all.
    pub(crate) async fn visible_app_names(&self) -> Result<Option<Vec<String>>, Problem> {
        let Some(visible_apps) = self.visible_apps() else { return Ok(None) };
        let apps = self.engine().store().apps(self.namespace.id).await?;
        Ok(Some(apps.into_iter().filter(|app| visible_apps.contains(&app.id)).map(|app| app.name).collect()))
    }

    /// Conceals in `runs` the names of jobs that the caller may not see.
    pub(crate) async fn conceal(&self, runs: &mut [Run]) -> Result<(), Problem> {
        Ok(self.engine().conceal(self.namespace.id, self.visible_apps().as_deref(), runs).await?)
    }

    /// `path` as a link, with the namespace if the request's query names it.
    pub(crate) fn link(&self, path: &str) -> String {
        if self.is_namespace_in_query { format!("{path}?namespace={}", self.namespace.name) } else { path.to_owned() }
    }
}

impl<Q: FromQuery + Send> FromRequestParts<Web> for Call<Q> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, web: &Web) -> Result<Self, Problem> {
        let AdmittedCaller { caller, needed_permission, note } = admitted_caller(parts)?;
        let mut reader = Reader::new(&parts.uri);
        let namespace_name = reader.single(NAMESPACE_PARAMETER);
        let query = Q::from_query(&mut reader);
        reader.finish()?;
        let namespace = match &namespace_name {
            Some(name) => visible_namespace(&web.engine, &caller, name).await?,
            None => namespace_of_caller(&web.engine, &caller).await?,
        };
        note.set_namespace(&namespace.name);
        let trace = parts.extensions.get::<Trace>().and_then(|Trace(trace)| *trace);
        Ok(Self {
            web: web.clone(),
            caller,
            namespace,
            query,
            note,
            trace,
            needed_permission,
            is_namespace_in_query: namespace_name.is_some(),
        })
    }
}

pub(crate) async fn namespace_by_name(engine: &Engine, name: &str) -> Result<Namespace, Problem> {
    // An invalid name is not looked up: the database never gets unchecked text from a caller.
    let namespace = if name::check(name).is_ok() { engine.store().namespace(name).await? } else { None };
    namespace.ok_or_else(|| missing_namespace_problem(name))
}

/// The namespace with this name. If the caller may not see anything in it, the answer is the same as for a missing namespace.
pub(crate) async fn visible_namespace(engine: &Engine, caller: &Caller, name: &str) -> Result<Namespace, Problem> {
    let namespace = namespace_by_name(engine, name).await?;
    if caller.rights.allow(Permission::View, namespace.id, None) {
        return Ok(namespace);
    }
    Err(missing_namespace_problem(name))
}

/// The namespaces in which the caller may see something.
pub(crate) async fn visible_namespaces(engine: &Engine, caller: &Caller) -> Result<Vec<Namespace>, Problem> {
    let namespaces = engine.store().namespaces().await?;
    Ok(namespaces.into_iter().filter(|namespace| caller.rights.allow(Permission::View, namespace.id, None)).collect())
}

/// The namespace that the query of a page names.
pub(crate) fn named_namespace(uri: &Uri) -> Option<String> {
    uri.query()?;
    Reader::new(uri).single("namespace")
}

/// The namespace that a page shows as the current one: the one named in the page's URL, else the caller's default.
pub(crate) async fn shown_namespace(engine: &Engine, caller: &Caller, name: Option<&str>) -> Option<String> {
    let namespace = match name {
        Some(name) => visible_namespace(engine, caller, name).await,
        None => namespace_of_caller(engine, caller).await,
    };
    namespace.ok().map(|namespace| namespace.name)
}

/// The caller's default namespace: that of its token, if the token has one. Otherwise it is `default` if the caller may see that namespace,
/// else the first one that the caller may see.
async fn namespace_of_caller(engine: &Engine, caller: &Caller) -> Result<Namespace, Problem> {
    let mut namespaces = visible_namespaces(engine, caller).await?;
    let default_namespace = match caller.namespace() {
        Some(id) => namespaces.into_iter().find(|namespace| namespace.id == id),
        None => {
            let index = namespaces.iter().position(|namespace| namespace.name == DEFAULT_NAMESPACE).unwrap_or(0);
            (index < namespaces.len()).then(|| namespaces.swap_remove(index))
        }
    };
    default_namespace.ok_or_else(|| Problem::new(Code::NamespaceNotFound, "there is no namespace that you may see"))
}

fn missing_namespace_problem(name: &str) -> Problem {
    Problem::new(Code::NamespaceNotFound, format!("there is no namespace {}", quoted_input(name)))
}

/// The refusal of an action on an object that the caller may see but not change.
pub(crate) fn forbidden_problem() -> Problem {
    Problem::new(Code::Forbidden, "your roles let you view it, but do not allow this")
}

/// The role that gives a permission.
pub(crate) const fn role_for(permission: Permission) -> &'static str {
    match permission {
        Permission::SignedIn | Permission::View => "viewer",
        Permission::ViewEverywhere => "viewer everywhere",
        Permission::Operate => "operator",
        Permission::Edit => "editor",
        Permission::Admin => "admin",
        Permission::Cluster => "admin everywhere",
    }
}

/// Text from the caller for use in a message: cut, quoted, and with control characters escaped.
pub(crate) fn quoted_input(text: &str) -> String {
    let shortened_text: String = text.chars().take(name::NAME_LEN_MAX).collect();
    format!("{shortened_text:?}")
}

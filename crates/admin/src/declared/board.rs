//! The declarations of the executors connected to this node, and the problems found in them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rondel_core::{AppId, ExecutorId, NamespaceId};
use rondel_proto::v1;
use rondel_proto::v1::server_message::Body;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use super::DeclarationProblem;
use crate::dispatch::SessionHandle;

/// Maximum number of jobs that one executor can declare.
const COUNT_MAX: usize = 1_000;
/// Maximum total size of the definitions that one executor declares, in bytes of JSON.
const BYTES_MAX: usize = 1024 * 1024;
/// Maximum total size of the different sets that the connected executors of one app declare, in bytes of JSON.
const APP_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The jobs that one hello declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeclaredSet {
    /// SHA-256 of `specs`, in hex.
    pub(super) hash: String,
    /// The definitions, as a JSON array; a definition that is not JSON is a string in the array.
    pub(super) specs: String,
    /// The names of the jobs, as problems refer to them.
    names: BTreeSet<String>,
    /// Why the whole set is refused; `None` if it is not.
    pub(super) refusal: Option<DeclarationProblem>,
}

/// The problem of a set that is refused as a whole.
fn refusal_of_all(message: String) -> DeclarationProblem {
    DeclarationProblem { job: "all".to_owned(), pointer: String::new(), message }
}

/// The name by which problems refer to a definition: its own name, or its index in the set if it has no name.
pub(super) fn job_label(index: usize, spec: &serde_json::Value) -> String {
    let name = spec.get("name").and_then(serde_json::Value::as_str);
    name.map_or_else(|| format!("job {index}"), str::to_owned)
}

impl DeclaredSet {
    /// If a set is too large, refuses all of it: it would be confusing if only some of an executor's jobs were applied.
    pub(crate) fn new(declared: &[v1::DeclaredJob]) -> Self {
        let bytes: usize = declared.iter().map(|job| job.spec_json.len()).sum();
        let is_too_large = declared.len() > COUNT_MAX || bytes > BYTES_MAX;
        let refusal = is_too_large.then(|| {
            refusal_of_all(format!(
                "{} jobs with {bytes} bytes of JSON are declared; at most {COUNT_MAX} and {BYTES_MAX} bytes are accepted",
                declared.len()
            ))
        });
        let accepted_jobs = if is_too_large { &[] } else { declared };
        let parse = |job: &v1::DeclaredJob| {
            serde_json::from_str(&job.spec_json).unwrap_or_else(|_| serde_json::Value::String(job.spec_json.clone()))
        };
        let specs: Vec<serde_json::Value> = accepted_jobs.iter().map(parse).collect();
        let names = specs.iter().enumerate().map(|(index, spec)| job_label(index, spec)).collect();
        let specs = serde_json::Value::Array(specs).to_string();
        let hash = Sha256::digest(specs.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { hash, specs, names, refusal }
    }

    /// Whether the executor declares anything.
    pub(super) fn has_content(&self) -> bool {
        !self.names.is_empty() || self.refusal.is_some()
    }

    /// The problems of an app that concern this executor's declarations.
    pub(super) fn problems_of_executor(&self, problems: &[DeclarationProblem]) -> Vec<DeclarationProblem> {
        let is_own =
            |problem: &&DeclarationProblem| self.refusal.as_ref() == Some(problem) || self.names.contains(&problem.job);
        problems.iter().filter(is_own).cloned().collect()
    }
}

/// An executor that is connected here, with its declarations.
#[derive(Clone, Debug)]
pub(crate) struct DeclaringExecutor {
    pub(crate) session: SessionHandle,
    pub(crate) namespace: NamespaceId,
    pub(crate) app: AppId,
    pub(crate) app_name: String,
    pub(crate) declared_set: Arc<DeclaredSet>,
}

#[derive(Debug, Default)]
pub(crate) struct DeclarationBoard {
    state: Mutex<BoardState>,
    pub(super) poke: Notify,
}

#[derive(Debug, Default)]
struct BoardState {
    executors: HashMap<ExecutorId, DeclaringExecutor>,
    problems: HashMap<AppId, Vec<DeclarationProblem>>,
}

impl BoardState {
    /// The declared set of an executor. If another executor of its app declares an equal set, returns that executor's copy. Returns a refused
    /// set if the different sets of the app would exceed [`APP_BYTES_MAX`].
    fn bounded_set(&self, executor: &DeclaringExecutor) -> Arc<DeclaredSet> {
        let own_set = &executor.declared_set;
        if !own_set.has_content() {
            return Arc::clone(own_set);
        }
        let is_other_of_app = |other: &&DeclaringExecutor| {
            other.app == executor.app && other.session.executor != executor.session.executor
        };
        let other_sets = || self.executors.values().filter(is_other_of_app).map(|other| &other.declared_set);
        if let Some(equal_set) = other_sets().find(|set| *set == own_set) {
            return Arc::clone(equal_set);
        }
        let sizes_by_hash: BTreeMap<&str, usize> =
            other_sets().map(|set| (set.hash.as_str(), set.specs.len())).collect();
        let bytes = sizes_by_hash.values().sum::<usize>() + own_set.specs.len();
        if bytes <= APP_BYTES_MAX {
            return Arc::clone(own_set);
        }
        let message = format!(
            "the connected executors of the app declare {bytes} bytes of JSON in {} different sets of jobs; at most {APP_BYTES_MAX} bytes \
             are accepted; stop executors of other builds, then start this one again",
            sizes_by_hash.len() + 1
        );
        Arc::new(DeclaredSet { refusal: Some(refusal_of_all(message)), ..DeclaredSet::new(&[]) })
    }
}

impl DeclarationBoard {
    fn lock(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an executor that came online, unless the board already has a newer stream of it.
    pub(crate) fn join(&self, mut executor: DeclaringExecutor) {
        let mut state = self.lock();
        let known_executor = state.executors.get(&executor.session.executor);
        if known_executor.is_none_or(|known| executor.session.is_newer_than(&known.session)) {
            executor.declared_set = state.bounded_set(&executor);
            state.executors.insert(executor.session.executor, executor);
        }
        drop(state);
        self.poke.notify_one();
    }

    /// Removes an executor whose stream has ended, unless the executor has a newer stream.
    pub(crate) fn leave(&self, executor: ExecutorId, session_number: u64) {
        let mut state = self.lock();
        if state.executors.get(&executor).is_some_and(|known| known.session.number == session_number) {
            state.executors.remove(&executor);
        }
    }

    /// The connected executors, keyed by their apps.
    pub(super) fn executors_by_app(&self) -> BTreeMap<AppId, Vec<DeclaringExecutor>> {
        let mut executors_by_app: BTreeMap<AppId, Vec<DeclaringExecutor>> = BTreeMap::new();
        let mut declaring_executors: Vec<DeclaringExecutor> = self.lock().executors.values().cloned().collect();
        declaring_executors.sort_by_key(|executor| executor.session.executor);
        for executor in declaring_executors {
            executors_by_app.entry(executor.app).or_default().push(executor);
        }
        executors_by_app
    }

    /// The problems of the jobs that an app's code declares.
    pub(crate) fn problems(&self, app: AppId) -> Vec<DeclarationProblem> {
        self.lock().problems.get(&app).cloned().unwrap_or_default()
    }

    /// Keeps only the problems of the apps for which `is_kept` returns true. No executor of the other apps is connected here any more.
    pub(super) fn keep_problems_of(&self, is_kept: impl Fn(AppId) -> bool) {
        self.lock().problems.retain(|app, _| is_kept(*app));
    }

    /// Stores the problems; returns whether they have changed.
    pub(super) fn set_problems(&self, app: AppId, problems: &[DeclarationProblem]) -> bool {
        let mut state = self.lock();
        let has_changed = state.problems.get(&app).map_or(!problems.is_empty(), |known| known != problems);
        if problems.is_empty() {
            state.problems.remove(&app);
        } else {
            state.problems.insert(app, problems.to_vec());
        }
        has_changed
    }
}

/// Sends an executor the full list of its problems.
pub(super) fn send_problems(session: &SessionHandle, problems: &[DeclarationProblem]) {
    let messages = problems.iter().map(|problem| v1::DeclarationProblem {
        job: problem.job.clone(),
        pointer: problem.pointer.clone(),
        message: problem.message.clone(),
    });
    session.send(Body::DeclarationProblems(v1::DeclarationProblems { problems: messages.collect() }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(spec_json: &str) -> v1::DeclaredJob {
        v1::DeclaredJob { spec_json: spec_json.to_owned() }
    }

    #[test]
    fn a_set_is_known_by_its_content_and_not_by_its_spelling() {
        let one = DeclaredSet::new(&[job(r#"{"name": "a", "app": "b"}"#), job("{")]);
        let other = DeclaredSet::new(&[job(r#"{"app":"b","name":"a"}"#), job("{")]);
        assert_eq!(one, other);
        assert_eq!(one.specs, r#"[{"app":"b","name":"a"},"{"]"#);
        assert_eq!(one.hash.len(), 64);
        assert_ne!(one.hash, DeclaredSet::new(&[]).hash);
    }

    #[test]
    fn an_executor_has_the_problems_of_its_own_jobs_alone() {
        let problem = |job: &str| DeclarationProblem {
            job: job.to_owned(),
            pointer: String::new(),
            message: "is wrong".to_owned(),
        };
        let all = ["a", "all", "b", "job 1"].map(problem);
        let of_executor = |declared_set: &DeclaredSet| {
            declared_set.problems_of_executor(&all).into_iter().map(|problem| problem.job).collect::<Vec<_>>()
        };
        let two = DeclaredSet::new(&[job(r#"{"name": "b"}"#), job("{}")]);
        assert_eq!((two.has_content(), of_executor(&two)), (true, vec!["b".to_owned(), "job 1".to_owned()]));
        let none = DeclaredSet::new(&[]);
        assert!(!none.has_content() && of_executor(&none).is_empty());
        let refused = DeclaredSet { refusal: Some(all[1].clone()), ..none };
        assert_eq!((refused.has_content(), of_executor(&refused)), (true, vec!["all".to_owned()]));
    }

    #[test]
    fn problems_end_with_the_executors_of_their_app() {
        let board = DeclarationBoard::default();
        let problem =
            DeclarationProblem { job: "a".to_owned(), pointer: String::new(), message: "is wrong".to_owned() };
        let (stays, goes) = (AppId::new(1), AppId::new(2));
        for app in [stays, goes] {
            assert!(board.set_problems(app, std::slice::from_ref(&problem)));
        }
        board.keep_problems_of(|app| app == stays);
        assert_eq!((board.problems(stays).len(), board.problems(goes).len()), (1, 0));
        assert!(board.set_problems(goes, &[problem]), "they are news again");
    }

    #[test]
    fn too_much_is_refused_as_a_whole() {
        let many: Vec<_> = (0..=COUNT_MAX).map(|_| job("{}")).collect();
        let big = [job(&format!("\"{}\"", "x".repeat(BYTES_MAX)))];
        for declared in [&many[..], &big[..]] {
            let declared_set = DeclaredSet::new(declared);
            assert_eq!(declared_set.specs, "[]");
            assert!(declared_set.refusal.unwrap().message.contains("at most 1000"));
        }
    }

    #[test]
    fn the_different_sets_of_an_app_are_bounded_and_equal_ones_are_shared() {
        let board = DeclarationBoard::default();
        let join = |app: i64, id: i64, text: char| {
            let (session, online, _) = crate::dispatch::tests_support::executor(id, 1);
            let spec = job(&format!("\"{}\"", text.to_string().repeat(BYTES_MAX - 2)));
            board.join(DeclaringExecutor {
                session,
                namespace: online.namespace,
                app: AppId::new(app),
                app_name: online.app_name,
                declared_set: Arc::new(DeclaredSet::new(&[spec])),
            });
        };
        let texts = ('a'..='z').zip(1..);
        for (text, id) in texts {
            join(1, id, text);
        }
        join(1, 27, 'a');
        join(2, 28, 'z');
        let by_app = board.executors_by_app();
        let sets: Vec<_> = by_app[&AppId::new(1)].iter().map(|one| &one.declared_set).collect();
        let bytes: usize = sets[..26].iter().map(|set| set.specs.len()).sum();
        assert!((APP_BYTES_MAX - 2 * BYTES_MAX..=APP_BYTES_MAX).contains(&bytes), "{bytes}");
        assert!(sets[0].refusal.is_none() && Arc::ptr_eq(sets[0], sets[26]), "an equal set takes nothing more");
        assert!(sets[25].refusal.as_ref().is_some_and(|problem| problem.message.contains("different sets")));
        assert!(by_app[&AppId::new(2)][0].declared_set.refusal.is_none(), "each app has its own limit");
    }
}

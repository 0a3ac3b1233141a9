use serde_json::json;

use super::*;
use crate::dispatch::tests_support::{definition, executor, ready};

/// Joins an executor as the dispatcher does, and returns its name.
fn join(executors: &mut Executors, id: i64, predecessor: Option<i64>) -> String {
    let (session, mut online, _stream) = executor(id, 1);
    let predecessor = predecessor.map(ExecutorId::new);
    "pod".clone_into(&mut online.name);
    online.name = executors.distinct_name(&online, predecessor);
    executors.join(session, &online, Report { predecessor, ..Report::default() });
    online.name
}

#[test]
fn executors_of_xxl_job_are_hashed_by_their_addresses() {
    let (address, mut executors) = ("http://10.0.0.5:9999/", Executors::default());
    for (id, label, place) in [(1, labels::XXL_ADDRESS, address), (2, "address", "10.0.0.5-9999")] {
        let (session, mut online, _stream) = executor(id, 1);
        "10.0.0.5-9999".clone_into(&mut online.name);
        online.labels = [(label.to_owned(), address.to_owned())].into();
        executors.join(session, &online, Report::default());
        let joined = executors.get(ExecutorId::new(id)).unwrap();
        assert_eq!(joined.hash_points, HashPoints::at("10.0.0.5-9999", place));
    }
}

#[test]
fn two_of_one_name_are_two_unless_one_proves_to_be_the_other() {
    let mut executors = Executors::default();
    assert_eq!(join(&mut executors, 1, None), "pod");
    assert_eq!(join(&mut executors, 0xabc_def0, None), "pod~bcdef0");
    assert_eq!(join(&mut executors, 1, None), "pod", "the same one again");
    assert_eq!(join(&mut executors, 3, Some(1)), "pod", "its successor");
    assert_eq!(join(&mut executors, 4, Some(1)), "pod", "the next one, where no server had answered the one before");
    let job = definition(&json!({"select": {"executors": ["pod"]}}));
    let mut wanted = ready(1, &job);
    let fit = executors.fit_executors(&wanted);
    assert_eq!(fit.iter().map(|online| online.name.as_str()).collect::<Vec<_>>(), ["pod", "pod", "pod", "pod~bcdef0"]);
    wanted.run.only_executor = Some("pod".to_owned());
    assert_eq!(executors.fit_executors(&wanted).len(), 4, "they share the name");
    wanted.run.only_executor = Some("pod~bcdef0".to_owned());
    assert_eq!(executors.fit_executors(&wanted).len(), 0, "a caller names what the executor names itself");
}

/// The executor that had the name first is gone when the other one connects again.
#[test]
fn an_executor_whose_name_changes_is_listed_once() {
    let mut executors = Executors::default();
    join(&mut executors, 1, None);
    assert_eq!(join(&mut executors, 2, None), "pod~000002");
    assert!(executors.leave(ExecutorId::new(1), 1, Timestamp::EPOCH).is_some());
    assert_eq!(join(&mut executors, 2, None), "pod");
    let names: Vec<&str> = executors.executors_in_app(AppId::new(1)).map(|online| online.name.as_str()).collect();
    assert_eq!(names, ["pod"]);
    assert!(executors.leave(ExecutorId::new(2), 1, Timestamp::EPOCH).is_some());
    assert!(executors.by_app.values().all(BTreeMap::is_empty));
}

#[test]
fn an_executor_heard_elsewhere_stays_watched() {
    let (mut executors, at) = (Executors::default(), Timestamp::from_secs);
    let (session, online, _stream) = executor(1, 7);
    executors.join(session, &online, Report::default());
    let id = online.id;
    executors.watch(id, at(10));
    assert!(executors.leave(id, 6, at(20)).is_none(), "an older stream");
    assert!(executors.suspects(at(1_000)).is_empty(), "it is here");
    assert!(executors.leave(id, 7, at(20)).is_some());
    assert_eq!(executors.suspects(at(20)), []);
    assert_eq!(executors.suspects(at(21)), [id]);
    executors.watch(id, at(30));
    executors.watch(id, at(25));
    assert_eq!((executors.suspects(at(30)), executors.suspects(at(31))), (vec![], vec![id]));
    assert!(
        executors.record_loss(id, at(60), at(0)) && executors.is_lost(id) && !executors.record_loss(id, at(61), at(0))
    );
    let (session, online, _stream) = executor(1, 8);
    executors.join(session, &online, Report::default());
    assert!(!executors.is_lost(id) && !executors.record_loss(id, at(62), at(0)));
}

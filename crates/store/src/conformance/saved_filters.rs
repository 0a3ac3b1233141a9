//! Checks of saved filters.

use rondel_core::Timestamp;

use super::access::account;
use crate::Store;
use crate::access::AccountChanged;
use crate::saved_filters::{FilterOwner, FilteredList, SAVED_FILTER_COUNT_MAX, SavedFilter};

fn filter(list: FilteredList, name: &str, text: &str) -> SavedFilter {
    SavedFilter { list, name: name.to_owned(), filter: text.to_owned() }
}

/// Filters are stored by owner, list and name. An owner never has more than the maximum, even if several are saved at the same time.
pub async fn saved_filters_are_kept_by_name_and_bounded(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let (ann, bob) = (account(Vec::new(), now), account(Vec::new(), now));
    for one in [&ann, &bob] {
        assert!(store.create_account(one).await.unwrap());
    }
    let (owner, other) = (FilterOwner::Account(ann.id), FilterOwner::Account(bob.id));
    let at = Timestamp::from_secs;
    let failed = filter(FilteredList::Runs, "Fehler <b>", "status:failed \"a b\"");
    assert!(store.save_filter(owner, &failed, at(1)).await.unwrap());
    let jobs = filter(FilteredList::Jobs, "Fehler <b>", "is:failing");
    assert!(store.save_filter(owner, &jobs, at(2)).await.unwrap());
    let replaced = filter(FilteredList::Runs, "Fehler <b>", "status:failed 支付");
    for _ in 0..2 {
        assert!(store.save_filter(owner, &replaced, at(3)).await.unwrap());
    }
    assert_eq!(store.saved_filters(owner).await.unwrap(), [jobs.clone(), replaced.clone()]);
    assert!(store.saved_filters(other).await.unwrap().is_empty());
    assert!(!store.delete_filter(other, FilteredList::Runs, "Fehler <b>").await.unwrap());
    assert!(store.delete_filter(owner, FilteredList::Runs, "Fehler <b>").await.unwrap());
    assert!(!store.delete_filter(owner, FilteredList::Runs, "Fehler <b>").await.unwrap());
    assert_eq!(store.saved_filters(owner).await.unwrap(), [jobs]);

    for number in 1..SAVED_FILTER_COUNT_MAX - 1 {
        let one = filter(FilteredList::Runs, &format!("n{number:02}"), "");
        assert!(store.save_filter(owner, &one, at(4)).await.unwrap());
    }
    // The owner may save one more filter, and two requests try to.
    let (one, two) = (filter(FilteredList::Runs, "x1", "a"), filter(FilteredList::Runs, "x2", "b"));
    let (first, second) = tokio::join!(store.save_filter(owner, &one, at(5)), store.save_filter(owner, &two, at(5)));
    let saved = [first.unwrap(), second.unwrap()].into_iter().filter(|saved| *saved).count();
    assert_eq!((saved, store.saved_filters(owner).await.unwrap().len()), (1, SAVED_FILTER_COUNT_MAX));
    let known = filter(FilteredList::Runs, "n01", "status:failed");
    assert!(store.save_filter(owner, &known, at(6)).await.unwrap(), "one that is there can be replaced");
    assert_eq!(store.delete_account(ann.id).await.unwrap(), AccountChanged::Done);
    assert!(store.saved_filters(owner).await.unwrap().is_empty(), "they go with their owner");
}

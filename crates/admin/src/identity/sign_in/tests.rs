use std::sync::Arc;

use rondel_core::access::{Grant, Role};
use rondel_store::MemStore;

use super::*;

const START: Timestamp = Timestamp::from_secs(1_790_000_000);

async fn store() -> (MemStore, Passwords, Account) {
    let (store, passwords) = (MemStore::new(Arc::new(|| START)), Passwords::default());
    let account = Account {
        id: AccountId::new(7),
        name: "ann".to_owned(),
        display_name: "Ann".to_owned(),
        password: Some(passwords.hash("correct horse").await.unwrap()),
        disabled: false,
        created_at: START,
        password_changed_at: None,
        provider_linked_at: None,
        grants: vec![Grant::everywhere(Role::Viewer)],
    };
    use rondel_store::Accounts as _;
    assert!(store.create_account(&account).await.unwrap());
    (store, passwords, account)
}

#[tokio::test]
async fn ten_thousand_guesses_are_a_few() {
    let (store, passwords, _) = store().await;
    let (mut wrong, mut blocked) = (0, 0);
    for guess in 0..10_000_u32 {
        let from = Some(IpAddr::from(guess.to_be_bytes()));
        match by_password(&store, &passwords, ("ann", "a wrong guess"), from, START).await.unwrap() {
            SignIn::Wrong => wrong += 1,
            SignIn::Blocked(until) => {
                assert_eq!(until, START + ATTEMPT_WINDOW);
                blocked += 1;
            }
            SignIn::Welcome(_) => unreachable!("it was wrong"),
        }
    }
    assert_eq!((wrong, blocked), (ACCOUNT_ATTEMPT_COUNT_MAX, 10_000 - ACCOUNT_ATTEMPT_COUNT_MAX));
    // The right password is blocked too while the window lasts, and works afterwards.
    let right = |at| by_password(&store, &passwords, ("ann", "correct horse"), None, at);
    assert!(matches!(right(START).await.unwrap(), SignIn::Blocked(_)));
    assert!(matches!(right(START + ATTEMPT_WINDOW).await.unwrap(), SignIn::Welcome(_)));
}

#[tokio::test]
async fn one_address_does_not_go_through_all_names() {
    let (store, passwords, _) = store().await;
    let from = Some(IpAddr::from([192, 0, 2, 1]));
    let mut blocked = 0;
    for name in 0..100 {
        let name = format!("name{name}");
        let found = by_password(&store, &passwords, (&name, "x"), from, START).await.unwrap();
        blocked += u32::from(matches!(found, SignIn::Blocked(_)));
    }
    assert_eq!(blocked, 100 - ADDRESS_ATTEMPT_COUNT_MAX);
    let elsewhere = Some(IpAddr::from([192, 0, 2, 2]));
    let found = by_password(&store, &passwords, ("ann", "correct horse"), elsewhere, START).await.unwrap();
    assert!(matches!(found, SignIn::Welcome(_)));
}

#[tokio::test]
async fn junk_of_others_does_not_lock_out_a_browser_that_signed_in_before() {
    let (store, passwords, account) = store().await;
    let home = Some(IpAddr::from([192, 0, 2, 1]));
    let place = SignInClient { address: home, user_agent: String::new() };
    begin(&store, 1, SignInOwner::Account(account.id), &place, START).await.unwrap();
    let attempt = async |name: &str, password: &str, from| {
        by_password(&store, &passwords, (name, password), from, START).await.unwrap()
    };
    for guess in 0..20_u8 {
        attempt("ann", "guess", Some(IpAddr::from([198, 51, 100, guess]))).await;
    }
    // Other names from the same address fill the count of the address.
    for number in 0..100 {
        attempt(&format!("name{number}"), "guess", home).await;
    }
    let elsewhere = Some(IpAddr::from([203, 0, 113, 1]));
    assert!(matches!(attempt("ann", "correct horse", elsewhere).await, SignIn::Blocked(_)));
    assert!(matches!(attempt("ann", "correct horse", home).await, SignIn::Welcome(_)));
    // The success at home resets no counter of other addresses, and guesses from home are bounded too.
    assert!(matches!(attempt("ann", "correct horse", elsewhere).await, SignIn::Blocked(_)));
    let mut wrong = 0;
    while matches!(attempt("ann", "guess", home).await, SignIn::Wrong) {
        wrong += 1;
    }
    assert_eq!(wrong, ACCOUNT_ATTEMPT_COUNT_MAX);
}

#[tokio::test]
async fn arrivals_from_one_address_are_counted() {
    let (store, _, _) = store().await;
    let count = async |from: [u8; 4], at| count_arrival(&store, Some(IpAddr::from(from)), at).await.unwrap();
    for _ in 0..ARRIVAL_COUNT_MAX {
        assert_eq!(count([192, 0, 2, 1], START).await, AttemptDecision::Allowed);
    }
    assert_eq!(count([192, 0, 2, 1], START).await, AttemptDecision::Blocked(START + ATTEMPT_WINDOW));
    assert_eq!(count([192, 0, 2, 2], START).await, AttemptDecision::Allowed);
    assert_eq!(count([192, 0, 2, 1], START + ATTEMPT_WINDOW).await, AttemptDecision::Allowed);
    let refusals = count_attempt_from(&store, Some(IpAddr::from([192, 0, 2, 1])), START).await.unwrap();
    assert_eq!(refusals, AttemptDecision::Allowed, "refusals are counted by themselves");
}

#[tokio::test]
async fn the_key_of_the_buckets_is_drawn_once_for_a_database() {
    let ((ours, ..), (theirs, ..)) = (store().await, store().await);
    let of = async |store: &MemStore| Buckets::of(store, START).await.unwrap().bucket("name", 1 << 40);
    assert_eq!(of(&ours).await, of(&ours).await, "all servers count in the same rows");
    assert_ne!(of(&ours).await, of(&theirs).await);
}

#[tokio::test]
async fn a_sign_in_ends_by_idleness_by_age_and_with_its_account() {
    use rondel_store::Accounts as _;
    let (store, _, account) = store().await;
    let cookie = begin(&store, 1, SignInOwner::Account(account.id), &SignInClient::default(), START).await.unwrap();
    let who = async |at| by_cookie(&store, cookie.reveal(), at).await.unwrap().map(|one| one.rights);
    assert!(who(START).await.is_some_and(|rights| rights == Rights::new(account.grants.clone())));
    assert!(by_cookie(&store, "rondel_of_nobody", START).await.unwrap().is_none());
    let mut at = START;
    while at + IDLE_MAX < START + SESSION_LIFETIME {
        at = at + IDLE_MAX.saturating_sub(Duration::from_secs(1));
        assert!(who(at).await.is_some(), "{at}");
    }
    assert!(who(START + SESSION_LIFETIME).await.is_none(), "its age");
    let second = begin(&store, 2, SignInOwner::Account(account.id), &SignInClient::default(), START).await.unwrap();
    assert!(by_cookie(&store, second.reveal(), START + IDLE_MAX).await.unwrap().is_none(), "idle");
    let lock = rondel_store::access::AccountChange { disabled: Some(true), ..Default::default() };
    store.change_account(account.id, &lock).await.unwrap();
    assert!(by_cookie(&store, second.reveal(), START).await.unwrap().is_none(), "locked out");
}

#[tokio::test]
async fn no_sign_in_begins_with_a_password_that_was_changed_while_it_was_checked() {
    use rondel_store::access::{AccountChange, KeptAccess};
    use rondel_store::{Accounts as _, SignIns as _};
    let (store, passwords, account) = store().await;
    let begun = async |id, account: &Account| {
        begin_by_password(&store, id, account, &SignInClient::default(), START).await.unwrap()
    };
    assert!(begun(1, &account).await.is_some());
    let changed = passwords.hash("battery staple").await.unwrap();
    assert!(store.set_password(account.id, &changed, KeptAccess::default(), START).await.unwrap());
    assert!(begun(2, &account).await.is_none());
    assert!(store.sign_ins(account.id).await.unwrap().is_empty(), "nothing is left of it");
    let present = store.account(account.id).await.unwrap().unwrap();
    assert!(begun(3, &present).await.is_some());
    let lock = AccountChange { disabled: Some(true), ..AccountChange::default() };
    store.change_account(account.id, &lock).await.unwrap();
    assert!(begun(4, &present).await.is_none(), "locked out");
}

#[tokio::test]
async fn a_link_works_once_and_only_for_its_purpose() {
    let (store, _, account) = store().await;
    let secret = create_link(&store, SignInOwner::Account(account.id), START).await.unwrap();
    let secret = secret.reveal();
    assert!(redeem(&store, secret, LinkPurpose::Setup, START).await.unwrap().is_none());
    assert!(redeem(&store, secret, LinkPurpose::SignIn, START + LINK_LIFETIME).await.unwrap().is_none());
    assert!(is_link_valid(&store, secret, LinkPurpose::SignIn, START).await.unwrap());
    assert!(redeem(&store, secret, LinkPurpose::SignIn, START).await.unwrap().is_some());
    assert!(redeem(&store, secret, LinkPurpose::SignIn, START).await.unwrap().is_none());
    assert!(create_setup_link(&store, START).await.unwrap().is_some(), "a viewer is no administrator");
}

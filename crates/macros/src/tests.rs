//! Tests which arguments the attribute refuses and where its errors point, without compiling a program.

use proc_macro2::TokenStream;

use crate::expand::expand;

/// The errors about a job with these arguments: the source text that each points at, and its message.
fn errors_of(args: &str, item: &str) -> Vec<(String, String)> {
    let args: TokenStream = args.parse().unwrap();
    let Err(errors) = expand(args, item.parse().unwrap()) else { return Vec::new() };
    let one = |error: syn::Error| (error.span().source_text().unwrap_or_default(), error.to_string());
    errors.into_iter().map(one).collect()
}

#[track_caller]
fn check_refused(args: &str, at: &str, words: &str) {
    let found = errors_of(args, "async fn close() {}");
    let [(place, message)] = found.as_slice() else { panic!("{args}: {found:?}") };
    assert_eq!(place, at, "{message}");
    assert!(message.contains(words), "{message}");
}

#[test]
fn values_are_checked_by_the_servers_own_parsers() {
    check_refused(r#"cron = "0 30 25 * * ?""#, r#""0 30 25 * * ?""#, "25");
    check_refused(r#"cron = "0 30 2 * * ?", tz = "Mars/Olympus""#, r#""Mars/Olympus""#, "Mars/Olympus");
    check_refused(r#"every = "soon""#, r#""soon""#, "soon");
    check_refused(r#"delay = "0s""#, r#""0s""#, "0s");
    check_refused(r#"at = "tomorrow""#, r#""tomorrow""#, "tomorrow");
    check_refused(r#"timeout = "5""#, r#""5""#, "is not a duration");
    check_refused(r#"name = "Invoices""#, r#""Invoices""#, "is not a name");
    check_refused(r#""Invoices""#, r#""Invoices""#, "is not a name");
    check_refused(r#"after = ["a", "B"]"#, r#"["a", "B"]"#, "\"B\"");
    check_refused(r#"parent = "a", on = "perhaps""#, r#""perhaps""#, "perhaps");
    check_refused(r#"route = "anyone""#, r#""anyone""#, "anyone");
    check_refused("priority = 10", "10", "0 (last) to 9");
    check_refused(r#"overrides = ["day"]"#, r#"["day"]"#, "is not a JSON pointer");
    check_refused(r#"overrides = "some""#, r#""some""#, "some");
    check_refused(r#"labels = ["team=pay", ".x=1"]"#, r#"["team=pay", ".x=1"]"#, "is not a key of a label");
    check_refused(r#"labels = "team=""#, r#""team=""#, "a value has 1 to");
    check_refused(r#"labels = "team""#, r#""team""#, "a pair such as");
    check_refused(r#"labels = ["a=1", "a=2"]"#, r#"["a=1", "a=2"]"#, "different keys");
    check_refused("retry = 101", "101", "at most 100");
    check_refused(r#"retry = 1, backoff = "later""#, r#""later""#, "later");
    check_refused(r#"tz = "Europe/Berlin""#, r#""Europe/Berlin""#, "exactly one of");
}

#[test]
fn every_complaint_is_made() {
    let found = errors_of(r#"cron = "x", timeout = "y", overlap = "z""#, "async fn close() {}");
    assert_eq!(found.iter().map(|(place, _)| place.as_str()).collect::<Vec<_>>(), [r#""y""#, r#""z""#]);
    let found = errors_of(r#"cron = "x", priority = 12"#, "async fn close() {}");
    assert_eq!(found.iter().map(|(place, _)| place.as_str()).collect::<Vec<_>>(), [r#""x""#, "12"]);
}

#[test]
fn the_time_and_the_zone_of_an_expectation_are_read_together() {
    let both = r#"cron = "@daily", success_by = "06:00", success_by_zone = "Europe/Berlin""#;
    assert!(errors_of(both, "async fn close() {}").is_empty(), "{:?}", errors_of(both, "async fn close() {}"));
    check_refused(r#"cron = "@daily", success_by_zone = "Europe/Berlin""#, r#""Europe/Berlin""#, "time");
    let wrong = r#"cron = "@daily", success_by = "06:00", success_by_zone = "Mars/Olympus""#;
    check_refused(wrong, r#""Mars/Olympus""#, "Mars/Olympus");
}

#[test]
fn arguments_are_known_and_given_once() {
    check_refused(r#"crn = "0 30 2 * * ?""#, "crn", "`cron`");
    check_refused(r#"every = "1h", every = "2h""#, "every", "given twice");
    check_refused(r#"after = ["a"], parent = "b""#, "parent", "the same as `after`");
    check_refused(r#"cron = "@daily", every = "1h""#, r#""@daily""#, "exactly one of");
    check_refused(r#"retry = "three""#, r#""three""#, "a whole number");
    check_refused("enabled = 1", "1", "true or false");
    check_refused("cron = NIGHTLY", "NIGHTLY", "a string literal");
}

#[test]
fn functions_that_cannot_be_jobs() {
    let found = errors_of("", "async fn search() {}");
    assert_eq!(found[0].0, "search");
    assert!(found[0].1.contains("a word that the API uses"), "{}", found[0].1);
    assert!(errors_of("", "async fn close<T>(t: T) {}")[0].1.contains("no type parameters"));
    assert!(errors_of("", "struct Close;")[0].1.contains("expected"));
}

#[test]
fn emitted_code_could_be_written_by_hand() {
    let item = "/// Closes.\npub(crate) async fn close(p: Params<u32>) -> Result<(), E> { Ok(()) }";
    let emitted = expand(r#"cron = "@daily", parent_of = 1"#.parse().unwrap(), item.parse().unwrap());
    assert!(emitted.is_err());
    let emitted = expand(r#"cron = "@daily", retry = 3"#.parse().unwrap(), item.parse().unwrap()).unwrap().to_string();
    let plain: String = emitted.split_whitespace().collect();
    for part in [
        "pub(crate)structclose;",
        "pub(crate)asyncfncall(p:Params<u32>)->Result<(),E>",
        "impl::rondel::Jobforclose",
        r#"::rondel::Declaration::new("close").description("Closes.").cron("@daily").retry(3)"#,
        "::rondel::JobHandler::of(Self::call)",
    ] {
        assert!(plain.contains(part), "{part} is not in {plain}");
    }
}

#[test]
fn a_description_has_the_length_that_a_server_accepts() {
    let described = |comment: &str| {
        let item = format!("{comment} async fn close() {{}}");
        let emitted = expand(TokenStream::new(), item.parse().unwrap()).unwrap().to_string();
        let (_, described) = emitted.split_once("description").unwrap();
        described.split('"').nth(1).unwrap().to_owned()
    };
    assert_eq!(described("/// Closes\n/// * all.\n///\n/// At night.\n"), "Closes * all.");
    for comment in ["/** Closes\n * all.\n *\n * At night.\n */", "/**\n * Closes\n * all.\n */", "/** Closes\nall. */"]
    {
        assert_eq!(described(comment), "Closes all.", "{comment}");
    }
    let long = described(&format!("/// {}\n", "x".repeat(2_000)));
    assert!(long.len() == rondel_core::job::DESCRIPTION_LEN_MAX && long.ends_with('…'), "{}", long.len());
}

#[test]
fn a_pump_has_a_good_name_and_is_an_implementation() {
    let refused = |name: &str, item: &str| {
        let (name, item): (TokenStream, TokenStream) = (name.parse().unwrap(), item.parse().unwrap());
        crate::pump::expand(name, item).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(refused("\"orders.close\"", "impl rondel::Pump for Close {}"), "");
    assert!(refused("\"a b\"", "impl Pump for Close {}").contains("\"a b\""));
    assert!(refused("\"a\"", "impl Close {}").contains("`impl Pump for …`"));
    assert!(refused("\"a\"", "impl Clone for Close {}").contains("`impl Pump for …`"));
    assert!(refused("", "impl Pump for Close {}").contains("string literal"));
}

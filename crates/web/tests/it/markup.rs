//! Checks every page that these tests receive: no two elements may have the same id.

use std::collections::BTreeSet;

use crate::harness::{Answer, Server};
use crate::visitor::Visitor;

/// The ids of the elements in a page. Quotation marks in texts and values are escaped, so every match is an attribute.
fn ids(html: &str) -> Vec<&str> {
    html.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[track_caller]
pub(crate) fn check(path: &str, answer: &Answer) {
    let kind = answer.headers.get("content-type").and_then(|kind| kind.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("text/html")) {
        return;
    }
    let (html, mut seen) = (answer.text(), BTreeSet::new());
    let twice: Vec<&str> = ids(&html).into_iter().filter(|id| !seen.insert(*id)).collect();
    assert_eq!(twice, Vec::<&str>::new(), "{path}: ids of two elements");
}

#[tokio::test]
async fn the_fires_on_the_page_of_a_job_are_one_element() {
    let server = Server::start().await;
    server.job("there").await;
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/jobs/there").await.text();
    let (_, rest) = page.split_once(" hx-get=\"/jobs/there/fires\" hx-select=\"#").expect("the page loads its fires");
    let wanted = rest.split('"').next().unwrap();
    let fires = visitor.get("/jobs/there/fires").await.text();
    for html in [&page, &fires] {
        let found = html.split('<').find(|tag| tag.contains(&format!(" id=\"{wanted}\"")));
        assert!(found.is_some_and(|tag| tag.starts_with("div ")), "#{wanted}: {found:?}");
    }
}

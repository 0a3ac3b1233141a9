//! What the console offers: no enabled button leads to a refusal because of a missing role, and forms change only the values for
//! which they have fields.

use std::collections::BTreeSet;

use rondel_admin::sign_in;
use rondel_core::outcome::Outcome;
use serde_json::json;

use crate::accounts::{cookie, signed_in, user};
use crate::harness::Server;
use crate::visitor::{Visitor, location};

/// The forms that the user can submit and the links that the user can follow on a page: method and path.
fn offers(page: &str) -> BTreeSet<(&'static str, String)> {
    let mut found = BTreeSet::new();
    let main = page.split("<main").nth(1).unwrap_or(page);
    for form in main.split("<form").skip(1) {
        let (tag, rest) = form.split_once('>').unwrap();
        let body = rest.split("</form>").next().unwrap();
        let buttons = body.split("<button").skip(1).map(|button| button.split('>').next().unwrap());
        let (own, others): (Vec<&str>, Vec<&str>) =
            buttons.filter(|button| !button.contains(" disabled")).partition(|button| !button.contains(" formaction="));
        // A button with its own `formaction` sends the form there.
        for button in others.iter().filter(|button| button.contains(" formmethod=\"get\"")) {
            found.insert(("GET", button.split("formaction=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()));
        }
        let is_enabled = !own.is_empty();
        if tag.contains("method=\"post\"") && is_enabled {
            found.insert(("POST", tag.split("action=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()));
        }
    }
    for link in main.split("href=\"").skip(1) {
        let path = link.split('"').next().unwrap().replace("&amp;", "&").replace("&#38;", "&");
        if path.starts_with('/') && !path.starts_with("/static/") {
            found.insert(("GET", path));
        }
    }
    found
}

#[tokio::test]
async fn nothing_is_offered_that_is_refused_for_want_of_a_role() {
    let server = Server::start().await;
    server.with_body("PUT", "/api/v1/calendars/cal", json!({"rule": {"weekdays": ["mon"]}})).await.expect(201);
    let job = json!({"name": "a", "app": "app", "handler": "h", "overrides": "all", "params": {"x": 1}});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let (open, over) = (server.trigger("a").await, server.trigger("a").await);
    server.finish(over, Outcome::Succeeded).await;
    let pages =
        ["/jobs", "/jobs/a", "/runs", "/calendars", "/calendars/cal", "/executors", "/account", "/jobs/a/fires"];
    let pages = pages.map(str::to_owned).into_iter().chain([format!("/runs/{open}"), format!("/runs/{over}")]);
    let pages: Vec<String> = pages.collect();
    let changes = ["/jobs/a/runs", "/jobs/a/pause", "/jobs/a/delete", "/calendars", "/calendars/cal/delete"];
    for (role, place, expected) in [
        ("viewer", json!({"namespace": "default"}), [false; 5]),
        ("operator", json!({"namespace": "default"}), [true, true, false, false, false]),
        ("editor", json!({"namespace": "default", "app": "app"}), [true, true, true, false, false]),
        ("editor", json!({"namespace": "default"}), [true; 5]),
    ] {
        let mut grant = place.clone();
        grant["role"] = json!(role);
        let name = format!("{role}{}", place.as_object().unwrap().len());
        user(&server, &name, json!([grant])).await;
        let visitor = signed_in(&server, &name).await;
        let mut offered = BTreeSet::new();
        for path in &pages {
            let page = visitor.get(path).await;
            assert_eq!(page.status, 200, "{role} {path}");
            let page = page.text();
            offered.extend(offers(&page));
            if path == "/jobs/a" {
                assert_eq!(page.contains("title=\"Needs the role operator"), role == "viewer", "the reason: {page}");
            }
        }
        let found = changes.map(|path| offered.contains(&("POST", path.to_owned())));
        assert_eq!(found, expected, "{role} {place}");
        for (method, path) in &offered {
            let is_last = path.ends_with("/delete") || path.starts_with("/account");
            let status = match *method {
                "POST" if is_last => continue,
                "POST" => visitor.post(path, "").await.status,
                _ => visitor.get(path).await.status,
            };
            assert!(!matches!(status.as_u16(), 403 | 404), "{role} is offered {method} {path}: {status}");
        }
        server.bare("POST", "/api/v1/jobs/a/resume").await.expect(200);
    }
}

#[tokio::test]
async fn a_form_without_a_field_leaves_that_as_it_is() {
    let server = Server::start().await;
    user(&server, "ann", json!([{"role": "admin"}])).await;
    user(&server, "bob", json!([{"role": "viewer"}])).await;
    let ann = signed_in(&server, "ann").await;
    let bob = async || {
        let bob = server.get("/api/v1/users/bob").await.expect(200);
        (bob["grants"].as_array().unwrap().len(), bob["disabled"].as_bool().unwrap())
    };
    for (form, expected) in [
        ("disabled=0&disabled=1", (1, true)),
        ("", (1, true)),
        ("grants=viewer%0Aoperator+default", (2, true)),
        ("disabled=0", (2, false)),
        ("grants=&disabled=0", (0, false)),
    ] {
        assert_eq!(location(&ann.post("/users/bob", form).await), "/users", "{form}");
        assert_eq!(bob().await, expected, "{form}");
    }
    // A checkbox that is not ticked sends nothing, so a hidden field before it sends 0.
    let page = ann.get("/users").await.text();
    assert!(
        page.contains(
            "<input type=\"hidden\" name=\"disabled\" value=\"0\"><label class=\"check\"><input type=\"checkbox\""
        ),
        "{page}"
    );
}

#[tokio::test]
async fn a_second_set_up_link_is_spent_with_the_first() {
    let server = Server::start().await;
    let (store, now) = (server.engine.store(), server.engine.now());
    // Every start of a server prints a link.
    let first_link = sign_in::create_setup_link(store, now).await.unwrap().unwrap();
    let second_link = sign_in::create_setup_link(store, now).await.unwrap().unwrap();
    let form = |link: &str, name: &str| format!("token={link}&name={name}&password=correct+horse");
    let mut visitor = Visitor::new(&server);
    user(&server, "bob", json!([])).await;
    let taken = visitor.post("/set-up", &form(first_link.reveal(), "bob")).await;
    assert_eq!(taken.status, 422, "the name is taken, and the link is not used up");
    let created = visitor.post("/set-up", &form(first_link.reveal(), "ann")).await;
    assert_eq!(location(&created), "/");
    visitor.cookie = cookie(&created);
    for link in [first_link.reveal(), second_link.reveal()] {
        for answer in
            [visitor.post("/set-up", &form(link, "eve")).await, visitor.get(&format!("/set-up?token={link}")).await]
        {
            assert_eq!(answer.status, 410, "{}", answer.text());
            assert!(answer.text().contains("older than a day"), "{}", answer.text());
        }
    }
}

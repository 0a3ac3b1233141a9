//! Every screen at three widths, in both languages and both themes: none is wider than its window. With `TEST_PICTURES_OUT` (`tests/pictures`
//! sets it) a picture of each is written there, from a system with more jobs, two servers and an agent for each app.

use std::path::PathBuf;

use rondel_tests::{Backend, Server, left_out_without, scratch, seed, variable};
use serde_json::json;

use super::browser::{Browser, program};
use super::pages::{Screen, screens};
use super::stage::Stage;

/// How much of a long page is in its picture, in pixels.
const HEIGHT_MAX: u32 = 2_400;

#[tokio::test]
async fn every_screen_fits_its_window() {
    let Some(program) = program() else { return left_out_without("chromium", "the screens at three widths") };
    let out = variable("TEST_PICTURES_OUT").map(PathBuf::from);
    let backend = if out.is_some() { Backend::Postgres } else { Backend::Sqlite };
    let Some(db) = scratch(backend).await else { return };
    let (jobs, runs) = if out.is_some() { (150, 30_000) } else { (30, 2_000) };
    seed(db.url(), jobs, runs).await;
    let stage = Stage::new(Server::start(&db).await, out.is_some().then_some(&db)).await;
    let mut browser = Browser::start(&program).await;
    let all: [(&str, &str, u32); 12] = [
        ("en", "light", 390),
        ("en", "light", 1_024),
        ("en", "light", 1_440),
        ("en", "dark", 390),
        ("en", "dark", 1_024),
        ("en", "dark", 1_440),
        ("zh", "light", 390),
        ("zh", "light", 1_024),
        ("zh", "light", 1_440),
        ("zh", "dark", 390),
        ("zh", "dark", 1_024),
        ("zh", "dark", 1_440),
    ];
    let some = [("en", "light", 390), ("zh", "dark", 1_024)];
    let looks: &[(&str, &str, u32)] = if out.is_some() { &all } else { &some };
    let only = variable("TEST_PICTURES_ONLY").unwrap_or_default();
    let is_wanted = |screen: &Screen| only.is_empty() || only.split(' ').any(|name| name == screen.name);
    sign_in(&mut browser, &stage.server).await;
    let mut wide = Vec::new();
    for (lang, theme, width) in looks {
        prefer(&mut browser, stage.server.url(), lang, theme).await;
        browser.size(*width, if *width < 720 { 844 } else { 900 }).await;
        for screen in screens(&stage.subjects).into_iter().filter(is_wanted) {
            open(&mut browser, stage.server.url(), &screen).await;
            let how = format!("{}-{lang}-{theme}-{width}", screen.name);
            let size = browser.eval("[document.documentElement.scrollWidth, document.documentElement.scrollHeight - document.body.offsetHeight]").await;
            if size[0].as_u64() > Some(u64::from(*width)) || size[1].as_i64() > Some(8) {
                wide.push(format!("{how}: {size}"));
            }
            if let Some(out) = &out {
                browser.shoot_page(&out.join(format!("{how}.png")), HEIGHT_MAX).await;
                if screen.is_main {
                    browser.shoot(&out.join(format!("window-{how}.png"))).await;
                }
            }
        }
    }
    assert_eq!(wide, [""; 0], "pages that are larger than what they show");
    assert_eq!(browser.complaints().await, [""; 0], "complaints of the browser");
}

async fn sign_in(browser: &mut Browser, server: &Server) {
    let link = server.api().post("/api/v1/sign-in-links", json!({})).await.expect(201);
    browser.goto(&format!("{}{}", server.url(), link["path"].as_str().expect("a path"))).await;
    browser.follow("#sign-in").await;
}

async fn prefer(browser: &mut Browser, url: &str, lang: &str, theme: &str) {
    browser.size(1_440, 900).await;
    browser.goto(&format!("{url}/account")).await;
    browser.follow(&format!("button[name=lang][value={lang}]")).await;
    browser.follow(&format!("button[name=theme][value={theme}]")).await;
}

async fn open(browser: &mut Browser, url: &str, screen: &Screen) {
    browser.goto(&format!("{url}{}", screen.path)).await;
    // Parts that are loaded behind the page belong to it.
    browser.until("its parts are there", "!document.querySelector('[hx-trigger=load], .htmx-request')").await;
    browser.until("its font is there", "document.fonts.status === 'loaded'").await;
}

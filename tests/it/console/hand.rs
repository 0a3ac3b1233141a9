//! Acts as a user of the browser, either with the mouse or with keys only, and counts the interactions.
//!
//! A click is one interaction, and so are a shortcut (`Ctrl K`, `g r`), a typed text with the Enter after it, and a choice from a list.
//! Neither moves of the focus nor moves of the mouse are counted.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::browser::{Browser, quoted};

/// Maximum number of moves of the focus to reach an element.
const MOVE_COUNT_MAX: usize = 700;

pub(super) struct Hand<'a> {
    pub(super) browser: &'a mut Browser,
    is_by_keys: bool,
    /// The interactions since the start of the task.
    steps: Vec<String>,
}

/// The keys that are pressed: a name, the code of the key, and the text that it writes.
const KEYS: [(&str, u32, &str); 4] = [("Enter", 13, "\r"), (" ", 32, " "), ("Tab", 9, ""), ("ArrowDown", 40, "")];

/// Presses a key, with Control if `has_control`.
pub(super) async fn press(browser: &mut Browser, key: &str, has_control: bool) {
    let known_key = KEYS.iter().find(|(name, ..)| *name == key);
    let text = match known_key {
        Some((_, _, text)) => text,
        None if key.len() == 1 && !has_control => key,
        None => "",
    };
    for kind in ["keyDown", "keyUp"] {
        let is_raw = kind == "keyDown" && text.is_empty();
        let kind = if is_raw { "rawKeyDown" } else { kind };
        let mut event = json!({"type": kind, "key": key, "modifiers": if has_control { 2 } else { 0 }});
        if kind == "keyDown" {
            event["text"] = Value::from(text);
        }
        if let Some((_, code, _)) = known_key {
            event["windowsVirtualKeyCode"] = Value::from(*code);
        }
        browser.call("Input.dispatchKeyEvent", event).await;
    }
}

/// Types a text where the focus is.
pub(super) async fn type_text(browser: &mut Browser, text: &str) {
    browser.call("Input.insertText", json!({ "text": text })).await;
}

impl<'a> Hand<'a> {
    pub(super) const fn new(browser: &'a mut Browser, is_by_keys: bool) -> Self {
        Self { browser, is_by_keys, steps: Vec::new() }
    }

    /// Begins a task at an address. Earlier interactions are no longer counted.
    pub(super) async fn begin(&mut self, url: &str) {
        self.browser.goto(url).await;
        self.steps.clear();
    }

    /// Asserts that the task took at most this many interactions, and prints them.
    pub(super) fn assert_took(&mut self, task: &str, count_max: usize) {
        let mut steps_text = String::new();
        for (number, step) in self.steps.iter().enumerate() {
            write!(steps_text, "{}{step}", if number == 0 { "" } else { ", " }).expect("write to a string");
        }
        let means = if self.is_by_keys { "keys" } else { "mouse" };
        super::print(&format!("{task}, by {means}: {} of {count_max}: {steps_text}", self.steps.len()));
        assert!(self.steps.len() <= count_max, "{task}, by {means}, took {}: {steps_text}", self.steps.len());
        self.steps.clear();
    }

    /// Goes to a page of the navigation bar: by its link, or by `g` and its key.
    pub(super) async fn go(&mut self, key: &str) {
        if !self.is_by_keys {
            return self.follow(&format!("nav a[data-key={key}]")).await;
        }
        self.mark_page_as_old().await;
        for key in ["g", key] {
            press(self.browser, key, false).await;
        }
        self.wait_for_other_page(key).await;
        self.steps.push(format!("g {key}"));
    }

    /// Opens the palette.
    pub(super) async fn open_palette(&mut self) {
        press(self.browser, "k", true).await;
        self.browser.until("the palette is open", "document.querySelector('#palette').open").await;
        self.steps.push("Ctrl K".to_owned());
    }

    /// Types into the palette, and opens the hit with this address, which must be the first.
    pub(super) async fn open_hit(&mut self, text: &str, path: &str) {
        type_text(self.browser, text).await;
        let hit = "document.querySelector('#palette .hit.on')?.getAttribute('href')";
        self.browser.until("the palette has it first", &format!("{hit} === {}", quoted(path))).await;
        self.mark_page_as_old().await;
        press(self.browser, "Enter", false).await;
        self.wait_for_other_page(path).await;
        self.steps.push(format!("\"{text}\" Enter"));
    }

    /// Clicks on an element, or reaches it by Tab and presses Enter.
    pub(super) async fn click(&mut self, selector: &str) {
        self.point(selector).await;
        if self.is_by_keys {
            press(self.browser, "Enter", false).await;
        } else {
            self.click_with_mouse(selector).await;
        }
        self.steps.push(selector.to_owned());
    }

    /// Clicks on an element that leads to another page, and waits for that page.
    pub(super) async fn follow(&mut self, selector: &str) {
        self.mark_page_as_old().await;
        self.click(selector).await;
        self.wait_for_other_page(selector).await;
    }

    /// Replaces the text of a field, and presses Enter, which leads to another page.
    pub(super) async fn enter(&mut self, selector: &str, text: &str) {
        self.point(selector).await;
        if !self.is_by_keys {
            self.click_with_mouse(selector).await;
        }
        self.browser.eval(&format!("document.querySelector({}).select()", quoted(selector))).await;
        type_text(self.browser, text).await;
        self.mark_page_as_old().await;
        press(self.browser, "Enter", false).await;
        self.wait_for_other_page(selector).await;
        self.steps.push(format!("\"{text}\" Enter"));
    }

    /// Chooses from a list by its value.
    pub(super) async fn choose(&mut self, selector: &str, value: &str) {
        self.point(selector).await;
        if self.is_by_keys {
            let is_chosen = format!("document.querySelector({}).value === {}", quoted(selector), quoted(value));
            let mut count = 0;
            while self.browser.eval(&is_chosen).await != true {
                press(self.browser, "ArrowDown", false).await;
                count += 1;
                assert!(count < 40, "{selector} has no {value}");
            }
        } else {
            self.browser.fill(selector, value).await;
        }
        self.steps.push(format!("{selector}: {value}"));
    }

    async fn mark_page_as_old(&mut self) {
        self.browser.eval("window.isOld = true").await;
    }

    async fn wait_for_other_page(&mut self, what: &str) {
        let is_other = "!window.isOld && document.readyState === 'complete'";
        self.browser.until(&format!("{what} leads to another page"), is_other).await;
    }

    /// Waits for an element, and moves the mouse or, by Tab, the focus to it.
    pub(super) async fn point(&mut self, selector: &str) {
        let place = quoted(selector);
        self.browser.until(&format!("there is {selector}"), &format!("document.querySelector({place})")).await;
        // Parts that are loaded later would move the element away from the mouse.
        let is_whole =
            "document.readyState === 'complete' && !document.querySelector('[hx-trigger=load], .htmx-request')";
        self.browser.until("the page is whole", is_whole).await;
        if !self.is_by_keys {
            self.browser.eval(&format!("document.querySelector({place}).scrollIntoView({{block: 'center'}})")).await;
            return;
        }
        let is_there = format!("document.activeElement === document.querySelector({place})");
        for _ in 0..MOVE_COUNT_MAX {
            if self.browser.eval(&is_there).await == true {
                return;
            }
            press(self.browser, "Tab", false).await;
        }
        let active_element = self.browser.eval("document.activeElement.outerHTML.slice(0, 200)").await;
        assert_eq!(active_element, selector, "Tab does not lead to {selector}");
    }

    /// Clicks on the middle of an element.
    async fn click_with_mouse(&mut self, selector: &str) {
        let script = format!(
            "(box => [box.left + box.width / 2, box.top + box.height / 2])(document.querySelector({}).getBoundingClientRect())",
            quoted(selector)
        );
        let place = self.browser.eval(&script).await;
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
            self.browser.call("Input.dispatchMouseEvent", event).await;
        }
    }
}

//! The navigation: the pages in its bar and in its menu.

use super::texts::Texts;

/// The part of the console that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nav {
    Now,
    Jobs,
    Runs,
    Timeline,
    Executors,
    Alerts,
    Reports,
    Calendars,
    Scripts,
    Activity,
    Why,
    Settings,
    Api,
    None,
}

/// A link of the navigation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NavEntry {
    pub(crate) nav: Nav,
    pub(crate) path: &'static str,
    /// The key that opens the page, pressed after `g`.
    pub(crate) key: char,
}

const fn entry(nav: Nav, path: &'static str, key: char) -> NavEntry {
    NavEntry { nav, path, key }
}

/// The links in the bar, in their order.
const BAR: [NavEntry; 6] = [
    entry(Nav::Now, "/", 'n'),
    entry(Nav::Jobs, "/jobs", 'j'),
    entry(Nav::Runs, "/runs", 'r'),
    entry(Nav::Timeline, "/timeline", 't'),
    entry(Nav::Executors, "/executors", 'e'),
    entry(Nav::Alerts, "/alerts", 'l'),
];

/// The links in the menu after the bar.
const MENU: [NavEntry; 7] = [
    entry(Nav::Reports, "/reports", 'o'),
    entry(Nav::Calendars, "/calendars", 'c'),
    entry(Nav::Scripts, "/scripts", 'p'),
    entry(Nav::Activity, "/activity", 'a'),
    entry(Nav::Why, "/why", 'w'),
    entry(Nav::Settings, "/settings", 's'),
    entry(Nav::Api, "/api-docs", 'd'),
];

impl Nav {
    pub(crate) fn bar_entries() -> impl Iterator<Item = NavEntry> {
        BAR.into_iter()
    }

    pub(crate) fn more_entries() -> impl Iterator<Item = NavEntry> {
        MENU.into_iter()
    }

    /// Whether its link is in the menu, and not in the bar.
    pub(crate) fn is_in_menu(self) -> bool {
        MENU.iter().any(|entry| entry.nav == self)
    }

    /// Whether only admins of the cluster may see it.
    pub(crate) fn is_for_admins(self) -> bool {
        self == Self::Activity
    }

    /// The first page of this part. The list of jobs, if the page belongs to no part.
    pub(crate) fn path(self) -> &'static str {
        let entry = BAR.iter().chain(&MENU).find(|entry| entry.nav == self);
        entry.map_or("/jobs", |entry| entry.path)
    }

    /// `path`, if it is the first page of one of the parts.
    pub(crate) fn known_path(path: &str) -> Option<&'static str> {
        BAR.iter().chain(&MENU).find(|entry| entry.path == path).map(|entry| entry.path)
    }
}

impl NavEntry {
    pub(crate) const fn name(&self, t: &Texts) -> &'static str {
        match self.nav {
            Nav::Now | Nav::None => t.nav_now,
            Nav::Jobs => t.nav_jobs,
            Nav::Runs => t.nav_runs,
            Nav::Timeline => t.nav_timeline,
            Nav::Executors => t.nav_executors,
            Nav::Alerts => t.nav_alerts,
            Nav::Reports => t.nav_reports,
            Nav::Calendars => t.nav_calendars,
            Nav::Scripts => t.nav_scripts,
            Nav::Activity => t.nav_activity,
            Nav::Why => t.nav_why,
            Nav::Settings => t.nav_settings,
            Nav::Api => t.nav_api,
        }
    }
}

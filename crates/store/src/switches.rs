//! The switches of apps and executors.

use rondel_core::homes::Switch;
use rondel_core::{AppId, Timestamp};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorSwitch {
    pub app: AppId,
    pub name: String,
    pub switch: Switch,
    pub set_at: Timestamp,
}

/// The switches of apps and executors in all namespaces, except those at [`Switch::Active`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Sorted by id. The switch of an app without an entry is active.
    pub apps: Vec<(AppId, Switch)>,
    /// Sorted by app and name. The switch of an executor without an entry is active.
    pub executors: Vec<ExecutorSwitch>,
}

impl Switches {
    #[must_use]
    pub fn of_app(&self, app: AppId) -> Switch {
        self.apps.iter().find(|(id, _)| *id == app).map_or(Switch::Active, |(_, switch)| *switch)
    }

    /// `None` if the switch of the executor is active.
    #[must_use]
    pub fn of_executor(&self, app: AppId, name: &str) -> Option<&ExecutorSwitch> {
        self.executors.iter().find(|switch| switch.app == app && switch.name == name)
    }
}

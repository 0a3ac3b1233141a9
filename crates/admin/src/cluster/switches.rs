//! The switches of apps, as the last beat saw them.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use rondel_core::AppId;
use rondel_core::homes::Switch;

#[derive(Debug, Default)]
pub(crate) struct AppSwitches(RwLock<BTreeMap<AppId, Switch>>);

impl AppSwitches {
    pub(crate) fn set(&self, switches: Vec<(AppId, Switch)>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = switches.into_iter().collect();
    }

    pub(crate) fn of(&self, app: AppId) -> Switch {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&app).copied().unwrap_or(Switch::Active)
    }

    pub(crate) fn stopped(&self) -> Vec<AppId> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().filter(|(_, switch)| **switch == Switch::Stopped).map(|(app, _)| *app).collect()
    }
}

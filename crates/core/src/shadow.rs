//! Shadow mode: which fires of a job are planned and routed, but not sent.

pub mod compare;

use crate::field_error::FieldError;
use crate::status::Trigger;
use crate::time::Timestamp;
use crate::word_enum::word_enum;

word_enum! {
    /// Whether runs are sent to executors.
    Mode {
        /// They are.
        Active = "active",
        /// They are planned, claimed and routed, but not sent. Each is skipped, and names the executor that would have got it.
        Shadow = "shadow",
    }
}

#[expect(clippy::derivable_impls, reason = "the macro makes the enum")]
impl Default for Mode {
    fn default() -> Self {
        Self::Active
    }
}

/// A job's mode, and the planned instant from which it applies. Fires before that instant have the other mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeFrom {
    pub mode: Mode,
    /// The first planned instant with this mode; `None` if every instant has it.
    pub from: Option<Timestamp>,
}

impl ModeFrom {
    pub(crate) fn compile(mode: Mode, from: Option<&str>, errors: &mut Vec<FieldError>) -> Self {
        let from = from.and_then(|text| {
            let message = || format!("{text:?} is not an instant such as 2026-11-23T10:00:00Z");
            text.parse().map_err(|_| errors.push(FieldError::new("/mode_from", message()))).ok()
        });
        Self { mode, from }
    }

    /// The mode of the fire that is planned for this instant.
    ///
    /// ```
    /// use rondel_core::shadow::ModeFrom;
    /// use rondel_core::{Timestamp, spec::Mode};
    ///
    /// let promoted = ModeFrom { mode: Mode::Active, from: Some(Timestamp::from_secs(60)) };
    /// assert_eq!(promoted.at(Timestamp::from_secs(59)), Mode::Shadow);
    /// assert_eq!(promoted.at(Timestamp::from_secs(60)), Mode::Active);
    /// ```
    #[must_use]
    pub fn at(self, fire_at: Timestamp) -> Mode {
        match (self.mode, self.from.is_none_or(|from| fire_at >= from)) {
            (Mode::Active, true) | (Mode::Shadow, false) => Mode::Active,
            (Mode::Shadow, true) | (Mode::Active, false) => Mode::Shadow,
        }
    }

    /// Whether the fire planned for this instant is in shadow mode, so that it is not sent.
    #[must_use]
    pub fn is_shadow_at(self, fire_at: Timestamp) -> bool {
        self.at(fire_at) == Mode::Shadow
    }

    /// Whether a run is not sent. A run that a caller requests is sent as soon as the job is promoted, even before `from`: that instant
    /// only separates the scheduled fires of the two schedulers and can be weeks ahead, and the other scheduler does not know of the
    /// request.
    ///
    /// ```
    /// use rondel_core::shadow::ModeFrom;
    /// use rondel_core::{Timestamp, Trigger, spec::Mode};
    ///
    /// let promoted = ModeFrom { mode: Mode::Active, from: Some(Timestamp::from_secs(60)) };
    /// let before = Timestamp::from_secs(59);
    /// assert!(promoted.is_shadow_run(Trigger::Cron, before) && !promoted.is_shadow_run(Trigger::Manual, before));
    /// ```
    #[must_use]
    pub fn is_shadow_run(self, trigger: Trigger, fire_at: Timestamp) -> bool {
        let is_requested = matches!(trigger, Trigger::Manual | Trigger::Api);
        self.is_shadow_at(fire_at) && !(is_requested && self.mode == Mode::Active)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{JobSpec, job::Job};

    fn job(change: Value) -> Result<Job, Vec<FieldError>> {
        let mut base = json!({"name": "a", "app": "b", "handler": "c", "expect": {"late": "1m"}});
        let (Value::Object(fields), Value::Object(change)) = (&mut base, change) else { unreachable!() };
        fields.extend(change);
        serde_json::from_value::<JobSpec>(base).unwrap().compile()
    }

    #[test]
    fn each_fire_has_the_mode_of_its_side_of_the_seam() {
        let (before, seam) = ("2026-11-23T09:59:59.999Z", "2026-11-23T10:00:00Z");
        let modes = |job: &Job| [before, seam].map(|at| job.mode.is_shadow_at(at.parse().unwrap()));
        assert_eq!(modes(&job(json!({})).unwrap()), [false, false]);
        assert_eq!(modes(&job(json!({"mode": "shadow"})).unwrap()), [true, true]);
        assert_eq!(modes(&job(json!({"mode": "active", "mode_from": seam})).unwrap()), [true, false]);
        assert_eq!(modes(&job(json!({"mode": "shadow", "mode_from": seam})).unwrap()), [false, true]);
    }

    #[test]
    fn a_run_that_is_asked_for_is_sent_from_the_promotion_on_and_until_the_demotion_holds() {
        let (before, seam) = ("2026-11-23T09:59:59.999Z", "2026-11-23T10:00:00Z");
        for (change, expected) in [
            (json!({"mode": "active", "mode_from": seam}), [false, false]),
            (json!({"mode": "shadow", "mode_from": seam}), [false, true]),
            (json!({"mode": "shadow"}), [true, true]),
        ] {
            let mode = job(change.clone()).unwrap().mode;
            for trigger in [Trigger::Manual, Trigger::Api] {
                let is_shadow = [before, seam].map(|at| mode.is_shadow_run(trigger, at.parse().unwrap()));
                assert_eq!(is_shadow, expected, "{change}");
            }
            for trigger in [Trigger::Cron, Trigger::Interval, Trigger::Once, Trigger::Parent, Trigger::Misfire] {
                let at = before.parse().unwrap();
                assert_eq!(mode.is_shadow_run(trigger, at), mode.is_shadow_at(at), "{change}");
            }
        }
    }

    #[test]
    fn a_bad_seam_is_named_and_a_shadow_expects_nothing() {
        let errors = job(json!({"mode_from": "soon"})).unwrap_err();
        assert_eq!((errors.len(), errors[0].pointer.as_str()), (1, "/mode_from"));
        assert!(errors[0].message.contains("\"soon\" is not an instant"), "{}", errors[0].message);
        assert!(job(json!({})).unwrap().expect.is_some() && job(json!({"mode": "shadow"})).unwrap().expect.is_none());
    }
}

//! Alert rules: in each period, one node evaluates everything that is due, and writes incidents with their messages.
//!
//! One evaluation of a namespace is called a look. If nothing is due, no look takes place. The decisions of a look are written in one
//! transaction, which checks that the namespace's alerts still have the version on which the decisions are based. If another node has decided
//! since, or a decision is repeated after a crash, nothing is written.

mod expects;
mod facts;
mod fleet;
mod look;
mod maintenance;
mod noted;
mod save;
mod states;
mod warnings;

use std::time::Duration;

use rondel_core::{NamespaceId, Timestamp};
use rondel_store::StoreError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::maintenance::{
    MaintenanceRequest, WindowEnd, add_maintenance, end_maintenance, maintenance_lead, near_maintenance,
};
pub(crate) use self::noted::NotedSuccesses;
pub use self::save::{
    DryRun, ResolvedDeadline, RuleError, SavedRule, SilenceRequest, acknowledge, add_silence, delete_rule, dry_run,
    end_silence, save_rule,
};
pub use self::warnings::{rule_warnings, silence_warnings};
use crate::background::{Background, TickError};
use crate::node::Node;

/// How long resolved incidents, ended silences and ended maintenance windows are kept.
const KEPT_FOR: Duration = Duration::from_secs(90 * 24 * 3600);
/// How often incidents, silences and windows older than [`KEPT_FOR`] are deleted.
const FORGET_PERIOD: Duration = Duration::from_secs(600);
const FORGET_BATCH: u32 = 500;
/// Maximum number of batches per pass, so that looks are not delayed for long. A day's passes delete up to about three million incidents.
const FORGET_BATCHES_MAX: u32 = 40;
/// Number of jobs whose next evaluation one transaction postpones.
const POSTPONED_COUNT: usize = 500;
/// Maximum number of looks at one namespace per tick.
const LOOK_COUNT_MAX: u32 = 20;
/// Maximum number of lost looks ([`look::LookResult::Lost`]) per namespace and tick.
const LOST_LOOKS_MAX: u32 = 3;
/// The name of the pass that evaluates rules, for [`rondel_store::Upkeep::begin_pass`].
const LOOK_PASS: &str = "alert_rules";
/// The name of the pass that deletes old incidents, silences and windows.
const FORGET_PASS: &str = "forget_incidents";

/// The loop that evaluates the rules of all namespaces.
#[derive(Debug)]
pub(crate) struct RuleLoop {
    node: Node,
    /// The namespace that was looked at last.
    last_namespace: Option<NamespaceId>,
    /// When this server tries to begin the pass that deletes old incidents, even if no namespace is due until then.
    next_forget_at: Instant,
}

impl RuleLoop {
    pub(crate) fn new(node: Node) -> Self {
        Self { node, last_namespace: None, next_forget_at: Instant::now() + FORGET_PERIOD }
    }

    fn period_length(&self) -> Duration {
        self.node.shared().config.alert_rules_period
    }

    /// Looks at these namespaces in turn until nothing is due, at most [`LOOK_COUNT_MAX`] times each and until `deadline`. A flood of events or
    /// an unreadable row in one namespace does not delay the others: an error that is not transient is returned after the others had their
    /// turns. Returns the number of incidents changed.
    async fn look_until_done(
        &mut self,
        mut due_namespaces: Vec<NamespaceId>,
        stop: &CancellationToken,
        deadline: Instant,
    ) -> Result<u64, StoreError> {
        // If the time does not suffice for all, the next pass begins with the namespaces that had no turn.
        let had_turn_count =
            due_namespaces.partition_point(|namespace| self.last_namespace.is_some_and(|last| *namespace <= last));
        due_namespaces.rotate_left(had_turn_count);
        let mut turns: Vec<(NamespaceId, u32)> = due_namespaces.into_iter().map(|namespace| (namespace, 0)).collect();
        let (mut change_count, mut first_error) = (0, None);
        for _ in 0..LOOK_COUNT_MAX {
            for (namespace, lost_count) in std::mem::take(&mut turns) {
                if stop.is_cancelled() || Instant::now() >= deadline || !self.node.shared().membership.holds_lease() {
                    return first_error.map_or(Ok(change_count), Err);
                }
                self.last_namespace = Some(namespace);
                match look::evaluate_due(&self.node, namespace).await {
                    Ok(look::LookResult::Done { count, has_more }) => {
                        change_count += count;
                        turns.extend(has_more.then_some((namespace, lost_count)));
                    }
                    Ok(look::LookResult::Lost) => {
                        turns.extend((lost_count < LOST_LOOKS_MAX).then_some((namespace, lost_count + 1)))
                    }
                    Err(error) if error.is_transient() => return Err(error),
                    Err(error) => first_error = first_error.or(Some(error)),
                }
            }
        }
        first_error.map_or(Ok(change_count), Err)
    }

    /// Postpones the looks at expectations of jobs that have succeeded here.
    async fn postpone_checks(&self) -> Result<(), StoreError> {
        for (namespace, succeeded) in self.node.shared().noted_successes.take() {
            for chunk in succeeded.chunks(POSTPONED_COUNT) {
                expects::postpone_checks(&self.node, namespace, chunk).await?;
            }
        }
        Ok(())
    }

    async fn forget_old_incidents(&mut self, now: Timestamp) -> Result<u64, StoreError> {
        let store = self.node.store();
        self.next_forget_at = Instant::now() + FORGET_PERIOD;
        if !store.begin_pass(FORGET_PASS, FORGET_PERIOD).await? {
            return Ok(0);
        }
        let mut removed_count = 0;
        for _ in 0..FORGET_BATCHES_MAX {
            let count = store.forget_incidents(now - KEPT_FOR, FORGET_BATCH).await?;
            removed_count += count;
            if count < u64::from(FORGET_BATCH) {
                break;
            }
        }
        Ok(removed_count)
    }
}

impl Background for RuleLoop {
    const NAME: &'static str = "alert_rules";
    const ACTION: &'static str = "evaluate alert rules";

    fn period(&self) -> Option<Duration> {
        Some(self.period_length())
    }

    fn first_wait(&self) -> Duration {
        self.node.shared().first_look_delay(self.period_length())
    }

    async fn tick(&mut self, stop: &CancellationToken) -> Result<u64, TickError> {
        if !self.node.shared().membership.holds_lease() {
            return Ok(0);
        }
        let (store, now) = (self.node.store_arc(), self.node.now());
        // If a look cannot be postponed, it takes place too early, which does no harm. The error prevents no other look.
        let result = self.postpone_checks().await;
        let due_namespaces = store.namespaces_with_due_alerts(now).await?;
        let (mut look_result, mut forget_result) = (Ok(0), Ok(0));
        let looks = !due_namespaces.is_empty() && store.begin_pass(LOOK_PASS, self.period_length()).await?;
        if looks {
            let deadline = Instant::now() + self.period_length().max(Duration::from_secs(1)) * 5;
            look_result = self.look_until_done(due_namespaces, stop, deadline).await;
        }
        if looks || self.next_forget_at <= Instant::now() {
            forget_result = self.forget_old_incidents(now).await;
        }
        result?;
        Ok(look_result? + forget_result?)
    }
}

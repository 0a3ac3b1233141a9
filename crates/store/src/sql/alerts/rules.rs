//! Reads and saves alert rules.

use rondel_core::alert::{ConditionKind, RuleSpec, judge};
use rondel_core::{AlertRuleId, NamespaceId, Timestamp};
use sqlx::any::AnyRow;

use super::json;
use crate::Result;
use crate::alerts::{
    RULE_COUNT_MAX, RuleChange, RuleCheck, RuleDeleted, RuleProgress, RuleRecord, RuleSaved, next_evaluation,
};
use crate::settle::clean_name;
use crate::sql::query::{Query, Reader, Statement};
use crate::sql::{SqlStore, Tx};

const LIST_RULES: Statement = Statement {
    name: "list_alert_rules",
    text: "SELECT id, namespace_id, version, spec, author, created_at_ms, updated_at_ms, check_at_ms, sweep \
           FROM alert_rule WHERE namespace_id = ? ORDER BY name LIMIT ?",
};
const INSERT_RULE: Statement = Statement {
    name: "insert_alert_rule",
    text: "INSERT INTO alert_rule (id, namespace_id, name, version, spec, author, created_at_ms, updated_at_ms, \
           check_at_ms) VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?)",
};
const UPDATE_RULE: Statement = Statement {
    name: "update_alert_rule",
    text: "UPDATE alert_rule SET version = ?, spec = ?, author = ?, updated_at_ms = ?, check_at_ms = ?, sweep = ? \
           WHERE id = ? AND version = ?",
};
const DELETE_RULE: Statement = Statement { name: "delete_alert_rule", text: "DELETE FROM alert_rule WHERE id = ?" };
const CLOSE_INCIDENTS: Statement = Statement {
    name: "close_incidents",
    text: "UPDATE incident SET is_open = NULL, resolved_at_ms = ?, act_at_ms = NULL, rule_spec = ? \
           WHERE namespace_id = ? AND is_open = 1 AND rule_id = ?",
};
const WAKE_INCIDENTS: Statement = Statement {
    name: "wake_incidents",
    text: "UPDATE incident SET act_at_ms = ? WHERE namespace_id = ? AND is_open = 1 AND rule_id = ?",
};
const SET_WATCHES_RUNS: Statement =
    Statement { name: "set_watches_runs", text: "UPDATE alert_space SET watches_runs = ? WHERE namespace_id = ?" };
const SET_CHECK: Statement =
    Statement { name: "set_rule_check", text: "UPDATE alert_rule SET check_at_ms = ?, sweep = ? WHERE id = ?" };

impl SqlStore {
    pub(super) async fn read_alert_rules(&self, namespace: NamespaceId) -> Result<Vec<RuleRecord>> {
        let query = Query::new(&LIST_RULES).int(namespace.get()).int(RULE_COUNT_MAX.into());
        self.rows(query).await?.iter().map(rule).collect()
    }
}

impl Tx<'_> {
    /// Saves a rule. The caller must not hold any lock yet, because this function locks channels first and then the namespace's alerts.
    pub(super) async fn save_alert_rule(&mut self, change: RuleChange<'_>) -> Result<RuleSaved> {
        let missing_channels = self.lock_channels(change.namespace, &change.spec.channel_names().collect()).await?;
        self.raise_alert_version(change.namespace).await?;
        let rules = self.alert_rules(change.namespace).await?;
        let rule_before = rules.iter().find(|rule| rule.spec.name == change.spec.name);
        let version = rule_before.map_or(0, |rule| rule.version);
        if change.expected_version.is_some_and(|expected| expected != version) {
            return Ok(RuleSaved::Conflict(version));
        }
        if let Some(channel) = missing_channels.into_iter().next() {
            return Ok(RuleSaved::NoChannel(channel));
        }
        let (spec, author) = (json("save_alert_rule", change.spec)?, clean_name(change.author));
        let (check_at, progress) = next_evaluation(rule_before, &change);
        let record = RuleRecord {
            id: rule_before.map_or(change.id, |rule| rule.id),
            namespace: change.namespace,
            version: version + 1,
            spec: change.spec.clone(),
            author: author.to_string(),
            created_at: rule_before.map_or(change.now, |rule| rule.created_at),
            updated_at: change.now,
            check_at,
            progress,
        };
        if rule_before.is_none() {
            if rules.len() >= usize::try_from(RULE_COUNT_MAX).unwrap_or(usize::MAX) {
                return Ok(RuleSaved::Full);
            }
            let insert =
                Query::new(&INSERT_RULE).int(record.id.get()).int(change.namespace.get()).text(&change.spec.name);
            let insert = insert.text(&spec).text(&author).at(change.now).at(change.now).opt_at(record.check_at);
            self.execute_all(insert, 1).await?;
        } else {
            let update = Query::new(&UPDATE_RULE).int(record.version).text(&spec).text(&author).at(change.now);
            let progress = progress_text(record.progress.as_ref(), "save_alert_rule")?;
            let update = update.opt_at(record.check_at).opt_text(progress.as_deref());
            self.execute_all(update.int(record.id.get()).int(version), 1).await?;
        }
        if rule_before.is_some_and(|rule| !judge::have_same_condition_and_scope(&rule.spec, change.spec)) {
            let wake = Query::new(&WAKE_INCIDENTS).at(change.now).int(change.namespace.get()).int(record.id.get());
            self.execute(wake).await?;
        }
        self.set_watches_runs(change.namespace).await?;
        let record = Box::new(record);
        Ok(if version == 0 { RuleSaved::Created(record) } else { RuleSaved::Changed(record) })
    }

    pub(super) async fn delete_alert_rule(
        &mut self,
        namespace: NamespaceId,
        name: &str,
        expected_version: Option<i64>,
        now: Timestamp,
    ) -> Result<RuleDeleted> {
        self.raise_alert_version(namespace).await?;
        let rules = self.alert_rules(namespace).await?;
        let Some(rule) = rules.iter().find(|rule| rule.spec.name == name) else { return Ok(RuleDeleted::NotFound) };
        if expected_version.is_some_and(|expected| expected != rule.version) {
            return Ok(RuleDeleted::Conflict(rule.version));
        }
        // The incidents keep a disabled copy of the rule, so that their end does not count as a recovery.
        let spec = json("delete_alert_rule", &RuleSpec { enabled: false, ..rule.spec.clone() })?;
        let close = Query::new(&CLOSE_INCIDENTS).at(now).text(&spec).int(namespace.get()).int(rule.id.get());
        self.execute(close).await?;
        self.execute_all(Query::new(&DELETE_RULE).int(rule.id.get()), 1).await?;
        self.set_watches_runs(namespace).await?;
        Ok(RuleDeleted::Deleted)
    }

    pub(super) async fn write_checks(&mut self, checks: &[RuleCheck]) -> Result<()> {
        for check in checks {
            let progress = progress_text(check.progress.as_ref(), "set_rule_check")?;
            let set = Query::new(&SET_CHECK).opt_at(check.at).opt_text(progress.as_deref()).int(check.rule.get());
            self.execute(set).await?;
        }
        Ok(())
    }

    async fn alert_rules(&mut self, namespace: NamespaceId) -> Result<Vec<RuleRecord>> {
        let query = Query::new(&LIST_RULES).int(namespace.get()).int(RULE_COUNT_MAX.into());
        self.rows(query).await?.iter().map(rule).collect()
    }

    /// Sets whether transactions that store verdicts in the namespace insert alert events from now on. They do if an enabled rule of the
    /// namespace is about events.
    async fn set_watches_runs(&mut self, namespace: NamespaceId) -> Result<()> {
        let rules = self.alert_rules(namespace).await?;
        let watches_runs =
            rules.iter().any(|rule| rule.spec.enabled && rule.spec.condition.kind() == ConditionKind::Events);
        self.execute(Query::new(&SET_WATCHES_RUNS).int(i64::from(watches_runs)).int(namespace.get())).await?;
        Ok(())
    }
}

fn progress_text(progress: Option<&RuleProgress>, operation: &'static str) -> Result<Option<String>> {
    progress.map(|progress| json(operation, progress)).transpose()
}

fn rule(row: &AnyRow) -> Result<RuleRecord> {
    let mut columns = Reader::new(row, "alert_rule");
    Ok(RuleRecord {
        id: AlertRuleId::new(columns.int("id")?),
        namespace: NamespaceId::new(columns.int("namespace_id")?),
        version: columns.int("version")?,
        spec: columns.json("spec")?,
        author: columns.text("author")?,
        created_at: columns.at("created_at_ms")?,
        updated_at: columns.at("updated_at_ms")?,
        check_at: columns.opt_at("check_at_ms")?,
        progress: columns.opt_json("sweep")?,
    })
}

//! The rules, jobs and reports that use a channel. A transaction that saves one of these locks the channel first, so
//! that no other transaction deletes it before the commit.

use std::collections::BTreeSet;

use rondel_core::alert::RuleSpec;
use rondel_core::alert::expect::ExpectKind;
use rondel_core::report::ReportSchedule;
use rondel_core::spec::{EXPECT_CHANNEL, ExpectSpec};
use rondel_core::{ChannelId, JobSpec, NamespaceId, Timestamp};

use super::Tx;
use super::query::{Query, Reader, Statement};
use crate::Result;
use crate::alerts::RULE_COUNT_MAX;
use crate::channels::{CHANNEL_USE_COUNT_MAX, ChannelUse};

/// Number of definitions that one statement reads.
const PAGE_LEN: usize = 200;

const LOCK_CHANNEL: Statement = Statement {
    name: "lock_channel",
    text: "SELECT id, updated_at_ms FROM alert_channel WHERE namespace_id = ? AND name = ? {for_update}",
};
const READ_RULES: Statement = Statement {
    name: "read_rules_for_channel",
    text: "SELECT id, spec FROM alert_rule WHERE namespace_id = ? ORDER BY name LIMIT ?",
};
const READ_REPORT: Statement = Statement {
    name: "read_report_for_channel",
    text: "SELECT namespace_id, spec FROM report_schedule WHERE namespace_id = ?",
};
/// Finds jobs that have an expectation of one kind and a definition that matches a pattern. The pattern contains the channel's name, in
/// which `_` is a wildcard, so this may find too many jobs. The caller checks each definition.
pub(super) const LIST_EXPECTING_JOBS: Statement = Statement {
    name: "list_expecting_jobs",
    text: "SELECT job.id, job_version.spec FROM job_expect CROSS JOIN job CROSS JOIN job_version \
           WHERE job_expect.namespace_id = ? AND job_expect.kind = ? AND job_expect.job_id > ? AND job.id = job_expect.job_id \
           AND job.retired = 0 AND job_version.job_id = job.id AND job_version.version = job.version \
           AND job_version.spec LIKE ? ORDER BY job_expect.job_id LIMIT ?",
};

impl Tx<'_> {
    /// The rules, jobs and reports that use a channel, at most one more than [`CHANNEL_USE_COUNT_MAX`]. The caller has locked the channel.
    pub(super) async fn channel_uses(&mut self, namespace: NamespaceId, name: &str) -> Result<Vec<ChannelUse>> {
        let mut uses = BTreeSet::new();
        for row in self.rows(Query::new(&READ_RULES).int(namespace.get()).int(RULE_COUNT_MAX.into())).await? {
            let mut columns = Reader::new(&row, "alert_rule");
            columns.int("id")?;
            let spec: RuleSpec = columns.json("spec")?;
            if spec.channel_names().any(|channel| channel == name) {
                uses.insert(ChannelUse::Rule(spec.name));
            }
        }
        if let Some(row) = self.row(Query::new(&READ_REPORT).int(namespace.get())).await? {
            let mut columns = Reader::new(&row, "report_schedule");
            columns.int("namespace_id")?;
            if columns.json::<ReportSchedule>("spec")?.channel == name {
                uses.insert(ChannelUse::Report);
            }
        }
        for kind in ExpectKind::ALL {
            if uses.len() > CHANNEL_USE_COUNT_MAX {
                break;
            }
            self.add_expecting_jobs(namespace, *kind, (name, &mut uses)).await?;
        }
        Ok(uses.into_iter().take(CHANNEL_USE_COUNT_MAX + 1).collect())
    }

    async fn add_expecting_jobs(
        &mut self,
        namespace: NamespaceId,
        kind: ExpectKind,
        (name, uses): (&str, &mut BTreeSet<ChannelUse>),
    ) -> Result<()> {
        // Expectations that name no channel use this one, so every definition must be checked.
        let spec_pattern = if name == EXPECT_CHANNEL { "%".to_owned() } else { format!("%\"{name}\"%") };
        let mut after_id = 0;
        loop {
            let page = Query::new(&LIST_EXPECTING_JOBS)
                .int(namespace.get())
                .text(kind.as_str())
                .int(after_id)
                .text(&spec_pattern);
            let rows = self.rows(page.int(i64::try_from(PAGE_LEN).unwrap_or(i64::MAX))).await?;
            for row in &rows {
                let mut columns = Reader::new(row, "job_version");
                after_id = columns.int("id")?;
                let spec: JobSpec = columns.json("spec")?;
                let expect = spec.expect.as_deref();
                if expect.is_some_and(|expect| expect.channel_names().iter().any(|channel| channel == name)) {
                    uses.insert(ChannelUse::Job(spec.name));
                }
            }
            if rows.len() < PAGE_LEN || uses.len() > CHANNEL_USE_COUNT_MAX {
                return Ok(());
            }
        }
    }

    /// The id of a channel, and when it was last saved. Its row is locked until the transaction ends.
    pub(super) async fn lock_channel(
        &mut self,
        namespace: NamespaceId,
        name: &str,
    ) -> Result<Option<(ChannelId, Timestamp)>> {
        let row = self.row(Query::new(&LOCK_CHANNEL).int(namespace.get()).text(name)).await?;
        let Some(mut columns) = row.as_ref().map(|row| Reader::new(row, "alert_channel")) else { return Ok(None) };
        Ok(Some((ChannelId::new(columns.int("id")?), columns.at("updated_at_ms")?)))
    }

    /// Locks these channels until the transaction ends; returns those that do not exist.
    pub(super) async fn lock_channels(
        &mut self,
        namespace: NamespaceId,
        names: &BTreeSet<&str>,
    ) -> Result<BTreeSet<String>> {
        let mut missing_names = BTreeSet::new();
        for name in names {
            if self.lock_channel(namespace, name).await?.is_none() {
                missing_names.insert((*name).to_owned());
            }
        }
        Ok(missing_names)
    }

    /// Locks the channels that definitions use. Each pair has a new definition and the definition that it replaces. Returns a channel that
    /// does not exist and that the replaced definition did not name.
    pub(super) async fn lock_expect_channels<'s>(
        &mut self,
        namespace: NamespaceId,
        specs: impl Iterator<Item = (&'s JobSpec, Option<&'s JobSpec>)> + Clone + Send,
    ) -> Result<Option<String>> {
        let mut names = BTreeSet::new();
        for expect in specs.clone().filter_map(|(spec, _)| spec.expect.as_deref()) {
            match expect.channels.is_empty() {
                true => names.insert(EXPECT_CHANNEL),
                false => expect.channels.iter().fold(true, |_, name| names.insert(name)),
            };
        }
        let missing_names = self.lock_channels(namespace, &names).await?;
        let mut new_names = specs.filter_map(|(spec, before)| new_channels(spec, before));
        Ok(new_names.find_map(|mut names| {
            names.find(|(_, name)| missing_names.contains(*name)).map(|(_, name)| name.to_owned())
        }))
    }
}

fn new_channels<'s>(spec: &'s JobSpec, before: Option<&'s JobSpec>) -> Option<impl Iterator<Item = (usize, &'s str)>> {
    let expect_before: Option<&ExpectSpec> = before.and_then(|spec_before| spec_before.expect.as_deref());
    Some(spec.expect.as_deref()?.new_channels(expect_before))
}

//! Evaluates the expectations of jobs that are due, and the expectations about open runs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use rondel_core::alert::expect::{ExpectKind, Expectations, SuccessFacts, is_expectation, rule_id};
use rondel_core::alert::{Observation, RuleSpec, SubjectKind};
use rondel_core::{AlertRuleId, JobId, NamespaceId, Timestamp};
use rondel_store::StoreError;
use rondel_store::alerts::{AlertWrite, ExpectCheck, IncidentRecord, OpenRunsCheck, RuleRecord, WatchedJob};

use super::facts::is_full;
use super::look::{Findings, LookContext, cleared_observation, unwatched_observation};
use super::{facts, states};
use crate::node::Node;

/// Maximum number of due expectations per look.
const DUE_EXPECTATIONS_MAX: u32 = 500;

/// The rules that correspond to expectations, with their observations.
#[derive(Default)]
struct ObservedRules(BTreeMap<AlertRuleId, ObservedRule>);

struct ObservedRule {
    rule: RuleRecord,
    observations: Vec<Observation>,
    due_incidents: Vec<IncidentRecord>,
}

impl LookContext<'_> {
    /// Evaluates the due expectations of the namespace's jobs.
    pub(super) async fn look_at_expects(&self, findings: &mut Findings) -> Result<(), StoreError> {
        let store = self.node.store();
        let checks = store.due_expectations(self.namespace, self.now, DUE_EXPECTATIONS_MAX).await?;
        let open_expectations = store.open_run_expectations(self.namespace).await?;
        let mut observed_rules = ObservedRules::default();
        for record in
            self.due_incidents.iter().filter(|(rule, _)| is_expectation(**rule)).flat_map(|(_, records)| records)
        {
            observed_rules.of(self.rule_record(record.rule, record.spec.clone())).due_incidents.push(record.clone());
        }
        findings.has_more |= is_full(checks.len(), DUE_EXPECTATIONS_MAX);
        self.look_at_due(&checks, &mut observed_rules, findings).await?;
        let due_kinds: BTreeSet<ExpectKind> = observed_rules
            .0
            .values()
            .filter_map(|observed_rule| Expectations::kind_of(&observed_rule.rule.spec))
            .collect();
        let is_open_runs_check_due = open_expectations.at.is_some_and(|at| at <= self.now);
        for kind in ExpectKind::ALL.iter().copied().filter(|kind| kind.is_about_open_runs()) {
            if due_kinds.contains(&kind) || is_open_runs_check_due && open_expectations.kinds.contains(&kind) {
                self.look_at_open_runs(kind, &mut observed_rules).await?;
            }
        }
        if is_open_runs_check_due {
            let period = states::FAST_PERIOD.min(self.node.shared().config.alert_rules_period * 5);
            findings.open_runs_check =
                Some(OpenRunsCheck { at: (!open_expectations.kinds.is_empty()).then(|| self.now + period) });
        }
        for observed_rule in observed_rules.0.into_values() {
            self.decide_expect(observed_rule, findings).await?;
        }
        Ok(())
    }

    /// Evaluates expectations that are due. For an expectation that was met, only its next instant is written.
    async fn look_at_due(
        &self,
        checks: &[ExpectCheck],
        observed_rules: &mut ObservedRules,
        findings: &mut Findings,
    ) -> Result<(), StoreError> {
        let store = self.node.store();
        let ids: BTreeSet<JobId> = checks.iter().map(|check| check.job).collect();
        let ids: Vec<JobId> = ids.into_iter().collect();
        let jobs = store.watched_jobs_by_id(&ids).await?;
        let jobs: HashMap<JobId, WatchedJob> = jobs.into_iter().map(|job| (job.id, job)).collect();
        for kind in ExpectKind::ALL.iter().copied() {
            let checks_of_kind: Vec<&ExpectCheck> = checks.iter().filter(|check| check.kind == kind).collect();
            let newest_successes = self.newest_successes(&checks_of_kind, &jobs).await?;
            for check in checks_of_kind {
                let job_and_expectations = jobs.get(&check.job).and_then(|job| Some((job, job.expect.as_ref()?)));
                let expected_rule =
                    job_and_expectations.and_then(|(job, expect)| Some((job, expect, expect.rule(kind)?)));
                let Some((job, expect, rule)) = expected_rule else {
                    findings.expect_checks.push(ExpectCheck { at: None, ..*check });
                    continue;
                };
                let is_day = facts::day_filter(self.node, self.namespace, &rule).await?;
                let newest_success = newest_successes.get(&job.id).copied().max(job.succeeded_at);
                let success_facts = SuccessFacts { newest: newest_success, created_at: job.created_at };
                let due_at = check.at.unwrap_or(self.now);
                let state = expect.judge(kind, success_facts, (due_at, self.now), &is_day);
                findings
                    .expect_checks
                    .push(ExpectCheck { at: expect.next_check_at(kind, success_facts, self.now), ..*check });
                if !state.is_clear() {
                    let observed_rule = observed_rules.of(self.rule_record(rule_id(self.namespace, &rule), rule));
                    observed_rule.observations.push(Observation {
                        subject: facts::job_subject(job),
                        state,
                        samples: Vec::new(),
                    });
                }
            }
        }
        Ok(())
    }

    /// The newest successes in the ledger, for jobs whose counts do not include a recent enough success.
    async fn newest_successes(
        &self,
        checks: &[&ExpectCheck],
        jobs: &HashMap<JobId, WatchedJob>,
    ) -> Result<HashMap<JobId, Timestamp>, StoreError> {
        let mut doubtful_jobs: Vec<JobId> = Vec::new();
        let mut since = self.now;
        for check in checks {
            let Some(job) = jobs.get(&check.job) else { continue };
            let counts_from =
                job.expect.as_ref().and_then(|expect| expect.counts_from(check.kind, check.at?, self.now));
            if let Some(counts_from) = counts_from.filter(|from| job.succeeded_at.is_none_or(|done| done < *from)) {
                doubtful_jobs.push(job.id);
                since = since.min(counts_from);
            }
        }
        Ok(self.node.store().newest_successes_since(&doubtful_jobs, since).await?.into_iter().collect())
    }

    /// Compares open runs with the expectations of their jobs.
    async fn look_at_open_runs(&self, kind: ExpectKind, observed_rules: &mut ObservedRules) -> Result<(), StoreError> {
        let bound = |job: &WatchedJob| -> Option<Duration> { job.expect.as_ref()?.bound(kind) };
        let observations = match kind {
            ExpectKind::Late => states::late_jobs(self.node, self.namespace, (Duration::ZERO, bound), self.now).await?,
            _ => states::running_longer(self.node, self.namespace, (Duration::ZERO, bound), self.now).await?,
        };
        for (job, observation) in observations {
            if let Some(rule) = job.expect.as_ref().and_then(|expect| expect.rule(kind)) {
                observed_rules
                    .of(self.rule_record(rule_id(self.namespace, &rule), rule))
                    .observations
                    .push(observation);
            }
        }
        Ok(())
    }

    async fn decide_expect(&self, observed_rule: ObservedRule, findings: &mut Findings) -> Result<(), StoreError> {
        let ObservedRule { rule, mut observations, due_incidents } = observed_rule;
        let observed_ids: BTreeSet<i64> = observations.iter().map(|observation| observation.subject.id).collect();
        let is_unobserved = |record: &&IncidentRecord| {
            record.incident.subject.kind == SubjectKind::Job && !observed_ids.contains(&record.incident.subject.id)
        };
        let unobserved_incidents: Vec<IncidentRecord> = due_incidents.iter().filter(is_unobserved).cloned().collect();
        let kind = Expectations::kind_of(&rule.spec);
        // If the job's expectation was edited, it now belongs to another rule, and the incident of this rule ends.
        let still_expects = |record: &IncidentRecord| {
            let job = self.facts.job(JobId::new(record.incident.subject.id));
            let expected_rule = job.and_then(|job| job.expect.as_ref()?.rule(kind?));
            expected_rule.is_some_and(|expected| rule_id(self.namespace, &expected) == rule.id)
        };
        let (expected_incidents, edited_incidents): (Vec<_>, Vec<_>) =
            unobserved_incidents.into_iter().partition(still_expects);
        observations.extend(edited_incidents.iter().map(|record| unwatched_observation(&record.incident)));
        match kind {
            Some(kind) if !kind.is_about_open_runs() => {
                observations.extend(self.facts.recheck_instants(&rule, &expected_incidents, self.now).await?);
            }
            // An incident ends when open runs no longer show its condition.
            _ => observations.extend(expected_incidents.iter().map(|record| cleared_observation(&record.incident))),
        }
        self.decide(&rule, (observations, &due_incidents), findings).await
    }

    fn rule_record(&self, id: AlertRuleId, spec: RuleSpec) -> RuleRecord {
        RuleRecord {
            id,
            namespace: self.namespace,
            version: 0,
            spec,
            author: String::new(),
            created_at: self.now,
            updated_at: self.now,
            check_at: None,
            progress: None,
        }
    }
}

impl ObservedRules {
    fn of(&mut self, rule: RuleRecord) -> &mut ObservedRule {
        self.0.entry(rule.id).or_insert_with(|| ObservedRule {
            rule,
            observations: Vec::new(),
            due_incidents: Vec::new(),
        })
    }
}

/// Postpones the looks at jobs that have succeeded, so that no look is due while all jobs succeed. If a success is missed here, the look
/// finds it.
pub(super) async fn postpone_checks(
    node: &Node,
    namespace: NamespaceId,
    succeeded: &[(JobId, Timestamp)],
) -> Result<(), StoreError> {
    let (store, now) = (node.store(), node.now());
    let Some(version) = store.alert_version(namespace).await? else { return Ok(()) };
    let ids: Vec<JobId> = succeeded.iter().map(|(job, _)| *job).collect();
    let newest_by_job: HashMap<JobId, Timestamp> = succeeded.iter().copied().collect();
    let rows = store.expect_checks_of_jobs(&ids).await?;
    let jobs = store.watched_jobs_by_id(&ids).await?;
    let mut checks = Vec::new();
    for job in &jobs {
        let Some(expect) = &job.expect else { continue };
        let success_facts = SuccessFacts {
            newest: newest_by_job.get(&job.id).copied().max(job.succeeded_at),
            created_at: job.created_at,
        };
        for row in rows.iter().filter(|row| row.job == job.id) {
            let next_check_at = row.at.and_then(|at| expect.postponed_check_at(row.kind, success_facts, (at, now)));
            checks.extend(next_check_at.map(|next| ExpectCheck { at: Some(next), ..*row }));
        }
    }
    if checks.is_empty() {
        return Ok(());
    }
    let write = AlertWrite {
        namespace,
        version,
        incidents: &[],
        messages: &[],
        evaluated_events: &[],
        checks: &[],
        expect_checks: &checks,
        open_runs_check: None,
    };
    store.write_alerts(&write).await.map(drop)
}

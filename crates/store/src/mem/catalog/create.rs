//! Creates jobs, one at a time or many at once.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::NodeId;
use rondel_core::homes::RecentFires;

use crate::catalog::{Declared, JobCreated, JobRecord, NewJob};
use crate::mem::{DueRow, MemStore, State, StoredJob, StoredVersion};
use crate::settle::clean_name;
use crate::{CreateJobs, Result};

#[async_trait]
impl CreateJobs for MemStore {
    async fn create_job(&self, job: NewJob) -> Result<JobCreated> {
        Ok(self.state().create_checked(job))
    }

    async fn create_jobs(&self, jobs: &[NewJob]) -> Result<Vec<JobCreated>> {
        let mut state = self.state();
        Ok(jobs.iter().map(|job| state.create_checked(job.clone())).collect())
    }
}

impl State {
    fn create_checked(&mut self, job: NewJob) -> JobCreated {
        if !self.has_calendar(job.calendar) {
            return JobCreated::NoCalendar;
        }
        if let Some(channel) = self.missing_channel(job.namespace, &job.spec, None) {
            return JobCreated::NoChannel(channel);
        }
        if let Some(script) = self.missing_script(job.namespace, &job.spec, None) {
            return JobCreated::NoScript(script);
        }
        if self.job(job.namespace, &job.spec.name).is_some() {
            return JobCreated::NameTaken;
        }
        let (id, edges) = (job.id, self.check_parents(job.id, job.namespace, &job.spec));
        let edges = match edges {
            Ok(edges) => edges,
            Err(errors) => return JobCreated::BadParents(errors),
        };
        let record = self.create(job);
        self.write_parents(id, edges);
        JobCreated::Saved(Box::new(record))
    }

    fn create(&mut self, job: NewJob) -> JobRecord {
        if job.spec.pump.is_some() {
            self.pumps.insert(job.id);
        }
        let to_declared = |spec| Declared { spec, declared_at: job.now, undeclared_at: None };
        let record = JobRecord {
            id: job.id,
            namespace: job.namespace,
            app: job.app,
            version: 1,
            spec: job.spec,
            anchor: job.anchor,
            next_fire_at: job.next_fire_at,
            calendar: job.calendar,
            declared: job.declared.map(to_declared),
            created_at: job.now,
            updated_at: job.now,
        };
        self.alert_rows.write_expect_checks((record.namespace, record.id), (None, Some(&record.spec)), job.now);
        let version = StoredVersion {
            app: record.app,
            spec: record.spec.clone(),
            calendar: job.calendar,
            author: clean_name(&job.author).into_owned(),
            created_at: job.now,
        };
        let due = DueRow {
            next_fire_at: job.next_fire_at,
            held_from: None,
            is_over: job.next_fire_at.is_none(),
            delay: job.delay,
            awaited_run: None,
            version: 1,
            home: NodeId::new(0),
            term: 0,
            recent_fires: RecentFires::default(),
        };
        self.due.insert(job.id, due);
        let versions = BTreeMap::from([(1, version)]);
        self.jobs.insert(job.id, StoredJob { record: record.clone(), is_deleted: false, versions });
        record
    }
}

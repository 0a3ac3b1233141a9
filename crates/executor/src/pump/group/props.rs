//! Property tests with orders and events in any sequence.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use rondel_core::Timestamp;
use rondel_proto::v1::{PumpItem, PumpOrder, PumpProgress};

use super::tests::{GroupHarness, item, order};
use super::*;

#[derive(Clone, Debug)]
enum Event {
    /// The order's number, its items (each with its epoch and whether to release it), and whether the group is to
    /// yield.
    Order(i64, Vec<(u8, i64, bool)>, bool),
    /// The select returns these rows: item and key.
    Rows(Vec<(u8, u8)>),
    SelectFails,
    /// One of the executions ends. The number selects it, modulo their count.
    Ends(u8, ExecutionEnd),
    /// This many milliseconds pass.
    Passes(u16),
    Stops,
}

fn event() -> impl Strategy<Value = Event> {
    let items = prop::collection::vec((0..4_u8, 1..5_i64, any::<bool>()), 0..5);
    let end = prop_oneof![Just(ExecutionEnd::Done), Just(ExecutionEnd::Failed), Just(ExecutionEnd::Aborted)];
    prop_oneof![
        4 => (0..30_i64, items, prop::bool::weighted(0.02)).prop_map(|(n, items, yields)| Event::Order(n, items, yields)),
        6 => prop::collection::vec((0..5_u8, 0..6_u8), 0..8).prop_map(Event::Rows),
        1 => Just(Event::SelectFails),
        8 => (any::<u8>(), end).prop_map(|(position, end)| Event::Ends(position, end)),
        3 => (0..20_000_u16).prop_map(Event::Passes),
        1 => prop::bool::weighted(0.05).prop_map(|stops| if stops { Event::Stops } else { Event::Passes(1) }),
    ]
}

/// A group under test, and what its steps and reports have shown so far.
struct Watch {
    harness: GroupHarness,
    /// Item and epoch of each select and execution under way.
    selecting: Option<Vec<(String, i64)>>,
    executing: BTreeMap<u64, (String, i64)>,
    reported: BTreeMap<String, PumpProgress>,
    released: BTreeMap<String, i64>,
}

impl Watch {
    fn name(item: u8) -> String {
        format!("i{item}")
    }

    fn apply(&mut self, event: Event) {
        let now = self.harness.now;
        let group = &mut self.harness.group;
        match event {
            Event::Order(number, items, yields) => {
                let items = items
                    .into_iter()
                    .map(|(name, epoch, release)| PumpItem { release, ..item(&Self::name(name), epoch) });
                group.order(PumpOrder { r#yield: yields, ..order(number, items) }, now);
            }
            Event::Rows(rows) if self.selecting.take().is_some() => {
                let row = |(item, key): (u8, u8)| Row { item: Self::name(item), key: key.to_string(), value: 0 };
                group.accept_fetched(rows.into_iter().map(row).collect(), now, Timestamp::from_secs(1));
            }
            Event::SelectFails if self.selecting.take().is_some() => {
                group.end_failed_fetch(now);
            }
            Event::Ends(position, end) if !self.executing.is_empty() => {
                let number = *self.executing.keys().nth(usize::from(position) % self.executing.len()).unwrap();
                self.executing.remove(&number);
                group.end_execution(number, end, now);
            }
            Event::Passes(ms) => self.harness.now += Duration::from_millis(ms.into()),
            Event::Stops => group.stop(Some(now + Duration::from_secs(1))),
            Event::Rows(_) | Event::SelectFails | Event::Ends(..) => {}
        }
    }

    fn step(&mut self) -> Result<(), TestCaseError> {
        loop {
            match self.harness.group.next(self.harness.now) {
                Step::Fetch { items, .. } => {
                    prop_assert!(self.selecting.is_none(), "one select at a time");
                    for item in &items {
                        self.check_not_released(&item.name, item.epoch)?;
                    }
                    self.selecting = Some(items.into_iter().map(|item| (item.name, item.epoch)).collect());
                }
                Step::Execute(execution) => {
                    self.check_not_released(&execution.item, execution.epoch)?;
                    prop_assert!(!execution.rows.is_empty() && execution.rows.len() <= 2);
                    self.executing.insert(execution.number, (execution.item, execution.epoch));
                    prop_assert!(self.executing.len() <= 2);
                }
                Step::Abort(Task::Fetch) => {
                    self.selecting = None;
                    self.harness.group.end_aborted_fetch();
                }
                // The aborted execution ends later, by an event.
                Step::Abort(Task::Execution(_)) => {}
                Step::Wait(wake_at) => {
                    prop_assert!(wake_at.is_none_or(|at| at > self.harness.now), "it would spin");
                    return Ok(());
                }
                Step::Ended => {
                    prop_assert!(self.selecting.is_none() && self.executing.is_empty());
                    return Ok(());
                }
            }
        }
    }

    fn check_not_released(&self, name: &str, epoch: i64) -> Result<(), TestCaseError> {
        let released_epoch = self.released.get(name).copied().unwrap_or(0);
        prop_assert!(released_epoch < epoch, "{} at {} was released at {}", name, epoch, released_epoch);
        Ok(())
    }

    fn check_report(&mut self) -> Result<(), TestCaseError> {
        for item in self.harness.group.full_report(self.harness.now).items {
            let released_item = (item.name.clone(), item.epoch);
            if item.released {
                self.released.insert(item.name.clone(), item.epoch);
                prop_assert!(
                    !self.executing.values().any(|held_item| *held_item == released_item),
                    "{:?} has rows in work",
                    item
                );
                prop_assert!(
                    !self.selecting.iter().flatten().any(|held_item| *held_item == released_item),
                    "{:?} is asked for",
                    item
                );
                prop_assert_eq!(item.oldest_at_ms, 0);
            }
            if let Some(previous_report) = self.reported.insert(item.name.clone(), item.clone()) {
                prop_assert!(item.epoch >= previous_report.epoch, "{:?} after {:?}", item, previous_report);
                if item.epoch == previous_report.epoch {
                    let counts =
                        |progress: &PumpProgress| [progress.fetches, progress.rows, progress.done, progress.failed];
                    prop_assert!(
                        counts(&item).iter().zip(counts(&previous_report)).all(|(now, previous)| *now >= previous)
                    );
                    prop_assert!(item.released || !previous_report.released, "a released item comes back");
                    prop_assert_eq!(
                        item.sequence > previous_report.sequence,
                        PumpProgress { sequence: previous_report.sequence, ..item.clone() } != previous_report
                    );
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn events_keep_rules(events in prop::collection::vec(event(), 0..120), not_sleep: bool, row_retry_max in 0..3_u32) {
        let limits = Limits {
            threads: 2,
            fetch: 5,
            batch: 2,
            not_sleep,
            idle: Duration::from_millis(500),
            pause: Duration::ZERO,
            hand_over: Duration::from_secs(10),
            row_retry_max,
            row_backoff: Duration::from_secs(1),
            row_backoff_max: Duration::from_secs(4),
        };
        let (executing, reported, released) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut watch = Watch { harness: GroupHarness::new(limits), selecting: None, executing, reported, released };
        for event in events {
            watch.apply(event);
            watch.step()?;
            watch.check_report()?;
        }
    }
}

//! The shard of the current run, also for code that does not get it as an argument.

use rondel_core::shape::read_with_place;
use rondel_core::spec::with_params_of_shard;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{JobError, run};

/// One of the `total` parts into which a fire of the job is split. An unsharded run is part 0 of 1.
///
/// ```
/// # use rondel::{Shard, TestRun};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// async fn rebuild(shard: Shard) {
///     for row in (0..10_u32).filter(|row| shard.owns(u64::from(*row))) {
///         // Every row is done by exactly one of the shards.
///     }
/// }
/// assert!(TestRun::of(rebuild).shard(1, 4).run().await.is_succeeded());
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// The number of this part, from 0.
    pub index: u32,
    /// The number of parts, at least 1.
    pub total: u32,
}

impl Shard {
    /// The whole work: part 0 of 1.
    pub const WHOLE: Self = Self { index: 0, total: 1 };

    /// Whether the item with this number (a hash, an id) belongs to this shard.
    #[must_use]
    pub const fn owns(self, item: u64) -> bool {
        item % self.total as u64 == self.index as u64
    }

    pub(crate) fn from_wire(index: i32, shard_total: i32) -> Self {
        Self { index: u32::try_from(index).unwrap_or(0), total: u32::try_from(shard_total).unwrap_or(0).max(1) }
    }
}

/// The index of the shard that this code runs in, from 0; 0 outside a run.
///
/// ```
/// # use rondel::{TestRun, shard};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// fn far_away() -> (u32, u32) {
///     (shard::index(), shard::total())
/// }
/// async fn handler() {
///     assert_eq!(far_away(), (2, 3));
///     let in_a_task = rondel::spawn(async { far_away() }).await.unwrap();
///     assert_eq!(in_a_task, (2, 3));
/// }
/// assert!(TestRun::of(handler).shard(2, 3).run().await.is_succeeded());
/// assert_eq!(far_away(), (0, 1));
/// # }
/// ```
#[must_use]
pub fn index() -> u32 {
    current().index
}

/// The number of shards of the run that this code runs in; 1 outside a run.
#[must_use]
pub fn total() -> u32 {
    current().total
}

/// The name of the shard that this code runs in; `None` if the job does not name its shards.
///
/// ```
/// # use rondel::{JobError, TestRun, shard};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// #[derive(serde::Deserialize)]
/// struct Region {
///     schema: String,
/// }
/// async fn handler() -> Result<String, JobError> {
///     let region: Region = shard::params()?;
///     Ok(format!("{} in {}", shard::name().unwrap_or_default(), region.schema))
/// }
/// let run = TestRun::of(handler).shard(1, 2).shard_item("us", serde_json::json!({"schema": "us_main"}));
/// assert_eq!(run.run().await.result(), Some(&"us in us_main".into()));
/// # }
/// ```
#[must_use]
pub fn name() -> Option<String> {
    run::with_current(|run| run.shard_name().map(str::to_owned)).flatten()
}

/// The parameters that belong only to the shard that this code runs in; the run's parameters contain them too. `T` is
/// read from `null` if the shard has none, and outside a run.
///
/// # Errors
/// The parameters do not fit `T`.
pub fn params<T: DeserializeOwned>() -> Result<T, JobError> {
    let own_params = run::with_current(|run| own_params(run.shard_params(), run.params())).unwrap_or_default();
    read_with_place(own_params).map_err(|error| JobError::terminal(format_args!("the shard's params: {error}")))
}

/// The shard's own parameters; null if it has none. Their values are taken from the run's parameters, in which secrets
/// are already resolved.
fn own_params(shard_params: &str, run_params: &str) -> Value {
    let run_params = serde_json::from_str(run_params).unwrap_or_default();
    match (serde_json::from_str(shard_params).unwrap_or_default(), run_params) {
        (Value::Null, _) => Value::Null,
        (Value::Object(own_fields), Value::Object(mut run_fields)) => {
            let field = |(key, value): (String, Value)| {
                let resolved_value = run_fields.remove(&key);
                (key, resolved_value.unwrap_or(value))
            };
            Value::Object(own_fields.into_iter().map(field).collect::<Map<_, _>>())
        }
        (_, run_params) => run_params,
    }
}

/// The parameters of a run, overridden by those of its shard.
pub(crate) fn merge_params(fire_params: &str, shard_params: &Value) -> String {
    with_params_of_shard(serde_json::from_str(fire_params).unwrap_or_default(), shard_params).to_string()
}

fn current() -> Shard {
    run::with_current(|run| run.shard()).unwrap_or(Shard::WHOLE)
}

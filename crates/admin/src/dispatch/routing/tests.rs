use serde_json::json;

use super::*;
use crate::dispatch::tests_support::{definition, ready};

/// All shards of a fire share one draw, which spreads them over the executors. Each attempt of any other run gets a new draw.
#[test]
fn all_shards_of_a_fire_draw_the_same() {
    let draw_of = |second, attempt, parent: Option<i64>, total| {
        let mut run = ready(second, &definition(&json!({}))).run;
        (run.attempt, run.parent, run.shard_total) = (attempt, parent.map(RunId::new), total);
        pseudo_random(&run)
    };
    assert_eq!(draw_of(1, 1, Some(90), Some(2)), draw_of(2, 1, Some(90), Some(2)));
    assert_eq!(draw_of(1, 1, Some(90), Some(2)), draw_of(1, 2, Some(90), Some(2)), "it stays at its place");
    assert_ne!(draw_of(1, 1, Some(90), Some(2)), draw_of(1, 1, Some(91), Some(2)));
    assert_ne!(draw_of(1, 1, Some(90), Some(1)), draw_of(1, 2, Some(90), Some(1)), "alone, it has no place to keep");
    assert_ne!(draw_of(1, 1, None, None), draw_of(1, 2, None, None));
    assert_ne!(draw_of(1, 1, None, None), draw_of(2, 1, None, None));
}

//! Groups of pump jobs whose executors are drained or shut down.

use std::time::Duration;

use rondel_core::homes::Switch;
use rondel_store::Cluster as _;
use serde_json::json;

use super::pumps::{Worker, all_dealt, config, create_pump, wait_until};
use super::world::{World, store};

#[tokio::test]
async fn a_drained_executor_keeps_the_groups_for_which_no_place_is_free() {
    let world = World::start_on(store(), config()).await;
    let job = create_pump(&world, json!({"groups": 5, "per_executor": 3})).await;
    let (first, second) = (Worker::start(&world, "a", 1).await, Worker::start(&world, "b", 2).await);
    let counts = || (first.group_count(), second.group_count());
    let are_placed = async || all_dealt(&world, &job, &[&first, &second]).await;
    let is_spread = async || [(3, 2), (2, 3)].contains(&counts()) && are_placed().await;
    wait_until("all groups have a place", is_spread).await;

    let (drained, expected_counts) = if counts() == (3, 2) { ("a", (2, 3)) } else { ("b", (3, 2)) };
    world.store.set_executor_switch(job.app, drained, Switch::Draining, world.engine.now()).await.unwrap();
    world.engine.poke_beat();
    wait_until("one group has moved", async || counts() == expected_counts && are_placed().await).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(counts(), expected_counts);
    world.die().await;
}

/// The items go to the groups of other executors, even if these have no place for the group itself.
#[tokio::test]
async fn a_group_whose_executor_shuts_down_does_not_get_its_items_again() {
    let world = World::start_on(store(), config()).await;
    let job = create_pump(&world, json!({"groups": 2, "per_executor": 1})).await;
    let (first, second) = (Worker::start(&world, "a", 1).await, Worker::start(&world, "b", 2).await);
    wait_until("each has a group", async || {
        (first.group_count(), second.group_count()) == (1, 1) && all_dealt(&world, &job, &[&first, &second]).await
    })
    .await;
    first.announce_shutdown();
    // The server may handle the announcement after a report that arrives together with it.
    wait_until("the server has handled the announcement", async || {
        world.engine.online_executors().iter().any(|executor| executor.is_draining)
    })
    .await;
    first.release_all();
    wait_until("the other one has all", async || all_dealt(&world, &job, &[&second]).await).await;
    assert_eq!(first.group_count(), 1, "the group has not ended");
    world.die().await;
}

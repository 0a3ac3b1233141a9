//! Tables and properties of the graph of jobs.

use proptest::prelude::*;

use super::*;

const fn id(number: i64) -> JobId {
    JobId::new(number)
}

fn ids(numbers: &[i64]) -> Vec<JobId> {
    numbers.iter().copied().map(JobId::new).collect()
}

/// Edges as (parent, child).
fn graph(edges: &[(i64, i64)]) -> Graph {
    Graph::new(edges.iter().map(|(parent, child)| Edge {
        child: id(*child),
        parent: id(*parent),
        on: AfterWhat::Success,
    }))
}

fn success(parents: &[i64]) -> Vec<(JobId, AfterWhat)> {
    parents.iter().map(|parent| (id(*parent), AfterWhat::Success)).collect()
}

/// Jobs 2 and 3 follow from job 1, and job 4 follows from both.
fn diamond() -> Graph {
    graph(&[(1, 2), (1, 3), (2, 4), (3, 4)])
}

#[track_caller]
fn check_cycle(graph: &Graph, job: i64, parents: &[i64], path: &[i64]) {
    let refused = graph.clone().replace(id(job), &success(parents));
    assert_eq!(refused, Err(BadGraph::Cycle(ids(path))));
}

#[test]
fn a_circle_is_found_with_its_path() {
    check_cycle(&diamond(), 1, &[4], &[4, 1, 2, 4]);
    check_cycle(&diamond(), 1, &[3], &[3, 1, 3]);
    check_cycle(&diamond(), 5, &[5], &[5, 5]);
    check_cycle(&diamond(), 2, &[1, 4], &[4, 2, 4]);
    assert_eq!(diamond().replace(id(4), &success(&[1])), Ok(()));
    // The old parents of a job do not count, so an edge can be reversed without a cycle.
    let mut pair = graph(&[(1, 2)]);
    assert_eq!(pair.replace(id(2), &[]), Ok(()));
    assert_eq!(pair.replace(id(1), &success(&[2])), Ok(()));
    assert_eq!(pair.with_followers(id(2)), BTreeSet::from([id(1), id(2)]));
}

#[test]
fn a_chain_that_is_too_long_is_reported_whole() {
    let depth = i64::try_from(DEPTH_MAX).unwrap();
    let edges: Vec<(i64, i64)> = (1..depth - 1).map(|job| (job, job + 1)).collect();
    let mut chain = graph(&edges);
    assert_eq!(chain.replace(id(100), &success(&[depth - 1])), Ok(()));
    let all: Vec<i64> = (1..depth).chain([100, 101]).collect();
    assert_eq!(chain.clone().replace(id(101), &success(&[100])), Err(BadGraph::TooDeep(ids(&all))));
    // A job in the middle: the jobs above it and the jobs below it count together.
    let mut halves = graph(&(1..12).chain(21..32).map(|job| (job, job + 1)).collect::<Vec<_>>());
    let Err(BadGraph::TooDeep(path)) = halves.replace(id(21), &success(&[12])) else { unreachable!("24 jobs") };
    assert_eq!(path.len(), 24);
}

#[test]
fn a_whole_graph_is_checked_at_once() {
    let depth = i64::try_from(DEPTH_MAX).unwrap();
    let line = |from: i64, to: i64| graph(&(from..to).map(|job| (job, job + 1)).collect::<Vec<_>>());
    assert_eq!(diamond().check(&ids(&[1, 2, 3, 4])), Ok(()));
    assert_eq!(line(1, depth).check(&ids(&[depth])), Ok(()));
    // The path ends with the job that completes the chain; the jobs that follow from it are left out.
    let jobs: Vec<i64> = (1..=depth + 5).collect();
    let expected = ids(&(1..=depth + 1).collect::<Vec<_>>());
    assert_eq!(line(1, depth + 5).check(&ids(&jobs)), Err(BadGraph::TooDeep(expected)));
    // A job in the middle of a chain that exists.
    let all = ids(&(1..=depth + 1).collect::<Vec<_>>());
    assert_eq!(line(1, depth + 1).check(&ids(&[5])), Err(BadGraph::TooDeep(all)));
    assert_eq!(line(1, depth + 1).check(&ids(&[100])), Ok(()), "chains of other jobs are not this list's fault");
}

#[test]
fn a_circle_in_a_whole_graph_is_found_with_its_path() {
    let circle = |edges: &[(i64, i64)], order: &[i64]| match graph(edges).check(&ids(order)) {
        Err(BadGraph::Cycle(path)) => path,
        other => unreachable!("{other:?}"),
    };
    assert_eq!(circle(&[(1, 2), (2, 3), (3, 1), (3, 4), (0, 1)], &[3, 1, 2]), ids(&[1, 2, 3, 1]));
    assert_eq!(circle(&[(1, 2), (2, 3), (3, 1)], &[1, 2, 3]), ids(&[2, 3, 1, 2]));
    assert_eq!(circle(&[(5, 5)], &[5]), ids(&[5, 5]));
    // Jobs that only follow from a cycle are not part of it.
    assert_eq!(circle(&[(7, 8), (8, 7), (8, 1), (1, 2)], &[1, 2, 7, 8]), ids(&[7, 8, 7]));
}

/// Layers in which each job follows from many jobs of the layer above: the number of chains grows exponentially with the
/// layers, the number of edges does not.
#[test]
fn each_edge_is_visited_a_fixed_number_of_times() {
    let (layers, width, parents) = (20, 60, 20);
    let job = |layer: i64, place: i64| layer * 1_000 + place % width;
    let edges: Vec<(i64, i64)> = (1..layers)
        .flat_map(|layer| (0..width).map(move |place| (layer, place)))
        .flat_map(|(layer, place)| (0..parents).map(move |n| (job(layer - 1, place + n), job(layer, place))))
        .collect();
    let graph = graph(&edges);
    let in_order = graph.topological_order();
    let chains = Chains::of(&graph, &in_order.sorted_jobs);
    assert_eq!((in_order.step_count, chains.step_count), (edges.len(), 2 * edges.len()));
    assert_eq!(chains.longest_chain_through(id(job(7, 7))).len(), 20);
    assert_eq!(graph.check(&[id(0)]), Ok(()));
}

fn fire<'g>(graph: &'g Graph, stands: &[(i64, RunStatus)]) -> FireGraph<'g> {
    let stand = |status: RunStatus| JobInFire { end_status: Some(status), verdict: Some((status, None)) };
    let stands = stands.iter().map(|(job, status)| match status.is_terminal() {
        true => (id(*job), stand(*status)),
        false => (id(*job), JobInFire { end_status: None, verdict: None }),
    });
    FireGraph::new(graph, graph.with_followers(id(1)), stands.collect())
}

#[track_caller]
fn check_turns(graph: &Graph, stands: &[(i64, RunStatus)], expected: &[(i64, ChildStart)]) {
    let expected: Vec<(JobId, ChildStart)> = expected.iter().map(|(job, turn)| (id(*job), *turn)).collect();
    assert_eq!(fire(graph, stands).ready_children(), expected);
}

#[test]
fn a_child_waits_for_all_its_parents_of_the_fire() {
    use RunStatus::{Cancelled, Failed, Pending, Succeeded};
    let diamond = diamond();
    check_turns(&diamond, &[(1, Pending)], &[]);
    check_turns(&diamond, &[(1, Succeeded)], &[(2, ChildStart::Runs), (3, ChildStart::Runs)]);
    check_turns(&diamond, &[(1, Failed)], &[(2, ChildStart::Refused(id(1))), (3, ChildStart::Refused(id(1)))]);
    check_turns(&diamond, &[(1, Succeeded), (2, Succeeded), (3, Pending)], &[]);
    check_turns(&diamond, &[(1, Succeeded), (2, Succeeded), (3, Succeeded)], &[(4, ChildStart::Runs)]);
    check_turns(&diamond, &[(1, Succeeded), (2, Succeeded), (3, Cancelled)], &[(4, ChildStart::Refused(id(3)))]);
    // A parent that does not follow from the root does not count.
    let with_stranger = graph(&[(1, 2), (9, 2)]);
    check_turns(&with_stranger, &[(1, Succeeded)], &[(2, ChildStart::Runs)]);
}

#[test]
fn how_a_parent_must_have_ended() {
    use RunStatus::{Cancelled, Failed, Skipped, Succeeded, TimedOut, Unknown};
    for (on, lets) in [
        (AfterWhat::Success, vec![Succeeded]),
        (AfterWhat::Failure, vec![Failed, TimedOut, Unknown]),
        (AfterWhat::Either, vec![Succeeded, Failed, TimedOut, Unknown]),
    ] {
        for status in [Succeeded, Failed, TimedOut, Unknown, Cancelled, Skipped] {
            assert_eq!(satisfies(on, status), lets.contains(&status), "{on} {status}");
        }
    }
}

#[test]
fn a_run_that_is_over_with_its_children_counts_them() {
    let diamond = diamond();
    let mut fire = fire(&diamond, &[(2, RunStatus::Succeeded), (3, RunStatus::Pending)]);
    fire.set(id(1), JobInFire { end_status: Some(RunStatus::Succeeded), verdict: None });
    assert_eq!((fire.open_child_count(id(1)), fire.open_child_count(id(2)), fire.failing_child(id(1))), (1, 1, None));
    let failed = (RunStatus::Failed, None);
    fire.set(id(3), JobInFire { end_status: Some(RunStatus::Failed), verdict: Some(failed) });
    assert_eq!((fire.open_child_count(id(1)), fire.failing_child(id(1))), (0, Some((id(3), RunStatus::Failed))));
    fire.set(
        id(4),
        JobInFire { end_status: Some(RunStatus::Skipped), verdict: Some((RunStatus::Skipped, Some(Reason::Parent))) },
    );
    assert_eq!((fire.open_child_count(id(2)), fire.failing_child(id(2))), (0, None));
}

proptest! {
    /// For any definitions in any order: the accepted graph has no cycle, and every fire ends after each of its jobs had
    /// exactly one turn.
    #[test]
    fn every_job_of_a_fire_has_one_turn(
        saves in prop::collection::vec((0_i64..12, prop::collection::vec(0_i64..12, 0..4)), 0..40),
        outcomes in prop::collection::vec(any::<bool>(), 12),
    ) {
        let mut graph = Graph::default();
        for (job, parents) in saves {
            let mut next = graph.clone();
            if next.replace(id(job), &success(&parents)).is_ok() {
                graph = next;
            }
        }
        for root in 0..12 {
            let members = graph.with_followers(id(root));
            let done = |status| JobInFire { end_status: Some(status), verdict: Some((status, None)) };
            let stands = BTreeMap::from([(id(root), done(RunStatus::Succeeded))]);
            let mut fire = FireGraph::new(&graph, members.clone(), stands);
            let mut turns = 0;
            while let Some((job, turn)) = fire.ready_children().into_iter().next() {
                prop_assert!(fire.state_of(job).is_none());
                let status = match turn {
                    ChildStart::Runs if outcomes[usize::try_from(job.get()).unwrap()] => RunStatus::Succeeded,
                    ChildStart::Runs => RunStatus::Failed,
                    ChildStart::Refused(_) => RunStatus::Skipped,
                };
                fire.set(job, done(status));
                turns += 1;
            }
            prop_assert_eq!(turns + 1, members.len());
        }
    }
}

#[test]
fn a_job_without_neighbours_is_a_chain_of_one() {
    let graph = graph(&[(1, 2), (2, 3), (5, 3)]);
    let order = graph.topological_order();
    let chains = Chains::of(&graph, &order.sorted_jobs);
    let len = |job| chains.chain_len_through(id(job));
    assert_eq!([1, 2, 3, 5, 9].map(len), [3, 3, 3, 2, 1]);
    assert_eq!(chains.chain_len_above(id(3)), 3);
}

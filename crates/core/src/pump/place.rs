//! On which executors the groups of a pump job run.

/// Groups of one pump job on an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// How many groups it has.
    pub groups: u32,
    /// Whether the executor takes more groups.
    pub room: Room,
}

/// Whether an executor takes groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It takes groups.
    Open,
    /// It has no free slot: it keeps its groups, and gets no further ones.
    Full,
    /// It shuts down or is switched off: its groups must leave.
    Off,
}

/// The index of the executor that gets the next group: the one with the fewest groups among those with room; among equals, the first. `None`
/// if no executor has room.
///
/// ```
/// use rondel_core::pump::{Load, Room, least_loaded};
///
/// let load = |groups| Load { groups, room: Room::Open };
/// assert_eq!(least_loaded(&[load(2), load(1), load(1)], None), Some(1));
/// assert_eq!(least_loaded(&[load(2), Load { groups: 0, room: Room::Full }], Some(2)), None);
/// ```
#[must_use]
pub fn least_loaded(loads: &[Load], per_executor: Option<u32>) -> Option<usize> {
    let has_room = |load: &Load| load.room == Room::Open && per_executor.is_none_or(|max| load.groups < max);
    let loads_with_room = loads.iter().enumerate().filter(|(_, load)| has_room(load));
    loads_with_room.min_by_key(|(_, load)| load.groups).map(|(index, _)| index)
}

/// The index of the executor from which one group moves to another executor: one that is off or, without such an executor, the one with the
/// most groups if another has at least two fewer. `None` if no group needs to move, or no other executor has room.
#[must_use]
pub fn executor_to_unload(loads: &[Load], per_executor: Option<u32>) -> Option<usize> {
    let target_index = least_loaded(loads, per_executor)?;
    let loads_with_groups =
        || loads.iter().enumerate().filter(|(index, load)| *index != target_index && load.groups > 0);
    let leaving_executor = loads_with_groups().find(|(_, load)| load.room == Room::Off);
    let fullest_executor = loads_with_groups()
        .filter(|(_, load)| load.groups >= loads[target_index].groups + 2)
        .max_by_key(|(_, load)| load.groups);
    leaving_executor.or(fullest_executor).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(groups: &[u32]) -> Vec<Load> {
        groups.iter().map(|groups| Load { groups: *groups, room: Room::Open }).collect()
    }

    #[test]
    fn a_group_moves_only_where_that_evens_out() {
        assert_eq!(executor_to_unload(&loads(&[2, 2, 1]), None), None);
        assert_eq!(executor_to_unload(&loads(&[2, 2, 0]), None), Some(1));
        assert_eq!(executor_to_unload(&loads(&[3, 1]), Some(1)), None, "the other one is full");
        assert_eq!(executor_to_unload(&loads(&[1]), None), None);
        assert_eq!(executor_to_unload(&loads(&[]), None), None);
    }

    #[test]
    fn an_executor_that_takes_no_groups_is_emptied_first() {
        let mut loads = loads(&[1, 5, 0]);
        loads[0].room = Room::Off;
        assert_eq!(executor_to_unload(&loads, None), Some(0));
        loads[1].room = Room::Off;
        loads[2].room = Room::Full;
        assert_eq!(executor_to_unload(&loads, None), None, "no executor takes it");
    }

    #[test]
    fn a_full_executor_keeps_its_groups() {
        let mut loads = loads(&[1, 0]);
        loads[0].room = Room::Full;
        assert_eq!(executor_to_unload(&loads, None), None);
    }

    #[test]
    fn moves_come_to_an_end() {
        let mut loads = loads(&[8, 0, 0, 0, 0]);
        for _ in 0..6 {
            if let Some(from) = executor_to_unload(&loads, None) {
                let to = least_loaded(&loads, None).unwrap();
                loads[from].groups -= 1;
                loads[to].groups += 1;
            }
        }
        assert_eq!(loads.iter().map(|load| load.groups).collect::<Vec<_>>(), [2, 2, 2, 1, 1]);
        assert_eq!(executor_to_unload(&loads, None), None);
    }
}

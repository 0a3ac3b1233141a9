//! The questions that some routers ask executors before they pick one, and what the answers mean.

use super::request::{Choice, RouteRequest, nth_wrapping};

/// A question to each executor before a router picks. All executors are asked at the same time, and the caller waits briefly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Question {
    /// Are you online?
    Online,
    /// Could you start a run of this job immediately, and do you have no other run of it?
    Idle,
}

/// What an executor answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// Nothing yet, or it was not asked.
    #[default]
    Missing,
    Yes,
    No,
}

/// Picks the first candidate of the list that answered yes, but waits while a candidate before it has not answered, until
/// the time for answers has passed. The shards of a fire go to all candidates that answered yes, in turn.
pub(super) fn first_yes(request: &RouteRequest<'_>) -> Choice {
    let answer = |index: &usize| request.candidates[*index].answer;
    if request.shards > 1 {
        if !request.is_wait_over && request.open().any(|index| answer(&index) == Answer::Missing) {
            return Choice::Wait;
        }
        return nth_wrapping(request.open().filter(|index| answer(index) == Answer::Yes), request.shard_offset())
            .into();
    }
    let decides = |index: &usize| match answer(index) {
        Answer::Yes => true,
        Answer::No => false,
        Answer::Missing => !request.is_wait_over,
    };
    match request.open().find(decides) {
        Some(index) if answer(&index) == Answer::Yes => Choice::Take(index),
        Some(_) => Choice::Wait,
        None => Choice::NoExecutor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::tests::{all_points, candidates, request};

    #[test]
    fn shards_wait_for_every_answer_until_it_is_over() {
        let all_points = all_points(3);
        let pick = |answers: [Answer; 3], is_wait_over| {
            let mut online = candidates(&all_points);
            online.iter_mut().zip(answers).for_each(|(candidate, answer)| candidate.answer = answer);
            [0, 1].map(|shard| first_yes(&RouteRequest { shard, shards: 2, is_wait_over, ..request(&online) }))
        };
        let (yes, no, none) = (Answer::Yes, Answer::No, Answer::Missing);
        assert_eq!(pick([yes, none, yes], false), [Choice::Wait; 2]);
        assert_eq!(pick([yes, none, yes], true), [Choice::Take(0), Choice::Take(2)]);
        assert_eq!(pick([yes, no, yes], false), [Choice::Take(0), Choice::Take(2)]);
        assert_eq!(pick([no, no, no], false), [Choice::NoExecutor; 2]);
    }
}

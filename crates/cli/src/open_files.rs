//! The limit of open files of this process, and the number of connections that it allows.

use rondel_web::HttpLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files reserved for the database, its connections, logs and other reads.
const RESERVED_FILE_COUNT: usize = 128;

/// Raises the soft limit to the hard limit. Systemd and most shells start programs with a soft limit of 1,024, for the
/// sake of programs that use `select`. Returns how many files may be open now.
pub(crate) fn raise_to_hard_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        set_limit(Rlimit { current: maximum, maximum });
    }
    open_files_limit()
}

/// Raises the soft limit to this many files if it is lower, as far as the hard limit allows. Programs that this process
/// starts inherit the limit, so it is raised no further than needed. Returns how many files may be open now.
pub(crate) fn raise_to_count(file_count: usize) -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let file_count = u64::try_from(file_count).unwrap_or(u64::MAX);
    if let Some(new_limit) = limit_to_set((current, maximum), file_count) {
        set_limit(Rlimit { current: Some(new_limit), maximum });
    }
    open_files_limit()
}

/// The soft limit to set; `None` if the current limit is high enough, or cannot be raised.
fn limit_to_set((current, maximum): (Option<u64>, Option<u64>), wanted_limit: u64) -> Option<u64> {
    let new_limit = maximum.map_or(wanted_limit, |maximum| maximum.min(wanted_limit));
    current.filter(|current| *current < new_limit).map(|_| new_limit)
}

fn set_limit(limit: Rlimit) {
    let Rlimit { current, maximum } = limit;
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => tracing::debug!(?current, ?maximum, "raised the limit of open files"),
        Err(error) => tracing::warn!(%error, ?current, ?maximum, "cannot raise the limit of open files"),
    }
}

/// How many files may be open.
pub(crate) fn open_files_limit() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX))
}

/// The limits on connections that this many open files allow. If the files are too few for `http.connections`, one
/// address or one caller gets at most a quarter of the connections.
pub(crate) fn limits_that_fit(limits: HttpLimits, open_files_limit: usize) -> HttpLimits {
    let connection_room = open_files_limit.saturating_sub(RESERVED_FILE_COUNT).max(open_files_limit / 2).max(4);
    if limits.connections <= connection_room {
        return limits;
    }
    tracing::warn!(
        open_files_max = open_files_limit,
        connections = connection_room,
        "the limit of open files leaves room for fewer connections than http.connections = {}; raise it (LimitNOFILE, ulimit -n)",
        limits.connections
    );
    HttpLimits {
        connections: connection_room,
        connections_per_address: limits.connections_per_address.min(connection_room / 4),
        connections_per_caller: limits.connections_per_caller.min(connection_room / 4),
        ..limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_everything_else() {
        let fit = |open_files_limit| {
            let limits = limits_that_fit(HttpLimits::default(), open_files_limit);
            (limits.connections, limits.connections_per_address, limits.connections_per_caller)
        };
        assert_eq!(fit(usize::MAX), (10_000, 512, 128));
        assert_eq!(fit(10_128), (10_000, 512, 128));
        assert_eq!(fit(1_024), (896, 224, 128));
        assert_eq!(fit(256), (128, 32, 32));
        assert_eq!(fit(64), (32, 8, 8));
    }

    #[test]
    fn the_limit_is_raised_no_further_than_needed() {
        let raised = |current, maximum| limit_to_set((current, maximum), 3_000);
        assert_eq!(raised(Some(1_024), Some(4_096)), Some(3_000));
        assert_eq!(raised(Some(1_024), Some(2_048)), Some(2_048));
        assert_eq!(raised(Some(1_024), None), Some(3_000));
        assert_eq!([raised(Some(4_096), None), raised(Some(2_048), Some(2_048)), raised(None, None)], [None; 3]);
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_goes() {
        let before = getrlimit(Resource::Nofile);
        let raised = raise_to_hard_limit();
        let after = getrlimit(Resource::Nofile);
        assert_eq!((after.current, after.maximum), (before.maximum, before.maximum));
        assert_eq!(raised, open_files_limit());
    }
}

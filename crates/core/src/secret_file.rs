//! Whether the permissions of a file with a secret are narrow enough.

/// Permissions of all other users.
const OTHER_USERS_BITS: u32 = 0o007;
/// The group's permissions to write and to execute.
const GROUP_WRITE_EXECUTE_BITS: u32 = 0o030;
const GROUP_BITS: u32 = 0o070;
const ROOT: u32 = 0;

/// Describes why the permissions of a secret file are too wide, in words that follow its name; `None` if they are narrow enough.
///
/// The group may read a file that root owns: orchestrators mount secrets in this way (`0440`) for processes that are not root,
/// and only root can have chosen the group.
///
/// ```
/// use rondel_core::secret_file::exposure;
///
/// assert_eq!(exposure(0o600, 1000), None);
/// assert!(exposure(0o644, 1000).unwrap().contains("chmod 600"));
/// ```
#[must_use]
pub fn exposure(mode: u32, owner: u32) -> Option<String> {
    let group_may_read = owner == ROOT && mode & GROUP_WRITE_EXECUTE_BITS == 0;
    if mode & OTHER_USERS_BITS == 0 && (mode & GROUP_BITS == 0 || group_may_read) {
        return None;
    }
    let mode = mode & 0o777;
    Some(format!(
        "is open to other users of this host (mode {mode:04o}): chmod 600 it, or where it is mounted as a secret, mount it \
         with mode 0400 or, owned by root, 0440"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_or_a_group_that_root_chose() {
        for (mode, owner, is_fine) in [
            (0o600, 1000, true),
            (0o400, 1000, true),
            (0o100_600, 1000, true),
            (0o440, 0, true),
            (0o640, 0, true),
            (0o440, 1000, false),
            (0o640, 1000, false),
            (0o660, 0, false),
            (0o644, 0, false),
            (0o644, 1000, false),
            (0o604, 1000, false),
            (0o601, 1000, false),
        ] {
            assert_eq!(exposure(mode, owner).is_none(), is_fine, "{mode:o} {owner}");
        }
    }
}

//! The files and folders that a start creates. A failed start removes them again.

use std::fs::DirBuilder;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::exit::Failure;

/// The files and folders that this start has created so far. They are removed if this value is dropped before
/// [`StartupFiles::commit`].
#[derive(Debug, Default)]
pub(crate) struct StartupFiles {
    created_paths: Vec<PathBuf>,
}

impl StartupFiles {
    /// Makes a folder that only this user can enter, with its parents, unless it exists.
    pub(crate) fn make_folder(&mut self, path: &Path) -> Result<(), Failure> {
        let ancestors = path.ancestors().filter(|path| !path.as_os_str().is_empty());
        let missing_folders: Vec<_> = ancestors.take_while(|path| std::fs::symlink_metadata(path).is_err()).collect();
        for folder in missing_folders.into_iter().rev() {
            match DirBuilder::new().mode(0o700).create(folder) {
                Ok(()) => self.created_paths.push(folder.to_owned()),
                // Another process created the folder first.
                Err(_) if folder.is_dir() => {}
                Err(error) => return Err(Failure::of(format!("cannot make the folder {}", folder.display()), &error)),
            }
        }
        if path.is_dir() { Ok(()) } else { Err(Failure::from_text(format!("{} is not a folder", path.display()))) }
    }

    /// Adds a file that another part of this start created.
    pub(crate) fn record_created(&mut self, path: PathBuf) {
        self.created_paths.push(path);
    }

    /// Writes a file that only this user can read: completely or not at all, and never over an existing one.
    pub(crate) fn write_secret_file(&mut self, path: &Path, text: &str) -> Result<(), Failure> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.make_folder(folder)?;
        let write = || -> std::io::Result<()> {
            // `NamedTempFile` creates files with mode 0600.
            let mut file = NamedTempFile::new_in(folder)?;
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist_noclobber(path)?;
            Ok(())
        };
        write().map_err(|error| Failure::of(format!("cannot write {}", path.display()), &error))?;
        self.created_paths.push(path.to_owned());
        Ok(())
    }

    /// Keeps the files and folders, because the start has succeeded.
    pub(crate) fn commit(mut self) {
        self.created_paths.clear();
    }
}

impl Drop for StartupFiles {
    fn drop(&mut self) {
        for path in self.created_paths.iter().rev() {
            // A folder with other files in it stays.
            if path.is_dir() {
                std::fs::remove_dir(path).ok()
            } else {
                std::fs::remove_file(path).ok()
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn committed_files_belong_to_one_user() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("a/b/token");
        let mut startup_files = StartupFiles::default();
        startup_files.write_secret_file(&file, "secret\n").unwrap();
        startup_files.commit();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "secret\n");
        assert_eq!((mode(&file), mode(&root.path().join("a/b")), mode(&root.path().join("a"))), (0o600, 0o700, 0o700));
        assert!(StartupFiles::default().write_secret_file(&file, "other").is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "secret\n");
    }

    #[test]
    fn a_start_that_fails_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("old")).unwrap();
        let mut startup_files = StartupFiles::default();
        startup_files.write_secret_file(&root.path().join("new/token"), "secret").unwrap();
        startup_files.write_secret_file(&root.path().join("old/token"), "secret").unwrap();
        startup_files.record_created(root.path().join("new/later"));
        std::fs::write(root.path().join("new/later"), "").unwrap();
        drop(startup_files);
        let left: Vec<_> = std::fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["old"]);
        assert_eq!(std::fs::read_dir(root.path().join("old")).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_under_a_file_is_refused() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("file"), "").unwrap();
        assert!(StartupFiles::default().make_folder(&root.path().join("file/folder")).is_err());
        assert!(StartupFiles::default().make_folder(&root.path().join("file")).is_err());
    }
}

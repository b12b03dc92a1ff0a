//! Whether two files that are both written to stay apart, however their paths are spelled.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Whether `log` is `file`, or by its name one of the older ones that rotation leaves: `file` with `.` and a number.
/// Paths count as the same when they are so as written, once `.` and `..` are worked out, or by what is on the disk now.
pub(super) fn is_rotated_with(log: &Path, file: &Path) -> bool {
    let files = spellings(file);
    spellings(log).iter().any(|log| files.iter().any(|file| log == file || is_older(log, file)))
}

fn is_older(log: &Path, file: &Path) -> bool {
    let behind = log.as_os_str().as_bytes().strip_prefix(file.as_os_str().as_bytes());
    let number = behind.and_then(|behind| behind.strip_prefix(b"."));
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// The path as written, and those that links lead to; a file that is not there yet is found by its folder.
fn spellings(path: &Path) -> Vec<PathBuf> {
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    let in_folder = folder.zip(path.file_name()).map(|(folder, name): (PathBuf, &OsStr)| folder.join(name));
    [Some(cleaned(path)), in_folder, path.canonicalize().ok()].into_iter().flatten().collect()
}

/// The path without `.`, `..` and repeated slashes.
fn cleaned(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            _ => clean.push(part),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_file_is_found_however_it_is_spelled() {
        for (log, is_together) in [
            ("/d/t", true),
            ("/d/../d/t", true),
            ("/d//./t", true),
            ("/../d/t", true),
            ("/d/t.1", true),
            ("/d/x/../t.12", true),
            ("/d/t.", false),
            ("/d/t.1a", false),
            ("/d/t1", false),
            ("/d/t.1/log", false),
            ("/e/t", false),
            ("/", false),
        ] {
            assert_eq!(is_rotated_with(Path::new(log), Path::new("/d/t")), is_together, "{log}");
            assert_eq!(is_rotated_with(Path::new(log), Path::new("/e/../d/t")), is_together, "{log}");
        }
    }

    #[test]
    fn links_are_followed() {
        let folder = std::env::temp_dir().join(format!("warmgate-apart-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("real")).unwrap();
        std::os::unix::fs::symlink(folder.join("real"), folder.join("link")).unwrap();
        std::fs::write(folder.join("real/log"), "").unwrap();
        std::os::unix::fs::symlink(folder.join("real/log"), folder.join("named")).unwrap();
        let together = [("link/t", "real/t"), ("real/t.1", "link/t"), ("named", "link/log"), ("link/u", "real/t")]
            .map(|(log, file)| is_rotated_with(&folder.join(log), &folder.join(file)));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(together, [true, true, true, false]);
    }
}

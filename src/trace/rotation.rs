//! A file of whole lines that never grows beyond its bound: when it is full it becomes FILE.1, FILE.1 becomes FILE.2, and
//! the oldest goes.
//!
//! Own code, as the crates for this bring a calendar and compression along. A line is written whole or not at all, even
//! on a disk that fills up in the middle of it, since a reader refuses a trace with half a line. What is no regular file,
//! such as a device, is written to and never renamed.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::access_log::append_to;

/// Only the owner reads a trace: it says who shares prefixes with whom.
const MODE: u32 = 0o600;

/// Where a trace goes, and how much of it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The newest file; older ones have `.1`, `.2`, ... behind its name.
    pub file: PathBuf,
    /// Most bytes of one file.
    pub max_bytes: u64,
    /// Most files.
    pub files: NonZeroU32,
}

/// The files of a trace.
#[derive(Debug)]
pub(super) struct Rotation {
    target: Target,
    /// None before the first line, and after a failure.
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    file: File,
    bytes: u64,
    is_regular: bool,
}

// === impl Rotation ===

impl Rotation {
    /// Nothing is opened yet. What an earlier recording left in the file moves on when the first line comes, since ids of
    /// two processes cannot be compared.
    pub(super) fn new(target: Target) -> Self {
        Self { target, current: None }
    }

    /// Writes a line, its end included, or nothing.
    ///
    /// # Errors
    /// When the file cannot be opened, renamed or written; the next line tries again.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let most = self.target.max_bytes;
        let fits = |current: &Current| !current.is_regular || current.bytes + line.len() as u64 <= most;
        let mut current = match self.current.take().filter(fits) {
            Some(current) => current,
            None => self.begin()?,
        };
        let written = current.append(line);
        // Where half a line cannot be taken back, the file is not written to again.
        if written.is_ok() || current.take_back().is_ok() {
            self.current = Some(current);
        }
        written
    }

    /// A new file, the others moved on.
    fn begin(&self) -> io::Result<Current> {
        if fs::metadata(&self.target.file).is_ok_and(|found| found.is_file() && found.len() > 0) {
            self.shift()?;
        }
        let file = open(&self.target.file)?;
        let found = file.metadata()?;
        Ok(Current { file, bytes: found.len(), is_regular: found.is_file() })
    }

    fn shift(&self) -> io::Result<()> {
        let last = self.target.files.get() - 1;
        // With those behind it, which a larger number of files has left.
        let _ = (last..).take_while(|&number| fs::remove_file(self.numbered(number)).is_ok()).count();
        for number in (0..last).rev() {
            match fs::rename(self.numbered(number), self.numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// The file that is `number` files old; 0 is the newest.
    fn numbered(&self, number: u32) -> PathBuf {
        numbered(&self.target.file, number)
    }
}

// === impl Current ===

impl Current {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.file.write_all(line)?;
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// Cuts off what a failed write has left.
    fn take_back(&self) -> io::Result<()> {
        if self.is_regular { self.file.set_len(self.bytes) } else { Ok(()) }
    }
}

/// Opens the file at its end, and sees to it that only the owner reads it, whoever has made it. What is no regular file
/// keeps its permissions.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let file = append_to(path, MODE)?;
    let found = file.metadata()?;
    if found.is_file() && found.permissions().mode() & 0o7777 != MODE {
        let named = |error: io::Error| {
            let what = format!("{}: cannot be kept to its owner (mode 0600): {error}", path.display());
            io::Error::new(error.kind(), what)
        };
        file.set_permissions(Permissions::from_mode(MODE)).map_err(named)?;
    }
    Ok(file)
}

fn numbered(file: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return file.to_owned();
    }
    let mut name = OsString::from(file);
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::config;

    /// A directory of its own for each test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("warmgate-rotation-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn rotation(&self, max_bytes: u64, files: u32) -> Rotation {
            let files = NonZeroU32::new(files).unwrap();
            Rotation::new(Target { file: self.0.join("trace"), max_bytes, files })
        }

        /// The permissions of the newest file.
        fn mode(&self) -> u32 {
            fs::metadata(self.0.join("trace")).unwrap().permissions().mode() & 0o777
        }

        /// What is in the files, newest first.
        fn contents(&self) -> Vec<String> {
            let read = |number| fs::read_to_string(numbered(&self.0.join("trace"), number)).ok();
            let contents: Vec<_> = (0..).map_while(read).collect();
            assert_eq!(contents.len(), fs::read_dir(&self.0).unwrap().count(), "there are no others");
            contents
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_full_file_moves_on_and_the_oldest_goes() {
        let folder = Folder::new("full");
        let mut rotation = folder.rotation(4, 3);
        for line in ["1\n", "2\n", "3\n", "4\n", "5\n", "6\n", "7\n"] {
            rotation.append(line.as_bytes()).unwrap();
        }
        assert_eq!(folder.contents(), ["7\n", "5\n6\n", "3\n4\n"]);
    }

    #[test]
    fn an_earlier_recording_is_not_continued() {
        let folder = Folder::new("earlier");
        folder.rotation(100, 3).append(b"old\n").unwrap();
        folder.rotation(100, 3).append(b"new\n").unwrap();
        assert_eq!(folder.contents(), ["new\n", "old\n"]);
    }

    #[test]
    fn fewer_files_than_before_leave_none_behind() {
        let folder = Folder::new("fewer");
        let mut many = folder.rotation(2, 5);
        ["1\n", "2\n", "3\n", "4\n", "5\n"].iter().for_each(|line| many.append(line.as_bytes()).unwrap());
        assert_eq!(folder.contents().len(), 5);
        folder.rotation(2, 2).append(b"6\n").unwrap();
        assert_eq!(folder.contents(), ["6\n", "5\n"]);
    }

    #[test]
    fn only_the_owner_reads_it() {
        let folder = Folder::new("owner");
        folder.rotation(100, 1).append(b"1\n").unwrap();
        assert_eq!(folder.mode(), 0o600);
    }

    #[test]
    fn only_the_owner_reads_what_others_could_read_before() {
        let folder = Folder::new("readable");
        let path = folder.0.join("trace");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        folder.rotation(100, 1).append(b"1\n").unwrap();
        assert_eq!((folder.mode(), folder.contents()), (0o600, vec!["1\n".to_owned()]));
    }

    #[test]
    fn a_device_is_never_renamed() {
        let target = Target { file: "/dev/full".into(), max_bytes: 1, files: NonZeroU32::MIN };
        let mut rotation = Rotation::new(target);
        for _ in 0..3 {
            assert_eq!(rotation.append(b"1\n").unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
        assert!(!Path::new("/dev/full.1").exists());
        assert_ne!(fs::metadata("/dev/full").unwrap().permissions().mode() & 0o777, MODE, "it is everybody's");
    }

    #[test]
    fn half_a_line_is_taken_back() {
        let folder = Folder::new("half");
        let mut rotation = folder.rotation(100, 1);
        rotation.append(b"1\n").unwrap();
        let mut current = rotation.current.take().unwrap();
        current.file.write_all(b"{\"time").unwrap();
        current.take_back().unwrap();
        rotation.current = Some(current);
        rotation.append(b"2\n").unwrap();
        assert_eq!(folder.contents(), ["1\n2\n"]);
    }

    #[test]
    fn a_lost_folder_is_an_error_until_it_is_there_again() {
        let folder = Folder::new("lost");
        let mut rotation = folder.rotation(3, 2);
        rotation.append(b"1\n").unwrap();
        fs::remove_dir_all(&folder.0).unwrap();
        assert!(rotation.append(b"2\n").unwrap_err().to_string().contains("trace"));
        fs::create_dir_all(&folder.0).unwrap();
        rotation.append(b"3\n").unwrap();
        assert_eq!(folder.contents(), ["3\n"]);
    }

    proptest! {
        #![proptest_config(config(64))]

        #[test]
        fn the_newest_lines_are_kept_in_order_within_the_bound(
            lengths in proptest::collection::vec(1..30_usize, 1..60), max_bytes in 30..80_u64, files in 1..5_u32
        ) {
            let folder = Folder::new("bound");
            let mut rotation = folder.rotation(max_bytes, files);
            let lines: Vec<String> = lengths.iter().enumerate().map(|(at, &len)| format!("{at:>len$}\n")).collect();
            for line in &lines {
                rotation.append(line.as_bytes()).unwrap();
            }
            let contents = folder.contents();
            prop_assert!(contents.len() <= files as usize);
            prop_assert!(contents.iter().all(|file| file.len() as u64 <= max_bytes));
            let kept: String = contents.into_iter().rev().collect();
            prop_assert!(lines.concat().ends_with(&kept), "{}", kept);
            prop_assert!(kept.ends_with(lines.last().unwrap().as_str()));
        }

        /// A process that has handed over goes on recording what it finishes.
        #[test]
        fn two_processes_at_once_have_files_of_their_own_within_the_bound(
            lines in proptest::collection::vec((0..2_usize, 3..30_usize), 1..60), max_bytes in 30..80_u64, files in 1..5_u32
        ) {
            let folder = Folder::new("two");
            let mut rotations = [folder.rotation(max_bytes, files), folder.rotation(max_bytes, files)];
            for (process, length) in lines {
                let line = format!("{process}{}\n", ".".repeat(length - 2));
                rotations[process].append(line.as_bytes()).unwrap();
            }
            let contents = folder.contents();
            prop_assert!(contents.len() <= files as usize);
            for file in contents {
                prop_assert!(file.len() as u64 <= max_bytes && file.ends_with('\n'), "{}", file);
                let is_ones = |process| file.lines().all(|line| line.starts_with(process));
                prop_assert!(is_ones('0') || is_ones('1'), "{}", file);
            }
        }
    }
}

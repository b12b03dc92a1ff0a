//! Kinds of values that name files of this machine.

use std::path::{Path, PathBuf};

use super::super::regular;
use super::{Kind, Node, Secret};

/// Longest key that is taken: longer than any in use.
const MAX_SECRET_BYTES: usize = 4096;

/// What stands before the name of a credential that systemd hands over.
const CREDENTIAL: &str = "credential:";

/// The path of a file on this machine. Paths are absolute, as `warmgate check` and the service start in different
/// directories.
pub(in crate::config) fn file_path() -> Kind<PathBuf> {
    Kind::text("an absolute path", |text| {
        let good = text.starts_with('/') && text.len() <= 4096 && !text.contains('\0');
        if good { Ok(PathBuf::from(text)) } else { Err(String::new()) }
    })
}

/// The path of a file that is read: absolute, or `credential:NAME`, a file of that name where systemd puts the service's
/// credentials (`LoadCredential=`).
fn input_path() -> Kind<PathBuf> {
    let path = file_path();
    Kind::new("an absolute path, or credential:NAME", move |node| match node {
        Node::Text(text) if text.starts_with(CREDENTIAL) => {
            let name = &text[CREDENTIAL.len()..];
            if name.is_empty() || name.contains(['/', '\0']) || name == "." || name == ".." {
                return Err("not what systemd can call a credential".to_owned());
            }
            let folder = std::env::var_os("CREDENTIALS_DIRECTORY")
                .ok_or("only a service that systemd gives credentials has them: CREDENTIALS_DIRECTORY is not set")?;
            Ok(Path::new(&folder).join(name))
        }
        _ => path.read(node),
    })
}

/// The path of a file that can be read now.
pub(in crate::config) fn readable_file() -> Kind<PathBuf> {
    let path = input_path();
    Kind::new("the absolute path of a file that can be read, or credential:NAME", move |node| {
        let path = path.read(node)?;
        readable(&path).map_err(|error| format!("cannot read it: {error}"))?;
        Ok(path)
    })
}

/// The same; `none` is `None`.
pub(in crate::config) fn readable_file_or_none() -> Kind<Option<PathBuf>> {
    let path = readable_file();
    Kind::new(format!("none, or {}", path.right), move |node| match node {
        Node::Text(text) if text == "none" => Ok(None),
        _ => path.read(node).map(Some),
    })
}

/// The path of a file or folder that is there now.
pub(in crate::config) fn readable_path() -> Kind<PathBuf> {
    let path = file_path();
    Kind::new("the absolute path of a file or folder that can be read", move |node| {
        let path = path.read(node)?;
        let found = std::fs::metadata(&path);
        let is_folder = found.map_err(|error| format!("cannot read it: {error}"))?.is_dir();
        let opened = if is_folder { std::fs::read_dir(&path).map(|_| ()) } else { readable(&path) };
        opened.map_err(|error| format!("cannot read it: {error}"))?;
        Ok(path)
    })
}

/// The content of a small file, one line of visible characters; `none` is `None`.
pub(in crate::config) fn secret_file_or_none() -> Kind<Option<Secret>> {
    let path = input_path();
    let right = "none, or the absolute path of a file that holds one line of visible characters, or credential:NAME";
    Kind::new(right, move |node| {
        if matches!(node, Node::Text(text) if text == "none") {
            return Ok(None);
        }
        let path = path.read(node)?;
        let content = regular::read(&path).map_err(|error| format!("cannot read it: {error}"))?;
        let line = content.trim_ascii_end();
        let is_good = (1..=MAX_SECRET_BYTES).contains(&line.len()) && line.iter().all(u8::is_ascii_graphic);
        let text = std::str::from_utf8(line).ok().filter(|_| is_good);
        text.map(|text| Some(Secret::of_file(text, &path)))
            .ok_or_else(|| format!("its content is not 1 to {MAX_SECRET_BYTES} visible characters on one line"))
    })
}

fn readable(path: &Path) -> std::io::Result<()> {
    regular::check(path)?;
    std::fs::File::open(path).map(|_| ())
}

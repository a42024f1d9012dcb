//! Opening files that are files: a pipe would wait for ever, `/dev/zero` never ends.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Opens a regular file or a block device for reading.
///
/// # Errors
/// The system's, or that it is something else.
pub fn open(path: &Path) -> Result<File> {
    let kind = std::fs::metadata(path)?.file_type();
    if kind.is_file() || kind.is_block_device() {
        return File::open(path);
    }
    let what = if kind.is_dir() {
        "a folder"
    } else {
        "no regular file"
    };
    Err(Error::new(ErrorKind::InvalidInput, format!("it is {what}")))
}

/// Reads a text file of at most `bytes_max` bytes.
///
/// # Errors
/// The system's, that it is no file, no UTF-8, or longer.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String> {
    let file = open(path)?;
    let have = file.metadata()?.len();
    if have > bytes_max {
        let text = format!("it has {have} bytes, at most {bytes_max} can be used");
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    std::io::read_to_string(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let text = |path: &Path| open(path).unwrap_err().to_string();
        assert_eq!(text(folder.path()), "it is a folder");
        assert_eq!(text(Path::new("/dev/zero")), "it is no regular file");
        let path = folder.path().join("text");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(read_text(&path, 3).unwrap(), "abc");
        let error = read_text(&path, 2).unwrap_err();
        assert_eq!(error.to_string(), "it has 3 bytes, at most 2 can be used");
    }
}

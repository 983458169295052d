//! The target that a volume is written to.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use format::BLOCK;

use crate::drive::{Node, plain};
use crate::error::RescueError;
use crate::survey::SurveyedDrive;

/// Receives a volume's bytes, in order and each once.
pub trait Target {
    /// Name for people.
    fn name(&self) -> &str;

    /// Writes bytes that begin at `start` of the volume.
    ///
    /// # Errors
    /// The error of the system.
    fn write(&mut self, start: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes `len` zeroes.
    ///
    /// # Errors
    /// The error of the system.
    fn skip(&mut self, start: u64, len: u64) -> io::Result<()>;
}

/// A pipe, a socket, a terminal: zeroes are written like all other bytes.
pub struct StreamTarget<W: Write> {
    stream: W,
}

impl<W: Write> StreamTarget<W> {
    /// Writes to `stream`.
    pub fn new(stream: W) -> Self {
        StreamTarget { stream }
    }
}

impl<W: Write> Target for StreamTarget<W> {
    fn name(&self) -> &str {
        "-"
    }

    fn write(&mut self, _start: u64, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    fn skip(&mut self, start: u64, len: u64) -> io::Result<()> {
        in_zeroes(start, len, |start, zeroes| self.write(start, zeroes))
    }
}

/// A file, or a block device. A file is sparse where the volume was never written or holds zeroes.
pub struct FileTarget {
    file: File,
    path: PathBuf,
    name: String,
    /// Whether bytes that are not written read as zeroes.
    is_fresh: bool,
    /// It is a file that did not exist before.
    is_created: bool,
}

impl FileTarget {
    /// Creates a file of `size_bytes`. With `force`, uses an existing file or block device.
    ///
    /// # Errors
    /// [`RescueError::TargetIsDrive`], also for a loop device on one of the drives or a partition
    /// of one; [`RescueError::TargetExists`]; [`RescueError::TargetUnfit`].
    pub fn open(
        path: &Path,
        size_bytes: u64,
        force: bool,
        drives: &[SurveyedDrive],
    ) -> Result<FileTarget, RescueError> {
        let name = path.display().to_string();
        let unfit = |why: String| RescueError::TargetUnfit { name: name.clone(), why };
        let failed = |error: io::Error| unfit(plain(&error));
        let mut options = OpenOptions::new();
        options.write(true);
        let (is_fresh, is_created) = match std::fs::metadata(path) {
            Ok(metadata) => {
                let node = Node::of(&metadata).ok_or_else(|| unfit("neither a file nor a block device".to_owned()))?;
                if drives.iter().filter_map(|found| found.drive.node()).any(|drive| drive.overlaps(node)) {
                    return Err(RescueError::TargetIsDrive { name });
                }
                if !force {
                    return Err(RescueError::TargetExists { name });
                }
                let is_file = matches!(node, Node::File { .. });
                // O_EXCL on a block device fails while the device is mounted or otherwise in use.
                if is_file {
                    options.truncate(true)
                } else {
                    options.custom_flags(libc::O_EXCL)
                };
                (is_file, false)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                options.create_new(true);
                (true, true)
            }
            Err(error) => return Err(failed(error)),
        };
        let file = options.open(path).map_err(failed)?;
        let mut target = FileTarget { file, path: path.to_owned(), name: name.clone(), is_fresh, is_created };
        if is_fresh {
            if let Err(error) = target.file.set_len(size_bytes) {
                target.abandon();
                return Err(match error.kind() {
                    ErrorKind::FileTooLarge => {
                        unfit(format!("there is no room: a file of the volume's {size_bytes} bytes is too large there"))
                    }
                    _ => RescueError::Write { name, source: error },
                });
            }
        } else {
            let have = target.file.seek(SeekFrom::End(0)).map_err(failed)?;
            if have < size_bytes {
                return Err(unfit(format!("has {have} bytes, the volume has {size_bytes}")));
            }
        }
        Ok(target)
    }

    /// Waits until everything is on stable storage. A file that cannot be written is abandoned.
    ///
    /// # Errors
    /// [`RescueError::Write`].
    pub fn finish(self) -> Result<(), RescueError> {
        let Err(source) = self.file.sync_all() else { return Ok(()) };
        let name = self.name.clone();
        self.abandon();
        Err(RescueError::Write { name, source })
    }

    /// Removes the file if it was created here, and empties it if it existed before: half a volume
    /// must not be taken for a whole one.
    pub fn abandon(self) {
        // If that fails as well, nothing more can be done.
        if self.is_created {
            let _ = std::fs::remove_file(&self.path);
        } else if self.is_fresh {
            let _ = self.file.set_len(0);
        }
    }
}

impl Target for FileTarget {
    fn name(&self) -> &str {
        &self.name
    }

    fn write(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        if !self.is_fresh {
            return self.file.write_all_at(bytes, start);
        }
        // Blocks of zeroes become holes. The bytes between them are written at once.
        let (mut from, mut at) = (0, 0);
        while at < bytes.len() {
            let end = bytes.len().min(at + BLOCK);
            if gf::is_zero(&bytes[at..end]) {
                self.file.write_all_at(&bytes[from..at], start + from as u64)?;
                from = end;
            }
            at = end;
        }
        self.file.write_all_at(&bytes[from..], start + from as u64)
    }

    fn skip(&mut self, start: u64, len: u64) -> io::Result<()> {
        if self.is_fresh {
            return Ok(());
        }
        in_zeroes(start, len, |start, zeroes| self.file.write_all_at(zeroes, start))
    }
}

fn in_zeroes(start: u64, len: u64, mut write: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
    static ZEROES: [u8; 1 << 16] = [0; 1 << 16];
    let mut done = 0;
    while done < len {
        let step = (len - done).min(ZEROES.len() as u64);
        write(start + done, &ZEROES[..step as usize])?;
        done += step;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_have_the_size_of_the_volume_is_removed_if_it_was_made_for_it() {
        let path = std::env::temp_dir().join(format!("purlin-rescue-target-{}", std::process::id()));
        assert!(FileTarget::open(&path, u64::MAX, false, &[]).is_err());
        assert!(!path.exists());
        std::fs::write(&path, "old").unwrap();
        assert!(FileTarget::open(&path, u64::MAX, true, &[]).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"", "the file is not ours");
        let target = FileTarget::open(&path, 4096, true, &[]).unwrap();
        target.abandon();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        std::fs::remove_file(&path).unwrap();
        FileTarget::open(&path, 4096, false, &[]).unwrap().abandon();
        assert!(!path.exists());
    }
}

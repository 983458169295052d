//! The target that a volume is written to.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
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
        let is_fresh = match std::fs::metadata(path) {
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
                is_file
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                options.create_new(true);
                true
            }
            Err(error) => return Err(failed(error)),
        };
        let mut file = options.open(path).map_err(failed)?;
        if is_fresh {
            file.set_len(size_bytes).map_err(failed)?;
        } else {
            let have = file.seek(SeekFrom::End(0)).map_err(failed)?;
            if have < size_bytes {
                return Err(unfit(format!("has {have} bytes, the volume has {size_bytes}")));
            }
        }
        Ok(FileTarget { file, path: path.to_owned(), name, is_fresh })
    }

    /// Waits until everything is on stable storage.
    ///
    /// # Errors
    /// [`RescueError::Write`].
    pub fn finish(self) -> Result<(), RescueError> {
        self.file.sync_all().map_err(|source| RescueError::Write { name: self.name, source })
    }

    /// Removes the file, if it is one: half a volume must not be taken for a whole one.
    pub fn abandon(self) {
        if self.is_fresh {
            // If the file cannot be removed either, nothing more can be done.
            let _ = std::fs::remove_file(&self.path);
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

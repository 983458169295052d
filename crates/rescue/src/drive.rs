//! A drive that is opened for reading and never written.

use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

/// Bytes that can be read at any offset. Some of them may be unreadable.
pub trait Medium {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;

    /// Fills `buf` with the bytes from `offset` on.
    ///
    /// # Errors
    /// If not all of them can be read. The content of `buf` is then undefined.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

/// The file or device that a path leads to, independent of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    File { device: u64, inode: u64 },
    Block { number: u64 },
}

impl Node {
    /// `None` if the path is neither a file nor a block device.
    pub(crate) fn of(metadata: &Metadata) -> Option<Node> {
        let kind = metadata.file_type();
        if kind.is_file() {
            return Some(Node::File { device: metadata.dev(), inode: metadata.ino() });
        }
        kind.is_block_device().then(|| Node::Block { number: metadata.rdev() })
    }

    /// Whether writing to one may change the other: they are the same, or one lies in the other,
    /// like a loop device in its file or a partition in its disk.
    pub(crate) fn overlaps(self, other: Node) -> bool {
        let (own, others) = (self.with_what_it_lies_in(), other.with_what_it_lies_in());
        own.contains(&other) || others.contains(&self)
    }

    fn with_what_it_lies_in(self) -> Vec<Node> {
        let mut all = vec![self];
        // Follows all layers, for example: a partition, its loop device, that one's file. Stops at
        // a node that was seen before.
        while let Some(below) = all.last().copied().and_then(Node::below).filter(|below| !all.contains(below)) {
            all.push(below);
        }
        all
    }

    /// The file or disk that contains a loop device or a partition, according to sysfs
    /// (sysfs-block(5)).
    fn below(self) -> Option<Node> {
        let Node::Block { number } = self else { return None };
        let folder = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
        if let Ok(file) = std::fs::read_to_string(format!("{folder}/loop/backing_file")) {
            return Node::of(&std::fs::metadata(file.trim_end_matches('\n')).ok()?);
        }
        std::fs::metadata(format!("{folder}/partition")).ok()?;
        let disk = std::fs::read_to_string(format!("{folder}/../dev")).ok()?;
        let (major, minor) = disk.trim().split_once(':')?;
        Some(Node::Block { number: libc::makedev(major.parse().ok()?, minor.parse().ok()?) })
    }
}

/// A drive or an image of one.
pub struct Drive {
    name: String,
    medium: Box<dyn Medium>,
    node: Option<Node>,
}

struct FileMedium {
    file: File,
    size_bytes: u64,
}

impl Medium for FileMedium {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
}

impl Drive {
    /// Opens a block device or a file for reading.
    ///
    /// # Errors
    /// The error of the system, or that the path is neither of the two.
    pub fn open(path: &Path) -> io::Result<Drive> {
        // Checked before the open: opening a named pipe would wait for a writer.
        let node = Node::of(&std::fs::metadata(path)?);
        let node = node.ok_or_else(|| io::Error::other("neither a file nor a block device"))?;
        let mut file = File::open(path)?;
        let size_bytes = file.seek(SeekFrom::End(0))?;
        let medium = Box::new(FileMedium { file, size_bytes });
        Ok(Drive { name: path.display().to_string(), medium, node: Some(node) })
    }

    /// A drive on another medium.
    pub fn new(name: &str, medium: Box<dyn Medium>) -> Drive {
        Drive { name: name.to_owned(), medium, node: None }
    }

    /// Name of the drive, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Size of the drive in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.medium.size_bytes()
    }

    /// As [`Medium::read_at`]. Bytes after the end of the drive cannot be read.
    ///
    /// # Errors
    /// As [`Medium::read_at`].
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.size_bytes()) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "behind the end of the drive"));
        }
        self.medium.read_at(offset, buf)
    }

    pub(crate) fn node(&self) -> Option<Node> {
        self.node
    }
}

/// The system's error text without its number: `Input/output error (os error 5)` says it twice.
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

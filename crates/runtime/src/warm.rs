//! Memory that outlives the process: a mapped file, which the kernel keeps as long as it runs.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ::drive::WarmState;

use crate::system::check;

/// Bytes before the words. They hold the magic number, the number of words, and the boot.
const HEAD_BYTES: usize = 4096;

/// Offset of the boot in the head.
const BOOT: usize = 16;

const MAGIC: [u8; 8] = *b"PurlinKP";

/// A random number of this boot, in hexadecimal.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A mapped file.
#[derive(Debug)]
struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: only this value has the mapping, and it is only accessed as atomic words.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(file: &File, bytes: usize) -> io::Result<Mapped> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice, over space that the file has.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // If memory cannot be locked, pages may have to be read again from the file. That costs
        // only a moment. SAFETY: the range is the mapping.
        unsafe { libc::mlock(start, bytes) };
        Ok(Mapped { start: NonNull::new(start.cast()).expect("a mapping is not at address 0"), bytes })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, and references to it do not outlive this value.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl WarmState for Mapped {
    fn words(&self) -> &[AtomicU64] {
        let count = (self.bytes - HEAD_BYTES) / size_of::<AtomicU64>();
        // SAFETY: the words lie in the mapping, are aligned because it begins at a page, and are
        // accessed as atomics only.
        unsafe { slice::from_raw_parts(self.start.as_ptr().add(HEAD_BYTES).cast::<AtomicU64>(), count) }
    }
}

/// Memory of `words` words in the file `path`. If the file was written in this boot of the machine
/// and has the same size, its content is kept. Otherwise the memory is new. Only one process at a
/// time may use a file; the caller ensures that.
///
/// # Errors
/// If the file cannot be created, has no space, or cannot be mapped.
pub fn warm_file(path: &Path, words: usize) -> io::Result<Arc<dyn WarmState>> {
    let boot = std::fs::read(BOOT_ID)?;
    warm_since(path, words, &boot)
}

/// Removes files of earlier boots of the machine, which are of no use any more. Other files are
/// left alone.
///
/// # Errors
/// If the folder, or one of its files, cannot be read or removed.
pub fn forget_warm(folder: &Path, extension: &str) -> io::Result<()> {
    let boot = std::fs::read(BOOT_ID)?;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|found| found != extension) {
            continue;
        }
        let mut found = Vec::new();
        File::open(&path)?.take(HEAD_BYTES as u64).read_to_end(&mut found)?;
        let is_ours = found.len() == HEAD_BYTES && found[..8] == MAGIC;
        if is_ours && found[BOOT..] != head(0, &boot)[BOOT..] {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// The head of a file with this number of words.
fn head(words: usize, boot: &[u8]) -> Vec<u8> {
    let mut head = vec![0; HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..BOOT].copy_from_slice(&(words as u64).to_le_bytes());
    let boot = &boot[..boot.len().min(64)];
    head[BOOT..BOOT + boot.len()].copy_from_slice(boot);
    head
}

fn warm_since(path: &Path, words: usize, boot: &[u8]) -> io::Result<Arc<dyn WarmState>> {
    let bytes = HEAD_BYTES + words * size_of::<AtomicU64>();
    let head = head(words, boot);

    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let mut found = Vec::new();
    (&file).take(HEAD_BYTES as u64).read_to_end(&mut found)?;
    if found != head || file.metadata()?.len() != bytes as u64 {
        file.set_len(0)?;
        // Without allocated space, writing to the mapped memory would end the process.
        // SAFETY: no memory is involved.
        let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) };
        check(if error == 0 { 0 } else { -1 }).map_err(|_| io::Error::from_raw_os_error(error))?;
        let mapped = Mapped::new(&file, bytes)?;
        io::Seek::rewind(&mut file)?;
        file.write_all(&head)?;
        return Ok(Arc::new(mapped));
    }
    Ok(Arc::new(Mapped::new(&file, bytes)?))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn what_was_kept_is_there_again_in_the_same_boot_and_size_only() {
        let path = std::env::temp_dir().join(format!("purlin-kept-{}", std::process::id()));
        let value = |words: usize, boot: &[u8]| {
            let memory = warm_since(&path, words, boot).unwrap();
            assert_eq!(memory.words().len(), words);
            (memory.words()[words - 1].load(Ordering::SeqCst), memory)
        };
        let (found, memory) = value(1000, b"one");
        assert_eq!(found, 0, "new memory is zero");
        memory.words()[999].store(7, Ordering::SeqCst);
        drop(memory);
        assert_eq!(value(1000, b"one").0, 7);
        assert_eq!(value(1000, b"two").0, 0, "the machine was started anew");
        value(1000, b"two").1.words()[999].store(8, Ordering::SeqCst);
        assert_eq!(value(1001, b"two").0, 0, "of another size");
        std::fs::write(&path, b"something else").unwrap();
        assert_eq!(value(1000, b"two").0, 0);
        assert!(warm_file(&path, 10).is_ok());
        assert!(warm_file(Path::new("/nowhere/kept"), 10).is_err());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_earlier_boots_left_is_removed_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("purlin-kept-folder-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str| folder.join(name);
        warm_since(&file("old.kept"), 10, b"an earlier boot").unwrap();
        warm_file(&file("new.kept"), 20).unwrap();
        std::fs::write(file("foreign.kept"), vec![7; 5000]).unwrap();
        std::fs::write(file("groups.json"), b"{}").unwrap();
        forget_warm(&folder, "kept").unwrap();
        let mut left: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["foreign.kept", "groups.json", "new.kept"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

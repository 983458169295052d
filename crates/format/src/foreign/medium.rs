//! The parts of a drive that were read, addressed by their offsets on the drive.

use crate::uuid::Uuid;

/// Head and tail of a drive. All other bytes count as absent.
pub(super) struct Medium<'a> {
    head: &'a [u8],
    tail: &'a [u8],
    tail_start: u64,
    drive_bytes: u64,
}

impl<'a> Medium<'a> {
    pub(super) fn new(head: &'a [u8], tail: &'a [u8], drive_bytes: u64) -> Self {
        // A part that is larger than the drive cannot be a part of it and is ignored.
        let fits = |part: &'a [u8]| if part.len() as u64 <= drive_bytes { part } else { &[] };
        let (head, tail) = (fits(head), fits(tail));
        Medium { head, tail, tail_start: drive_bytes - tail.len() as u64, drive_bytes }
    }

    /// Address `back` bytes before the end of the drive, whose size is first rounded down to
    /// `stripe_group`.
    pub(super) fn before_end(&self, back: u64, stripe_group: u64) -> Option<u64> {
        (self.drive_bytes / stripe_group * stripe_group).checked_sub(back)
    }

    pub(super) fn bytes(&self, at: u64, len: usize) -> Option<&'a [u8]> {
        let within = |part: &'a [u8], start: u64| {
            let from = usize::try_from(at.checked_sub(start)?).ok()?;
            part.get(from..from.checked_add(len)?)
        };
        within(self.head, 0).or_else(|| within(self.tail, self.tail_start))
    }

    pub(super) fn has(&self, at: u64, magic: &[u8]) -> bool {
        self.bytes(at, magic.len()) == Some(magic)
    }

    fn array<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        self.bytes(at, N)?.try_into().ok()
    }

    pub(super) fn byte(&self, at: u64) -> Option<u8> {
        Some(self.bytes(at, 1)?[0])
    }

    pub(super) fn le16(&self, at: u64) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    pub(super) fn be16(&self, at: u64) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    pub(super) fn le32(&self, at: u64) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(super) fn be32(&self, at: u64) -> Option<u32> {
        self.array(at).map(u32::from_be_bytes)
    }

    pub(super) fn le64(&self, at: u64) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// The text at `at`, up to `len` bytes or a zero byte, without surrounding blanks. Characters
    /// that cannot be shown are replaced.
    pub(super) fn text(&self, at: u64, len: usize) -> String {
        let bytes = self.bytes(at, len).unwrap_or_default();
        let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        printable(&String::from_utf8_lossy(bytes))
    }

    /// The little endian UTF-16 text at `at`, up to `stripe_groups` code units or a zero.
    pub(super) fn text_utf16(&self, at: u64, stripe_groups: usize) -> String {
        let bytes = self.bytes(at, 2 * stripe_groups).unwrap_or_default();
        let stripe_groups = bytes
            .chunks_exact(2)
            .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            .take_while(|&stripe_group| stripe_group != 0);
        let text: String = char::decode_utf16(stripe_groups)
            .map(|stripe_group| stripe_group.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect();
        printable(&text)
    }

    /// The UUID at `at`, with its bytes in the order of its text. Empty if the UUID is nil or was
    /// not read.
    pub(super) fn uuid(&self, at: u64) -> String {
        self.array(at)
            .map(Uuid::from_bytes)
            .filter(|uuid| !uuid.is_nil())
            .map_or(String::new(), |uuid| uuid.to_string())
    }

    /// The GUID at `at` in the byte order of UEFI (appendix A): the first three groups are little
    /// endian.
    pub(super) fn guid(&self, at: u64) -> String {
        let Some(mut bytes) = self.array::<16>(at) else { return String::new() };
        bytes[0..4].reverse();
        bytes[4..6].reverse();
        bytes[6..8].reverse();
        Uuid::from_bytes(bytes).to_string()
    }
}

/// Replaces control characters, so that text from a drive cannot move the cursor of a terminal.
fn printable(text: &str) -> String {
    let safe = |character: char| if character.is_control() { char::REPLACEMENT_CHARACTER } else { character };
    text.trim().chars().map(safe).collect()
}

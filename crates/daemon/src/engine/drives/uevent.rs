//! The kernel's events about block devices that come and go.
//!
//! A uevent is `ACTION@PATH`, followed by fields `KEY=VALUE`. Each ends with a zero byte
//! (lib/kobject_uevent.c of Linux).

/// The change of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// The device was added.
    Add,
    /// The device was removed.
    Remove,
}

/// An event of a block device that was added or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Uevent {
    pub action: Action,
    /// Its name below `/dev`.
    pub name: String,
    /// Major and minor number.
    pub device: (u32, u32),
}

impl Uevent {
    /// Parses a message. `None` if it is about something else, or malformed.
    pub fn parse(bytes: &[u8]) -> Option<Uevent> {
        let mut lines = bytes.split(|&byte| byte == 0);
        // udev's messages to its own listeners begin differently.
        if !lines.next()?.contains(&b'@') {
            return None;
        }
        let (mut action, mut block, mut name, mut major, mut minor) = (None, false, None, None, None);
        for line in lines {
            let Some(at) = line.iter().position(|&byte| byte == b'=') else { continue };
            let (key, value) = (&line[..at], std::str::from_utf8(&line[at + 1..]).ok());
            match key {
                b"ACTION" => {
                    action = match value? {
                        "add" => Some(Action::Add),
                        "remove" => Some(Action::Remove),
                        _ => return None,
                    }
                }
                b"SUBSYSTEM" => block = value? == "block",
                b"DEVNAME" => name = Some(value?),
                b"MAJOR" => major = value?.parse().ok(),
                b"MINOR" => minor = value?.parse().ok(),
                _ => {}
            }
        }
        let name = name.filter(|name| is_below_dev(name))?;
        let event = Uevent { action: action?, name: name.to_owned(), device: (major?, minor?) };
        block.then_some(event)
    }
}

/// Whether the name stays below `/dev`.
fn is_below_dev(name: &str) -> bool {
    !name.is_empty() && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(lines: &[&str]) -> Vec<u8> {
        lines.iter().flat_map(|line| line.bytes().chain([0])).collect()
    }

    const HEAD: &str = "add@/devices/pci0000:00/0000:00:02.0/0000:01:00.0/nvme/nvme0/nvme0n1";
    const BLOCK: [&str; 4] = ["SUBSYSTEM=block", "MAJOR=259", "MINOR=3", "DEVNAME=nvme0n1"];

    fn about(head: &str, action: &str, rest: &[&str]) -> Option<Uevent> {
        let mut lines = vec![head, action];
        lines.extend(rest);
        Uevent::parse(&message(&lines))
    }

    #[test]
    fn a_block_device_that_comes_or_goes_is_understood() {
        let event = |action| Uevent { action, name: "nvme0n1".into(), device: (259, 3) };
        assert_eq!(about(HEAD, "ACTION=add", &BLOCK), Some(event(Action::Add)));
        assert_eq!(about("remove@/devices/x", "ACTION=remove", &BLOCK), Some(event(Action::Remove)));
        let nested = ["SUBSYSTEM=block", "MAJOR=104", "MINOR=0", "DEVNAME=cciss/c0d0", "DEVTYPE=disk", "SEQNUM=7"];
        assert_eq!(about(HEAD, "ACTION=add", &nested).unwrap().name, "cciss/c0d0");
    }

    #[test]
    fn what_is_malformed_or_about_something_else_is_passed_over() {
        assert_eq!(about(HEAD, "ACTION=change", &BLOCK), None);
        assert_eq!(about("libudev", "ACTION=add", &BLOCK), None);
        assert_eq!(about(HEAD, "ACTION=add", &["SUBSYSTEM=net", "MAJOR=1", "MINOR=2", "DEVNAME=x"]), None);
        for missing in BLOCK {
            let rest: Vec<&str> = BLOCK.into_iter().filter(|&line| line != missing).collect();
            assert_eq!(about(HEAD, "ACTION=add", &rest), None, "without {missing}");
        }
        for name in ["DEVNAME=", "DEVNAME=/etc/x", "DEVNAME=../x", "DEVNAME=a/../../x", "DEVNAME=a//b"] {
            assert_eq!(about(HEAD, "ACTION=add", &["SUBSYSTEM=block", "MAJOR=1", "MINOR=2", name]), None, "{name}");
        }
        for number in ["MAJOR=", "MAJOR=-1", "MAJOR=99999999999", "MAJOR=a", "MAJOR"] {
            let rest = ["SUBSYSTEM=block", number, "MINOR=2", "DEVNAME=x"];
            assert_eq!(about(HEAD, "ACTION=add", &rest), None, "{number}");
        }
    }

    #[test]
    fn every_cut_and_every_changed_byte_gives_an_answer() {
        let mut lines = vec![HEAD, "ACTION=add"];
        lines.extend(BLOCK);
        let whole = message(&lines);
        for cut in 0..whole.len() {
            let _ = Uevent::parse(&whole[..cut]);
            for byte in [0, b'=', b'@', 0xff] {
                let mut changed = whole.clone();
                changed[cut] = byte;
                let _ = Uevent::parse(&changed);
            }
        }
        assert_eq!(Uevent::parse(&[]), None);
    }
}

//! The identities in a ClientHello: RFC 8446, clauses 4.1.2 and 4.2.11.

/// Extension `pre_shared_key`.
const PRE_SHARED_KEY: u16 = 41;

/// Takes bytes from the front of the remaining ones.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// A vector with a length of one byte.
    fn short(&mut self) -> Option<&'a [u8]> {
        let len = self.take(1)?[0];
        self.take(len.into())
    }

    /// A vector with a length of two bytes.
    fn long(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(len.into())
    }
}

/// The identities that a ClientHello offers, in its order, `max` at most. `message` is without the
/// handshake header. The result is empty if there are none or the message is malformed.
pub(crate) fn identities(message: &[u8], max: usize) -> Vec<&[u8]> {
    offered(message, max).unwrap_or_default()
}

fn offered(message: &[u8], max: usize) -> Option<Vec<&[u8]>> {
    let mut hello = Bytes(message);
    // legacy_version and random.
    hello.take(2 + 32)?;
    let (_session, _suites, _compression) = (hello.short()?, hello.long()?, hello.short()?);
    let mut extensions = Bytes(hello.long()?);
    while !extensions.0.is_empty() {
        let (kind, content) = (extensions.u16()?, extensions.long()?);
        if kind != PRE_SHARED_KEY {
            continue;
        }
        let mut list = Bytes(Bytes(content).long()?);
        let mut found = Vec::new();
        while !list.0.is_empty() && found.len() < max {
            found.push(list.long()?);
            // obfuscated_ticket_age.
            list.take(4)?;
        }
        return Some(found);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(content: &[u8]) -> Vec<u8> {
        [&(content.len() as u16).to_be_bytes()[..], content].concat()
    }

    fn hello(names: &[&[u8]]) -> Vec<u8> {
        let list: Vec<u8> = names.iter().flat_map(|name| [long(name), vec![0; 4]].concat()).collect();
        let key = [&41_u16.to_be_bytes()[..], &long(&[long(&list), long(&[32; 33])].concat())].concat();
        let other = [&43_u16.to_be_bytes()[..], &long(&[2, 3, 4])].concat();
        let head = [vec![3; 34], vec![1, 9], long(&[0x13, 1]), vec![1, 0]].concat();
        [head, long(&[other, key].concat())].concat()
    }

    #[test]
    fn identities_are_found_in_their_order_and_no_more_than_are_wanted() {
        let message = hello(&[b"first", b"", b"third"]);
        assert_eq!(identities(&message, 8), [&b"first"[..], b"", b"third"]);
        assert_eq!(identities(&message, 2), [&b"first"[..], b""]);
        assert!(identities(&hello(&[]), 8).is_empty());
    }

    #[test]
    fn a_hello_that_is_cut_or_changed_anywhere_is_read_without_harm() {
        let message = hello(&[b"first", b"second"]);
        for end in 0..message.len() {
            assert!(identities(&message[..end], 8).len() <= 2);
            for value in [0, 0x7F, 0xFF] {
                let mut changed = message.clone();
                changed[end] = value;
                identities(&changed, 8);
            }
        }
    }
}

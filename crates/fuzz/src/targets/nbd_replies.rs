//! An NBD server's bytes, as the client's parsers read them.

use nbd::client::{self, OptionReply, Reply};

use crate::target::{Memory, Seed, Target};

pub(super) const TARGET: Target = Target {
    name: "nbd-replies",
    checks: "an NBD server's bytes: parsers take whole replies, never more bytes than there are",
    run,
    seeds: || {
        let option =
            [&0x0003_E889_0455_65A9_u64.to_be_bytes()[..], &[0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 2], b"ok"].concat();
        let simple = [&0x6744_6698_u32.to_be_bytes()[..], &[0; 4], &7u64.to_be_bytes(), b"data"].concat();
        let chunk =
            [&0x668E_33EF_u32.to_be_bytes()[..], &[0, 1, 0, 5], &7u64.to_be_bytes(), &[0, 0, 0, 1], b"x"].concat();
        vec![
            Seed::new("option", [&[0][..], &option, &option].concat()),
            Seed::new("replies", [&[1][..], &simple, &chunk].concat()),
        ]
    },
    stored: Vec::new,
    dictionary: &[b"\x67\x44\x66\x98", b"\x66\x8E\x33\xEF", b"\xFF\xFF\xFF\xFF"],
    input_bytes_max: 4096,
    memory: Memory { base_bytes: 16 << 10, per_input_byte: 8 },
};

fn run(input: &[u8]) {
    let Some((&mode, mut rest)) = input.split_first() else { return };
    let mut replies = 0;
    let all = rest.len();
    if mode & 1 == 0 {
        while let Some(OptionReply { payload, .. }) = took(&mut rest, client::option_reply) {
            assert!(payload.len() <= all);
            replies += 1;
        }
    } else {
        let read_bytes = |cookie: u64| (cookie % 5000) as usize;
        while let Some(reply) = took(&mut rest, |input| client::reply(input, read_bytes)) {
            match reply {
                Reply::Simple { error, cookie, data } => {
                    assert_eq!(data.len(), if error == 0 { read_bytes(cookie) } else { 0 });
                }
                Reply::Chunk { payload, .. } => assert!(payload.len() <= all),
            }
            replies += 1;
        }
    }
    assert!(replies * 16 <= all, "a reply has a header");
}

/// Takes one reply. Checks that its bytes were present, and that it took none without a reply.
fn took<'a, T>(rest: &mut &'a [u8], parse: impl FnOnce(&mut &'a [u8]) -> Option<T>) -> Option<T> {
    let before = *rest;
    let reply = parse(rest);
    assert!(before.ends_with(rest));
    assert_eq!(reply.is_some(), rest.len() < before.len());
    reply
}

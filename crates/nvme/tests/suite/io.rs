//! Commands of I/O queues: what lies outside of a namespace, or does not fit its data, is refused.

use crate::common::view::Memory;
use nvme::target::{CompareAndWrite, Io, Namespace, Range, SubsystemView, TRANSFER_BYTES_MAX, copied, ranges};
use nvme::{Command, Sgl, Status, nvm};
use proptest::prelude::*;

/// Of 2^20 blocks of 4 KiB.
fn disk() -> Namespace {
    Memory::new().namespace(1).expect("there is one")
}

/// Of 1000 blocks of 512 bytes, read-only.
fn image() -> Namespace {
    Memory::new().namespace(3).expect("there is one")
}

/// A command for `blocks` blocks from `slba` on, with `len` bytes of data.
fn command(opcode: u8, slba: u64, blocks: u32, len: u32) -> Command {
    let mut command = Command::new(opcode, 1, 1);
    command.set_slba(slba);
    command.set_cdw(12, blocks - 1);
    command.dptr = Sgl::transport(len);
    command
}

#[test]
fn commands_are_read_in_bytes() {
    let io = |command: &Command| Io::of(command, &disk());
    // FUA is bit 30 of dword 12, DEAC of Write Zeroes bit 25.
    for fua in [false, true] {
        let (offset, len) = (12_288, 8192);
        let of = |opcode, data| {
            let mut command = command(opcode, 3, 2, data);
            command.set_cdw(12, 1 | u32::from(fua) << 30);
            io(&command)
        };
        assert_eq!(of(nvm::READ, len), Ok(Io::Read { offset, len, fua }));
        assert_eq!(of(nvm::COMPARE, len), Ok(Io::Compare { offset, len, fua }));
        assert_eq!(of(nvm::VERIFY, 0), Ok(Io::Verify { offset, len, fua }));
    }
    let mut write = command(nvm::WRITE, 1 << 19, 1, 4096);
    assert_eq!(io(&write), Ok(Io::Write { offset: 1 << 31, len: 4096, fua: false }));
    write.set_cdw(12, 1 << 30);
    assert_eq!(io(&write), Ok(Io::Write { offset: 1 << 31, len: 4096, fua: true }));
    let mut zeroes = command(nvm::WRITE_ZEROES, 1, 65_536, 0);
    let zeroed = |fua, deallocate| Ok(Io::WriteZeroes { offset: 4096, len: 256 << 20, fua, deallocate });
    assert_eq!(io(&zeroes), zeroed(false, false));
    zeroes.set_cdw(12, 1 << 25 | 0xFFFF);
    assert_eq!(io(&zeroes), zeroed(false, true));
    zeroes.set_cdw(12, 1 << 30 | 0xFFFF);
    assert_eq!(io(&zeroes), zeroed(true, false));
    assert_eq!(io(&command(nvm::VERIFY, 0, 256, 0)), Ok(Io::Verify { offset: 0, len: 1 << 20, fua: false }));
    // VSL: what a Verify has read is limited as what a Read transfers.
    assert_eq!(io(&command(nvm::VERIFY, 0, 257, 0)), Err(Status::INVALID_FIELD));
    assert_eq!(io(&command(nvm::VERIFY, 0, 65_536, 0)), Err(Status::INVALID_FIELD));
    assert_eq!(io(&Command::new(nvm::FLUSH, 1, 1)), Ok(Io::Flush));
}

#[test]
fn blocks_behind_the_end_are_refused() {
    for opcode in [nvm::READ, nvm::WRITE, nvm::COMPARE, nvm::WRITE_ZEROES, nvm::VERIFY] {
        let has_data = !matches!(opcode, nvm::WRITE_ZEROES | nvm::VERIFY);
        let io =
            |slba, blocks| Io::of(&command(opcode, slba, blocks, if has_data { blocks * 4096 } else { 0 }), &disk());
        assert!(io((1 << 20) - 1, 1).is_ok() && io((1 << 20) - 2, 2).is_ok());
        for (slba, blocks) in
            [((1 << 20) - 1, 2), (1 << 20, 1), (u64::MAX, 1), (u64::MAX, 2), (u64::MAX - 1, 2), (1 << 52, 1)]
        {
            assert_eq!(
                io(slba, blocks),
                Err(Status::LBA_OUT_OF_RANGE),
                "opcode {opcode:x}h at {slba}, {blocks} blocks"
            );
        }
    }
}

#[test]
fn data_have_the_length_of_the_blocks() {
    for opcode in [nvm::READ, nvm::WRITE, nvm::COMPARE] {
        for len in [0, 4096, 8191, 8193, u32::MAX] {
            let refused = Io::of(&command(opcode, 0, 2, len), &disk());
            assert_eq!(refused, Err(Status::DATA_SGL_LENGTH_INVALID), "{len}");
        }
    }
}

#[test]
fn no_more_data_travel_than_mdts_says() {
    let blocks = TRANSFER_BYTES_MAX / 4096;
    for opcode in [nvm::READ, nvm::WRITE, nvm::COMPARE] {
        assert!(Io::of(&command(opcode, 0, blocks, TRANSFER_BYTES_MAX), &disk()).is_ok());
        let longer = command(opcode, 0, blocks + 1, TRANSFER_BYTES_MAX + 4096);
        assert_eq!(Io::of(&longer, &disk()), Err(Status::INVALID_FIELD));
        assert_eq!(Io::of(&command(opcode, 0, 65_536, 256 << 20), &disk()), Err(Status::INVALID_FIELD));
    }
}

#[test]
fn a_read_only_namespace_takes_no_changes() {
    for opcode in [nvm::WRITE, nvm::WRITE_ZEROES, nvm::DATASET_MANAGEMENT, nvm::COPY] {
        assert_eq!(Io::of(&command(opcode, 0, 1, 512), &image()), Err(Status::WRITE_PROTECTED), "{opcode:02x}h");
    }
    assert_eq!(
        Io::of(&command(nvm::READ, 999, 1, 512), &image()),
        Ok(Io::Read { offset: 511_488, len: 512, fua: false })
    );
    assert_eq!(
        Io::of(&command(nvm::COMPARE, 0, 1, 512), &image()),
        Ok(Io::Compare { offset: 0, len: 512, fua: false })
    );
    assert_eq!(Io::of(&Command::new(nvm::FLUSH, 1, 3), &image()), Ok(Io::Flush));
}

#[test]
fn only_compare_and_write_are_fused_and_only_in_this_order() {
    for (opcode, part) in [(nvm::READ, 0), (nvm::COMPARE, 0b01), (nvm::WRITE, 0b10), (nvm::VERIFY, 0)] {
        for fuse in 1..=3 {
            let mut fused = command(opcode, 0, 1, if opcode == nvm::VERIFY { 0 } else { 4096 });
            fused.flags |= fuse;
            let refused = Io::of(&fused, &disk()).err();
            assert_eq!(refused, (fuse != part).then_some(Status::INVALID_FIELD), "{opcode:x}h, {fuse:b}b");
        }
    }
}

#[test]
fn a_fused_operation_is_of_one_block_that_both_commands_name() {
    let io = |opcode, slba, blocks, namespace: &Namespace| {
        let mut command = command(opcode, slba, blocks, blocks * namespace.block_bytes);
        command.set_cdw(12, (blocks - 1) | u32::from(opcode == nvm::WRITE) << 30);
        Io::of(&command, namespace).expect("it lies in the namespace")
    };
    for namespace in [disk(), Namespace { read_only: false, ..image() }] {
        let (compare, write) = (io(nvm::COMPARE, 5, 1, &namespace), io(nvm::WRITE, 5, 1, &namespace));
        let (offset, len) = (5 * u64::from(namespace.block_bytes), namespace.block_bytes);
        let whole = CompareAndWrite { offset, len, compare_fua: false, fua: true };
        assert_eq!(CompareAndWrite::of(&compare, &write, &namespace), Ok(whole));
        // Each part says for itself whether it is FUA.
        let (compare_too, cached) = (Io::Compare { offset, len, fua: true }, Io::Write { offset, len, fua: false });
        let whole = CompareAndWrite { offset, len, compare_fua: true, fua: false };
        assert_eq!(CompareAndWrite::of(&compare_too, &cached, &namespace), Ok(whole));
        for (first, second) in [
            (compare, io(nvm::WRITE, 4, 1, &namespace)),
            (compare, io(nvm::WRITE, 5, 2, &namespace)),
            (io(nvm::COMPARE, 5, 2, &namespace), io(nvm::WRITE, 5, 2, &namespace)),
            (write, compare),
            (write, write),
            (compare, Io::Flush),
        ] {
            assert_eq!(CompareAndWrite::of(&first, &second, &namespace), Err(Status::INVALID_FIELD));
        }
    }
}

/// The data of a Copy command with these source ranges.
fn sources(ranges: &[(u64, u16)]) -> Vec<u8> {
    let entry = |(first, blocks): &(u64, u16)| {
        let mut entry = [0xEE; 32];
        entry[8..16].copy_from_slice(&first.to_le_bytes());
        entry[16..18].copy_from_slice(&(blocks - 1).to_le_bytes());
        entry
    };
    ranges.iter().flat_map(entry).collect()
}

#[test]
fn a_copy_is_of_several_ranges_to_one_place() {
    let copy = |slba, dword12: u32, len| {
        let mut copy = command(nvm::COPY, slba, 1, len);
        copy.set_cdw(12, dword12);
        Io::of(&copy, &disk())
    };
    assert_eq!(copy(3, 1, 64), Ok(Io::Copy { offset: 12_288, ranges: 2, fua: false }));
    assert_eq!(copy(3, 255 | 1 << 30, 8192), Ok(Io::Copy { offset: 12_288, ranges: 256, fua: true }));
    assert_eq!(copy(3, 1, 63), Err(Status::DATA_SGL_LENGTH_INVALID));
    assert_eq!(copy(3, 1 << 8, 32), Err(Status::INVALID_FIELD), "another format");
    assert_eq!(copy(1 << 20, 0, 32), Err(Status::LBA_OUT_OF_RANGE));
    assert_eq!(copy(u64::MAX, 0, 32), Err(Status::LBA_OUT_OF_RANGE));

    let range = |offset: u64, len: u64| Range { offset: offset * 4096, len: len * 4096 };
    let to = |ranges: &[(u64, u16)], block: u64| copied(&sources(ranges), block * 4096, &disk());
    let last = (1 << 20) - 1;
    assert_eq!(to(&[(7, 2), (1, 1)], 9), Ok((vec![range(7, 2), range(1, 1)], range(9, 3))));
    assert_eq!(to(&[(0, 128), (9, 128)], 0).map(|(_, to)| to), Ok(range(0, 256)));
    assert_eq!(to(&[(0, 128), (9, 129)], 0), Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED));
    assert_eq!(to(&[(0, 257)], 0), Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED));
    for (ranges, block) in [(&[(last, 2)][..], 0), (&[(u64::MAX, 1)], 0), (&[(0, 1), (0, 1)], last)] {
        assert_eq!(to(ranges, block), Err(Status::LBA_OUT_OF_RANGE), "{ranges:?}");
    }
    assert!(to(&[(last, 1)], last).is_ok());
}

#[test]
fn unknown_commands_are_refused() {
    for opcode in [0x03, 0x04, 0x0F, 0x1A, 0x7F, 0xFF] {
        assert_eq!(Io::of(&command(opcode, 0, 1, 4096), &disk()), Err(Status::INVALID_OPCODE));
    }
}

/// Dataset Management of so many ranges with `len` bytes of data; AD is bit 2 of dword 11.
fn dataset(count: u32, len: u32, attributes: u32) -> Command {
    let mut command = Command::new(nvm::DATASET_MANAGEMENT, 1, 1);
    command.set_cdw(10, count - 1);
    command.set_cdw(11, attributes);
    command.dptr = Sgl::transport(len);
    command
}

fn range(blocks: u32, slba: u64) -> Vec<u8> {
    [&[0; 4][..], &blocks.to_le_bytes(), &slba.to_le_bytes()].concat()
}

#[test]
fn dataset_management_deallocates_or_hints() {
    assert_eq!(Io::of(&dataset(3, 48, 1 << 2), &disk()), Ok(Io::Deallocate { ranges: 3 }));
    assert_eq!(Io::of(&dataset(256, 4096, 0b11), &disk()), Ok(Io::Hint { ranges: 256 }));
    assert_eq!(Io::Deallocate { ranges: 3 }.data_bytes(), 48);
    for len in [0, 32, 47] {
        assert_eq!(Io::of(&dataset(3, len, 1 << 2), &disk()), Err(Status::DATA_SGL_LENGTH_INVALID));
    }
}

#[test]
fn dataset_management_may_send_room_for_all_ranges_as_linux_does() {
    assert_eq!(Io::of(&dataset(1, 4096, 1 << 2), &disk()), Ok(Io::Deallocate { ranges: 1 }));
    assert_eq!(Io::of(&dataset(1, 4097, 1 << 2), &disk()), Err(Status::DATA_SGL_LENGTH_INVALID));
}

#[test]
fn ranges_lie_in_the_namespace_or_none_is_given() {
    let bytes = [range(1, 0), range(0, 1 << 20), range(1 << 20, 0), range(7, 100)].concat();
    let given = [(0, 4096), (0, 1 << 32), (409_600, 28_672)].map(|(offset, len)| Range { offset, len });
    assert_eq!(ranges(&bytes, &disk()), Ok(given.to_vec()));
    for outside in
        [range(1, 1 << 20), range(u32::MAX, 0), range(1, u64::MAX), range(0, u64::MAX), range(2, (1 << 20) - 1)]
    {
        let bytes = [range(1, 0), outside].concat();
        assert_eq!(ranges(&bytes, &disk()), Err(Status::LBA_OUT_OF_RANGE));
    }
}

proptest! {
    #[test]
    fn whatever_is_taken_lies_in_the_namespace(
        bytes in prop::collection::vec(any::<u8>(), 64), opcode in 0_u8..32, near in 0_u64..3, which in any::<bool>(),
    ) {
        let namespace = if which { disk() } else { image() };
        let mut command: Command = zerocopy::FromBytes::read_from_bytes(&bytes[..]).expect("64 bytes");
        command.opcode = opcode;
        if near > 0 {
            command.flags = 0;
            command.set_slba(namespace.blocks - near);
        }
        command.set_cdw(12, command.cdw(12) & 0xFFFF_0003);
        command.dptr.length = (command.blocks() * namespace.block_bytes).into();
        let end = namespace.blocks * u64::from(namespace.block_bytes);
        match Io::of(&command, &namespace) {
            Ok(Io::Write { .. } | Io::WriteZeroes { .. } | Io::Deallocate { .. } | Io::Hint { .. } | Io::Copy { .. })
                if namespace.read_only => prop_assert!(false, "a change of a read-only namespace"),
            Ok(
                Io::Read { offset, len, .. } | Io::Write { offset, len, .. } | Io::Compare { offset, len, .. }
                | Io::WriteZeroes { offset, len, .. } | Io::Verify { offset, len, .. },
            ) => prop_assert!(offset + u64::from(len) <= end),
            Ok(_) | Err(_) => {}
        }
        if let Ok((sources, to)) = copied(&bytes, end - 4096, &namespace) {
            prop_assert!(sources.iter().chain([&to]).all(|range| range.len > 0 && range.offset + range.len <= end));
        }
        if let Ok(ranges) = ranges(&bytes, &namespace) {
            prop_assert!(ranges.iter().all(|range| range.len > 0 && range.offset + range.len <= end));
        }
    }
}

//! Values that several tests share.

use format::{
    AnaRecord, Catalogue, CompressionRecord, ConversionRecord, CrashSafety, ExportKind, ExportRecord, ExtentRecord,
    Features, HeldRecord, Layout, Level, LimitOf, LimitRecord, MapBlock, MemberEntry, MemberState, Rebuild,
    RegistrantRecord, ReservationRecord, Role, Run, Runs, SUPERBLOCK_VERSION, ScrubEnd, ScrubPoint, ScrubRecord,
    SecretRecord, SettingsRecord, Shape, Superblock, ThinPoolRecord, ThinStoreRecord, ThinVolumeRecord, TlsFiles, Uuid,
    VolumeKind, VolumeRecord,
};

/// A UUID whose bytes count up from `first`.
pub fn uuid(first: u8) -> Uuid {
    Uuid::from_bytes(std::array::from_fn(|index| first.wrapping_add(index as u8)))
}

/// The array that all values here belong to.
pub fn array() -> Uuid {
    uuid(0xA0)
}

/// A superblock that uses every field: six members in every state, two spares, a rebuild under way.
pub fn superblock() -> Superblock {
    let shape = Shape::of(Level::Raid6, 6).strip_bytes(64 << 10).build().expect("a shape");
    let layout = Layout::plan(&shape, 1 << 40, false).expect("a layout");
    let states = [
        MemberState::InSync,
        MemberState::Rebuilding,
        MemberState::InSync,
        MemberState::Faulty,
        MemberState::InSync,
        MemberState::InSync,
    ];
    let entry = |(slot, state): (usize, MemberState)| MemberEntry { uuid: uuid(1 + 16 * slot as u8), state };
    Superblock {
        version: SUPERBLOCK_VERSION,
        features: Features { incompatible: Features::LOG, ..Features::default() },
        array: array(),
        name: "tank-1.x_y".to_owned(),
        drive: uuid(33),
        role: Role::Member(2),
        epoch: 0x0123_4567_89AB_CDEF,
        held_epoch: 0x0123_4567_89AB_0007,
        clean: true,
        crash_safety: CrashSafety::On,
        log_generation: 77,
        runs: Runs {
            this: Run { first_epoch: 0x0123_4567_89AB_0000, members: 0b11_0101 },
            before: std::array::from_fn(|index| match index as u64 {
                before @ 0..9 => Run { first_epoch: 0x0123_0000_0000_0000 - before, members: 0b11_1111 >> before },
                _ => Run::default(),
            }),
        },
        shape,
        members: states.into_iter().enumerate().map(entry).collect(),
        spares: vec![uuid(0xC0), uuid(0xD0)],
        layout,
        rebuild: Some(Rebuild { member: 1, next_chunk: 4711 }),
        created_unix_s: 1_800_000_000,
    }
}

/// The smallest superblock: a mirror of two tiny members, seen by a spare.
pub fn superblock_of_a_spare() -> Superblock {
    let shape = Shape::of(Level::Raid1, 2).strip_bytes(4 << 10).build().expect("a shape");
    let missing = MemberEntry { uuid: Uuid::NIL, state: MemberState::Missing };
    Superblock {
        name: "m".to_owned(),
        drive: uuid(0xC0),
        role: Role::Spare,
        epoch: 1,
        held_epoch: 0,
        runs: Runs::default(),
        clean: false,
        shape,
        members: vec![MemberEntry { uuid: uuid(1), state: MemberState::InSync }, missing],
        spares: vec![uuid(0xC0)],
        layout: Layout::plan(&shape, 1 << 20, false).expect("a layout"),
        rebuild: None,
        ..superblock()
    }
}

/// A group that keeps checksums.
pub fn superblock_with_checksums() -> Superblock {
    let mut superblock = superblock();
    superblock.layout = Layout::plan(&superblock.shape, 1 << 40, true).expect("a layout");
    superblock.features.incompatible |= Features::CHECKSUMS;
    superblock
}

/// A map block with a pattern of allocation chunks.
pub fn map_block() -> MapBlock {
    let mut block = MapBlock::empty(3);
    block.sequence = 0x1122_3344;
    for chunk in [0, 1, 9, 100, 32_255] {
        block.set(chunk, true);
    }
    block
}

/// A catalogue with every kind of record.
pub fn catalogue() -> Catalogue {
    let volume = |id, name: &str, size_bytes, extents: &[(u64, u64)]| VolumeRecord {
        id,
        name: name.to_owned(),
        kind: VolumeKind::Direct,
        size_bytes,
        created_unix_s: 1_800_000_000 + id,
        extents: extents.iter().map(|&(start_byte, len_bytes)| ExtentRecord { start_byte, len_bytes }).collect(),
        thin: ThinVolumeRecord::default(),
        conversion: None,
    };
    let tls = TlsFiles { certificate: "/etc/purlin/c.pem".into(), key: "/etc/purlin/k.pem".into(), client_ca: None };
    let export = |id, volume, address: &str, read_only, tls| {
        let address = address.to_owned();
        ExportRecord { id, volume, kind: ExportKind::Nbd { address, read_only, tls } }
    };
    Catalogue {
        next_id: 7,
        volumes: vec![
            volume(1, "db", 1 << 30, &[(0, 1 << 29), (3 << 30, 1 << 29)]),
            volume(4, "scratch", (1 << 20) - 1, &[(1 << 30, 1 << 20)]),
        ],
        exports: vec![
            export(2, 1, "unix:/run/purlin/db.sock", false, None),
            export(6, 4, "[::]:10809", true, Some(tls)),
        ],
        ..Catalogue::default()
    }
}

/// A catalogue of version 3: with a thin volume, and the pool of thin volumes.
pub fn catalogue_with_thin_volumes() -> Catalogue {
    let mut thin = catalogue();
    thin.volumes.push(VolumeRecord {
        id: 5,
        name: "images".into(),
        kind: VolumeKind::Thin,
        size_bytes: 10 << 40,
        created_unix_s: 1_800_000_005,
        extents: Vec::new(),
        thin: ThinVolumeRecord {
            compression: CompressionRecord::Zstd { level: 3 },
            quota_bytes: Some(1 << 40),
            reserve_bytes: Some(1 << 30),
            full_wait_ms: Some(10_000),
            repack_after_s: Some(86_400),
            store: 3,
        },
        conversion: None,
    });
    let extent = |start_byte| ExtentRecord { start_byte, len_bytes: 1 << 30 };
    let stores = vec![
        ThinStoreRecord { id: 0, extents: vec![extent(5 << 30), extent(4 << 30)] },
        ThinStoreRecord { id: 3, extents: vec![extent(6 << 30)] },
    ];
    let settings = SettingsRecord { thin_warn: Some(vec![70, 90]), ..SettingsRecord::default() };
    Catalogue { thin: Some(ThinPoolRecord { segment_bytes: 1 << 20, stores }), settings, ..thin }
}

/// A catalogue of version 3: a thin volume gets direct, and a direct one gets thin.
pub fn catalogue_with_conversions() -> Catalogue {
    let mut converting = catalogue_with_thin_volumes();
    converting.next_id = 12;
    for volume in &mut converting.volumes {
        let stale = vec![ExtentRecord { start_byte: 4096, len_bytes: 8192 }];
        volume.conversion = match (volume.name.as_str(), volume.kind) {
            ("images", _) => {
                volume.size_bytes = 1 << 20;
                (volume.thin.quota_bytes, volume.thin.reserve_bytes) = (None, None);
                let extents = vec![ExtentRecord { start_byte: 7 << 30, len_bytes: 1 << 20 }];
                let (id, to, thin) = (10, VolumeKind::Direct, ThinVolumeRecord::default());
                Some(ConversionRecord { id, to, extents, thin, copied_bytes: 16_384, stale })
            }
            ("db", _) => {
                let thin = ThinVolumeRecord { compression: CompressionRecord::Lz4, ..ThinVolumeRecord::default() };
                let (id, to, extents) = (11, VolumeKind::Thin, Vec::new());
                Some(ConversionRecord { id, to, extents, thin, copied_bytes: 0, stale: Vec::new() })
            }
            _ => None,
        };
    }
    converting
}

/// A catalogue of version 2 with a block device and every field of settings and scrub.
pub fn catalogue_with_maintenance() -> Catalogue {
    let last = ScrubEnd { ended_unix_s: 1_800_200_000, repair: true, found: 3, repaired: 2, unchecked: 1 };
    let current = ScrubPoint {
        started_unix_s: 1_803_000_000,
        repair: true,
        paused: true,
        next_byte: 1 << 30,
        compared_bytes: 3 << 29,
        found: 5,
        repaired: 4,
        unchecked: 6,
    };
    let plain = catalogue();
    let kind = ExportKind::Ublk { number: 7, block_bytes: 512, depth: 128, read_only: true };
    let device = ExportRecord { id: 7, volume: 1, kind };
    Catalogue {
        next_id: 8,
        exports: plain.exports.into_iter().chain([device]).collect(),
        settings: SettingsRecord {
            client_p99_us: Some(5_000),
            retire_slow: true,
            scrub_every_s: Some(604_800),
            thin_warn: None,
        },
        scrub: ScrubRecord { last: Some(last), skipped_unix_s: Some(1_802_000_000), current: Some(current) },
        ..catalogue()
    }
}

/// A catalogue whose volumes NVMe hosts have reserved, one by a host and one by all that are
/// registered.
pub fn catalogue_with_reservations() -> Catalogue {
    let registrant = |digit: char, key| RegistrantRecord { host: digit.to_string().repeat(32), key };
    let holder = Some("b".repeat(32));
    Catalogue {
        reservations: vec![
            ReservationRecord {
                volume: 1,
                generation: u32::MAX,
                registrants: vec![registrant('a', 1), registrant('b', u64::MAX)],
                held: Some(HeldRecord { kind: 3, holder }),
            },
            ReservationRecord {
                volume: 4,
                generation: 1,
                registrants: vec![registrant('0', 7)],
                held: Some(HeldRecord { kind: 6, holder: None }),
            },
        ],
        ..catalogue()
    }
}

/// A catalogue with a limit of a volume, and one of a host that uses an export over NVMe/TCP.
pub fn catalogue_with_limits() -> Catalogue {
    let plain = catalogue();
    let address = "0.0.0.0:4420".to_owned();
    let kind = ExportKind::NvmeTcp {
        address,
        nsid: 1,
        block_bytes: 4096,
        read_only: false,
        hosts: None,
        ana: AnaRecord::default(),
    };
    let namespace = ExportRecord { id: 7, volume: 1, kind };
    let host = LimitOf::Host { export: 7, host: "nqn.2014-08.org.nvmexpress:uuid:1".to_owned() };
    Catalogue {
        next_id: 8,
        exports: plain.exports.into_iter().chain([namespace]).collect(),
        limits: vec![
            LimitRecord { of: LimitOf::Volume(1), iops: Some(20_000), bytes_per_s: Some(500 << 20), burst_ms: 2_000 },
            LimitRecord { of: host, iops: None, bytes_per_s: Some(1), burst_ms: 10 },
        ],
        ..catalogue()
    }
}

/// A catalogue with a volume that is reached in a different way at each of three addresses.
pub fn catalogue_with_access() -> Catalogue {
    let plain = catalogue();
    let states = [AnaRecord::Optimized, AnaRecord::NonOptimized, AnaRecord::Inaccessible];
    let namespace = |(at, ana): (u64, AnaRecord)| {
        let address = format!("10.0.0.{at}:4420");
        let kind = ExportKind::NvmeTcp { address, nsid: 1, block_bytes: 4096, read_only: false, hosts: None, ana };
        ExportRecord { id: 7 + at, volume: 1, kind }
    };
    let namespaces = (0..).zip(states).map(namespace);
    Catalogue { next_id: 10, exports: plain.exports.into_iter().chain(namespaces).collect(), ..catalogue() }
}

/// A catalogue with secrets of two NVMe hosts. They are the specification's example and one for
/// tests.
pub fn catalogue_with_secrets() -> Catalogue {
    let known = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    let other = "DHHC-1:02:Hi9ha9idssh3FgURRbfMUvOY7NlHiApDCmHhmIRCdhdlNQwebHEt/7DHoag3SmCHFvei/Q==:";
    let record = |host: &str, controller: Option<&str>, dh_group| SecretRecord {
        host: format!("nqn.2026-11.com.example:{host}"),
        secret: known.to_owned(),
        controller_secret: controller.map(str::to_owned),
        dh_group,
    };
    Catalogue { secrets: vec![record("a", None, 0), record("b", Some(other), 5)], ..catalogue() }
}

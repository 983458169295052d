//! Valid structures from which corpora are made.

use format::{
    Catalogue, ConversionRecord, CrashSafety, ExportKind, ExportRecord, ExtentRecord, Features, HeldRecord, Layout,
    Level, LimitOf, LimitRecord, MemberEntry, MemberState, RUNS_BEFORE, Rebuild, RegistrantRecord, ReservationRecord,
    Role, Run, Runs, SUPERBLOCK_VERSION, ScrubEnd, ScrubPoint, ScrubRecord, SecretRecord, SettingsRecord, Shape,
    ShapeBuilder, Superblock, ThinPoolRecord, ThinStoreRecord, ThinVolumeRecord, TlsFiles, Uuid, VolumeKind,
    VolumeRecord,
};

pub(super) const ARRAY: Uuid = Uuid::from_bytes(*b"an array's uuid.");

/// The superblock of the member in slot 0 of a group of this shape.
pub(super) fn superblock(shape: Shape, member_bytes: u64) -> Superblock {
    let layout = Layout::plan(&shape, member_bytes, false).expect("samples are large enough");
    let uuid = |n: u16| Uuid::from_random([n as u8 + 1; 16]);
    let members = (0..shape.members).map(|n| MemberEntry { uuid: uuid(n), state: MemberState::InSync }).collect();
    let mut before = [Run::default(); RUNS_BEFORE];
    before[0] = Run { first_epoch: 1, members: 0b1111 };
    Superblock {
        version: SUPERBLOCK_VERSION,
        features: Features::default(),
        array: ARRAY,
        name: "tank".to_owned(),
        drive: uuid(0),
        role: Role::Member(0),
        epoch: 7,
        held_epoch: 6,
        clean: true,
        shape,
        members,
        spares: Vec::new(),
        layout,
        rebuild: None,
        created_unix_s: 1_700_000_000,
        crash_safety: CrashSafety::default(),
        log_generation: 3,
        runs: Runs { this: Run { first_epoch: 5, members: 0b111 }, before },
    }
}

/// Superblocks of all kinds, with names.
pub(super) fn superblocks() -> Vec<(&'static str, Superblock)> {
    let valid =
        |shape: ShapeBuilder, strip_kib: u32| shape.strip_bytes(strip_kib << 10).build().expect("samples are valid");
    let mut rebuilding = superblock(valid(Shape::of(Level::Raid6, 6), 64), 1 << 40);
    rebuilding.clean = false;
    rebuilding.crash_safety = CrashSafety::Strict;
    rebuilding.features.incompatible = Features::LOG;
    rebuilding.members[2].state = MemberState::Rebuilding;
    rebuilding.members[4] = MemberEntry { uuid: Uuid::NIL, state: MemberState::Missing };
    rebuilding.members[5].state = MemberState::Faulty;
    rebuilding.rebuild = Some(Rebuild { member: 2, next_chunk: 12345 });
    let mut spare = superblock(valid(Shape::of(Level::Raid60, 8).sets(2), 128), 300 << 20);
    spare.drive = Uuid::from_random([200; 16]);
    spare.spares = vec![spare.drive, Uuid::from_random([201; 16])];
    spare.role = Role::Spare;
    let mut summed = superblock(valid(Shape::of(Level::Raid5, 3), 64), 1 << 30);
    summed.crash_safety = CrashSafety::On;
    summed.features.incompatible = Features::LOG | Features::CHECKSUMS;
    summed.layout = Layout::plan(&summed.shape, 1 << 30, true).expect("samples are large enough");
    vec![
        ("checksums", summed),
        ("mirror", superblock(valid(Shape::of(Level::Raid1, 2), 4), 1 << 20)),
        ("rebuilding", rebuilding),
        ("spare", spare),
        ("striped", superblock(valid(Shape::of(Level::Raid0, 3), 1024), 1 << 30)),
        ("widest", superblock(valid(Shape::of(Level::Nm, 64).parity(8), 4), 1 << 30)),
    ]
}

/// A catalogue with volumes and exports.
pub(super) fn catalogue() -> Catalogue {
    let extent = |start_byte, len_bytes| ExtentRecord { start_byte, len_bytes };
    let volume = |id, name: &str, size_bytes, extents| VolumeRecord {
        id,
        name: name.to_owned(),
        kind: VolumeKind::Direct,
        size_bytes,
        created_unix_s: 1_700_000_000,
        extents,
        thin: ThinVolumeRecord::default(),
        conversion: None,
    };
    let export = |id, volume, address: &str, tls| ExportRecord {
        id,
        volume,
        kind: ExportKind::Nbd { address: address.to_owned(), read_only: id % 2 == 0, tls },
    };
    let tls = TlsFiles { certificate: "/c.pem".into(), key: "/k.pem".into(), client_ca: Some("/a.pem".into()) };
    Catalogue {
        next_id: 9,
        volumes: vec![
            volume(1, "db", 12_000, vec![extent(8192, 8192), extent(0, 4096)]),
            volume(4, "logs.2", 4096, vec![extent(1 << 30, 4096)]),
        ],
        exports: vec![export(5, 1, "unix:/run/db.sock", None), export(8, 4, "[::1]:10809", Some(tls))],
        ..Catalogue::default()
    }
}

/// The same with settings, scrubs, reservations, limits and secrets.
pub(super) fn catalogue_with_maintenance() -> Catalogue {
    let last = ScrubEnd { ended_unix_s: 1_800_000_000, repair: true, found: 2, repaired: 1, unchecked: 3 };
    let current = ScrubPoint {
        started_unix_s: 1_802_000_000,
        repair: false,
        paused: true,
        next_byte: 8192,
        compared_bytes: 4096,
        found: 1,
        repaired: 0,
        unchecked: 0,
    };
    let mut plain = catalogue();
    let place = ExtentRecord { start_byte: 2 << 30, len_bytes: 1 << 20 };
    plain.thin =
        Some(ThinPoolRecord { segment_bytes: 1 << 20, stores: vec![ThinStoreRecord { id: 0, extents: vec![place] }] });
    plain.volumes[0].conversion = Some(ConversionRecord {
        id: 7,
        to: VolumeKind::Thin,
        extents: Vec::new(),
        thin: ThinVolumeRecord::default(),
        copied_bytes: 4096,
        stale: vec![ExtentRecord { start_byte: 0, len_bytes: 4096 }],
    });
    let kind = ExportKind::Ublk { number: 3, block_bytes: 512, depth: 128, read_only: false };
    let device = ExportRecord { id: 9, volume: 1, kind };
    let exports = std::mem::take(&mut plain.exports);
    Catalogue {
        next_id: 10,
        exports: exports.into_iter().chain([device]).collect(),
        settings: SettingsRecord {
            client_p99_us: Some(5000),
            retire_slow: true,
            scrub_every_s: None,
            thin_warn: Some(vec![70, 95]),
        },
        scrub: ScrubRecord { last: Some(last), skipped_unix_s: Some(1_801_000_000), current: Some(current) },
        reservations: vec![ReservationRecord {
            volume: 4,
            generation: 3,
            registrants: vec![RegistrantRecord { host: "0f".repeat(16), key: u64::MAX }],
            held: Some(HeldRecord { kind: 1, holder: Some("0f".repeat(16)) }),
        }],
        limits: vec![LimitRecord { of: LimitOf::Volume(1), iops: Some(1), bytes_per_s: None, burst_ms: 100 }],
        secrets: vec![SecretRecord {
            host: "nqn.2026-11.com.example:a".into(),
            secret: "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:".into(),
            controller_secret: None,
            dh_group: 2,
        }],
        ..plain
    }
}

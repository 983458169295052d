//! The types of Purlin's HTTP API: requests of clients and answers of the daemon.
//!
//! Six objects, [`Drive`], [`Group`], [`Import`], [`Volume`], [`Export`] and [`Host`], and an
//! overview of all of them, [`Status`]. The daemon serves them as JSON under [`ROOT`]; the command
//! `purlin` is one client of many.
//!
//! Rules that hold for every type here:
//!
//! - Requests refuse unknown fields, so that a mistyped option is never silently ignored.
//! - Responses only grow: an existing field keeps its name, unit and meaning; new fields and new
//!   values of enumerations may appear. A client reads an unknown enumeration value as `unknown`.
//! - An optional field of a response is always present, and `null` if it has no value.
//! - Quantities carry their unit as a suffix: `_bytes`, `_s`, `_us`, `_count`, `_percent`,
//!   `_per_s`.
//! - An error is `{ "error": { "code": "group_exists", "message": "one clear sentence" } }`; see
//!   [`ErrorCode`].
#![forbid(unsafe_code)]

mod address;
mod ana;
mod change;
mod convert;
mod drive;
mod duration;
mod error;
mod export;
mod group;
mod host;
mod host_key;
mod import;
mod job;
mod level;
mod limit;
mod load;
mod maintenance;
mod name;
mod nvme_drive;
mod referral;
mod rename;
mod reservation;
mod scan;
mod share;
mod size;
mod status;
mod thin;
mod upgrade;
mod visible;
mod volume;
mod wipe;

pub use address::{AddressError, DriveSpec, NbdAddress, uri_escaped};
pub use ana::{AnaState, ExportUpdate};
pub use change::Changed;
pub use convert::{Conversion, ConvertAction, VolumeConvert};
pub use drive::{Drive, DriveDetails, DriveHealth, DriveKind, DriveList, DrivePassthrough, DriveRole, DriveState};
pub use duration::{DURATION_MAX, DurationError, format_duration, parse_duration};
pub use error::{ErrorBody, ErrorCode, ErrorDetail, Invalid};
pub use export::{Export, ExportCreate, ExportList, ExportPlace, ExportTls, NvmeTcpCreate, Protocol, UblkCreate};
pub use group::{
    Checksums, CrashSafety, Group, GroupAssemble, GroupCreate, GroupForget, GroupHealth, GroupList, GroupNotStarted,
    GroupStop, Member, MemberFail, MemberReplace, MemberState, Spare, SpareAdd, ThinPool, ThinWork,
};
pub use host::{Host, HostExport, HostList, HostShare, check_host};
pub use host_key::{DhGroup, HostKey, HostKeySet, HostTlsKey, HostTlsKeySet};
pub use import::{
    DriveReason, Import, ImportForget, ImportList, ImportMd, ImportNvme, Imported, ImportedNamespace, MdArray,
    MdMember, NamespacePath,
};
pub use job::{
    Job, JobKind, JobState, PlaceContent, PlaceFault, Scrub, ScrubAction, ScrubFindings, ScrubPlace, ScrubRequest,
    VolumePlace,
};
pub use level::{Level, SafetyMode};
pub use limit::{
    LIMIT_BURST_MS_DEFAULT, LIMIT_BURST_MS_MAX, LIMIT_BURST_MS_MIN, LIMIT_BYTES_PER_S_MAX, LIMIT_IOPS_MAX, Limit,
    LimitUpdate,
};
pub use load::{ErrorCounts, IoCounters, LatencyUs, Load, LoadSide};
pub use maintenance::{
    CLIENT_P99_US_MAX, CLIENT_P99_US_MIN, GroupSettings, GroupUpdate, LastScrub, SCRUB_EVERY_S_MAX, SCRUB_EVERY_S_MIN,
    ScrubSchedule,
};
pub use name::{NAME_CHARS_MAX, VolumeName, check_name};
pub use nvme_drive::{NVME_TCP, NvmeDrive, TargetAddress};
pub use referral::{Referral, ReferralList, check_referral};
pub use rename::Rename;
pub use reservation::{Registrant, Reservation, ReservationKind};
pub use scan::{GroupScan, GroupStart, Scanned, ScannedDrive, ScannedGroup, ScannedState};
pub use share::{Share, ShareCreate, ShareList};
pub use size::{SizeError, format_bytes, format_bytes_exact, parse_bytes};
pub use status::{Buffers, GroupStatus, ShardStatus, Status};
pub use thin::{
    Compression, FULL_WAIT_MS_MAX, THIN_WARN_LEVELS_MAX, ThinSettings, ThinUpdate, ZSTD_LEVEL_DEFAULT, ZSTD_LEVEL_MAX,
    check_warn_levels,
};
pub use upgrade::{Upgrade, UpgradeRequest, UpgradeState};
pub use visible::{is_obeyed, visible};
pub use volume::{THIN_BYTES_MAX, Volume, VolumeCreate, VolumeKind, VolumeList, VolumeUpdate, volume_bytes};
pub use wipe::{DriveWipe, WipedDrive};

/// The path that every versioned route starts with.
pub const ROOT: &str = "/v1";

/// Default socket of the daemon and the command.
pub const DEFAULT_SOCKET: &str = "/run/purlin/purlind.sock";

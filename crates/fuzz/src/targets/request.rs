//! Bodies of API requests and of API answers.

use std::fmt::Debug;

use api::{
    Changed, DriveList, ErrorBody, Export, ExportCreate, ExportList, ExportPlace, Group, GroupAssemble, GroupCreate,
    GroupForget, GroupList, GroupStop, GroupUpdate, ImportForget, ImportList, ImportMd, Imported, Invalid, MemberFail,
    MemberReplace, Scrub, ScrubRequest, SpareAdd, Status, UblkCreate, VolumeCreate, VolumeList, VolumeUpdate,
};
use format::{AnaRecord, Catalogue, ExportKind, ExportRecord};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::samples;
use crate::target::{Memory, Seed, Target};

pub(super) const TARGET: Target = Target {
    name: "request",
    checks: "JSON of every request: unknown fields are refused, what is taken reads back, what is valid can be stored",
    run,
    seeds,
    stored: Vec::new,
    dictionary: &[
        b"\"name\":\"tank\",",
        b"\"level\":\"raid6\",",
        b"\"level\":\"unknown\",",
        b"\"drives\":[\"/a\",\"/b\"],",
        b"\"mem:a:1GiB\"",
        b"\"dry_run\":true",
        b"\"confirm\":\"tank/db\"",
        b"\"size_bytes\":18446744073709551615",
        b"\"tls\":{\"cert\":\"/c\",\"key\":\"/k\"}",
        b"\"nbd\":\"unix:/a\"",
        b"\"ublk\":{\"number\":0,\"block_bytes\":512,\"depth\":4096}",
        b"null",
        b"1e999",
        b"-0.0",
        b"\\ud800",
        b"\\u0000",
        b"[[[[[[[[",
        b"{\"a\":",
    ],
    input_bytes_max: 4096,
    // A drive of one byte becomes a string and a name; `[0,0,...]` read as values takes 16 times
    // the size of its text.
    memory: Memory { base_bytes: 64 << 10, per_input_byte: 512 },
};

/// The check of a request type with a body.
type Check = fn(&[u8]);

const REQUESTS: [Check; 14] = [
    |body| request(body, |it: &GroupCreate| it.validate()),
    |body| request(body, |it: &GroupAssemble| it.validate()),
    |body| request(body, |_: &GroupStop| Ok(())),
    |body| request(body, |_: &GroupForget| Ok(())),
    |body| request(body, |_: &MemberFail| Ok(())),
    |body| request(body, |it: &MemberReplace| it.validate()),
    |body| request(body, |it: &SpareAdd| it.validate()),
    |body| {
        request(body, |it: &VolumeCreate| {
            it.validate()?;
            assert!(it.name().to_string().parse::<api::VolumeName>().is_ok(), "a valid name reads back");
            assert!(it.size_bytes > 0);
            Ok(())
        })
    },
    |body| request(body, |it: &VolumeUpdate| it.validate()),
    |body| request(body, export),
    |body| request(body, |_: &ScrubRequest| Ok(())),
    |body| request(body, |it: &GroupUpdate| it.validate()),
    |body| request(body, |it: &ImportMd| it.validate()),
    |body| request(body, |_: &ImportForget| Ok(())),
];

/// The answers that `purlin` reads. Answers may get new fields, so unknown fields are accepted.
const ANSWERS: [Check; 11] = [
    answer::<ErrorBody>,
    answer::<Status>,
    answer::<GroupList>,
    answer::<DriveList>,
    answer::<VolumeList>,
    answer::<ExportList>,
    answer::<Changed<Group>>,
    answer::<Changed<Export>>,
    answer::<Scrub>,
    answer::<ImportList>,
    answer::<Imported>,
];

fn seeds() -> Vec<Seed> {
    let bodies = [
        r#"{"name":"tank","level":"raid6","drives":["/a","/b","/c","mem:d:1GiB"],"spares":["/e"],"parity":2,"copies":null,
            "sets":1,"strip_bytes":65536,"create_files_bytes":1073741824,"wipe_foreign":true,"dry_run":true}"#,
        r#"{"drives":["/a","mem:b"],"dry_run":false}"#,
        r#"{"force":true}"#,
        r#"{"dry_run":true}"#,
        r#"{"with":"/dev/x","create_files_bytes":1,"wipe_foreign":false}"#,
        r#"{"drive":"mem:s:1MiB"}"#,
        r#"{"group":"tank","volume":"db","size_bytes":4097}"#,
        r#"{"size_bytes":18446744073709551615,"confirm":"tank/db"}"#,
        r#"{"volume":"tank/db","nbd":"[::1]:10809","read_only":true,"tls":{"cert":"/c","key":"/k","ca":null}}"#,
        r#"{"action":"start","repair":true}"#,
        r#"{"client_p99_us":5000,"retire_slow":true,"scrub_every_s":0,"dry_run":true}"#,
        r#"{"drives":["/a","/b"],"name":"old","array":"host:old","allow_inconsistent":true,"dry_run":false}"#,
        r#"{"force":true,"dry_run":false}"#,
        r#"{"error":{"code":"group_exists","message":"there is one"}}"#,
    ];
    let seed =
        |(kind, body): (usize, &&str)| Seed::new(format!("body-{kind:02}"), [&[kind as u8], body.as_bytes()].concat());
    bodies.iter().enumerate().map(seed).collect()
}

fn run(input: &[u8]) {
    let Some((&kind, body)) = input.split_first() else { return };
    let kind = usize::from(kind) % (REQUESTS.len() + ANSWERS.len());
    match REQUESTS.get(kind) {
        Some(check) => check(body),
        None => ANSWERS[kind - REQUESTS.len()](body),
    }
}

fn request<T>(body: &[u8], validate: impl Fn(&T) -> Result<(), Invalid>)
where
    T: DeserializeOwned + Serialize + PartialEq + Debug,
{
    let request: T = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let written = serde_json::to_vec(&request).expect("requests have string keys only");
    assert_eq!(serde_json::from_slice::<T>(&written).expect("what was written is read"), request);
    match validate(&request) {
        Ok(()) => {}
        Err(refusal) => {
            let text = refusal.to_string();
            assert!(!text.is_empty() && !text.chars().any(char::is_control), "a refusal moves a cursor: {text:?}");
        }
    }
    let mut fields: Map<String, Value> = serde_json::from_slice(&written).expect("a request is an object");
    fields.insert("surprise".to_owned(), Value::Null);
    assert!(serde_json::from_value::<T>(fields.into()).is_err(), "an unknown field is refused");
}

/// A request that is valid for the API is valid for the catalogue, which is written without another
/// check.
fn export(request: &ExportCreate) -> Result<(), Invalid> {
    let (volume, place) = request.validate()?;
    assert_eq!(volume.to_string(), request.volume);
    let read_only = request.read_only;
    let kind = match place {
        ExportPlace::Nbd(address) => ExportKind::Nbd { address: address.to_string(), read_only, tls: None },
        ExportPlace::Ublk(ublk) => ExportKind::Ublk {
            number: ublk.number.unwrap_or_default(),
            block_bytes: ublk.block_bytes.unwrap_or(4096),
            depth: ublk.depth.unwrap_or(UblkCreate::DEPTH_DEFAULT),
            read_only,
        },
        ExportPlace::NvmeTcp(address, nvme) => ExportKind::NvmeTcp {
            address: address.to_string(),
            nsid: nvme.nsid.unwrap_or(1),
            block_bytes: nvme.block_bytes.unwrap_or(4096),
            read_only,
            hosts: (!nvme.allow_any_host).then_some(nvme.hosts),
            ana: AnaRecord::Optimized,
        },
    };
    let catalogue = Catalogue { exports: vec![ExportRecord { id: 5, volume: 1, kind }], ..samples::catalogue() };
    assert_eq!(catalogue.check(u64::MAX), Ok(()));
    Ok(())
}

fn answer<T: DeserializeOwned + Serialize>(body: &[u8]) {
    if let Ok(answer) = serde_json::from_slice::<T>(body) {
        let written = serde_json::to_vec(&answer).expect("answers have string keys only");
        assert!(serde_json::from_slice::<T>(&written).is_ok(), "what was written is read");
    }
}

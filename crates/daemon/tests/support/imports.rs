//! Imports that exist only here: the array `old` lies on whatever drives are named, the first three are its members, further ones
//! spares; `/drives/ext4` is none.

use api::*;
use daemon::http::{Answer, ControlError};

const GIB: u64 = 1 << 30;

fn array(drives: &[&String]) -> MdArray {
    let member = |slot: usize| MdMember { slot: slot as u32, drive: drives.get(slot).map(|drive| (*drive).clone()) };
    let spare = |drive: &&String| DriveReason { drive: (*drive).clone(), reason: "a spare".into() };
    MdArray {
        uuid: "3aaa0122:29827cfa:5331ad66:ca767371".into(),
        name: "host:old".into(),
        metadata: "1.2".into(),
        level: "raid5".into(),
        layout: Some("left-symmetric".into()),
        chunk_bytes: Some(512 << 10),
        size_bytes: Some(2 * GIB),
        clean: true,
        event_count: 18,
        created_unix_s: 1_600_000_000,
        updated_unix_s: 1_699_999_999,
        members: (0..3).map(member).collect(),
        left_out: drives.iter().skip(3).map(spare).collect(),
        refusal: None,
    }
}

/// A namespace, wherever it is.
pub fn namespace(request: &ImportNvme) -> Import {
    let name = request.name.clone().unwrap_or_else(|| "remote1".into());
    let drive: NvmeDrive = request.drive.parse().expect("a request that was checked has a drive of another machine");
    let path = |address: &TargetAddress| NamespacePath {
        address: address.to_string(),
        state: "optimized".into(),
        connect_count: 1,
        last_error: None,
    };
    Import {
        volume: format!("{name}/nvme"),
        name,
        health: GroupHealth::Optimal,
        message: None,
        uuid: "uuid.5b5b5b5b-5b5b-5b5b-5b5b-5b5b5b5b5b5b".into(),
        array: None,
        namespace: Some(ImportedNamespace {
            subsystem: drive.subsystem.clone(),
            nsid: drive.nsid,
            size_bytes: Some(2 * GIB),
            block_bytes: Some(4096),
            read_only: false,
            paths: drive.addresses.iter().map(path).collect(),
        }),
        drives: vec![drive.to_string()],
        allow_inconsistent: false,
        exports: vec![],
        io: IoCounters::default(),
    }
}

/// What there is, with the import if it is made.
pub fn import(request: &ImportMd) -> Answer<Imported> {
    let (others, drives): (Vec<&String>, Vec<&String>) =
        request.drives.iter().partition(|drive| drive.ends_with("ext4"));
    let name = request.name.clone().unwrap_or_else(|| "old".into());
    let missing = 3_usize.saturating_sub(drives.len());
    if missing > 1 {
        return Err(ControlError::new(
            ErrorCode::NotAssemblable,
            format!("the array \"host:old\" is not read: {missing} of 3 members are missing"),
        ));
    }
    let array = array(&drives);
    let import = Import {
        name: name.clone(),
        volume: format!("{name}/md"),
        health: if missing == 0 { GroupHealth::Optimal } else { GroupHealth::Degraded },
        message: None,
        uuid: array.uuid.clone(),
        array: Some(array.clone()),
        namespace: None,
        drives: drives.iter().take(3).map(|drive| (*drive).clone()).collect(),
        allow_inconsistent: request.allow_inconsistent,
        exports: vec![],
        io: IoCounters::default(),
    };
    let holds =
        |drive: &&String| DriveReason { drive: (*drive).clone(), reason: "it holds an ext4 file system".into() };
    Ok(Imported {
        dry_run: request.dry_run,
        steps: vec![format!("read the array \"host:old\" as the volume \"{name}/md\"")],
        warnings: (0..missing).map(|_| "slot 2 is missing".to_owned()).collect(),
        found: vec![array],
        others: others.iter().map(holds).collect(),
        object: (!request.dry_run).then_some(import),
    })
}

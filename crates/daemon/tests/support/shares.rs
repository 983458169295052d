//! Shared drives that exist only here.

use api::{Changed, ErrorCode, IoCounters, Share, ShareCreate, ShareList};
use daemon::http::{Answer, ControlError};

use super::NQN;
use super::state::{drive_bytes, plain_name};

/// Shares, with those hosts that have to use TLS.
pub fn shown(shares: &[Share], tls_hosts: &[String]) -> Vec<Share> {
    let with_hosts = |share: &Share| {
        let may_use = |host: &&String| share.hosts.as_ref().is_none_or(|hosts| hosts.contains(host));
        Share { tls_hosts: tls_hosts.iter().filter(may_use).cloned().collect(), ..share.clone() }
    };
    shares.iter().map(with_hosts).collect()
}

pub fn create(shares: &mut Vec<Share>, tls_hosts: &[String], request: &ShareCreate) -> Answer<Changed<ShareList>> {
    let address = request.address.clone().unwrap_or_default();
    let mut made = Vec::new();
    for drive in &request.drives {
        let size_bytes = drive_bytes(drive, None, false)?;
        let nsid = (shares.len() + made.len()) as u32 + 1;
        made.push(Share {
            id: format!("share-{nsid}"),
            drive: plain_name(drive),
            url: format!("nvme-tcp://{address}/{NQN}?nsid={nsid}"),
            address: address.clone(),
            nqn: NQN.to_owned(),
            nsid,
            size_bytes: Some(size_bytes),
            sector_bytes: Some(4096),
            hosts: (!request.allow_any_host).then(|| request.hosts.clone()),
            tls_hosts: Vec::new(),
            queue_count: 0,
            io: IoCounters::default(),
            failure: None,
        });
    }
    let steps =
        made.iter().map(|share| format!("offer the drive {} over NVMe/TCP at {address}", share.drive)).collect();
    if request.dry_run {
        return Ok(Changed::planned(steps));
    }
    shares.extend(made.iter().cloned());
    Ok(Changed::done(steps, ShareList { shares: shown(&made, tls_hosts) }))
}

pub fn delete(shares: &mut Vec<Share>, id: &str) -> Answer<Changed<Share>> {
    let at = shares.iter().position(|share| share.id == id);
    let at = at.ok_or_else(|| ControlError::new(ErrorCode::DriveNotFound, format!("no drive is shared as {id:?}")))?;
    let gone = shares.remove(at);
    Ok(Changed::gone(vec![format!("offer the drive {} no longer; hosts lose it", gone.drive)]))
}

//! Drives of other machines in a group: the real initiator, over the simulated network.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use ::drive::{Buf, BufMut, Drive, DriveError, DriveInfo, Env, Segments, View};
use initiator::{ConnectError, Known, Namespace, Options, Selection};
use nvme::target::Host;
use nvme::tcp::Digests;

use crate::drive::SimDrive;
use crate::target::Target;
use crate::world::SimEnv;

/// A drive of a group. A handle.
#[derive(Clone)]
pub enum GroupDrive {
    /// In the machine.
    Local(SimDrive),
    /// On a target.
    Remote(Namespace<SimEnv>),
}

impl From<SimDrive> for GroupDrive {
    fn from(drive: SimDrive) -> Self {
        GroupDrive::Local(drive)
    }
}

// Operations of a namespace are boxed, so that those of drives in the machine stay small.
impl Drive for GroupDrive {
    fn info(&self) -> &DriveInfo {
        match self {
            GroupDrive::Local(drive) => drive.info(),
            GroupDrive::Remote(namespace) => Drive::info(namespace),
        }
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, DriveError> {
        match self {
            GroupDrive::Local(drive) => drive.read(offset, buf).await,
            GroupDrive::Remote(namespace) => Box::pin(Drive::read(namespace, offset, buf)).await,
        }
    }

    fn read_now(&self, offset: u64, buf: &mut [u8]) -> Option<Result<(), DriveError>> {
        match self {
            GroupDrive::Local(drive) => drive.read_now(offset, buf),
            GroupDrive::Remote(_) => None,
        }
    }

    fn view_now<T>(&self, offset: u64, len: usize, look: impl FnOnce(View<'_>) -> T) -> Option<T> {
        match self {
            GroupDrive::Local(drive) => drive.view_now(offset, len, look),
            GroupDrive::Remote(_) => None,
        }
    }

    async fn write(&self, offset: u64, data: Segments, fua: bool) -> Result<(), DriveError> {
        match self {
            GroupDrive::Local(drive) => drive.write(offset, data, fua).await,
            GroupDrive::Remote(namespace) => Box::pin(Drive::write(namespace, offset, data, fua)).await,
        }
    }

    fn write_now(&self, offset: u64, data: &Buf) -> Option<Result<(), DriveError>> {
        match self {
            GroupDrive::Local(drive) => drive.write_now(offset, data),
            GroupDrive::Remote(_) => None,
        }
    }

    async fn flush(&self) -> Result<(), DriveError> {
        match self {
            GroupDrive::Local(drive) => drive.flush().await,
            GroupDrive::Remote(namespace) => Box::pin(Drive::flush(namespace)).await,
        }
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        match self {
            GroupDrive::Local(drive) => drive.discard(offset, len).await,
            GroupDrive::Remote(namespace) => Box::pin(Drive::discard(namespace, offset, len)).await,
        }
    }

    async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        match self {
            GroupDrive::Local(drive) => drive.write_zeroes(offset, len).await,
            GroupDrive::Remote(namespace) => Box::pin(Drive::write_zeroes(namespace, offset, len)).await,
        }
    }
}

/// The keep alive time (KATO).
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Times of a host.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// [`Options::keep_alive`]
    pub keep_alive: Duration,
    /// [`Options::loss_timeout`]
    pub loss: Duration,
    /// How long no drive is opened after a kill.
    pub quiet: Duration,
}

impl Patience {
    /// The daemon's (`daemon/src/engine/drives/remote.rs`).
    pub const USUAL: Patience = Patience {
        keep_alive: KEEP_ALIVE,
        loss: Duration::from_secs(15),
        quiet: initiator::quiet_time(KEEP_ALIVE, false),
    };

    /// The options for a target, as the daemon sets them.
    pub fn options(&self, target: &Target) -> Options {
        let nqn = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001".parse().expect("a name");
        let Patience { keep_alive, loss, .. } = *self;
        Options {
            digests: Digests { header: true, data: true },
            keep_alive,
            connect_timeout: keep_alive,
            command_timeout: keep_alive * 2,
            reconnect_delay_max: keep_alive,
            loss_timeout: Some(loss),
            ..Options::new(Host { nqn, id: [0x1D; 16] }, target.subsystem().clone())
        }
    }
}

/// The paths of a machine to the drives that are not in it.
pub struct Ways {
    patience: Patience,
    /// By [`SimDrive::index`].
    targets: BTreeMap<u32, Target>,
    /// Drives of other machines are in use, or were in use by a process that did not end in order.
    mark: Cell<bool>,
}

impl Default for Ways {
    fn default() -> Self {
        Ways::new(Patience::USUAL)
    }
}

impl Ways {
    /// No other machines so far.
    pub fn new(patience: Patience) -> Ways {
        Ways { patience, targets: BTreeMap::new(), mark: Cell::new(false) }
    }

    /// Registers that these drives are on this target.
    pub fn add(&mut self, target: &Target, drives: &[SimDrive]) {
        self.targets.extend(drives.iter().map(|drive| (drive.index(), target.clone())));
    }

    /// The target that a drive is on, if it is on one.
    pub fn target(&self, drive: &SimDrive) -> Option<&Target> {
        self.targets.get(&drive.index())
    }

    /// All targets. One with several drives is given several times.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.targets.values()
    }

    /// Waits until no target executes commands any more that a killed process of this machine had
    /// sent.
    pub async fn quiet(&self, env: &SimEnv) {
        if self.mark.get() {
            Env::sleep(env, self.patience.quiet).await;
        }
    }

    /// Records whether drives of other machines are in use from now on.
    pub fn mark(&self, in_use: bool) {
        self.mark.set(in_use);
    }

    /// Checks a drive of a target: connects, and disconnects again.
    ///
    /// # Errors
    /// Why it cannot be reached.
    ///
    /// # Panics
    /// If the drive is on no target.
    pub async fn look(&self, env: &SimEnv, drive: &SimDrive) -> Result<Known, ConnectError> {
        let target = self.target(drive).expect("a drive on a target");
        let nsid = target.nsid(drive).expect("the target has it");
        let options = self.patience.options(target);
        let namespace = Namespace::connect(env, target.addresses(), Selection::Number(nsid), options).await?;
        let known = namespace.known().clone();
        namespace.close().await;
        Ok(known)
    }
}

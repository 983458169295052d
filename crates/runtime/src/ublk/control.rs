//! Creating, finding and removing devices.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::abi::{self, ControlCommand, DeviceInfo, Parameters, SECTOR_SHIFT, attribute, flag};
use super::{UblkError, UblkSpec};

/// How long to wait for a dying server, until the kernel has taken back its requests. If the server
/// held every slot of a queue, Linux before 6.15 notices the end of the server only when a request
/// times out, after 30 s.
const QUIET_LIMIT: Duration = Duration::from_secs(60);
/// The smallest `nr_requests` of a block device (`BLKDEV_MIN_RQ`).
const REQUESTS_MIN: u16 = 4;
/// How long to wait for the nodes of a new device, and, without privileges, for access to them to
/// be granted.
const NODE_LIMIT: Duration = Duration::from_secs(10);
/// After this time a command that is not done is followed by a reminder. The kernel hands each
/// command to a worker thread of its own, and Linux 6.18 was seen to wait for a worker that it had
/// never created. An operation that must run on a worker makes the kernel create one.
const REMIND_AFTER: types::Timespec = types::Timespec::new().sec(1);
/// The `user_data` of such a reminder; commands have 0.
const REMINDER: u64 = 1;
/// Pause between two checks for a dying server or for a node.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// The control device. Commands on it block until they are complete.
pub struct UblkControl {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    file: File,
    features: u64,
}

/// State of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UblkState {
    /// Created and not started, or stopped.
    Dead,
    /// Served.
    Live,
    /// Its server has ended. Requests to the device wait for the next server.
    Waiting,
}

/// A device that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UblkFound {
    /// Its number.
    pub number: u32,
    /// The value that its creator set in [`UblkSpec::identity`].
    pub identity: u64,
    /// Its state.
    pub state: UblkState,
    /// Process ID of its last server, if there was one.
    pub server: Option<u32>,
}

/// A device that this process serves. It is cloned for each shard.
#[derive(Debug, Clone)]
pub struct UblkDevice {
    /// `/dev/ublkcN`.
    pub(super) file: Arc<File>,
    pub(super) info: DeviceInfo,
    /// It had a server before this one.
    recovered: bool,
}

impl UblkDevice {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.info.device
    }

    /// Its queues. Each must be served by one shard.
    pub fn queues(&self) -> u16 {
        self.info.queues
    }

    /// Slots of each queue.
    pub fn depth(&self) -> u16 {
        self.info.depth
    }

    /// The largest request, in bytes.
    pub fn io_bytes_max(&self) -> u32 {
        self.info.io_bytes_max
    }

    /// Whether the device outlives its server.
    pub fn is_recoverable(&self) -> bool {
        self.info.flags & flag::USER_RECOVERY != 0
    }

    /// Data are copied by system calls of the server, not by the commands.
    pub(super) fn copies_itself(&self) -> bool {
        self.info.flags & flag::USER_COPY != 0
    }
}

/// The block device's node.
fn block_path(number: u32) -> String {
    format!("/dev/ublkb{number}")
}

/// The server's node.
fn server_path(number: u32) -> String {
    format!("/dev/ublkc{number}")
}

impl UblkControl {
    /// Opens the control device.
    ///
    /// # Errors
    /// [`UblkError::NoDriver`], [`UblkError::TooOld`], and errors of opening the control device.
    pub fn open() -> Result<UblkControl, UblkError> {
        let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(abi::CONTROL_PATH);
        let file = opened.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => UblkError::NoDriver,
            _ => UblkError::os(abi::CONTROL_PATH, error),
        })?;
        let ring = IoUring::builder().build(4).map_err(|error| UblkError::os("a ring for ublk commands", error))?;
        let mut control = UblkControl { ring, file, features: 0 };
        let mut features = 0u64;
        // SAFETY: the address is that of `features`, of the length that is passed with it.
        let got = unsafe {
            control.command(
                abi::GET_FEATURES,
                ControlCommand {
                    device: u32::MAX,
                    queue: u16::MAX,
                    len: size_of::<u64>() as u16,
                    address: (&raw mut features) as u64,
                    ..ControlCommand::default()
                },
            )
        };
        got.map_err(|_| UblkError::TooOld)?;
        if features & flag::CMD_IOCTL_ENCODE == 0 || features & flag::USER_RECOVERY_REISSUE == 0 {
            return Err(UblkError::TooOld);
        }
        control.features = features;
        Ok(control)
    }

    /// Creates a device. All its queues must be served before [`UblkControl::start`].
    ///
    /// # Errors
    /// [`UblkError::Taken`]; refusals of the kernel. After an error no device is left.
    pub fn add(&mut self, spec: &UblkSpec) -> Result<UblkDevice, UblkError> {
        let wanted = spec.number.unwrap_or(u32::MAX);
        let recovery = flag::USER_RECOVERY | flag::USER_RECOVERY_REISSUE;
        let copying = if self.features & flag::USER_COPY != 0 { flag::USER_COPY } else { flag::NEED_GET_DATA };
        let mut info = DeviceInfo {
            queues: spec.queues.min(abi::QUEUES_MAX),
            // One more, for the slot that stays free.
            depth: (spec.depth.max(REQUESTS_MIN) + 1).min(abi::QUEUE_DEPTH_MAX),
            io_bytes_max: spec.io_bytes_max,
            device: wanted,
            server_flags: spec.identity,
            flags: recovery | copying,
            ..DeviceInfo::default()
        };
        let mut added = self.add_device(&mut info);
        if matches!(&added, Err(error) if error.raw_os_error() == Some(libc::EPERM)) {
            // Without privileges a process may still have a device, but not with copying by system
            // calls, and not one that outlives its server.
            info.flags = flag::UNPRIVILEGED_DEV | flag::NEED_GET_DATA;
            added = self.add_device(&mut info);
        }
        added.map_err(|error| match error.raw_os_error() {
            Some(libc::EEXIST) => UblkError::Taken(wanted),
            _ => UblkError::os("a new ublk device", error),
        })?;
        // Opened first: without privileges, the kernel accepts parameters only from a process that
        // may open it.
        let finished = open_server(info, false).and_then(|device| self.set_parameters(&info, spec).map(|()| device));
        finished.inspect_err(|_| {
            // It was never started, so no process uses it.
            let _ = self.delete(info.device);
        })
    }

    fn add_device(&mut self, info: &mut DeviceInfo) -> io::Result<()> {
        let command = ControlCommand { device: info.device, ..ControlCommand::default() };
        // SAFETY: a device's description is plain numbers, and any are valid.
        unsafe { self.command_with(abi::ADD_DEV, command, false, info) }
    }

    fn set_parameters(&mut self, info: &DeviceInfo, spec: &UblkSpec) -> Result<(), UblkError> {
        let attributes = if spec.read_only { attribute::READ_ONLY } else { 0 };
        let sectors_max = u32::MAX >> SECTOR_SHIFT;
        let mut parameters = Parameters {
            len: abi::PARAMETERS_BYTES,
            types: abi::PARAMETERS_BASIC_AND_DISCARD,
            attributes: attributes | attribute::VOLATILE_CACHE | attribute::FUA,
            logical_block_shift: spec.block_bytes.ilog2() as u8,
            physical_block_shift: spec.physical_block_bytes.ilog2() as u8,
            io_opt_shift: spec.io_opt_bytes.ilog2() as u8,
            io_min_shift: spec.io_min_bytes.ilog2() as u8,
            io_sectors_max: info.io_bytes_max >> SECTOR_SHIFT,
            sectors: spec.size_bytes >> SECTOR_SHIFT,
            discard_granularity: spec.discard_granularity_bytes,
            discard_sectors_max: if spec.has_discard { sectors_max } else { 0 },
            write_zeroes_sectors_max: if spec.has_write_zeroes { sectors_max } else { 0 },
            discard_segments_max: 1,
            ..Parameters::default()
        };
        let command = ControlCommand { device: info.device, ..ControlCommand::default() };
        // SAFETY: parameters are plain numbers, and any are valid.
        unsafe { self.command_with(abi::SET_PARAMS, command, is_unprivileged(info), &mut parameters) }
            .map_err(|error| UblkError::os("the parameters of a ublk device", error))
    }

    /// Queries a device. `None` if there is none with that number.
    ///
    /// # Errors
    /// Errors of the kernel, for example that this process may not query the device.
    pub fn find(&mut self, number: u32) -> Result<Option<UblkFound>, UblkError> {
        let Some(info) = self.info(number)? else { return Ok(None) };
        Ok(Some(UblkFound {
            number,
            identity: info.server_flags,
            state: match info.state {
                abi::state::LIVE => UblkState::Live,
                abi::state::DEAD => UblkState::Dead,
                _ => UblkState::Waiting,
            },
            server: u32::try_from(info.server_pid).ok().filter(|&pid| pid > 0),
        }))
    }

    fn info(&mut self, number: u32) -> Result<Option<DeviceInfo>, UblkError> {
        let mut info = DeviceInfo::default();
        let command = ControlCommand { device: number, ..ControlCommand::default() };
        // SAFETY: a device's description is plain numbers, and any are valid.
        match unsafe { self.command_with(abi::GET_DEV_INFO2, command, true, &mut info) } {
            Ok(()) => Ok(Some(info)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(UblkError::os(block_path(number), error)),
        }
    }

    /// Becomes the server of a device whose server has ended or is ending. It waits for the end of
    /// that server for at most 60 s. All queues must be served before [`UblkControl::start`].
    ///
    /// # Errors
    /// [`UblkError::Gone`]; errors of the kernel, for example that another server is alive.
    pub fn recover(&mut self, number: u32) -> Result<UblkDevice, UblkError> {
        let until = Instant::now() + QUIET_LIMIT;
        loop {
            let info = self.info(number)?.ok_or(UblkError::Gone(number))?;
            let command = ControlCommand { device: number, ..ControlCommand::default() };
            let quiet = info.state == abi::state::QUIESCED;
            let begun = if quiet {
                self.bare(abi::START_USER_RECOVERY, command, &info)
            } else {
                Err(io::Error::from_raw_os_error(libc::EBUSY))
            };
            match begun {
                Ok(()) => return open_server(info, true),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < until => {
                    std::thread::sleep(LOOK_PAUSE);
                }
                Err(error) => return Err(UblkError::os(format!("taking over {}", block_path(number)), error)),
            }
        }
    }

    /// Starts a device, or resumes it. It waits until all slots of all queues are served, so call
    /// it on a thread that they do not need. When it returns, `/dev/ublkbN` exists.
    ///
    /// # Errors
    /// Refusals of the kernel.
    pub fn start(&mut self, device: &UblkDevice) -> Result<(), UblkError> {
        let number = device.number();
        let operation = if device.recovered { abi::END_USER_RECOVERY } else { abi::START_DEV };
        let data = u64::from(std::process::id());
        let command = ControlCommand { device: number, data, ..ControlCommand::default() };
        self.bare(operation, command, &device.info)
            .map_err(|error| UblkError::os(format!("starting {}", block_path(number)), error))?;
        let there = || Path::new(&block_path(number)).metadata().is_ok_and(|node| node.file_type().is_block_device());
        if !wait_for(there) {
            let error = io::Error::from_raw_os_error(libc::ENOENT);
            return Err(UblkError::os(format!("{} did not appear", block_path(number)), error));
        }
        if device.is_recoverable()
            && let Err(error) = keep_a_slot_free(device)
        {
            tracing::warn!(device = block_path(number), %error, "a restart under load may take half a minute");
        }
        Ok(())
    }

    /// Whether the kernel can change the size of an existing device: Linux 6.16 and newer.
    pub fn can_resize(&self) -> bool {
        self.features & flag::UPDATE_SIZE != 0
    }

    /// Changes the size of a device. The kernel notifies the processes that have it open or
    /// mounted. Does nothing if it has that size already, or if it is not live: the server that
    /// starts it, or takes it over, then sets its size. `size_bytes` is a multiple of the device's
    /// blocks.
    ///
    /// # Errors
    /// [`UblkError::KeepsSize`]; refusals of the kernel. It is no error if the device does not
    /// exist.
    pub fn resize(&mut self, number: u32, size_bytes: u64) -> Result<(), UblkError> {
        // The first drivers with this command dereference a null pointer if the device was never
        // started.
        let Some(info) = self.info(number)?.filter(|info| info.state == abi::state::LIVE) else { return Ok(()) };
        let sectors = size_bytes >> SECTOR_SHIFT;
        let of_size = |error| UblkError::os(format!("the size of {}", block_path(number)), error);
        // sysfs gives the size in sectors of 512 bytes, independent of the device's block size.
        let known = fs::read_to_string(format!("/sys/block/ublkb{number}/size")).map_err(of_size)?;
        if known.trim().parse() == Ok(sectors) {
            return Ok(());
        }
        if !self.can_resize() {
            return Err(UblkError::KeepsSize(number));
        }
        let command = ControlCommand { device: number, data: sectors, ..ControlCommand::default() };
        self.bare(abi::UPDATE_SIZE, command, &info).map_err(of_size)
    }

    /// Stops a device. Its outstanding requests fail, and its slots get no more requests. The
    /// device must be removed afterwards.
    ///
    /// # Errors
    /// Refusals of the kernel. It is no error if the device does not exist.
    pub fn stop(&mut self, number: u32) -> Result<(), UblkError> {
        self.end(abi::STOP_DEV, number, "stopping")
    }

    /// Removes a device, and stops it first if necessary. Waits until no process has it open.
    ///
    /// # Errors
    /// Refusals of the kernel. It is no error if the device does not exist.
    pub fn delete(&mut self, number: u32) -> Result<(), UblkError> {
        self.end(abi::DEL_DEV, number, "removing")
    }

    fn end(&mut self, operation: u32, number: u32, what: &str) -> Result<(), UblkError> {
        let Some(info) = self.info(number)? else { return Ok(()) };
        let command = ControlCommand { device: number, ..ControlCommand::default() };
        match self.bare(operation, command, &info) {
            Err(error) if error.raw_os_error() != Some(libc::ENODEV) => {
                Err(UblkError::os(format!("{what} {}", block_path(number)), error))
            }
            _ => Ok(()),
        }
    }

    /// A command without an argument in memory.
    fn bare(&mut self, operation: u32, command: ControlCommand, info: &DeviceInfo) -> io::Result<()> {
        // SAFETY: there is no memory to point to.
        unsafe { self.command_with(operation, command, is_unprivileged(info), &mut ()) }
    }

    /// A command with an argument, which the kernel reads and may change. For a device of an
    /// unprivileged user, the path of the server's node comes first: the kernel uses it to check
    /// permissions.
    ///
    /// # Safety
    /// The argument has the type that the driver expects for this command, and may hold any bytes.
    unsafe fn command_with<T: Copy>(
        &mut self,
        operation: u32,
        command: ControlCommand,
        with_path: bool,
        argument: &mut T,
    ) -> io::Result<()> {
        let mut path = if with_path { server_path(command.device).into_bytes() } else { Vec::new() };
        if with_path {
            // Padded to whole words, so that the argument stays aligned. Zeroes end the path.
            path.resize((path.len() + 1).next_multiple_of(8), 0);
        }
        let mut memory = vec![0u64; path.len() / 8 + size_of::<T>().div_ceil(8)];
        let bytes = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: both parts lie within `memory`.
        unsafe {
            bytes.copy_from_nonoverlapping(path.as_ptr(), path.len());
            bytes.add(path.len()).cast::<T>().write_unaligned(*argument);
        }
        let len = path.len() + size_of::<T>();
        let command = ControlCommand {
            queue: u16::MAX,
            len: len as u16,
            address: if len == 0 { 0 } else { bytes as u64 },
            path_len: path.len() as u16,
            ..command
        };
        // SAFETY: `memory` has the length that is passed, and lives until the command is done.
        unsafe { self.command(operation, command) }?;
        // SAFETY: as above; the caller promises that any bytes are a valid value.
        *argument = unsafe { bytes.add(path.len()).cast::<T>().read_unaligned() };
        Ok(())
    }

    /// # Safety
    /// The memory that the command points to has the given length, and the kernel may write to it.
    unsafe fn command(&mut self, operation: u32, command: ControlCommand) -> io::Result<()> {
        let mut bytes = [0; 80];
        // SAFETY: a command has no padding, and is shorter than 80 bytes.
        unsafe { bytes.as_mut_ptr().cast::<ControlCommand>().write_unaligned(command) };
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), operation).cmd(bytes).build();
        // SAFETY: the caller's promise; the loop below waits for the command.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))?;
        let limit = types::SubmitArgs::new().timespec(&REMIND_AFTER);
        loop {
            match self.ring.submitter().submit_with_args(1, &limit) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) if error.raw_os_error() == Some(libc::ETIME) => {
                    let reminder = opcode::Nop::new().build().flags(squeue::Flags::ASYNC).user_data(REMINDER);
                    // SAFETY: the entry holds no pointer. If there is no room, a reminder is
                    // already queued.
                    let _ = unsafe { self.ring.submission().push(&reminder.into()) };
                }
                Err(error) => return Err(error),
            }
            let done = self.ring.completion().find(|done| done.user_data() != REMINDER);
            if let Some(done) = done {
                return if done.result() < 0 { Err(io::Error::from_raw_os_error(-done.result())) } else { Ok(()) };
            }
        }
    }
}

fn is_unprivileged(info: &DeviceInfo) -> bool {
    info.flags & flag::UNPRIVILEGED_DEV != 0
}

/// Makes the kernel send one request less to a queue than it has slots, so one slot is always free.
/// The waiting command of this slot tells the kernel at once that the server has ended. If each
/// slot had a request, the kernel would notice only 30 s later.
fn keep_a_slot_free(device: &UblkDevice) -> io::Result<()> {
    let path = format!("/sys/block/ublkb{}/queue/nr_requests", device.number());
    let requests = device.depth() - 1;
    // The setting survives a change of servers. Setting it waits for all requests in progress.
    if fs::read_to_string(&path)?.trim().parse().is_ok_and(|set: u16| set <= requests) {
        return Ok(());
    }
    fs::write(&path, requests.to_string())
}

/// Waits for a node in `/dev`.
fn wait_for(there: impl Fn() -> bool) -> bool {
    let until = Instant::now() + NODE_LIMIT;
    while !there() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    true
}

fn open_server(info: DeviceInfo, recovered: bool) -> Result<UblkDevice, UblkError> {
    let path = server_path(info.device);
    let until = Instant::now() + NODE_LIMIT;
    loop {
        match OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(&path) {
            Ok(file) => return Ok(UblkDevice { file: Arc::new(file), info, recovered }),
            // The node may appear soon. Without privileges, access to it must first be granted.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EACCES | libc::EPERM))
                    && Instant::now() < until =>
            {
                std::thread::sleep(LOOK_PAUSE);
            }
            Err(error) => return Err(UblkError::os(path, error)),
        }
    }
}

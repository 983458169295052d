//! The queues of a device, each on one shard.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::rc::Rc;

use ::drive::{Buf, BufMut};
use io_uring::{opcode, types};
use smallvec::smallvec;

use super::abi::{self, IoCommand, IoDescriptor, SECTOR_SHIFT, operation, request_flag};
use super::control::UblkDevice;
use crate::env::ShardEnv;
use crate::op::Payload;

/// The kernel's descriptions of a queue's requests, mapped.
struct Descriptors {
    start: NonNull<IoDescriptor>,
    bytes: usize,
}

impl Descriptors {
    fn map(device: &UblkDevice, queue: u16) -> io::Result<Descriptors> {
        let page = 4096;
        let bytes = (usize::from(device.depth()) * size_of::<IoDescriptor>()).next_multiple_of(page);
        let apart = (usize::from(abi::QUEUE_DEPTH_MAX) * size_of::<IoDescriptor>()).next_multiple_of(page);
        let offset = (usize::from(queue) * apart) as libc::off_t;
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, device.file.as_raw_fd(), offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Descriptors { start: NonNull::new(start.cast()).expect("a mapping is not at address 0"), bytes })
    }

    /// The description of the request in a slot. The kernel changes it only while the slot has no
    /// request.
    fn get(&self, tag: u16) -> IoDescriptor {
        // SAFETY: a tag is below the depth, for which the mapping has room. The read is volatile,
        // since the kernel writes there.
        unsafe { self.start.as_ptr().add(usize::from(tag)).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, and descriptions are copied out of it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

struct Queue {
    env: ShardEnv,
    device: UblkDevice,
    index: u16,
    /// The device's descriptor for commands; `None` only while the queue is dropped. It is a
    /// separate copy, since queued commands refer to it by number.
    ///
    /// It is not a registered file, for the same reason as for sockets: commands wait forever, and
    /// a device cannot be removed while a ring holds its file.
    fd: Option<OwnedFd>,
    descriptors: Descriptors,
}

impl Queue {
    fn fd(&self) -> RawFd {
        self.fd.as_ref().expect("taken only when the queue is dropped").as_raw_fd()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.env.shard().close_later(fd);
        }
    }
}

/// The operation of a request for a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UblkOperation {
    /// Fill memory; answered by [`UblkSlot::answer_read`].
    Read,
    /// Store the data that [`UblkSlot::data`] returns.
    Write {
        /// The data must be durable when answered.
        fua: bool,
    },
    /// Make all writes durable that were answered before.
    Flush,
    /// Discard a range.
    Discard,
    /// Zero a range.
    WriteZeroes {
        /// The zeroes must be durable when answered.
        fua: bool,
        /// Keep its space allocated.
        keep_allocated: bool,
    },
    /// An operation that the device does not offer.
    Unknown,
}

/// A request for a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UblkRequest {
    /// The operation.
    pub operation: UblkOperation,
    /// Start, in bytes; a multiple of the device's blocks.
    pub offset: u64,
    /// Length, in bytes; a multiple of the device's blocks.
    pub len: u64,
}

impl UblkRequest {
    fn of(descriptor: &IoDescriptor) -> UblkRequest {
        let flags = descriptor.op_flags;
        let fua = flags & request_flag::FUA != 0;
        UblkRequest {
            operation: match flags as u8 {
                operation::READ => UblkOperation::Read,
                operation::WRITE => UblkOperation::Write { fua },
                operation::FLUSH => UblkOperation::Flush,
                operation::DISCARD => UblkOperation::Discard,
                operation::WRITE_ZEROES => {
                    UblkOperation::WriteZeroes { fua, keep_allocated: flags & request_flag::NO_UNMAP != 0 }
                }
                _ => UblkOperation::Unknown,
            },
            offset: descriptor.start_sector << SECTOR_SHIFT,
            len: u64::from(descriptor.sectors) << SECTOR_SHIFT,
        }
    }

    /// The result that the driver takes as success: the bytes moved, or 0 for operations without
    /// data.
    fn success(&self) -> i32 {
        match self.operation {
            // The largest request is below 2 GiB, since `UblkSpec::io_bytes_max` is 32 bits and the
            // driver's offsets have 25.
            UblkOperation::Read | UblkOperation::Write { .. } => self.len as i32,
            _ => 0,
        }
    }
}

/// A place for one request at a time, in one queue, on one shard.
pub struct UblkSlot {
    queue: Rc<Queue>,
    tag: u16,
    /// The request that was not answered yet.
    request: Option<UblkRequest>,
}

impl UblkDevice {
    /// All slots of a queue for the calling shard. Only this shard may use them from now on.
    ///
    /// # Errors
    /// If the kernel does not map the queue.
    pub fn slots(&self, env: &ShardEnv, queue: u16) -> io::Result<Vec<UblkSlot>> {
        let descriptors = Descriptors::map(self, queue)?;
        let fd = Some(OwnedFd::from(self.file.try_clone()?));
        let queue = Rc::new(Queue { env: env.clone(), device: self.clone(), index: queue, fd, descriptors });
        Ok((0..self.depth()).map(|tag| UblkSlot { queue: queue.clone(), tag, request: None }).collect())
    }
}

impl UblkSlot {
    /// Waits for the first request. `None` if the device is being stopped.
    pub async fn fetch(&mut self) -> Option<UblkRequest> {
        self.next(abi::FETCH_REQ, 0, 0, Payload::None).await
    }

    /// Reads the data of the write in the slot into `buf`, which has the length of the write.
    ///
    /// # Errors
    /// Errors of the kernel; the request must be answered with the error.
    pub async fn data(&mut self, mut buf: BufMut) -> io::Result<BufMut> {
        if !self.queue.device.copies_itself() {
            let (result, payload) = {
                let address = buf.as_mut_ptr() as u64;
                self.command(abi::NEED_GET_DATA, 0, address, Payload::Fill(buf)).await
            };
            let Payload::Fill(buf) = payload else { unreachable!("the slot gives back what it was given") };
            return if result == abi::IO_RES_OK { Ok(buf) } else { Err(io::Error::from_raw_os_error(-result)) };
        }
        let at = abi::data_offset(self.queue.index, self.tag);
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut buf[done..];
            let fd = self.queue.fd();
            // SAFETY: the range is that of the slice.
            let read =
                unsafe { libc::pread(fd, rest.as_mut_ptr().cast(), rest.len(), (at + done as u64) as libc::off_t) };
            done += moved(read)?;
        }
        Ok(buf)
    }

    /// Answers a read with its data, and waits for the next request like [`UblkSlot::answer`].
    pub async fn answer_read(&mut self, data: Buf) -> Option<UblkRequest> {
        let success = self.request.take().map_or(0, |request| request.success());
        if !self.queue.device.copies_itself() {
            let address = data.as_ptr() as u64;
            return self
                .next(abi::COMMIT_AND_FETCH_REQ, success, address, Payload::Drain(smallvec![data], Vec::new()))
                .await;
        }
        let result = match self.copy_out(&data) {
            Ok(()) => success,
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        drop(data);
        self.next(abi::COMMIT_AND_FETCH_REQ, result, 0, Payload::None).await
    }

    fn copy_out(&self, data: &[u8]) -> io::Result<()> {
        let at = abi::data_offset(self.queue.index, self.tag);
        let mut done = 0;
        while done < data.len() {
            let rest = &data[done..];
            let fd = self.queue.fd();
            // SAFETY: the range is that of the slice.
            let written =
                unsafe { libc::pwrite(fd, rest.as_ptr().cast(), rest.len(), (at + done as u64) as libc::off_t) };
            done += moved(written)?;
        }
        Ok(())
    }

    /// Answers the request in the slot, with an errno if it failed, and waits for the next. `None`
    /// if the device is being stopped. A read that succeeded is answered by
    /// [`UblkSlot::answer_read`].
    pub async fn answer(&mut self, result: Result<(), i32>) -> Option<UblkRequest> {
        let request = self.request.take();
        let result = match result {
            Ok(()) => request.map_or(0, |request| request.success()),
            Err(errno) => -errno,
        };
        // If the commands copy, the driver needs an address with every answer to a read, even if
        // the read failed.
        let is_read = matches!(request, Some(UblkRequest { operation: UblkOperation::Read, .. }));
        if is_read && !self.queue.device.copies_itself() {
            let nothing = Buf::zeroes(request.map_or(0, |request| request.len as usize));
            let address = nothing.as_ptr() as u64;
            return self
                .next(abi::COMMIT_AND_FETCH_REQ, result, address, Payload::Drain(smallvec![nothing], Vec::new()))
                .await;
        }
        self.next(abi::COMMIT_AND_FETCH_REQ, result, 0, Payload::None).await
    }

    /// Runs a command after which the slot waits for a request.
    async fn next(&mut self, operation: u32, result: i32, address: u64, payload: Payload) -> Option<UblkRequest> {
        let (result, _) = self.command(operation, result, address, payload).await;
        if !matches!(result, abi::IO_RES_OK | abi::IO_RES_NEED_GET_DATA) {
            if result != -libc::ENODEV {
                let error = io::Error::from_raw_os_error(-result);
                tracing::error!(device = self.queue.device.number(), queue = self.queue.index, %error, "ublk slot lost");
            }
            return None;
        }
        let request = UblkRequest::of(&self.queue.descriptors.get(self.tag));
        self.request = Some(request);
        Some(request)
    }

    async fn command(&self, operation: u32, result: i32, address: u64, payload: Payload) -> (i32, Payload) {
        let queue = &*self.queue;
        let command = IoCommand { queue: queue.index, tag: self.tag, result, address };
        let fd = types::Fd(queue.fd());
        let entry = opcode::UringCmd16::new(fd, operation).cmd(command.bytes()).build();
        // SAFETY: the address is that of the payload's memory, which lives until the command is
        // complete.
        let outcome = unsafe { queue.env.shard().start_lingering(entry, payload) }.await;
        (outcome.result, outcome.payload)
    }
}

/// The number of bytes that a transfer moved.
fn moved(result: isize) -> io::Result<usize> {
    match result {
        // The request is shorter than described: the kernel has given it up.
        0 => Err(io::Error::from_raw_os_error(libc::EIO)),
        1.. => Ok(result as usize),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            error => Err(error),
        },
    }
}

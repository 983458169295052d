//! A namespace as a block device.

use std::cell::Cell;
use std::rc::Rc;

use drive::{Buf, BufMut, Drive, DriveError, DriveInfo, Segments, join_all, race};
use nvme::host::{Blocks, NamespaceInfo, Survey, io};

use crate::change_notifications::ChangeNotifications;
use crate::controller::{Controller, Purpose};
use crate::identity::Identity;
use crate::io::Op;
use crate::known::Known;
use crate::network::{Address, Network};
use crate::path::{Checked, Path, PathStatus, Shared, access, look};
use crate::termination::Termination;
use crate::{ConnectError, IoError, Lost, Options};

/// Most namespaces of a subsystem that are listed to choose one.
const NAMESPACES_MAX: usize = 1024;

/// Most bytes that one command deallocates or zeroes, so that it does not reach the time limit of a
/// command.
const RANGE_BYTES_MAX: u64 = 128 << 20;

/// The choice of a namespace in a subsystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// The only one that this host may use.
    Only,
    /// The one with this NSID.
    Number(u32),
}

/// A block device of a subsystem. It is a handle; when the last one is dropped, its connections are
/// closed.
///
/// Offsets and lengths are in bytes and multiples of the block size. Requests can have any length:
/// they are split to the limits of the controller, and the parts of a request are in flight
/// together.
pub struct Namespace<N: Network> {
    inner: Rc<NamespaceState<N>>,
}

pub(crate) struct NamespaceState<N: Network> {
    pub env: N,
    pub paths: Vec<Rc<Path<N>>>,
    pub shared: Rc<Shared>,
    /// Index of the path where the last search for a path began.
    pub turn: Cell<usize>,
    known: Known,
}

impl<N: Network> Clone for Namespace<N> {
    fn clone(&self) -> Self {
        Namespace { inner: self.inner.clone() }
    }
}

impl<N: Network> Namespace<N> {
    /// Connects to a namespace through the first of `addresses` that works. The others are then
    /// connected in the background. All must be addresses of the same subsystem.
    ///
    /// # Errors
    /// [`ConnectError`] of the first address, if none works.
    ///
    /// # Panics
    /// If there are no addresses.
    pub async fn connect(
        env: &N,
        addresses: &[Address],
        selection: Selection,
        options: Options,
    ) -> Result<Namespace<N>, ConnectError> {
        assert!(!addresses.is_empty(), "a namespace is somewhere");
        let mut first_error = None;
        for (index, address) in addresses.iter().enumerate() {
            match Namespace::begin(env, address, selection, &options).await {
                Ok(found) => {
                    let about = found.controller.established().info.clone();
                    let most = transfer_bytes_max(found.controller.transfer_bytes_max(), found.info.block_bytes);
                    let known = Known::new(addresses, index, options, found.info.clone(), about, most);
                    return Ok(Namespace::over(env, known, Some((index, found))));
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.expect("every address failed"))
    }

    /// Finds the namespace at one address.
    async fn begin(
        env: &N,
        address: &Address,
        selection: Selection,
        options: &Options,
    ) -> Result<Checked<N>, ConnectError> {
        let controller = Controller::open(env, address, options, Purpose::Io).await?;
        let found = async {
            let nsid = match selection {
                Selection::Number(nsid) => nsid,
                Selection::Only => {
                    let nsids: Vec<u32> =
                        controller.lead(Survey::new(NAMESPACES_MAX)).await?.into_iter().map(|(nsid, _)| nsid).collect();
                    match nsids[..] {
                        [nsid] => nsid,
                        _ => return Err(ConnectError::Choose { address: address.clone(), nsids }),
                    }
                }
            };
            let info = look(&controller, nsid).await?;
            if !matches!(info.block_bytes, 512 | 4096) {
                let what = format!("namespace {nsid} has blocks of {} bytes, not 512 or 4096", info.block_bytes);
                return Err(ConnectError::Unfit { address: address.clone(), what });
            }
            let access = access(&controller, info.access_group).await?;
            Ok((info, access))
        };
        let found = found.await;
        match found {
            Ok((info, access)) => Ok(Checked { controller, info, access }),
            Err(error) => {
                controller.shutdown().await;
                Err(error)
            }
        }
    }

    /// Connects again to a known namespace, from any thread. Requests wait until there is a path,
    /// or until there was none for longer than [`Options::loss_timeout`].
    pub fn attach(env: &N, known: &Known) -> Namespace<N> {
        Namespace::over(env, known.clone(), None)
    }

    /// `found` has the index of the path that is already connected.
    fn over(env: &N, known: Known, mut found: Option<(usize, Checked<N>)>) -> Namespace<N> {
        let shared = Rc::new(Shared {
            nsid: known.info.nsid,
            identity: Identity::new(&known.info, &known.about.serial),
            blocks: Cell::new(known.info.blocks),
            read_only: Cell::new(known.info.read_only),
            transfer_bytes_max: known.transfer_bytes_max,
            changes: ChangeNotifications::default(),
            end: Termination::default(),
            options: known.options.clone(),
        });
        let paths: Vec<_> = known.addresses.iter().map(|address| Path::new(env, address, &shared)).collect();
        for (index, path) in paths.iter().enumerate() {
            let first = found.take_if(|(first, _)| *first == index).map(|(_, found)| found);
            env.spawn(path.clone().run(first));
        }
        let inner = NamespaceState { env: env.clone(), paths, shared, turn: Cell::new(0), known };
        Namespace { inner: Rc::new(inner) }
    }

    /// The data that are needed to connect to it again.
    pub fn known(&self) -> &Known {
        &self.inner.known
    }

    /// Its properties at the first connect. Its size may have changed since:
    /// [`Namespace::size_bytes`].
    pub fn info(&self) -> &NamespaceInfo {
        &self.inner.known.info
    }

    /// Its current size.
    pub fn size_bytes(&self) -> u64 {
        self.inner.shared.blocks.get() * u64::from(self.inner.known.info.block_bytes)
    }

    /// Whether it is write protected at present.
    pub fn is_read_only(&self) -> bool {
        self.inner.shared.read_only.get()
    }

    /// Whether ranges can be deallocated.
    pub fn has_deallocate(&self) -> bool {
        self.inner.known.about.has_dataset_management()
    }

    /// The state of its paths.
    pub fn paths(&self) -> Vec<PathStatus> {
        self.inner.paths.iter().map(|path| path.status()).collect()
    }

    /// Whether no path could be connected for longer than [`Options::loss_timeout`], or the
    /// namespace was closed.
    pub fn is_lost(&self) -> bool {
        let NamespaceState { paths, shared, .. } = &*self.inner;
        shared.end.is_sealed() || paths.iter().all(|path| path.is_lost())
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.inner.shared.end.is_sealed()
    }

    /// Returns when [`Namespace::is_lost`] equals `lost`, or the namespace was closed.
    pub async fn until(&self, lost: bool) {
        let end = &self.inner.shared.end;
        loop {
            let change = self.inner.shared.changes.next();
            if end.is_sealed() || self.is_lost() == lost {
                return;
            }
            // The end of the namespace sends no change notification, so wait for both.
            let _ = race(change, end.ended()).await;
        }
    }

    /// Disconnects properly. Requests in flight, and later ones, fail with [`IoError::Gone`].
    /// Returns when the target can execute no more of the sent commands: at once if the target
    /// answers, and otherwise when its keep alive timers have expired.
    pub async fn close(&self) {
        let controllers: Vec<_> = self.inner.paths.iter().flat_map(|path| path.used()).collect();
        self.inner.shared.end.end(Lost::Disconnected);
        join_all(controllers.iter().map(async |controller| {
            if !controller.shutdown().await {
                controller.settled().await;
            }
        }))
        .await;
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let (block, size) = (self.inner.known.info.block_bytes, self.size_bytes());
        if (offset | len) & (u64::from(block) - 1) != 0 {
            return Err(IoError::Misaligned { offset, len, block });
        }
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(IoError::OutOfRange { offset, len, size }),
        }
    }

    /// The blocks of a range that was checked and fits in one command.
    fn blocks(&self, offset: u64, len: u64) -> Blocks {
        let block = u64::from(self.inner.known.info.block_bytes);
        Blocks { nsid: self.inner.known.info.nsid, first: offset / block, count: (len / block) as u32 }
    }

    /// Fills `buf` from `offset` on and returns it.
    ///
    /// # Errors
    /// [`IoError`], as for the other operations.
    pub async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, IoError> {
        let len = buf.len();
        self.check(offset, len as u64)?;
        let most = self.inner.shared.transfer_bytes_max as usize;
        if len <= most {
            return self.read_piece(offset, buf).await;
        }
        let (mut pieces, mut rest) = (Vec::with_capacity(len.div_ceil(most)), buf);
        while !rest.is_empty() {
            let behind = rest.split_off(most.min(rest.len()));
            pieces.push(rest);
            rest = behind;
        }
        let reads = pieces.into_iter().enumerate();
        let reads = reads.map(|(index, piece)| self.read_piece(offset + (index * most) as u64, piece));
        let pieces: Vec<BufMut> = join_all(reads).await.into_iter().collect::<Result<_, _>>()?;
        Ok(joined(pieces, len))
    }

    async fn read_piece(&self, offset: u64, buf: BufMut) -> Result<BufMut, IoError> {
        if buf.is_empty() {
            return Ok(buf);
        }
        let op = Op::Read { blocks: self.blocks(offset, buf.len() as u64), len: buf.len() as u32 };
        let buf = self.inner.perform(&op, Some(buf)).await?;
        Ok(buf.expect("a read brings its buffer back"))
    }

    /// Writes `data` at `offset`. With `fua` it is durable when the call returns.
    pub async fn write(&self, offset: u64, data: Segments, fua: bool) -> Result<(), IoError> {
        self.in_pieces(offset, data, |blocks, len, data| Op::Write { blocks, len, data, fua }).await
    }

    /// Compares `data` with the content at `offset`. Fails with [`IoError::Differs`] if they
    /// differ.
    pub async fn compare(&self, offset: u64, data: Segments) -> Result<(), IoError> {
        if !self.inner.known.about.has_compare() {
            return Err(IoError::Unsupported("Compare"));
        }
        self.in_pieces(offset, data, |blocks, len, data| Op::Compare { blocks, len, data }).await
    }

    async fn in_pieces(
        &self,
        offset: u64,
        data: Segments,
        op: impl Fn(Blocks, u32, Segments) -> Op,
    ) -> Result<(), IoError> {
        let len: usize = data.iter().map(|segment| segment.len()).sum();
        self.check(offset, len as u64)?;
        let most = self.inner.shared.transfer_bytes_max as usize;
        let piece = |at: usize, part: Segments| {
            let len = most.min(len - at);
            op(self.blocks(offset + at as u64, len as u64), len as u32, part)
        };
        match len {
            0 => return Ok(()),
            _ if len <= most => return self.inner.perform(&piece(0, data), None).await.map(drop),
            _ => {}
        }
        let ops: Vec<Op> = (0..len).step_by(most).map(|at| piece(at, part(&data, at, most.min(len - at)))).collect();
        let done = join_all(ops.iter().map(|op| self.inner.perform(op, None))).await;
        done.into_iter().try_for_each(|done| done.map(drop))
    }

    /// Makes a range read as zeroes. With `deallocate` the space may be released.
    pub async fn write_zeroes(&self, offset: u64, len: u64, fua: bool, deallocate: bool) -> Result<(), IoError> {
        self.check(offset, len)?;
        let has_write_zeroes = self.inner.known.about.has_write_zeroes();
        let most = if has_write_zeroes { self.range_bytes_max() } else { self.inner.shared.transfer_bytes_max };
        let mut at = offset;
        while at < offset + len {
            let len = most.min(offset + len - at);
            if has_write_zeroes {
                let op = Op::WriteZeroes { blocks: self.blocks(at, len), fua, deallocate };
                self.inner.perform(&op, None).await?;
            } else {
                self.write(at, Segments::from_iter([Buf::zeroes(len as usize)]), fua).await?;
            }
            at += len;
        }
        Ok(())
    }

    /// Tells the controller that the content of a range is not needed any more. Afterwards the
    /// content is undefined, or zeroes if [`NamespaceInfo::deallocated_reads_zeroes`] is set. Does
    /// nothing if the controller does not support Dataset Management.
    pub async fn deallocate(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.check(offset, len)?;
        if !self.has_deallocate() {
            return Ok(());
        }
        let mut at = offset;
        while at < offset + len {
            let len = self.range_bytes_max().min(offset + len - at);
            let Blocks { nsid, first, count } = self.blocks(at, len);
            self.inner.perform(&Op::Deallocate { nsid, first, count }, None).await?;
            at += len;
        }
        Ok(())
    }

    /// Makes every write that was answered before this call durable.
    pub async fn flush(&self) -> Result<(), IoError> {
        if !self.inner.known.about.has_write_cache {
            return Ok(());
        }
        self.inner.perform(&Op::Flush { nsid: self.inner.known.info.nsid }, None).await.map(drop)
    }

    fn range_bytes_max(&self) -> u64 {
        RANGE_BYTES_MAX.min(u64::from(io::BLOCKS_MAX) * u64::from(self.inner.known.info.block_bytes))
    }
}

impl<N: Network> Drop for NamespaceState<N> {
    fn drop(&mut self) {
        self.shared.end.end(Lost::Disconnected);
        for path in &self.paths {
            if let Some((controller, _)) = path.live() {
                controller.give_up(Lost::Disconnected);
            }
        }
    }
}

/// Most data of one command, in whole blocks.
fn transfer_bytes_max(controllers: u64, block_bytes: u32) -> u64 {
    let block = u64::from(block_bytes);
    (controllers / block).clamp(1, io::BLOCKS_MAX.into()) * block
}

/// `len` bytes of `data`, beginning at `at`.
fn part(data: &[Buf], at: usize, len: usize) -> Segments {
    let (mut skip, mut left, mut part) = (at, len, Segments::new());
    for segment in data {
        if skip >= segment.len() {
            skip -= segment.len();
            continue;
        }
        if left == 0 {
            break;
        }
        let slice = segment.slice(skip..segment.len().min(skip + left));
        (skip, left) = (0, left - slice.len());
        part.push(slice);
    }
    part
}

/// Joins pieces of a buffer. If a connection kept one of them, all are copied.
fn joined(pieces: Vec<BufMut>, len: usize) -> BufMut {
    let mut pieces = pieces.into_iter();
    let mut whole = pieces.next().expect("there is a piece");
    while let Some(piece) = pieces.next() {
        if let Err(piece) = whole.unsplit(piece) {
            let mut copy = BufMut::zeroed(len);
            let mut at = 0;
            for part in [whole, piece].into_iter().chain(pieces) {
                copy[at..at + part.len()].copy_from_slice(&part);
                at += part.len();
            }
            return copy;
        }
    }
    whole
}

/// As a drive, every answered write is durable: writes have FUA if the controller has a cache.
/// Otherwise a target could lose its cache, come back, and answer a later flush, although that
/// flush does not cover the earlier writes. This host could not detect that.
impl<N: Network> Drive for Namespace<N> {
    fn info(&self) -> &DriveInfo {
        &self.inner.known.drive
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, DriveError> {
        let len = buf.len() as u64;
        Namespace::read(self, offset, buf).await.map_err(|error| error.as_drive_error(offset, len))
    }

    async fn write(&self, offset: u64, data: Segments, fua: bool) -> Result<(), DriveError> {
        let len = data.iter().map(|segment| segment.len() as u64).sum();
        Namespace::write(self, offset, data, fua || self.inner.known.about.has_write_cache)
            .await
            .map_err(|error| error.as_drive_error(offset, len))
    }

    async fn flush(&self) -> Result<(), DriveError> {
        Ok(())
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        self.deallocate(offset, len).await.map_err(|error| error.as_drive_error(offset, len))
    }

    async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        let done = Namespace::write_zeroes(self, offset, len, self.inner.known.about.has_write_cache, true).await;
        done.map_err(|error| error.as_drive_error(offset, len))
    }
}

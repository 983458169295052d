//! An initialized connection: NVMe/TCP Transport 1.0, clause 3.2.1.

use std::rc::Rc;

use drive::{BufMut, Input, Segments};
use nvme::tcp::{HostLimits, HostReceiver, HostStep};
use smallvec::smallvec;

use crate::network::{Address, Network};
use crate::options::Options;
use crate::wire::{Unsecured, WireReader, WireWriter, plain, secure};
use crate::{ConnectError, Lost};

/// Bytes of input that are received at once. Longer data are received directly into their buffer.
const INPUT_BYTES: usize = 64 << 10;

/// The connection with which a queue starts.
pub(crate) struct Connection<N: Network> {
    pub reader: WireReader<N>,
    pub writer: WireWriter<N>,
    pub machine: HostReceiver,
    pub input: Input,
}

impl<N: Network> Connection<N> {
    /// Connects, encrypts if there is a key, and initializes.
    pub async fn open(
        env: &N,
        address: &Rc<Address>,
        options: &Options,
        limits: HostLimits,
    ) -> Result<Connection<N>, ConnectError> {
        let (mut reader, mut writer) = wires(env, address, options).await?;
        let mut machine = HostReceiver::new(limits);
        let mut input = Input::new(env.alloc(INPUT_BYTES));
        let initialized = async {
            let request = BufMut::copy_of(&machine.request()).freeze();
            writer.send(smallvec![request] as Segments).await.map_err(|error| Lost::failed(&error))?;
            loop {
                let (taken, step) = machine.step(input.bytes());
                input.take(taken);
                match step {
                    HostStep::Initialized(_) => return Ok(()),
                    HostStep::NeedMore => receive(&mut reader, &mut input).await?,
                    HostStep::Close(violation) => return Err(Lost::Violation(violation)),
                    other => unreachable!("{other:?} before the connection is initialized"),
                }
            }
        };
        match initialized.await {
            Ok(()) => Ok(Connection { reader, writer, machine, input }),
            Err(reason) => Err(ConnectError::NotNvme { address: (**address).clone(), reason }),
        }
    }
}

/// Receives the next bytes.
pub(crate) async fn receive<N: Network>(reader: &mut WireReader<N>, input: &mut Input) -> Result<(), Lost> {
    let (buf, free) = input.lend();
    let (received, buf) = reader.recv(buf, free).await;
    match received {
        Ok(0) => Err(Lost::Closed),
        Ok(len) => {
            input.give_back(buf, len);
            Ok(())
        }
        Err(error) => Err(Lost::failed(&error)),
    }
}

/// Connects, and encrypts if there is a key: first with all identities of the key, then with each
/// of the others alone. Linux's tlshd refuses a host that first offers an identity that it does not
/// know, and it may know the key only as an old libnvme derived it.
async fn wires<N: Network>(
    env: &N,
    address: &Rc<Address>,
    options: &Options,
) -> Result<(WireReader<N>, WireWriter<N>), ConnectError> {
    let unreachable = |source| ConnectError::Unreachable { address: (**address).clone(), source };
    let (mut reader, mut writer) = env.connect(address).await.map_err(unreachable)?;
    let Some(key) = &options.tls else { return Ok(plain(env, reader, writer)) };
    let insecure = |reason| ConnectError::Tls { address: (**address).clone(), reason };
    let psks = key.offered(&options.host.nqn, &options.subsystem);
    let mut offered = &psks[..];
    let mut others = psks[1..].chunks(1);
    let mut first = None;
    loop {
        let refused = match secure(env, reader, writer, offered).await {
            Ok(secured) => return Ok(secured),
            Err(Unsecured::Failed(reason)) => return Err(insecure(reason)),
            Err(Unsecured::Refused(reason)) => first.get_or_insert(reason),
        };
        match others.next() {
            Some(other) => offered = other,
            None => return Err(insecure(refused.clone())),
        }
        (reader, writer) = env.connect(address).await.map_err(unreachable)?;
    }
}

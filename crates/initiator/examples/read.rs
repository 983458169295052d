//! Reads the first block of a namespace of another machine and prints it.
//!
//! ```text
//! cargo run --release -p initiator --example read --features tokio -- \
//!     10.0.0.5:4420 nqn.2014-08.org.nvmexpress:uuid:... [NSID]
//! ```

use std::error::Error;

use drive::BufMut;
use initiator::tokio::TokioNetwork;
use initiator::{Address, Namespace, Options, Selection, this_host};
use nvme::Nqn;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (address, subsystem, number) = match &arguments[..] {
        [address, subsystem] => (address, subsystem, None),
        [address, subsystem, number] => (address, subsystem, Some(number.parse()?)),
        _ => return Err("usage: read ADDRESS SUBSYSTEM [NSID]".into()),
    };
    let (address, subsystem): (Address, Nqn) = (address.parse()?, subsystem.parse()?);
    let selection = number.map_or(Selection::Only, Selection::Number);
    let tokio = ::tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // The connections are tasks of this thread.
    ::tokio::task::LocalSet::new().block_on(&tokio, print_first_block(address, subsystem, selection))
}

async fn print_first_block(address: Address, subsystem: Nqn, selection: Selection) -> Result<(), Box<dyn Error>> {
    // `/etc/nvme/hostnqn` and `/etc/nvme/hostid` name this host, as they do for nvme-cli.
    let options = Options::new(this_host(None, None, None)?, subsystem);
    let namespace = Namespace::connect(&TokioNetwork::new(), &[address], selection, options).await?;
    let info = namespace.info();
    println!("{} bytes in blocks of {}", namespace.size_bytes(), info.block_bytes);
    let block = namespace.read(0, BufMut::zeroed(info.block_bytes as usize)).await?;
    for (row, bytes) in block.chunks(16).enumerate() {
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{:08x}  {}", row * 16, hex.join(" "));
    }
    namespace.close().await;
    Ok(())
}

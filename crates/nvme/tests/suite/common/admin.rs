//! A controller and the commands of its admin queue.

use nvme::target::{Answer, Controller, Effect, Kind};
use nvme::{Command, FABRICS, Status, admin, fabrics};

use super::view::{Memory, host};

pub const CAPSULE_DATA_BYTES: u32 = 8192;

/// A controller that was just connected to.
pub fn connected(kind: Kind) -> Controller {
    Controller::new(kind, 5, host(), 5000, CAPSULE_DATA_BYTES)
}

/// A controller that works.
pub fn enabled(kind: Kind) -> Controller {
    let mut controller = connected(kind);
    assert_eq!(set(&mut controller, 0x14, 0x0046_0001), (Answer::Done(Status::SUCCESS, 0), Effect::None));
    controller
}

/// Executes a command without data.
pub fn execute(controller: &mut Controller, command: &Command) -> Answer {
    controller.execute(command, &[], &Memory::new()).0
}

/// Property Get.
pub fn get(controller: &mut Controller, offset: u32, eight: bool) -> Answer {
    let mut command = Command::new(FABRICS, 1, u32::from(fabrics::PROPERTY_GET));
    command.set_cdw(10, u32::from(eight));
    command.set_cdw(11, offset);
    execute(controller, &command)
}

/// Property Set of four bytes.
pub fn set(controller: &mut Controller, offset: u32, value: u32) -> (Answer, Effect) {
    let mut command = Command::new(FABRICS, 1, u32::from(fabrics::PROPERTY_SET));
    command.set_cdw(11, offset);
    command.set_cdw(12, value);
    controller.execute(&command, &[], &Memory::new())
}

/// Identify.
pub fn identify(controller: &mut Controller, cns: u8, nsid: u32) -> Result<Vec<u8>, Status> {
    let mut command = Command::new(admin::IDENTIFY, 1, nsid);
    command.set_cdw(10, cns.into());
    data(execute(controller, &command))
}

/// Get Log Page: the command.
pub fn log(page: u8, offset: u64, len: u32) -> Command {
    let mut command = Command::new(admin::GET_LOG_PAGE, 1, 0xFFFF_FFFF);
    let dwords = len / 4 - 1;
    command.set_cdw(10, u32::from(page) | dwords << 16);
    command.set_cdw(11, dwords >> 16);
    command.set_cdw(12, offset as u32);
    command.set_cdw(13, (offset >> 32) as u32);
    command
}

/// Get Features, Set Features.
pub fn feature(controller: &mut Controller, opcode: u8, dword10: u32, dword11: u32) -> Answer {
    let mut command = Command::new(opcode, 1, 0);
    command.set_cdw(10, dword10);
    command.set_cdw(11, dword11);
    execute(controller, &command)
}

/// The data of an answer.
pub fn data(answer: Answer) -> Result<Vec<u8>, Status> {
    match answer {
        Answer::Data(data, 0) => Ok(data),
        Answer::Done(status, 0) => Err(status),
        answer => panic!("{answer:?}"),
    }
}

pub fn failed(status: Status) -> Answer {
    Answer::Done(status, 0)
}

pub fn done(result: u64) -> Answer {
    Answer::Done(Status::SUCCESS, result)
}

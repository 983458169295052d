//! The fields of a Connect command, and the reasons to refuse it.

use crate::common::view::{HOST, SUBSYSTEM, host, subsystem};
use nvme::fabrics_data::{ANY_CONTROLLER, Connect, ConnectData};
use nvme::target::{Admission, Kind, QUEUE_ENTRIES_MAX, QUEUES_MAX, Refused};
use nvme::{DISCOVERY_NQN, Nqn, Status};
use zerocopy::{FromZeros, IntoBytes};

const ADMIN: Connect = Connect { format: 0, queue: 0, size: 31, no_flow_control: true, keep_alive_ms: 5000 };

fn data() -> ConnectData {
    let mut data = ConnectData::new_zeroed();
    data.host_id = [0xAB; 16];
    data.cntlid = ANY_CONTROLLER.into();
    data.subnqn = subsystem().field();
    data.hostnqn = host().nqn.field();
    data
}

fn refused(connect: Connect, data: &ConnectData) -> Option<Refused> {
    Admission::of(&connect.command(1), data.as_bytes()).err()
}

#[test]
fn the_command_and_its_data_have_the_bytes_of_the_specification() {
    let connect = Connect { format: 0, queue: 0x0102, size: 0x0304, no_flow_control: true, keep_alive_ms: 0x0506_0708 };
    let bytes = connect.command(0x1122).as_bytes().to_vec();
    let mut expected = vec![0x7F, 0x40, 0x22, 0x11, 0x01];
    expected.resize(32, 0);
    // SGL: 1024 bytes from the start of the capsule's data.
    expected.extend([0x00, 0x04, 0, 0, 0, 0, 0, 0x01]);
    // RECFMT, QID, SQSIZE, CATTR, KATO.
    expected.extend([0, 0, 0x02, 0x01, 0x04, 0x03, 0x04, 0, 0x08, 0x07, 0x06, 0x05]);
    expected.resize(64, 0);
    assert_eq!(bytes, expected);
    assert_eq!(Connect::of(&connect.command(1)), connect);

    let data = data();
    let bytes = data.as_bytes();
    assert_eq!((bytes.len(), &bytes[..18]), (1024, &[&[0xAB; 16][..], &[0xFF, 0xFF]].concat()[..]));
    assert!(bytes[256..].starts_with(SUBSYSTEM.as_bytes()));
    assert!(bytes[512..].starts_with(HOST.as_bytes()));
}

#[test]
fn a_queue_is_admitted_as_it_asks() {
    let admission = Admission::of(&ADMIN.command(1), data().as_bytes()).expect("admitted");
    let expected = Admission { connect: ADMIN, host: host(), subsystem: subsystem(), cntlid: ANY_CONTROLLER };
    assert_eq!((admission.kind(), admission), (Kind::Io, expected));

    let mut discovery = data();
    discovery.subnqn = DISCOVERY_NQN.parse::<Nqn>().expect("a name").field();
    let admission = Admission::of(&ADMIN.command(1), discovery.as_bytes()).expect("admitted");
    assert_eq!(admission.kind(), Kind::Discovery);

    let mut io = data();
    io.cntlid = 5.into();
    for (queue, size) in [(1, QUEUE_ENTRIES_MAX - 1), (QUEUES_MAX, 1)] {
        let admission = Admission::of(&Connect { queue, size, ..ADMIN }.command(1), io.as_bytes()).expect("admitted");
        assert_eq!(admission.cntlid, 5);
    }
}

#[test]
fn a_host_that_does_not_say_its_name_is_named_by_its_identifier() {
    let mut nameless = data();
    nameless.hostnqn = [0; 256];
    let admission = Admission::of(&ADMIN.command(1), nameless.as_bytes()).expect("admitted");
    assert_eq!(admission.host.nqn, Nqn::of_uuid(&[0xAB; 16]));
    assert_eq!(admission.host.id, [0xAB; 16]);
    nameless.host_id = [0; 16];
    let nobody = Some(Refused(Status::CONNECT_INVALID_PARAMETERS, 512 | 1 << 16));
    assert_eq!(refused(ADMIN, &nameless), nobody);
}

#[test]
fn what_is_wrong_is_refused_with_its_place() {
    // Base 2.0, figure 387: the offset in bits 15:0; bit 16 says that it is in the data.
    let in_command = |offset: u64| Some(Refused(Status::CONNECT_INVALID_PARAMETERS, offset));
    let in_data = |offset: u64| Some(Refused(Status::CONNECT_INVALID_PARAMETERS, offset | 1 << 16));
    let format = Some(Refused(Status::CONNECT_INCOMPATIBLE_FORMAT, 0));
    assert_eq!(refused(Connect { format: 1, ..ADMIN }, &data()), format);
    assert_eq!(refused(Connect { size: 0, ..ADMIN }, &data()), in_command(44));
    assert_eq!(refused(Connect { size: QUEUE_ENTRIES_MAX, ..ADMIN }, &data()), in_command(44));
    assert_eq!(refused(Connect { queue: QUEUES_MAX + 1, ..ADMIN }, &data()), in_command(42));

    let changed = |change: fn(&mut ConnectData)| {
        let mut data = data();
        change(&mut data);
        refused(ADMIN, &data)
    };
    assert_eq!(changed(|data| data.cntlid = 1.into()), in_data(16));
    assert_eq!(changed(|data| data.subnqn[0] = b'x'), in_data(256));
    assert_eq!(changed(|data| data.subnqn = [b'a'; 256]), in_data(256));
    assert_eq!(changed(|data| data.hostnqn[0] = b'x'), in_data(512));
    assert_eq!(changed(|data| data.hostnqn[20] = 0xFF), in_data(512));

    let told = |refused: Option<Refused>| refused.expect("refused").to_string();
    assert_eq!(told(in_data(512)), "Connect Invalid Parameters: HOSTNQN");
    assert_eq!(told(in_command(44)), "Connect Invalid Parameters: SQSIZE");
    assert_eq!(told(format), "Connect Incompatible Format");

    let short = Admission::of(&ADMIN.command(1), &data().as_bytes()[..1023]);
    assert_eq!(short, Err(Refused(Status::DATA_SGL_LENGTH_INVALID, 0)));
}

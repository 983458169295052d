//! Namespaces of other machines as local block devices.

use api::{Import, ImportList};
use serde_json::{Value, json};

use crate::answers::answered;

const NQN: &str = "nqn.2026-11.com.example:target";

/// The import of docs/cli/json.md that is a namespace, with one more path.
fn disk() -> Value {
    let page = include_str!("../../../../docs/cli/json.md");
    let (_, example) = page.split_once("<!-- type: NvmeConnectionList -->\n```json\n").unwrap();
    let mut list: Value = serde_json::from_str(example.split("```").next().unwrap()).unwrap();
    list["devices"][0].take()
}

fn imports(all: &[&Value]) -> String {
    let list = json!({ "imports": all }).to_string();
    let _: ImportList = serde_json::from_str(&list).unwrap();
    list
}

fn changed(object: Value) -> String {
    json!({ "dry_run": false, "steps": ["it"], "warnings": [], "object": object }).to_string()
}

#[test]
fn a_namespace_that_is_a_block_device_is_listed_with_its_paths_and_disconnected() {
    let disk = disk();
    let import: Import = serde_json::from_value(disk.clone()).unwrap();
    let mut export = json!({
        "id": "disk-1", "volume": "disk/nvme", "protocol": "ublk", "address": "/dev/ublkb0", "uri": "/dev/purlin/disk/nvme",
        "read_only": false, "tls": null, "listening": true, "connection_count": 0, "tls_hosts": [],
    });
    for field in ["block_bytes", "atomic_bytes", "message", "nqn", "nsid", "ana", "hosts", "reservation"] {
        export[field] = Value::Null;
    }
    let made = changed(disk.clone());
    let said = answered(
        &format!("nvme connect 10.0.0.5 {NQN} --nsid 3 --ublk --name disk"),
        &[
            ("POST /v1/imports/nvme", 201, &made),
            ("POST /v1/exports", 201, &changed(export)),
            ("GET /v1/imports/disk", 200, &disk.to_string()),
        ],
    );
    assert_eq!(said.out, format!("namespace 3 of {NQN}, 10 GiB, is /dev/purlin/disk/nvme\n"), "{}", said.err);

    let list = imports(&[&disk]);
    let said = answered("nvme list", &[("GET /v1/imports", 200, &list)]);
    for path in import.namespace.unwrap().paths {
        assert!(said.out.contains(&format!("{} {}", path.address, path.state)), "{}", said.out);
    }
    assert!(said.out.contains("/dev/purlin/disk/nvme"), "{}", said.out);

    let said = answered(&format!("nvme disconnect {NQN} --nsid 4"), &[("GET /v1/imports", 200, &list)]);
    let none = "purlin: no such namespace is connected; `purlin nvme list` shows those that are\n";
    assert_eq!((said.code, said.err.as_str()), (1, none));
    let forgot = ("POST /v1/imports/disk/forget", 200, changed(Value::Null));
    let said = answered(
        &format!("nvme disconnect {NQN}"),
        &[("GET /v1/imports", 200, &list), (forgot.0, forgot.1, &forgot.2)],
    );
    let gone = format!("disconnected namespace 3 of {NQN}; /dev/purlin/disk/nvme is gone\n");
    assert_eq!((said.code, said.out), (0, gone));
}

#[test]
fn a_namespace_is_forgotten_where_it_cannot_become_a_device() {
    let refused = json!({ "error": { "code": "busy", "message": "the number 5 is taken" } }).to_string();
    let said = answered(
        &format!("nvme connect 10.0.0.5 {NQN} --nsid 3 --ublk --name disk --number 5"),
        &[
            ("POST /v1/imports/nvme", 201, &changed(disk())),
            ("POST /v1/exports", 409, &refused),
            ("POST /v1/imports/disk/forget", 200, &changed(Value::Null)),
        ],
    );
    assert_eq!((said.code, said.err.as_str()), (1, "purlin: the number 5 is taken\n"));
}

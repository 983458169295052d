//! The exact text of refusals, and that a refusal changes nothing.

use serde_json::{Value, json};

use crate::{call, empty, filled, send};

/// Code and message of a refusal, with the status in front.
async fn refuse(router: &axum::Router, method: &str, path: &str, body: Value) -> String {
    let (status, answer) = call(router, method, path, body).await;
    let error = &answer["error"];
    assert_eq!(answer.as_object().unwrap().len(), 1, "{answer}");
    format!("{} {}: {}", status.as_u16(), error["code"].as_str().unwrap(), error["message"].as_str().unwrap())
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let router = filled().await;
    for (method, path, sentence) in [
        ("GET", "/v1/groups/lake", "404 group_not_found: there is no group \"lake\""),
        ("GET", "/v1/volumes/tank/x", "404 volume_not_found: there is no volume \"tank/x\""),
        ("GET", "/v1/exports/9", "404 export_not_found: there is no export \"9\""),
        ("DELETE", "/v1/exports/9", "404 export_not_found: there is no export \"9\""),
        (
            "POST",
            "/v1/groups/tank/members/9/fail",
            "404 member_not_found: the group \"tank\" has no slot 9: its slots are 0 to 5",
        ),
        ("GET", "/v1/nothing", "404 no_route: there is no \"/v1/nothing\" here; see /openapi.json"),
        ("GET", "/", "404 no_route: there is no \"/\" here; see /openapi.json"),
        ("PUT", "/v1/groups", "405 method_not_allowed: \"/v1/groups\" does not take PUT; see /openapi.json"),
    ] {
        assert_eq!(refuse(&router, method, path, Value::Null).await, sentence);
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_the_rule() {
    let router = filled().await;
    let create = |change: Value| {
        let mut body = json!({"name": "new", "level": "raid6", "drives": ["/drives/a", "/drives/b", "/drives/c"]});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        body
    };
    for (path, body, sentence) in [
        ("/v1/groups", create(json!({})), "400 invalid: raid6 needs at least 4 members, not 3"),
        (
            "/v1/groups",
            create(json!({"level": "raid5", "strip_bytes": 5000})),
            "400 invalid: a strip is a power of two from 4 KiB to 1 MiB, not 5000 bytes",
        ),
        (
            "/v1/groups",
            create(json!({"level": "raid5", "strip_bytes": 1u64 << 40})),
            "400 invalid: the strip size 1099511627776 is far too large",
        ),
        ("/v1/groups", create(json!({"level": "nm", "parity": 300})), "400 invalid: the parity 300 is far too large"),
        (
            "/v1/groups",
            create(json!({"level": "raid9"})),
            "400 invalid: the level is not known here: choose one of raid0, raid1, raid10, raid5, raid6, raid7, nm, \
             raid50, raid60",
        ),
        (
            "/v1/groups",
            create(json!({"drives": ["/drives/a", "/drives/a"]})),
            "400 invalid: the drive \"/drives/a\" is named twice",
        ),
        (
            "/v1/volumes",
            json!({"group": "tank", "volume": "a", "size_bytes": 0}),
            "400 invalid: a volume of 0 bytes holds nothing: give it a size",
        ),
        (
            "/v1/exports",
            json!({"volume": "tank/db", "nbd": "unix:db.sock"}),
            "400 invalid: the socket path \"db.sock\" is relative: the daemon needs one that begins with '/'",
        ),
        (
            "/v1/upgrade",
            json!({"program": "purlind"}),
            "400 invalid: the path \"purlind\" is relative: the daemon needs one that begins with '/'",
        ),
        (
            "/v1/groups/tank/scrub",
            json!({}),
            "400 bad_request: the request is refused: missing field `action` at line 1 column 2",
        ),
        (
            "/v1/groups/tank/scrub",
            json!(["start"]),
            "400 bad_request: the request is refused: its body is an array, and has to be an object",
        ),
        (
            "/v1/groups/tank/members/x/fail",
            json!({}),
            "400 bad_request: the path is refused: Invalid URL: Cannot parse value at index 1 with value `x` to a `u32`",
        ),
    ] {
        assert_eq!(refuse(&router, "POST", path, body).await, sentence);
    }
    let (status, text) = send(&router, "POST", "/v1/groups", "{").await;
    assert_eq!(status, 400);
    assert!(text.contains("EOF while parsing an object at line 1 column 1"), "{text}");
}

#[tokio::test]
async fn what_is_in_the_way_is_named() {
    let router = filled().await;
    let drives = router.drives(&["a", "b", "c", "d"]);
    for (method, path, body, sentence) in [
        (
            "POST",
            "/v1/groups",
            json!({"name": "tank", "level": "raid6", "drives": drives}),
            "409 group_exists: there is a group \"tank\" already",
        ),
        (
            "POST",
            "/v1/groups",
            json!({"name": "new", "level": "raid0", "drives": router.drives(&["a", "0"])}),
            &format!("409 drive_in_use: {} is part of the group \"tank\" already", router.drive("0")),
        ),
        (
            "POST",
            "/v1/volumes",
            json!({"group": "tank", "volume": "db", "size_bytes": 4096}),
            "409 volume_exists: there is a volume \"tank/db\" already",
        ),
        (
            "POST",
            "/v1/volumes",
            json!({"group": "tank", "volume": "big", "size_bytes": 1u64 << 40}),
            "507 no_space: the volume \"tank/big\" needs 1 TiB, and the group \"tank\" has 189 MiB free",
        ),
        // Rounded up to whole blocks, the size exceeds the range of numbers.
        (
            "POST",
            "/v1/volumes",
            json!({"group": "tank", "volume": "big", "size_bytes": u64::MAX}),
            "507 no_space: the volume \"tank/big\" needs 16 EiB, and the group \"tank\" has 189 MiB free",
        ),
        (
            "PATCH",
            "/v1/volumes/tank/db",
            json!({"size_bytes": u64::MAX}),
            "507 no_space: the volume \"tank/db\" needs 16 EiB more, and the group \"tank\" has 189 MiB free",
        ),
        (
            "POST",
            "/v1/exports",
            json!({"volume": "tank/db", "nbd": router.socket()}),
            &format!("409 export_exists: the volume \"tank/db\" is exported at {} already", router.socket()),
        ),
        (
            "DELETE",
            "/v1/volumes/tank/db?confirm=tank%2Fdb",
            Value::Null,
            "409 busy: the volume \"tank/db\" is exported as tank-2: delete that first",
        ),
    ] {
        assert_eq!(refuse(&router, method, path, body).await, sentence);
    }
}

#[tokio::test]
async fn nothing_is_destroyed_without_its_name() {
    let router = filled().await;
    call(&router, "DELETE", "/v1/exports/tank-2", Value::Null).await;
    for (path, sentence) in [
        (
            "/v1/groups/tank",
            "400 confirmation_needed: this destroys the group \"tank\" and every volume in it: confirm it with the name \
             \"tank\"",
        ),
        (
            "/v1/groups/tank?confirm=lake",
            "400 confirmation_needed: this destroys the group \"tank\" and every volume in it: confirm it with the name \
             \"tank\"",
        ),
        (
            "/v1/volumes/tank/db?confirm=db",
            "400 confirmation_needed: this destroys the volume \"tank/db\" and all that is on it: confirm it with the \
             name \"tank/db\"",
        ),
    ] {
        assert_eq!(refuse(&router, "DELETE", path, Value::Null).await, sentence);
    }
    let shrink = json!({"size_bytes": 4096});
    assert_eq!(
        refuse(&router, "PATCH", "/v1/volumes/tank/db", shrink).await,
        "400 confirmation_needed: this destroys everything past 4 KiB of \"tank/db\": confirm it with the name \
         \"tank/db\""
    );
    assert_eq!(call(&router, "GET", "/v1/volumes/tank/db", Value::Null).await.1["size_bytes"], 64 << 20);

    let (status, _) = call(&router, "DELETE", "/v1/volumes/tank/db?confirm=tank%2Fdb", Value::Null).await;
    assert_eq!(status, 200);
    let (status, _) = call(&router, "DELETE", "/v1/groups/tank?confirm=tank", Value::Null).await;
    assert_eq!(status, 200);
    assert_eq!(call(&router, "GET", "/v1/groups", Value::Null).await.1, json!({ "groups": [], "not_started": [] }));
}

#[tokio::test]
async fn a_dry_run_says_the_steps_and_changes_nothing() {
    let router = filled().await;
    call(&router, "POST", "/v1/groups/tank/members/5/fail", json!({})).await;
    let before = call(&router, "GET", "/v1/groups", Value::Null).await.1;
    let spare = &router.drives(&["x"])[0];
    let drives = router.drives(&["a", "b", "c", "d"]);
    for (method, path, body) in [
        ("POST", "/v1/groups", json!({"name": "new", "level": "raid6", "drives": drives, "dry_run": true})),
        ("POST", "/v1/groups/tank/stop", json!({"dry_run": true})),
        ("POST", "/v1/groups/tank/members/0/fail", json!({"dry_run": true})),
        ("POST", "/v1/groups/tank/members/5/replace", json!({"with": spare, "dry_run": true})),
        ("POST", "/v1/groups/tank/spares", json!({"drive": spare, "dry_run": true})),
        ("POST", "/v1/volumes", json!({"group": "tank", "volume": "new", "size_bytes": 4096, "dry_run": true})),
        ("PATCH", "/v1/volumes/tank/db", json!({"size_bytes": 4096, "dry_run": true})),
        ("DELETE", "/v1/groups/tank?dry_run=true", Value::Null),
    ] {
        let (status, answer) = call(&router, method, path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        assert_eq!((&answer["dry_run"], &answer["object"]), (&json!(true), &Value::Null), "{path}");
        assert!(!answer["steps"].as_array().unwrap().is_empty(), "{path}");
    }
    assert_eq!(call(&router, "GET", "/v1/groups", Value::Null).await.1, before);
}

#[tokio::test]
async fn a_request_beyond_a_mebibyte_is_refused() {
    let body = format!("{{\"name\": \"{}\"}}", "x".repeat(1 << 20));
    let machine = empty().await;
    let (status, text) = send(&machine, "POST", "/v1/groups", &body).await;
    assert_eq!(status, 413);
    assert_eq!(text, r#"{"error":{"code":"too_large","message":"the request is larger than 1048576 bytes"}}"#);
}

#[tokio::test]
async fn a_refusal_that_quotes_control_characters_writes_them_out() {
    let machine = empty().await;
    let (status, answer) = call(&machine, "POST", "/v1/volumes", json!({"\u{1b}[2Jsize": 1})).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!(status, 400);
    assert!(message.contains("unknown field `\\u{1b}[2Jsize`"), "{message}");
}

#[tokio::test]
async fn a_volumes_size_is_rounded_up_to_whole_blocks_of_4_kib() {
    let router = filled().await;
    let new = |size_bytes: u64| json!({"group": "tank", "volume": "odd", "size_bytes": size_bytes});
    assert_eq!(call(&router, "POST", "/v1/volumes", new(10_000)).await.1["object"]["size_bytes"], 12_288);
    let sized = async |size_bytes: u64| {
        call(&router, "PATCH", "/v1/volumes/tank/odd", json!({ "size_bytes": size_bytes })).await
    };
    assert_eq!(sized(12_289).await.1["object"]["size_bytes"], 16_384);
    // The new size rounds up to the current size, so no data is lost.
    assert_eq!(sized(12_289).await.1["object"]["size_bytes"], 16_384);
    let (status, refused) = sized(12_288).await;
    assert_eq!((status.as_u16(), &refused["error"]["code"]), (400, &json!("confirmation_needed")));
    let group = call(&router, "GET", "/v1/groups/tank", Value::Null).await.1;
    assert_eq!(group["allocated_bytes"], (64 << 20) + 16_384);
}

#[tokio::test]
async fn a_path_that_cannot_be_created_is_refused_with_4xx_and_not_500() {
    let router = filled().await;
    let create = |drives: [String; 2]| json!({"name": "new", "level": "raid1", "drives": drives, "create_files_bytes": 64 << 20});
    let (one, file) = (router.bench.drive("one"), router.bench.drive("file"));
    std::fs::write(&file, "").unwrap();
    for (other, begin) in [
        (router.bench.drive("none/b"), "404 drive_not_found: cannot create "),
        (format!("{file}/b"), "400 invalid: cannot create "),
        (router.bench.drive(&"x".repeat(300)), "400 invalid: cannot create "),
    ] {
        let said = refuse(&router, "POST", "/v1/groups", create([one.clone(), other])).await;
        assert!(said.starts_with(begin), "{said}");
        assert!(!std::path::Path::new(&one).exists(), "a refused request changes nothing");
    }
}

#[tokio::test]
async fn the_uri_of_an_export_escapes_the_path_of_its_socket() {
    let router = filled().await;
    let socket = router.bench.drive("a b&c?d#e%f.sock");
    let body = json!({"volume": "tank/db", "nbd": format!("unix:{socket}")});
    let uri = call(&router, "POST", "/v1/exports", body).await.1["object"]["uri"].as_str().unwrap().to_owned();
    assert!(uri.starts_with("nbd+unix:///tank/db?socket=/"), "{uri}");
    assert!(uri.ends_with("/a%20b%26c%3Fd%23e%25f.sock"), "{uri}");
}

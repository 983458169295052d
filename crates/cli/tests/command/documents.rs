//! docs/cli/json.md describes the output of `--output json`: every field, and no other.

use api::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Daemon;

/// The examples of the page, with the type that the line above each names.
fn examples() -> Vec<(String, String)> {
    let page = include_str!("../../../../docs/cli/json.md");
    let mut examples = Vec::new();
    for part in page.split("<!-- type: ").skip(1) {
        let (name, rest) = part.split_once(" -->").expect("the mark ends on its line");
        let (_, rest) = rest.split_once("```json\n").expect("an example follows");
        let (example, _) = rest.split_once("```").expect("the example ends");
        examples.push((name.to_owned(), example.to_owned()));
    }
    examples
}

/// Parsed as the type and encoded again it is the same: no field is missing, and none is too much.
fn is_exactly<T: DeserializeOwned + Serialize>(example: &str) {
    let read: T = serde_json::from_str(example).unwrap_or_else(|e| panic!("{e} in {example}"));
    let shown: Value = serde_json::from_str(example).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), shown);
}

#[test]
fn the_examples_are_exactly_what_the_types_say() {
    let examples = examples();
    let names: Vec<&str> = examples.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "Status",
            "GroupList",
            "Scrub",
            "Scanned",
            "IoStats",
            "ImportList",
            "Imported",
            "DriveList",
            "DriveDetails",
            "VolumeList",
            "ExportList",
            "HostList",
            "Changed",
            "ReferralList",
            "Upgrade",
            "NvmeDiscovery",
            "NvmeServiceList",
            "NvmeConnectionList",
            "NvmeBench",
            "RescueList",
            "RescueCheck",
            "RescueExtract",
            "HostKey",
            "ErrorBody"
        ]
    );
    for (name, example) in &examples {
        match name.as_str() {
            "Status" => is_exactly::<Status>(example),
            "GroupList" => is_exactly::<GroupList>(example),
            "Scrub" => is_exactly::<Scrub>(example),
            "Scanned" => is_exactly::<Scanned>(example),
            "IoStats" => is_exactly::<cli::IoStats>(example),
            "ImportList" => is_exactly::<ImportList>(example),
            "Imported" => is_exactly::<Imported>(example),
            "DriveList" => is_exactly::<DriveList>(example),
            "DriveDetails" => is_exactly::<DriveDetails>(example),
            "VolumeList" => is_exactly::<VolumeList>(example),
            "ExportList" => is_exactly::<ExportList>(example),
            "HostList" => is_exactly::<HostList>(example),
            "Changed" => is_exactly::<Changed<Volume>>(example),
            "ReferralList" => is_exactly::<ReferralList>(example),
            "Upgrade" => is_exactly::<Upgrade>(example),
            "NvmeDiscovery" => is_exactly::<cli::nvme::reports::NvmeDiscovery>(example),
            "NvmeServiceList" => is_exactly::<cli::nvme::reports::NvmeServiceList>(example),
            "NvmeConnectionList" => is_exactly::<cli::nvme::reports::NvmeConnectionList>(example),
            "NvmeBench" => is_exactly::<cli::nvme::reports::NvmeBench>(example),
            "HostKey" => is_exactly::<cli::HostKey>(example),
            "RescueList" => is_exactly::<rescue::ListReport>(example),
            "RescueCheck" => is_exactly::<rescue::CheckReport>(example),
            "RescueExtract" => is_exactly::<rescue::ExtractReport>(example),
            "ErrorBody" => is_exactly::<ErrorBody>(example),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn json_is_what_the_daemon_says() {
    let daemon = Daemon::start();
    daemon.foreign("ext4");
    let json = |line: &str| daemon.ok(&format!("{line} --output json"));
    // These come before there is a group in memory, which would be lost.
    daemon.program("next");
    is_exactly::<Changed<Upgrade>>(&json("upgrade --program DIR/next --dry-run"));
    is_exactly::<Imported>(&json("group import-md --drives DIR/ext4 --dry-run"));
    is_exactly::<ImportList>(&json("import list"));
    daemon.fill();
    is_exactly::<Status>(&json("status"));
    is_exactly::<GroupList>(&json("group list"));
    is_exactly::<Group>(&json("group show tank"));
    is_exactly::<Scrub>(&json("group scrub tank --status"));
    is_exactly::<Scanned>(&json("group scan --drives DIR/ext4"));
    is_exactly::<cli::IoStats>(&json("iostat -v --every 10ms"));
    is_exactly::<DriveList>(&json("drive list"));
    is_exactly::<DriveDetails>(&json("drive show mem:0###"));
    is_exactly::<VolumeList>(&json("volume list"));
    is_exactly::<Volume>(&json("volume show tank/db"));
    is_exactly::<ExportList>(&json("export list"));
    is_exactly::<Export>(&json("export show tank-2"));
    let host = "nqn.2026-11.com.example:a";
    daemon.ok(&format!("export create tank/db --nvme-tcp HOST:4420 --host {host} --host nqn.2026-11.com.example:b"));
    is_exactly::<Changed<Volume>>(&json("volume limit tank/db --iops 5k"));
    is_exactly::<Changed<Export>>(&json(&format!("host limit {host} tank-3 --iops 5k")));
    daemon.empty_file("x");
    daemon.ok(&format!("drive share DIR/x --nvme-tcp HOST:4421 --host {host}"));
    is_exactly::<Changed<Share>>(&json("host allow nqn.2026-11.com.example:b share-1"));
    is_exactly::<Changed<Share>>(&json("host deny nqn.2026-11.com.example:b share-1"));
    is_exactly::<HostList>(&json("host list"));
    is_exactly::<Host>(&json(&format!("host show {host}")));
    is_exactly::<Changed<Volume>>(&json("volume create tank/a --size 1MiB"));
    is_exactly::<Changed<Volume>>(&json("volume resize tank/a --size 2MiB --dry-run"));
    is_exactly::<Changed<Group>>(&json("drive fail tank 1"));
    is_exactly::<Scrub>(&json("group scrub tank --status"));
    is_exactly::<Changed<Group>>(&json("group set tank --client-p99 5ms"));
    is_exactly::<Changed<Referral>>(&json("referral add 10.0.0.6:4420"));
    is_exactly::<ReferralList>(&json("referral list"));
    is_exactly::<Changed<Referral>>(&json("referral remove 10.0.0.6:4420"));
    is_exactly::<Changed<Export>>(&json("export delete tank-2"));
    let gone: Changed<Volume> = serde_json::from_str(&json("volume delete tank/a --yes")).unwrap();
    assert!(!gone.dry_run && gone.object.is_none() && !gone.steps.is_empty());
}

#[test]
fn completions_and_manual_pages_are_written_without_a_daemon() {
    let nowhere = "/nowhere/purlind.sock".as_ref();
    for (shell, sign) in [("bash", "_purlin()"), ("zsh", "#compdef purlin"), ("fish", "complete -c purlin")] {
        let said = crate::purlin(nowhere, &format!("completions {shell}"));
        assert_eq!((said.code, said.err.as_str()), (0, ""));
        assert!(said.out.contains(sign), "{shell}");
    }
    let folder = std::env::temp_dir().join(format!("purlin-man-{}", std::process::id()));
    let said = crate::purlin(nowhere, &format!("man {}", folder.display()));
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let mut pages: Vec<String> =
        std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    pages.sort();
    for page in
        ["purlin.1", "purlin-group-create.1", "purlin-drive-replace.1", "purlin-status.1", "purlin-rescue-extract.1"]
    {
        assert!(pages.iter().any(|p| p == page), "{page} in {pages:?}");
    }
    let page = std::fs::read_to_string(folder.join("purlin-group-create.1")).unwrap();
    assert!(page.contains("raid60"), "{page}");
    std::fs::remove_dir_all(&folder).unwrap();
}

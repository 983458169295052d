//! Imports as text.

use api::{Import, Imported, ImportedNamespace, MdArray, MdMember, format_bytes};
use comfy_table::Cell;

use crate::fit::{Column, table};
use crate::moment::minute;
use crate::table::{dash, health, pairs, size};

/// `purlin import list`.
pub fn imports(colour: bool, imports: &[Import]) -> String {
    if imports.is_empty() {
        return "no imports; make one with: purlin group import-md --drives DRIVE,... or purlin nvme connect --ublk\n"
            .to_owned();
    }
    let row = |import: &Import| {
        let array = import.array.as_ref();
        let there = |array: &MdArray| array.members.iter().filter(|member| member.drive.is_some()).count();
        vec![
            Cell::new(&import.name),
            match (array, &import.namespace) {
                (Some(array), _) => Cell::new(&array.level),
                (None, Some(_)) => Cell::new("nvme"),
                (None, None) => dash(),
            },
            health(import.health),
            array.map_or_else(dash, |array| Cell::new(format!("{}/{}", there(array), array.members.len()))),
            import
                .namespace
                .as_ref()
                .map_or(array.and_then(|array| array.size_bytes), |namespace| namespace.size_bytes)
                .map_or_else(dash, size),
            Cell::new(&import.volume),
            if import.exports.is_empty() { dash() } else { Cell::new(import.exports.join(",")) },
        ]
    };
    let columns = [
        Column::Word("NAME"),
        Column::Word("LEVEL"),
        Column::Word("HEALTH"),
        Column::Number("MEMBERS"),
        Column::Number("SIZE"),
        Column::Word("VOLUME"),
        Column::Word("EXPORTS"),
    ];
    table(colour, &columns, imports.iter().map(row).collect())
}

/// `purlin import show`.
pub fn import(colour: bool, import: &Import) -> String {
    let exports = if import.exports.is_empty() { "none".to_owned() } else { import.exports.join(", ") };
    let mut text = pairs(&[
        ("name", import.name.clone()),
        ("volume", import.volume.clone()),
        ("health", import.health.as_str().to_owned()),
        ("exports", exports),
        ("reads", format!("{}, {}", import.io.read_count, format_bytes(import.io.read_bytes))),
    ]);
    if let Some(message) = &import.message {
        text.push_str(&format!("warning: {message}\n"));
    }
    text.push('\n');
    if let Some(namespace) = &import.namespace {
        text.push_str(&self::namespace(import, namespace));
        return text;
    }
    match &import.array {
        Some(array) => text.push_str(&md_array(colour, array)),
        None => text.push_str(&pairs(&[("md uuid", import.uuid.clone()), ("drives", import.drives.join(", "))])),
    }
    text
}

/// A namespace of another machine, and the paths to it.
fn namespace(import: &Import, namespace: &ImportedNamespace) -> String {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), format_bytes);
    let mut text = pairs(&[
        ("namespace", format!("{} of {}", namespace.nsid, namespace.subsystem)),
        ("identity", import.uuid.clone()),
        ("drive", import.drives.join(", ")),
        ("size", bytes(namespace.size_bytes)),
        ("blocks", bytes(namespace.block_bytes.map(u64::from))),
        ("writes", format!("{}, {}", import.io.write_count, format_bytes(import.io.write_bytes))),
        ("access", if namespace.read_only { "read" } else { "read and write" }.to_owned()),
    ]);
    for path in &namespace.paths {
        let error = path.last_error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        text.push_str(&format!("path {} {}{error}\n", path.address, path.state));
    }
    text
}

/// `purlin group import-md`.
pub fn answer(colour: bool, answer: &Imported) -> String {
    let mut text = String::new();
    match &answer.object {
        Some(import) => text.push_str(&format!(
            "imported {}: {}, {}, {}; it can be read as the volume {}\n",
            import.name,
            import.array.as_ref().map_or("", |array| &array.level),
            import.health.as_str(),
            import.array.as_ref().and_then(|array| array.size_bytes).map(format_bytes).unwrap_or_default(),
            import.volume
        )),
        None if answer.steps.is_empty() => text.push_str("nothing was changed; nothing can be imported as asked\n"),
        None => {
            text.push_str("nothing was changed; this would be done:\n");
            answer.steps.iter().for_each(|step| text.push_str(&format!("  {step}\n")));
        }
    }
    for warning in &answer.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    if answer.object.is_none() {
        for array in &answer.found {
            text.push('\n');
            text.push_str(&md_array(colour, array));
        }
    }
    if !answer.others.is_empty() {
        text.push_str("\nno members:\n");
        answer.others.iter().for_each(|other| text.push_str(&format!("  {}: {}\n", other.drive, other.reason)));
    }
    text
}

/// An array's description of itself, and its drives.
fn md_array(colour: bool, array: &MdArray) -> String {
    let mut lines = vec![
        ("md name", array.name.clone()),
        ("md uuid", array.uuid.clone()),
        ("metadata", array.metadata.clone()),
        (
            "level",
            [Some(&array.level), array.layout.as_ref()].into_iter().flatten().cloned().collect::<Vec<_>>().join(", "),
        ),
        ("chunk", array.chunk_bytes.map_or_else(|| "-".to_owned(), format_bytes)),
        ("size", array.size_bytes.map_or_else(|| "-".to_owned(), format_bytes)),
        (
            "state",
            format!("{}, {} events", if array.clean { "clean" } else { "not stopped cleanly" }, array.event_count),
        ),
        ("made", minute(array.created_unix_s)),
        ("updated", minute(array.updated_unix_s)),
    ];
    if let Some(refusal) = &array.refusal {
        lines.push(("not read", refusal.clone()));
    }
    let mut text = pairs(&lines);
    let member =
        |member: &MdMember| vec![Cell::new(member.slot), Cell::new(member.drive.as_deref().unwrap_or("missing"))];
    if !array.members.is_empty() {
        text.push('\n');
        let columns = [Column::Number("SLOT"), Column::Word("DRIVE")];
        text.push_str(&table(colour, &columns, array.members.iter().map(member).collect()));
    }
    if !array.left_out.is_empty() {
        text.push_str("left out:\n");
        array.left_out.iter().for_each(|out| text.push_str(&format!("  {}: {}\n", out.drive, out.reason)));
    }
    text
}

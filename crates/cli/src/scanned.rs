//! Output of `purlin group scan`.

use api::{Scanned, ScannedGroup, ScannedState};
use comfy_table::{Cell, Color};

use crate::fit::{Column, table, wrapped};

/// The groups found, their problems, and the commands that start them.
pub fn scanned(colour: bool, found: &Scanned) -> String {
    let mut text = if found.groups.is_empty() {
        "no groups were found\n".to_owned()
    } else {
        let columns = [
            Column::Word("GROUP"),
            Column::Word("LEVEL"),
            Column::Number("FOUND"),
            Column::Word("STATE"),
            Column::Word("UUID"),
        ];
        table(colour, &columns, found.groups.iter().map(row).collect())
    };
    for group in &found.groups {
        text += &format!("\n{} ({})\n", group.name, group.uuid);
        text += &wrapped("drives: ", &group.drives.join(" "));
        for reason in &group.reasons {
            text += &wrapped("reason: ", reason);
        }
        if let Some(command) = &group.command {
            text += &wrapped("start:  ", command);
        }
    }
    if !found.others.is_empty() {
        text += "\nno part of any group:\n";
        for other in &found.others {
            text += &wrapped("", &format!("{}: {}", other.drive, other.reason));
        }
    }
    text
}

fn row(group: &ScannedGroup) -> Vec<Cell> {
    let colour = match group.state {
        ScannedState::Running | ScannedState::Optimal => Color::Green,
        ScannedState::Degraded => Color::Yellow,
        ScannedState::CannotStart | ScannedState::Unknown => Color::Red,
    };
    vec![
        Cell::new(&group.name),
        Cell::new(group.level),
        Cell::new(format!("{}/{}", group.found_count, group.member_count)),
        Cell::new(group.state.as_str()).fg(colour),
        Cell::new(&group.uuid),
    ]
}

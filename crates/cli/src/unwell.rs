//! `purlin status -x`: unhealthy objects only.

use api::{Export, GroupHealth, GroupStatus, Status};

use crate::Failure;

/// Exit status if a group works with fewer members than it should have, or something else needs
/// attention.
const DEGRADED: u8 = 3;

/// Exit status if a group has failed or could not be started.
const FAILED: u8 = 4;

fn is_well(group: &GroupStatus) -> bool {
    group.health == GroupHealth::Optimal && group.warnings.is_empty()
}

/// The status reduced to unhealthy objects.
pub fn unwell(status: Status) -> Status {
    Status {
        groups: status.groups.into_iter().filter(|group| !is_well(group)).collect(),
        exports: status.exports.into_iter().filter(|export| !export.listening).collect(),
        hosts: Vec::new(),
        ..status
    }
}

/// Whether the status has no unhealthy objects.
pub fn is_all_well(unwell: &Status) -> bool {
    unwell.groups.is_empty() && unwell.not_started.is_empty() && unwell.exports.is_empty()
}

/// The result of the command: the worst state decides.
///
/// # Errors
/// [`Failure::Unwell`], unless all is well.
pub fn verdict(unwell: &Status) -> Result<(), Failure> {
    if is_all_well(unwell) {
        return Ok(());
    }
    let of = |health: fn(GroupHealth) -> bool| {
        unwell.groups.iter().filter(move |group| health(group.health)).map(|group| group.name.as_str())
    };
    let has_failed = |health| matches!(health, GroupHealth::Failed | GroupHealth::Unknown);
    let failed: Vec<&str> = of(has_failed).collect();
    let not_started: Vec<&str> = unwell.not_started.iter().map(|group| group.name.as_str()).collect();
    let degraded: Vec<&str> = of(|health| health == GroupHealth::Degraded).collect();
    let warned: Vec<&str> = of(|health| health == GroupHealth::Optimal).collect();
    let exports: Vec<&str> = unwell.exports.iter().map(|export: &Export| export.id.as_str()).collect();
    let code = if failed.is_empty() && not_started.is_empty() { DEGRADED } else { FAILED };
    let said = [
        ("failed", failed),
        ("not started", not_started),
        ("degraded", degraded),
        ("with warnings", warned),
        ("exports not served", exports),
    ];
    let said = said.iter().filter(|(_, names)| !names.is_empty());
    let said: Vec<String> = said.map(|(what, names)| format!("{what}: {}", names.join(", "))).collect();
    Err(Failure::Unwell { message: said.join("; "), code })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Status {
        let page = include_str!("../../../docs/cli/json.md");
        let (_, rest) = page.split_once("<!-- type: Status -->\n```json\n").expect("it is on the page");
        serde_json::from_str(rest.split("```").next().expect("it ends")).expect("a test says that it is one")
    }

    fn code(status: &Status) -> u8 {
        verdict(&unwell(status.clone())).map_or_else(|failure| failure.exit_code(), |()| 0)
    }

    #[test]
    fn the_worst_of_what_is_not_well_decides_how_the_command_ends() {
        let mut status = example();
        assert_eq!(code(&status), FAILED, "the example has a group that is not started");
        status.not_started.clear();
        assert_eq!(code(&status), DEGRADED);
        status.groups[0].health = GroupHealth::Optimal;
        assert_eq!(code(&status), DEGRADED, "it has a warning");
        status.groups[0].warnings.clear();
        assert_eq!(code(&status), 0);
        assert!(unwell(status.clone()).groups.is_empty(), "what is well is left out");
        status.groups[0].health = GroupHealth::Failed;
        assert_eq!(code(&status), FAILED);
        let said = verdict(&unwell(status)).expect_err("it has failed").to_string();
        assert_eq!(said, "failed: tank");
    }
}

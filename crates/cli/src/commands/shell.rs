//! Output about the command itself: completions and manual pages.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::output::print;
use crate::{Failure, Line};

/// `purlin completions`.
pub(super) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Line::command(), "purlin", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// `purlin man`: one page for the command and one for each subcommand.
pub(super) fn man(dir: &Path) -> Result<(), Failure> {
    let fail = |source| Failure::Local { what: format!("cannot write manual pages to {}", dir.display()), source };
    std::fs::create_dir_all(dir).map_err(fail)?;
    clap_mangen::generate_to(Line::command(), dir).map_err(fail)
}

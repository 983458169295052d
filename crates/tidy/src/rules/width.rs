//! Comments and Markdown have at most 100 columns. Rows of tables and lines that are one link
//! cannot be wrapped.

use crate::{File, Finding};

/// Columns of a line.
const COLUMNS: usize = 100;

/// The lines that are too wide.
pub fn check(file: &File) -> Vec<Finding> {
    let is_wide = |line: &str| line.chars().count() > COLUMNS;
    let is_row = |line: &str| line.trim_start_matches(['/', '!', ' ']).starts_with('|');
    let is_word = |line: &str| line.trim_start_matches(['/', '!', ' ', '-', '*']).split(' ').count() == 1;
    let wide = file.prose().into_iter().filter(|(_, line)| is_wide(line) && !is_row(line) && !is_word(line));
    let finding = |(line, text): (usize, &str)| Finding {
        file: file.path.clone(),
        line,
        rule: "width",
        item: String::new(),
        weight: 1,
        message: format!("{} columns, {COLUMNS} at most", text.chars().count()),
    };
    wide.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&File::new(path, text)).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn wide_prose_is_found_and_wide_code_tables_and_links_are_not() {
        assert_eq!(lines("a.rs", &format!("//! | {} |\n", "word ".repeat(21))), []);
        let wide = "word ".repeat(21);
        assert_eq!(lines("a.rs", &format!("// {wide}\nlet a = \"{wide}\";\n// fine\n")), [1]);
        assert_eq!(lines("a.md", &format!("| {wide} |\n{wide}\n```\n{wide}\n```\n")), [2]);
        assert_eq!(lines("a.rs", &format!("// {}\n", "x".repeat(120))), []);
        assert_eq!(lines("a.rs", &format!("// {}\n", "ä ".repeat(48))), [], "columns, not bytes");
    }
}

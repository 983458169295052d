//! Tables and lines of at most 80 columns.
//!
//! Invariants:
//! - No borders, two spaces between columns, and no space at the end of a line, so that output can
//!   be compared and cut.
//! - Numbers are right-aligned, words left-aligned.
//! - A table may have a long column (paths, names of hosts). If the table is too wide, that column
//!   is shown in separate lines. If this is not enough, the widest words are shortened in their
//!   middle. `--output json` has everything.
//! - A table without a long column is as wide as its content.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// Columns of the smallest usual terminal, and of a mail or an issue without broken lines.
pub const WIDTH: usize = 80;

/// Spaces between columns.
const GAP: usize = 2;

/// Indentation of separate lines.
const INDENT: usize = 2;

/// Words are not made shorter than this.
const WORD_CHARS_MIN: usize = 10;

/// A column: its heading and type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Words, left-aligned.
    Word(&'static str),
    /// Numbers, right-aligned.
    Number(&'static str),
    /// Words that may be long, such as a path. They are shown in separate lines if the table is too
    /// wide. At most one column, the first or the last.
    Long(&'static str),
}

impl Column {
    fn name(self) -> &'static str {
        match self {
            Column::Word(name) | Column::Number(name) | Column::Long(name) => name,
        }
    }
}

/// A table of cells, as text.
pub fn table(colour: bool, columns: &[Column], mut rows: Vec<Vec<Cell>>) -> String {
    let long = columns.iter().position(|column| matches!(column, Column::Long(_)));
    let Some(long) = long.filter(|_| width(columns, &rows) > WIDTH) else {
        return lines(colour, columns, rows).iter().map(|line| format!("{line}\n")).collect();
    };
    let long_cells: Vec<String> = rows.iter_mut().map(|row| row.remove(long).content()).collect();
    let mut others = columns.to_vec();
    others.remove(long);
    shorten(&others, &mut rows, WIDTH - INDENT);
    let (is_first, heading) = (long == 0, columns[long].name());
    let lines = lines(colour, &others, rows);
    let mut text = String::new();
    let mut before: Option<&str> = None;
    let all = std::iter::once(heading).chain(long_cells.iter().map(String::as_str));
    for (line, own) in lines.iter().zip(all) {
        let cut = middle_cut(own, WIDTH - INDENT);
        match is_first {
            // Lines of the same object show its name once.
            true if before == Some(own) => text += &format!("{:INDENT$}{line}\n", ""),
            true => text += &format!("{}\n{:INDENT$}{line}\n", middle_cut(own, WIDTH), ""),
            false => text += &format!("{line}\n{:INDENT$}{cut}\n", ""),
        }
        before = Some(own);
    }
    text
}

fn lines(colour: bool, columns: &[Column], rows: Vec<Vec<Cell>>) -> Vec<String> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table.set_header(columns.iter().map(|column| Cell::new(column.name())));
    table.add_rows(rows);
    for (index, column) in columns.iter().enumerate() {
        let last = index + 1 == columns.len();
        let shown = table.column_mut(index).expect("the header has every column");
        shown.set_padding((0, if last { 0 } else { GAP as u16 }));
        if matches!(column, Column::Number(_)) {
            shown.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// The width of each column.
fn widths(columns: &[Column], rows: &[Vec<Cell>]) -> Vec<usize> {
    let chars = |row: &Vec<Cell>, index: usize| row.get(index).map_or(0, |cell| cell.content().chars().count());
    let of = |(index, column): (usize, &Column)| {
        rows.iter().map(|row| chars(row, index)).max().unwrap_or(0).max(column.name().chars().count())
    };
    columns.iter().enumerate().map(of).collect()
}

fn width(columns: &[Column], rows: &[Vec<Cell>]) -> usize {
    widths(columns, rows).iter().sum::<usize>() + GAP * columns.len().saturating_sub(1)
}

/// Shortens the widest words until the table fits into `width_max`, or no word can be shortened
/// further.
fn shorten(columns: &[Column], rows: &mut [Vec<Cell>], width_max: usize) {
    loop {
        let over = width(columns, rows).saturating_sub(width_max);
        let widths = widths(columns, rows);
        let words = widths.iter().enumerate().filter(|(index, _)| !matches!(columns[*index], Column::Number(_)));
        let Some((index, widest)) = words.max_by_key(|(_, width)| **width) else { return };
        if over == 0 || *widest <= WORD_CHARS_MIN {
            return;
        }
        let chars = widest.saturating_sub(over).max(WORD_CHARS_MIN);
        for row in rows.iter_mut() {
            let content = row[index].content();
            if content.chars().count() > chars {
                row[index] = Cell::new(middle_cut(&content, chars));
            }
        }
    }
}

/// Cuts a word to at most `chars_max` characters. Both ends stay, because they distinguish it.
pub fn middle_cut(text: &str, chars_max: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= chars_max {
        return text.to_owned();
    }
    let kept = chars_max.saturating_sub(3);
    let tail = kept / 2;
    let (head, tail) = (&chars[..kept - tail], &chars[chars.len() - tail..]);
    head.iter().chain(&['.', '.', '.']).chain(tail).collect()
}

/// Longest title with continuation lines indented below its end. Longer titles would leave no room.
const HANG_CHARS_MAX: usize = 20;

/// A sentence behind a title, in lines of at most 80 characters unless a word is longer. Further
/// lines are indented to the end of the title, or a little if the title is long.
pub fn wrapped(title: &str, sentence: &str) -> String {
    let title_chars = title.chars().count();
    let hang = if title_chars <= HANG_CHARS_MAX { title_chars } else { 2 * INDENT };
    let mut lines = vec![title.to_owned()];
    for word in sentence.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        if !line.trim().is_empty() && line.chars().count() + word.chars().count() > WIDTH {
            lines.push(format!("{:hang$}{word} ", ""));
        } else {
            *line += &format!("{word} ");
        }
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A count of operations: exact up to five digits, then `123k`, `1.20M`, `46G`.
pub fn count(count: u64) -> String {
    let of = |unit: u64| count as f64 / unit as f64;
    match count {
        0..100_000 => count.to_string(),
        100_000..999_500 => format!("{:.0}k", of(1000)),
        999_500..9_995_000 => format!("{:.2}M", of(1_000_000)),
        9_995_000..999_500_000 => format!("{:.0}M", of(1_000_000)),
        999_500_000..9_995_000_000 => format!("{:.2}G", of(1_000_000_000)),
        _ => format!("{:.0}G", of(1_000_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(row: &[&str]) -> Vec<Cell> {
        row.iter().map(Cell::new).collect()
    }

    #[test]
    fn a_table_has_no_spaces_at_the_end_of_a_line() {
        let columns = [Column::Word("A"), Column::Number("N"), Column::Word("B")];
        let rows = vec![cells(&["x", "1", ""]), cells(&["long", "100", "-"])];
        assert_eq!(table(false, &columns, rows), "A       N  B\nx       1\nlong  100  -\n");
    }

    #[test]
    fn a_table_that_is_too_wide_has_its_long_words_in_lines_of_their_own() {
        let path = format!("/dev/disk/by-id/{}", "x".repeat(60));
        let columns = [Column::Long("DRIVE"), Column::Word("STATE"), Column::Number("SIZE")];
        let rows = || vec![cells(&[&path, "online", "1 GiB"]), cells(&[&path, "x", "2 GiB"])];
        let shown = format!("DRIVE\n  STATE    SIZE\n{path}\n  online  1 GiB\n  x       2 GiB\n");
        assert_eq!(table(false, &columns, rows()), shown);
        let columns = [Column::Word("ID"), Column::Long("URI")];
        let rows = vec![cells(&["tank-1", &path]), cells(&["tank-2", &"y".repeat(90)])];
        let cut = format!("{}...{}", "y".repeat(38), "y".repeat(37));
        let shown = format!("ID\n  URI\ntank-1\n  {path}\ntank-2\n  {cut}\n");
        assert_eq!(table(false, &columns, rows), shown);
    }

    #[test]
    fn words_are_shortened_in_their_middle_where_nothing_else_helps() {
        let columns = [Column::Long("A"), Column::Word("NAME"), Column::Number("N")];
        let shown = table(false, &columns, vec![cells(&["a", &format!("{}-end", "x".repeat(90)), "1"])]);
        assert!(
            shown.lines().all(|line| line.len() <= WIDTH) && shown.contains("...") && shown.contains("-end"),
            "{shown}"
        );
    }

    #[test]
    fn counts_are_short() {
        let shown: Vec<String> =
            [0, 99_999, 123_456, 999_999, 1_204_000, 45_600_000, 1_999_999_999, 45_600_000_000].map(count).into();
        assert_eq!(shown, ["0", "99999", "123k", "1.00M", "1.20M", "46M", "2.00G", "46G"]);
    }
}

//! Makes untrusted text safe for terminals and logs.

use std::borrow::Cow;

/// Whether a terminal acts on the character instead of showing it: a control character, a line
/// separator, or a character that changes the direction of the text around it (Unicode Standard
/// Annex 9, clause 2).
pub fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` with such characters escaped, as in `\u{1b}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut written_out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_obeyed(c) { written_out.extend(c.escape_default()) } else { written_out.push(c) }
    }
    Cow::Owned(written_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_written_out() {
        assert!(matches!(visible("Länge 4 KiB, 日本語, \u{1f980}"), Cow::Borrowed(_)));
        assert_eq!(visible("a\u{1b}[2J\u{9b}2J\n\u{7f}"), r"a\u{1b}[2J\u{9b}2J\n\u{7f}");
        assert_eq!(visible("\u{202e}gpj.exe\u{2066}\u{200f}\u{2028}"), r"\u{202e}gpj.exe\u{2066}\u{200f}\u{2028}");
    }
}

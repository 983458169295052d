//! The files that rules look at.

use std::fs;
use std::io;
use std::path::Path;

/// Kinds of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Rust source.
    Rust,
    /// A document.
    Markdown,
    /// A page of the built book.
    Html,
    /// A list of layers, see [`crate::rules::imports`].
    Layers,
    /// Anything else: only its name is of interest.
    Other,
}

/// A file of the repository.
#[derive(Debug, Clone)]
pub struct File {
    /// Its path from the root, with slashes.
    pub path: String,
    /// Its kind.
    pub kind: Kind,
    /// Its text; empty for [`Kind::Other`].
    pub text: String,
}

impl File {
    /// A file with this text.
    pub fn new(path: &str, text: &str) -> File {
        let kind = match Path::new(path).extension().and_then(|extension| extension.to_str()) {
            Some("rs") => Kind::Rust,
            Some("md") => Kind::Markdown,
            Some("html") => Kind::Html,
            None if path.ends_with("/layers") => Kind::Layers,
            _ => Kind::Other,
        };
        File { path: path.to_owned(), kind, text: text.to_owned() }
    }

    /// The comments of Rust source that stand alone in their lines, or all of a document, by line
    /// from 1. Fenced code of documents is left out.
    pub fn prose(&self) -> Vec<(usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(index, line)| (index + 1, line));
        match self.kind {
            Kind::Rust => lines.filter(|(_, line)| line.trim_start().starts_with("//")).collect(),
            Kind::Markdown => {
                let mut in_code = false;
                let is_prose = |(_, line): &(usize, &str)| {
                    let is_fence = line.trim_start().starts_with("```");
                    in_code ^= is_fence;
                    !in_code && !is_fence
                };
                lines.filter(is_prose).collect()
            }
            Kind::Html | Kind::Layers | Kind::Other => Vec::new(),
        }
    }
}

/// All files below the root but hidden ones and what was built.
///
/// # Errors
/// One cannot be read.
pub fn read(root: &Path) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    read_folder(root, "", &mut files)?;
    Ok(files)
}

fn read_folder(root: &Path, folder: &str, files: &mut Vec<File>) -> io::Result<()> {
    let mut names: Vec<(String, bool)> = Vec::new();
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        names.push((entry.file_name().to_string_lossy().into_owned(), entry.file_type()?.is_dir()));
    }
    names.sort();
    for (name, is_folder) in names {
        if name.starts_with('.') || (folder.is_empty() && name == "target") {
            continue;
        }
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if is_folder {
            read_folder(root, &path, files)?;
            continue;
        }
        let mut file = File::new(&path, "");
        if file.kind != Kind::Other {
            file.text = fs::read_to_string(root.join(&path))?;
        }
        files.push(file);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_of_source_is_its_comments_and_of_a_document_all_but_code() {
        let source = File::new("a.rs", "//! One.\nlet two = 2; // not alone\n    // Three.\n");
        assert_eq!(source.prose(), [(1, "//! One."), (3, "    // Three.")]);
        let document = File::new("a.md", "One\n```\ncode\n```\nTwo\n");
        assert_eq!(document.prose(), [(1, "One"), (5, "Two")]);
    }
}

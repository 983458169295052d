//! Links between documents lead somewhere: to a file, and to a heading of it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{File, Finding, Kind};

/// The links of all documents that lead nowhere.
pub fn check(files: &[File]) -> Vec<Finding> {
    let paths: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let folders: BTreeSet<String> = files.iter().flat_map(|file| folders_of(&file.path)).collect();
    let documents = || files.iter().filter(|file| file.kind == Kind::Markdown);
    let headings: BTreeMap<&str, BTreeSet<String>> =
        documents().map(|file| (file.path.as_str(), headings_of(file))).collect();
    let mut findings = Vec::new();
    for file in documents() {
        for (line, text) in file.prose() {
            for link in links_in(text) {
                if link.contains("://") || link.starts_with("mailto:") {
                    continue;
                }
                let (target, heading) =
                    link.split_once('#').map_or((link, None), |(target, heading)| (target, Some(heading)));
                let path = if target.is_empty() { Some(file.path.clone()) } else { resolve(&file.path, target) };
                let problem = match path {
                    Some(path) if paths.contains(path.as_str()) => heading
                        .filter(|heading| headings.get(path.as_str()).is_some_and(|known| !known.contains(*heading)))
                        .map(|heading| format!("{path} has no heading #{heading}")),
                    Some(path) if folders.contains(&path) => None,
                    _ => Some(format!("there is no {target}")),
                };
                findings.extend(problem.map(|message| Finding {
                    file: file.path.clone(),
                    line,
                    rule: "links",
                    item: String::new(),
                    weight: 1,
                    message,
                }));
            }
        }
    }
    findings
}

fn folders_of(path: &str) -> Vec<String> {
    path.match_indices('/').map(|(end, _)| path[..end].to_owned()).collect()
}

/// Where the links of a line lead: `[text](here)`.
pub(super) fn links_in(text: &str) -> Vec<&str> {
    // Code may look like a link.
    let outside_of_code: Vec<&str> = text.split('`').step_by(2).collect();
    let in_part = |part: &'_ str| {
        let begins = part.match_indices("](").map(|(at, _)| at + 2).collect::<Vec<_>>();
        begins
            .into_iter()
            .filter_map(|at| part[at..].split_once(')').map(|(link, _)| (at, link.len())))
            .collect::<Vec<_>>()
    };
    let mut links = Vec::new();
    for part in outside_of_code {
        links.extend(in_part(part).into_iter().map(|(at, len)| &part[at..at + len]));
    }
    // `[`code`](here)`: the part behind the code begins with the end of the text.
    links
}

/// A link of a document, from the root. `None` if it leads out of the repository.
pub(super) fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The names by which the headings of a document are linked to, as GitHub makes them.
fn headings_of(file: &File) -> BTreeSet<String> {
    let mut known: BTreeSet<String> = BTreeSet::new();
    for (_, line) in file.prose() {
        let Some(heading) = line.starts_with('#').then(|| line.trim_start_matches('#').trim()) else { continue };
        let fits = |character: &char| character.is_alphanumeric() || matches!(character, '-' | '_' | ' ');
        let lower = heading.to_lowercase();
        let name: String =
            lower.chars().filter(fits).map(|character| if character == ' ' { '-' } else { character }).collect();
        let times = (0..).map(|time| if time == 0 { name.clone() } else { format!("{name}-{time}") });
        let mut free = times.filter(|name| !known.contains(name));
        let name = free.next().expect("numbers do not end");
        known.insert(name);
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
        check(&files).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn a_link_to_a_file_or_heading_that_is_not_there_is_found() {
        let text = "# A b\n[x](b.md) [y](../src/) [z](#a-b) [w](b.md#c-d)\n[v](c.md) [u](#b)\n[t](b.md#d)\n";
        let files = [("docs/a.md", text), ("docs/b.md", "## `C` d!\n"), ("src/lib.rs", "")];
        let found = messages(&files);
        assert_eq!(
            found,
            [
                "docs/a.md:3: links: there is no c.md",
                "docs/a.md:3: links: docs/a.md has no heading #b",
                "docs/a.md:4: links: docs/b.md has no heading #d",
            ]
        );
    }

    #[test]
    fn links_of_other_sites_and_in_code_are_left_alone() {
        assert_eq!(messages(&[("a.md", "[x](https://example.com/a.md) `[y](b.md)`\n")]), Vec::<String>::new());
        assert_eq!(messages(&[("a.md", "[`x`](b.md)\n")]), ["a.md:1: links: there is no b.md"]);
        assert_eq!(messages(&[("a.md", "[x](../b.md)\n")]), ["a.md:1: links: there is no ../b.md"]);
    }
}

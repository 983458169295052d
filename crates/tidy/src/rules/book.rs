//! The book that `./x book` builds: it has every document of `docs`, and its own links lead
//! somewhere.

use std::collections::{BTreeMap, BTreeSet};

use super::links::{links_in, resolve};
use crate::{File, Finding, Kind};

/// The list of the book's pages.
const SUMMARY: &str = "docs/SUMMARY.md";

/// The documents of `docs` that the book does not have.
pub fn check(files: &[File]) -> Vec<Finding> {
    let summary = files.iter().find(|file| file.path == SUMMARY);
    let listed: BTreeSet<String> = summary
        .iter()
        .flat_map(|summary| summary.prose())
        .flat_map(|(_, line)| links_in(line))
        .filter_map(|link| resolve(SUMMARY, link))
        .collect();
    let is_missing = |file: &&File| {
        file.kind == Kind::Markdown
            && file.path.starts_with("docs/")
            && file.path != SUMMARY
            && !listed.contains(&file.path)
    };
    files.iter().filter(is_missing).map(|file| finding(file, 1, format!("{SUMMARY} does not list it"))).collect()
}

/// The links of a built book that lead nowhere: to no file of it, or to no place of a page.
pub fn broken_links(files: &[File]) -> Vec<Finding> {
    let pages = || files.iter().filter(|file| file.kind == Kind::Html);
    let paths: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let places: BTreeMap<&str, BTreeSet<&str>> =
        pages().map(|page| (page.path.as_str(), attributes(&page.text, "id").collect())).collect();
    let problem = |page: &File, link: &str| {
        let (target, place) = link.split_once('#').unwrap_or((link, ""));
        let path = if target.is_empty() { Some(page.path.clone()) } else { resolve(&page.path, target) };
        let Some(path) = path.filter(|path| paths.contains(path.as_str())) else {
            return Some(format!("there is no {target}"));
        };
        let is_there = place.is_empty() || places.get(path.as_str()).is_none_or(|places| places.contains(place));
        (!is_there).then(|| format!("{path} has no place #{place}"))
    };
    let mut findings = Vec::new();
    for page in pages() {
        for (index, line) in page.text.lines().enumerate() {
            let links = attributes(line, "href").chain(attributes(line, "src"));
            let own = links.filter(|link| !link.contains("://") && !link.starts_with("mailto:"));
            findings.extend(own.filter_map(|link| problem(page, link)).map(|why| finding(page, index + 1, why)));
        }
    }
    findings
}

/// The values of an attribute in HTML. Text of a page has no quotes of its own: they are escaped.
fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {name}=\"");
    let begins: Vec<usize> = html.match_indices(&begin).map(|(at, begin)| at + begin.len()).collect();
    begins.into_iter().filter_map(move |at| html[at..].split_once('"').map(|(value, _)| value))
}

fn finding(file: &File, line: usize, message: String) -> Finding {
    Finding { file: file.path.clone(), line, rule: "book", item: String::new(), weight: 1, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(check: fn(&[File]) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
        check(&files).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn a_document_that_the_book_does_not_list_is_found() {
        let summary = "# Summary\n- [A](a.md)\n  - [`B`](b/README.md)\n- [C](../README.md)\n";
        let files = [("README.md", ""), ("docs/SUMMARY.md", summary), ("docs/a.md", ""), ("docs/b/README.md", "")];
        assert_eq!(messages(check, &files), Vec::<String>::new());
        let planted = [&files[..], &[("docs/b/c.md", ""), ("docs/b/c.json", ""), ("tests/d.md", "")]].concat();
        assert_eq!(messages(check, &planted), ["docs/b/c.md:1: book: docs/SUMMARY.md does not list it"]);
        let without_list = [("docs/a.md", "")];
        assert_eq!(messages(check, &without_list), ["docs/a.md:1: book: docs/SUMMARY.md does not list it"]);
    }

    #[test]
    fn a_link_of_the_built_book_that_leads_nowhere_is_found() {
        let page = "<h1 id=\"top\">A</h1>\n<a class=\"x\" href=\"../b.html#c\">b</a> <a href=\"#top\">a</a>\n\
                    <img src=\"../x.svg\"> <a href=\"https://example.com/#c\">c</a> <code>href=&quot;d&quot;</code>\n";
        let rest = [("b.html", "<p id=\"c\">"), ("x.svg", "")];
        assert_eq!(messages(broken_links, &[&[("a/a.html", page)][..], &rest].concat()), Vec::<String>::new());
        let broken = "<a href=\"../b.html#d\">\n<a href=\"b.md\"> <a href=\"#e\">\n<script src=\"../y.js\">\n";
        assert_eq!(
            messages(broken_links, &[&[("a/a.html", broken)][..], &rest].concat()),
            [
                "a/a.html:1: book: b.html has no place #d",
                "a/a.html:2: book: there is no b.md",
                "a/a.html:2: book: a/a.html has no place #e",
                "a/a.html:3: book: there is no ../y.js",
            ]
        );
    }
}

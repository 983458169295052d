//! Imports between the files of a crate: no large circles, and nothing from a layer above.
//!
//! A crate's file `layers` names its modules, the lowest first. An empty line ends a layer, and
//! modules of one layer may import each other. `#` begins a comment. A module that is in no layer
//! is a finding.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{ItemUse, UseTree};

use super::length::parse;
use crate::{File, Finding, Kind};

/// Files that may import each other in a circle.
const CIRCLE: usize = 8;

/// Where a file imports another one: the line, and the module.
type Imports = BTreeMap<String, usize>;

/// The source of a crate below `crates/NAME/src`, by module: `log::seal`, and `""` for the root.
struct Crate<'a> {
    name: &'a str,
    modules: BTreeMap<String, &'a File>,
    imports: BTreeMap<String, Imports>,
    layers: Option<&'a File>,
}

/// The circles and the imports from above in all crates.
///
/// # Errors
/// A file is no Rust.
pub fn check(files: &[File]) -> io::Result<Vec<Finding>> {
    let mut crates: BTreeMap<&str, Crate<'_>> = BTreeMap::new();
    for file in files {
        let Some((name, inside)) = file.path.strip_prefix("crates/").and_then(|path| path.split_once('/')) else {
            continue;
        };
        let known = crates.entry(name).or_insert_with(|| Crate {
            name,
            modules: BTreeMap::new(),
            imports: BTreeMap::new(),
            layers: None,
        });
        match (file.kind, inside.strip_prefix("src/")) {
            (Kind::Layers, None) => known.layers = Some(file),
            (Kind::Rust, Some(source)) => drop(known.modules.insert(module_of(source), file)),
            _ => {}
        }
    }
    let mut findings = Vec::new();
    for known in crates.values_mut() {
        for (module, file) in &known.modules {
            let mut seen = Seen { module, modules: &known.modules, imports: Imports::new() };
            seen.visit_file(&parse(file)?);
            seen.imports.remove(module);
            known.imports.insert(module.clone(), seen.imports);
        }
        findings.extend(circles(known));
        findings.extend(layers(known));
    }
    Ok(findings)
}

/// The module of a file below `src`.
fn module_of(source: &str) -> String {
    let path = source.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let is_root = matches!(path, "lib" | "main" | "mod");
    if is_root { String::new() } else { path.replace('/', "::") }
}

/// Looks for what a file imports.
struct Seen<'a> {
    module: &'a str,
    modules: &'a BTreeMap<String, &'a File>,
    imports: Imports,
}

impl Seen<'_> {
    /// A path that the file names, as its parts.
    fn note(&mut self, parts: &[String], line: usize) {
        let own: Vec<&str> = self.module.split("::").filter(|part| !part.is_empty()).collect();
        let mut from: Vec<&str> = match parts.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("super" | "self") => own.clone(),
            _ => return,
        };
        for (index, part) in parts.iter().enumerate() {
            match part.as_str() {
                "crate" | "self" if index == 0 => {}
                "super" => drop(from.pop()),
                part => from.push(part),
            }
        }
        // The longest beginning that is a module: what follows is an item of it.
        let found =
            (1..=from.len()).rev().map(|len| from[..len].join("::")).find(|path| self.modules.contains_key(path));
        // A file that holds others is there for what is in it.
        let found = found.filter(|found| !own.join("::").starts_with(&format!("{found}::")));
        if let Some(found) = found {
            self.imports.entry(found).or_insert(line);
        }
    }

    fn note_tree(&mut self, before: &[String], tree: &UseTree, line: usize) {
        let with = |part: &syn::Ident| before.iter().cloned().chain([part.to_string()]).collect::<Vec<String>>();
        match tree {
            UseTree::Path(path) => self.note_tree(&with(&path.ident), &path.tree, line),
            UseTree::Name(name) => self.note(&with(&name.ident), line),
            UseTree::Rename(name) => self.note(&with(&name.ident), line),
            UseTree::Glob(_) => self.note(before, line),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.note_tree(before, tree, line)),
        }
    }
}

impl<'ast> Visit<'ast> for Seen<'_> {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.note_tree(&[], &item.tree, item.span().start().line);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if parts.len() > 1 {
            self.note(&parts, path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        // Tests may use all of the crate.
        let is_test = item.attrs.iter().any(|attribute| {
            attribute.path().is_ident("cfg")
                && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
        });
        if !is_test {
            visit::visit_item_mod(self, item);
        }
    }
}

/// The largest cycles of a crate: each file imports all others, directly or through others.
fn circles(known: &Crate<'_>) -> Vec<Finding> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        known.imports.keys().map(|module| (module.as_str(), reached(known, module))).collect();
    let mut left: BTreeSet<&str> = reach.keys().copied().collect();
    let mut findings = Vec::new();
    while let Some(first) = left.pop_first() {
        let is_in = |other: &&&str| reach[first].contains(**other) && reach[**other].contains(first);
        let circle: Vec<&str> = left.iter().filter(is_in).copied().collect();
        left.retain(|other| !circle.contains(other));
        let files = circle.len() + 1;
        if files > CIRCLE {
            let names: Vec<&str> = std::iter::once(first).chain(circle).collect();
            findings.push(Finding {
                file: format!("crates/{}", known.name),
                line: 1,
                rule: "cycle",
                item: String::new(),
                weight: files,
                message: format!("{files} files import each other, {CIRCLE} at most: {}", names.join(" ")),
            });
        }
    }
    findings
}

fn reached<'a>(known: &'a Crate<'_>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = known.imports[from].keys().map(String::as_str).collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(known.imports[module].keys().map(String::as_str));
        }
    }
    reached
}

/// The imports of a crate that go up, and modules without a layer.
fn layers(known: &Crate<'_>) -> Vec<Finding> {
    let Some(list) = known.layers else { return Vec::new() };
    let mut layer_of: BTreeMap<&str, usize> = BTreeMap::new();
    let mut index = 0;
    for line in list.text.lines() {
        index += usize::from(line.is_empty());
        let names = line.split('#').next().unwrap_or_default();
        layer_of.extend(names.split_whitespace().map(|name| (name, index)));
    }
    // The layer of a module is that of itself or of the folder that it is in.
    let layer = |module: &str| {
        let ends = module.match_indices("::").map(|(end, _)| end).chain([module.len()]);
        ends.filter_map(|end| layer_of.get(&module[..end])).last().copied()
    };
    let finding = |file: &File, line: usize, message: String| Finding {
        file: file.path.clone(),
        line,
        rule: "layers",
        item: String::new(),
        weight: 1,
        message,
    };
    let mut findings = Vec::new();
    for (module, file) in known.modules.iter().filter(|(module, _)| !module.is_empty()) {
        let Some(own) = layer(module) else {
            findings.push(finding(file, 1, format!("{} does not say in which layer {module} is", list.path)));
            continue;
        };
        for (other, &line) in &known.imports[module] {
            if layer(other).is_some_and(|other| other > own) {
                findings.push(finding(file, line, format!("{module} imports {other}, which is in a layer above it")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
        check(&files).expect("it is Rust").into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn an_import_of_a_layer_above_is_found_in_any_form() {
        let files = [
            ("crates/a/layers", "low  # types\n\nhigh\n"),
            ("crates/a/src/lib.rs", "mod low; mod high;"),
            ("crates/a/src/low.rs", "use crate::high::A;\nfn f() { super::high::g() }"),
            ("crates/a/src/high/mod.rs", "mod inner; use crate::low::B;"),
            ("crates/a/src/high/inner.rs", "use super::A; use crate::low::C;"),
            ("crates/a/src/lost.rs", ""),
        ];
        assert_eq!(
            found(&files),
            [
                "crates/a/src/lost.rs:1: layers: crates/a/layers does not say in which layer lost is",
                "crates/a/src/low.rs:1: layers: low imports high, which is in a layer above it",
            ]
        );
    }

    #[test]
    fn tests_may_import_everything() {
        let files = [
            ("crates/a/layers", "low\n\nhigh\n"),
            ("crates/a/src/low.rs", "#[cfg(test)] mod tests { use crate::high::A; }"),
            ("crates/a/src/high.rs", ""),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }

    #[test]
    fn a_circle_of_nine_files_is_found_and_one_of_eight_is_not() {
        let circle = |files: usize| {
            let file = |index: usize| {
                let text = format!("use crate::m{}::{{A, B}};", (index + 1) % files);
                File::new(&format!("crates/a/src/m{index}.rs"), &text)
            };
            check(&(0..files).map(file).collect::<Vec<_>>()).expect("it is Rust")
        };
        assert_eq!(circle(8), []);
        let found = circle(9);
        assert_eq!((found.len(), found[0].weight, found[0].rule), (1, 9, "cycle"));
    }
}

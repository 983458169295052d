//! A source file has at most 600 lines, a function at most 70.

use std::io;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, ImplItemFn, ItemFn, Signature, TraitItemFn};

use crate::{File, Finding, Kind};

/// Lines of a file.
const FILE_LINES: usize = 600;

/// Lines of a function, from `fn` to its closing brace.
const FUNCTION_LINES: usize = 70;

/// The file, and its functions, that are too long.
///
/// # Errors
/// The file is no Rust.
pub fn check(file: &File) -> io::Result<Vec<Finding>> {
    if file.kind != Kind::Rust {
        return Ok(Vec::new());
    }
    let mut findings = Vec::new();
    let lines = file.text.lines().count();
    if lines > FILE_LINES {
        findings.push(Finding {
            file: file.path.clone(),
            line: lines,
            rule: "file",
            item: String::new(),
            weight: lines,
            message: format!("{lines} lines, {FILE_LINES} at most"),
        });
    }
    let mut functions = Functions { file, findings };
    functions.visit_file(&parse(file)?);
    Ok(functions.findings)
}

/// The syntax of a source file.
///
/// # Errors
/// It is no Rust.
pub fn parse(file: &File) -> io::Result<syn::File> {
    syn::parse_file(&file.text).map_err(|error| io::Error::other(format!("{}: {error}", file.path)))
}

struct Functions<'a> {
    file: &'a File,
    findings: Vec<Finding>,
}

impl Functions<'_> {
    fn measure(&mut self, signature: &Signature, block: &Block) {
        let (start, end) = (line_of(signature.fn_token.span), block.span().end().line);
        let lines = end + 1 - start;
        if lines > FUNCTION_LINES {
            let name = signature.ident.to_string();
            self.findings.push(Finding {
                file: self.file.path.clone(),
                line: start,
                rule: "function",
                message: format!("{name} has {lines} lines, {FUNCTION_LINES} at most"),
                item: name,
                weight: lines,
            });
        }
    }
}

fn line_of(span: Span) -> usize {
    span.start().line
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default {
            self.measure(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(&'static str, String, usize)> {
        let findings = check(&File::new("a.rs", text)).expect("it is Rust");
        findings.into_iter().map(|finding| (finding.rule, finding.item, finding.line)).collect()
    }

    #[test]
    fn long_functions_are_found_wherever_they_are() {
        let body = "    let a = 1;\n".repeat(69);
        let long = |name: &str| format!("fn {name}() {{\n{body}}}\n");
        let short = format!("fn short() {{\n{}}}\n", &body[..body.len() - 15]);
        let text = format!("{short}{}impl A {{ {} }}\ntrait B {{ {} }}\n", long("free"), long("own"), long("given"));
        let names: Vec<String> = found(&text).into_iter().map(|(_, name, _)| name).collect();
        assert_eq!(names, ["free", "own", "given"]);
    }

    #[test]
    fn a_long_file_is_found() {
        assert_eq!(found(&"// line\n".repeat(600)), []);
        assert_eq!(found(&"// line\n".repeat(601)), [("file", String::new(), 601)]);
    }

    #[test]
    fn what_is_no_rust_is_an_error_that_names_the_file() {
        let error = check(&File::new("a.rs", "fn (")).expect_err("it is no Rust");
        assert!(error.to_string().starts_with("a.rs: "), "{error}");
    }
}

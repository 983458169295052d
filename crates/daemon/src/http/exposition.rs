//! The two text formats in which Prometheus reads metrics, and the choice between them.
//!
//! - OpenMetrics 1.0: counters are declared without `_total`, units have a line, the text ends with
//!   `# EOF`.
//! - The older text format 0.0.4: counters are declared by the names of their samples, `_total`
//!   included.

use std::collections::BTreeSet;

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exposition {
    OpenMetrics,
    Text,
}

impl Exposition {
    /// The format that a client prefers according to its `Accept` header (RFC 9110, 12.5.1).
    /// OpenMetrics unless the other is preferred.
    pub fn wanted(accept: &str) -> Exposition {
        let quality = |media: &str| {
            let ranges = accept.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let is_it = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(media));
                let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f64>().ok());
                is_it.then(|| weight.unwrap_or(1.0))
            });
            ranges.fold(0.0, f64::max)
        };
        let text = quality("text/plain").max(quality("text/*"));
        if text > quality("application/openmetrics-text") { Exposition::Text } else { Exposition::OpenMetrics }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Exposition::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Exposition::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts OpenMetrics text to this format.
    pub fn of(self, open_metrics: String) -> String {
        match self {
            Exposition::OpenMetrics => open_metrics,
            Exposition::Text => text(&open_metrics),
        }
    }
}

fn text(open_metrics: &str) -> String {
    let typed =
        |line: &str| line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter")).map(str::to_owned);
    let counters: BTreeSet<String> = open_metrics.lines().filter_map(typed).collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => continue,
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), Some(rest)) if counters.contains(name) => {
                text.push_str(&format!("# {what} {name}_total {rest}"));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_the_format_that_it_prefers() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for accept in
            ["", "*/*", "application/openmetrics-text", prometheus, "text/plain;q=0.3,application/openmetrics-text"]
        {
            assert_eq!(Exposition::wanted(accept), Exposition::OpenMetrics, "{accept}");
        }
        for accept in [
            "text/plain",
            "Text/Plain; version=0.0.4",
            "application/openmetrics-text;q=0.1, text/plain;q=0.9",
            "text/*",
        ] {
            assert_eq!(Exposition::wanted(accept), Exposition::Text, "{accept}");
        }
    }

    #[test]
    fn the_older_format_announces_counters_by_the_names_of_their_samples() {
        let open = "# HELP a Some a.\n# TYPE a counter\n# UNIT a bytes\na_total 1\n# HELP b Of a.\n# TYPE b gauge\nb 2\n# EOF\n";
        let text = "# HELP a_total Some a.\n# TYPE a_total counter\na_total 1\n# HELP b Of a.\n# TYPE b gauge\nb 2\n";
        assert_eq!(Exposition::Text.of(open.to_owned()), text);
        assert_eq!(Exposition::OpenMetrics.of(open.to_owned()), open);
    }
}

//! The older text format of Prometheus (0.0.4), for clients that ask for `text/plain`: the same samples, other headers.

/// The media type of OpenMetrics, and that of the older format.
const OPEN: &str = "application/openmetrics-text";
const PLAIN: &str = "text/plain";

/// Whether a client prefers the older format, by its Accept header. A client that accepts anything gets OpenMetrics.
pub fn is_wanted(accept: &str) -> bool {
    let weight = |kind: &str| {
        let ranges = accept.split(',').filter(|range| range.split(';').next().is_some_and(|name| name.trim() == kind));
        let weights = ranges.map(|range| {
            let q = range.split(';').find_map(|parameter| parameter.trim().strip_prefix("q="));
            q.and_then(|q| q.parse::<f64>().ok()).unwrap_or(1.0)
        });
        weights.fold(0.0, f64::max)
    };
    weight(PLAIN) > weight(OPEN)
}

/// Converts OpenMetrics text to the older format: headers of counters have the suffix `_total`, percentiles are a
/// summary, and there is no end mark.
pub fn plain(open: &str) -> String {
    let mut out = String::with_capacity(open.len());
    let mut lines = open.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(rest) = line.strip_prefix("# HELP ") else {
            if !line.starts_with("# EOF") && !line.starts_with("# UNIT") {
                out += &format!("{line}\n");
            }
            continue;
        };
        let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
        let kind = lines.next_if(|next| next.starts_with("# TYPE ")).and_then(|line| line.rsplit(' ').next());
        let has_quantiles = lines.peek().is_some_and(|sample| sample.contains("quantile=\""));
        let (name, kind) = match kind {
            Some("counter") => (format!("{name}_total"), "counter"),
            Some("gauge") if has_quantiles => (name.into(), "summary"),
            Some("unknown") | None => (name.into(), "untyped"),
            Some(kind) => (name.into(), kind),
        };
        out += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_is_for_those_who_want_it_more() {
        assert!(is_wanted("text/plain; version=0.0.4") && is_wanted("text/plain"));
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert!(!is_wanted("") && !is_wanted("*/*") && !is_wanted(prometheus));
        assert!(is_wanted("application/openmetrics-text;q=0.1, text/plain;q=0.9"));
    }

    #[test]
    fn headings_are_those_of_the_older_format() {
        let open = "# HELP a What.\n# TYPE a counter\na_total{x=\"1\"} 2.0\n# HELP b More.\n# TYPE b gauge\n\
                    b{quantile=\"0.5\"} 1\n# HELP c Last.\n# TYPE c gauge\nc 1\n# EOF\n";
        let wanted = "# HELP a_total What.\n# TYPE a_total counter\na_total{x=\"1\"} 2.0\n# HELP b More.\n\
                      # TYPE b summary\nb{quantile=\"0.5\"} 1\n# HELP c Last.\n# TYPE c gauge\nc 1\n";
        assert_eq!(plain(open), wanted);
    }
}

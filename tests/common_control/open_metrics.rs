//! A strict reader of the OpenMetrics text format: what a scraper could stumble over is an error.

use std::collections::{BTreeMap, BTreeSet};

/// A page that was read whole.
#[derive(Debug, Default)]
pub struct OpenMetrics {
    /// The type of each family by its name.
    pub families: BTreeMap<String, String>,
    /// The value of each series by its name and labels, as written.
    pub series: BTreeMap<String, f64>,
}

#[derive(Debug, Default)]
struct Family {
    name: String,
    kind: String,
    metadata: BTreeSet<String>,
    has_samples: bool,
}

// === impl OpenMetrics ===

impl OpenMetrics {
    /// Reads a page.
    ///
    /// # Errors
    /// The first line that is wrong, and why.
    pub fn read(text: &str) -> Result<Self, String> {
        let body = text.strip_suffix("# EOF\n").ok_or("the page does not end with # EOF")?;
        if !body.is_empty() && !body.ends_with('\n') {
            return Err("the last line has no end".into());
        }
        let (mut page, mut family) = (Self::default(), Family::default());
        for line in body.lines() {
            let read = match line.strip_prefix("# ") {
                Some(metadata) => page.metadata(metadata, &mut family),
                None => page.sample(line, &mut family),
            };
            read.map_err(|why| format!("{why}: {line}"))?;
        }
        page.check_histograms()?;
        Ok(page)
    }

    fn metadata(&mut self, line: &str, family: &mut Family) -> Result<(), String> {
        let mut words = line.splitn(3, ' ');
        let (what, name) = (words.next().unwrap_or_default(), words.next().ok_or("no name")?);
        let value = words.next().ok_or("no value")?;
        if !["HELP", "TYPE", "UNIT"].contains(&what) {
            return Err("an unknown kind of line".into());
        }
        check_name(name)?;
        if family.name != name {
            if self.families.contains_key(name) {
                return Err("a family that was over goes on".into());
            }
            *family = Family { name: name.to_owned(), kind: "unknown".into(), ..Family::default() };
            self.families.insert(name.to_owned(), "unknown".into());
        }
        if family.has_samples {
            return Err("metadata behind samples".into());
        }
        if !family.metadata.insert(what.to_owned()) {
            return Err("said twice".into());
        }
        if what == "TYPE" {
            if !["counter", "gauge", "histogram", "info"].contains(&value) {
                return Err("an unexpected type".into());
            }
            value.clone_into(&mut family.kind);
            self.families.insert(name.to_owned(), value.to_owned());
        }
        if what == "UNIT" && !name.ends_with(&format!("_{value}")) {
            return Err("a name without its unit".into());
        }
        Ok(())
    }

    fn sample(&mut self, line: &str, family: &mut Family) -> Result<(), String> {
        let (series, value) = line.rsplit_once(' ').ok_or("no value")?;
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').ok_or("labels without an end")?),
            None => (series, ""),
        };
        check_name(name)?;
        let keys = check_labels(labels)?;
        let suffix = name.strip_prefix(family.name.as_str()).filter(|_| !family.name.is_empty());
        let suffix = suffix.ok_or("a sample of no family, or of another one")?;
        let is_right = match family.kind.as_str() {
            "counter" => suffix == "_total",
            "gauge" => suffix.is_empty(),
            "info" => suffix == "_info",
            "histogram" => match suffix {
                "_bucket" => keys.contains("le"),
                _ => ["_sum", "_count"].contains(&suffix),
            },
            _ => false,
        };
        if !is_right || (suffix != "_bucket" && keys.contains("le")) {
            return Err(format!("a sample that a {} does not have", family.kind));
        }
        let value: f64 = value.parse().map_err(|_| "a value that is no number")?;
        if family.kind != "gauge" && (value.is_nan() || value < 0.0) {
            return Err("a count below zero".into());
        }
        family.has_samples = true;
        if self.series.insert(series.to_owned(), value).is_some() {
            return Err("a series that was there already".into());
        }
        Ok(())
    }

    /// Buckets grow with their bound, and the last one has them all.
    fn check_histograms(&self) -> Result<(), String> {
        let mut buckets: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for (series, count) in &self.series {
            let Some((name, labels)) = series.split_once("_bucket{") else { continue };
            let (others, bounds): (Vec<&str>, Vec<&str>) =
                labels.trim_end_matches('}').split(',').partition(|label| !label.starts_with("le="));
            let bound = bounds[0].trim_start_matches("le=").trim_matches('"');
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().map_err(|_| "a bound")? };
            let others = if others.is_empty() { String::new() } else { format!("{{{}}}", others.join(",")) };
            buckets.entry(format!("{name}_count{others}")).or_default().push((bound, *count));
        }
        for (count, mut bounds) in buckets {
            bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
            let grows = bounds.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
            let all = bounds.last().copied();
            if !grows || all != self.series.get(&count).map(|count| (f64::INFINITY, *count)) {
                return Err(format!("buckets that do not add up: {count} {bounds:?}"));
            }
        }
        Ok(())
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_right = name.bytes().all(is_word) && name.bytes().next().is_some_and(|first| !first.is_ascii_digit());
    if is_right { Ok(()) } else { Err(format!("the name {name:?}")) }
}

/// The names of the labels.
fn check_labels(mut labels: &str) -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    while !labels.is_empty() {
        let (name, rest) = labels.split_once("=\"").ok_or("a label without a value")?;
        check_name(name)?;
        if !names.insert(name.to_owned()) {
            return Err("a label twice".into());
        }
        let mut is_escaped = false;
        let end = rest.find(|character| {
            let ends = character == '"' && !is_escaped;
            is_escaped = character == '\\' && !is_escaped;
            ends
        });
        labels = &rest[end.ok_or("a label without an end")? + 1..];
        labels = match labels.strip_prefix(',') {
            Some("") => return Err("a comma too many".into()),
            Some(more) => more,
            None if labels.is_empty() => labels,
            None => return Err("labels without a comma".into()),
        };
    }
    Ok(names)
}

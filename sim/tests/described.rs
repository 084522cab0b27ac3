//! The manual's reference of a description against the parser: every key is there, with whether it may be left out.

use std::collections::{BTreeMap, BTreeSet};

use sim::disk::drive::describe::{DescribeError, Description};

const PAGE: &str = include_str!("../../docs/manual/lab-disk-description.md");

/// A key that no table has.
const UNKNOWN: &str = "no_such_key = 1";

/// The keys that the parser accepts beside an unknown one in the table `path`, which are in its error message. `None`
/// if there is no such table.
fn keys(path: &[(String, bool)]) -> Option<Vec<String>> {
    let inside = path.iter().rev().fold(UNKNOWN.to_string(), |inside, (key, is_list)| match is_list {
        true => format!("{key} = [{{ {inside} }}]"),
        false => format!("{key} = {{ {inside} }}"),
    });
    let Err(DescribeError::Syntax(error)) = Description::parse(&inside) else { panic!("{inside} is accepted") };
    let expected = error.message().strip_prefix("unknown field `no_such_key`, expected ")?;
    Some(expected.split('`').skip(1).step_by(2).map(str::to_string).collect())
}

/// Adds the keys below `path`, without those of tables, and reports whether it is a table.
fn collect(path: &mut Vec<(String, bool)>, found: &mut BTreeSet<String>) -> bool {
    let Some(keys) = keys(path) else { return false };
    for key in keys {
        let is_table = [false, true].into_iter().any(|is_list| {
            path.push((key.clone(), is_list));
            let is_table = collect(path, found);
            path.pop();
            is_table
        });
        if !is_table {
            let path = path.iter().map(|(key, _)| key.as_str()).chain([key.as_str()]);
            found.insert(path.collect::<Vec<_>>().join("."));
        }
    }
    true
}

/// The rows of the page: key, and what stands in the column of defaults.
fn rows() -> BTreeMap<String, String> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let mut cells = row.split('|').map(str::trim);
        let key = cells.next().unwrap().trim_end_matches('`').to_string();
        let default = cells.nth(1).unwrap_or_else(|| panic!("{row}")).to_string();
        assert_eq!(cells.filter(|cell| !cell.is_empty()).count(), 2, "range and meaning of {key}");
        (key, default)
    })
    .collect()
}

#[test]
fn every_key_is_in_the_reference() {
    let mut found = BTreeSet::new();
    assert!(collect(&mut Vec::new(), &mut found));
    assert!(found.contains("hdd.zones.skew_revolutions.band") && found.contains("throttle.burst_bytes"), "{found:?}");
    // The page has the keys of both seek tables once.
    let found: BTreeSet<String> = found.iter().map(|key| key.replace("hdd.write_seek.", "hdd.seek.")).collect();
    let documented: BTreeSet<String> = rows().into_keys().collect();
    assert_eq!(found, documented, "left: what the parser has, right: what the page has");
}

/// The table that holds `key` in `description`; of a list, each.
fn remove(description: &mut toml::Table, key: &str) -> bool {
    let Some((first, rest)) = key.split_once('.') else { return description.remove(key).is_some() };
    match description.get_mut(first) {
        Some(toml::Value::Table(table)) => remove(table, rest),
        Some(toml::Value::Array(list)) => {
            let tables = list.iter_mut().filter_map(|item| item.as_table_mut());
            tables.map(|table| remove(table, rest)).filter(|&removed| removed).count() > 0
        }
        _ => false,
    }
}

/// The examples have every key; without one that the reference calls required they are refused, without another they
/// are not.
#[test]
fn what_is_required_is_said() {
    let examples: Vec<toml::Table> =
        PAGE.split("```toml\n").skip(1).map(|text| text.split("```").next().unwrap().parse().unwrap()).collect();
    let build = |table: &toml::Table| {
        let description = Description::parse(&table.to_string())?;
        description.build().map(|_| ())
    };
    examples.iter().for_each(|example| build(example).unwrap());
    for (key, default) in rows() {
        let with: Vec<_> = examples
            .iter()
            .filter_map(|example| {
                let mut without = example.clone();
                remove(&mut without, &key).then_some(without)
            })
            .collect();
        if default.starts_with("or ") {
            continue;
        }
        assert!(!with.is_empty(), "{key} is in no example");
        for without in with {
            // The three skews of a zone go together, a burst needs its rate.
            let alone = match key.starts_with("hdd.zones.skew_revolutions") || key.ends_with("_per_s") {
                true => false,
                false => default != "required",
            };
            let built = build(&without);
            assert_eq!(built.is_ok(), alone, "{key}, by default {default}: {built:?}");
        }
    }
}

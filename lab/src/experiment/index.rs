//! The index of claims (`docs/claims-lab.md`): all claims of all experiments, with the figures of the record run.
//!
//! ```text
//! run --write docs/claims-lab.md            the record: full runs, and the figures of quick runs
//! run NAME --write docs/claims-lab.md       the same for one experiment
//! run --quick --check docs/claims-lab.md    for each change: the same claims, figures close to those of quick runs
//! ```
//!
//! Quick runs are shorter and have one seed, so some claims that hold in full runs fail in them. Therefore a quick run
//! is compared with a quick run. A figure may differ by [`STALE`], and a claim that held must hold. Some claims depend
//! on decisions of the server and occur in only one of the two runs; the column of the other has a dash. Downside:
//! smaller changes are not noticed until the next record.

use std::path::Path;

use super::{ALL, Claim};

const BEGIN: &str = "<!-- lab: begin -->\n";
const END: &str = "<!-- lab: end -->";
/// How far a figure of a quick run may be from the record: for ratios between 0 and about 1, this difference; for
/// larger figures, this fraction.
const STALE: f64 = 0.06;

/// The difference that rounding to the digits of the index may cause.
const ROUNDED: f64 = 0.001;

/// Claims by experiment.
pub type Found = Vec<(&'static str, Vec<Claim>)>;

/// The column's entry for a claim without a figure.
const NONE: &str = "-";

const HEAD: &str = "| experiment | claim | asked | measured | | quick |\n| --- | --- | --- | --- | --- | --- |\n";

/// The rows of the index.
fn rows(found: &Found, quick: &Found) -> String {
    let mut table = String::new();
    let by_name = |claims: &[Claim], name: &str| claims.iter().find(|claim| claim.name == name).cloned();
    for (experiment, claims) in found {
        let looked = quick.iter().find(|(other, _)| other == experiment).map_or(&[][..], |(_, claims)| claims);
        let only_quick = looked.iter().filter(|claim| by_name(claims, &claim.name).is_none());
        for Claim { name, bound, .. } in claims.iter().chain(only_quick) {
            let full = by_name(claims, name);
            let verdict = full.as_ref().map_or(NONE, |full| if full.holds { "holds" } else { "**misses**" });
            let [value, look] =
                [full, by_name(looked, name)].map(|claim| claim.map_or(NONE.into(), |claim| claim.shown()));
            table += &format!("| `{experiment}` | {name} | {bound} | {value} | {verdict} | {look} |\n");
        }
    }
    table
}

fn experiment_of(row: &str) -> Option<&str> {
    row.split('`').nth(1)
}

fn read(file: &Path) -> Result<(String, String, String), String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let wrong = || format!("{}: the table of claims stands between {} and {END}", file.display(), BEGIN.trim());
    let (before, rest) = text.split_once(BEGIN).ok_or_else(wrong)?;
    let (table, after) = rest.split_once(END).ok_or_else(wrong)?;
    Ok((before.into(), table.into(), after.into()))
}

/// Writes the figures of full runs, and of quick runs if there are any, into the index. Rows of experiments that were
/// not run stay as they are.
pub fn write(file: &Path, found: &Found, quick: &Found) -> Result<(), String> {
    let (before, old, after) = read(file)?;
    let new = rows(found, quick);
    let was_run = |row: &str| found.iter().any(|(name, _)| experiment_of(row) == Some(*name));
    let mut rows: Vec<&str> = old.lines().skip(2).filter(|row| !was_run(row)).chain(new.lines()).collect();
    rows.sort_by_key(|row| ALL.iter().position(|experiment| experiment_of(row) == Some(experiment.name)));
    let table: String = rows.into_iter().flat_map(|row| [row, "\n"]).collect();
    let text = format!("{before}{BEGIN}{HEAD}{table}{END}{after}");
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

/// Checks that the index has exactly these claims of quick runs for their experiments, with about the same figures.
pub fn check(file: &Path, found: &Found) -> Result<(), String> {
    let (_, table, _) = read(file)?;
    let rows: Vec<Vec<&str>> = table.lines().skip(2).map(|line| line.split(" | ").collect()).collect();
    let mut wrong = Vec::new();
    for (experiment, claims) in found {
        let of = format!("| `{experiment}`");
        let mut recorded: Vec<_> = rows.iter().filter(|row| row[0] == of).collect();
        for Claim { name, value, bound, holds } in claims {
            let Some(at) = recorded.iter().position(|row| row.get(1) == Some(&name.as_str())) else {
                wrong.push(format!("{experiment}: no row for \u{201c}{name}\u{201d}"));
                continue;
            };
            let row = recorded.swap_remove(at);
            let look = row.get(5).and_then(|look| look.trim_end_matches(" |").parse::<f64>().ok());
            let held = look.is_some_and(|look| Claim::new(name.clone(), look, *bound).holds);
            if row.get(2) != Some(&bound.to_string().as_str()) {
                wrong.push(format!("{experiment}: \u{201c}{name}\u{201d} is to be {bound} now"));
            } else if look.is_none_or(|look| (look - value).abs() > STALE * value.abs().max(1.0)) {
                wrong.push(format!("{experiment}: \u{201c}{name}\u{201d} is {value:.3} now"));
            } else if held && !holds && look.is_some_and(|look| (look - value).abs() > ROUNDED) {
                wrong.push(format!("{experiment}: \u{201c}{name}\u{201d} does not hold any more: {value:.3}"));
            }
        }
        let gone = recorded.iter().filter(|row| row.get(5).is_none_or(|look| look.trim_end_matches(" |") != NONE));
        wrong.extend(gone.map(|row| format!("{experiment}: nobody claims \u{201c}{}\u{201d} any more", row[1])));
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let fix = format!("`make lab` writes {} anew", file.display());
    Err(format!("{} is out of date:\n  {}\n{fix}", file.display(), wrong.join("\n  ")))
}

#[cfg(test)]
mod tests {
    use super::super::Bound;
    use super::*;

    fn found(value: f64) -> Found {
        vec![("streams", vec![Claim::new("kept", value, Bound::AtMost(0.3))])]
    }

    #[test]
    fn stale_missing_and_left_over_rows_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("claims-lab.md");
        std::fs::write(&file, format!("before\n{BEGIN}{END}\nafter\n")).unwrap();
        assert!(check(&file, &found(0.1)).unwrap_err().contains("no row for"));
        write(&file, &found(0.2), &found(0.1)).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("before\n") && text.ends_with("\nafter\n"), "{text}");
        check(&file, &found(0.12)).unwrap();
        assert!(check(&file, &found(0.25)).unwrap_err().contains("is 0.250 now"));
        write(&file, &found(0.2), &found(0.28)).unwrap();
        assert!(check(&file, &found(0.31)).unwrap_err().contains("does not hold any more"));
        write(&file, &found(0.2), &found(0.31)).unwrap();
        check(&file, &found(0.32)).expect("it is on record that it misses");
        assert!(check(&file, &found(0.5)).unwrap_err().contains("is 0.500 now"));
        write(&file, &found(0.2), &vec![]).unwrap();
        assert!(check(&file, &found(0.1)).unwrap_err().contains("is 0.100 now"), "nothing to compare with");
        check(&file, &vec![("streams", vec![])]).expect("quick runs did not claim it before");
        write(&file, &vec![("streams", vec![])], &found(0.1)).unwrap();
        check(&file, &found(0.12)).expect("only quick runs claim it");
        write(&file, &found(0.2), &found(0.1)).unwrap();
        assert!(check(&file, &vec![("streams", vec![])]).unwrap_err().contains("any more"));
        write(&file, &vec![("depths", vec![])], &vec![("depths", found(0.3).remove(0).1)]).unwrap();
        write(&file, &found(0.2), &found(0.1)).unwrap();
        check(&file, &found(0.1)).expect("it was run again");
        check(&file, &vec![("depths", found(0.3).remove(0).1)]).expect("its rows stay");
        let other = vec![("streams", vec![Claim::new("kept", 0.1, Bound::AtMost(0.4))])];
        assert!(check(&file, &other).unwrap_err().contains("at most 0.4"));
    }

    #[test]
    fn an_index_without_its_place_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("claims-lab.md");
        std::fs::write(&file, "nothing").unwrap();
        assert!(write(&file, &found(0.2), &found(0.1)).unwrap_err().contains("claims-lab.md"));
    }
}

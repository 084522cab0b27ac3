//! The index of claims (`docs/claims.md`): every claim of every experiment, with the figure that the record run found.
//!
//! ```text
//!   run --write docs/claims.md        the record: full runs
//!   run --quick --check docs/claims.md    each change: the same claims, and figures that are still about the same
//! ```
//!
//! Quick runs are shorter and have one seed, so a figure may differ by [`STALE`]. That is the downside: what changes by
//! less goes unnoticed until the next record. What is on record as missed may miss by any figure.

use std::path::Path;

use super::Claim;

const BEGIN: &str = "<!-- lab: begin -->\n";
const END: &str = "<!-- lab: end -->";
/// How far a quick run may be from the record: most claims are ratios between 0 and about 1; of larger figures, this part.
const STALE: f64 = 0.06;

/// Claims by experiment.
pub type Found = Vec<(&'static str, Vec<Claim>)>;

/// The table that belongs into the index.
fn table(found: &Found) -> String {
    let mut table = String::from("| experiment | claim | asked | measured | |\n| --- | --- | --- | --- | --- |\n");
    for (experiment, claims) in found {
        for Claim { name, value, bound, holds } in claims {
            let verdict = if *holds { "holds" } else { "**misses**" };
            table += &format!("| `{experiment}` | {name} | {bound} | {value:.3} | {verdict} |\n");
        }
    }
    table
}

fn read(file: &Path) -> Result<(String, String, String), String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let wrong = || format!("{}: the table of claims stands between {} and {END}", file.display(), BEGIN.trim());
    let (before, rest) = text.split_once(BEGIN).ok_or_else(wrong)?;
    let (table, after) = rest.split_once(END).ok_or_else(wrong)?;
    Ok((before.into(), table.into(), after.into()))
}

/// Puts the table into the index.
pub fn write(file: &Path, found: &Found) -> Result<(), String> {
    let (before, _, after) = read(file)?;
    let text = format!("{before}{BEGIN}{}{END}{after}", table(found));
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

/// Whether the index has these claims with about these figures, and no others of their experiments.
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
            let figure = row.get(3).and_then(|figure| figure.parse::<f64>().ok());
            let held = row.get(4) == Some(&"holds |");
            if row.get(2) != Some(&bound.to_string().as_str()) {
                wrong.push(format!("{experiment}: \u{201c}{name}\u{201d} is to be {bound} now"));
            } else if held && figure.is_none_or(|figure| (figure - value).abs() > STALE * value.abs().max(1.0)) {
                wrong.push(format!("{experiment}: \u{201c}{name}\u{201d} is {value:.3} now"));
            } else if held && !holds {
                wrong.push(format!("{experiment}: \u{201c}{name}\u{201d} does not hold any more: {value:.3}"));
            }
        }
        wrong.extend(
            recorded.iter().map(|row| format!("{experiment}: nobody claims \u{201c}{}\u{201d} any more", row[1])),
        );
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
        let file = dir.path().join("claims.md");
        std::fs::write(&file, format!("before\n{BEGIN}{END}\nafter\n")).unwrap();
        assert!(check(&file, &found(0.1)).unwrap_err().contains("no row for"));
        write(&file, &found(0.1)).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("before\n") && text.ends_with("\nafter\n"), "{text}");
        check(&file, &found(0.12)).unwrap();
        assert!(check(&file, &found(0.25)).unwrap_err().contains("is 0.250 now"));
        write(&file, &found(0.28)).unwrap();
        assert!(check(&file, &found(0.31)).unwrap_err().contains("does not hold any more"));
        write(&file, &found(0.31)).unwrap();
        check(&file, &found(0.32)).expect("it is on record that it misses");
        write(&file, &found(0.1)).unwrap();
        assert!(check(&file, &vec![("streams", vec![])]).unwrap_err().contains("any more"));
        let other = vec![("streams", vec![Claim::new("kept", 0.1, Bound::AtMost(0.4))])];
        assert!(check(&file, &other).unwrap_err().contains("at most 0.4"));
    }

    #[test]
    fn an_index_without_its_place_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("claims.md");
        std::fs::write(&file, "nothing").unwrap();
        assert!(write(&file, &found(0.1)).unwrap_err().contains("claims.md"));
    }
}

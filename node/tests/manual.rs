//! The manual shows the help as the program prints it. `UPDATE_MANUAL=1 cargo test -p node the_manual_agrees` writes
//! it.

#[path = "../../tests/harness/agrees.rs"]
mod agrees;

use std::fs;
use std::path::Path;
use std::process::Command;

/// The pages with the help of a command.
const PAGES: [&str; 11] = [
    "serve.md",
    "volume.md",
    "store.md",
    "offload.md",
    "tenant.md",
    "policy.md",
    "disk.md",
    "cluster.md",
    "allocate.md",
    "status.md",
    "top.md",
];

#[test]
fn the_manual_agrees_with_the_help() {
    agrees::check("aerogel", env!("CARGO_BIN_EXE_aerogel"), &PAGES);
}

/// The commands in the help of `words`, and those below them, which have none themselves.
fn commands(words: &[String]) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_aerogel")).args(words).arg("--help").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let Some((_, list)) = text.split_once("\nCommands:\n") else { return vec![words.join(" ")] };
    let list = list.lines().take_while(|line| !line.is_empty());
    let names = list.filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()));
    let names = names.filter(|name| !["help", "completion"].contains(name));
    names.flat_map(|name| commands(&[words, &[name.to_owned()]].concat())).collect()
}

#[test]
fn every_command_is_in_the_manual() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/manual");
    let pages = PAGES.map(|page| fs::read_to_string(directory.join(page)).unwrap());
    let all = commands(&[]);
    assert!(all.len() > 30, "{all:?}");
    for command in all {
        let help = format!("$ aerogel {command} --help\n");
        assert!(pages.iter().any(|page| page.contains(&help)), "no page of the manual has {help}");
    }
}

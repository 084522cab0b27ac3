//! The manual shows the help as the program prints it. `UPDATE_MANUAL=1 cargo test -p lab --test manual` writes it.

use std::fs;
use std::path::Path;
use std::process::Command;

fn help(words: &str) -> String {
    let program = env!("CARGO_BIN_EXE_aerogel-lab");
    let output = Command::new(program).args(words.split(' ')).arg("--help").output().unwrap();
    assert!(output.status.success(), "{words}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    format!("```text\n$ aerogel-lab {words} --help\n{}\n```\n", lines.join("\n"))
}

fn check(page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/manual").join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once("<!-- help: ").expect("a marker");
    let (commands, rest) = rest.split_once(" -->\n").expect("commands");
    let (_, after) = rest.split_once("<!-- end -->").expect("an end");
    let shown: Vec<String> = commands.split(", ").map(help).collect();
    let right = format!("{before}<!-- help: {commands} -->\n{}<!-- end -->{after}", shown.join("\n"));
    if std::env::var_os("UPDATE_MANUAL").is_some() {
        fs::write(&path, &right).unwrap();
    } else {
        assert!(text == right, "docs/manual/{page} differs from the help: run this test with UPDATE_MANUAL=1");
    }
}

#[test]
fn the_manual_agrees_with_the_help() {
    ["lab-trace.md", "lab-replay.md"].into_iter().for_each(check);
}

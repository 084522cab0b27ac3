//! For the tests of `node` and `lab`: checks that a page of the manual shows the help as the program prints it. With
//! `UPDATE_MANUAL=1` the page is written. The page lists the commands between `<!-- help: COMMAND, COMMAND -->` and
//! `<!-- end -->`.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Checks pages of the program `name`, whose executable is at `path`.
pub fn check(name: &str, path: &str, pages: &[&str]) {
    pages.iter().for_each(|page| check_page(name, path, page));
}

fn help(name: &str, path: &str, words: &str) -> String {
    let output = Command::new(path).args(words.split(' ')).arg("--help").env_remove("AEROGEL_DATA").output().unwrap();
    assert!(output.status.success(), "{words}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    format!("```text\n$ {name} {words} --help\n{}\n```\n", lines.join("\n"))
}

fn check_page(name: &str, path: &str, page: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/manual").join(page);
    let text = fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once("<!-- help: ").expect("a marker");
    let (commands, rest) = rest.split_once(" -->\n").expect("commands");
    let (_, after) = rest.split_once("<!-- end -->").expect("an end");
    let shown: Vec<String> = commands.split(", ").map(|words| help(name, path, words)).collect();
    let right = format!("{before}<!-- help: {commands} -->\n{}<!-- end -->{after}", shown.join("\n"));
    if std::env::var_os("UPDATE_MANUAL").is_some() {
        fs::write(&file, &right).unwrap();
    } else {
        assert!(text == right, "docs/manual/{page} differs from the help: run this test with UPDATE_MANUAL=1");
    }
}

//! The manual shows the help as the program prints it. `UPDATE_MANUAL=1 cargo test -p lab --test manual` writes it.

#[path = "../../tests/harness/agrees.rs"]
mod agrees;

#[test]
fn the_manual_agrees_with_the_help() {
    agrees::check(
        "aerogel-lab",
        env!("CARGO_BIN_EXE_aerogel-lab"),
        &["lab-trace.md", "lab-replay.md", "lab-run.md", "lab-disk.md", "lab-curve.md", "lab-mix.md"],
    );
}

#[test]
fn the_mix_of_the_manual_is_the_example() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let [manual, example] = ["docs/manual/lab-mix.md", "examples/mix.toml"]
        .map(|file| std::fs::read_to_string(format!("{root}/{file}")).expect(file));
    assert!(manual.contains(&format!("```toml\n{example}```")));
}

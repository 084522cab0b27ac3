//! The manual shows the help as the program prints it. `UPDATE_MANUAL=1 cargo test -p lab the_manual_agrees` writes it.

#[path = "../../tests/harness/agrees.rs"]
mod agrees;

#[test]
fn the_manual_agrees_with_the_help() {
    agrees::check(
        "aerogel-lab",
        env!("CARGO_BIN_EXE_aerogel-lab"),
        &["lab-trace.md", "lab-replay.md", "lab-run.md", "lab-disk.md", "lab-curve.md", "lab-mix.md", "lab-pack.md"],
    );
}

#[test]
fn the_examples_are_in_the_manual() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let read = |file: &str| std::fs::read_to_string(format!("{root}/{file}")).expect(file);
    for (manual, example, language) in [("lab-mix.md", "mix.toml", "toml"), ("lab-pack.md", "cluster.json", "json")] {
        let (manual, example) = (read(&format!("docs/manual/{manual}")), read(&format!("examples/{example}")));
        assert!(manual.contains(&format!("```{language}\n{example}```")), "{example}");
    }
}

#[test]
fn a_cluster_is_packed_as_the_manual_says() {
    let pack = |file: &std::path::Path| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_aerogel-lab"));
        command.arg("pack").arg(file).arg("--json").output().expect("it runs")
    };
    let example = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/cluster.json");
    let packed: serde_json::Value = serde_json::from_slice(&pack(&example).stdout).expect("JSON");
    assert_eq!(packed["r_cluster"], 1.0);
    let slots = packed["slots"].as_array().expect("a list");
    assert_eq!(slots.len(), 5);
    assert_eq!(slots[4]["tenant"], 4);
    assert_eq!(slots[4]["servers"], serde_json::json!([0, 4, 7]));
    assert!((slots[4]["length"].as_f64().expect("a number") - 0.25).abs() < 1e-9);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), r#"{"servers": 1, "tenants": [{"servers": 2, "share": "1/2"}]}"#).expect("written");
    let refused = pack(file.path());
    assert!(!refused.status.success() && refused.stdout.is_empty());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("tenant 0 asks for more servers than there are"));
}

//! Replays as users run them.

use std::process::Command;

/// A pause in a trace is no hung server, also if a request comes at the very end of a step of 10 s.
#[test]
fn long_gaps_in_virtual_time() {
    let file = std::env::temp_dir().join(format!("aerogel-gaps-{}.trace", std::process::id()));
    let lines = (0..4).map(|at| format!("{}.000 0 {} 8 1\n", at * 20_000, at * 5000));
    std::fs::write(&file, lines.collect::<String>()).unwrap();
    let mut lab = Command::new(env!("CARGO_BIN_EXE_aerogel-lab"));
    lab.args(["replay", "--format", "disksim", "--disk", "cheetah-15k5", "--json", "--trace"]).arg(&file);
    let output = lab.output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["reads"]["requests"], 4, "{report}");
}

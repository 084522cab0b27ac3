//! Mixes as users run them.

use std::process::Command;

/// Without insulation, what a client with one request at a time loses is shown. What is not known is not shown.
#[test]
fn without_insulation_the_loss_is_shown() {
    let tenant = |name: &str, depth: u32| {
        format!("[[tenant]]\nname = \"{name}\"\nshare = \"1/2\"\nsize = \"16GiB\"\nload = \"rand:depth={depth}\"\n")
    };
    let text = ["policy = \"none\"\nmemory = \"64MiB\"\nwarm_up = \"20s\"\ncounted = \"20s\"\n".into()];
    let text: String = text.into_iter().chain([tenant("one", 1), tenant("many", 32)]).collect();
    let file = std::env::temp_dir().join(format!("aerogel-mix-{}.toml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let lab = || Command::new(env!("CARGO_BIN_EXE_aerogel-lab"));
    let output = lab().args(["mix", "--json", "--disk", "barracuda-7200.9"]).arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let [one, many] = [0, 1].map(|at| report["disks"][0]["tenants"][at].clone());
    let (kept, live) = (one["kept"].as_f64().unwrap(), one["live"].as_f64().unwrap());
    assert!(kept < 0.1 && (live - kept).abs() <= 0.1 && live > 0.0, "{one}");
    assert!(many["kept"].as_f64().unwrap() > 1.5 && many["live"].is_null(), "{many}");
    assert_eq!(one["decision"], "none");
}

//! The manual shows the help as the program prints it. `UPDATE_MANUAL=1 cargo test -p node --test manual` writes it.

#[path = "../../tests/harness/agrees.rs"]
mod agrees;

#[test]
fn the_manual_agrees_with_the_help() {
    agrees::check(
        "aerogel",
        env!("CARGO_BIN_EXE_aerogel"),
        &[
            "serve.md",
            "volume.md",
            "store.md",
            "offload.md",
            "tenant.md",
            "policy.md",
            "disk.md",
            "status.md",
            "top.md",
        ],
    );
}

//! Does the probe find the truth? All presets, in virtual time, against what their descriptions say and what fresh drives
//! do under other loads.

use engine::disk::profile::{BUDGET_NS, Key, Options};
use sim::disk::drive::presets::{PRESETS, preset};
use sim::disk::probe::probe;
use sim::disk::truth::truth;

/// What the probe of a seed finds wrong.
fn wrong(name: &str, seed: u64) -> Vec<String> {
    let description = preset(name).unwrap().unwrap();
    let mut drive = description.build().unwrap();
    let (found, took_ns) = probe(&mut *drive, Options { budget_ns: BUDGET_NS, seed, read_only: false });
    // A request in flight when the time is over is waited for.
    assert!(took_ns < BUDGET_NS + BUDGET_NS / 50, "{name} took {took_ns} ns");
    let number =
        |key: Key| found.iter().find(|(k, _)| *k == key).unwrap_or_else(|| panic!("{name} has no {key}")).1.value;
    let truths = truth(&description, 99).unwrap();
    // Falls short: a drive that misses a revolution now and then does so more or less often in the few seconds that the probe
    // writes a stream, so that these values are held to 20 % only.
    let near = |truth: &sim::disk::truth::Truth| {
        let (found, truth_is) = (number(truth.key).unwrap_or(0.0), truth.value.unwrap_or(f64::INFINITY));
        truth.key.to_string().starts_with("sequential_write") && (found / truth_is - 1.0).abs() <= 0.2
    };
    let missed = truths.into_iter().filter(|truth| !truth.accepts(number(truth.key)) && !near(truth));
    missed.map(|truth| format!("{}: {:?}, and the truth is {:?}", truth.key, number(truth.key), truth.value)).collect()
}

fn check(name: &str) {
    let wrong = wrong(name, 1);
    assert!(wrong.is_empty(), "{name}:\n  {}", wrong.join("\n  "));
}

/// Chance decides where requests go, so a value may miss its bound now and then: how often, of all values and 20 seeds?
#[test]
#[ignore = "takes a minute"]
fn other_seeds_seldom_miss() {
    let mut missed = 0;
    for (name, _) in PRESETS {
        for seed in 0..20 {
            for what in wrong(name, seed) {
                println!("{name}, seed {seed}: {what}");
                missed += 1;
            }
        }
    }
    assert!(missed <= 20 * PRESETS.len() / 4, "{missed} values of {} probes", 20 * PRESETS.len());
}

macro_rules! presets {
    ($($test:ident: $name:literal),+ $(,)?) => {
        $(#[test] fn $test() { check($name) })+
        #[test]
        fn every_preset_is_here() {
            assert_eq!([$($name),+], PRESETS.iter().map(|(name, _)| *name).collect::<Vec<_>>()[..]);
        }
    };
}

presets![
    cheetah: "cheetah-15k5",
    barracuda_of_1996: "barracuda-st32171w",
    barracuda_of_2005: "barracuda-7200.9",
    nearline: "nearline",
    flash: "flash",
    throttled: "throttled",
];

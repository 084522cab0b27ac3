//! Does the probe find the truth? All presets, in virtual time, against what their descriptions say and what fresh drives
//! do under other loads.

use engine::disk::profile::{BUDGET_NS, Key, Options};
use sim::disk::drive::presets::{PRESETS, preset};
use sim::disk::probe::probe;
use sim::disk::truth::truth;

fn check(name: &str) {
    let description = preset(name).unwrap().unwrap();
    let mut drive = description.build().unwrap();
    let (found, took_ns) = probe(&mut *drive, Options { budget_ns: BUDGET_NS, seed: 7, read_only: false });
    // A request in flight when the time is over is waited for.
    assert!(took_ns < BUDGET_NS + BUDGET_NS / 50, "{name} took {took_ns} ns");
    let number =
        |key: Key| found.iter().find(|(k, _)| *k == key).unwrap_or_else(|| panic!("{name} has no {key}")).1.value;
    let wrong: Vec<String> = truth(&description, 99)
        .unwrap()
        .into_iter()
        .filter(|truth| !truth.accepts(number(truth.key)))
        .map(|truth| format!("{}: {:?}, and the truth is {:?}", truth.key, number(truth.key), truth.value))
        .collect();
    assert!(wrong.is_empty(), "{name}:\n  {}", wrong.join("\n  "));
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

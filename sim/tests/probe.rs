//! Does the probe find the truth? All presets, in virtual time, against what their descriptions say and what fresh drives
//! do under other loads.

use engine::disk::profile::{BUDGET_NS, Options};
use sim::disk::drive::describe::Description;
use sim::disk::drive::presets::{PRESETS, preset};
use sim::disk::probe::probe;
use sim::disk::truth::{Truth, truth};

/// Probes of each preset.
const SEEDS: u64 = 20;
/// Chance decides where requests go, so a value may miss its bound now and then: so many of all that these probes find. (There
/// are 40 values, and bounds of two to three standard deviations.)
const MISSED_MOST: usize = 5;

/// What the probe of a seed finds wrong.
fn wrong(description: &Description, truths: &[Truth], seed: u64) -> Vec<String> {
    let mut drive = description.build().unwrap();
    let (found, took_ns) = probe(&mut *drive, Options { budget_ns: BUDGET_NS, seed, read_only: false });
    // A request in flight when the time is over is waited for.
    assert!(took_ns < BUDGET_NS + BUDGET_NS / 50, "it took {took_ns} ns");
    let missed = truths.iter().filter_map(|truth| {
        let Truth { key, value, accepted } = *truth;
        let found =
            found.iter().find(|(k, _)| *k == key).unwrap_or_else(|| panic!("nothing was found of {key}")).1.value;
        let said = format!("seed {seed}, {key}: {found:?}, and the truth is {value:?}");
        // However far chance goes: not twice as far.
        let twice = |bound: f64| 2.0 * bound - value.unwrap_or(0.0);
        let far = Truth { accepted: (twice(accepted.0), twice(accepted.1)), ..*truth };
        assert!(far.accepts(found), "{said}");
        (!truth.accepts(found)).then_some(said)
    });
    missed.collect()
}

fn check(name: &str) {
    let description = preset(name).unwrap().unwrap();
    let truths = truth(&description, 99).unwrap();
    let missed: Vec<String> = (0..SEEDS).flat_map(|seed| wrong(&description, &truths, seed)).collect();
    eprintln!("{name}: {} of {} values missed\n  {}", missed.len(), SEEDS as usize * truths.len(), missed.join("\n  "));
    assert!(missed.len() <= MISSED_MOST, "{name}:\n  {}", missed.join("\n  "));
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

//! The accuracy of the probe: all presets, in virtual time, compared with their descriptions and with fresh drives
//! under other loads.

use engine::disk::profile::{BUDGET_NS, Key, Options, doubt};
use sim::disk::drive::describe::Description;
use sim::disk::drive::presets::{PRESETS, preset};
use sim::disk::probe::probe;
use sim::disk::truth::{Truth, truth};

/// Probes of each preset.
const SEEDS: u64 = 20;
/// Maximum number of misses among all values that these probes of a preset find. Requests are random, so a value may
/// miss its bound occasionally. (There are 40 values, and bounds of two to three standard deviations.)
const MISSED_MOST: usize = 5;

/// The wrong findings of one probe.
fn wrong(description: &Description, truths: &[Truth], seed: u64) -> Vec<String> {
    let mut drive = description.build().unwrap();
    let (found, took_ns) = probe(&mut *drive, Options { budget_ns: BUDGET_NS, seed, read_only: false });
    // The probe waits for requests that are in flight when its time is over.
    assert!(took_ns < BUDGET_NS + BUDGET_NS / 50, "it took {took_ns} ns");
    let missed = truths.iter().filter_map(|truth| {
        let Truth { key, value, accepted } = *truth;
        let found =
            found.iter().find(|(k, _)| *k == key).unwrap_or_else(|| panic!("nothing was found of {key}")).1.value;
        let said = format!("seed {seed}, {key}: {found:?}, and the truth is {value:?}");
        // No value may miss by more than twice its bound.
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

/// The time that a quick probe has for requests: 15 s without preparing the scratch file.
const QUICK_NS: u64 = 13_050_000_000;
/// Quick probes of each preset.
const QUICK_SEEDS: u64 = 50;

/// A server probes a disk automatically in so short a time. A result that it considers certain must be correct;
/// occasionally it may find none.
#[test]
fn a_quick_probe_never_takes_heads_for_none() {
    for (name, _) in PRESETS {
        let description = preset(name).unwrap().unwrap();
        let mut doubts = Vec::new();
        for seed in 0..QUICK_SEEDS {
            let mut drive = description.build().unwrap();
            let (found, _) = probe(&mut *drive, Options { budget_ns: QUICK_NS, seed, read_only: seed % 2 == 1 });
            let number = |key| found.iter().find(|(k, _)| *k == key).and_then(|(_, finding)| finding.value);
            match doubt(&found) {
                Some(why) => doubts.push(format!("seed {seed}: {why}")),
                None => assert_eq!(
                    number(Key::NeedsSlices) == Some(1.0),
                    description.hdd().unwrap().is_some(),
                    "{name}, seed {seed}"
                ),
            }
        }
        eprintln!("{name}: {} of {QUICK_SEEDS} in doubt\n  {}", doubts.len(), doubts.join("\n  "));
        // In so short a time, little can be said about a drive of 1996.
        let most = if *name == "barracuda-st32171w" { QUICK_SEEDS } else { QUICK_SEEDS / 10 };
        assert!(doubts.len() as u64 <= most, "{name}:\n  {}", doubts.join("\n  "));
    }
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
    enterprise: "enterprise-10k",
    laptop: "laptop-5400",
    flash: "flash",
    throttled: "throttled",
];

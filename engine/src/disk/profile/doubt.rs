//! Whether the result of an automatic probe is certain enough to choose a policy.
//!
//! An operator judges a manual probe, and reads what disturbed it. An automatic probe chooses between slices and fair
//! queueing by itself, and a wrong choice is worse than none: slices waste a device without heads, and fair queueing on
//! a device with heads insulates no tenant. So a value near a bound, a disturbed measurement and contradictory evidence
//! all count as doubt.

use super::findings::{EFFICIENT, SWITCH_PART};
use super::{Direction, Finding, Key, Quantile};

/// Above these parts a measurement does not describe the device alone. They are higher than the noise of an idle
/// machine, and lower than a disturbance of both compared phases that could turn an interleaved efficiency of 1 into
/// 0.9, or the reverse.
const DISTURBED: [(Key, f64, &str); 4] = [
    (Key::DisturbedByOthers, 0.2, "others used {} of the device"),
    (Key::DisturbedByOthersMost, 0.5, "others used {} of the device in one phase"),
    (Key::DisturbedByVolumes, 0.05, "its volumes had requests in the device {} of the time"),
    (Key::DisturbedByProcessor, 0.5, "the probe waited for a processor {} of the time"),
];
/// Factor by which a clearly cheap switch is below the bound, and a clearly expensive one above it.
const MARGIN: f64 = 2.0;
/// A switch that takes at least this long, nanoseconds, is a seek (half a short one), whatever two streams reached.
/// Without a measured rotation, heads are assumed only above it; no heads are assumed only below it.
const SWITCH_NS_LEAST: f64 = 1e6;

/// The reason why the values of a probe do not suffice to choose between slices and fair queueing; `None` if they do.
pub fn doubt(found: &[(Key, Finding)]) -> Option<String> {
    let finding = |key: Key| found.iter().find(|(k, _)| *k == key).map(|(_, finding)| *finding);
    let number = |key: Key| finding(key).and_then(|finding| finding.value);
    for (key, most, text) in DISTURBED {
        if let Some(ratio) = number(key).filter(|&ratio| ratio > most) {
            return Some(text.replace("{}", &format!("{:.0} %", ratio * 100.0)));
        }
    }
    let values = (
        number(Key::NeedsSlices),
        finding(Key::InterleavedEfficiency),
        number(Key::SwitchCost(Quantile::P50)),
        number(Key::ServiceTime(Direction::Read, Quantile::P50)),
    );
    let (Some(needed), Some(Finding { value: Some(efficiency), error_ratio }), Some(switch), Some(service)) = values
    else {
        return Some("it was too short to measure what switching costs".into());
    };
    let (error, turns) = (error_ratio.unwrap_or(0.0), number(Key::RotationPeriod).is_some());
    let bound = SWITCH_PART * service;
    let said = || {
        format!(
            "two streams reached {:.0} % (± {:.0} %) of one, and a switch took {:.0} us beside {:.0} us for a read",
            efficiency * 100.0,
            error * 100.0,
            switch / 1e3,
            service / 1e3
        )
    };
    if needed != 0.0 {
        let is_sure = switch > MARGIN * bound && (turns || switch >= SWITCH_NS_LEAST);
        return (!is_sure).then(|| format!("it is not clear that the device has heads: {}", said()));
    }
    let is_sure = switch < SWITCH_NS_LEAST && (switch * MARGIN < bound || efficiency * (1.0 - error) >= EFFICIENT);
    if turns {
        return Some(format!("the device turns, and yet seems to lose nothing by switching: {}", said()));
    }
    (!is_sure).then(|| format!("it is not clear that the device has no heads: {}", said()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(needed: f64, efficiency: (f64, f64), switch: f64, service: f64) -> Vec<(Key, Finding)> {
        let plain = |key, value| (key, Finding::plain(Some(value)));
        vec![
            plain(Key::NeedsSlices, needed),
            (Key::InterleavedEfficiency, Finding { value: Some(efficiency.0), error_ratio: Some(efficiency.1) }),
            plain(Key::SwitchCost(Quantile::P50), switch),
            plain(Key::ServiceTime(Direction::Read, Quantile::P50), service),
        ]
    }

    #[test]
    fn what_is_clear_is_believed() {
        assert_eq!(doubt(&found(1.0, (0.3, 0.05), 12e6, 9e6)), None, "heads");
        assert_eq!(doubt(&found(0.0, (0.98, 0.02), 10e3, 80e3)), None, "flash");
        assert_eq!(doubt(&found(0.0, (0.7, 0.3), 1e3, 80e3)), None, "switches that cost nothing");
    }

    #[test]
    fn what_is_near_a_bound_or_contradicts_itself_is_doubted() {
        let doubted = |found: Vec<_>| doubt(&found).unwrap();
        assert!(doubted(found(1.0, (0.8, 0.02), 10e3, 80e3)).contains("has heads"), "a little dear");
        assert!(doubted(found(1.0, (0.5, 0.02), 80e3, 80e3)).contains("has heads"), "too quick for a seek");
        assert!(doubted(found(0.0, (0.91, 0.1), 30e3, 80e3)).contains("has no heads"));
        assert!(
            doubted(found(0.0, (0.94, 0.0), 15e6, 15e6)).contains("has no heads"),
            "an old drive, by chance efficient"
        );
        let mut turning = found(0.0, (0.98, 0.02), 10e3, 80e3);
        turning.push((Key::RotationPeriod, Finding::plain(Some(8.3e6))));
        assert!(doubted(turning).contains("turns"));
        assert!(doubted(Vec::new()).contains("too short"));
        for (key, most, _) in DISTURBED {
            let mut disturbed = found(0.0, (0.98, 0.02), 10e3, 80e3);
            disturbed.push((key, Finding::plain(Some(most + 0.01))));
            assert!(doubted(disturbed).contains('%'), "{key}");
        }
    }
}

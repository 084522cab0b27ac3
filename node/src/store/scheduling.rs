//! The scheduling of a disk: the operator's settings in `disk.toml`, and the settings that follow from them and from
//! the disk's profile.

use std::time::Duration;

use engine::disk::policy::{Kind, Prices, Settings, UnknownKind};
use engine::disk::profile::{Key, Profile, Quantile};
use engine::units::Nanos;
use serde::{Deserialize, Serialize};

use super::Model;
use crate::quantity::{Insulation, Time, as_text};

/// Permitted values of `max_round`: in shorter rounds the time is lost in context switches; longer waits have no use.
const ROUND_MAX: std::ops::RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(60);

/// A scheduling policy as text: its name, and a parameter of some (`token-bucket:1.2`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PolicyName(pub Kind);

impl std::fmt::Display for PolicyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for PolicyName {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<PolicyName, UnknownKind> {
        text.parse().map(PolicyName)
    }
}

as_text!(PolicyName);

/// A maximum round that is out of bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the maximum round has to be from {} to {}, not {_0}",
    Time(*ROUND_MAX.start()),
    Time(*ROUND_MAX.end())
)]
pub struct RoundError(Time);

/// The operator's settings. What is not set follows from the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduling {
    /// The policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyName>,
    /// The target of R.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insulation: Option<Insulation>,
    /// The maximum length of a round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_round: Option<Time>,
    /// Whether the server does not probe the disk by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_probe: bool,
}

/// The settings in effect, with the reason.
#[derive(Clone, PartialEq, Debug)]
pub struct Chosen {
    /// The policy.
    pub name: PolicyName,
    /// Why it was chosen.
    pub reason: String,
    /// The settings for the engine.
    pub settings: Settings,
}

impl Chosen {
    /// Whether tenants have slices.
    pub fn has_slices(&self) -> bool {
        self.settings.has_slices()
    }
}

impl Scheduling {
    /// Whether nothing is set.
    pub fn is_default(&self) -> bool {
        *self == Scheduling::default()
    }

    /// Returns an error if a setting is out of range.
    pub fn check(&self) -> Result<(), RoundError> {
        match self.max_round.filter(|round| !ROUND_MAX.contains(&round.0)) {
            Some(round) => Err(RoundError(round)),
            None => Ok(()),
        }
    }

    /// The settings for a disk with this profile. `usual` holds the defaults.
    pub fn choose(&self, usual: Settings, disk: &str, model: Option<&Model>, profile: &Profile) -> Chosen {
        let (name, reason) = self.choose_policy(disk, model, profile);
        let settings = Settings {
            kind: name.0,
            insulation_permille: self.insulation.map_or(usual.insulation_permille, |insulation| insulation.0),
            switch_ns: profile.number(Key::SwitchCost(Quantile::P50)).map_or(usual.switch_ns, |cost| cost as Nanos),
            round_max_ns: self.max_round.map_or(usual.round_max_ns, |round| round.0.as_nanos() as Nanos),
            // Without any knowledge of the disk, slices are used: they insulate on every disk.
            needs_slices: needs_slices(model, profile).is_none_or(|(needed, _)| needed),
            prices: Prices::of(profile).unwrap_or(usual.prices),
            stream_bytes_per_s: profile.stream_bytes_per_s().unwrap_or(usual.stream_bytes_per_s),
            ..usual
        };
        Chosen { name, reason, settings }
    }

    /// The only place where a policy is chosen. A setting of the operator has priority over the profile. A disk without
    /// a profile has no insulation by default, since its cost is unknown.
    fn choose_policy(&self, disk: &str, model: Option<&Model>, profile: &Profile) -> (PolicyName, String) {
        let how = match needs_slices(model, profile) {
            Some((true, source)) => Ok(format!("by slices of disk time, {source}")),
            Some((false, source)) => Ok(format!("by cost, {source}")),
            None => Err(format!("not probed, run `aerogel disk probe {disk}`")),
        };
        let (kind, reason) = match (self.policy.map(|name| name.0), how) {
            (Some(Kind::Insulated), Ok(how)) => (Kind::Insulated, format!("requested; {how}")),
            (Some(Kind::Insulated), Err(why)) => {
                (Kind::Insulated, format!("requested; by slices of disk time, which suit any device: {why}"))
            }
            (Some(kind), _) => (kind, "requested".into()),
            (None, Ok(how)) => (Kind::Insulated, how),
            (None, Err(why)) => (Kind::None, why),
        };
        (PolicyName(kind), reason)
    }
}

/// Whether tenants need slices, and the source of this: a measurement has priority over a description.
fn needs_slices(model: Option<&Model>, profile: &Profile) -> Option<(bool, &'static str)> {
    match (profile.needs_slices(), model) {
        (Some(true), _) if profile.is_automatic() => Some((true, "according to its profile (automatic quick probe)")),
        (Some(false), _) if profile.is_automatic() => {
            Some((false, "according to its profile (slices not needed; automatic quick probe)"))
        }
        (Some(true), _) => Some((true, "according to its profile")),
        (Some(false), _) => Some((false, "according to its profile (slices not needed)")),
        (None, Some(model)) if model.has_heads => Some((true, "described: it has heads")),
        (None, Some(_)) => Some((false, "described: it has no heads")),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use engine::Config;
    use engine::disk::profile::{Direction, Override};

    use super::*;

    fn profile(needs_slices: Option<f64>) -> Profile {
        let mut profile = Profile::default();
        let set = |value| Override { value: Some(value), at_s: 0 };
        profile.set_override(Key::NeedsSlices, needs_slices.map(set));
        profile
    }

    fn chosen(scheduling: Scheduling, heads: Option<bool>, profile: &Profile) -> Chosen {
        let model = heads.map(|has_heads| Model { name: "x".into(), has_heads });
        scheduling.choose(Config::new(0).policy(), "d", model.as_ref(), profile)
    }

    #[test]
    fn the_policy_follows_from_what_is_known() {
        use Kind::{Insulated, None as Bare, Sfq};
        let asked = |kind| Scheduling { policy: Some(PolicyName(kind)), ..Scheduling::default() };
        let unasked = Scheduling::default();
        for (scheduling, heads, needs_slices, name, slices, reason) in [
            (unasked, None, None, Bare, true, "not probed, run `aerogel disk probe d`"),
            (unasked, None, Some(1.0), Insulated, true, "by slices of disk time, according to its profile"),
            (unasked, None, Some(0.0), Insulated, false, "by cost, according to its profile (slices not needed)"),
            (unasked, Some(true), None, Insulated, true, "described: it has heads"),
            (unasked, Some(false), None, Insulated, false, "described: it has no heads"),
            (unasked, Some(true), Some(0.0), Insulated, false, "profile"),
            (
                asked(Insulated),
                None,
                None,
                Insulated,
                true,
                "requested; by slices of disk time, which suit any device: not probed",
            ),
            (asked(Insulated), Some(false), None, Insulated, false, "requested; by cost"),
            (asked(Bare), Some(true), Some(1.0), Bare, true, "requested"),
            (asked(Sfq), Some(true), Some(0.0), Sfq, false, "requested"),
        ] {
            let chosen = chosen(scheduling, heads, &profile(needs_slices));
            assert_eq!((chosen.name, chosen.settings.needs_slices), (PolicyName(name), slices), "{}", chosen.reason);
            assert!(chosen.reason.contains(reason), "{}", chosen.reason);
        }
    }

    #[test]
    fn a_policy_with_its_parameter_is_stored_as_text() {
        let stored: Scheduling = toml::from_str("policy = 'token-bucket:1.5'").unwrap();
        assert_eq!(stored.policy, Some(PolicyName(Kind::TokenBucket { rate_permille: 1500 })));
        assert_eq!(toml::to_string(&stored).unwrap(), "policy = \"token-bucket:1.5\"\n");
        assert_eq!(chosen(stored, None, &profile(None)).settings.kind, stored.policy.unwrap().0);
        let wrong = toml::from_str::<Scheduling>("policy = 'fifo'").unwrap_err().to_string();
        assert!(wrong.contains("there is no policy 'fifo'") && wrong.contains("mclock"), "{wrong}");
    }

    #[test]
    fn settings_follow_from_what_was_asked_for_and_measured() {
        let usual = Config::new(0).policy();
        let mut measured = profile(Some(1.0));
        assert_eq!(
            chosen(Scheduling::default(), None, &measured).settings,
            Settings { kind: Kind::Insulated, ..usual }
        );
        let cost = Override { value: Some(9e6), at_s: 0 };
        measured.set_override(Key::SwitchCost(Quantile::P50), Some(cost));
        let rate = Override { value: Some(2e8), at_s: 0 };
        measured.set_override(Key::Sequential(Direction::Read, 0), Some(rate));
        let text = "policy = 'insulated'\ninsulation = '0.95'\nmax_round = '500ms'";
        let settings = chosen(toml::from_str(text).unwrap(), None, &measured).settings;
        assert_eq!((settings.insulation_permille, settings.switch_ns), (950, 9_000_000));
        assert_eq!((settings.round_max_ns, settings.stream_bytes_per_s), (500_000_000, 200_000_000));
        for round in ["1ms", "5m"] {
            let scheduling: Scheduling = toml::from_str(&format!("max_round = '{round}'")).unwrap();
            assert!(scheduling.check().unwrap_err().to_string().contains(round));
        }
    }
}

//! Who may use a disk next: what an operator asked for, in `disk.toml`, and what follows from it and from the disk.

use std::time::Duration;

use engine::disk::policy::{Kind, Prices, Settings};
use engine::disk::profile::{Key, Profile, Quantile};
use engine::units::Nanos;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Model;
use crate::quantity::{Insulation, Time};

/// Rounds that can be asked for: shorter ones are all switching, and nobody waits longer for a disk on purpose.
const ROUND_MAX: std::ops::RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(60);

/// A policy by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PolicyName {
    /// Each tenant gets its share of the disk: slices of its time, long enough for R; or, without heads, by cost.
    Insulated,
    /// First come, first served: nobody is insulated.
    None,
}

impl PolicyName {
    /// As it is typed.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyName::Insulated => "insulated",
            PolicyName::None => "none",
        }
    }
}

impl std::fmt::Display for PolicyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for PolicyName {
    type Err = String;

    fn from_str(text: &str) -> Result<PolicyName, String> {
        let known = [PolicyName::Insulated, PolicyName::None];
        let found = known.into_iter().find(|name| name.as_str() == text);
        found.ok_or_else(|| format!("there is no policy '{}': there are insulated and none", text.escape_debug()))
    }
}

/// What was asked for; what was not follows from the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduling {
    /// Which policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyName>,
    /// R.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insulation: Option<Insulation>,
    /// The longest round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_round: Option<Time>,
    /// It is not probed unless somebody asks for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_probe: bool,
}

/// What runs, and why it is that.
#[derive(Clone, PartialEq, Debug)]
pub struct Chosen {
    /// Its name.
    pub name: PolicyName,
    /// Why.
    pub reason: String,
    /// All that the engine has to know.
    pub settings: Settings,
}

impl Chosen {
    /// Whether tenants have slices.
    pub fn has_slices(&self) -> bool {
        self.settings.kind == Kind::Insulated && self.settings.needs_slices
    }
}

impl Scheduling {
    /// Whether nothing was asked for.
    pub fn is_default(&self) -> bool {
        *self == Scheduling::default()
    }

    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        match self.max_round.filter(|round| !ROUND_MAX.contains(&round.0)) {
            Some(round) => {
                let (least, most) = (Time(*ROUND_MAX.start()), Time(*ROUND_MAX.end()));
                Err(format!("the longest round is {least} to {most}, not {round}"))
            }
            None => Ok(()),
        }
    }

    /// What runs on a disk of which this is known. `usual` is what holds unless something says otherwise.
    pub fn choose(&self, usual: Settings, disk: &str, model: Option<&Model>, profile: &Profile) -> Chosen {
        let (name, reason) = self.choose_policy(disk, model, profile);
        let kind = match name {
            PolicyName::Insulated => Kind::Insulated,
            PolicyName::None => Kind::None,
        };
        let settings = Settings {
            kind,
            insulation_permille: self.insulation.map_or(usual.insulation_permille, |insulation| insulation.0),
            switch_ns: profile.number(Key::SwitchCost(Quantile::P50)).map_or(usual.switch_ns, |cost| cost as Nanos),
            round_max_ns: self.max_round.map_or(usual.round_max_ns, |round| round.0.as_nanos() as Nanos),
            // Of a disk of which nothing is known: slices insulate on any.
            needs_slices: needs_slices(model, profile).is_none_or(|(needed, _)| needed),
            prices: Prices::of(profile).unwrap_or(usual.prices),
            stream_bytes_per_s: profile.stream_bytes_per_s().unwrap_or(usual.stream_bytes_per_s),
            ..usual
        };
        Chosen { name, reason, settings }
    }

    /// The one place where a policy is chosen. What an operator says goes before what is known of the disk; of a disk
    /// of which nothing is known, nobody can tell what insulating its tenants would cost.
    fn choose_policy(&self, disk: &str, model: Option<&Model>, profile: &Profile) -> (PolicyName, String) {
        let how = match needs_slices(model, profile) {
            Some((true, source)) => Ok(format!("by slices of disk time, {source}")),
            Some((false, source)) => Ok(format!("by cost, {source}")),
            None => Err(format!("not probed, run `aerogel disk probe {disk}`")),
        };
        match (self.policy, how) {
            (Some(PolicyName::Insulated), Ok(how)) => (PolicyName::Insulated, format!("asked for; {how}")),
            (Some(PolicyName::Insulated), Err(why)) => {
                (PolicyName::Insulated, format!("asked for; by slices of disk time, which work on any: {why}"))
            }
            (Some(PolicyName::None), _) => (PolicyName::None, "asked for".into()),
            (None, Ok(how)) => (PolicyName::Insulated, how),
            (None, Err(why)) => (PolicyName::None, why),
        }
    }
}

/// Whether tenants need slices of the disk, and who says so: what was measured goes before what is described.
fn needs_slices(model: Option<&Model>, profile: &Profile) -> Option<(bool, &'static str)> {
    match (profile.needs_slices(), model) {
        (Some(true), _) if profile.is_automatic() => Some((true, "as its profile says (automatic quick probe)")),
        (Some(false), _) if profile.is_automatic() => {
            Some((false, "as its profile says that it needs no slices (automatic quick probe)"))
        }
        (Some(true), _) => Some((true, "as its profile says")),
        (Some(false), _) => Some((false, "as its profile says that it needs no slices")),
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
        use PolicyName::{Insulated, None as Bare};
        let asked = |policy| Scheduling { policy: Some(policy), ..Scheduling::default() };
        let unasked = Scheduling::default();
        for (scheduling, heads, needs_slices, name, slices, reason) in [
            (unasked, None, None, Bare, true, "not probed, run `aerogel disk probe d`"),
            (unasked, None, Some(1.0), Insulated, true, "by slices of disk time, as its profile says"),
            (unasked, None, Some(0.0), Insulated, false, "by cost, as its profile says"),
            (unasked, Some(true), None, Insulated, true, "described: it has heads"),
            (unasked, Some(false), None, Insulated, false, "described: it has no heads"),
            (unasked, Some(true), Some(0.0), Insulated, false, "profile"),
            (
                asked(Insulated),
                None,
                None,
                Insulated,
                true,
                "asked for; by slices of disk time, which work on any: not probed",
            ),
            (asked(Insulated), Some(false), None, Insulated, false, "asked for; by cost"),
            (asked(Bare), Some(true), Some(1.0), Bare, true, "asked for"),
        ] {
            let chosen = chosen(scheduling, heads, &profile(needs_slices));
            assert_eq!((chosen.name, chosen.settings.needs_slices), (name, slices), "{}", chosen.reason);
            assert!(chosen.reason.contains(reason), "{}", chosen.reason);
        }
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
            assert!(scheduling.check().unwrap_err().contains(round));
        }
    }
}

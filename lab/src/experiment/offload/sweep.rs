//! How much the settings matter in the peaks of a mail server.

use engine::control::WriteCache;
use engine::offload::Settings;
use serde_json::{Value, json};

use super::super::guarantees::plot::{Panel, panels};
use super::super::stand::mean;
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::episodes::{Case, Policy, Seen};
use super::mail::Scaled;

pub const EXPERIMENT: Experiment = Experiment {
    name: "offload-settings",
    question: "How much do thresholds and the reclaim depth matter in the peaks of a mail server?",
    setup: "The episodes of offload-mail without caches, with the first seed only, and one setting at a time changed. \
            A quick run has the first 12 minutes.",
    paper: "Everest, section 4.1, figure 7: insensitive.",
    run,
};

/// A setting, and the values that it has.
struct Setting {
    name: &'static str,
    values: &'static [u32],
    set: fn(u32) -> Settings,
    default: u32,
}

const SETTINGS: [Setting; 3] = [
    Setting {
        name: "base_threshold",
        values: &[4, 8, 16, 32, 64, 128],
        set: |base_threshold| Settings { base_threshold, ..Settings::DEFAULT },
        default: Settings::DEFAULT.base_threshold,
    },
    Setting {
        name: "store_threshold",
        values: &[8, 16, 32, 64, 128],
        set: |store_threshold| Settings { store_threshold, ..Settings::DEFAULT },
        default: Settings::DEFAULT.store_threshold,
    },
    Setting {
        name: "reclaim_depth",
        values: &[1, 4, 16, 64, 256],
        set: |reclaim_depth| Settings { reclaim_depth, ..Settings::DEFAULT },
        default: Settings::DEFAULT.reclaim_depth,
    },
];

/// How much longer than with the best value of any setting the mean with the defaults is, at most. Everest says that
/// the paper's were insensitive, and does not give a figure.
const LONGER: f64 = 1.25;

/// What all volumes of all episodes had with one value of a setting.
struct Point {
    value: u32,
    /// Mean response over all requests, by episode, milliseconds.
    means_ms: Vec<f64>,
    /// Mean of what is off-loaded, over time and episodes, bytes.
    away: f64,
}

impl Point {
    /// The mean of the episodes, milliseconds.
    fn mean_ms(&self) -> f64 {
        mean(self.means_ms.iter().copied())
    }
}

/// All points, by setting.
struct Swept(Vec<Vec<Point>>);

impl Swept {
    fn new(context: &Context, scaled: &Scaled) -> Result<Swept, String> {
        let case = |settings| Case { policy: Policy::Peak(settings), write_cache: WriteCache::None };
        let cases: Vec<Case> =
            SETTINGS.iter().flat_map(|of| of.values.iter().map(|&value| case((of.set)(value)))).collect();
        let all = scaled.measure(context, &cases)?;
        let mut at = 0..;
        let mut point = |value: u32| {
            let at = at.next().expect("it has no end");
            let episodes: Vec<&Vec<Seen>> = all.iter().map(|cases| &cases[at]).collect();
            let away = episodes.iter().flat_map(|seen| seen.iter().map(Seen::mean_away));
            let means_ms = episodes.iter().map(|seen| mean(seen.iter().map(Seen::mean_s)) * 1e3).collect();
            Point { value, means_ms, away: mean(away) }
        };
        Ok(Swept(SETTINGS.iter().map(|of| of.values.iter().map(|&value| point(value)).collect()).collect()))
    }

    /// The defaults are near the best.
    fn claim(&self) -> Claim {
        let all = || self.0.iter().flatten().map(Point::mean_ms);
        let best = all().fold(f64::INFINITY, f64::min);
        let is_default = |(of, point): &(&Setting, &Point)| point.value == of.default;
        let points = SETTINGS.iter().zip(&self.0).flat_map(|(of, points)| points.iter().map(move |point| (of, point)));
        let default = points.filter(is_default).map(|(_, point)| point.mean_ms()).next().unwrap_or(f64::INFINITY);
        let name = "mean of all episodes with the default settings over the least of all settings";
        Claim::new(name, default / best, Bound::AtMost(LONGER))
    }

    fn data(&self) -> Value {
        let point = |point: &Point| json!({"value": point.value, "means_ms": point.means_ms, "away_mean": point.away});
        let of = |(of, points): (&Setting, &Vec<Point>)| {
            (of.name, json!({"default": of.default, "values": points.iter().map(point).collect::<Value>()}))
        };
        SETTINGS.iter().zip(&self.0).map(of).collect()
    }

    /// Mean response and bytes, each over the base-2 logarithm of a setting.
    fn pictures(&self) -> Result<[Picture; 2], String> {
        let picture = |name: &str, what: &str, y: fn(&Point) -> f64| {
            let panel = |(of, points): (&Setting, &Vec<Point>)| Panel {
                title: format!("log2 of {} (default: {})", of.name, of.default.ilog2()),
                points: points.iter().map(|point| (f64::from(point.value).log2(), y(point))).collect(),
                joined: true,
            };
            let shown: Vec<Panel> = SETTINGS.iter().zip(&self.0).map(panel).collect();
            let caption = format!("With other settings, over all episodes: {what} (Everest, figure 7).");
            let svg = panels(("log2 of the setting", what), &shown, shown.len(), None)?;
            Ok::<_, String>(Picture { name: name.into(), caption, svg })
        };
        Ok([
            picture("response", "mean response, ms", Point::mean_ms)?,
            picture("away", "mean of off-loaded data, MB", |point| point.away / 1e6)?,
        ])
    }
}

fn run(context: &Context) -> Result<Outcome, String> {
    let swept = Swept::new(context, &Scaled::new(context, 1)?)?;
    let pictures = swept.pictures()?.into();
    Ok(Outcome { claims: vec![swept.claim()], data: swept.data(), pictures, ..Outcome::default() })
}

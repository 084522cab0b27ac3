//! A disk's profile in its `disk.toml`: one table per value.
//!
//! ```toml
//! [profile.switch_cost_p50_ns]
//! measured = { value = 12731000.0, error_ratio = 0.02, at = "2026-11-21T03:40:00Z", method = "…" }
//! override = { value = "none", at = "…" }
//! ```
//!
//! Unknown entries are kept unchanged.

use std::time::{Duration, SystemTime};

use engine::disk::profile::{Key, Measured, Override, Profile, Value};
use serde::{Deserialize, Serialize};

/// A number, or `"none"`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Number {
    Some(f64),
    Whole(i64),
    None(Nothing),
}

/// The word `"none"`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Nothing {
    None,
}

impl From<Option<f64>> for Number {
    fn from(value: Option<f64>) -> Number {
        value.map_or(Number::None(Nothing::None), Number::Some)
    }
}

impl From<Number> for Option<f64> {
    fn from(number: Number) -> Option<f64> {
        match number {
            Number::Some(value) => Some(value),
            Number::Whole(value) => Some(value as f64),
            Number::None(Nothing::None) => None,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    measured: Option<MeasuredEntry>,
    #[serde(rename = "override")]
    overridden: Option<OverrideEntry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct MeasuredEntry {
    value: Number,
    error_ratio: Option<f64>,
    at: Date,
    method: String,
    /// Measured by a quick probe that the server started by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    automatic: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct OverrideEntry {
    value: Number,
    at: Date,
}

/// Seconds since 1970, written as an RFC 3339 date.
#[derive(Clone, Copy, Debug)]
struct Date(u64);

impl Serialize for Date {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&date(self.0))
    }
}

impl<'de> Deserialize<'de> for Date {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Date, D::Error> {
        let at = humantime::parse_rfc3339(&String::deserialize(from)?).map_err(serde::de::Error::custom)?;
        Ok(Date(at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())))
    }
}

/// Seconds since 1970 as a date and time of day.
pub fn date(at_s: u64) -> String {
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(at_s)).to_string()
}

/// Reads the table. Returns the profile, and the names of the entries that cannot be read.
pub fn read(table: &toml::Table) -> (Profile, Vec<String>) {
    let (mut profile, mut unreadable) = (Profile::default(), Vec::new());
    for (name, entry) in table {
        let key = name.parse::<Key>().ok();
        let entry: Option<Entry> = entry.clone().try_into().ok();
        match (key, entry) {
            (Some(key), Some(entry)) => {
                profile.values.insert(key, value(entry));
            }
            _ => unreadable.push(name.clone()),
        }
    }
    (profile, unreadable)
}

fn value(entry: Entry) -> Value {
    let measured = entry.measured.map(|measured| Measured {
        value: measured.value.into(),
        error_ratio: measured.error_ratio,
        at_s: measured.at.0,
        method: measured.method,
        automatic: measured.automatic,
    });
    let overridden = entry.overridden.map(|set| Override { value: set.value.into(), at_s: set.at.0 });
    Value { measured, overridden }
}

/// Writes a profile into the table. Unknown entries are kept.
pub fn write(profile: &Profile, table: &mut toml::Table) {
    let is_known =
        |name: &str, entry: &toml::Value| name.parse::<Key>().is_ok() && entry.clone().try_into::<Entry>().is_ok();
    table.retain(|name, entry| !is_known(name, entry));
    for (key, value) in &profile.values {
        let measured = value.measured.as_ref().map(|measured| MeasuredEntry {
            value: measured.value.into(),
            error_ratio: measured.error_ratio,
            at: Date(measured.at_s),
            method: measured.method.clone(),
            automatic: measured.automatic,
        });
        let overridden = value.overridden.map(|set| OverrideEntry { value: set.value.into(), at: Date(set.at_s) });
        let entry = toml::Value::try_from(Entry { measured, overridden }).expect("an entry can be written as TOML");
        table.insert(key.to_string(), entry);
    }
}

#[cfg(test)]
mod tests {
    use engine::disk::profile::Finding;

    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_not_known_stays() {
        let mut profile = Profile::default();
        profile.take(&[(Key::RotationPeriod, Finding::plain(None))], 1_700_000_000);
        let finding = Finding { value: Some(1.5e6), error_ratio: Some(0.02) };
        profile.take(&[(Key::ThrottleStall, finding), (Key::NeedsSlices, Finding::plain(Some(1.0)))], 1_700_000_000);
        profile.take_automatic(&[(Key::InterleavedEfficiency, finding)], 1_700_000_000);
        profile.set_override(Key::NeedsSlices, Some(Override { value: Some(0.0), at_s: 1_800_000_000 }));
        profile.set_override(Key::ThrottleBytes, Some(Override { value: None, at_s: 1_800_000_000 }));
        let mut table: toml::Table = toml::from_str("colour = 'red'\nswitch_cost_p50_ns = 'much'").unwrap();
        write(&profile, &mut table);
        let text = toml::to_string(&table).unwrap();
        assert!(text.contains("2023-11-14T22:13:20Z") && text.contains("\"none\""), "{text}");
        let (found, unreadable) = read(&toml::from_str(&text).unwrap());
        assert_eq!((found, unreadable), (profile, vec!["colour".to_string(), "switch_cost_p50_ns".to_string()]));
    }
}

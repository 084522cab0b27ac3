//! Drives known by name. Each is a description like a user's, with its sources in comments.

use super::describe::{DescribeError, Description};

/// Names and descriptions.
pub const PRESETS: &[(&str, &str)] = &[
    ("cheetah-15k5", include_str!("presets/cheetah-15k5.toml")),
    ("barracuda-st32171w", include_str!("presets/barracuda-st32171w.toml")),
    ("barracuda-7200.9", include_str!("presets/barracuda-7200.9.toml")),
    ("nearline", include_str!("presets/nearline.toml")),
    ("enterprise-10k", include_str!("presets/enterprise-10k.toml")),
    ("laptop-5400", include_str!("presets/laptop-5400.toml")),
    ("flash", include_str!("presets/flash.toml")),
    ("throttled", include_str!("presets/throttled.toml")),
];

/// The text of a preset.
pub fn text(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The description of a preset.
pub fn preset(name: &str) -> Option<Result<Description, DescribeError>> {
    text(name).map(Description::parse)
}

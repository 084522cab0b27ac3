//! Values as users type them, parsed once: sizes, shares, durations and names.
//!
//! Sizes are bytes, with IEC suffixes only. `64MB` and `64M` mean different things to different people, so they are
//! refused, with both readings in the message. A share keeps the text as it was typed, for display.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use engine::units::{self, Share};
use serde::{Deserialize, Serialize};

/// Why a text is not a value of its type.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QuantityError {
    #[error("'{0}' is not a size; write for example 64MiB")]
    Size(String),
    #[error("'{0}' is not a size; write bytes, or KiB, MiB, GiB, TiB, PiB, EiB after a number, as in 64MiB")]
    Suffix(String),
    #[error("'{text}' is ambiguous: write {number}{letter}iB for powers of 1024, or the plain number of bytes")]
    AmbiguousSuffix { text: String, number: String, letter: char },
    #[error("'{0}' is too large")]
    SizeTooLarge(String),
    #[error("'{0}' is not a whole number of bytes")]
    PartOfByte(String),
    #[error("'{0}' is not a bandwidth; write it as 30MiB/s")]
    Rate(String),
    #[error("'{0}' is not a share; write it as 1/4, 0.25 or 25%")]
    Share(String),
    #[error("the share '{0}' is out of bounds: it is above 0 and at most 1 (the whole disk)")]
    ShareOutOfBounds(String),
    #[error("'{0}' is not a duration; write it as 500ms, 30s or 5m")]
    Time(String),
    #[error("'{0}' is not an insulation; write it as 0.9 or 90%")]
    Insulation(String),
    #[error("the insulation '{0}' is out of bounds: it is above 0 and below 1, with at most three decimal places")]
    InsulationOutOfBounds(String),
    #[error(
        "'{}' is not a name: a name is 1 to 63 letters, digits, '.', '_' or '-', the first of them a letter or digit",
        .0.escape_debug()
    )]
    Name(String),
    #[error("the description has {0} bytes: write at most {DESCRIPTION_BYTES_MAX}")]
    DescriptionTooLong(usize),
    #[error("the description has control characters: write one line of text")]
    DescriptionControl,
}

/// A number of bytes, as in `64MiB`, `1.5GiB` or `4096`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Size, QuantityError> {
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = (&text[..split], text[split..].trim_start());
        let shift = match units::UNITS.iter().find(|(unit, _)| *unit == suffix) {
            Some((_, shift)) => *shift,
            None if ["", "B"].contains(&suffix) => 0,
            None => return Err(unknown_suffix(text, number, suffix)),
        };
        let too_large = || QuantityError::SizeTooLarge(text.into());
        let (value, scale) = decimal(number).ok_or_else(|| QuantityError::Size(text.into()))?;
        let bytes = value.checked_mul(1 << shift).ok_or_else(too_large)?;
        if bytes % scale != 0 {
            return Err(QuantityError::PartOfByte(text.into()));
        }
        u64::try_from(bytes / scale).map(Size).map_err(|_| too_large())
    }
}

fn unknown_suffix(text: &str, number: &str, suffix: &str) -> QuantityError {
    let letter = suffix.chars().next().map_or(' ', |c| c.to_ascii_uppercase());
    let is_short = suffix.len() <= 3 && suffix.chars().skip(1).all(|c| "iIbB".contains(c));
    if is_short && "KMGTPE".contains(letter) {
        QuantityError::AmbiguousSuffix { text: text.into(), number: number.into(), letter }
    } else {
        QuantityError::Suffix(text.into())
    }
}

/// Parses a decimal number as (digits, divisor), where the divisor is a power of ten; at most 9 digits after the point.
fn decimal(text: &str) -> Option<(u128, u128)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() || whole.len() > 20 || fraction.len() > 9 || (text.contains('.') && fraction.is_empty()) {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    Some((digits, 10u128.pow(fraction.len() as u32)))
}

/// Exact: the output parses to the same size.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&units::exact(self.0))
    }
}

impl Size {
    /// For tables: at most one digit after the point, so not always exact.
    pub fn rounded(self) -> String {
        units::rounded(self.0)
    }
}

/// A bandwidth in bytes per second, as in `30MiB/s`, `30MiB` or `4096`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rate(pub u64);

impl FromStr for Rate {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Rate, QuantityError> {
        let size = text.strip_suffix("/s").unwrap_or(text).parse::<Size>();
        size.map(|size| Rate(size.0)).map_err(|error| match error {
            QuantityError::Size(_) | QuantityError::Suffix(_) => QuantityError::Rate(text.into()),
            error => error,
        })
    }
}

/// Exact, as that of a size.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", Size(self.0))
    }
}

/// A share as it was typed, and its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShareText {
    text: String,
    /// The value.
    pub share: Share,
}

impl FromStr for ShareText {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<ShareText, QuantityError> {
        let wrong = || QuantityError::Share(text.into());
        let (over, under) = if let Some(percent) = text.strip_suffix('%') {
            let (value, scale) = decimal(percent).ok_or_else(wrong)?;
            (value, scale * 100)
        } else if let Some((over, under)) = text.split_once('/') {
            let whole = |t: &str| t.parse::<u32>().map(u128::from).map_err(|_| wrong());
            (whole(over)?, whole(under)?)
        } else {
            decimal(text).ok_or_else(wrong)?
        };
        let bounds = || QuantityError::ShareOutOfBounds(text.into());
        if under == 0 || over > under {
            return Err(bounds());
        }
        let ppb = over * u128::from(Share::ONE.ppb()) / under;
        let share = Share::from_ppb(ppb as u64).ok_or_else(bounds)?;
        Ok(ShareText { text: text.to_owned(), share })
    }
}

/// As a fraction, exactly.
impl From<Share> for ShareText {
    fn from(share: Share) -> ShareText {
        let text = format!("{}.{:09}", share.ppb() / Share::ONE.ppb(), share.ppb() % Share::ONE.ppb());
        ShareText { text: text.trim_end_matches('0').trim_end_matches('.').to_owned(), share }
    }
}

impl fmt::Display for ShareText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A value, or `"auto"`: the planner of allocations finds it (`docs/manual/allocate.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrAuto<T> {
    /// What the planner finds.
    Auto,
    /// A value.
    To(T),
}

impl<T> OrAuto<T> {
    /// The value, and whether the planner finds it.
    pub fn split(given: Option<OrAuto<T>>) -> (Option<T>, bool) {
        match given {
            None => (None, false),
            Some(OrAuto::Auto) => (None, true),
            Some(OrAuto::To(value)) => (Some(value), false),
        }
    }

    /// The reverse.
    pub fn join(value: Option<T>, auto: bool) -> Option<OrAuto<T>> {
        if auto { Some(OrAuto::Auto) } else { value.map(OrAuto::To) }
    }

    /// The value, unless the planner finds it.
    pub fn value(self) -> Option<T> {
        OrAuto::split(Some(self)).0
    }
}

impl<T: FromStr> FromStr for OrAuto<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "auto" { Ok(OrAuto::Auto) } else { text.parse().map(OrAuto::To) }
    }
}

impl<T: fmt::Display> fmt::Display for OrAuto<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrAuto::Auto => f.write_str("auto"),
            OrAuto::To(value) => value.fmt(f),
        }
    }
}

impl<T: Serialize> Serialize for OrAuto<T> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            OrAuto::Auto => to.serialize_str("auto"),
            OrAuto::To(value) => value.serialize(to),
        }
    }
}

/// Also accepts a number, where a plain value would accept one.
impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for OrAuto<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        text_or_number(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A text; a whole number counts as its digits.
pub fn text_or_number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text or a whole number")]
    enum Either {
        Number(u64),
        Text(String),
    }
    Ok(match Either::deserialize(from)? {
        Either::Number(number) => number.to_string(),
        Either::Text(text) => text,
    })
}

/// Parts per billion as a percentage, with at most two digits after the point.
pub fn percent(ppb: u64) -> String {
    let text = format!("{:.2}", ppb as f64 / 1e7);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A duration in seconds as text with two or three digits.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 10.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 0.01 => format!("{:.0} ms", s * 1e3),
        s if s >= 0.001 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}

/// A duration such as `30s`, `500ms`, `5m`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Time(pub Duration);

impl FromStr for Time {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Time, QuantityError> {
        let wrong = || QuantityError::Time(text.into());
        let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let ms = match &text[split..] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            _ => return Err(wrong()),
        };
        let number: u64 = text[..split].parse().map_err(|_| wrong())?;
        number.checked_mul(ms).map(|ms| Time(Duration::from_millis(ms))).ok_or_else(wrong)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_millis() {
            ms if ms.is_multiple_of(60_000) && ms > 0 => write!(f, "{}m", ms / 60_000),
            ms if ms.is_multiple_of(1000) => write!(f, "{}s", ms / 1000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

/// R, the fraction of its standalone efficiency that a tenant keeps, in thousandths; typed as `0.9` or `90%`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Insulation(pub u32);

impl FromStr for Insulation {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Insulation, QuantityError> {
        let wrong = || QuantityError::Insulation(text.into());
        let (number, parts) = text.strip_suffix('%').map_or((text, 1000), |percent| (percent, 10));
        let (value, scale) = decimal(number).ok_or_else(wrong)?;
        let permille = value * parts / scale;
        if value * parts % scale != 0 || !(1..1000).contains(&permille) {
            return Err(QuantityError::InsulationOutOfBounds(text.into()));
        }
        Ok(Insulation(permille as u32))
    }
}

impl fmt::Display for Insulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("0.{:03}", self.0);
        f.write_str(text.trim_end_matches('0'))
    }
}

/// A name of a disk, volume or tenant: `[A-Za-z0-9][A-Za-z0-9._-]{0,62}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name(String);

impl Name {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The tenant of all stores of a disk. No user can type this name for a thing of theirs, and it does not contain
    /// that of the disk, which may have another one on another server.
    pub fn of_stores() -> Name {
        Name("@stores".into())
    }

    /// Whether it is the tenant of the stores.
    pub fn is_of_stores(&self) -> bool {
        *self == Name::of_stores()
    }
}

/// The name of a tenant that exists: that of the stores, too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TenantName(pub Name);

impl FromStr for TenantName {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<TenantName, QuantityError> {
        let stores = Name::of_stores();
        if text == stores.as_str() { Ok(TenantName(stores)) } else { text.parse().map(TenantName) }
    }
}

impl FromStr for Name {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Name, QuantityError> {
        let inner = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
        let starts = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        if !starts || text.len() > 63 || !text.bytes().all(inner) {
            return Err(QuantityError::Name(text.into()));
        }
        Ok(Name(text.to_owned()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The description of a volume for NBD clients: text, possibly empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Description(String);

/// Bytes of a description at most: one line on a screen. The protocol allows 4096.
const DESCRIPTION_BYTES_MAX: usize = 255;

impl FromStr for Description {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Description, QuantityError> {
        let bytes = text.len();
        if bytes > DESCRIPTION_BYTES_MAX {
            return Err(QuantityError::DescriptionTooLong(bytes));
        }
        if text.chars().any(char::is_control) {
            return Err(QuantityError::DescriptionControl);
        }
        Ok(Description(text.to_owned()))
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Description {
    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Implements serialisation as text for a type that parses and prints.
macro_rules! as_text {
    ($($type:ty),*) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
pub(crate) use as_text;

as_text!(ShareText, Time, Name, Insulation, Description);

/// Implements serialisation as text for a type that parses and prints, and that also accepts a plain number.
macro_rules! as_text_or_number {
    ($($type:ident: $expecting:literal),*) => {$(
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                #[derive(Deserialize)]
                #[serde(untagged, expecting = $expecting)]
                enum Either {
                    Number(u64),
                    Text(String),
                }
                match Either::deserialize(from)? {
                    Either::Number(number) => Ok($type(number)),
                    Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
                }
            }
        }
    )*};
}
as_text_or_number!(
    Size: "a size is a number of bytes or a text such as \"64MiB\"",
    Rate: "a bandwidth is a number of bytes per second or a text such as \"30MiB/s\""
);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_as_people_type_them() {
        let size = |text: &str| text.parse::<Size>().map(|s| s.0);
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("1.5GiB"), Ok(3 << 29));
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("512B"), Ok(512));
        assert!(size("64MB").unwrap_err().to_string().contains("64MiB"));
        assert!(size("64m").unwrap_err().to_string().contains("64MiB"));
        for wrong in ["", "MiB", "-1", "1.", ".5GiB", "0.3B", "16EiB", "1 zebra", "1ßB", "99999999999999999999999"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_as_people_type_them() {
        let share = |text: &str| text.parse::<ShareText>().map(|s| s.share.ppb());
        assert_eq!(share("1/4"), Ok(250_000_000));
        assert_eq!(share("0.25"), share("25%"));
        assert_eq!(share("1/3").unwrap() * 3, 999_999_999);
        assert_eq!(share("1"), Ok(1_000_000_000));
        for wrong in ["0", "0%", "101%", "5/4", "1/0", "", "a", "1/", "-1/2", "0.0000000001"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
        assert_eq!("12.5%".parse::<ShareText>().unwrap().to_string(), "12.5%");
        assert_eq!(percent(333_333_333), "33.33%");
    }

    #[test]
    fn bandwidths_as_people_type_them() {
        let rate = |text: &str| text.parse::<Rate>();
        assert_eq!(
            (rate("30MiB/s"), rate("30MiB"), rate("4096")),
            (Ok(Rate(30 << 20)), Ok(Rate(30 << 20)), Ok(Rate(4096)))
        );
        assert_eq!(Rate(3 << 19).to_string(), "1536KiB/s", "exact");
        assert!(rate("30MB/s").unwrap_err().to_string().contains("30MiB"));
        for wrong in ["", "/s", "fast", "-1MiB/s", "1MiB/h"] {
            assert!(rate(wrong).unwrap_err().to_string().contains("30MiB/s"), "{wrong}");
        }
        let numbers: Vec<Rate> = serde_json::from_str(r#"[4096, "4KiB/s"]"#).unwrap();
        assert_eq!(numbers, [Rate(4096); 2]);
    }

    #[test]
    fn insulation_as_people_type_it() {
        let insulation = |text: &str| text.parse::<Insulation>();
        assert_eq!((insulation("0.9"), insulation("90%")), (Ok(Insulation(900)), Ok(Insulation(900))));
        assert_eq!(insulation("97.5%").unwrap().to_string(), "0.975");
        for wrong in ["", "1", "0", "100%", "0.9999", "-0.5", ".9", "nine", "150%"] {
            assert!(insulation(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_never_escape_a_directory() {
        for right in ["db", "A", "0", "a.b-c_d", &"x".repeat(63)] {
            assert!(right.parse::<Name>().is_ok(), "{right}");
        }
        for wrong in ["", ".", "..", ".hidden", "-x", "a/b", "a b", "ü", "a\n", &"x".repeat(64)] {
            assert!(wrong.parse::<Name>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_size_prints_what_parses_to_it(bytes: u64) {
            prop_assert_eq!(Size(bytes).to_string().parse::<Size>(), Ok(Size(bytes)));
        }

        #[test]
        fn nothing_panics(text: String) {
            let _ = (text.parse::<Size>(), text.parse::<ShareText>(), text.parse::<Time>(), text.parse::<Name>());
            let _ = text.parse::<Insulation>();
        }

        #[test]
        fn a_fraction_is_rounded_down(over in 1u32..1000, under in 1u32..1000) {
            prop_assume!(over <= under);
            let share = format!("{over}/{under}").parse::<ShareText>().unwrap().share.ppb();
            prop_assert!(share * u64::from(under) <= u64::from(over) * 1_000_000_000);
        }

        #[test]
        fn a_time_prints_what_parses_to_it(ms in 0u64..10_000_000) {
            let time = Time(Duration::from_millis(ms));
            prop_assert_eq!(time.to_string().parse::<Time>(), Ok(time));
        }
    }
}

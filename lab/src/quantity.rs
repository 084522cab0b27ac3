//! Quantities as text: sizes with IEC suffixes, durations, shares, counts.

use engine::units::Nanos;
use sim::rng::MILLION;

const SIZES: [(&str, u64); 6] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1), ("", 1)];
const TIMES: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a number with one of `units`, exactly.
fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = (&text[..split], text[split..].trim_start());
    let (_, unit) = units.iter().find(|(name, _)| *name == suffix)?;
    decimal(number, *unit)
}

/// Parses `text`, a decimal number without sign, times `unit`; the fraction is cut off. `1e-5` is accepted, too.
pub fn decimal(text: &str, unit: u64) -> Option<u64> {
    if text.contains(['e', 'E']) {
        let number: f64 = text.parse().ok()?;
        let product = number * unit as f64;
        return (product >= 0.0 && product < u64::MAX as f64).then_some(product as u64);
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || whole.len() + fraction.len() == 0 {
        return None;
    }
    // Further digits are below any unit.
    let fraction = &fraction[..fraction.len().min(18)];
    let part = |part: &str| if part.is_empty() { Some(0) } else { part.parse::<u64>().ok() };
    let below = u128::from(part(fraction)?) * u128::from(unit) / 10u128.pow(fraction.len() as u32);
    part(whole)?.checked_mul(unit)?.checked_add(below as u64)
}

/// Parses a size such as `64KiB`, `1.5GiB` or `4096`, in bytes.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size: write bytes, or KiB, MiB, GiB, TiB after a number, as in 64KiB");
    quantity(text, &SIZES).ok_or_else(wrong)
}

/// Parses a time such as `10s` or `1.5ms`, in nanoseconds.
pub fn time(text: &str) -> Result<Nanos, String> {
    let wrong = || format!("'{text}' is not a duration: write ns, us, ms, s, m or h after a number, as in 10s");
    quantity(text, &TIMES).ok_or_else(wrong)
}

/// Parses a share such as `70%` or `0.7`, in parts per million.
pub fn share(text: &str) -> Result<u64, String> {
    let parts = match text.strip_suffix('%') {
        Some(percent) => decimal(percent, MILLION / 100),
        None => decimal(text, MILLION),
    };
    parts.filter(|&ppm| ppm <= MILLION).ok_or_else(|| format!("'{text}' is not a share: write 70% or 0.7"))
}

/// Bytes as text in IEC units, with at most two digits after the point.
pub fn show_bytes(bytes: u64) -> String {
    match SIZES.iter().find(|&&(name, unit)| !name.is_empty() && bytes >= unit) {
        Some((name, 1)) => format!("{bytes} {name}"),
        Some((name, unit)) => format!("{} {name}", trimmed(bytes as f64 / *unit as f64)),
        None => "0 B".into(),
    }
}

/// Nanoseconds as text.
pub fn show_time(ns: Nanos) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", trimmed(ns as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", trimmed(ns as f64 / 1e6)),
        1_000_000_000..120_000_000_000 => format!("{} s", trimmed(ns as f64 / 1e9)),
        _ => {
            let seconds = ns.saturating_add(500_000_000) / 1_000_000_000;
            let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
            if hours > 0 {
                format!("{hours} h {minutes} min {seconds} s")
            } else {
                format!("{minutes} min {seconds} s")
            }
        }
    }
}

fn trimmed(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A count as text with commas: 268,663.
pub fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A part of a whole as a percentage; empty if the whole is 0.
pub fn show_share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_people_write_them() {
        assert_eq!(size("64KiB"), Ok(65536));
        assert_eq!(size("1.5GiB"), Ok(3 << 29));
        assert_eq!(size("4096"), Ok(4096));
        assert!(size("64K").unwrap_err().contains("64K") && size("").is_err() && size("-1").is_err());
        assert_eq!([time("1.5ms"), time("2m")], [Ok(1_500_000), Ok(120_000_000_000)]);
        assert!(time("10").is_err() && time("20000000000s").is_err());
        assert_eq!(
            [share("70%"), share("0.7"), share("0"), share("1")],
            [Ok(700_000), Ok(700_000), Ok(0), Ok(MILLION)]
        );
        assert!(share("101%").is_err());
    }

    #[test]
    fn decimals_are_exact() {
        assert_eq!(decimal("3599.171823699", 1_000_000_000), Some(3_599_171_823_699));
        assert_eq!([decimal(".5", 10), decimal("5.", 10), decimal("1e-1", 10)], [Some(5), Some(50), Some(1)]);
        assert_eq!(decimal("0.00000000000000000000000009", 1_000), Some(0));
        for wrong in ["", ".", "-1", "1.2.3", "1,5", "nan", "inf", "1e99", "-1e1", "99999999999999999999"] {
            assert_eq!(decimal(wrong, 1000), None, "{wrong}");
        }
    }

    #[test]
    fn for_people() {
        assert_eq!([show_bytes(0), show_bytes(512), show_bytes(1536)], ["0 B", "512 B", "1.5 KiB"]);
        assert_eq!([show_time(1_500), show_time(3_599_949_630_129)], ["1.5 us", "1 h 0 min 0 s"]);
        assert_eq!([show_count(7), show_count(268_663), show_count(1_000_000)], ["7", "268,663", "1,000,000"]);
    }
}

//! The kinds of policies, their names and parameters.

use std::fmt;
use std::str::FromStr;

use crate::units::{MILLISECOND, Nanos};

/// A kind of policy, with the parameters of baselines (`baselines/`). As text a parameter follows the name:
/// `token-bucket:1.2`, `pclock:500ms`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// Exclusive slices of disk time, long enough for R (Argon); on a device that needs no slices, fair queueing on
    /// cost.
    #[default]
    Insulated,
    /// First come, first served.
    None,
    /// Token buckets.
    TokenBucket {
        /// Rate of the tokens, thousandths of the guarantee.
        rate_permille: u32,
    },
    /// pClock.
    PClock {
        /// The latency of requests within the arrival curve.
        latency_ns: Nanos,
    },
    /// Start-time fair queueing.
    Sfq,
    /// Earliest deadline first.
    Edf {
        /// The latency target of tenants without a guarantee.
        latency_ns: Nanos,
    },
    /// Lottery scheduling.
    Lottery,
    /// Façade.
    Facade {
        /// The latency target of tenants without a guarantee.
        latency_ns: Nanos,
    },
    /// mClock.
    MClock {
        /// The limit, thousandths of the guarantee; `None` for no limit.
        limit_permille: Option<u32>,
    },
}

/// The latency of pClock, and the target of tenants without a guarantee: a round in the experiments of Wachs and
/// Ganger, CMU-PDL-10-113 (2010), section 5.
const LATENCY_NS: Nanos = 2400 * MILLISECOND;
/// The rate of token buckets: the guarantee.
const RATE_PERMILLE: u32 = 1000;
/// Largest factor of a guarantee, thousandths: above, a bucket or a limit limits nothing.
const FACTOR_PERMILLE_MAX: u32 = 1_000_000;
/// Longest latency, milliseconds: an hour.
const LATENCY_MS_MAX: u64 = 3_600_000;

/// A name of no policy, or a wrong parameter.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnknownKind {
    /// The name.
    #[error(
        "there is no policy '{}': the policies are insulated, none, token-bucket, pclock, sfq, edf, lottery, facade \
         and mclock",
        .0.escape_debug()
    )]
    Name(String),
    /// The policy has none.
    #[error("the policy '{0}' has no parameter: write {0}")]
    NoParameter(&'static str),
    /// A factor.
    #[error(
        "'{}' is not a factor of the guarantee: write {name}:1.2, above 0 and at most 1000, with at most three decimal \
         places",
        .text.escape_debug()
    )]
    Factor {
        /// The policy.
        name: &'static str,
        /// The parameter.
        text: String,
    },
    /// A latency.
    #[error("'{}' is not a latency: write {name}:500ms or {name}:2s, from 1 ms to 1 h", .text.escape_debug())]
    Latency {
        /// The policy.
        name: &'static str,
        /// The parameter.
        text: String,
    },
}

/// Parses a decimal number as thousandths.
fn permille(text: &str) -> Option<u32> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(part) || part.len() > 3 {
        return None;
    }
    let permille = whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(format!("{part:0<3}").parse().ok()?)?;
    (1..=FACTOR_PERMILLE_MAX).contains(&permille).then_some(permille)
}

fn latency(text: &str) -> Option<Nanos> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let ms = match unit {
        "ms" => 1,
        "s" => 1000,
        _ => return None,
    };
    let ms = number.parse::<u64>().ok()?.checked_mul(ms)?;
    (1..=LATENCY_MS_MAX).contains(&ms).then_some(ms * MILLISECOND)
}

impl Kind {
    /// All kinds, with their usual parameters.
    pub const ALL: [Kind; 9] = [
        Kind::Insulated,
        Kind::None,
        Kind::TokenBucket { rate_permille: RATE_PERMILLE },
        Kind::PClock { latency_ns: LATENCY_NS },
        Kind::Sfq,
        Kind::Edf { latency_ns: LATENCY_NS },
        Kind::Lottery,
        Kind::Facade { latency_ns: LATENCY_NS },
        Kind::MClock { limit_permille: None },
    ];

    /// The name, without parameters.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Insulated => "insulated",
            Kind::None => "none",
            Kind::TokenBucket { .. } => "token-bucket",
            Kind::PClock { .. } => "pclock",
            Kind::Sfq => "sfq",
            Kind::Edf { .. } => "edf",
            Kind::Lottery => "lottery",
            Kind::Facade { .. } => "facade",
            Kind::MClock { .. } => "mclock",
        }
    }

    /// Whether the shares of tenants have an effect.
    pub fn uses_shares(self) -> bool {
        match self {
            Kind::Insulated | Kind::PClock { .. } | Kind::Sfq | Kind::Lottery | Kind::MClock { .. } => true,
            Kind::None | Kind::TokenBucket { .. } | Kind::Edf { .. } | Kind::Facade { .. } => false,
        }
    }

    /// Whether the minimum bandwidths of tenants have an effect.
    pub fn uses_guarantees(self) -> bool {
        !matches!(self, Kind::None | Kind::Sfq | Kind::Lottery)
    }

    /// Whether it may leave the device idle although requests wait, until a limit permits them.
    pub fn holds_back(self) -> bool {
        matches!(self, Kind::TokenBucket { .. } | Kind::Facade { .. } | Kind::MClock { limit_permille: Some(_) })
    }

    /// The same kind with this parameter.
    fn with(self, text: &str) -> Result<Kind, UnknownKind> {
        let name = self.name();
        let factor = || permille(text).ok_or_else(|| UnknownKind::Factor { name, text: text.into() });
        let latency_ns = || latency(text).ok_or_else(|| UnknownKind::Latency { name, text: text.into() });
        Ok(match self {
            Kind::Insulated | Kind::None | Kind::Sfq | Kind::Lottery => return Err(UnknownKind::NoParameter(name)),
            Kind::TokenBucket { .. } => Kind::TokenBucket { rate_permille: factor()? },
            Kind::MClock { .. } => Kind::MClock { limit_permille: Some(factor()?) },
            Kind::PClock { .. } => Kind::PClock { latency_ns: latency_ns()? },
            Kind::Edf { .. } => Kind::Edf { latency_ns: latency_ns()? },
            Kind::Facade { .. } => Kind::Facade { latency_ns: latency_ns()? },
        })
    }
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Kind, UnknownKind> {
        let (name, parameter) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| UnknownKind::Name(name.into()))?;
        parameter.map_or(Ok(kind), |parameter| kind.with(parameter))
    }
}

/// The shortest text that parses to the same kind.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match *self {
            kind if Kind::ALL.contains(&kind) => Ok(()),
            Kind::TokenBucket { rate_permille: permille } | Kind::MClock { limit_permille: Some(permille) } => {
                write!(f, ":{}", f64::from(permille) / 1000.0)
            }
            Kind::PClock { latency_ns } | Kind::Edf { latency_ns } | Kind::Facade { latency_ns } => {
                match latency_ns / MILLISECOND {
                    ms if ms.is_multiple_of(1000) => write!(f, ":{}s", ms / 1000),
                    ms => write!(f, ":{ms}ms"),
                }
            }
            Kind::Insulated | Kind::None | Kind::Sfq | Kind::Lottery | Kind::MClock { limit_permille: None } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_parameters_print_as_they_are_typed() {
        let kinds = Kind::ALL.map(|kind| kind.to_string());
        assert_eq!(kinds.join(" "), "insulated none token-bucket pclock sfq edf lottery facade mclock");
        for text in kinds.iter().map(String::as_str).chain([
            "token-bucket:1.2",
            "token-bucket:0.001",
            "pclock:500ms",
            "edf:3s",
            "facade:1ms",
            "mclock:1.5",
            "mclock:1",
        ]) {
            let kind: Kind = text.parse().unwrap();
            assert_eq!(kind.to_string(), text);
        }
        assert_eq!("token-bucket:1.0".parse(), Ok(Kind::TokenBucket { rate_permille: 1000 }));
        assert_eq!("pclock:2400ms".parse::<Kind>().unwrap().to_string(), "pclock");
        assert_eq!("mclock:1.5".parse(), Ok(Kind::MClock { limit_permille: Some(1500) }));
        assert_eq!("facade:2s".parse(), Ok(Kind::Facade { latency_ns: 2_000_000_000 }));
    }

    #[test]
    fn wrong_names_and_parameters_are_named() {
        let error = |text: &str| text.parse::<Kind>().unwrap_err().to_string();
        assert!(error("fifo").contains("'fifo'") && error("").contains("mclock"));
        assert!(error("sfq:2").contains("write sfq") && error("none:").contains("no parameter"));
        for wrong in ["", "0", "-1", "1.2345", "1001", "1e3", ".5", "1.", "99999999999"] {
            assert!(error(&format!("token-bucket:{wrong}")).contains("token-bucket:1.2"), "{wrong}");
            assert!(error(&format!("mclock:{wrong}")).contains("mclock:1.2"), "{wrong}");
        }
        for wrong in ["", "0ms", "1", "s", "-1s", "1h", "3601s", "1.5s", "99999999999999999999s"] {
            assert!(error(&format!("pclock:{wrong}")).contains("pclock:500ms"), "{wrong}");
        }
    }
}

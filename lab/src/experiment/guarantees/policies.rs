//! The policies that are compared.

use engine::disk::policy::Kind;
use engine::units::{MILLISECOND, Nanos};

/// A policy in the comparison.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Policy {
    /// Its name in the results.
    pub name: &'static str,
    /// Its kind in the engine.
    pub kind: Kind,
    /// Whether its tenants are given their guarantees.
    pub is_told: bool,
}

/// Ours.
pub const OURS: &str = "guarantees";
/// Ours without the rounds of section 5.3: slices, but no guarantees.
pub const INSULATED: &str = "insulated";

const fn policy(name: &'static str, kind: Kind, is_told: bool) -> Policy {
    Policy { name, kind, is_told }
}

/// The latency target of pClock in the paper, and of tenants without a guarantee.
const LATENCY_NS: Nanos = 2400 * MILLISECOND;

/// All policies; ours is the first.
pub const ALL: &[Policy] = &[
    policy(OURS, Kind::Insulated, true),
    policy(INSULATED, Kind::Insulated, false),
    policy("none", Kind::None, false),
    policy("token-bucket", Kind::TokenBucket { rate_permille: 1000 }, true),
    policy("token-bucket:1.2", Kind::TokenBucket { rate_permille: 1200 }, true),
    policy("token-bucket:1.5", Kind::TokenBucket { rate_permille: 1500 }, true),
    policy("pclock", Kind::PClock { latency_ns: LATENCY_NS }, true),
    policy("mclock", Kind::MClock { limit_permille: None }, true),
    policy("sfq", Kind::Sfq, true),
    policy("edf", Kind::Edf { latency_ns: LATENCY_NS }, true),
    policy("lottery", Kind::Lottery, true),
    policy("facade", Kind::Facade { latency_ns: LATENCY_NS }, true),
];

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
    /// Requests in the device at most. A policy that orders requests decides nothing while all of them are in it.
    pub device_depth: u32,
}

/// The server's default. With slices, only one tenant's requests are in the device.
const DEEP: u32 = 128;

/// Ours.
pub const OURS: &str = "guarantees";
/// Ours without the rounds of section 5.3: slices, but no guarantees.
pub const INSULATED: &str = "insulated";

const fn policy(name: &'static str, kind: Kind, is_told: bool, device_depth: u32) -> Policy {
    Policy { name, kind, is_told, device_depth }
}

/// The latency target of pClock in the paper, and of tenants without a guarantee.
const LATENCY_NS: Nanos = 2400 * MILLISECOND;

/// The depth of the drive's own queue, for policies that order single requests: at the server's default, the drive
/// orders all requests of up to eight workloads, and each such policy does what `none` does.
const NATIVE: u32 = 31;

/// All policies; ours is the first.
pub const ALL: &[Policy] = &[
    policy(OURS, Kind::Insulated, true, DEEP),
    policy(INSULATED, Kind::Insulated, false, DEEP),
    policy("none", Kind::None, false, DEEP),
    policy("token-bucket", Kind::TokenBucket { rate_permille: 1000 }, true, NATIVE),
    policy("token-bucket:1.2", Kind::TokenBucket { rate_permille: 1200 }, true, NATIVE),
    policy("token-bucket:1.5", Kind::TokenBucket { rate_permille: 1500 }, true, NATIVE),
    policy("pclock", Kind::PClock { latency_ns: LATENCY_NS }, true, NATIVE),
    policy("mclock", Kind::MClock { limit_permille: None }, true, NATIVE),
    policy("sfq", Kind::Sfq, true, NATIVE),
    policy("edf", Kind::Edf { latency_ns: LATENCY_NS }, true, NATIVE),
    policy("lottery", Kind::Lottery, true, NATIVE),
    policy("facade", Kind::Facade { latency_ns: LATENCY_NS }, true, NATIVE),
];

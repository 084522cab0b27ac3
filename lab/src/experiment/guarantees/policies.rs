//! The policies that are compared.

use engine::disk::policy::Kind;

/// A policy in the comparison.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Policy {
    /// Its name in the results.
    pub name: &'static str,
    /// Its kind in the engine.
    pub kind: Kind,
    /// The minimum bandwidth that its tenants are given, thousandths of the guarantee; 0: it knows of none.
    told_permille: u64,
}

impl Policy {
    /// The minimum bandwidth of a tenant with this guarantee.
    pub fn told(&self, bytes_per_s: u64) -> u64 {
        bytes_per_s * self.told_permille / 1000
    }
}

/// Ours.
pub const OURS: &str = "guarantees";
/// Ours without the rounds of section 5.3: slices, but no guarantees.
pub const INSULATED: &str = "insulated";

const fn policy(name: &'static str, kind: Kind, told_permille: u64) -> Policy {
    Policy { name, kind, told_permille }
}

/// All policies; ours is the first. A new baseline is a line here.
pub const ALL: &[Policy] =
    &[policy(OURS, Kind::Insulated, 1000), policy(INSULATED, Kind::Insulated, 0), policy("none", Kind::None, 0)];

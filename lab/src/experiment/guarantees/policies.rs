//! The policies that are compared.

use engine::disk::policy::Kind;

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

/// All policies; ours is the first. A new baseline is a line here.
pub const ALL: &[Policy] = &[
    policy(OURS, Kind::Insulated, true),
    policy(INSULATED, Kind::Insulated, false),
    policy("none", Kind::None, false),
];

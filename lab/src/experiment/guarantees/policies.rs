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

/// All policies; ours is the first. A new baseline is a line here. One that orders single requests should have the
/// depth of the drive's own queue (31): at the server's default, the drive orders all requests of up to eight
/// workloads.
pub const ALL: &[Policy] = &[
    policy(OURS, Kind::Insulated, true, DEEP),
    policy(INSULATED, Kind::Insulated, false, DEEP),
    policy("none", Kind::None, false, DEEP),
];

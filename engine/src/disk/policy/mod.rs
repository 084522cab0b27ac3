//! Who may use the disk next: one trait, one file for each policy.

mod none;

pub(crate) use none::None;

use crate::control::TenantId;
use crate::disk::IoId;
use crate::units::Nanos;

/// Orders device requests. It sees when they come, who owns them and when they are done; nothing else goes to the device.
pub(crate) trait Policy: std::fmt::Debug {
    /// A request of `tenant` wants to go to the device; an urgent one (a flush waits for it) ahead of the tenant's others.
    fn arrived(&mut self, now: Nanos, tenant: TenantId, io: IoId, urgent: bool);
    /// Those that `wanted` chooses, of the tenant's requests that wait, are urgent from now on.
    fn hurry(&mut self, tenant: TenantId, wanted: &dyn Fn(IoId) -> bool);
    /// The next one that may go now, `in_device` being there already.
    fn next(&mut self, now: Nanos, in_device: u32) -> Option<IoId>;
    /// A request has come back from the device.
    fn done(&mut self, now: Nanos, tenant: TenantId, io: IoId);
    /// Requests that wait.
    fn waiting(&self) -> usize;
}

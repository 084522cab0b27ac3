//! What disturbed a probe, from the kernel's own accounts.

use std::fs;
use std::time::Duration;

use engine::units::{MILLISECOND, Nanos, SECOND};

/// The time that a device's requests took so far, of all who use it. Requests side by side count each.
#[derive(Clone, Copy, Debug)]
pub struct DeviceUse {
    request_ms: u64,
}

impl DeviceUse {
    /// Of a device; nothing if the kernel keeps no account of it.
    pub fn read(device: u64) -> Option<DeviceUse> {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        DeviceUse::parse(&fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?)
    }

    /// Documentation/block/stat.rst: reads, merged, sectors, ms; writes, merged, sectors, ms; …
    fn parse(text: &str) -> Option<DeviceUse> {
        let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
        Some(DeviceUse { request_ms: fields.get(3)? + fields.get(7)? })
    }

    /// The part of the time until `end` that requests of others took, 0 to 1, if ours took so long; nothing if the device did
    /// nothing.
    pub fn others_until(&self, end: &DeviceUse, own_ns: Nanos) -> Option<f64> {
        let all_ns = end.request_ms.saturating_sub(self.request_ms) * MILLISECOND;
        (all_ns > 0).then(|| all_ns.saturating_sub(own_ns) as f64 / all_ns as f64)
    }
}

/// How long this thread has waited for a processor so far.
#[derive(Clone, Copy, Debug)]
pub struct ProcessorUse {
    waited_ns: Nanos,
}

impl ProcessorUse {
    /// Of the calling thread; nothing if the kernel does not say.
    pub fn read() -> Option<ProcessorUse> {
        ProcessorUse::parse(&fs::read_to_string("/proc/thread-self/schedstat").ok()?)
    }

    /// Documentation/scheduler/sched-stats.rst: time on a processor, time waiting for one, how often.
    fn parse(text: &str) -> Option<ProcessorUse> {
        Some(ProcessorUse { waited_ns: text.split_whitespace().nth(1)?.parse().ok()? })
    }

    /// The part of the `time` until `end` in which it waited.
    pub fn waited_until(&self, end: &ProcessorUse, time: Duration) -> f64 {
        let waited_s = end.waited_ns.saturating_sub(self.waited_ns) as f64 / SECOND as f64;
        (waited_s / time.as_secs_f64().max(f64::MIN_POSITIVE)).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_what_is_not_ours() {
        let at = |ms: u64| DeviceUse::parse(&format!("1 2 3 {ms} 5 6 7 100 0 0 0")).unwrap();
        assert_eq!(at(1000).others_until(&at(2000), 750 * MILLISECOND), Some(0.25));
        assert_eq!(at(1000).others_until(&at(2000), 1500 * MILLISECOND), Some(0.0));
        assert_eq!(at(1000).others_until(&at(1000), 0), None);
        assert!(DeviceUse::parse("1 2 3").is_none());
    }

    #[test]
    fn waiting_for_a_processor_counts() {
        let at = |ns: u64| ProcessorUse::parse(&format!("5 {ns} 3\n")).unwrap();
        assert_eq!(at(0).waited_until(&at(500_000_000), Duration::from_secs(2)), 0.25);
        assert!(ProcessorUse::read().is_some());
    }
}

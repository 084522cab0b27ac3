//! Disturbances of a probe by other users of the device and of the processor, from the kernel's statistics.

use std::fs;
use std::time::Duration;

use engine::units::{MILLISECOND, Nanos, SECOND, SECTOR};

/// Use of a device so far, by all or by one user.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DeviceUse {
    /// The sum of the times of requests, nanoseconds; concurrent requests count each.
    pub time_ns: Nanos,
    /// Bytes read and written.
    pub bytes: u64,
    /// The number of requests.
    pub requests: u64,
}

impl DeviceUse {
    /// The use of a device by all; `None` if the kernel has no statistics of it.
    pub fn read(device: u64) -> Option<DeviceUse> {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        DeviceUse::parse(&fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?)
    }

    /// Documentation/block/stat.rst: reads, merged, sectors, ms; writes, merged, sectors, ms; …
    fn parse(text: &str) -> Option<DeviceUse> {
        let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let time_ns = (fields.get(3)? + fields.get(7)?) * MILLISECOND;
        let (bytes, requests) = ((fields.get(2)? + fields.get(6)?) * SECTOR, fields[0] + fields[4]);
        Some(DeviceUse { time_ns, bytes, requests })
    }

    /// The use since `before`.
    pub fn since(&self, before: &DeviceUse) -> DeviceUse {
        DeviceUse {
            time_ns: self.time_ns.saturating_sub(before.time_ns),
            bytes: self.bytes.saturating_sub(before.bytes),
            requests: self.requests.saturating_sub(before.requests),
        }
    }

    /// The fraction of this use that belongs to others, 0 to 1, where `own` is the probe's. `None` if the device was
    /// idle.
    ///
    /// It is computed from time. But the probe's requests count as ended when its thread sees them, and a late thread
    /// hides the others' time. Therefore the result is at least the fraction by bytes or by requests, whichever is
    /// lower: one large request among the probe's small ones is little, and the kernel may split a request of the
    /// probe.
    pub fn others(&self, own: &DeviceUse) -> Option<f64> {
        let part = |all: u64, own: u64| (all > 0).then(|| all.saturating_sub(own) as f64 / all as f64);
        let by_data = part(self.bytes, own.bytes)?.min(part(self.requests, own.requests)?);
        Some(part(self.time_ns, own.time_ns).unwrap_or(0.0).max(by_data))
    }
}

/// How long this thread has waited for a processor so far.
#[derive(Clone, Copy, Debug)]
pub struct ProcessorUse {
    waited_ns: Nanos,
}

impl ProcessorUse {
    /// The calling thread's time; `None` if the kernel does not tell.
    pub fn read() -> Option<ProcessorUse> {
        ProcessorUse::parse(&fs::read_to_string("/proc/thread-self/schedstat").ok()?)
    }

    /// Documentation/scheduler/sched-stats.rst: time on a processor, time waiting for one, how often.
    fn parse(text: &str) -> Option<ProcessorUse> {
        Some(ProcessorUse { waited_ns: text.split_whitespace().nth(1)?.parse().ok()? })
    }

    /// The fraction of `time` until `end` in which the thread waited.
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
        let at = |requests: u64, sectors: u64, ms: u64| {
            DeviceUse::parse(&format!("{requests} 2 {sectors} {ms} 5 6 7 100 0 0 0")).unwrap()
        };
        let used = at(110, 500, 2000).since(&at(10, 300, 1000));
        let own = |requests, sectors, ms| DeviceUse { time_ns: ms * MILLISECOND, bytes: sectors * SECTOR, requests };
        assert_eq!(used, own(100, 200, 1000));
        assert_eq!(used.others(&own(100, 200, 750)), Some(0.25));
        assert_eq!(used.others(&own(60, 100, 1500)), Some(0.4), "a thread that looks late hides nobody's requests");
        assert_eq!(used.others(&own(50, 200, 1000)), Some(0.0), "ours were split");
        assert_eq!(used.others(&own(99, 20, 1000)), Some(0.01), "one large one among many small ones");
        assert_eq!(own(0, 0, 0).others(&own(1, 1, 1)), None);
        assert!(DeviceUse::parse("1 2 3").is_none());
    }

    #[test]
    fn waiting_for_a_processor_counts() {
        let at = |ns: u64| ProcessorUse::parse(&format!("5 {ns} 3\n")).unwrap();
        assert_eq!(at(0).waited_until(&at(500_000_000), Duration::from_secs(2)), 0.25);
        assert!(ProcessorUse::read().is_some());
    }
}

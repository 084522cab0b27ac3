//! The shipping probe, run on a simulated drive in virtual time.

use engine::disk::profile::{Finding, Findings, Key, Options, Probe, Space};
use engine::units::{BLOCK, Nanos};

use super::drive::Drive;
use super::drive::done::earlier;

/// The findings of the probe on a whole idle drive, and its duration in the drive's time.
///
/// Panics if the drive is too small to be probed (less than 16 MiB).
pub fn probe(drive: &mut dyn Drive, options: Options) -> (Vec<(Key, Finding)>, Nanos) {
    let space = Space::whole(drive.bytes(), BLOCK);
    let mut probe = Probe::new(space, options, 0).expect("a simulated drive is large enough");
    let (mut now, mut findings) = (0, Findings::default());
    loop {
        while let Some(request) = probe.poll_request(now) {
            drive.submit(now, request.slot.into(), request.op, request.offset, request.len);
        }
        while let Some(phase) = probe.poll_phase() {
            findings.take(phase);
        }
        if probe.is_over() {
            return (findings.values(), now);
        }
        let next = earlier(drive.poll_timeout(), probe.poll_timeout()).expect("the drive forgets no request");
        now = now.max(next);
        while let Some((tag, at)) = drive.poll(now) {
            probe.complete(at, tag as u32);
        }
    }
}

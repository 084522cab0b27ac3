//! A load on a bare drive, without server, cache or network: the standalone performance of the disk.

use std::collections::BTreeMap;

use engine::disk::Op as DiskOp;
use engine::units::Nanos;

use super::Done;
use crate::disk::drive::Drive;
use crate::load::{Op, Workload};

/// A drive and a load.
pub struct Raw {
    drive: Box<dyn Drive>,
    /// Where offset 0 of the load is on the drive, bytes.
    start: u64,
    load: Workload,
}

impl Raw {
    /// A load on `drive`; the load's offsets are relative to `start`.
    pub fn new(drive: Box<dyn Drive>, start: u64, load: Workload) -> Raw {
        Raw { drive, start, load }
    }

    /// Runs until `end`, or until the load is over.
    pub fn run(&mut self, end: Nanos, mut done: impl FnMut(Done)) {
        let mut now = 0;
        let mut requests = BTreeMap::new();
        loop {
            while let Some(request) = self.load.next(now) {
                let (op, offset) = match request.op {
                    Op::Read => (DiskOp::Read, self.start + request.offset),
                    Op::Write => (DiskOp::Write { durable: false }, self.start + request.offset),
                    Op::Flush => (DiskOp::Flush, 0),
                    Op::Trim => (DiskOp::Punch, self.start + request.offset),
                };
                self.drive.submit(now, request.id, op, offset, request.bytes);
                requests.insert(request.id, request);
            }
            let next = [self.drive.poll_timeout(), self.load.poll_timeout()].into_iter().flatten().min();
            let Some(at) = next.filter(|&at| at <= end) else { return };
            now = now.max(at);
            while let Some((id, done_ns)) = self.drive.poll(now) {
                let request = requests.remove(&id).expect("submitted");
                self.load.completed(now, id);
                done(Done { volume: 0, request, done_ns, failed: false });
            }
        }
    }
}

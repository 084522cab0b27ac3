//! Replay in virtual time: the engine on a simulated drive ([`sim::bench`]), with one volume on the whole drive.
//!
//! An hour of a trace takes seconds, and the same trace gives the same figures. The driver is never late here.

use std::sync::{Arc, Mutex};

use anyhow::{Context, ensure};
use engine::Config;
use engine::control::{TenantSpec, WriteCache};
use engine::nbd::Opened;
use engine::nbd::wire::export_flag;
use engine::units::{BLOCK, Nanos, SECOND};
use sim::bench::{Bench, Costs, Volume};
use sim::load::{Op, Record, Request, Source};

use super::fit::{Changes, Fit};
use super::report::{Measurements, Report};
use super::{Ending, Replay};
use crate::quantity::show_bytes;

/// Virtual time between progress updates.
const STEP_NS: Nanos = 10 * SECOND;

/// Records, adapted to the volume.
pub struct Fitted {
    source: Box<dyn Source>,
    fit: Arc<Mutex<Fit>>,
}

impl Fitted {
    /// The adapted records of `source`.
    pub fn new(source: impl Source + 'static, fit: Arc<Mutex<Fit>>) -> Fitted {
        Fitted { source: Box::new(source), fit }
    }
}

impl Source for Fitted {
    fn next(&mut self, elapsed_ns: Nanos) -> Option<Record> {
        loop {
            let record = self.source.next(elapsed_ns)?;
            let Record { op, offset, bytes, stream, .. } = record;
            let request = Request { id: 0, intended_ns: 0, op, offset, bytes, stream };
            if let Some((_, offset, bytes)) = self.fit.lock().expect("no thread panics").place(&request) {
                return Some(Record { offset, bytes: u64::from(bytes), ..record });
            }
        }
    }
}

impl Replay {
    /// Replays on a simulated drive.
    pub(super) fn simulated(&self, disk: &str, span: u64, ending: &Arc<Mutex<Ending>>) -> anyhow::Result<Report> {
        let drive = crate::disk::build(disk)?;
        let size = drive.bytes() / BLOCK * BLOCK;
        let flags = export_flag::SEND_TRIM | export_flag::SEND_FLUSH;
        let export = Opened { size, flags, payload_bytes_max: 32 << 20, ..Opened::default() };
        let changes = Changes::default();
        let fit = Arc::new(Mutex::new(Fit { export, beyond: self.beyond, span, reads_only: self.reads_only, changes }));
        let (load, what, mode) = self.workload(size, ending, Some(&fit))?;
        let volume = Volume { tenant: 0, start: 0, bytes: size, write_cache: WriteCache::Volatile, load };
        let tenants = [TenantSpec::default()];
        let mut bench = Bench::new(Config::new(self.memory), drive, Costs::default(), &tenants, vec![volume])
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("{} of memory on {disk}", show_bytes(self.memory)))?;
        let (mut measurements, mut last_ns) = (Measurements::default(), 0);
        let bar = self.bar();
        while !bench.is_done() {
            let (answered, waited) = (bar.position(), !bench.is_idle());
            bench.run(bench.now() + STEP_NS, |done| {
                let measured = measurements.of(done.request.op);
                let latency_ns = done.done_ns - done.request.intended_ns;
                measured.errors += u64::from(done.failed);
                if !done.failed {
                    measured.bytes += if done.request.op == Op::Flush { 0 } else { done.request.bytes };
                    // With three digits, any 64-bit latency is in range.
                    measured.latency.record(latency_ns).unwrap_or_default();
                    measured.service.record(latency_ns).unwrap_or_default();
                }
                last_ns = done.done_ns;
                bar.inc(1);
            });
            ensure!(
                bar.position() > answered || !waited || bench.is_idle(),
                "the simulated server stopped answering at {last_ns} ns"
            );
        }
        bar.finish_and_clear();
        let changes = fit.lock().expect("no thread panics").changes;
        let uri = format!("{disk}, in virtual time, {} of memory", show_bytes(self.memory));
        Ok(Report { what, uri, mode, connections: 1, volume_bytes: size, changes, ..measurements.report(last_ns) })
    }
}

//! Evidence from the servers, and what happened between two answers.

use std::time::Duration;

use engine::allocate::{Counters, Measured, Reads, Sum};
use hyper::Method;
use serde_json::Value;

use crate::cli::arguments::AllocateWhat;
use crate::cli::client::{ClientError, Place, ask_at};
use crate::cli::read;
use crate::control::view::{DiskEvidence, EvidenceView, LoadEvidence, TenantEvidence};

use super::Failure;

/// After this time a server counts as silent: it limits the time of its own answers to 15 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// An answer of a server, or an error after [`ANSWER_TIMEOUT`].
pub(super) async fn in_time(answer: impl Future<Output = Result<Value, ClientError>>) -> Result<Value, ClientError> {
    let silent = || ClientError::Broken(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()));
    tokio::time::timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_| Err(silent()))
}

/// The server and its gateways.
pub(super) struct Servers {
    /// The server first.
    places: Vec<Place>,
    token: Option<String>,
}

/// The token for changes, if a file is named.
pub(super) fn token(what: &AllocateWhat) -> Result<Option<String>, Failure> {
    let Some(path) = &what.token_file else { return Ok(None) };
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display()), None))?;
    Ok(Some(text.trim().to_owned()))
}

/// What a server and its gateways did in a window.
#[derive(Debug)]
pub(super) struct Observed {
    /// The server first.
    pub(super) servers: Vec<ObservedServer>,
}

/// What one of them did.
#[derive(Debug)]
pub(super) struct ObservedServer {
    pub(super) place: Place,
    pub(super) disks: Vec<ObservedDisk>,
}

/// A disk now, and what its tenants did.
#[derive(Debug)]
pub(super) struct ObservedDisk {
    pub(super) now: DiskEvidence,
    /// For each tenant in `now`: what it did in the window, and since the start.
    pub(super) loads: Vec<Measured>,
}

/// The counters of a tenant at a time on its disk's clock.
pub(super) fn counters(load: &LoadEvidence, seconds: f64) -> Counters {
    let ns = |seconds: f64| seconds * 1e9;
    let sum = |count: u64, seconds: f64| Sum { count: count as f64, ns: ns(seconds) };
    Counters {
        elapsed_ns: ns(seconds),
        reads: sum(load.reads, load.read_seconds),
        hits: sum(load.hits, load.hit_seconds),
        missed_bytes: load.missed_bytes as f64,
        writes: sum(load.writes, load.write_seconds),
        outstanding_max: load.outstanding_max,
        fills: sum(load.disk_reads, load.disk_queue_seconds + load.disk_slice_seconds + load.disk_service_seconds),
        device_requests: load.disk_requests as f64,
        disk: engine::allocate::Observed {
            reads: Reads {
                count: load.disk_reads as f64,
                device_ns: ns(load.disk_service_seconds),
                service_ns: ns(load.disk_read_seconds),
            },
            beside_writes: Reads {
                count: load.beside_writes_reads as f64,
                device_ns: ns(load.beside_writes_service_seconds),
                service_ns: ns(load.beside_writes_read_seconds),
            },
            writes_ns: ns(load.disk_write_seconds),
            owned_ns: ns(load.disk_owned_seconds),
        },
        rounds: sum(load.rounds, load.rounds_seconds),
    }
}

impl Servers {
    pub(super) fn new(what: &AllocateWhat) -> Result<Servers, Failure> {
        let places: Vec<Place> = std::iter::once(&what.server).chain(&what.gateways).cloned().collect();
        for (at, place) in places.iter().enumerate() {
            if places[..at].contains(place) {
                return Err(Failure::usage(
                    format!("{place} is named twice"),
                    Some("name each gateway once, and the server only with --server".into()),
                ));
            }
        }
        Ok(Servers { places, token: token(what)? })
    }

    /// The present evidence of all.
    pub(super) async fn look(&self) -> Result<Vec<EvidenceView>, Failure> {
        let ask = |place| in_time(ask_at(place, self.token.as_deref(), Method::GET, "/v1/evidence", None));
        let answers = futures::future::join_all(self.places.iter().map(ask)).await;
        let read = |(place, answer): (&Place, Result<_, _>)| {
            answer.and_then(read::<EvidenceView>).map_err(|error| Failure::of(place, &error))
        };
        self.places.iter().zip(answers).map(read).collect()
    }

    /// Refuses servers that do not belong together.
    pub(super) fn check(&self, all: &[EvidenceView]) -> Result<(), Failure> {
        for (at, (place, evidence)) in self.places.iter().zip(all).enumerate() {
            if let Some(other) = all[..at].iter().position(|other| other.process == evidence.process) {
                return Err(Failure::usage(
                    format!("{place} and {} are the same process", self.places[other]),
                    Some("name each gateway once, and the server only with --server".into()),
                ));
            }
        }
        let tenants = |evidence: &'_ EvidenceView| -> Vec<TenantEvidence> {
            evidence.disks.iter().flat_map(|disk| disk.tenants.clone()).collect()
        };
        let server = tenants(&all[0]);
        let is_here = |uuid| server.iter().any(|tenant| tenant.volumes.iter().any(|volume| volume.uuid == uuid));
        for (place, gateway) in self.places.iter().zip(all).skip(1) {
            let exports = tenants(gateway).into_iter().flat_map(|tenant| tenant.volumes).flat_map(|volume| volume.from);
            if !exports.flatten().any(is_here) {
                return Err(Failure::usage(
                    format!("{place} is no gateway of {}: none of its volumes is there", self.places[0]),
                    Some(format!("name gateways with volumes --from a volume of {}", self.places[0])),
                ));
            }
        }
        Ok(())
    }

    /// What happened between two answers.
    pub(super) fn observe(&self, before: Vec<EvidenceView>, after: Vec<EvidenceView>) -> Result<Observed, Failure> {
        let all = self.places.iter().zip(before).zip(after);
        let server = |((place, before), after): ((&Place, EvidenceView), EvidenceView)| {
            if before.process != after.process {
                let again = "try again; `allocate run` goes on by itself";
                return Err(Failure::refused(format!("{place} was restarted meanwhile"), Some(again.into())));
            }
            let disks = after.disks.into_iter().map(|now| observed(now, &before)).collect();
            Ok(ObservedServer { place: place.clone(), disks })
        };
        Ok(Observed { servers: all.map(server).collect::<Result<_, _>>()? })
    }
}

pub(super) fn observed(now: DiskEvidence, before: &EvidenceView) -> ObservedDisk {
    let earlier = before.disks.iter().find(|disk| disk.disk == now.disk);
    let load = |tenant: &TenantEvidence| {
        let total = counters(&tenant.load, now.seconds);
        let Some(disk) = earlier else { return Measured { window: total, total } };
        let idle = Counters { elapsed_ns: disk.seconds * 1e9, ..Counters::default() };
        let then = disk.tenants.iter().find(|then| then.tenant == tenant.tenant);
        // A new tenant has done everything since. If a volume of the tenant was deleted, its counters have gone back,
        // and what it did meanwhile is not known.
        let window = total.since(&then.map_or(idle, |then| counters(&then.load, disk.seconds)));
        let unknown = Counters { elapsed_ns: total.elapsed_ns - idle.elapsed_ns, ..Counters::default() };
        Measured { window: window.unwrap_or(unknown), total }
    };
    let loads = now.tenants.iter().map(load).collect();
    ObservedDisk { now, loads }
}

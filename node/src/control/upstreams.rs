//! Gateway volumes: their data is an export on another server (`docs/manual/gateway.md`).
//!
//! ```text
//!   create ── probe ─► size, abilities ─► specification
//!   open   ── a later epoch ─► specification ── Dialer ─► disk thread       whether or not the server is there
//! ```

use std::time::SystemTime;

use engine::control::{Command, VolumeSpec, VolumeStats};
use engine::ids::VolumeId;
use engine::nbd::wire::export_flag;
use engine::nbd::{Opened, Place};
use engine::units::{BLOCK, SECTOR};
use uuid::Uuid;

use super::error::UpstreamError;
use super::opening::Prepared;
use super::view::{CreateVolume, SetVolume, UpstreamState, UpstreamView};
use super::{Control, Error, Invalid, Running, Source, Volume, VolumeState, with_files};
use crate::disk_thread::Backing;
use crate::quantity::{Name, Time};
use crate::store::remote::{CONNECTIONS_DEFAULT, DEADLINE_DEFAULT};
use crate::store::spec::{Allocation, WriteCache};
use crate::store::{ExportUri, Remote, Spec, TenantSpec};
use crate::upstream::{self, Dialer};

/// An export that was found for a new volume.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) remote: Remote,
    /// Its size, bytes.
    pub(super) size: u64,
}

/// The export that a request names, as its server describes it. Nothing is recorded yet.
pub(super) async fn choose(request: &CreateVolume) -> Result<Option<Chosen>, Error> {
    let Some(from) = &request.from else {
        let is_plain = !request.shared && !request.accept_data_loss;
        let is_plain = is_plain && request.upstream_deadline.is_none() && request.upstream_connections.is_none();
        let is_plain = is_plain && request.tls_certificates.is_none() && request.tls_hostname.is_none();
        return if is_plain { Ok(None) } else { Err(Invalid::UpstreamWithoutFrom.into()) };
    };
    check_request(request, from)?;
    let remote = wanted(request, from)?;
    let opened = upstream::probe(&remote.target()).await.map_err(UpstreamError::from)?;
    Ok(Some(found(request, remote, &opened)?))
}

/// Refuses what contradicts an export.
fn check_request(request: &CreateVolume, from: &ExportUri) -> Result<(), Invalid> {
    if request.size.is_some() {
        return Err(Invalid::SizeOfExport);
    }
    if request.device.is_some() {
        return Err(Invalid::DeviceAndFrom);
    }
    if request.allocation != Allocation::default() {
        return Err(Invalid::AllocateExport);
    }
    if request.like.is_some() {
        return Err(Invalid::LikeOfExport);
    }
    match &from.0.place {
        Place::Unix(path) if !path.is_absolute() => Err(Invalid::RelativeSocket(from.clone())),
        _ => Ok(()),
    }
}

/// What the specification says of an export before its server was asked.
fn wanted(request: &CreateVolume, from: &ExportUri) -> Result<Remote, Invalid> {
    let in_uri = from.0.parameters.as_deref();
    let remote = Remote {
        from: from.clone(),
        tls_certificates: request.tls_certificates.clone().or_else(|| in_uri?.certificates.clone()),
        tls_hostname: request.tls_hostname.clone().or_else(|| in_uri?.hostname.clone()),
        volume: None,
        shared: request.shared,
        deadline: request.upstream_deadline.unwrap_or(DEADLINE_DEFAULT),
        connections: request.upstream_connections.unwrap_or(CONNECTIONS_DEFAULT),
        epoch: 0,
        zeroes: false,
        block: SECTOR as u32,
        read_only: false,
        without_flush: false,
    };
    match &remote.tls_certificates {
        _ if !from.0.tls && (remote.tls_certificates.is_some() || remote.tls_hostname.is_some()) => {
            return Err(Invalid::CertificatesWithoutTls(from.clone()));
        }
        None if from.0.tls => return Err(Invalid::TlsWithoutCertificates(from.clone())),
        Some(directory) if !directory.is_absolute() => {
            return Err(Invalid::RelativeCertificates(directory.clone()));
        }
        _ => {}
    }
    remote.check()?;
    Ok(remote)
}

/// What the specification says of an export that was opened.
fn found(request: &CreateVolume, remote: Remote, opened: &Opened) -> Result<Chosen, Error> {
    let from = &remote.from;
    let block = match u64::from(opened.block_bytes_min) {
        0..=SECTOR => SECTOR,
        _ => BLOCK,
    };
    if u64::from(opened.block_bytes_min) > BLOCK {
        return Err(UpstreamError::Blocks { from: from.clone(), bytes: opened.block_bytes_min }.into());
    }
    if opened.size == 0 || !opened.size.is_multiple_of(block) {
        return Err(UpstreamError::Size { from: from.clone(), bytes: opened.size, block }.into());
    }
    let read_only = opened.has(export_flag::READ_ONLY);
    let without_flush = !opened.has(export_flag::SEND_FLUSH) && !read_only;
    if without_flush && !request.accept_data_loss {
        return Err(UpstreamError::NoFlush(from.clone()).into());
    }
    let zeroes = opened.has(export_flag::SEND_WRITE_ZEROES);
    let volume = opened.volume.map(Uuid::from_u128);
    let remote = Remote { volume, zeroes, block: block as u32, read_only, without_flush, ..remote };
    Ok(Chosen { remote, size: opened.size })
}

impl Chosen {
    /// Enters the export into the specification of a new volume.
    pub(super) fn enter(&self, spec: &mut Spec) {
        spec.read_only |= self.remote.read_only;
        if self.remote.shared {
            spec.write_cache = WriteCache::None;
        }
        spec.upstream = Some(self.remote.clone());
    }
}

/// Refuses promises of disk time to a tenant that has none.
pub(super) fn refuse_promises(tenant: &Name, spec: &TenantSpec) -> Result<(), Invalid> {
    let promises = spec.share.is_some() || spec.min_bandwidth.is_some();
    if promises { Err(Invalid::PromiseOfRemote(tenant.clone())) } else { Ok(()) }
}

/// Applies the upstream's settings in a request. Refuses what the export does not permit.
pub(super) fn apply(name: &Name, request: &SetVolume, spec: &mut Spec) -> Result<(), Invalid> {
    let Some(remote) = &mut spec.upstream else {
        return if request.changes_upstream() { Err(Invalid::NoUpstream(name.clone())) } else { Ok(()) };
    };
    if remote.shared && request.write_cache.is_some_and(|mode| mode != WriteCache::None) {
        return Err(Invalid::WriteCacheOfShared(name.clone()));
    }
    if remote.read_only && request.read_only == Some(false) {
        return Err(Invalid::ReadOnlyExport { volume: name.clone(), from: Box::new(remote.from.clone()) });
    }
    remote.deadline = request.upstream_deadline.unwrap_or(remote.deadline);
    remote.connections = request.upstream_connections.unwrap_or(remote.connections);
    Ok(remote.check()?)
}

/// The command that tells the engine of the upstream's settings.
pub(super) fn command(volume: VolumeId, spec: &Spec) -> Option<Command> {
    let remote = spec.upstream.as_ref()?;
    let (deadline_ns, connections) = (remote.deadline.0.as_nanos() as u64, remote.connections);
    Some(Command::SetUpstream { volume, deadline_ns, connections })
}

/// The same, if they change.
pub(super) fn change(volume: VolumeId, before: &Spec, now: &Spec) -> Option<Command> {
    let of = |spec: &Spec| spec.upstream.as_ref().map(|remote| (remote.deadline, remote.connections));
    command(volume, now).filter(|_| of(before) != of(now))
}

impl Control {
    /// Stores a later epoch than all before, and makes a dialer. The server may be away.
    pub(super) async fn prepare_upstream(
        &self,
        disk: &Name,
        name: &Name,
        spec: Spec,
        remote: &Remote,
    ) -> Result<Prepared, Error> {
        let remote = remote.later(SystemTime::now());
        let later = Spec { upstream: Some(remote.clone()), ..spec.clone() };
        let store = self.state().disk(disk)?.store.clone();
        let (to, uuid) = (later.clone(), spec.uuid);
        with_files(&store, name, move |files| files.change(&spec, &to)).await??;
        self.set_spec(disk, name, &later);
        let plain = self.plain_spec(disk, name, &later)?;
        let spec = VolumeSpec {
            // TRIM is passed on.
            sparse: true,
            device_block: remote.block,
            can_zero: remote.zeroes,
            can_punch: remote.zeroes,
            // Its first session begins with a flush.
            unflushed: false,
            upstream: Some(remote.for_engine(name, uuid, plain.size)),
            ..plain
        };
        let gate = self.state().disk(disk)?.thread.tls_gate(spec.tenant);
        let dialer = Dialer::new(remote.target(), gate);
        Ok(Prepared { spec, backing: Backing::Upstream(dialer.clone()), source: Source::Upstream(dialer) })
    }
}

impl Running {
    /// Whether the volumes of a tenant are on other servers, so that it has no disk time.
    pub(super) fn is_remote(&self, tenant: &Name) -> bool {
        self.members(tenant).any(|(_, spec)| spec.upstream.is_some())
    }
}

/// The upstream of a volume, if it has one.
pub(super) fn upstream_view(volume: &Volume, stats: Option<&VolumeStats>) -> Option<UpstreamView> {
    let remote = volume.spec.as_ref()?.upstream.as_ref()?;
    let stats = stats.and_then(|stats| stats.upstream);
    let standing = match &volume.state {
        VolumeState::Serving { source: Source::Upstream(dialer), .. } => Some(dialer.standing()),
        _ => None,
    };
    let state = match (&standing, stats) {
        (None, _) => UpstreamState::Offline,
        (Some(_), Some(stats)) if stats.is_offline => UpstreamState::Offline,
        (Some(_), Some(stats)) if stats.is_open => UpstreamState::Online,
        (Some(_), _) => UpstreamState::Connecting,
    };
    let stats = stats.unwrap_or_default();
    Some(UpstreamView {
        from: remote.from.to_string(),
        state,
        failure: standing.and_then(|standing| standing.failure),
        connections: stats.connections,
        round_trip_us: stats.round_trip_ns / 1000,
        outstanding: stats.outstanding,
        waiting: stats.waiting,
        unflushed_bytes: stats.unflushed_bytes,
        reconnects: stats.reconnects,
        epoch: stats.epoch.max(remote.epoch),
        deadline_s: remote.deadline.0.as_secs_f64(),
        shared: remote.shared,
    })
}

/// Warnings of a volume about its upstream.
pub(super) fn upstream_warnings(volume: &Volume, stats: Option<&VolumeStats>) -> Vec<String> {
    let Some(remote) = volume.spec.as_ref().and_then(|spec| spec.upstream.as_ref()) else { return Vec::new() };
    let mut warnings = Vec::new();
    if remote.without_flush {
        warnings.push("its server cannot flush: flushed data may be lost when that server stops".into());
    }
    let Some(view) = upstream_view(volume, stats).filter(|_| volume.id().is_some()) else { return warnings };
    let (failure, from) = (view.failure.unwrap_or_default(), &remote.from);
    match view.state {
        UpstreamState::Connecting if !failure.is_empty() => {
            let deadline: &Time = &remote.deadline;
            warnings
                .push(format!("its server is away: {failure}; requests wait for it for up to {deadline}, then fail"));
        }
        UpstreamState::Offline => warnings.push(format!(
            "{from} cannot be used any more, and requests fail: {failure}; when it is as before, restart this server"
        )),
        UpstreamState::Connecting | UpstreamState::Online => {}
    }
    warnings
}

#[cfg(test)]
mod tests;

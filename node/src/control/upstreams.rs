//! Gateway volumes: their data is an export on another server, or striped over several (`docs/manual/gateway.md`).
//!
//! ```text
//!   create ── probe each ─► size, abilities ─► specification
//!   open   ── a later epoch ─► specification ── Dialers ─► disk thread      whether or not the servers are there
//! ```

use std::time::SystemTime;

use engine::cluster::{Slot, Timetable};
use engine::control::{Command, VolumeSpec, VolumeStats};
use engine::ids::VolumeId;
use engine::nbd::wire::export_flag;
use engine::nbd::{COUNTED_BITS, Opened, Place};
use engine::units::{BLOCK, Nanos, SECTOR};
use engine::upstream::UpstreamStats;
use uuid::Uuid;

use super::error::UpstreamError;
use super::opening::Prepared;
use super::view::{CreateVolume, SetVolume, StripesView, UpstreamState, UpstreamView};
use super::volumes::which_disk;
use super::{Control, Error, Invalid, Running, Source, Volume, VolumeState, with_files};
use crate::disk_thread::Backing;
use crate::quantity::Name;
use crate::store::remote::{CONNECTIONS_DEFAULT, DEADLINE_DEFAULT, STRIPE_UNIT_DEFAULT, client_of};
use crate::store::spec::{Allocation, WriteCache};
use crate::store::{ExportUri, Exports, Remote, Spec, Stripes, TenantSpec, Tiers};
use crate::upstream::{self, Dialer, Leg, Standing};

/// What was found for a new volume: an export, or several over which it is striped.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) first: Remote,
    pub(super) stripes: Option<Stripes>,
    /// The size of the volume, bytes.
    pub(super) size: u64,
}

/// The exports that a request names, as their servers describe them. Nothing is recorded yet.
pub(super) async fn choose(request: &CreateVolume) -> Result<Option<Chosen>, Error> {
    let Some(Exports(from)) = &request.from else {
        if request.stripe.is_some() {
            return Err(Invalid::StripeOfOne.into());
        }
        let is_plain = !request.shared && !request.accept_data_loss;
        let is_plain = is_plain && request.upstream_deadline.is_none() && request.upstream_connections.is_none();
        let is_plain = is_plain && request.tiers.is_none();
        let is_plain = is_plain && request.tls_certificates.is_none() && request.tls_hostname.is_none();
        return if is_plain { Ok(None) } else { Err(Invalid::UpstreamWithoutFrom.into()) };
    };
    check_request(request, from)?;
    let wanted = from.iter().map(|from| wanted(request, from)).collect::<Result<Vec<_>, _>>()?;
    let mut members = Vec::new();
    for remote in wanted {
        let opened = upstream::probe(&remote.target()).await.map_err(UpstreamError::from)?;
        members.push(found(request, remote, &opened)?);
    }
    Ok(Some(composed(request, members)?))
}

/// Refuses what contradicts the exports.
fn check_request(request: &CreateVolume, from: &[ExportUri]) -> Result<(), Invalid> {
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
    for (at, member) in from.iter().enumerate() {
        match &member.0.place {
            Place::Unix(path) if !path.is_absolute() => return Err(Invalid::RelativeSocket(member.clone())),
            _ if from[..at].contains(member) => return Err(Invalid::MemberTwice(member.clone())),
            _ => {}
        }
    }
    if request.tiers == Some(Tiers::Demote) {
        check_demotion(from.len() > 1, request.shared)?;
    }
    match (from, request.stripe) {
        ([], _) => Err(Invalid::NoExport),
        ([_], Some(_)) => Err(Invalid::StripeOfOne),
        ([_], None) => Ok(()),
        (_, unit) => {
            Stripes::check_unit(unit.unwrap_or(STRIPE_UNIT_DEFAULT).0)?;
            Ok(Stripes::check_count(from.len())?)
        }
    }
}

/// Refuses demotion where no server would grant it.
fn check_demotion(is_striped: bool, is_shared: bool) -> Result<(), Invalid> {
    match (is_striped, is_shared) {
        (true, _) => Err(Invalid::TiersOfStripes),
        (false, true) => Err(Invalid::TiersOfShared),
        (false, false) => Ok(()),
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
        epoch: request.lease_epoch.map_or(0, |epoch| epoch << COUNTED_BITS),
        leased: request.lease_epoch.is_some(),
        zeroes: false,
        size: None,
        block: SECTOR as u32,
        read_only: false,
        without_flush: false,
        tiers: request.tiers.unwrap_or_default(),
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

/// What the specification says of an export that was opened, and its size.
fn found(request: &CreateVolume, remote: Remote, opened: &Opened) -> Result<(Remote, u64), Error> {
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
    Ok((remote, opened.size))
}

/// The volume that these exports make, in their order.
fn composed(request: &CreateVolume, mut members: Vec<(Remote, u64)>) -> Result<Chosen, Error> {
    if let [(first, size)] = &members[..] {
        return Ok(Chosen { first: first.clone(), stripes: None, size: *size });
    }
    for (at, (member, _)) in members.iter().enumerate() {
        let same = members[..at].iter().find(|(other, _)| other.volume.is_some() && other.volume == member.volume);
        if let Some((other, _)) = same {
            let [one, other] = [other, member].map(|of| Box::new(of.from.clone()));
            return Err(UpstreamError::SameVolume(one, other).into());
        }
    }
    let unit = request.stripe.unwrap_or(STRIPE_UNIT_DEFAULT).0;
    if let Some((member, size)) = members.iter().find(|(_, size)| *size < unit) {
        return Err(UpstreamError::BelowUnit { from: member.from.clone(), bytes: *size, unit }.into());
    }
    let size = Stripes::size_over(unit, members.iter().map(|(_, size)| *size));
    members.iter_mut().for_each(|(member, size)| member.size = Some(*size));
    let mut members = members.into_iter().map(|(member, _)| member);
    let first = members.next().ok_or(Invalid::NoExport)?;
    Ok(Chosen { first, stripes: Some(Stripes { unit, others: members.collect() }), size })
}

impl Chosen {
    /// Enters the exports into the specification of a new volume.
    pub(super) fn enter(&self, spec: &mut Spec) {
        *spec = spec.on_exports(self.first.clone(), self.stripes.clone());
        let is_read_only = spec.exports().any(|export| export.read_only);
        spec.read_only |= is_read_only;
        if self.first.shared {
            spec.write_cache = WriteCache::None;
        }
    }
}

/// Refuses promises of disk time to a tenant that has none.
pub(super) fn refuse_promises(tenant: &Name, spec: &TenantSpec) -> Result<(), Invalid> {
    let promises = spec.share.is_some() || spec.auto_share || spec.min_bandwidth.is_some();
    if promises { Err(Invalid::PromiseOfRemote(tenant.clone())) } else { Ok(()) }
}

/// Applies the upstream's settings in a request. Refuses what the export does not permit.
pub(super) fn apply(name: &Name, request: &SetVolume, spec: &mut Spec) -> Result<(), Invalid> {
    if let Some(remote) = spec.exports().find(|remote| remote.read_only)
        && request.read_only == Some(false)
    {
        return Err(Invalid::ReadOnlyExport { volume: name.clone(), from: Box::new(remote.from.clone()) });
    }
    let Some(remote) = &mut spec.upstream else {
        return if request.changes_upstream() { Err(Invalid::NoUpstream(name.clone())) } else { Ok(()) };
    };
    if remote.shared && request.write_cache.is_some_and(|mode| mode != WriteCache::None) {
        return Err(Invalid::WriteCacheOfShared(name.clone()));
    }
    if request.tiers == Some(Tiers::Demote) {
        check_demotion(spec.stripes.is_some(), remote.shared)?;
    }
    for remote in std::iter::once(remote).chain(spec.stripes.iter_mut().flat_map(|stripes| &mut stripes.others)) {
        remote.deadline = request.upstream_deadline.unwrap_or(remote.deadline);
        remote.connections = request.upstream_connections.unwrap_or(remote.connections);
        remote.tiers = request.tiers.unwrap_or(remote.tiers);
        remote.check()?;
    }
    Ok(())
}

/// The command that tells the engine of the upstreams' settings, which are the same for all of a volume.
pub(super) fn command(volume: VolumeId, spec: &Spec) -> Option<Command> {
    let remote = spec.upstream.as_ref()?;
    let (deadline_ns, connections) = (remote.deadline.0.as_nanos() as u64, remote.connections);
    Some(Command::SetUpstream { volume, deadline_ns, connections, tiers: remote.tiers.into() })
}

/// The same, if they change.
pub(super) fn change(volume: VolumeId, before: &Spec, now: &Spec) -> Option<Command> {
    let of = |spec: &Spec| spec.upstream.as_ref().map(|remote| (remote.deadline, remote.connections, remote.tiers));
    command(volume, now).filter(|_| of(before) != of(now))
}

impl Control {
    /// Stores later epochs than all before, and makes dialers. The servers may be away.
    pub(super) async fn prepare_upstream(&self, disk: &Name, name: &Name, spec: Spec) -> Result<Prepared, Error> {
        let now = SystemTime::now();
        let upstream = spec.upstream.as_ref().map(|remote| remote.later(now));
        let later = Spec { upstream, stripes: spec.stripes.as_ref().map(|stripes| stripes.later(now)), ..spec.clone() };
        let store = self.state().disk(disk)?.store.clone();
        // A gateway that opens a volume of its cluster again is the same client.
        let is_leased = spec.exports().any(|remote| remote.leased);
        let (to, uuid) = (later.clone(), if is_leased { store.identity.uuid } else { spec.uuid });
        with_files(&store, name, move |files| files.change(&spec, &to)).await??;
        self.set_spec(disk, name, &later);
        let plain = self.plain_spec(disk, name, &later)?;
        let numbers = self.state().disk(disk)?.free_volumes(later.exports().count());
        let spec = VolumeSpec {
            volume: numbers[0],
            // TRIM is passed on.
            sparse: true,
            device_block: later.exports().map(|remote| remote.block).max().unwrap_or(plain.device_block),
            can_zero: later.exports().all(|remote| remote.zeroes),
            can_punch: later.exports().all(|remote| remote.zeroes),
            // Its first session begins with a flush.
            unflushed: false,
            upstream: later.upstream.as_ref().map(|remote| remote.for_engine(name, uuid, plain.size)),
            stripes: later.stripes.as_ref().map(|stripes| stripes.for_engine(name, uuid, &numbers[1..])),
            ..plain
        };
        let gate = self.state().disk(disk)?.thread.tls_gate(spec.tenant);
        let leg = |(&number, remote): (&VolumeId, &Remote)| Leg {
            number,
            dialer: Dialer::new(remote.target(), gate.clone()),
        };
        let legs: Vec<Leg> = numbers.iter().zip(later.exports()).map(leg).collect();
        Ok(Prepared { spec, backing: Backing::Upstream(legs.clone()), source: Source::Upstream(legs) })
    }
}

impl Control {
    /// The name by which servers of a cluster know this gateway and a volume.
    pub fn gateway_client(&self, name: &Name) -> Result<String, Error> {
        let state = self.state();
        let disk = which_disk(&state, None)?;
        Ok(client_of(name, state.disk(&disk)?.store.identity.uuid))
    }

    /// The volumes of a cluster that this gateway has, or had before it was started.
    pub fn volumes_of_gateway(&self) -> Vec<Name> {
        let state = self.state();
        let volumes = state.disks.values().filter_map(|disk| disk.state.as_ref().ok()).flat_map(|disk| &disk.volumes);
        let is_leased = |volume: &Volume| volume.spec.iter().flat_map(Spec::exports).any(|remote| remote.leased);
        volumes.filter(|(_, volume)| is_leased(volume)).map(|(name, _)| name.clone()).collect()
    }

    /// The size of a volume, bytes; an error if there is none, or if its specification cannot be read.
    pub fn size_of(&self, name: &Name) -> Result<u64, Error> {
        let state = self.state();
        let (_, volume) = state.find(name)?;
        let spec = volume.spec.as_ref().ok_or_else(|| state.unserved(name))?;
        Ok(spec.size)
    }

    /// Tells the engine of a striped volume when it has its slots.
    pub async fn set_slot(&self, name: &Name, timetable: Timetable, slot: Slot) {
        let found = self.state().find(name).ok().and_then(|(disk, volume)| Some((disk, volume.id()?)));
        if let Some((disk, volume)) = found {
            let command = Command::SetSlot { volume, timetable: Box::new(timetable), slot };
            // Nothing depends on it but what it measures.
            let _ = self.command_disk(&disk, command).await;
        }
    }

    /// How long requests of a volume have waited for its servers in all, and what it loses of a slot on average, if
    /// that is known.
    pub async fn slot_use(&self, name: &Name) -> Option<(Nanos, Option<Nanos>)> {
        let (disk, id) = self.state().find(name).ok().map(|(disk, volume)| (disk, volume.id()))?;
        let snapshot = self.snapshot(&disk).await?;
        let stats = snapshot.volumes.iter().find(|stats| Some(stats.volume) == id)?;
        Some((stats.disk_delay_ns, stats.slot_loss_ns))
    }

    /// Whether another gateway was admitted to a volume in the place of this one, and no client has it open here;
    /// `None` if there is no such volume.
    pub async fn is_fenced(&self, name: &Name) -> Option<bool> {
        let (disk, id) = self.state().find(name).ok().map(|(disk, volume)| (disk, volume.id()))?;
        let Some(snapshot) = self.snapshot(&disk).await else { return Some(false) };
        let stats = snapshot.volumes.iter().find(|stats| Some(stats.volume) == id);
        let is_offline = |stats: &VolumeStats| stats.upstreams.iter().any(|upstream| upstream.is_offline);
        Some(stats.is_some_and(|stats| is_offline(stats) && stats.connections == 0))
    }
}

impl Running {
    /// Whether the volumes of a tenant are on other servers, so that it has no disk time.
    pub(super) fn is_remote(&self, tenant: &Name) -> bool {
        self.members(tenant).any(|(_, spec)| spec.upstream.is_some())
    }
}

/// The exports of a volume on other servers, in order.
fn views(volume: &Volume, stats: Option<&VolumeStats>) -> Vec<UpstreamView> {
    let legs = match &volume.state {
        VolumeState::Serving { source: Source::Upstream(legs), .. } => &legs[..],
        _ => &[],
    };
    let view = |(at, remote): (usize, &Remote)| {
        let standing = legs.get(at).map(|leg| leg.dialer.standing());
        let stats = stats.and_then(|stats| stats.upstreams.get(at));
        view(remote, standing, stats)
    };
    volume.spec.iter().flat_map(Spec::exports).enumerate().map(view).collect()
}

fn view(remote: &Remote, standing: Option<Standing>, stats: Option<&UpstreamStats>) -> UpstreamView {
    let state = match (&standing, stats) {
        (None, _) => UpstreamState::Offline,
        (Some(_), Some(stats)) if stats.is_offline => UpstreamState::Offline,
        (Some(_), Some(stats)) if stats.is_open => UpstreamState::Online,
        (Some(_), _) => UpstreamState::Connecting,
    };
    let stats = stats.copied().unwrap_or_default();
    UpstreamView {
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
        tiers: remote.tiers,
        effective_tiers: if stats.is_demoting { Tiers::Demote } else { Tiers::Lru },
        demoted_bytes: stats.demoted_blocks * BLOCK,
    }
}

/// The upstream of a volume, if it has one and is not striped.
pub(super) fn upstream_view(volume: &Volume, stats: Option<&VolumeStats>) -> Option<UpstreamView> {
    let is_striped = volume.spec.as_ref().is_some_and(|spec| spec.stripes.is_some());
    views(volume, stats).into_iter().next().filter(|_| !is_striped)
}

/// How a volume is striped, if it is.
pub(super) fn stripes_view(volume: &Volume, stats: Option<&VolumeStats>) -> Option<StripesView> {
    let Stripes { unit, .. } = volume.spec.as_ref()?.stripes.as_ref()?;
    Some(StripesView { unit_bytes: *unit, members: views(volume, stats) })
}

/// Warnings of a volume about its upstreams.
pub(super) fn upstream_warnings(volume: &Volume, stats: Option<&VolumeStats>) -> Vec<String> {
    let Some(spec) = &volume.spec else { return Vec::new() };
    let mut warnings = Vec::new();
    for (remote, view) in spec.exports().zip(views(volume, stats)) {
        // Of one export, it is clear which it is.
        let whose = if spec.stripes.is_some() { format!("{}: its server", remote.from) } else { "its server".into() };
        if remote.without_flush {
            warnings.push(format!("{whose} cannot flush: flushed data may be lost when that server stops"));
        }
        let (failure, from, deadline) = (view.failure.unwrap_or_default(), &remote.from, &remote.deadline);
        match view.state {
            _ if volume.id().is_none() => {}
            UpstreamState::Connecting if !failure.is_empty() => warnings
                .push(format!("{whose} is away: {failure}; requests wait for it for up to {deadline}, then fail")),
            UpstreamState::Offline => warnings.push(format!(
                "{from} cannot be used any more, and requests fail: {failure}; when it is as before, restart this \
                 server"
            )),
            UpstreamState::Connecting | UpstreamState::Online => {}
        }
    }
    warnings
}

#[cfg(test)]
mod tests;

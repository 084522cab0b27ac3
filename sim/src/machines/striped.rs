//! Volumes that are striped over several servers: which worlds have them, and where their content is.

use engine::control::{StripeSpec, Tiers, UpstreamSpec};
use engine::ids::VolumeId;
use engine::units::BLOCK;

use super::World;
use super::leases::ISSUED;
use super::machine::Hosted;
use super::setup::{Focus, Kind, SERVER, Setup};
use crate::medium::{Blocks, Medium, Sector};
use crate::rng::Rng;

/// Servers of a striped volume at most.
pub(crate) const SERVERS_MAX: usize = 3;
/// The number of the first export that has no volume's number.
const FIRST_LEG: u32 = 8;

/// The media of a volume. Blocks take turns on them, so many at a time.
#[derive(Clone, Copy)]
pub(crate) struct Media<'a> {
    of: [&'a Medium; SERVERS_MAX],
    count: u64,
    unit_blocks: u64,
}

impl Blocks for Media<'_> {
    fn block(&self, number: u64) -> Option<&[Sector]> {
        let (unit, inside) = (number / self.unit_blocks, number % self.unit_blocks);
        self.of[(unit % self.count) as usize].block(unit / self.count * self.unit_blocks + inside)
    }
}

impl World {
    /// Where the content of a volume is.
    pub(crate) fn media(&self, at: usize) -> Media<'_> {
        let volume = &self.volumes[at];
        let medium = |machine: usize| self.machines[machine].disk.medium(VolumeId(at as u32));
        match self.setup.kind {
            Kind::Stripes { servers, unit, .. } if volume.is_remote => {
                let of = std::array::from_fn(|leg| medium(leg.min(servers - 1)));
                Media { of, count: servers as u64, unit_blocks: unit / BLOCK }
            }
            _ => {
                let machine = if volume.is_remote { SERVER } else { volume.front };
                Media { of: [medium(machine); SERVERS_MAX], count: 1, unit_blocks: 1 }
            }
        }
    }
}

impl Setup {
    /// Volumes of a gateway that are striped over two or three servers.
    pub(crate) fn stripes(seed: u64, focus: Option<Focus>) -> Setup {
        let mut setup = Setup::random(seed, focus);
        let rng = &mut Rng::new(seed ^ 0x0057_2195);
        let (servers, unit) = (rng.between(2, SERVERS_MAX as u64) as usize, rng.pick(&[1, 1, 2, 4, 16]) * BLOCK);
        setup.kind = Kind::Stripes { servers, unit, is_foreign: setup.kind == Kind::Stranger };
        for volume in setup.volumes.iter_mut().filter(|volume| volume.is_remote) {
            volume.size = volume.size.next_multiple_of(unit * servers as u64);
        }
        setup
    }

    /// What a server has of the volumes, or the volumes of the gateway.
    pub(crate) fn striped(&self, machine: usize, servers: usize, unit: u64) -> Vec<Hosted> {
        let numbered = self.volumes.iter().enumerate();
        let is_server = machine < servers;
        let of_machine = numbered.filter(|(_, volume)| !is_server || volume.is_remote);
        of_machine
            .map(|(at, setup)| {
                let leg = |server: usize| self.leg(at, server, servers, machine);
                let other = |server: usize| (VolumeId(FIRST_LEG + (at * SERVERS_MAX + server) as u32), leg(server));
                let is_away = !is_server && setup.is_remote;
                let others = || (1..servers).map(other).collect();
                Hosted {
                    volume: VolumeId(at as u32),
                    size: if is_server { leg(machine).size } else { setup.size },
                    is_sparse: self.is_sparse(is_server),
                    export: is_server.then(|| leg(machine).name),
                    identity: if is_server { leg(machine).volume } else { None },
                    upstream: is_away.then(|| leg(SERVER)),
                    server: SERVER,
                    stripes: is_away.then(|| StripeSpec { unit, others: others() }),
                    is_store: false,
                    key: None,
                }
            })
            .collect()
    }

    /// A server's export of a volume: larger than its part on all but the first.
    fn leg(&self, volume: usize, server: usize, servers: usize, machine: usize) -> UpstreamSpec {
        let identity = 100 + (server * 1000 + volume) as u128;
        UpstreamSpec {
            size: self.volumes[volume].size / servers as u64 + server as u64 * BLOCK,
            volume: (!self.kind.has_strangers()).then_some(identity),
            client: if machine > servers { "second".into() } else { "gateway".into() },
            epoch: if machine > servers { ISSUED } else { 0 },
            is_leased: self.lease_ms.is_some(),
            tiers: Tiers::Lru,
            ..self.upstream(volume, server)
        }
    }
}

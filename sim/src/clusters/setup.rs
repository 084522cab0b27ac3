//! The parameters of a world of a cluster, generated from one seed.

use engine::units::{BLOCK, MILLISECOND, Nanos, SECOND};

use crate::rng::Rng;

/// A client, which is one tenant with one volume on each of its servers.
#[derive(Clone, Debug)]
pub(super) struct ClientSetup {
    pub(super) servers: Vec<usize>,
    /// Requests outstanding, and the bytes of each on each server that it goes to.
    pub(super) depth: usize,
    pub(super) bytes: u64,
    /// Each request goes to all of its servers, not to one of them.
    pub(super) is_wide: bool,
    pub(super) think_ns: Nanos,
    /// How long it works and pauses, at most; `None`: it never pauses.
    pub(super) bursts: Option<(Nanos, Nanos)>,
    /// Of its requests so many of a million take much longer.
    pub(super) slow: u64,
}

/// The parameters of a world.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) servers: usize,
    pub(super) clients: Vec<ClientSetup>,
    /// Least time of a request, by server; at most twice as long.
    pub(super) service_ns: Vec<Nanos>,
    /// By how much slow requests take longer at most.
    pub(super) slow_ns: Nanos,
    pub(super) lasts_ns: Nanos,
    /// The longest time between two troubles, and between two schedules.
    pub(super) trouble_ns: Nanos,
    pub(super) schedule_ns: Nanos,
}

impl Setup {
    pub(super) fn random(seed: u64) -> Setup {
        let rng = &mut Rng::new(seed ^ 0x00c1_0572);
        let servers = rng.between(2, 4) as usize;
        let striped = rng.between(1, 3) as usize;
        let alone = rng.between(1, servers as u64) as usize;
        let first = rng.below(servers as u64) as usize;
        let mut clients: Vec<ClientSetup> = (0..striped)
            .map(|_| {
                let over = rng.between(2, servers as u64) as usize;
                let begin = rng.below(servers as u64) as usize;
                let mut of: Vec<usize> = (0..over).map(|at| (begin + at) % servers).collect();
                of.sort_unstable();
                client(of, rng)
            })
            .collect();
        clients.extend((0..alone).map(|at| client(vec![(first + at) % servers], rng)));
        Setup {
            servers,
            clients,
            service_ns: (0..servers).map(|_| rng.pick(&[2, 3, 4]) * MILLISECOND).collect(),
            slow_ns: rng.pick(&[40, 80]) * MILLISECOND,
            lasts_ns: rng.between(12, 25) * SECOND,
            trouble_ns: rng.pick(&[2, 5, 20]) * SECOND,
            schedule_ns: rng.pick(&[3, 6, 30]) * SECOND,
        }
    }
}

fn client(servers: Vec<usize>, rng: &mut Rng) -> ClientSetup {
    let is_wide = servers.len() > 1 && rng.one_in(2);
    let depth = rng.pick(&[1, 2, 4, 8, 8]) as usize * if is_wide { 2 } else { servers.len() };
    ClientSetup {
        depth,
        bytes: rng.pick(&[1, 4, 16]) * BLOCK,
        is_wide,
        think_ns: rng.pick(&[0, 0, 0, MILLISECOND, 10 * MILLISECOND]),
        bursts: rng.one_in(3).then(|| (rng.pick(&[1, 3]) * SECOND, rng.pick(&[1, 6]) * SECOND)),
        slow: rng.pick(&[0, 0, 20_000, 60_000]),
        servers,
    }
}

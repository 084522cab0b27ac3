//! From what the engine counts to [`Evidence`]. The program gets the counters through the API of the servers, the
//! laboratory from its snapshots.
//!
//! | evidence | from |
//! | --- | --- |
//! | miss ratios of reads | curve of the gateway; beyond its largest size, that of the server |
//! | other curves, references, hits in the first tier, writes | the gateway |
//! | hits in the second tier | mean latency of misses at the gateway, less the mean time that the disk adds there |
//! | clients and their think time | most requests outstanding, and the law of a closed loop: `z = N / X - L` |
//! | disk time of reads | measured, without those beside a batch of write-back; by depth as the profile says |
//! | delay by batches of write-back | how much longer such reads are in the device |
//! | disk time of write-back | measured, for each write that the curve says is not absorbed |
//! | round, end of slices | measured; the context switch is that of the profile |
//! | interruptions | counted if the measured wait for the disk is better predicted with them than without |

use super::curve::MissRatios;
use super::evidence::{Depth, DiskTime, Evidence, Interruption, Observed, Round, Tiers};
use crate::disk::profile::{Direction, Key, Profile};
use crate::units::BLOCK;

/// A window with fewer events gives no mean: that of a longer time is used.
const MEAN_LEAST: f64 = 10.0;
/// Latency of a hit until one was measured: a request and its reply over a socket, ns.
const HIT_NS_ASSUMED: f64 = 100_000.0;
/// Limit of [`Evidence::of_model`], both ways: with a larger factor the model describes something else.
const OF_MODEL_MAX: f64 = 8.0;
/// Depths of which profiles have the rate of random reads.
const DEPTHS: [u16; 6] = [1, 2, 4, 8, 16, 32];

/// Events, and the sum of their times.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Sum {
    /// How many.
    pub count: f64,
    /// Nanoseconds, of all together.
    pub ns: f64,
}

impl Sum {
    /// Of counters.
    pub fn of(count: u64, ns: u64) -> Sum {
        Sum { count: count as f64, ns: ns as f64 }
    }

    /// Counts more of them.
    pub fn add(&mut self, count: u64, ns: u64) {
        self.count += count as f64;
        self.ns += ns as f64;
    }

    /// The mean time of one.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.ns / self.count)
    }

    /// `None` if it has gone back.
    fn since(&self, earlier: &Sum) -> Option<Sum> {
        let (count, ns) = (self.count - earlier.count, self.ns - earlier.ns);
        (count >= 0.0 && ns >= 0.0).then_some(Sum { count, ns })
    }

    fn without(&self, part: &Sum) -> Sum {
        Sum { count: (self.count - part.count).max(0.0), ns: (self.ns - part.ns).max(0.0) }
    }
}

/// What a tenant did on one server in a time.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Counters {
    /// The time, nanoseconds.
    pub elapsed_ns: f64,
    /// Reads of its clients, with their latencies.
    pub reads: Sum,
    /// Those of them that were answered from the cache.
    pub hits: Sum,
    /// Bytes of reads that were not in the cache.
    pub missed_bytes: f64,
    /// Writes of its clients.
    pub writes: Sum,
    /// The most requests of its clients that were outstanding at once, recently.
    pub outstanding_max: u32,
    /// Device reads that clients waited for: from when they were wanted until they were complete.
    pub fills: Sum,
    /// All device requests.
    pub device_requests: f64,
    /// What these took of the disk.
    pub disk: Observed,
    /// Rounds of slices of its disk, as planned.
    pub rounds: Sum,
}

impl Counters {
    /// What happened since. `None` if a counter has gone back: it was another process, or another volume.
    pub fn since(&self, earlier: &Counters) -> Option<Counters> {
        let difference = |now: f64, then: f64| (now >= then).then_some(now - then);
        Some(Counters {
            elapsed_ns: difference(self.elapsed_ns, earlier.elapsed_ns)?,
            reads: self.reads.since(&earlier.reads)?,
            hits: self.hits.since(&earlier.hits)?,
            missed_bytes: difference(self.missed_bytes, earlier.missed_bytes)?,
            writes: self.writes.since(&earlier.writes)?,
            outstanding_max: self.outstanding_max,
            fills: self.fills.since(&earlier.fills)?,
            device_requests: difference(self.device_requests, earlier.device_requests)?,
            disk: self.disk.since(&earlier.disk)?,
            // A new policy counts its rounds anew.
            rounds: self.rounds.since(&earlier.rounds).unwrap_or_default(),
        })
    }

    /// Requests of its clients, with their latencies.
    pub fn requests(&self) -> Sum {
        Sum { count: self.reads.count + self.writes.count, ns: self.reads.ns + self.writes.ns }
    }
}

/// What a tenant did on one server.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Recently.
    pub window: Counters,
    /// In a longer time, for what happened too seldom in the window.
    pub total: Counters,
}

impl Measured {
    /// The mean of the window if that has enough events, else of the longer time.
    pub fn mean_ns(&self, of: impl Fn(&Counters) -> Sum) -> Option<f64> {
        let window = of(&self.window);
        if window.count >= MEAN_LEAST { window.mean_ns() } else { of(&self.total).mean_ns() }
    }

    /// Disk time of a request: the time in the device, or less if several are in it at once.
    pub fn service_ns(&self) -> Option<f64> {
        let in_device = |of: &Counters| Sum { count: of.disk.reads.count, ns: of.disk.reads.device_ns };
        let owned = |of: &Counters| Sum { count: of.device_requests, ns: of.disk.owned_ns };
        self.mean_ns(in_device).into_iter().chain(self.mean_ns(owned)).reduce(f64::min)
    }

    /// Disk time if `unabsorbed` writes a second reach the disk, and whether the engine has measured that of reads. If
    /// it has not, the time in the device takes its place, although other requests of the tenant may have been served
    /// in it. If no read was measured, the profile says how long one takes. Write-back also reads and writes blocks
    /// between dirty ones: each dirty block has a part of that time.
    fn disk_time(&self, unabsorbed: f64, by_depth: &[Depth]) -> Option<(DiskTime, bool)> {
        let disk = if self.window.fills.count >= MEAN_LEAST { &self.window.disk } else { &self.total.disk };
        let profile = DiskTime { reads: by_depth.to_vec(), ..DiskTime::constant(0.0, 0.0) };
        let of_profile = |depth| (!by_depth.is_empty()).then(|| profile.service_ns(depth));
        let by_use = disk.service();
        let (service_ns, depth) = match by_use {
            Some(found) => found,
            None => (self.service_ns().or_else(|| of_profile(1.0))?, 1.0),
        };
        let scale = of_profile(depth).map_or(1.0, |ns| service_ns / ns);
        let one = [Depth { depth: 1, service_ns }];
        let shape = if by_depth.is_empty() { &one } else { by_depth };
        let reads = shape.iter().map(|&Depth { depth, service_ns }| Depth { depth, service_ns: service_ns * scale });
        let writes_ns = self.window.disk.writes_ns / self.window.elapsed_ns * 1e9;
        let write_ns = if unabsorbed > 0.0 { writes_ns / unabsorbed } else { service_ns };
        let time = DiskTime { reads: reads.collect(), write_ns, delay_ns: disk.delay_ns(), sweep_blocks: 0.0 };
        Some((time, by_use.is_some()))
    }
}

impl Depth {
    /// Disk time of random reads of a block by depth, as a profile says; nothing without its rates.
    pub fn of_profile(profile: &Profile) -> Vec<Depth> {
        let at = |depth: u16| {
            let rate = profile.number(Key::Random(Direction::Read, BLOCK as u32, depth))?;
            Some(Depth { depth: depth.into(), service_ns: 1e9 / rate })
        };
        DEPTHS.into_iter().filter_map(at).collect()
    }
}

/// Another tenant of a disk, whose slices may be interrupted.
#[derive(Clone, Copy, Debug)]
pub struct Other {
    /// Its share, 0 to 1.
    pub share: f64,
    /// What it did.
    pub did: Measured,
    /// What it loses of a slice, recent mean, nanoseconds; if that is known.
    pub loss_ns: Option<f64>,
}

impl Interruption {
    /// How a request interrupts the slices of others: by their shares, how long their requests in the device take, and
    /// what they lose. `switch_ns` is the context switch.
    pub fn of(others: impl IntoIterator<Item = Other>, switch_ns: f64) -> Interruption {
        let (mut shares, mut drain_ns, mut loss_ns) = (0.0, 0.0, 0.0);
        for Other { share, did, loss_ns: loss } in others {
            let is_active = did.window.device_requests > 0.0 && share > 0.0;
            if let Some(service_ns) = did.service_ns().filter(|_| is_active) {
                shares += share;
                drain_ns += share * f64::from(did.window.outstanding_max) * service_ns;
                loss_ns += share * loss.unwrap_or(switch_ns);
            }
        }
        let (drain_ns, loss_ns) = if shares > 0.0 { (drain_ns / shares, loss_ns / shares) } else { (0.0, 0.0) };
        Interruption { delay_ns: drain_ns + switch_ns, cost_ns: loss_ns.max(switch_ns) + switch_ns }
    }
}

/// A tenant whose evidence is wanted.
#[derive(Clone, Debug)]
pub struct Subject {
    /// How its tiers go together.
    pub tiers: Tiers,
    /// Miss ratios of its reads at the first tier.
    pub reads: MissRatios,
    /// Those of its writes.
    pub writes: MissRatios,
    /// With a gateway: miss ratios at the server of the reads that the gateway sends there.
    pub reads_there: Option<MissRatios>,
    /// What it did on its gateway, if it has one.
    pub gateway: Option<Measured>,
    /// What it did on the server.
    pub server: Measured,
    /// Its cache on the gateway, bytes.
    pub first: u64,
    /// Its cache on the server, bytes.
    pub second: u64,
    /// Its share, 0 to 1.
    pub share: f64,
    /// The part of the disk's time that others leave unused in any case.
    pub unused: f64,
    /// Time between a client and the first tier, both ways, as far as latencies there do not have it.
    pub client_ns: f64,
    /// Disk time of a read by depth as the disk's profile says; may be empty.
    pub by_depth: Vec<Depth>,
    /// How its disk is divided in time, with the interruption if it interrupts at all. `None` without slices.
    pub round: Option<Round>,
}

/// Why there is no evidence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// It had no requests.
    Requests,
    /// No read of the disk was measured, and the profile does not say how long one takes.
    DiskReads,
}

impl Subject {
    /// Its evidence.
    pub fn evidence(self) -> Result<Evidence, Missing> {
        let Subject { gateway, server, first, second, share, client_ns, .. } = self;
        let front = gateway.unwrap_or(server);
        let (window, requests) = (front.window, front.window.requests());
        let latency_ns = requests.mean_ns().ok_or(Missing::Requests)?;
        let rate = requests.count / window.elapsed_ns * 1e9;
        let server_hit_ns = server.mean_ns(|of| of.hits).unwrap_or(HIT_NS_ASSUMED);
        let (first_hit_ns, second_hit_ns) = match gateway {
            None => (server_hit_ns, server_hit_ns),
            Some(gateway) => {
                // What a miss of the gateway takes, less what the server's disk takes of that on average.
                let at_disk_ns = server.mean_ns(|of| of.reads).map_or(0.0, |read| (read - server_hit_ns).max(0.0));
                let miss_ns = gateway.mean_ns(|of| of.reads.without(&of.hits));
                let second_ns = miss_ns.map(|miss| (miss - at_disk_ns).max(server_hit_ns));
                let first_ns = gateway.mean_ns(|of| of.hits).unwrap_or(HIT_NS_ASSUMED);
                (first_ns, second_ns.unwrap_or(2.0 * server_hit_ns))
            }
        };
        let unabsorbed = self.writes.at(first.max(second) as f64) * window.writes.count / window.elapsed_ns * 1e9;
        let (disk, is_by_use) = server.disk_time(unabsorbed, &self.by_depth).ok_or(Missing::DiskReads)?;
        let reads = match self.reads_there {
            Some(there) => self.reads.continued(&there, first),
            None => self.reads,
        };
        let evidence = Evidence {
            tiers: self.tiers,
            reads,
            writes: self.writes,
            read_fraction: window.reads.count / requests.count,
            references_per_second: rate,
            first_hit_ns: first_hit_ns + client_ns,
            second_hit_ns: second_hit_ns + client_ns,
            write_ns: front.mean_ns(|of| of.writes).unwrap_or(first_hit_ns) + client_ns,
            disk,
            outstanding: window.outstanding_max.max(1),
            think_ns: (f64::from(window.outstanding_max.max(1)) / rate * 1e9 - latency_ns).max(0.0),
            round: self.round,
            share_least: self.unused.clamp(0.0, 1.0),
            of_model: 1.0,
        };
        let sweep_blocks = if unabsorbed > 0.0 { evidence.sweep_blocks(first, second) } else { 0.0 };
        let evidence = Evidence { disk: DiskTime { sweep_blocks, ..evidence.disk.clone() }, ..evidence };
        let Some(disk_ns) = server.mean_ns(|of| of.fills) else { return Ok(evidence) };
        if !is_by_use || evidence.round.is_none() {
            return Ok(evidence.calibrated(first, second, share.clamp(0.001, 1.0), disk_ns));
        }
        // Write-back may have used the slice time that would pay for interruptions. Then requests wait for slices.
        let round = self.round.map(|round| Round { interruption: None, ..round });
        let waiting = Evidence { round, ..evidence.clone() };
        let of_model = |of: &Evidence| disk_ns / of.predict(first, second, share).disk_ns;
        let off = |of: &Evidence| of_model(of).ln().abs();
        let nearest = if off(&waiting) <= off(&evidence) { waiting } else { evidence };
        let of_model = of_model(&nearest).clamp(1.0 / OF_MODEL_MAX, OF_MODEL_MAX);
        Ok(Evidence { of_model: if of_model.is_finite() { of_model } else { 1.0 }, ..nearest })
    }
}

#[cfg(test)]
mod tests {
    use super::super::evidence::{Loss, Reads};
    use super::*;

    const MS: f64 = 1e6;
    const MIB: u64 = 1 << 20;

    fn sum(count: f64, each_ns: f64) -> Sum {
        Sum { count, ns: count * each_ns }
    }

    /// A client that thinks for 95 ms between reads of 5 ms, half of which hit, for 100 s; each fill takes so long.
    fn did(fill_ns: f64) -> Measured {
        let window = Counters {
            elapsed_ns: 100_000.0 * MS,
            reads: sum(1000.0, 5.0 * MS),
            hits: sum(500.0, 0.1 * MS),
            missed_bytes: 500.0 * BLOCK as f64,
            outstanding_max: 1,
            fills: sum(500.0, fill_ns),
            device_requests: 500.0,
            disk: Observed {
                reads: Reads { count: 500.0, device_ns: 500.0 * 4.0 * MS, service_ns: 500.0 * 4.0 * MS },
                owned_ns: 50_000.0 * MS,
                ..Observed::default()
            },
            rounds: sum(1000.0, 100.0 * MS),
            ..Counters::default()
        };
        Measured { window, total: window }
    }

    fn subject(server: Measured) -> Subject {
        let round = Round {
            others_ns: 50.0 * MS,
            round_ns_max: 1000.0 * MS,
            loss: Loss { switch_ns: 2.0 * MS, closing_ns: 0.0 },
            interruption: Some(Interruption { delay_ns: 5.0 * MS, cost_ns: 5.0 * MS }),
        };
        Subject {
            tiers: Tiers::Lru,
            reads: MissRatios::new([(MIB, 0.5)]),
            writes: MissRatios::new([]),
            reads_there: None,
            gateway: None,
            server,
            first: 0,
            second: MIB,
            share: 0.5,
            unused: 0.0,
            client_ns: 0.0,
            by_depth: Vec::new(),
            round: Some(round),
        }
    }

    #[test]
    fn interruptions_count_if_the_measured_wait_says_so() {
        let interrupts = |fill_ns| {
            let evidence = subject(did(fill_ns)).evidence().unwrap();
            assert_eq!((evidence.think_ns, evidence.disk.reads[0].service_ns), (95.0 * MS, 4.0 * MS));
            evidence.round.unwrap().interruption.is_some()
        };
        // Half of the time others have the disk, for 25 ms on average.
        assert!(interrupts(9.0 * MS));
        assert!(!interrupts(20.0 * MS));
    }

    #[test]
    fn at_the_present_allotment_the_disk_latency_is_what_was_measured() {
        // Without interruptions, the model predicts 16.5 ms: 4 ms for the read, the rest until the tenant's slice.
        for fill_ns in [12.0 * MS, 40.0 * MS] {
            let evidence = subject(did(fill_ns)).evidence().unwrap();
            let said = evidence.predict(0, MIB, 0.5).disk_ns;
            assert!((said / fill_ns - 1.0).abs() < 1e-6, "{said} {evidence:?}");
            assert!(evidence.predict(0, MIB, 0.25).disk_ns > fill_ns);
        }
        let beyond = subject(did(4000.0 * MS)).evidence().unwrap();
        assert_eq!(beyond.of_model, OF_MODEL_MAX);
    }

    #[test]
    fn a_profile_says_how_disk_time_depends_on_depth_and_what_it_is_without_a_read() {
        let by_depth = vec![Depth { depth: 1, service_ns: 8.0 * MS }, Depth { depth: 4, service_ns: 4.0 * MS }];
        let evidence = Subject { by_depth: by_depth.clone(), ..subject(did(9.0 * MS)) }.evidence().unwrap();
        let of = |evidence: &Evidence| [1.0, 2.0, 4.0].map(|depth| evidence.disk.service_ns(depth) / MS);
        assert_eq!(of(&evidence), [4.0, 3.0, 2.0], "as measured at depth 1");
        let mut cached = did(0.0);
        cached.window.fills = Sum::default();
        cached.window.disk = Observed::default();
        cached.window.device_requests = 0.0;
        cached.total = cached.window;
        let evidence = Subject { by_depth, ..subject(cached) }.evidence().unwrap();
        assert_eq!(of(&evidence), [8.0, 6.0, 4.0]);
        assert_eq!(subject(cached).evidence(), Err(Missing::DiskReads));
        let idle = Measured { window: Counters { elapsed_ns: MS, ..Counters::default() }, ..did(0.0) };
        assert_eq!(subject(idle).evidence(), Err(Missing::Requests));
    }

    #[test]
    fn a_miss_of_the_gateway_is_a_hit_of_the_server_and_what_the_disk_adds() {
        // The server adds 4.9 ms to half of the reads that it gets, and the network 0.3 ms to all.
        let server = did(4.9 * MS);
        let mut gateway = did(0.0);
        gateway.window.reads.ns = 500.0 * 0.1 * MS + 500.0 * 5.3 * MS;
        let evidence = Subject { gateway: Some(gateway), ..subject(server) }.evidence().unwrap();
        assert_eq!((evidence.first_hit_ns, evidence.second_hit_ns.round()), (0.1 * MS, 0.4 * MS));
    }

    #[test]
    fn few_events_are_made_up_for_by_a_longer_time_and_a_counter_that_went_back_is_none() {
        let mut few = did(9.0 * MS);
        few.window.hits = sum(9.0, 7.0 * MS);
        assert_eq!(few.mean_ns(|of| of.hits), Some(0.1 * MS));
        few.window.hits = sum(10.0, 7.0 * MS);
        assert_eq!(few.mean_ns(|of| of.hits), Some(7.0 * MS));
        let (early, late) = (Counters::default(), did(9.0 * MS).window);
        assert_eq!(late.since(&early), Some(late));
        assert_eq!(early.since(&late), None);
    }
}

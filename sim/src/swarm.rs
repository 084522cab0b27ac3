//! Many worlds: each is run from its seed to its end, or to the first error.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Verdict;
use crate::clusters;
use crate::machines;
use crate::setup::{Focus, Setup};
use crate::trace::{Sink, Trace};
use crate::world::{Stats, World};

/// A successful run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Success {
    /// A hash over all events and actions.
    pub hash: u64,
    /// Counters of the run.
    pub stats: Stats,
}

/// A failed run.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}: {what}")]
pub struct Failure {
    /// The seed, to repeat the run.
    pub seed: u64,
    /// The error.
    pub what: String,
    /// The last lines of the trace.
    pub tail: Vec<String>,
}

/// Which worlds are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Worlds {
    /// One server, its disk and its clients.
    #[default]
    Server,
    /// Several machines: a server, and gateways whose volumes live on it.
    Machines,
    /// Several machines that off-load writes to one another.
    Stores,
    /// Several machines: servers, and a gateway whose volumes are striped over them.
    Stripes,
    /// The same with two gateways whose sessions have leases: one takes over from the other.
    Gateways,
    /// Servers whose disks follow a schedule, and clients striped over them.
    Clusters,
}

/// Runs the world of `seed`; `sink` sees each line of its trace.
pub fn run(seed: u64, sink: Option<Sink>) -> Result<Success, Failure> {
    run_focused(seed, None, sink)
}

/// The same for a world of one kind.
pub fn run_focused(seed: u64, focus: Option<Focus>, sink: Option<Sink>) -> Result<Success, Failure> {
    let mut world = World::new(Setup::random(seed, focus), sink);
    let verdict = caught(|| world.run());
    ended(seed, verdict, world.trace(), world.stats())
}

/// The same for a world of several machines.
pub fn run_machines(seed: u64, focus: Option<machines::Focus>, sink: Option<Sink>) -> Result<Success, Failure> {
    let mut world = machines::World::new(seed, focus, sink);
    let verdict = caught(|| world.run());
    ended(seed, verdict, world.trace(), world.stats())
}

/// The same for a world of machines that off-load writes to one another.
pub fn run_stores(seed: u64, focus: Option<machines::Focus>, sink: Option<Sink>) -> Result<Success, Failure> {
    let mut world = machines::World::with_stores(seed, focus, sink);
    let verdict = caught(|| world.run());
    ended(seed, verdict, world.trace(), world.stats())
}

/// The same for a world of a gateway whose volumes are striped over several servers.
pub fn run_stripes(seed: u64, focus: Option<machines::Focus>, sink: Option<Sink>) -> Result<Success, Failure> {
    let mut world = machines::World::with_stripes(seed, focus, sink);
    let verdict = caught(|| world.run());
    ended(seed, verdict, world.trace(), world.stats())
}

/// The same for a world of two gateways whose sessions have leases.
pub fn run_gateways(seed: u64, focus: Option<machines::Focus>, sink: Option<Sink>) -> Result<Success, Failure> {
    let mut world = machines::World::with_gateways(seed, focus, sink);
    let verdict = caught(|| world.run());
    ended(seed, verdict, world.trace(), world.stats())
}

/// The same for a world of servers whose disks follow a schedule.
pub fn run_clusters(seed: u64, sink: Option<Sink>) -> Result<Success, Failure> {
    let mut world = clusters::World::new(seed, sink);
    let verdict = caught(|| world.run());
    ended(seed, verdict, world.trace(), world.stats())
}

/// The same for one of these worlds.
pub fn run_one_of(worlds: Worlds, seed: u64, sink: Option<Sink>) -> Result<Success, Failure> {
    match worlds {
        Worlds::Server => run(seed, sink),
        Worlds::Machines => run_machines(seed, None, sink),
        Worlds::Stores => run_stores(seed, None, sink),
        Worlds::Stripes => run_stripes(seed, None, sink),
        Worlds::Gateways => run_gateways(seed, None, sink),
        Worlds::Clusters => run_clusters(seed, sink),
    }
}

fn caught(run: impl FnOnce() -> Verdict) -> Verdict {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(panic_text(&*panic)))
}

fn ended(seed: u64, verdict: Verdict, trace: &Trace, stats: Stats) -> Result<Success, Failure> {
    match verdict {
        Ok(()) => Ok(Success { hash: trace.hash(), stats }),
        Err(what) => Err(Failure { seed, what, tail: trace.tail() }),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without words"))
}

//! Many worlds: each from its seed, each to its end, or to what is wrong with it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::setup::{Focus, Setup};
use crate::trace::Sink;
use crate::world::{Stats, World};

/// A run that ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Success {
    /// A hash over everything that happened.
    pub hash: u64,
    /// What it was made of.
    pub stats: Stats,
}

/// A run that did not.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}: {what}")]
pub struct Failure {
    /// The seed, to see it again.
    pub seed: u64,
    /// What was wrong.
    pub what: String,
    /// What happened just before.
    pub tail: Vec<String>,
}

/// Runs the world of `seed`; `sink` sees each line of its trace.
pub fn run(seed: u64, sink: Option<Sink>) -> Result<Success, Failure> {
    run_focused(seed, None, sink)
}

/// The same for a world of one kind.
pub fn run_focused(seed: u64, focus: Option<Focus>, sink: Option<Sink>) -> Result<Success, Failure> {
    let mut world = World::new(Setup::random(seed, focus), sink);
    let verdict = catch_unwind(AssertUnwindSafe(|| world.run())).unwrap_or_else(|panic| Err(panic_text(&*panic)));
    match verdict {
        Ok(()) => Ok(Success { hash: world.trace().hash(), stats: world.stats() }),
        Err(what) => Err(Failure { seed, what, tail: world.trace().tail() }),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without words"))
}

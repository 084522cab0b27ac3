//! One program, so that it is linked once, and tests that need one core each run at the same time.

mod age;
mod baselines;
mod ceilings;
mod described;
mod drives;
mod guarantees;
mod loss;
mod probe;
mod sizing;
mod slices;
mod stores;
mod swarm;

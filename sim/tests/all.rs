//! All integration tests are one program: it is linked once, and its tests run in parallel.

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

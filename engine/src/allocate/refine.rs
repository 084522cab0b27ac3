//! Corrections of the model by measured latencies.

use super::Surface;
use super::model::Model;
use super::problem::Allotment;

/// The measured latencies of one tenant, and what follows from them: a factor by allotment.
#[derive(Clone, Debug, Default)]
pub struct Refinement {
    generation: u64,
}

/// How well the model and the refined model predict what was measured: mean of |predicted / measured - 1|. That of the
/// refined model is cross-validated: each sample is predicted by the others.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fit {
    /// Samples.
    pub samples: usize,
    /// Error of the model alone.
    pub model_error: f64,
    /// Error of the refined model. `None` with too few samples.
    pub refined_error: Option<f64>,
    /// Whether the corrections are used.
    pub is_used: bool,
}

impl Refinement {
    /// Without samples.
    pub fn new() -> Refinement {
        Refinement::default()
    }

    /// Adds a measurement: mean latency with this allotment, as measured and as the model predicts it. `generation` is
    /// that of the tenant's curve: with another one, all earlier samples are forgotten. A new measurement of the same
    /// allotment replaces the old one.
    pub fn add(&mut self, generation: u64, at: Allotment, measured_ns: f64, model_ns: f64) {
        todo!()
    }

    /// Fits the corrections to the samples, and uses them if they predict better than the model.
    pub fn fit(&mut self) -> Fit {
        todo!()
    }

    /// The factor by which the model's latency is to be multiplied; 1 while corrections are not used.
    pub fn factor(&self, at: Allotment) -> f64 {
        todo!()
    }

    /// The allotments of `candidates` where the next `count` samples tell the most: where the refined model is least
    /// sure, apart from each other.
    pub fn suggest(&self, candidates: &[Allotment], count: usize) -> Vec<Allotment> {
        todo!()
    }
}

/// The model with corrections. A surface.
#[derive(Clone, Copy, Debug)]
pub struct Refined<'a> {
    /// The model.
    pub model: &'a Model,
    /// One for each tenant.
    pub refinements: &'a [Refinement],
}

impl Surface for Refined<'_> {
    fn latency_ns(&self, tenant: usize, at: Allotment) -> f64 {
        self.model.latency_ns(tenant, at) * self.refinements[tenant].factor(at)
    }
}

//! Corrections of the model by measured latencies: support vector regression over log(measured / model).
//!
//! What is regressed is the correction and not the latency: it is small and smooth where latency spans decades, and
//! without samples nearby it is the mean correction instead of a mean latency. The regression is used only if it
//! predicts measurements that it has not seen better than the model does.
//!
//! Source: section 3.4 of the paper; Drucker et al., "Support vector regression machines", NIPS 1996.

use linfa::Dataset;
use linfa::traits::{Fit as _, Predict as _};
use linfa_svm::Svm;
use ndarray::{Array1, Array2};

use super::Surface;
use super::model::Model;
use super::problem::Allotment;

/// Samples of a tenant that are kept: the regression takes milliseconds.
const SAMPLES_MAX: usize = 64;
/// Fewer samples say nothing of a function of four features.
const SAMPLES_MIN: usize = 5;
/// Each sample is predicted by all others up to so many samples, otherwise in so many groups.
const LEAVE_ONE_OUT_MAX: usize = 20;
const FOLDS: usize = 10;
/// The refined model must have a smaller error than the model by so many standard errors of the difference: less is
/// chance.
const BEATS: f64 = 2.0;
/// Errors of the logarithm that cost nothing: 1 %, as exact as latencies are measured.
const TUBE: f64 = 0.01;
/// The solver stops when no pair of samples violates its conditions by more.
const STOPS: f64 = 1e-3;
/// What cross-validation chooses from: costs of larger errors, and squared distances (of scaled features) over which
/// samples say something of each other.
const COSTS: [f64; 2] = [1.0, 10.0];
const REACHES: [f64; 3] = [2.0, 8.0, 32.0];
/// Where two samples are the same to the regression, a further one still tells something.
const DOUBT_MIN: f64 = 0.01;

const FEATURES: usize = 4;
type Features = [f64; FEATURES];

/// The measured latencies of one tenant, and what follows from them: a factor by allotment.
#[derive(Clone, Debug, Default)]
pub struct Refinement {
    generation: u64,
    /// In the order of measurement.
    samples: Vec<Sample>,
    scale: Option<Scale>,
    /// Used corrections.
    regression: Option<Regression>,
    /// By sample: what the others predict it wrongly by, as a logarithm.
    doubts: Vec<f64>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Sample {
    at: Allotment,
    measured_ns: f64,
    model_ns: f64,
}

impl Sample {
    fn correction(&self) -> f64 {
        (self.measured_ns / self.model_ns).ln()
    }
}

type Regression = Svm<f64, f64>;

/// How well the model and the refined model predict what was measured: mean of |predicted / measured - 1|. That of the
/// refined model is cross-validated: each sample is predicted by others.
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

    /// Adds a measurement: mean latency with this allotment, as measured and as the model predicts it, both more than
    /// 0. `generation` is that of the tenant's curve: with another one, all earlier samples and the corrections are
    /// forgotten. A new measurement of the same allotment replaces the old one; beyond 64 the oldest is dropped.
    pub fn add(&mut self, generation: u64, at: Allotment, measured_ns: f64, model_ns: f64) {
        assert!(measured_ns > 0.0 && measured_ns.is_finite(), "a latency of {measured_ns} ns");
        assert!(model_ns > 0.0 && model_ns.is_finite(), "a prediction of {model_ns} ns");
        if self.generation != generation {
            *self = Refinement { generation, ..Refinement::default() };
        }
        self.samples.retain(|sample| sample.at != at);
        if self.samples.len() == SAMPLES_MAX {
            self.samples.remove(0);
        }
        self.samples.push(Sample { at, measured_ns, model_ns });
        self.doubts.clear();
    }

    /// Replaces the predictions of all samples by those of another model, nanoseconds. A sample of which that model has
    /// no finite prediction keeps its own.
    pub fn predicted(&mut self, model_ns: impl Fn(Allotment) -> f64) {
        for sample in &mut self.samples {
            let ns = model_ns(sample.at);
            sample.model_ns = if ns > 0.0 && ns.is_finite() { ns } else { sample.model_ns };
        }
    }

    /// The number of samples.
    pub fn samples(&self) -> usize {
        self.samples.len()
    }

    /// Fits the corrections to the samples, and uses them if they predict better than the model.
    pub fn fit(&mut self) -> Fit {
        let count = self.samples.len();
        let errors = |corrections: &[f64]| -> Vec<f64> {
            let of = |(sample, correction): (&Sample, &f64)| sample.model_ns * correction.exp() / sample.measured_ns;
            self.samples.iter().zip(corrections).map(of).map(|ratio| (ratio - 1.0).abs()).collect()
        };
        let of_model = errors(&vec![0.0; count]);
        let model_error = mean(&of_model);
        self.regression = None;
        self.doubts.clear();
        if count < SAMPLES_MIN {
            return Fit { samples: count, model_error, refined_error: None, is_used: false };
        }
        let scale = Scale::of(&self.samples);
        let known: Vec<(Features, f64)> = self
            .samples
            .iter()
            .map(|sample| (scale.features(sample.at, sample.model_ns), sample.correction()))
            .collect();
        let choices = COSTS.into_iter().flat_map(|cost| REACHES.map(|reach| (cost, reach)));
        let validated = choices.map(|(cost, reach)| {
            let predicted = validate(&known, cost, reach);
            (errors(&predicted), cost, reach, predicted)
        });
        let best = validated.min_by(|a, b| mean(&a.0).total_cmp(&mean(&b.0))).expect("there are choices");
        let (of_refined, cost, reach, predicted) = best;
        let gains: Vec<f64> = of_model.iter().zip(&of_refined).map(|(model, refined)| model - refined).collect();
        let gain = mean(&gains);
        let variance = gains.iter().map(|own| (own - gain).powi(2)).sum::<f64>() / (count - 1) as f64;
        let is_used = gain > BEATS * (variance / count as f64).sqrt();
        self.doubts = known.iter().zip(predicted).map(|(known, predicted)| (known.1 - predicted).abs()).collect();
        self.regression = is_used.then(|| regress(&known, cost, reach));
        self.scale = Some(scale);
        Fit { samples: count, model_error, refined_error: Some(mean(&of_refined)), is_used }
    }

    /// The factor by which the model's latency of an allotment is to be multiplied; 1 while corrections are not used.
    pub fn factor(&self, at: Allotment, model_ns: f64) -> f64 {
        match (&self.regression, &self.scale) {
            (Some(regression), Some(scale)) => predict(regression, scale.features(at, model_ns)).exp(),
            _ => 1.0,
        }
    }

    /// The candidates, with the model's latency of each, where the next `count` samples tell the most: far from all
    /// samples and from each other, and where the others predict the nearest sample wrongly.
    pub fn suggest(&self, candidates: &[(Allotment, f64)], count: usize) -> Vec<Allotment> {
        let candidate = |&(at, model_ns): &(Allotment, f64)| Sample { at, measured_ns: model_ns, model_ns };
        let all: Vec<Sample> = self.samples.iter().copied().chain(candidates.iter().map(candidate)).collect();
        if candidates.is_empty() {
            return Vec::new();
        }
        // One scale for samples and candidates: with few samples, theirs would be that of chance.
        let scale = Scale::of(&all);
        let features: Vec<Features> = all.iter().map(|sample| scale.features(sample.at, sample.model_ns)).collect();
        let (known, open) = features.split_at(self.samples.len());
        // The middle of all features: the first sample of all is the candidate nearest to it.
        let middle = [0.0; FEATURES];
        let doubt = |at: usize| self.doubts.get(at).copied().unwrap_or(0.0) + DOUBT_MIN;
        let mut worth: Vec<f64> = open
            .iter()
            .map(|open| {
                let near = known.iter().enumerate().map(|(at, known)| (distance(open, known), doubt(at)));
                near.min_by(|a, b| a.0.total_cmp(&b.0))
                    .map_or(1.0 / (1.0 + distance(open, &middle)), |near| near.0 * near.1)
            })
            .collect();
        let mut chosen = Vec::new();
        for _ in 0..count.min(candidates.len()) {
            let best = (0..worth.len()).reduce(|best, at| if worth[at] > worth[best] { at } else { best });
            let Some(best) = best.filter(|&best| worth[best] > 0.0) else { break };
            chosen.push(candidates[best].0);
            let added = open[best];
            for (worth, open) in worth.iter_mut().zip(open) {
                *worth = worth.min(distance(open, &added) * DOUBT_MIN);
            }
        }
        chosen
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Features have mean 0 and standard deviation 1 over the samples: the regression measures distances.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Scale {
    mean: Features,
    deviation: Features,
}

impl Scale {
    fn of(samples: &[Sample]) -> Scale {
        let raw: Vec<Features> = samples.iter().map(|sample| raw(sample.at, sample.model_ns)).collect();
        let mean_of = |of: &dyn Fn(&Features) -> f64| raw.iter().map(of).sum::<f64>() / raw.len() as f64;
        let mean: Features = std::array::from_fn(|at| mean_of(&|raw| raw[at]));
        let deviation = std::array::from_fn(|at| {
            let deviation = mean_of(&|raw| (raw[at] - mean[at]).powi(2)).sqrt();
            // Where samples do not differ, a difference of one step or octave is one.
            if deviation > 1e-9 { deviation } else { 1.0 }
        });
        Scale { mean, deviation }
    }

    fn features(&self, at: Allotment, model_ns: f64) -> Features {
        let raw = raw(at, model_ns);
        std::array::from_fn(|at| (raw[at] - self.mean[at]) / self.deviation[at])
    }
}

/// What a correction may depend on: steps of both tiers, octaves of share and of the predicted latency.
fn raw(at: Allotment, model_ns: f64) -> Features {
    [f64::from(at.first), f64::from(at.second), f64::from(at.share).log2(), model_ns.log2()]
}

fn distance(a: &Features, b: &Features) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum()
}

/// The correction of each sample as the others predict it.
fn validate(known: &[(Features, f64)], cost: f64, reach: f64) -> Vec<f64> {
    let folds = if known.len() <= LEAVE_ONE_OUT_MAX { known.len() } else { FOLDS };
    let mut predicted = vec![0.0; known.len()];
    for fold in 0..folds {
        let others: Vec<_> =
            known.iter().enumerate().filter(|(at, _)| at % folds != fold).map(|(_, &known)| known).collect();
        let regression = regress(&others, cost, reach);
        for at in (fold..known.len()).step_by(folds) {
            predicted[at] = predict(&regression, known[at].0);
        }
    }
    predicted
}

fn regress(known: &[(Features, f64)], cost: f64, reach: f64) -> Regression {
    let records = Array2::from_shape_fn((known.len(), FEATURES), |(row, column)| known[row].0[column]);
    let targets = Array1::from_iter(known.iter().map(|known| known.1));
    let parameters = Regression::params().c_svr(cost, Some(TUBE)).gaussian_kernel(reach).eps(STOPS);
    parameters.fit(&Dataset::new(records, targets)).expect("parameters are positive")
}

fn predict(regression: &Regression, features: Features) -> f64 {
    regression.predict(Array1::from_iter(features))
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
        let model_ns = self.model.latency_ns(tenant, at);
        model_ns * self.refinements[tenant].factor(at, model_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Rng;

    const ALL: Allotment = Allotment { first: 16, second: 32, share: 8 };

    fn model(at: Allotment) -> f64 {
        1e6 + 3e7 / f64::from(at.share) * (-0.1 * f64::from(at.first.max(at.second))).exp()
    }

    /// Too low at small shares, as where the wait for a slice is unknown, and too high where tiers have equal sizes.
    fn truth(at: Allotment) -> f64 {
        model(at)
            * (1.0 + 4.0 / f64::from(at.share))
            * (1.0 - 0.2 * (-(f64::from(at.first) - f64::from(at.second)).powi(2) / 50.0).exp())
    }

    fn everywhere() -> Vec<(Allotment, f64)> {
        let all = (1..=ALL.first).flat_map(|first| {
            (1..=ALL.second)
                .flat_map(move |second| (1..=ALL.share).map(move |share| Allotment { first, second, share }))
        });
        all.map(|at| (at, model(at))).collect()
    }

    fn error(refinement: &Refinement) -> f64 {
        let all = everywhere();
        all.iter().map(|&(at, model)| (model * refinement.factor(at, model) / truth(at) - 1.0).abs()).sum::<f64>()
            / all.len() as f64
    }

    #[test]
    fn another_model_is_compared_with_all_that_was_measured() {
        let mut refinement = Refinement::new();
        for share in 1..=4 {
            let at = Allotment { share, ..ALL };
            refinement.add(1, at, truth(at), truth(at) / 2.0);
        }
        assert_eq!(refinement.fit().model_error, 0.5);
        refinement.predicted(truth);
        assert_eq!(refinement.fit().model_error, 0.0);
        refinement.predicted(|_| f64::INFINITY);
        assert_eq!(refinement.fit().model_error, 0.0, "no prediction");
    }

    #[test]
    fn errors_shrink_with_samples() {
        let mut refinement = Refinement::new();
        assert!(error(&refinement) > 0.4, "the model is bad");
        let mut errors = Vec::new();
        for count in [10, 20, 40] {
            for at in refinement.suggest(&everywhere(), count - refinement.samples()) {
                refinement.add(1, at, truth(at), model(at));
            }
            assert_eq!(refinement.samples(), count, "no suggestion is a sample already");
            let fit = refinement.fit();
            assert!(fit.is_used && fit.refined_error.unwrap() < fit.model_error, "{fit:?}");
            errors.push(error(&refinement));
        }
        println!("errors after 10, 20 and 40 samples: {errors:.3?}");
        assert!(errors[1] < 0.1 && errors[2] < 0.05, "{errors:?}");
    }

    #[test]
    fn corrections_that_are_noise_are_seldom_used_and_then_small() {
        let mut used = 0;
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut refinement = Refinement::new();
            for at in refinement.suggest(&everywhere(), 20) {
                let noise = 0.95 + 0.1 * rng.below(1000) as f64 / 1000.0;
                refinement.add(1, at, model(at) * noise, model(at));
            }
            let fit = refinement.fit();
            used += usize::from(fit.is_used);
            let factor = refinement.factor(ALL, model(ALL));
            assert!(if fit.is_used { (factor - 1.0).abs() < 0.05 } else { factor == 1.0 }, "{fit:?}, factor {factor}");
        }
        assert!(used <= 4, "{used}");
    }

    #[test]
    fn another_curve_forgets_and_another_measurement_replaces() {
        let mut refinement = Refinement::new();
        for at in refinement.suggest(&everywhere(), 8) {
            refinement.add(1, at, 2.0 * model(at), model(at));
        }
        assert!(refinement.fit().is_used);
        assert!((refinement.factor(ALL, model(ALL)) / 2.0 - 1.0).abs() < 0.02, "a constant factor is learned at once");
        refinement.add(1, ALL, 2.0 * model(ALL), model(ALL));
        let count = refinement.samples();
        refinement.add(1, ALL, 2.1 * model(ALL), model(ALL));
        assert_eq!(refinement.samples(), count);
        refinement.add(2, ALL, model(ALL), model(ALL));
        assert_eq!((refinement.samples(), refinement.factor(ALL, model(ALL))), (1, 1.0));
        let fit = refinement.fit();
        assert_eq!((fit.samples, fit.refined_error, fit.is_used), (1, None, false));
    }

    #[test]
    fn samples_are_bounded() {
        let mut refinement = Refinement::new();
        for (at, model) in everywhere().into_iter().take(SAMPLES_MAX + 10) {
            refinement.add(1, at, model, model);
        }
        assert_eq!(refinement.samples(), SAMPLES_MAX);
    }
}

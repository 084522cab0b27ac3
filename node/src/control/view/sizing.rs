//! Views of cache sizing: what a tenant needs for R, what it has, and the decision on it.

use engine::control::{Bound, Decision, Doubt, Plan, Sizing};
use engine::units::{Nanos, Share};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::AdmissionView;
use crate::quantity::{Size, duration, percent};

/// The decision on a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is being measured; its needs are not known yet.
    Trial,
    /// It keeps R.
    Admitted,
    /// It cannot have R, and gets as much of it as is possible.
    BestEffort,
}

impl Verdict {
    /// All decisions.
    pub const ALL: [Verdict; 3] = [Verdict::Trial, Verdict::Admitted, Verdict::BestEffort];

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Trial => "trial",
            Verdict::Admitted => "admitted",
            Verdict::BestEffort => "best-effort",
        }
    }
}

impl From<&Decision> for Verdict {
    fn from(decision: &Decision) -> Verdict {
        match decision {
            Decision::Trial(_) => Verdict::Trial,
            Decision::Admitted => Verdict::Admitted,
            Decision::BestEffort(_) => Verdict::BestEffort,
        }
    }
}

/// What a tenant needs for R, what it has, and the decision on it. Caches are in bytes of memory, metadata included.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SizingView {
    /// The current decision.
    pub decision: Verdict,
    /// The reason, with numbers.
    pub reason: String,
    /// The age of the decision, seconds; of a trial, how long it has lasted.
    pub seconds: f64,
    /// The target of R on this disk, 0 to 1.
    pub requested_ratio: f64,
    /// The smallest cache with which it keeps R; absent while its load is not known, and if no cache is enough.
    pub need_bytes: Option<u64>,
    /// Cache that is guaranteed to it while the decision stands.
    pub guaranteed_bytes: u64,
    /// Additional cache, lent until another tenant needs it.
    pub lent_bytes: u64,
    /// R_time: the fraction of its slices that is not lost.
    pub time_ratio: f64,
    /// R_cache: its throughput with its own cache relative to that with the whole cache; absent while its load is not
    /// known.
    pub cache_ratio: Option<f64>,
    /// R_time x R_cache: the R that it has; if it was not admitted, the best that it can have.
    pub best_ratio: Option<f64>,
    /// The low end of the interval in which that R is: a tenant is admitted if it is at least the target.
    pub low_ratio: Option<f64>,
    /// The high end.
    pub high_ratio: Option<f64>,
    /// The round while all tenants are busy.
    pub round_seconds: f64,
    /// The longest wait of a request for the tenant's slice, with the present shares and losses. One round longer while
    /// another tenant has a long slice to measure the losses of a deep queue.
    pub wait_seconds_max: f64,
}

fn seconds(ns: Nanos) -> f64 {
    ns as f64 / 1e9
}

fn bytes(bytes: u64) -> String {
    Size(bytes).rounded()
}

fn part(permille: u32) -> f64 {
    f64::from(permille) / 1000.0
}

impl SizingView {
    /// The view at the time `now`.
    pub fn new(sizing: &Sizing, now: Nanos) -> SizingView {
        SizingView {
            decision: (&sizing.decision).into(),
            reason: reason(sizing, now),
            seconds: seconds(now.saturating_sub(sizing.since)),
            requested_ratio: part(sizing.insulation_permille),
            need_bytes: sizing.need_bytes,
            guaranteed_bytes: sizing.kept_bytes,
            lent_bytes: sizing.lent_bytes,
            time_ratio: part(sizing.time_permille),
            cache_ratio: sizing.cache_permille.map(part),
            best_ratio: sizing.best_permille.map(part),
            low_ratio: sizing.low_permille.map(part),
            high_ratio: sizing.high_permille.map(part),
            round_seconds: seconds(sizing.round_ns),
            wait_seconds_max: seconds(sizing.wait_ns),
        }
    }

    /// A sentence for the user.
    pub fn in_words(&self) -> String {
        let wait = if self.wait_seconds_max > 0.0 {
            let most = duration(self.wait_seconds_max);
            format!("maximum wait for a slice in the present round: {most}, rarely one round more")
        } else {
            "no request waits for a slice in the present round".into()
        };
        format!("{}: {}; {wait}", self.decision.name(), self.reason)
    }
}

/// The reason for a decision, with numbers.
fn reason(sizing: &Sizing, now: Nanos) -> String {
    let wanted = format!("R = {}", part(sizing.insulation_permille));
    let best = match (sizing.best_permille, sizing.low_permille) {
        (Some(best), Some(low)) if low < best => {
            format!("; best R = {:.2}, surely at least {:.2}", part(best), part(low))
        }
        (Some(best), _) => format!("; best R = {:.2}", part(best)),
        (None, _) => String::new(),
    };
    match sizing.decision {
        Decision::Trial(Doubt::Unused) => {
            format!("no requests yet; {} of cache until then", bytes(sizing.kept_bytes + sizing.lent_bytes))
        }
        Decision::Trial(Doubt::Unsettled { until }) => format!(
            "the cache that it needs for {wanted} is being measured, for at most {} more",
            duration(seconds(until.saturating_sub(now)))
        ),
        Decision::Trial(Doubt::Filling { used_bytes }) => format!(
            "{} are guaranteed for {wanted}, {} of its cache are full{best}",
            bytes(sizing.kept_bytes),
            bytes(used_bytes)
        ),
        Decision::Admitted => {
            let parts = sizing.cache_permille.map_or_else(String::new, |cache| {
                format!(
                    ": {:.2} of its slices x {:.2} of its throughput with the whole cache",
                    part(sizing.time_permille),
                    part(cache)
                )
            });
            let need = sizing
                .need_bytes
                .map_or_else(String::new, |need| format!("needs {} of cache for {wanted}, ", bytes(need)));
            format!("{need}{} are guaranteed{parts}", bytes(sizing.kept_bytes))
        }
        Decision::BestEffort(Bound::Memory { needs_bytes, free_bytes }) => {
            format!("needs {} of cache for {wanted}, {} is free{best}", bytes(needs_bytes), bytes(free_bytes))
        }
        Decision::BestEffort(Bound::Asked { needs_bytes }) => {
            format!(
                "needs {} of cache for {wanted}, but {} were requested{best}",
                bytes(needs_bytes),
                bytes(sizing.kept_bytes)
            )
        }
        Decision::BestEffort(Bound::Round { needs_ns }) => {
            format!("needs rounds of {} for {wanted}, more than the maximum round{best}", duration(seconds(needs_ns)))
        }
        Decision::BestEffort(Bound::Shortfall { lacks_permille }) => {
            format!(
                "measured, its slices give it {:.2} less of its standalone throughput than planned, too much for \
                 {wanted} in any round{best}",
                part(lacks_permille)
            )
        }
        Decision::BestEffort(Bound::Age { most_permille }) => {
            format!(
                "limited by the age limit of dirty data: under contention even the whole cache combines fewer writes \
                 than standalone and keeps {:.2}{best}",
                part(most_permille)
            )
        }
    }
}

/// The decision that a volume would get if it were created now.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PlanView {
    /// A message for the user.
    pub message: String,
    /// The disk.
    pub disk: String,
    /// The tenant whose allotment it would use.
    pub tenant: String,
    /// The fraction of the disk's time that its tenant would have, 0 to 1.
    pub share: f64,
    /// The fraction that would remain to be promised to others.
    pub share_left: f64,
    /// Its slice in each round; absent if the disk's policy has no slices.
    pub slice_seconds: Option<f64>,
    /// The decision; absent if the disk's policy does not insulate.
    pub sizing: Option<SizingView>,
    /// Cache that is not promised to any tenant, bytes of memory, metadata included.
    pub cache_free_bytes: u64,
    /// Whether its guarantee would hold; absent without a minimum bandwidth.
    pub guarantee: Option<AdmissionView>,
}

impl PlanView {
    /// The view of the engine's plan for a tenant with this share; `promised` is the share if one is requested.
    pub fn new(plan: &Plan, name: &str, (disk, tenant): (&str, &str), share: f64, promised: Option<Share>) -> PlanView {
        let sizing = plan.sizing.as_ref().map(|sizing| SizingView::new(sizing, sizing.since));
        let slice_seconds = (plan.slice_ns > 0).then(|| seconds(plan.slice_ns));
        let left_ppb = plan.share_left_ppb.saturating_sub(promised.map_or(0, Share::ppb));
        let left = percent(left_ppb);
        let mut message = format!(
            "volume '{name}' would have {} of the time of disk '{disk}', {left} would remain",
            percent((share * 1e9) as u64)
        );
        if let Some(slice) = slice_seconds {
            message += &format!("; its slice would be {}", duration(slice));
        }
        match &sizing {
            Some(sizing) => message += &format!("; {}", sizing.in_words()),
            None => message += "; no cache decision: the disk's policy does not insulate",
        }
        message += &format!("; up to {} of cache can be requested", bytes(plan.free_bytes));
        PlanView {
            message,
            disk: disk.into(),
            tenant: tenant.into(),
            share,
            share_left: left_ppb as f64 / 1e9,
            slice_seconds,
            sizing,
            cache_free_bytes: plan.free_bytes,
            guarantee: None,
        }
    }

    /// The same with a guarantee.
    pub fn with_guarantee(mut self, guarantee: Option<AdmissionView>) -> PlanView {
        if let Some(guarantee) = &guarantee {
            self.message += &format!("\nits guarantee: {}", guarantee.message);
        }
        self.guarantee = guarantee;
        self
    }
}

/// A decision, or another event.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Date and time (RFC 3339).
    pub at: String,
    /// The disk.
    pub disk: String,
    /// The tenant; absent if the event concerns the disk.
    pub tenant: Option<String>,
    /// The decision; absent if the event concerns the disk.
    pub decision: Option<Verdict>,
    /// The reason, with numbers; or the event.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::units::SECOND;

    const MIB: u64 = 1 << 20;

    fn sizing(decision: Decision) -> Sizing {
        Sizing {
            decision,
            since: 10 * SECOND,
            insulation_permille: 900,
            need_bytes: None,
            kept_bytes: 64 * MIB,
            lent_bytes: 32 * MIB,
            time_permille: 950,
            cache_permille: None,
            best_permille: None,
            low_permille: None,
            high_permille: None,
            round_ns: SECOND,
            wait_ns: SECOND / 2,
        }
    }

    #[test]
    fn decisions_are_told_in_numbers() {
        let trial = SizingView::new(&sizing(Decision::Trial(Doubt::Unsettled { until: 42 * SECOND })), 12 * SECOND);
        assert_eq!((trial.decision, trial.seconds, trial.lent_bytes), (Verdict::Trial, 2.0, 32 * MIB));
        assert!(trial.reason.ends_with("for at most 30 s more"), "{}", trial.reason);
        let memory = Decision::BestEffort(Bound::Memory { needs_bytes: 3277 * MIB, free_bytes: 1126 * MIB });
        let poor = SizingView::new(&Sizing { best_permille: Some(740), ..sizing(memory) }, 12 * SECOND);
        assert_eq!(poor.reason, "needs 3.2GiB of cache for R = 0.9, 1.1GiB is free; best R = 0.74");
        let unsure = Sizing { best_permille: Some(920), low_permille: Some(810), ..sizing(memory) };
        let unsure = SizingView::new(&unsure, 12 * SECOND).reason;
        assert!(unsure.ends_with("best R = 0.92, surely at least 0.81"), "{unsure}");
        assert_eq!(
            poor.in_words(),
            format!(
                "best-effort: {}; maximum wait for a slice in the present round: 500 ms, rarely one round more",
                poor.reason
            )
        );
        let alone = SizingView::new(&Sizing { wait_ns: 0, ..sizing(Decision::Admitted) }, 12 * SECOND).in_words();
        assert!(alone.ends_with("; no request waits for a slice in the present round"), "{alone}");
        let round = sizing(Decision::BestEffort(Bound::Round { needs_ns: 3 * SECOND }));
        assert!(SizingView::new(&round, SECOND).reason.contains("rounds of 3.0 s"));
        let rich = Sizing { need_bytes: Some(48 * MIB), cache_permille: Some(970), ..sizing(Decision::Admitted) };
        let told = SizingView::new(&rich, 12 * SECOND).reason;
        assert!(
            told.starts_with("needs 48MiB of cache for R = 0.9, 64MiB are guaranteed: 0.95 of its slices x 0.97"),
            "{told}"
        );
    }

    #[test]
    fn names_are_those_of_the_api() {
        for verdict in Verdict::ALL {
            assert_eq!(serde_json::to_value(verdict).unwrap(), verdict.name());
        }
    }
}

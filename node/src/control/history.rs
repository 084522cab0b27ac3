//! Would a guarantee hold? Answered from the tenant's own recent history, or from the disk's profile, before it is
//! given.
//!
//! ```text
//!   need of a window = guarantee x (standalone-equivalent time per byte in it) / R x (part of it with demand)
//!   it would have fitted if that is at most the share, in windows with demand
//!
//!   all tenants:  P(sum of needs > 1) <= exp(-2 (1 - sum of means)^2 / sum of (range of each)^2)     (Hoeffding)
//! ```
//!
//! A tenant without a guarantee needs its share. Needs are not cut to the share: they are what tenants would use if
//! others leave them room. Rounds are assumed to be independent between tenants.
//!
//! Downside: the history is that of the last hour, in memory; it is lost at a restart.
//!
//! Source: Wachs and Ganger (CMU-PDL-10-113), section 5.2; Hoeffding, "Probability inequalities for sums of bounded
//! random variables" (1963), theorem 2.

use std::collections::{BTreeMap, VecDeque};

use engine::control::{Snapshot, TenantStats};
use engine::disk::WINDOW_NS;
use engine::disk::profile::{Direction, Key, Profile};
use engine::units::Nanos;

use super::shares::Shares;
use super::view::AdmissionView;
use super::{Control, Running};
use crate::quantity::{Name, percent};
use crate::store::TenantSpec;

/// Windows that are kept of a tenant: an hour.
const WINDOWS_MAX: usize = 240;
/// Fewer windows with demand are no history: five minutes.
const WINDOWS_LEAST: usize = 20;

/// The latest windows of each tenant, by disk and tenant.
pub(super) type Histories = BTreeMap<(Name, Name), History>;

/// Counters of a tenant, or their difference over a window.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Spent {
    bytes: u64,
    useful_ns: Nanos,
    wanted_ns: Nanos,
    /// The time, or the length of the window.
    at: Nanos,
}

impl Spent {
    fn of(stats: &TenantStats, at: Nanos) -> Spent {
        let useful_ns = stats.plan.map_or(stats.usage.owned_ns, |plan| plan.useful_ns);
        Spent { bytes: stats.usage.delivered.bytes, useful_ns, wanted_ns: stats.wanting_ns, at }
    }

    fn since(&self, before: &Spent) -> Option<Spent> {
        Some(Spent {
            bytes: self.bytes.checked_sub(before.bytes)?,
            useful_ns: self.useful_ns.checked_sub(before.useful_ns)?,
            wanted_ns: self.wanted_ns.checked_sub(before.wanted_ns)?,
            at: self.at.checked_sub(before.at)?,
        })
    }

    fn demand(&self) -> f64 {
        (self.wanted_ns as f64 / self.at.max(1) as f64).min(1.0)
    }

    /// The fraction of the disk's time that so many bytes per second need while there is demand; `None` without.
    fn need(&self, bytes_per_s: u64, keep: f64) -> Option<f64> {
        (self.bytes > 0).then(|| bytes_per_s as f64 * self.useful_ns as f64 / 1e9 / self.bytes as f64 / keep)
    }
}

/// The latest windows of a tenant.
#[derive(Debug, Default)]
pub(super) struct History {
    last: Option<Spent>,
    windows: VecDeque<Spent>,
}

impl History {
    fn add(&mut self, now: Spent) {
        let Some(last) = self.last else {
            self.last = Some(now);
            return;
        };
        match now.since(&last) {
            Some(spent) if spent.at < WINDOW_NS => return,
            Some(spent) => {
                if self.windows.len() == WINDOWS_MAX {
                    self.windows.pop_front();
                }
                self.windows.push_back(spent);
            }
            // The counters began anew.
            None => {}
        }
        self.last = Some(now);
    }

    /// In how many windows with demand the guarantee would have fitted into the share, and their number.
    fn fits(&self, bytes_per_s: u64, share: f64, keep: f64) -> (usize, usize) {
        let demanded = self.windows.iter().filter(|window| window.demand() >= 0.5);
        let needs: Vec<f64> = demanded.filter_map(|window| window.need(bytes_per_s, keep)).collect();
        (needs.iter().filter(|need| **need <= share).count(), needs.len())
    }

    /// Mean and range of the uncut needs; `None` without enough history.
    fn needs(&self, bytes_per_s: u64, keep: f64) -> Option<(f64, f64)> {
        let need = |window: &Spent| window.need(bytes_per_s, keep).map_or(0.0, |need| need * window.demand());
        let needs: Vec<f64> = self.windows.iter().map(need).collect();
        if needs.iter().filter(|need| **need > 0.0).count() < WINDOWS_LEAST {
            return None;
        }
        let (least, most) =
            needs.iter().fold((f64::MAX, 0f64), |(least, most), &need| (least.min(need), most.max(need)));
        Some((needs.iter().sum::<f64>() / needs.len() as f64, most - least))
    }
}

/// Hoeffding's bound on the probability that the needs, each with its mean and range, sum to more than 1.
fn overfull(needs: &[(f64, f64)]) -> f64 {
    let room = 1.0 - needs.iter().map(|(mean, _)| mean).sum::<f64>();
    let ranges: f64 = needs.iter().map(|(_, range)| range * range).sum();
    match (room <= 0.0, ranges > 0.0) {
        // Shares that sum to exactly the whole disk are not too much, but for rounding.
        (true, false) => f64::from(u8::from(room < -1e-6)),
        (true, true) => 1.0,
        (false, true) => (-2.0 * room * room / ranges).exp(),
        (false, false) => 0.0,
    }
}

/// The fractions of the disk's time that so many bytes per second need in the best and in the worst case.
fn extremes(profile: &Profile, bytes_per_s: u64, keep: f64) -> (Option<f64>, Option<f64>) {
    let need = |rate: f64| bytes_per_s as f64 / rate / keep;
    let best = profile.stream_bytes_per_s().map(|rate| need(rate as f64));
    let random = profile.number(Key::Random(Direction::Read, RANDOM_BYTES, RANDOM_DEPTH));
    (best, random.map(|requests| need(requests * f64::from(RANDOM_BYTES))))
}

/// The worst case of a profile.
const RANDOM_BYTES: u32 = 4096;
const RANDOM_DEPTH: u16 = 16;

impl Control {
    /// Records what the tenants of a disk used.
    pub(super) fn note_history(&self, disk: &Name, snapshot: &Snapshot) {
        let state = self.state();
        let Ok(running) = state.disk(disk) else { return };
        let mut histories = self.histories.lock().expect("nobody panics while holding it");
        histories.retain(|(of, tenant), _| of != disk || running.tenants.contains_key(tenant));
        for (name, tenant) in &running.tenants {
            if let Some(stats) = snapshot.tenants.iter().find(|stats| stats.tenant == tenant.id) {
                let history = histories.entry((disk.clone(), name.clone())).or_default();
                history.add(Spent::of(stats, snapshot.now));
            }
        }
    }

    /// The disk is another one, or has another policy: what its tenants used there says nothing any more.
    pub(super) fn forget_history(&self, disk: &Name) {
        self.histories.lock().expect("nobody panics while holding it").retain(|(of, _), _| of != disk);
    }

    /// A tenant was removed from a disk.
    pub(super) fn forget_tenant_history(&self, disk: &Name, tenant: &Name) {
        let mut histories = self.histories.lock().expect("nobody panics while holding it");
        histories.remove(&(disk.clone(), tenant.clone()));
    }

    /// In how many of its past windows with demand a tenant's guarantee would have fitted into its share, and their
    /// number; `None` if they are too few.
    pub(super) fn fitting(
        &self,
        running: &Running,
        disk: &Name,
        tenant: &Name,
        after: &TenantSpec,
    ) -> Option<(usize, usize)> {
        let keep = f64::from(self.chosen(disk, &running.store).settings.insulation_permille) / 1000.0;
        let part = running.part_of(tenant, after);
        let histories = self.histories.lock().expect("nobody panics while holding it");
        let (fitting, windows) =
            histories.get(&(disk.clone(), tenant.clone()))?.fits(after.min_bandwidth?.0, part, keep);
        (windows >= WINDOWS_LEAST).then_some((fitting, windows))
    }

    /// Whether the guarantee of a specification would hold; `None` without a guarantee.
    pub(super) fn admission(
        &self,
        disk: &Name,
        running: &Running,
        tenant: &Name,
        after: &TenantSpec,
    ) -> Option<AdmissionView> {
        let rate = after.min_bandwidth?.0;
        let keep = f64::from(self.chosen(disk, &running.store).settings.insulation_permille) / 1000.0;
        let part = running.part_of(tenant, after);
        let histories = self.histories.lock().expect("nobody panics while holding it");
        let history = |name: &Name| histories.get(&(disk.clone(), name.clone()));
        let (fitting, windows) = history(tenant).map_or((0, 0), |history| history.fits(rate, part, keep));
        let shares = Shares::of(running);
        let need = |(name, spec): (&Name, &TenantSpec)| match spec.min_bandwidth {
            Some(rate) => history(name)?.needs(rate.0, keep),
            None => Some((shares.effective(name).unwrap_or(0.0), 0.0)),
        };
        let mut others = running.allotments();
        others.remove(tenant);
        let needs: Option<Vec<(f64, f64)>> = others.iter().map(need).chain([need((tenant, after))]).collect();
        let (need_best, need_worst) = extremes(&running.store.known().profile, rate, keep);
        let is_known = windows >= WINDOWS_LEAST;
        let mut view = AdmissionView {
            windows: windows as u64,
            fits_ratio: is_known.then(|| fitting as f64 / windows as f64),
            need_best,
            need_worst,
            overfull_ratio: needs.map(|needs| overfull(&needs)),
            message: String::new(),
        };
        view.message = in_words(&view, part);
        Some(view)
    }
}

fn in_words(view: &AdmissionView, part: f64) -> String {
    let part = percent((part * 1e9) as u64);
    let ratio = |ratio: f64| format!("{:.1}%", ratio * 100.0);
    let fits = match (view.fits_ratio, view.need_best, view.need_worst) {
        (Some(fits), ..) => {
            format!("by its history it fits into {part} in {} of {} windows of 15 s", ratio(fits), view.windows)
        }
        (None, Some(best), Some(worst)) => format!(
            "it has no history of {} windows with demand yet; by the disk's profile the guarantee needs {} (sequential \
             reads) to {} (random reads of 4KiB at depth 16) of the disk's time, and its share is {part}",
            WINDOWS_LEAST,
            ratio(best),
            ratio(worst)
        ),
        _ => "whether it fits is not known: it has no history yet, and the disk was not probed".into(),
    };
    let overfull = match view.overfull_ratio {
        Some(bound) => format!("at most {} of rounds are over-full (Hoeffding)", ratio(bound)),
        None => "how many rounds are over-full is not known until all tenants with a guarantee have a history".into(),
    };
    format!("{fits}; {overfull}")
}

#[cfg(test)]
mod tests {
    use engine::disk::profile::Finding;
    use engine::units::SECOND;
    use serde_json::json;

    use super::*;
    use crate::control::Error;

    const MIB: u64 = 1 << 20;

    /// A history of windows in which a disk of its own would give so many MiB/s, with demand for this part of them.
    fn history(windows: &[(u64, f64)]) -> History {
        let mut history = History::default();
        let mut now = Spent { bytes: 0, useful_ns: 0, wanted_ns: 0, at: 0 };
        history.add(now);
        for &(own, demand) in windows {
            now.at += WINDOW_NS;
            now.wanted_ns += (WINDOW_NS as f64 * demand) as u64;
            now.useful_ns += if own > 0 { SECOND } else { 0 };
            now.bytes += own * MIB;
            history.add(Spent { at: now.at - 1, ..now });
            history.add(now);
        }
        history
    }

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn request<T: serde::de::DeserializeOwned>(body: serde_json::Value) -> T {
        serde_json::from_value(body).unwrap()
    }

    async fn server(dir: &std::path::Path) -> std::sync::Arc<Control> {
        let cache = "64MiB".parse().unwrap();
        let config = crate::config::Config { data: dir.join("data"), cache, ..Default::default() };
        let control = Control::open(config).await.unwrap();
        control.create_volume(request(json!({"name": "a", "size": "1MiB", "share": "1/2"}))).await.unwrap();
        control
    }

    fn put(control: &Control, history: History) {
        control.histories.lock().unwrap().insert((name("default"), name("a")), history);
    }

    /// The disk reads 100 MB/s, and hits in the cache are faster.
    #[tokio::test(flavor = "multi_thread")]
    async fn the_profile_refuses_a_guarantee_unless_enough_history_says_that_it_fits() {
        let dir = tempfile::tempdir().unwrap();
        let control = server(dir.path()).await;
        let found = [(Key::Sequential(Direction::Read, 0), Finding::plain(Some(100e6)))];
        let store = control.state().disk(&name("default")).unwrap().store.clone();
        store.change(|known| known.profile.take(&found, 0)).unwrap();
        let tenant = name("a");
        let set = || control.set_tenant(&tenant, request(json!({"min_bandwidth": "90000000"})));
        let refused = set().await;
        assert!(matches!(refused, Err(Error::GuaranteeTooLarge { .. })), "{refused:?}");
        put(&control, history(&[(1000, 1.0); WINDOWS_LEAST - 1]));
        assert!(matches!(set().await, Err(Error::GuaranteeTooLarge { .. })), "too little history");
        put(&control, history(&[(50, 1.0); WINDOWS_LEAST]));
        assert!(matches!(set().await, Err(Error::GuaranteeTooLarge { .. })), "it never fitted");
        put(&control, history(&[(1000, 1.0); WINDOWS_LEAST]));
        let done = set().await.unwrap();
        assert!(done.message.contains("by its history it fits"), "{}", done.message);
        assert!(control.drain().await.is_empty());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_tenant_that_is_created_again_has_no_history() {
        let dir = tempfile::tempdir().unwrap();
        let control = server(dir.path()).await;
        put(&control, history(&[(100, 1.0); WINDOWS_LEAST]));
        control.delete_volume(&name("a"), false).await.unwrap();
        control.create_volume(request(json!({"name": "a", "size": "1MiB"}))).await.unwrap();
        let spec = TenantSpec { min_bandwidth: Some("1MiB/s".parse().unwrap()), ..TenantSpec::default() };
        let disk = name("default");
        let fitting = control.fitting(control.state().disk(&disk).unwrap(), &disk, &name("a"), &spec);
        assert_eq!(fitting, None);
        assert!(control.drain().await.is_empty());
    }

    #[test]
    fn a_history_says_how_often_a_guarantee_would_have_fitted() {
        let mixed: Vec<(u64, f64)> = (0..100).map(|i| if i % 4 == 0 { (20, 1.0) } else { (100, 1.0) }).collect();
        let history = history(&mixed);
        assert_eq!(history.windows.len(), 100, "a look before the end of a window does not end it");
        // 9 MiB/s need 0.1 of the disk at 100 MiB/s, and 0.5 at 20.
        assert_eq!(history.fits(9 * MIB, 0.4, 0.9), (75, 100));
        assert_eq!(history.fits(9 * MIB, 0.51, 0.9), (100, 100));
        let (mean, range) = history.needs(9 * MIB, 0.9).unwrap();
        assert!((mean - 0.2).abs() < 1e-6 && (range - 0.4).abs() < 1e-6, "{mean} {range}");
    }

    #[test]
    fn windows_without_demand_need_nothing_and_too_few_say_nothing() {
        let half: Vec<(u64, f64)> = (0..40).map(|i| if i % 2 == 0 { (100, 1.0) } else { (0, 0.0) }).collect();
        assert_eq!(history(&half).fits(9 * MIB, 0.4, 0.9), (20, 20));
        let (mean, range) = history(&half).needs(9 * MIB, 0.9).unwrap();
        assert!((mean - 0.05).abs() < 1e-6 && (range - 0.1).abs() < 1e-6, "{mean} {range}");
        assert_eq!(history(&half[..38]).needs(9 * MIB, 0.9), None);
        let mut bounded = history(&vec![(100, 1.0); 2 * WINDOWS_MAX]);
        assert_eq!(bounded.windows.len(), WINDOWS_MAX);
        bounded.add(Spent { bytes: 0, useful_ns: 0, wanted_ns: 0, at: u64::MAX });
        assert_eq!(bounded.windows.len(), WINDOWS_MAX, "counters that began anew are no window");
    }

    #[test]
    fn hoeffding_bounds_the_rounds_that_are_over_full() {
        // Five tenants that need 5 % on average and up to 20 %: room 0.75.
        let bound = overfull(&[(0.05, 0.2); 5]);
        assert!((bound - (-2.0f64 * 0.75 * 0.75 / 0.2).exp()).abs() < 1e-12, "{bound}");
        assert!(overfull(&[(0.05, 0.2); 15]) > bound, "more tenants");
        assert_eq!(overfull(&[(0.2, 0.2); 5]), 1.0, "the means are the whole disk");
        assert_eq!((overfull(&[(0.25, 0.0); 4]), overfull(&[(0.3, 0.0); 4])), (0.0, 1.0), "shares alone");
    }

    #[test]
    fn the_answer_has_numbers() {
        let view = AdmissionView {
            windows: 120,
            fits_ratio: Some(0.975),
            overfull_ratio: Some(0.0123),
            ..AdmissionView::default()
        };
        assert_eq!(
            in_words(&view, 1.0 / 3.0),
            "by its history it fits into 33.33% in 97.5% of 120 windows of 15 s; at most 1.2% of rounds are over-full \
             (Hoeffding)"
        );
        let view = AdmissionView { need_best: Some(0.25), need_worst: Some(8.0), ..AdmissionView::default() };
        let told = in_words(&view, 0.5);
        assert!(told.contains("25.0% (sequential reads) to 800.0%") && told.contains("not known until"), "{told}");
    }
}

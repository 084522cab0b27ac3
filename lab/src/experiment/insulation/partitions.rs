//! Partition sizes of a mix that are stated by the experiment, from each tenant's exact curve.
//!
//! With `c` blocks, a fraction `m(c)` of a tenant's requests goes to the disk, so it keeps about `m(whole) / m(c)` of
//! its throughput with the whole cache. The sizes are chosen such that all tenants keep the same fraction, the largest
//! that the memory permits, at most 0.99.
//!
//! Downside: the model leaves out that sorted write-back becomes more efficient with more dirty blocks.

use engine::cache::EvictionPolicy;
use engine::curve::{Ack, Curve, Limits, View};
use engine::ids::VolumeId;
use engine::units::{BLOCK, MILLISECOND, SECOND, sectors_touched};
use sim::load::{Op, unroll};

use super::super::loads::Load;

/// The cache that a stream needs for the read-ahead of a slice, bytes; the minimum of stated partitions.
const LEAST: u64 = 8 << 20;
/// The minimum of any partition, bytes: data that is being received and sent, and some dirty data.
const WORKING: u64 = 1 << 20;
/// Requests that a curve is made of, several times the blocks of the mixes' working sets; and requests before them,
/// which fill the cache.
const COUNTED: usize = 60_000;
const BEFORE: usize = 30_000;

/// A tenant's exact curve for up to `blocks_max` blocks, after its cache has filled.
fn curve(load: &Load, volume_bytes: u64, blocks_max: u64) -> Result<View, String> {
    let limits = Limits { places_max: 0, ..Limits::exact(blocks_max, 5 * SECOND) };
    let (mut curve, volume) = (Curve::new(limits, 0), VolumeId(0));
    curve.opened(volume);
    let mut before = None;
    for (at, record) in unroll(load.workload(volume_bytes, 1)?, MILLISECOND).take(BEFORE + COUNTED).enumerate() {
        if at == BEFORE {
            before = Some(curve.view(EvictionPolicy::Lru));
        }
        for number in record.offset / BLOCK..record.end().div_ceil(BLOCK) {
            let base = number * BLOCK;
            let sectors = sectors_touched(record.offset.max(base) - base, record.end().min(base + BLOCK) - base);
            match record.op {
                Op::Read => curve.read(record.time_ns, volume, number, sectors, false),
                _ => curve.write(record.time_ns, volume, number, sectors, Ack::Cached),
            }
        }
    }
    let after = curve.view(EvictionPolicy::Lru);
    Ok(before.map_or(after.clone(), |before| since(&before, after)))
}

/// The curve of the requests between two views of one curve.
fn since(before: &View, mut after: View) -> View {
    let count = |view: &View| view.reads + view.writes;
    let (first, all) = (count(before), count(&after));
    for (early, late) in before.points.iter().zip(&mut after.points) {
        let missed = late.all.unwrap_or(0.0) * all - early.all.unwrap_or(0.0) * first;
        late.all = Some(missed / (all - first));
    }
    after
}

/// The least blocks, at least `bytes_least` bytes, with which the tenant of `view` keeps the fraction `keep`.
fn least(view: &View, bytes_least: u64, whole: u64, keep: f64) -> u64 {
    let misses = |blocks: u64| view.misses(blocks).unwrap_or(1.0).max(KEEP_LEAST);
    let allowed = misses(whole) / keep;
    let enough = |blocks: u64| misses(blocks) <= allowed;
    let (mut low, mut high) = (bytes_least / BLOCK - 1, whole);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if enough(middle) { high = middle } else { low = middle }
    }
    high
}

/// The lowest fraction that is considered.
const KEEP_LEAST: f64 = 1e-6;
/// The highest fraction that is aimed at: memory beyond it is better used for read-ahead and dirty data of all tenants.
const KEEP_MAX: f64 = 0.99;

fn curves(loads: &[&Load], volume_bytes: u64, whole: u64) -> Result<Vec<View>, String> {
    loads.iter().map(|load| curve(load, volume_bytes, whole)).collect()
}

/// What is possible according to exact curves.
#[derive(Clone, Debug)]
pub struct Possible {
    /// The fraction that all keep with the partitions that are best for the tenant that keeps least.
    pub all: f64,
    /// For each R, the tenants (by position) that keep it if those with the smallest needs come first, where half of
    /// the loss that R permits is reserved for slices.
    pub tenants: Vec<Vec<usize>>,
}

/// What is possible with this much memory at each R (thousandths).
pub fn possible(loads: &[&Load], volume_bytes: u64, memory: u64, keep: &[u32]) -> Result<Possible, String> {
    let whole = memory / BLOCK;
    let views = curves(loads, volume_bytes, whole)?;
    let leasts: Vec<_> =
        loads.iter().map(|load| if load.streams() || load.only_writes() { LEAST } else { WORKING }).collect();
    let of = |&keep: &u32| {
        let keep = (1.0 + f64::from(keep) / 1000.0) / 2.0;
        let need = |at: usize| least(&views[at], leasts[at], whole, keep) - WORKING / BLOCK;
        let mut needs: Vec<_> = (0..views.len()).map(|at| (need(at), at)).collect();
        needs.sort_unstable();
        // A tenant that is refused needs its minimum, too.
        let mut left = whole.saturating_sub(views.len() as u64 * WORKING / BLOCK);
        let fits = |(need, _): &&(u64, usize)| left.checked_sub(*need).map(|rest| left = rest).is_some();
        needs.iter().take_while(fits).map(|&(_, at)| at).collect()
    };
    Ok(Possible { all: divided(&views, &leasts, memory)?.1, tenants: keep.iter().map(of).collect() })
}

/// The sizes of the partitions, bytes, and the fraction that all tenants keep.
pub fn partitions(loads: &[&Load], volume_bytes: u64, memory: u64) -> Result<(Vec<u64>, f64), String> {
    let whole = memory / BLOCK;
    divided(&curves(loads, volume_bytes, whole)?, &vec![LEAST; loads.len()], memory)
}

/// The same from curves; `leasts` are the minimum sizes, bytes.
fn divided(views: &[View], leasts: &[u64], memory: u64) -> Result<(Vec<u64>, f64), String> {
    let whole = memory / BLOCK;
    let need = |(view, &bytes): (&View, &u64), keep: f64| least(view, bytes, whole, keep);
    let needs = |keep: f64| views.iter().zip(leasts).map(|pair| need(pair, keep)).collect::<Vec<_>>();
    let fits = |keep: f64| needs(keep).iter().sum::<u64>() <= whole;
    if !fits(KEEP_LEAST) {
        return Err(format!("{} tenants do not fit into {memory} bytes of memory", views.len()));
    }
    let (mut low, mut high) = (KEEP_LEAST, 1.0);
    while high - low > 1e-4 {
        let middle = (low + high) / 2.0;
        if fits(middle) { low = middle } else { high = middle }
    }
    let low = low.min(KEEP_MAX);
    let sizes = needs(low);
    // The remainder is divided evenly.
    let spare = (whole - sizes.iter().sum::<u64>()) / views.len() as u64;
    Ok((sizes.into_iter().map(|blocks| (blocks + spare) * BLOCK).collect(), low))
}

#[cfg(test)]
mod tests {
    use sim::load::{Pace, Stream};

    use super::super::super::loads::Mixture;
    use super::*;

    #[test]
    fn who_has_a_working_set_gets_it_and_who_has_none_gets_the_least_and_what_is_left() {
        let hot = Stream { area_bytes: 24 << 20, ..Stream::default() };
        let pace = Pace::Closed { depth: 4, think_ns: 0 };
        let hot = Load::Mixture(Mixture { parts: vec![(1, hot)], warm_bytes: 24 << 20, updates: false, pace });
        let far = Load::from(Stream { area_bytes: u64::MAX, ..Stream::default() });
        let (sizes, keep) = partitions(&[&hot, &far], 64 << 30, 48 << 20).unwrap();
        let spare = sizes[1] - LEAST;
        assert!(keep == KEEP_MAX && (23 << 20..25 << 20).contains(&(sizes[0] - spare)), "{sizes:?} {keep}");
        let (sizes, keep) = partitions(&[&hot, &hot], 64 << 30, 24 << 20).unwrap();
        assert!(keep < 0.01 && sizes[0] == sizes[1], "half of it is a miss each: {sizes:?} {keep}");
        let could = |memory| possible(&[&hot, &far, &hot], 64 << 30, memory, &[900]).unwrap().tenants.remove(0);
        assert_eq!(could(28 << 20), [1, 0], "who needs least comes first");
        assert_eq!(could(52 << 20), [1, 0, 2]);
    }
}

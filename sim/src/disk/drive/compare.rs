//! Simulated response times against measured ones: as a whole, by kind of request, and by deciles.

use engine::disk::Op;
use engine::units::Nanos;

use super::replay::Measured;

/// The difference between a simulated drive and a measured one.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// Root mean square distance between the two sorted lists of response times, milliseconds. This is the demerit
    /// figure of Ruemmler and Wilkes, "An introduction to disk drive modeling", as DiskSim's `rms` computes it.
    pub rms_ms: f64,
    /// Mean simulated response time, milliseconds.
    pub mean_simulated_ms: f64,
    /// Mean measured response time, milliseconds.
    pub mean_measured_ms: f64,
    /// Requests compared.
    pub requests: usize,
}

/// The requests of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Whether they write.
    pub write: bool,
    /// Whether they begin where the request before ended.
    pub sequential: bool,
    /// Their response times, sorted among themselves.
    pub comparison: Comparison,
}

/// A quantile of both lists.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Decile {
    /// Percent of the requests that take at most so long: 0 (the shortest), 10, … 100 (the longest).
    pub percent: u32,
    /// Of the measured drive, milliseconds.
    pub measured_ms: f64,
    /// Of the simulated drive, milliseconds.
    pub simulated_ms: f64,
}

/// The difference in detail.
#[derive(Clone, Debug)]
pub struct Details {
    /// All requests.
    pub whole: Comparison,
    /// By kind; kinds without requests are left out.
    pub breakdown: Vec<Class>,
    /// By rank.
    pub deciles: Vec<Decile>,
}

/// Compares two lists of response times of the same length, milliseconds.
pub fn compare(mut simulated: Vec<f64>, mut measured: Vec<f64>) -> Comparison {
    simulated.sort_by(f64::total_cmp);
    measured.sort_by(f64::total_cmp);
    let requests = simulated.len();
    let mean = |times: &[f64]| times.iter().sum::<f64>() / requests as f64;
    let squares: f64 = simulated.iter().zip(&measured).map(|(a, b)| (a - b) * (a - b)).sum();
    Comparison {
        rms_ms: (squares / requests as f64).sqrt(),
        mean_simulated_ms: mean(&simulated),
        mean_measured_ms: mean(&measured),
        requests,
    }
}

/// Compares the measured requests from number `first` (from 0) on with the simulated response times of the whole list,
/// nanoseconds. There is at least one.
pub fn details(list: &[Measured], simulated: &[Nanos], first: usize) -> Details {
    let kind = |index: usize| {
        let before = index.checked_sub(1).map(|before| list[before]);
        let sequential = before.is_some_and(|before| before.sector + before.sectors == list[index].sector);
        (list[index].op != Op::Read, sequential)
    };
    let compare_those = |wanted: &dyn Fn(usize) -> bool| {
        let those = || (first..list.len()).filter(|&index| wanted(index));
        let measured = those().map(|index| list[index].response_us / 1e3).collect();
        compare(those().map(|index| simulated[index] as f64 / 1e6).collect(), measured)
    };
    let kinds = [(false, true), (false, false), (true, true), (true, false)];
    let classes = kinds.map(|(write, sequential)| {
        let comparison = compare_those(&|index| kind(index) == (write, sequential));
        Class { write, sequential, comparison }
    });
    Details {
        whole: compare_those(&|_| true),
        breakdown: classes.into_iter().filter(|class| class.comparison.requests > 0).collect(),
        deciles: deciles(&list[first..], &simulated[first..]),
    }
}

/// Quantiles by nearest rank.
fn deciles(list: &[Measured], simulated: &[Nanos]) -> Vec<Decile> {
    let mut measured: Vec<f64> = list.iter().map(|request| request.response_us / 1e3).collect();
    measured.sort_by(f64::total_cmp);
    let mut simulated: Vec<f64> = simulated.iter().map(|&ns| ns as f64 / 1e6).collect();
    simulated.sort_by(f64::total_cmp);
    let decile = |tenth: u32| {
        let rank = (measured.len() * tenth as usize).div_ceil(10).saturating_sub(1);
        Decile { percent: tenth * 10, measured_ms: measured[rank], simulated_ms: simulated[rank] }
    };
    (0..=10).map(decile).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_is_between_sorted_lists() {
        let same = compare(vec![1.0, 3.0, 2.0], vec![3.0, 1.0, 2.0]);
        assert_eq!((same.rms_ms, same.mean_simulated_ms), (0.0, 2.0));
        let other = compare(vec![1.0, 2.0], vec![2.0, 3.0]);
        assert_eq!((other.rms_ms, other.requests), (1.0, 2));
    }

    #[test]
    fn requests_are_told_apart_by_kind_and_place() {
        let of = |op, sector, ms: f64| Measured { op, sector, sectors: 8, response_us: ms * 1e3, gap_us: 0.0 };
        let write = Op::Write { durable: false };
        let list = [
            of(Op::Read, 0, 1.0),
            of(Op::Read, 8, 2.0),
            of(write, 16, 3.0),
            of(write, 100, 4.0),
            of(Op::Read, 108, 5.0),
            of(Op::Read, 0, 6.0),
        ];
        let simulated: Vec<Nanos> = (1..=6).map(|ms| ms * 1_000_000 + 500_000).collect();
        let counts = |details: &Details| {
            details.breakdown.iter().map(|c| (c.write, c.sequential, c.comparison.requests)).collect::<Vec<_>>()
        };
        let all = details(&list, &simulated, 0);
        assert_eq!(counts(&all), [(false, true, 2), (false, false, 2), (true, true, 1), (true, false, 1)]);
        assert!(all.breakdown.iter().all(|class| (class.comparison.rms_ms - 0.5).abs() < 1e-9));
        assert_eq!(all.breakdown[0].comparison.mean_measured_ms, 3.5);
        // The first request that counts has one before it that does not.
        let part = details(&list, &simulated, 1);
        assert_eq!(counts(&part), [(false, true, 2), (false, false, 1), (true, true, 1), (true, false, 1)]);
        assert_eq!(part.whole.requests, 5);
        let [first, fifth, last] = [0, 5, 10].map(|index| part.deciles[index]);
        assert_eq!(first, Decile { percent: 0, measured_ms: 2.0, simulated_ms: 2.5 });
        assert_eq!(fifth, Decile { percent: 50, measured_ms: 4.0, simulated_ms: 4.5 });
        assert_eq!(last, Decile { percent: 100, measured_ms: 6.0, simulated_ms: 6.5 });
    }
}

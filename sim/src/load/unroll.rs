//! Unrolls a load to the records that it makes if every request takes the same time: for inspecting a description, or
//! writing it as a trace.

use std::collections::BTreeSet;

use engine::units::Nanos;

use super::{Record, Workload};

/// The records of `workload`, which begins at 0, if each request is answered after `service_ns`. Endless if the load
/// is. A closed load without a limit on requests needs a service time above 0, otherwise time does not advance.
pub fn unroll(mut workload: Workload, service_ns: Nanos) -> impl Iterator<Item = Record> {
    let mut now = 0;
    let mut unanswered = BTreeSet::new();
    std::iter::from_fn(move || {
        loop {
            while let Some(&(at, id)) = unanswered.first().filter(|&&(at, _)| at <= now) {
                unanswered.remove(&(at, id));
                workload.completed(now, id);
            }
            if let Some(request) = workload.next(now) {
                unanswered.insert((now.saturating_add(service_ns), request.id));
                let super::Request { op, offset, bytes, stream, .. } = request;
                return Some(Record { time_ns: now, op, offset, bytes, stream });
            }
            let answer = unanswered.first().map(|&(at, _)| at);
            now = answer.into_iter().chain(workload.poll_timeout()).min()?.max(now);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Bursts, Pace, Spec, Stream};

    #[test]
    fn the_same_seed_unrolls_the_same() {
        let closed = Stream { pace: Pace::Closed { depth: 4, think_ns: 50 }, read_ppm: 300_000, ..Stream::default() };
        let pace = Pace::Open { interval_ns: 70, poisson: true, speed_ppm: 1_000_000 };
        let open = Stream { pace, bursts: Some(Bursts { on_ns: 1000, off_ns: 5000 }), ..Stream::default() };
        let records = |seed| {
            let spec = Spec { seed, streams: vec![closed.clone(), open.clone()] };
            unroll(Workload::described(&spec, 0).unwrap(), 100).take(1000).collect::<Vec<_>>()
        };
        let first = records(1);
        assert_eq!(first, records(1));
        assert_ne!(first, records(2));
        assert!(first.is_sorted_by_key(|record| record.time_ns) && first.len() == 1000);
        assert!([0, 1].iter().all(|&stream| first.iter().any(|record| record.stream == stream)));
    }

    #[test]
    fn depth_and_think_time_make_the_rate() {
        let stream = Stream { pace: Pace::Closed { depth: 2, think_ns: 30 }, stop_ns: 10_000, ..Stream::default() };
        let spec = Spec { seed: 1, streams: vec![stream] };
        let records = unroll(Workload::described(&spec, 0).unwrap(), 70).count();
        assert_eq!(records, 200, "two at a time, one hundred nanoseconds each, for ten thousand");
    }
}

//! A token bucket in front of another drive: a cloud volume with a limited rate and a limited burst.
//!
//! Requests leave in the order of arrival, each when both buckets have its tokens. The state of a bucket is the time at
//! which it would be full again (the virtual scheduling form of the generic cell rate algorithm, ITU-T I.371): exact in
//! integers, and without refills. Flushes cost no tokens, but keep their place in the order.

use std::collections::VecDeque;

use engine::disk::Op;
use engine::units::{Nanos, SECOND};

use super::done::earlier;
use super::{Drive, Tag};

/// The parameters of a token bucket.
#[derive(Clone, Copy, Debug)]
pub struct BucketSpec {
    /// Tokens per second, at least 1.
    pub rate: u64,
    /// Size of the bucket, tokens.
    pub burst: u64,
}

/// When a bucket is full at the latest, nanoseconds: 146 years. A description may give a rate of one byte a second, and
/// later times, with those of the drive behind the bucket, would overflow.
const FULL_AT_MAX: Nanos = 1 << 62;

#[derive(Debug)]
struct Bucket {
    spec: BucketSpec,
    /// When it would be full, if no tokens were taken.
    full_at: Nanos,
}

impl Bucket {
    /// When `tokens` can be taken at the earliest. Debt is allowed: a request larger than the bucket leaves when the
    /// bucket is full.
    fn ready_at(&self, tokens: u64) -> Nanos {
        let spare = self.spec.burst.saturating_sub(tokens);
        self.full_at.saturating_sub(self.ns(spare))
    }

    fn take(&mut self, now: Nanos, tokens: u64) {
        self.full_at = self.full_at.max(now).saturating_add(self.ns(tokens)).min(FULL_AT_MAX);
    }

    fn ns(&self, tokens: u64) -> Nanos {
        (u128::from(tokens) * u128::from(SECOND) / u128::from(self.spec.rate)).min(FULL_AT_MAX.into()) as Nanos
    }
}

/// The limits of a volume.
#[derive(Clone, Copy, Debug)]
pub struct ThrottleSpec {
    /// Limit on requests.
    pub requests: Option<BucketSpec>,
    /// Limit on bytes, read and written.
    pub bytes: Option<BucketSpec>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    leaves_at: Nanos,
    tag: Tag,
    op: Op,
    offset: u64,
    len: u64,
}

/// A drive behind a token bucket.
#[derive(Debug)]
pub struct Throttled {
    inner: Box<dyn Drive>,
    requests: Option<Bucket>,
    bytes: Option<Bucket>,
    held: VecDeque<Held>,
    last_leaves_at: Nanos,
}

impl Throttled {
    /// `inner` behind full buckets.
    pub fn new(spec: ThrottleSpec, inner: Box<dyn Drive>) -> Throttled {
        let bucket = |spec: Option<BucketSpec>| spec.map(|spec| Bucket { spec, full_at: 0 });
        let (requests, bytes) = (bucket(spec.requests), bucket(spec.bytes));
        Throttled { inner, requests, bytes, held: VecDeque::new(), last_leaves_at: 0 }
    }

    fn release(&mut self, now: Nanos) {
        while let Some(held) = self.held.front().copied().filter(|held| held.leaves_at <= now) {
            self.held.pop_front();
            self.inner.submit(held.leaves_at, held.tag, held.op, held.offset, held.len);
        }
    }
}

impl Drive for Throttled {
    fn submit(&mut self, now: Nanos, tag: Tag, op: Op, offset: u64, len: u64) {
        self.release(now);
        let mut leaves_at = now.max(self.last_leaves_at);
        let costs = [(&mut self.requests, 1), (&mut self.bytes, len)];
        if op != Op::Flush {
            for (bucket, tokens) in &costs {
                leaves_at = leaves_at.max(bucket.as_ref().map_or(0, |bucket| bucket.ready_at(*tokens)));
            }
            for (bucket, tokens) in costs {
                bucket.iter_mut().for_each(|bucket| bucket.take(leaves_at, tokens));
            }
        }
        self.last_leaves_at = leaves_at;
        self.held.push_back(Held { leaves_at, tag, op, offset, len });
        self.release(now);
    }

    fn poll(&mut self, now: Nanos) -> Option<(Tag, Nanos)> {
        self.release(now);
        self.inner.poll(now)
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        earlier(self.held.front().map(|held| held.leaves_at), self.inner.poll_timeout())
    }

    fn power_cut(&mut self, now: Nanos) {
        self.held.clear();
        self.last_leaves_at = now;
        self.inner.power_cut(now);
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::drive::lanes::{Lanes, LanesSpec};
    use crate::rng::Rng;

    fn drive(requests: Option<BucketSpec>, bytes: Option<BucketSpec>) -> Throttled {
        let fast = LanesSpec { parallel: 64, service_ns: 1000, block_ns: 0, flush_ns: 1000 };
        Throttled::new(ThrottleSpec { requests, bytes }, Box::new(Lanes::new(fast, Rng::new(1))))
    }

    /// The completion time of the last of `count` requests that all arrive at 0.
    fn last_of(drive: &mut Throttled, count: u64, len: u64) -> Nanos {
        (0..count).for_each(|tag| drive.submit(0, tag, Op::Read, 0, len));
        let (mut done, mut last) = (0, 0);
        while let Some(at) = drive.poll_timeout() {
            while let Some((_, end)) = drive.poll(at) {
                (done, last) = (done + 1, end);
            }
        }
        assert_eq!(done, count);
        last
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let requests = Some(BucketSpec { rate: 1000, burst: 100 });
        assert!(last_of(&mut drive(requests, None), 100, 512) < 10_000);
        let last = last_of(&mut drive(requests, None), 600, 512);
        assert!(last.abs_diff(SECOND / 2) < 2_000_000, "{last}");
    }

    #[test]
    fn bytes_count_too_and_a_giant_is_not_stuck() {
        let bytes = Some(BucketSpec { rate: 1 << 20, burst: 4096 });
        let last = last_of(&mut drive(None, bytes), 3, 1 << 20);
        assert!(last.abs_diff(2 * SECOND) < 10_000_000, "{last}");
    }
}

//! The description of a synthetic load: plain data, validated once.

use engine::units::{Nanos, SECOND, VOLUME_BYTES_MAX};

use crate::rng::MILLION;

/// Maximum length of a request, bytes: NBD's largest payload.
pub const REQUEST_BYTES_MAX: u64 = engine::nbd::wire::PAYLOAD_BYTES_MAX as u64;
/// Maximum number of outstanding requests of a stream: bounds the backlog of an open lane on a slow server.
pub const OUTSTANDING_MAX: u32 = 1 << 16;
/// Maximum number of streams of a description: each `next` looks at all of them.
pub const STREAMS_MAX: usize = 1024;

/// Several concurrent streams.
#[derive(Clone, PartialEq, Debug)]
pub struct Spec {
    /// The same seed gives the same requests.
    pub seed: u64,
    /// The concurrent streams.
    pub streams: Vec<Stream>,
}

/// One stream of requests.
#[derive(Clone, PartialEq, Debug)]
pub struct Stream {
    /// How positions are chosen.
    pub place: Place,
    /// First byte of its working set.
    pub area_start: u64,
    /// Bytes of its working set.
    pub area_bytes: u64,
    /// Offsets are multiples of this many bytes.
    pub align_bytes: u64,
    /// Reads, parts per million; the other requests are writes.
    pub read_ppm: u64,
    /// Requests that begin where the previous one ended, parts per million (for sequential streams all do).
    pub follow_ppm: u64,
    /// Distance from the beginning of a request to the beginning of the next one, for sequential streams; negative for
    /// backwards. `None`: each begins where the previous one ended.
    pub stride_bytes: Option<i64>,
    /// Request sizes: (weight, bytes).
    pub sizes: Vec<(u64, u64)>,
    /// A flush follows after so many writes; 0 for never.
    pub flush_every: u64,
    /// When requests are made.
    pub pace: Pace,
    /// Pauses between bursts of requests.
    pub bursts: Option<Bursts>,
    /// How the working set moves.
    pub shift: Option<Shift>,
    /// Start, nanoseconds after the load's beginning.
    pub start_ns: Nanos,
    /// End, nanoseconds after the load's beginning.
    pub stop_ns: Nanos,
    /// Maximum number of requests.
    pub requests: u64,
}

/// How positions are chosen within the working set.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Place {
    /// In order; from the beginning again at the end.
    Sequential,
    /// All positions with equal probability.
    Uniform,
    /// The k-th most popular position with a probability proportional to k^-exponent; popular positions are spread over
    /// the working set.
    Zipf {
        /// Above 0; 0.99 is customary, above 1 is steeper.
        exponent: f64,
    },
}

/// When requests are made.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// Regardless of earlier requests.
    Open {
        /// Mean interval, nanoseconds. Records of a trace have their own times and ignore it.
        interval_ns: Nanos,
        /// Independent arrivals (exponentially distributed intervals) instead of regular ones.
        poisson: bool,
        /// Speed of replay, parts per million: 2,000,000 is twice as fast.
        speed_ppm: u64,
    },
    /// A fixed number of outstanding requests.
    Closed {
        /// Number of outstanding requests.
        depth: u32,
        /// Think time from an answer to the next request, nanoseconds.
        think_ns: Nanos,
    },
}

impl Pace {
    /// Records at their own times, `speed_ppm` parts per million as fast.
    pub fn as_recorded(speed_ppm: u64) -> Pace {
        Pace::Open { interval_ns: 0, poisson: false, speed_ppm }
    }
}

/// Alternating intervals with and without requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bursts {
    /// Length of an interval with requests, nanoseconds.
    pub on_ns: Nanos,
    /// Length of an interval without requests, nanoseconds.
    pub off_ns: Nanos,
}

impl Bursts {
    /// The first time at or after `at_ns` (since the stream's beginning) with requests.
    pub fn gate(&self, at_ns: Nanos) -> Nanos {
        let round = self.on_ns + self.off_ns;
        let phase = at_ns % round;
        if phase < self.on_ns { at_ns } else { (at_ns - phase).saturating_add(round) }
    }

    /// Nanoseconds without requests until `at_ns`.
    pub fn pauses(&self, at_ns: Nanos) -> Nanos {
        let round = self.on_ns + self.off_ns;
        at_ns / round * self.off_ns + (at_ns % round).saturating_sub(self.on_ns)
    }

    /// The time at which `active_ns` nanoseconds with requests have passed.
    pub fn stretch(&self, active_ns: Nanos) -> Nanos {
        (active_ns / self.on_ns).saturating_mul(self.off_ns).saturating_add(active_ns)
    }
}

/// How the working set moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shift {
    /// How often.
    pub every: Every,
    /// Distance of a move, bytes.
    pub by_bytes: u64,
    /// Range of the moves, bytes, from the first position of the working set; beyond it, moves start there again.
    pub within_bytes: u64,
}

/// A period, as a count or a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Every {
    /// Requests of the stream.
    Requests(u64),
    /// Nanoseconds.
    Time(Nanos),
}

impl Default for Stream {
    /// Random 4 KiB reads in the first GiB, one at a time.
    fn default() -> Stream {
        Stream {
            place: Place::Uniform,
            area_start: 0,
            area_bytes: 1 << 30,
            align_bytes: 4096,
            read_ppm: MILLION,
            follow_ppm: 0,
            stride_bytes: None,
            sizes: vec![(1, 4096)],
            flush_every: 0,
            pace: Pace::Closed { depth: 1, think_ns: 0 },
            bursts: None,
            shift: None,
            start_ns: 0,
            stop_ns: Nanos::MAX,
            requests: u64::MAX,
        }
    }
}

/// Why a description is invalid. Each variant names the stream, counted from 1.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum SpecError {
    /// No stream, or too many.
    #[error("a load has 1 to {STREAMS_MAX} streams, not {0}")]
    Streams(usize),
    /// No sizes, or a size or weight out of range.
    #[error("stream {0}: each size is 1 to {REQUEST_BYTES_MAX} bytes with a weight of 1 to 1,000,000")]
    Sizes(usize),
    /// The longest request does not fit.
    #[error("stream {0}: its largest request ({1} bytes) does not fit into its area of {2} bytes")]
    Area(usize, u64, u64),
    /// The stream reaches beyond the maximum volume size.
    #[error("stream {0}: it reaches beyond {VOLUME_BYTES_MAX} bytes, which no volume has")]
    Far(usize),
    /// The alignment is out of range.
    #[error("stream {0}: the alignment is at least 1 byte and at most its area")]
    Align(usize),
    /// A fraction above one.
    #[error("stream {0}: shares of reads and of requests that follow are at most 100%")]
    Share(usize),
    /// The stride is out of range.
    #[error("stream {0}: a stride is for sequential streams, a multiple of the alignment, and at most its area")]
    Stride(usize),
    /// The exponent is out of range.
    #[error("stream {0}: the exponent of a Zipf distribution is above 0 and at most 10")]
    Exponent(usize),
    /// The depth is out of range.
    #[error("stream {0}: the depth is 1 to {OUTSTANDING_MAX}")]
    Depth(usize),
    /// An open stream needs a rate.
    #[error("stream {0}: the rate is above 0 and at most a thousand million a second")]
    Rate(usize),
    /// The bursts contain no requests, or are too long.
    #[error("stream {0}: bursts need time with requests, and at most a year in all")]
    Bursts(usize),
    /// The shift has no period or distance, or too small a range.
    #[error("stream {0}: a shift needs a period, a distance, and room that is at least its area")]
    Shift(usize),
}

const YEAR_NS: Nanos = 366 * 24 * 3600 * SECOND;

impl Spec {
    /// Checks everything that the generator relies on.
    pub fn check(&self) -> Result<(), SpecError> {
        if !(1..=STREAMS_MAX).contains(&self.streams.len()) {
            return Err(SpecError::Streams(self.streams.len()));
        }
        self.streams.iter().zip(1..).try_for_each(|(stream, number)| stream.check(number))
    }
}

impl Stream {
    fn check(&self, number: usize) -> Result<(), SpecError> {
        let size_fits =
            |&(weight, bytes): &(u64, u64)| (1..=MILLION).contains(&weight) && (1..=REQUEST_BYTES_MAX).contains(&bytes);
        let largest = self.sizes.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0);
        let reach = self.shift.map_or(self.area_bytes, |shift| shift.within_bytes);
        let checks = [
            (!self.sizes.is_empty() && self.sizes.iter().all(size_fits), SpecError::Sizes(number)),
            (largest <= self.area_bytes, SpecError::Area(number, largest, self.area_bytes)),
            (self.area_start.checked_add(reach).is_some_and(|end| end <= VOLUME_BYTES_MAX), SpecError::Far(number)),
            ((1..=self.area_bytes).contains(&self.align_bytes), SpecError::Align(number)),
            (self.read_ppm <= MILLION && self.follow_ppm <= MILLION, SpecError::Share(number)),
            (self.stride_is_right(), SpecError::Stride(number)),
            (self.exponent_is_right(), SpecError::Exponent(number)),
            (self.depth_is_right(), SpecError::Depth(number)),
            (!matches!(self.pace, Pace::Open { interval_ns: 0, .. }), SpecError::Rate(number)),
            (!matches!(self.pace, Pace::Open { speed_ppm: 0, .. }), SpecError::Rate(number)),
            (self.bursts.is_none_or(|b| b.on_ns > 0 && b.on_ns.max(b.off_ns) <= YEAR_NS), SpecError::Bursts(number)),
            (self.shift.is_none_or(|shift| self.shift_is_right(shift)), SpecError::Shift(number)),
        ];
        checks.into_iter().try_for_each(|(right, error)| if right { Ok(()) } else { Err(error) })
    }

    fn stride_is_right(&self) -> bool {
        self.stride_bytes.is_none_or(|stride| {
            let distance = stride.unsigned_abs();
            let fits = distance > 0 && distance <= self.area_bytes && distance.is_multiple_of(self.align_bytes);
            fits && self.place == Place::Sequential
        })
    }

    fn exponent_is_right(&self) -> bool {
        !matches!(self.place, Place::Zipf { exponent } if !(exponent > 0.0 && exponent <= 10.0))
    }

    fn depth_is_right(&self) -> bool {
        !matches!(self.pace, Pace::Closed { depth, .. } if !(1..=OUTSTANDING_MAX).contains(&depth))
    }

    fn shift_is_right(&self, shift: Shift) -> bool {
        let moves = !matches!(shift.every, Every::Requests(0) | Every::Time(0));
        moves && shift.by_bytes > 0 && shift.within_bytes >= self.area_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_checked_before_it_runs() {
        let check = |stream: Stream| Spec { seed: 1, streams: vec![stream] }.check();
        let right = Stream::default();
        assert_eq!(check(right.clone()), Ok(()));
        assert_eq!(check(Stream { sizes: vec![(1, 0)], ..right.clone() }), Err(SpecError::Sizes(1)));
        assert_eq!(check(Stream { area_bytes: 4000, ..right.clone() }), Err(SpecError::Area(1, 4096, 4000)));
        assert_eq!(check(Stream { area_start: u64::MAX, ..right.clone() }), Err(SpecError::Far(1)));
        let stride = |place, stride_bytes| Stream { place, stride_bytes: Some(stride_bytes), ..right.clone() };
        assert_eq!(check(stride(Place::Sequential, -8192)), Ok(()));
        for wrong in [stride(Place::Uniform, 8192), stride(Place::Sequential, 0), stride(Place::Sequential, 100)] {
            assert_eq!(check(wrong), Err(SpecError::Stride(1)));
        }
        assert_eq!(check(stride(Place::Sequential, i64::MIN)), Err(SpecError::Stride(1)));
        assert_eq!(check(Stream { place: Place::Zipf { exponent: f64::NAN }, ..right }), Err(SpecError::Exponent(1)));
        assert_eq!(Spec { seed: 1, streams: vec![] }.check(), Err(SpecError::Streams(0)));
    }

    #[test]
    fn bursts_leave_gaps() {
        let bursts = Bursts { on_ns: 10, off_ns: 90 };
        assert_eq!([0, 9, 10, 99, 100].map(|at| bursts.gate(at)), [0, 9, 100, 100, 100]);
        assert_eq!([0, 9, 10, 25].map(|active| bursts.stretch(active)), [0, 9, 100, 205]);
        assert_eq!([10, 11, 100, 115].map(|at| bursts.pauses(at)), [0, 1, 90, 95]);
    }
}

//! The position of a sector: zone, cylinder, head, and the angle at which it passes the head.
//!
//! ```text
//!   a zone: tracks of equal length, numbered in the order in which they are filled
//!
//!   band of 3 cylinders, serpentine          band of 1, not serpentine: the classic layout
//!   head 0   0 1 2 │11 10 9 │                0  2  4
//!   head 1   5 4 3 │ 6  7 8 │                1  3  5
//! ```
//!
//! An angle is a time, the nanoseconds since the index mark passed, less than one revolution. So angles are exact and
//! the rotational wait is a subtraction. The first sector of each track is shifted by a skew against the track before,
//! so that it arrives just after the head has moved there.
//!
//! Source: the `g1` and `g4` layouts of DiskSim 4.0 (Bucy, Schindler, Schlosser, Ganger: CMU-PDL-08-101, section 2 of
//! the diskmodel manual), reduced to named parameters. Downside: slipped and remapped sectors are not in their places;
//! spare space is at the end of its zone.

use engine::units::Nanos;

/// The rotation, with a fast division by its period: most of the cost of choosing among many requests.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    period_ns: Nanos,
    /// 2^64 / period.
    inverse: u64,
}

impl Rotation {
    /// Platters with the period `period_ns`, more than 1.
    pub fn new(period_ns: Nanos) -> Rotation {
        Rotation { period_ns, inverse: (u128::from(u64::MAX) / u128::from(period_ns)) as u64 }
    }

    /// The time of one revolution.
    pub fn period_ns(&self) -> Nanos {
        self.period_ns
    }

    /// `time mod period`, the angle at that time. The inverse is rounded down, so the quotient is exact or one too
    /// small.
    #[inline]
    pub fn angle_at(&self, time: Nanos) -> Nanos {
        let turns = ((u128::from(time) * u128::from(self.inverse)) >> 64) as u64;
        let rest = time - turns * self.period_ns;
        if rest < self.period_ns { rest } else { rest - self.period_ns }
    }

    /// Rotational wait from one angle to another.
    #[inline]
    pub fn wait_ns(&self, from_ns: Nanos, to_ns: Nanos) -> Nanos {
        if to_ns >= from_ns { to_ns - from_ns } else { to_ns + self.period_ns - from_ns }
    }
}

/// A zone: cylinders with the same number of sectors per track.
#[derive(Clone, Debug)]
pub struct Zone {
    /// Its first sector on the drive.
    pub first_sector: u64,
    /// Sectors in it that hold data.
    pub sectors: u64,
    /// Its outermost cylinder.
    pub first_cylinder: u32,
    /// Cylinders in it.
    pub cylinders: u32,
    /// Sectors of each track.
    pub sectors_per_track: u32,
    /// The skews between its tracks.
    pub skew: Skew,
}

/// How much later, in nanoseconds of rotation, the first sector of a track begins than that of the track before it.
#[derive(Clone, Copy, Debug)]
pub struct Skew {
    /// To the next cylinder of the band, under the same head.
    pub track_ns: Nanos,
    /// To the next head of the same band.
    pub head_ns: Nanos,
    /// In the next band.
    pub band_ns: Nanos,
}

/// The position of a sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Index of its zone.
    pub zone: u32,
    /// Its track in the zone.
    pub track: u32,
    /// Its number on the track.
    pub sector: u32,
    /// The cylinder of the track.
    pub cylinder: u32,
    /// The head of the track.
    pub head: u32,
    /// The angle at which the track begins.
    pub track_angle_ns: Nanos,
}

/// The layout of a drive.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// The rotation speed.
    pub rotation: Rotation,
    /// From the outside in, with consecutive sectors.
    pub zones: Vec<Zone>,
    /// Surfaces.
    pub heads: u32,
    /// Cylinders that are filled under one head before the next head.
    pub band_cylinders: u32,
    /// Heads and directions alternate, which shortens arm movements.
    pub serpentine: bool,
}

impl Geometry {
    /// Number of sectors.
    pub fn sectors(&self) -> u64 {
        self.zones.last().map_or(0, |zone| zone.first_sector + zone.sectors)
    }

    /// The position of `sector`, which must be on the drive.
    pub fn place(&self, sector: u64) -> Place {
        let zone = self.zones.partition_point(|zone| zone.first_sector <= sector) - 1;
        let (index, z) = (zone as u32, &self.zones[zone]);
        let in_zone = sector - z.first_sector;
        let per_track = u64::from(z.sectors_per_track);
        self.on_track(index, (in_zone / per_track) as u32, (in_zone % per_track) as u32)
    }

    /// The position of sector `sector` on `track` of a zone.
    pub fn on_track(&self, zone: u32, track: u32, sector: u32) -> Place {
        let z = &self.zones[zone as usize];
        let full = self.band_cylinders * self.heads;
        let (band, in_band) = (track / full, track % full);
        // The last band of a zone may be narrower.
        let width = self.band_cylinders.min(z.cylinders - band * self.band_cylinders);
        let (turn, step) = (in_band / width, in_band % width);
        let head = if self.serpentine && band % 2 == 1 { self.heads - 1 - turn } else { turn };
        let offset = if self.serpentine && turn % 2 == 1 { width - 1 - step } else { step };
        let cylinder = z.first_cylinder + band * self.band_cylinders + offset;
        let head_changes = u64::from(band) * u64::from(self.heads - 1) + u64::from(turn);
        let steps = u64::from(track) - head_changes - u64::from(band);
        let Skew { track_ns, head_ns, band_ns } = z.skew;
        let skew_ns = steps * track_ns + head_changes * head_ns + u64::from(band) * band_ns;
        Place { zone, track, sector, cylinder, head, track_angle_ns: self.rotation.angle_at(skew_ns) }
    }

    /// The time in which the first `sectors` of a track of this zone pass.
    pub fn along_ns(&self, zone: u32, sectors: u32) -> Nanos {
        u64::from(sectors) * self.rotation.period_ns / u64::from(self.zones[zone as usize].sectors_per_track)
    }

    /// The angle at which a sector begins.
    pub fn angle_ns(&self, place: &Place) -> Nanos {
        let angle = place.track_angle_ns + self.along_ns(place.zone, place.sector);
        self.rotation.angle_at(angle)
    }

    /// Number of sectors on the track of `place` that hold data, from it to the end.
    pub fn left_on_track(&self, place: &Place) -> u64 {
        let z = &self.zones[place.zone as usize];
        let per_track = u64::from(z.sectors_per_track);
        let start = u64::from(place.track) * per_track;
        per_track.min(z.sectors - start) - u64::from(place.sector)
    }

    /// After the last sector of the track that holds `sector`.
    pub fn track_end(&self, sector: u64) -> u64 {
        sector + self.left_on_track(&self.place(sector))
    }

    /// The sector at a position.
    pub fn sector(&self, place: &Place) -> u64 {
        let z = &self.zones[place.zone as usize];
        z.first_sector + u64::from(place.track) * u64::from(z.sectors_per_track) + u64::from(place.sector)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn geometry() -> impl Strategy<Value = Geometry> {
        let skews = (0u64..1000, 0u64..1000, 0u64..1000);
        let zone = (1u32..12, 1u32..30, 1u32..5, 0u64..4, skews);
        (1u32..5, 1u32..6, any::<bool>(), prop::collection::vec(zone, 1..4)).prop_map(
            |(heads, band_cylinders, serpentine, zones)| {
                let (mut cylinder, mut sector) = (0, 0);
                let zones = zones
                    .into_iter()
                    .map(|(cylinders, sectors_per_track, gap, spare, (track_ns, head_ns, band_ns))| {
                        let all = u64::from(cylinders * heads * sectors_per_track);
                        let sectors = all.saturating_sub(spare).max(1);
                        let zone = Zone {
                            first_sector: sector,
                            sectors,
                            first_cylinder: cylinder,
                            cylinders,
                            sectors_per_track,
                            skew: Skew { track_ns, head_ns, band_ns },
                        };
                        cylinder += cylinders + gap;
                        sector += sectors;
                        zone
                    })
                    .collect();
                Geometry { rotation: Rotation::new(8_333_333), zones, heads, band_cylinders, serpentine }
            },
        )
    }

    proptest! {
        /// The fast division gives the exact remainder.
        #[test]
        fn angles_are_times_modulo_the_period(time: u64, period_ns in 2u64..1 << 32) {
            prop_assert_eq!(Rotation::new(period_ns).angle_at(time), time % period_ns);
            let turns = time / period_ns * period_ns;
            prop_assert_eq!(Rotation::new(period_ns).angle_at(turns), 0);
        }

        /// Every sector has a distinct position, and the position maps back to the sector.
        #[test]
        fn sectors_and_places_are_one_to_one(geometry in geometry()) {
            let mut seen = BTreeSet::new();
            for sector in 0..geometry.sectors() {
                let place = geometry.place(sector);
                prop_assert_eq!(geometry.sector(&place), sector);
                let end = geometry.track_end(sector);
                let beyond = (end < geometry.sectors()).then(|| geometry.place(end));
                let is_same = |other: Place| (other.zone, other.track) == (place.zone, place.track);
                prop_assert!(is_same(geometry.place(end - 1)) && !beyond.is_some_and(is_same), "{sector} {end}");
                prop_assert!(place.head < geometry.heads);
                let zone = &geometry.zones[place.zone as usize];
                prop_assert!((zone.first_cylinder..zone.first_cylinder + zone.cylinders).contains(&place.cylinder));
                prop_assert!(seen.insert((place.cylinder, place.head, place.sector)), "{:?} twice", place);
            }
        }

        /// On a track, later sectors have later angles, and the track takes one revolution.
        #[test]
        fn angles_grow_along_a_track(geometry in geometry()) {
            for (index, zone) in geometry.zones.iter().enumerate() {
                let index = index as u32;
                prop_assert_eq!(geometry.along_ns(index, zone.sectors_per_track), geometry.rotation.period_ns());
                for sector in 0..zone.sectors_per_track {
                    prop_assert!(geometry.along_ns(index, sector) < geometry.along_ns(index, sector + 1));
                }
            }
            for sector in 0..geometry.sectors() {
                prop_assert!(geometry.angle_ns(&geometry.place(sector)) < geometry.rotation.period_ns());
            }
        }

        /// The order of sectors follows the bands: the arm never moves back further than a band.
        #[test]
        fn cylinders_grow_band_by_band(geometry in geometry()) {
            let mut furthest = 0;
            for sector in 0..geometry.sectors() {
                let cylinder = geometry.place(sector).cylinder;
                prop_assert!(cylinder + geometry.band_cylinders > furthest);
                furthest = furthest.max(cylinder);
            }
        }
    }

    #[test]
    fn a_serpentine_band_goes_out_and_back() {
        let skew = Skew { track_ns: 1, head_ns: 10, band_ns: 100 };
        let zone = Zone { first_sector: 0, sectors: 24, first_cylinder: 0, cylinders: 6, sectors_per_track: 2, skew };
        let geometry = Geometry {
            rotation: Rotation::new(1000),
            zones: vec![zone],
            heads: 2,
            band_cylinders: 3,
            serpentine: true,
        };
        let places: Vec<_> = (0..24).step_by(2).map(|sector| geometry.place(sector)).collect();
        let cylinders: Vec<_> = places.iter().map(|place| place.cylinder).collect();
        let heads: Vec<_> = places.iter().map(|place| place.head).collect();
        let angles: Vec<_> = places.iter().map(|place| place.track_angle_ns).collect();
        assert_eq!(cylinders, [0, 1, 2, 2, 1, 0, 3, 4, 5, 5, 4, 3]);
        assert_eq!(heads, [0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0]);
        assert_eq!(angles, [0, 1, 2, 12, 13, 14, 114, 115, 116, 126, 127, 128]);
    }
}

//! Never-written space is filled with zeros while the disk is idle, so that later writes need no allocation.

use super::range::ZEROS_BYTES;
use super::{Timer, Volumes};
use crate::disk::Op;
use crate::ids::VolumeId;
use crate::units::MILLISECOND;

impl Volumes {
    /// Looks for never-written space when the disk has been idle.
    pub(crate) fn initialise_soon(&mut self) {
        self.timers.wake_at(Timer::Initialise, self.now + self.config.idle_ns);
    }

    /// Fills some never-written space of each volume with zeros if no client has sent a request for a while.
    pub(crate) fn initialise_all(&mut self) {
        for volume in (0..self.table.past()).map(VolumeId) {
            if self.table.contains(volume) {
                self.initialise(volume);
            }
        }
    }

    fn initialise(&mut self, volume: VolumeId) {
        let state = self.volume(volume);
        if !state.initialising || state.is_closing() || self.draining.is_some() {
            return;
        }
        let Some(hole) = state.holes.first(ZEROS_BYTES) else {
            self.volume_mut(volume).initialising = false;
            return;
        };
        let quiet_at = self.last_request_at + self.config.idle_ns;
        if self.now < quiet_at || !self.route.disk.is_idle() || !self.agenda_has_no_ranges() {
            // The disk is in use. Try again after the idle time, not at each request.
            return self.timers.wake_at(Timer::Initialise, quiet_at.max(self.now + 20 * MILLISECOND));
        }
        let hole = (hole.start, hole.end);
        self.range_arrived(volume, hole, hole, Some(Op::Write { durable: false }), None, false);
    }

    fn agenda_has_no_ranges(&self) -> bool {
        self.table.values().all(|volume| volume.ranges.is_empty())
    }
}

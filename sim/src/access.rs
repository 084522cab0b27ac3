//! Access control: which clients may open a volume, and what happens to clients that lose their access.
//!
//! The driver names the clients that lose their access, and the engine disconnects them. If the volume becomes
//! read-only, the engine also disconnects every session that may write. From then on nothing is received from these
//! clients. When the change is answered, every acknowledged write is on the medium and the volume has no dirty data.

use engine::control::Command;
use engine::ids::VolumeId;
use engine::units::{MILLISECOND, Nanos};

use crate::Verdict;
use crate::history::Step;
use crate::link::State;
use crate::operator::Ask;
use crate::rng::Rng;
use crate::world::{Wake, World};

/// The identity of a client, as a user id or a certificate is to the server.
pub type Client = u64;
/// Number of client identities.
pub(crate) const CLIENTS: u64 = 3;
/// Maximum time until the restriction is lifted again.
const RESTRICTED_NS: Nanos = 300 * MILLISECOND;
/// Retry interval while another change of the volume is in progress.
const AGAIN_NS: Nanos = 50 * MILLISECOND;

/// What a client may do with a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Grant {
    /// Read.
    Read,
    /// Read and write.
    Write,
}

/// The access rights of a volume.
#[derive(Clone, Default, Debug)]
pub struct Access {
    /// The grant of each client; `None`: all clients may read and write.
    allow: Option<[Option<Grant>; CLIENTS as usize]>,
    /// No client may write.
    pub read_only: bool,
}

impl Access {
    fn random(rng: &mut Rng) -> Access {
        let mut grant = || rng.pick(&[None, Some(Grant::Read), Some(Grant::Write), Some(Grant::Write)]);
        let allow = [(); CLIENTS as usize].map(|()| grant());
        Access { allow: (!rng.one_in(4)).then_some(allow), read_only: rng.one_in(2) }
    }

    /// The grant of a client; `None`: it may not open the volume.
    pub fn grant(&self, client: Client) -> Option<Grant> {
        let grant = self.allow.map_or(Some(Grant::Write), |allow| allow[client as usize]);
        if self.read_only { grant.min(Some(Grant::Read)) } else { grant }
    }
}

impl World {
    /// The operator changes the access rights; after at most `RESTRICTED_NS` the restriction is lifted.
    pub(crate) fn restrict(&mut self, at: usize) -> Verdict {
        if !self.can_change_access(at) {
            return Ok(());
        }
        let delay_ns = self.rng.between(1, RESTRICTED_NS);
        self.queue.push(self.now + delay_ns, Wake::Admit(at));
        let access = Access::random(&mut self.rng);
        self.set_access(at, access)
    }

    /// Lifts the restriction: all clients may read and write again.
    pub(crate) fn admit(&mut self, at: usize) -> Verdict {
        if self.can_change_access(at) {
            return self.set_access(at, Access::default());
        }
        if self.volumes[at].open {
            self.queue.push(self.now + AGAIN_NS, Wake::Admit(at));
        } else {
            self.volumes[at].access = Access::default();
        }
        Ok(())
    }

    fn can_change_access(&self, at: usize) -> bool {
        let volume = &self.volumes[at];
        volume.open && !volume.closing && !self.draining && !self.is_asked(volume.setup.spec.volume)
    }

    fn set_access(&mut self, at: usize, access: Access) -> Verdict {
        let (volume, start) = (self.volumes[at].setup.spec.volume, self.step + 1);
        let read_only = access.read_only;
        let mut expelled = Vec::new();
        for link in self.links.values_mut().filter(|link| link.volume == volume && link.state != State::Closed) {
            let needs = if link.session.read_only { Grant::Read } else { Grant::Write };
            if access.grant(link.client) < Some(needs) {
                expelled.push(link.conn);
                link.revoked = true;
            }
        }
        self.volumes[at].access = access;
        if read_only {
            // Every session that may write is closed.
            let writers = self.links.values_mut().filter(|link| link.volume == volume && !link.session.read_only);
            writers.for_each(|link| link.revoked = true);
        }
        self.ask(Command::Restrict { volume, read_only, expelled }, Ask::Restrict(volume, start))?;
        let stays = |state: State| matches!(state, State::Open | State::Leaving);
        match self.links.values().find(|link| link.revoked && stays(link.state)) {
            Some(link) => Err(format!("{:?} lost its access to {volume:?} and is not closed", link.conn)),
            None => Ok(()),
        }
    }

    /// The change is answered: everything acknowledged on a read-only volume is on the medium.
    pub(crate) fn restricted(&mut self, volume: VolumeId) -> Verdict {
        if !self.volume(volume).access.read_only {
            return Ok(());
        }
        self.check_promised(volume)?;
        let snapshot = self.server.snapshot();
        match snapshot.volumes.iter().find(|stats| stats.volume == volume).filter(|stats| stats.dirty_blocks > 0) {
            Some(stats) => Err(format!("{volume:?} is read-only, and has {} dirty blocks", stats.dirty_blocks)),
            None => Ok(()),
        }
    }

    /// The volume could not be flushed and did not become read-only; the device must have caused that.
    pub(crate) fn not_restricted(&mut self, volume: VolumeId, start: Step) -> Verdict {
        let state = self.volume(volume);
        if !state.access.read_only || !state.trouble.excuses_flush(start) {
            return Err(format!("{volume:?} did not become read-only, but nothing has failed"));
        }
        state.access.read_only = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_only_volume_lets_nobody_write() {
        let allow = Some([None, Some(Grant::Read), Some(Grant::Write)]);
        let grants = |read_only| [0, 1, 2].map(|client| Access { allow, read_only }.grant(client));
        assert_eq!(grants(false), [None, Some(Grant::Read), Some(Grant::Write)]);
        assert_eq!(grants(true), [None, Some(Grant::Read), Some(Grant::Read)]);
        assert_eq!(Access::default().grant(2), Some(Grant::Write));
    }
}

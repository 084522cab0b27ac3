//! The disk thread's state of volumes on other servers, and of the connections there.

use std::os::fd::OwnedFd;

use engine::ids::{ConnId, TenantId, VolumeId};
use engine::upstream::LinkId;

use super::connection::Input;
use crate::upstream::Dialer;

/// Connections to other servers at most, of all volumes of a disk: the most that one striped volume can have.
pub const UPLINKS_MAX: u32 = 1024;

/// A volume on another server, or one of the exports that it is striped over.
#[derive(Debug)]
pub struct Away {
    /// Tells the openings of a number apart: news for an earlier one are dropped.
    pub serial: u64,
    /// The volume.
    pub volume: VolumeId,
    /// Connects.
    pub dialer: Dialer,
    /// Charged for the thread's time.
    pub tenant: TenantId,
    /// By [`LinkId`].
    pub links: Vec<State>,
}

impl Away {
    /// The state of a connection.
    pub fn link(&mut self, link: LinkId) -> &mut State {
        let at = link.0 as usize;
        if self.links.len() <= at {
            self.links.resize_with(at + 1, State::default);
        }
        &mut self.links[at]
    }
}

/// The state of a connection to another server.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum State {
    /// It does not exist, or is being watched by the dialer until the server ends it.
    #[default]
    None,
    /// It is being established.
    Dialling {
        /// It is not wanted any more.
        given_up: bool,
    },
    /// It has this slot.
    There(ConnId),
}

/// A connection to another server.
#[derive(Debug)]
pub struct Uplink {
    /// The number of the volume or of its export, and its opening.
    pub volume: VolumeId,
    /// See [`Away::serial`].
    pub serial: u64,
    /// Its place in the session.
    pub link: LinkId,
    /// Shares the connection with the reactor's descriptor: the connection lasts until both are closed.
    pub socket: OwnedFd,
    /// Received and not consumed.
    pub input: Input,
    /// Its phase.
    pub phase: Phase,
    /// Whether a receive is in flight.
    pub receiving: bool,
    /// Whether a send is in flight.
    pub sending: bool,
    /// Whether it is queued for sending in this pass.
    pub send_queued: bool,
}

/// The phase of a connection to another server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// In use.
    Open,
    /// The reactor is closing it.
    Closing {
        /// The server has ended it.
        ended: bool,
    },
}

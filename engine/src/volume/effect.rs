//! What the volumes ask for, in order: of the driver, of the front, and of control.

use std::collections::VecDeque;

use super::Kind;
use crate::cache::ByteWork;
use crate::errno::Errno;
use crate::ids::{ConnId, FrameId, IoId, TenantId, VolumeId};
use crate::spec::Refusal;
use crate::units::Nanos;
use crate::upstream;

/// A wish of this layer.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Copy bytes of a frame to the same place of another one.
    Copy { from: FrameId, to: FrameId, start: u16, len: u16 },
    /// Zero bytes of a frame.
    Zero { frame: FrameId, start: u16, len: u16 },
    /// Give a request to the device.
    Submit(IoId),
    /// Compute the checksum of a request's segments, for [`Volumes::summed`](super::Volumes::summed).
    Sum(IoId),
    /// A tenant has work for a later quantum.
    Work(TenantId),
    /// The frames of a piece of a read are to be sent. The front takes them over and frees the piece.
    Data(Data),
    /// The extents of a range are to be sent, one or as many as fit.
    Extents { conn: ConnId, cookie: u64, volume: VolumeId, start: u64, end: u64, one: bool },
    /// A request is complete: it is to be answered and counted.
    Answer(Answer),
    /// Whether a connection is to be read may have changed.
    Recheck(ConnId),
    /// The same for all connections of a volume.
    RecheckVolume(VolumeId),
    /// The same for all connections of a tenant.
    RecheckTenant(TenantId),
    /// The upstream of a volume asks the driver.
    Upstream(VolumeId, upstream::Request),
    /// Nothing refers to this connection any more.
    Gone(ConnId),
    /// The command with this token is complete, or failed.
    Done(u64, Result<(), Refusal>),
    /// The drain with this token is complete. The flushes of these volumes failed.
    Drained(u64, Vec<VolumeId>),
}

/// The data of a piece of a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data {
    pub(crate) conn: ConnId,
    pub(crate) cookie: u64,
    /// The first byte of the request.
    pub(crate) offset: u64,
    pub(crate) piece: u32,
    /// It is the first part of the reply.
    pub(crate) first: bool,
    /// It is the last one.
    pub(crate) last: bool,
    /// It must be sent as data in one part, holes too (DF).
    pub(crate) unsplit: bool,
}

/// A complete request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) conn: ConnId,
    pub(crate) volume: VolumeId,
    pub(crate) kind: Kind,
    pub(crate) cookie: u64,
    /// The first byte of the request.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) arrived: Nanos,
    pub(crate) error: Option<Errno>,
    /// It waited for the device.
    pub(crate) missed: bool,
    /// Data was sent before.
    pub(crate) begun: bool,
    /// The last part of the data was sent as such.
    pub(crate) ended: bool,
}

/// The wishes that the layer above has not taken yet, oldest first. The buffer is reused.
#[derive(Default, Debug)]
pub(crate) struct Effects(VecDeque<Effect>);

impl Effects {
    pub(crate) fn push(&mut self, effect: Effect) {
        self.0.push_back(effect);
    }

    pub(crate) fn pop(&mut self) -> Option<Effect> {
        self.0.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl ByteWork for Effects {
    fn copy(&mut self, from: FrameId, to: FrameId, start: u64, end: u64) {
        self.push(Effect::Copy { from, to, start: start as u16, len: (end - start) as u16 });
    }

    fn zero(&mut self, frame: FrameId, start: u64, end: u64) {
        self.push(Effect::Zero { frame, start: start as u16, len: (end - start) as u16 });
    }
}

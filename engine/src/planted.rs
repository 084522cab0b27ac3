//! Planted bugs: each is a mistake that a block server could really make, compiled in only with the feature
//! `planted-bugs` and active only where a test plants it. They prove that the checkers of `sim` see.
//!
//! One feature and a choice at run time, rather than a feature each: one build shows all of them.

use std::cell::Cell;

macro_rules! bugs {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// What can be planted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Bug { $($(#[$doc])* $name),+ }

        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$name),+];

            /// Its name, as `--bug` takes it.
            pub fn name(self) -> &'static str {
                match self { $(Bug::$name => stringify!($name)),+ }
            }
        }
    };
}

bugs! {
    /// A flush is answered without waiting for dirty blocks.
    FlushDoesNotWait,
    /// A flush waits for write-back but does not flush the device.
    FlushSkipsDevice,
    /// A write to a block that is being filled overtakes those that wait for it.
    OverlappingWritesReordered,
    /// Eviction takes dirty blocks too.
    DirtyBlockLostOnEviction,
    /// The last sector that a write touches is not marked.
    SectorMaskWrong,
    /// A failed device write is taken for a good one.
    ErrorAcknowledged,
    /// A write goes into the frame that is there, even while it is being sent or written.
    FrameChangedWhileWritten,
    /// Frames of a reply are freed when it is queued, not when it was sent.
    FrameFreedWhileSent,
    /// FUA is acknowledged after an ordinary write.
    FuaNotDurable,
    /// What a fill read replaces sectors that were written meanwhile.
    FillOverwritesDirty,
    /// After a failed device flush the next one succeeds without rewriting anything.
    FailedFlushForgotten,
    /// A failed device flush concerns only the volume whose flush it was.
    FailedFlushConcernsOneVolume,
    /// A failed durable write is not taken for a failed flush of the device.
    FailedDurableWriteIgnored,
    /// A flush that was in the device when another volume's failed counts when it succeeds.
    InFlightFlushTrusted,
    /// A write that was in the device when a flush failed counts when it succeeds.
    InFlightWriteTrusted,
    /// What a killed process wrote and nobody flushed counts as flushed when its successor opens the volume.
    OpenedAsFlushed,
    /// `clear` does not remember that what it gives up has an older content which no flush covers.
    ClearForgetsEvictions,
    /// A volume's write cache is changed without the flush that brings what is there to the new promise.
    WriteCacheChangedUnflushed,
    /// Who waited behind a range goes on though it overlaps another one.
    OrderWaitsOnce,
    /// A server's successor opens volumes while requests of its predecessor can still reach the device.
    SuccessorDoesNotWait,
    /// TRIM drops dirty blocks that a flush is waiting for.
    TrimDropsFlushing,
    /// A zeroed range does not wait for device requests that overlap it.
    ZeroRangeIgnoresInFlight,
    /// What is read ahead does not wait for ranges being zeroed.
    PrefetchOvertakesRange,
    /// A write does not end the hole that it fills.
    HoleNotForgotten,
    /// A write enters the partition when its payload has only begun to arrive.
    PartialPayloadVisible,
    /// A reply carries the cookie of the connection's previous request.
    ReplyCookieMixedUp,
    /// Frames reserved for a payload are forgotten when its client vanishes.
    FrameLeakedOnVanish,
    /// A flush waits until nothing is dirty, rather than for what was dirty when it came.
    FlushWaitsForLaterWrites,
    /// Replies that are not read may take all of a partition.
    UnsentNotBounded,
    /// Replies that clients of one volume do not read may take all frames that other volumes' replies need.
    UnsentTakeAllFrames,
    /// Closing a volume drops its dirt though it was to be flushed.
    CloseDropsDirt,
    /// A tenant keeps count of a volume that was closed.
    ClosedVolumeStillCounted,
    /// A block that could not be written once counts as such for ever.
    MendedBlockStillFailing,
    /// FUA succeeds though earlier blocks could not be written.
    FuaIgnoresFailedBlocks,
    /// Who waits is looked at once per moment, as if two events could not come at the same one.
    WaitersWokenOncePerMoment,
    /// The next slice begins while requests of the one before are in the device.
    SliceNotDrained,
    /// A slice that ends because its owner has nothing to do is in no book.
    IdleSliceNotBooked,
    /// The disk stays with a tenant as long as it has something to do.
    TurnNotPassed,
    /// A new policy is told of requests that the one before gave to the device.
    OldRequestsReported,
    /// Partitions are a little larger than what there is to be divided.
    PartitionsTooLarge,
    /// What an admitted tenant needs is lent to others.
    AdmittedShrunk,
    /// An event does all the work that it makes possible at once.
    StepsNotBounded,
    /// A frame that was given up goes to the free frames when it becomes free.
    RetiredFrameUsedAgain,
    /// Clean blocks keep the frames that were given up.
    FramesNeverRetire,
    /// Requests of one tenant that hang leave no place in the device to others.
    HungRequestsTakeAllPlaces,
    /// A slice does not end as long as one of its requests hangs.
    HungRequestHoldsSlice,
    /// A volume is closed, and its frames are free, while requests for it are in the device.
    ClosedBesideDeviceRequests,
    /// Who stops in the middle of a payload is never disconnected.
    StalledNotDisconnected,
    /// Payloads that are not sent may have all frames of a tenant, those for its other volumes too.
    StalledTakeAllFrames,
    /// A client that lost its access to a volume goes on.
    RevokedClientStays,
    /// A volume becomes read-only without the flush that makes its content final.
    ReadOnlyNotFlushed,
    /// A session that may read only may write too.
    ReadOnlySessionWrites,
    /// Who asks for a volume that there is not, or not for it, gets another one.
    UnknownNameOpensAnother,
    /// A metadata context that was selected for one export is taken for selected for another.
    ContextOfAnotherExport,
    /// What was negotiated before TLS holds after it.
    AgreedInClearKept,
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plant a bug in every engine of this thread, or remove it.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether it was asked before at the same moment.
pub(crate) fn seen(now: u64) -> bool {
    thread_local! {
        static SEEN: Cell<u64> = const { Cell::new(u64::MAX) };
    }
    SEEN.replace(now) == now
}

/// Whether this bug is planted in this thread. A simulated driver plants its own ones here too.
pub fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

//! Planted bugs: each is a plausible mistake of a block server. They are compiled in only with the feature
//! `planted-bugs`, and a bug is active only in a test that plants it. They prove that the checkers of `sim` detect such
//! mistakes.
//!
//! One feature and a choice at run time, rather than one feature per bug: a single build can test all of them.

use std::cell::Cell;

macro_rules! bugs {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// The bugs that can be planted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Bug { $($(#[$doc])* $name),+ }

        impl Bug {
            /// All bugs.
            pub const ALL: &[Bug] = &[$(Bug::$name),+];

            /// Its name, as `--bug` takes it.
            pub fn name(self) -> &'static str {
                match self { $(Bug::$name => stringify!($name)),+ }
            }
        }
    };
}

bugs! {
    /// The end of a lease is not noticed.
    LeaseIgnored,
    /// A lease is renewed from the time of a reply.
    LeaseFromReply,
    /// A client in whose place another one was admitted still answers from its cache.
    FencedReadsCache,
    /// What was not written when another client was admitted keeps its frames.
    FencedDirtKept,
    /// What waits for a lease waits for a session, not for an answer that renews it.
    RenewedNotNoticed,
    /// A server ends a lease when half of it has passed.
    LeaseEndedEarly,
    /// A server takes a session with a lease to have ended with its connections.
    LeaseEndsWithConnection,
    /// A server that restarts takes no client to have a lease.
    RestartEndsLeases,
    /// A flush is answered before the dirty blocks are written.
    FlushDoesNotWait,
    /// A flush waits for write-back but does not flush the device.
    FlushSkipsDevice,
    /// A write to a block that is being filled overtakes the writes that wait for that block.
    OverlappingWritesReordered,
    /// Eviction also takes dirty blocks.
    DirtyBlockLostOnEviction,
    /// The last sector of a write is not marked dirty.
    SectorMaskWrong,
    /// A failed device write counts as successful.
    ErrorAcknowledged,
    /// A write goes into the block's present frame even while that frame is being sent or written.
    FrameChangedWhileWritten,
    /// Frames of a reply are freed when the reply is queued, not when it was sent.
    FrameFreedWhileSent,
    /// FUA is acknowledged after an ordinary write.
    FuaNotDurable,
    /// A durable write is answered when a device write of its block succeeds that began before it.
    EarlierWriteCovers,
    /// Data that a fill read from the device replaces sectors that were written meanwhile.
    FillOverwritesDirty,
    /// After a failed device flush the next one succeeds, without rewriting anything.
    FailedFlushForgotten,
    /// A failed device flush affects only the volume that flushed.
    FailedFlushConcernsOneVolume,
    /// A failed durable write does not count as a failed flush of the device.
    FailedDurableWriteIgnored,
    /// A flush that was in the device when another volume's flush failed is trusted when it succeeds.
    InFlightFlushTrusted,
    /// A write that was in the device when a flush failed is trusted when it succeeds.
    InFlightWriteTrusted,
    /// Unflushed data that a killed process wrote counts as flushed when its successor opens the volume.
    OpenedAsFlushed,
    /// `clear` does not remember that a block that it gives up has older content that no flush covers.
    ClearForgetsEvictions,
    /// A volume's write cache mode changes without the flush that makes acknowledged data keep the new mode's promise.
    WriteCacheChangedUnflushed,
    /// A request that is processed in pieces takes from the ceilings what its first piece takes.
    CeilingChargesFirstPiece,
    /// Guarantees count what the device has read and written, read-ahead included, as delivered.
    DeviceBytesDelivered,
    /// A request that waited for an overlapping one continues although it also overlaps another one.
    OrderWaitsOnce,
    /// A server's successor opens volumes while requests of its predecessor can still reach the device.
    SuccessorDoesNotWait,
    /// TRIM drops dirty blocks that a flush waits for.
    TrimDropsFlushing,
    /// Zeroing a range does not wait for device requests that overlap it.
    ZeroRangeIgnoresInFlight,
    /// Prefetching does not wait for ranges that are being zeroed.
    PrefetchOvertakesRange,
    /// A write into a hole does not remove the hole.
    HoleNotForgotten,
    /// A write takes effect when only the beginning of its payload has arrived.
    PartialPayloadVisible,
    /// A reply carries the cookie of the connection's previous request.
    ReplyCookieMixedUp,
    /// Frames that are reserved for a payload are leaked when the client disconnects.
    FrameLeakedOnVanish,
    /// A flush waits until nothing is dirty, not only for the data that was dirty when the flush arrived.
    FlushWaitsForLaterWrites,
    /// Replies of stalled readers may occupy a whole partition.
    UnsentNotBounded,
    /// Replies of stalled readers of one volume may occupy all frames that replies of other volumes need.
    UnsentTakeAllFrames,
    /// Closing a volume drops its dirty data although it was to be flushed.
    CloseDropsDirt,
    /// A closed volume still counts as a volume of its tenant.
    ClosedVolumeStillCounted,
    /// A block whose write failed once counts as failing forever.
    MendedBlockStillFailing,
    /// FUA succeeds although earlier blocks could not be written.
    FuaIgnoresFailedBlocks,
    /// Waiting requests are checked once per point in time, as if no two events could have the same time.
    WaitersWokenOncePerMoment,
    /// The next slice begins while requests of the previous one are in the device.
    SliceNotDrained,
    /// A slice that ends because its owner has no requests is missing in the accounting.
    IdleSliceNotBooked,
    /// The disk stays with a tenant as long as that tenant has requests.
    TurnNotPassed,
    /// A new policy receives completions of requests that the previous policy issued.
    OldRequestsReported,
    /// The partitions together are slightly larger than the memory.
    PartitionsTooLarge,
    /// Frames that an admitted tenant needs are lent to others.
    AdmittedShrunk,
    /// Targets for tenants or a memory that have changed meanwhile are executed.
    StaleTargetsApplied,
    /// The CPU scheduler forgets by how much a tenant exceeded its quantum.
    DeficitForgotten,
    /// The CPU scheduler gives a quantum to each connection of a tenant.
    QuantumPerConnection,
    /// The work of a tenant's backlog is not charged to its quanta.
    BacklogNotCharged,
    /// One event does all work that it makes possible.
    StepsNotBounded,
    /// A retired frame returns to the free list.
    RetiredFrameUsedAgain,
    /// Clean blocks keep frames that are to be retired.
    FramesNeverRetire,
    /// Hung requests of one tenant occupy the whole device queue.
    HungRequestsTakeAllPlaces,
    /// A slice does not end while one of its requests hangs.
    HungRequestHoldsSlice,
    /// A volume is closed, and its frames are freed, while its requests are in the device.
    ClosedBesideDeviceRequests,
    /// A client that stops sending in the middle of a payload is never disconnected.
    StalledNotDisconnected,
    /// Unsent payloads may occupy all frames of a tenant, including those for its other volumes.
    StalledTakeAllFrames,
    /// A client whose access to a volume was revoked is not disconnected.
    RevokedClientStays,
    /// A volume becomes read-only without the flush that makes its content final.
    ReadOnlyNotFlushed,
    /// A read-only session may write.
    ReadOnlySessionWrites,
    /// A client that asks for a volume that does not exist, or that it may not open, gets another volume.
    UnknownNameOpensAnother,
    /// A metadata context that was selected for one export is used for another one.
    ContextOfAnotherExport,
    /// Options negotiated before STARTTLS stay valid after it.
    AgreedInClearKept,
    /// Acknowledged writes are not repeated when the session in which they were made is lost.
    LostSessionForgotten,
    /// The lost session of a leg of a striped volume is forgotten, unless it is the first one.
    LostLegForgotten,
    /// A flush of a striped volume goes to the first leg that was written to only.
    FlushSkipsLeg,
    /// Of a transfer that begins on the last leg, the part on the first one is in the row of units before.
    FragmentInWrongRow,
    /// A write that one leg has answered and another one not yet is trusted although the first one's session was lost.
    AnsweredPartTrusted,
    /// A leg whose flush ended without a result is not flushed again, unless it is written to.
    VoidedLegClean,
    /// A flush whose session was lost counts as done, before what it covers is written again.
    VoidFlushAnswered,
    /// Zeroed ranges are forgotten when a session is lost.
    ZeroedForgotten,
    /// A range that is to be zeroed drops blocks that the server may still lose.
    KeptSwept,
    /// Zeroed ranges are zeroed again in the next session although they were written since.
    ZeroedAgainOverWrites,
    /// A flush also counts for what was written while it was in progress.
    FlushCoversLaterWrites,
    /// Requests are sent while retained zeros that they overlap are outstanding.
    OverlapInFlight,
    /// The volume under the name of an export is not compared.
    IdentityNotChecked,
    /// Blocks that a server can still lose are evicted.
    UnsettledEvicted,
    /// The first session does not flush what an earlier process of the client has written.
    InheritedNotFlushed,
    /// A stranger's server gets requests again before it has ended the connections on which they were sent.
    RepeatedBeforeEnded,
    /// A server admits a session with an epoch below the recorded one.
    EarlierEpochAdmitted,
    /// A claim does not say which session it continues.
    ClaimContinuesNothing,
    /// A server does not close the connections of earlier sessions.
    EarlierSessionKept,
    /// A write goes to the base while a store may have a version of its range.
    BaseWrittenWhileAway,
    /// A write is acknowledged when one copy of it is durable, however many are asked for.
    OneCopyIsEnough,
    /// A record of a store's log is acknowledged before an earlier one is durable.
    AcknowledgedOutOfOrder,
    /// The tail of a store's log passes records that are needed.
    TailMovedEarly,
    /// The head of a store's log passes its durable tail.
    HeadPassesTail,
    /// A new process appends to a store's log where writes of an earlier one may still land.
    LateWritesInLog,
    /// Recovery takes a record whose data is not what was written.
    ChecksumNotChecked,
    /// Of two versions of a block, recovery takes the older one.
    OlderVersionWins,
    /// A store that was away is not told which of its versions were deleted meanwhile.
    DeletionForgotten,
    /// The highest version of a block is deleted while a lower one remains.
    HighestDeletedFirst,
    /// A reclaim of an older version counts for a newer one.
    NewerReclaimed,
    /// The map of a clean stop does not say what is home.
    MapHasNothingHome,
    /// After a clean stop, what the map does not have counts if a store has it.
    MapLeavesNothingOut,
    /// A store that is removed counts as empty while it has versions that are home and not deleted.
    RetiredWithDeadVersions,
    /// A store that is removed counts as empty while only it remembers a deletion for another one.
    RetiredWhileRemembering,
    /// Versions of a store that cannot be written are declared invalid while they hide versions of other stores.
    InvalidWhileHiding,
    /// What is brought home is in the cache of the disk only when stores forget it.
    ReclaimNotDurable,
    /// A server takes an evicted block of its client although the block was written since.
    DemotionNotCompared,
    /// The same if the write comes, on another connection, while the demotion is being received.
    DemotionComparedEarly,
    /// A demotion has the number of the last transfer before it is sent, rather than before the eviction.
    DemotionVersionedLate,
    /// A gateway demotes what it has read in earlier sessions.
    EarlierSessionDemoted,
    /// The frame of an evicted block is used again before it was sent.
    DemotedFrameFreedEarly,
    /// A server drops what it has sent although it is not written.
    SentDirtDropped,
    /// A gateway answers a flush when everything is written, without flushing its server.
    FlushStopsAtGateway,
    /// The clock that a disk is told first is the one it keeps.
    ClockCorrectionIgnored,
    /// A correction of the clock moves the slots in the wrong direction.
    ClockCorrectionReversed,
    /// A schedule takes effect when it is known, not when it begins.
    ScheduleTakenAtOnce,
    /// A schedule that is known before the one before it has begun replaces that one.
    ScheduleSkipped,
    /// The first round of a schedule that comes late begins when it comes.
    LateScheduleBeginsThen,
    /// A lower version of the schedule replaces a higher one.
    LowerVersionTaken,
    /// A tenant does not pay for what it exceeds its slots by.
    OverrunNotDebited,
    /// After an overrun the next slice is as long as ever, and all others are later.
    OverrunShiftsSlices,
    /// What is lent to a tenant stays with it when the owner of the slot comes back.
    LentSlotKept,
    /// A borrower has as many requests in the device as it likes, although the owner of the slot may come back.
    LentWithoutBound,
    /// The disk is idle in the slot of a tenant that stays away for longer than it usually pauses.
    UsualPauseAwaited,
    /// The disk is idle in the slot of a tenant that has not had work for long.
    IdleOwnerAwaited,
}

impl Bug {
    /// Those of sessions with leases.
    pub const LEASES: &[Bug] = &[
        Bug::LeaseIgnored,
        Bug::LeaseFromReply,
        Bug::FencedReadsCache,
        Bug::FencedDirtKept,
        Bug::RenewedNotNoticed,
        Bug::LeaseEndedEarly,
        Bug::LeaseEndsWithConnection,
        Bug::RestartEndsLeases,
    ];

    /// Those of two caches in a row.
    pub const TIERS: &[Bug] = &[
        Bug::DemotionNotCompared,
        Bug::DemotionComparedEarly,
        Bug::DemotionVersionedLate,
        Bug::EarlierSessionDemoted,
        Bug::DemotedFrameFreedEarly,
        Bug::SentDirtDropped,
        Bug::FlushStopsAtGateway,
    ];

    /// Those of a disk that follows a schedule.
    pub const CLUSTERS: &[Bug] = &[
        Bug::ClockCorrectionIgnored,
        Bug::ClockCorrectionReversed,
        Bug::ScheduleTakenAtOnce,
        Bug::ScheduleSkipped,
        Bug::LateScheduleBeginsThen,
        Bug::LowerVersionTaken,
        Bug::OverrunNotDebited,
        Bug::OverrunShiftsSlices,
        Bug::UsualPauseAwaited,
        Bug::LentSlotKept,
        Bug::LentWithoutBound,
        Bug::IdleOwnerAwaited,
    ];

    /// Those of the client of off-load stores. The worlds of `offload/tests.rs` find them.
    pub const OFFLOAD: &[Bug] = &[
        Bug::BaseWrittenWhileAway,
        Bug::OneCopyIsEnough,
        Bug::AcknowledgedOutOfOrder,
        Bug::TailMovedEarly,
        Bug::HeadPassesTail,
        Bug::LateWritesInLog,
        Bug::ChecksumNotChecked,
        Bug::OlderVersionWins,
        Bug::DeletionForgotten,
        Bug::HighestDeletedFirst,
        Bug::NewerReclaimed,
        Bug::MapHasNothingHome,
        Bug::MapLeavesNothingOut,
        Bug::RetiredWithDeadVersions,
        Bug::RetiredWhileRemembering,
        Bug::InvalidWhileHiding,
    ];
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants a bug in every engine of this thread, or removes it.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether a unit test fails with a bug planted.
#[cfg(test)]
pub(crate) fn is_found_by(bug: Bug, test: fn()) -> bool {
    plant(Some(bug));
    let result = std::panic::catch_unwind(test);
    plant(None);
    result.is_err()
}

/// Whether the previous call had the same time.
pub(crate) fn seen(now: u64) -> bool {
    thread_local! {
        static SEEN: Cell<u64> = const { Cell::new(u64::MAX) };
    }
    SEEN.replace(now) == now
}

/// Whether this bug is planted in this thread. A simulated driver queries its own bugs here too.
pub fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

//! The mistakes, and what is expected to be found.

macro_rules! bugs {
    ($($bug:ident $name:literal: $what:literal => $first:literal $($then:literal)*;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($bug,)*
        }

        /// Bug, name, what the driver half does, the rule found first, and those found as its consequences.
        pub const BUGS: &[(Bug, &str, &str, &str, &[&str])] = &[
            $((Bug::$bug, $name, $what, $first, &[$($then),*]),)*
        ];
    };
}

bugs! {
    RungForNothing "rung-for-nothing": "the tx doorbell is rung with a count that was never set"
        => "doorbell-zero";
    RungInBytes "rung-in-bytes": "doorbells count bytes instead of descriptors"
        => "doorbell-beyond-ring";
    NeverWaits "never-waits": "batches are launched without waiting for any, and without the guard"
        => "tail-overrun";
    NeverProgrammed "never-programmed": "the queue is rung after engine initialisation alone"
        => "doorbell-uninitialised";
    ResetForgotten "reset-forgotten": "a copy goes on after a device reset as if nothing had been"
        => "doorbell-after-reset";
    CoreResetForgotten "core-reset-forgotten": "the copy queue is not programmed again after a reset of its core"
        => "doorbell-after-reset";
    LeftPaused "left-paused": "the last write of queue initialisation, which enables it, is missing"
        => "doorbell-disabled";
    EngineDisabled "engine-disabled": "an engine is used after its state was set to disabled"
        => "doorbell-disabled";
    BusMasterForgotten "bus-master-forgotten": "probe enables memory space but not bus mastering"
        => "doorbell-bus-master";
    BusMasterRevoked "bus-master-revoked": "a copy is started after the function was disabled"
        => "doorbell-bus-master";
    RingOffItsLine "ring-off-its-line": "the ring is allocated with 64-byte alignment"
        => "ring-misaligned";
    OddRingSize "odd-ring-size": "a ring of 56 descriptors, whose end is on no 256-byte line"
        => "ring-misaligned";
    CompletionRing "completion-ring": "completion rings are provisioned as for a network device"
        => "completion-ring";
    PhaseStuck "phase-stuck": "the ring id does not advance when the rings wrap"
        => "ring-id";
    RxPhaseStuck "rx-phase-stuck": "only the tx ring id advances at the wrap"
        => "ring-id";
    PhaseFromZero "phase-from-zero": "ring ids start at 0"
        => "ring-id";
    RungTwice "rung-twice": "each descriptor pair is counted twice in the doorbells"
        => "ring-id";
    RungBeforeWritten "rung-before-written": "the doorbell overtakes the descriptors: no barrier between them"
        => "ring-id";
    FirstForgotten "first-forgotten": "a one-descriptor packet without FIRST"
        => "packet-chain";
    LastForgotten "last-forgotten": "a packet whose LAST never comes"
        => "packet-chain";
    ConcatOnFirst "concat-on-first": "CONCAT on the descriptor that begins a packet"
        => "packet-chain";
    ShortBuffer "short-buffer": "an rx descriptor half as long as its tx descriptor"
        => "rx-short";
    FreedBuffer "freed-buffer": "the source address lies past the end of RAM"
        => "address-unmapped";
    FreedDestination "freed-destination": "the destination address lies past the end of RAM"
        => "address-unmapped";
    BufferPastEnd "buffer-past-end": "a source buffer begins in RAM and ends past it"
        => "address-straddles";
    HostBitForgotten "host-bit-forgotten": "the source is a bare guest-physical address"
        => "address-no-host-bit";
    RingHostBitForgotten "ring-host-bit-forgotten": "the ring base is a bare guest-physical address"
        => "address-no-host-bit";
    PhysicalBehindIommu "physical-behind-iommu": "buffers are not mapped for DMA, in a guest with a translating IOMMU"
        => "address-iommu";
    IntoOwnRing "into-own-ring": "a destination that lies in descriptors which are still pending"
        => "writes-pending-ring";
    MarkerEarly "marker-early": "the marker is staged before the data of its batch"
        => "marker-not-last";
    SharedMarker "shared-marker": "two asynchronous copies at a time use one marker slot"
        => "marker-shared";
    MailboxCrc "mailbox-crc": "the payload is changed after its CRC was computed"
        => "mailbox-crc";
    MailboxSequenceZero "mailbox-sequence-zero": "a sequence counter that wraps to 0"
        => "mailbox-sequence";
    MailboxSequenceKept "mailbox-sequence-kept": "a second request with the number of the first"
        => "mailbox-sequence";
    MailboxOverlap "mailbox-overlap": "the response buffer begins inside the request"
        => "mailbox-overlap";
    MailboxUnmapped "mailbox-unmapped": "the response buffer lies past the end of RAM"
        => "address-unmapped";
    RewrittenDescriptor "rewritten-descriptor": "an rx descriptor is redirected after its doorbell"
        => "descriptor-changed";
    TxFirst "tx-first": "the tx doorbell is rung before the rx doorbell"
        => "tx-before-rx";
    BarrierForgotten "barrier-forgotten": "no write barrier on the last data descriptor"
        => "no-barrier";
    PollWordKept "poll-word-kept": "the poll word is not cleared between two batches"
        => "poll-slot-not-cleared";
    FreedByHead "freed-by-head": "slots are taken for free as soon as the head has passed them"
        => "slots-reused-early";
    ReprogrammedBusy "reprogrammed-busy": "the queue is programmed again while a buffer is outstanding"
        => "ring-reset-pending";
    UnknownRegister "unknown-register": "a write to an offset of the engine that names no register"
        => "unmodelled-register";
    PolledTheHead "polled-the-head": "the head register is polled for a batch that is done"
        => "spin-register";
    PolledAnyway "polled-anyway": "a batch is dropped by programming its queue again, and its marker is still polled, by copies"
        => "ring-reset-pending" "spin-marker";
}

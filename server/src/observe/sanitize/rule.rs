//! The rules of the cycle, as data: stable name, severity, one line. `docs/sanitizer.md` has a section for each.
//!
//! A rule that a device cannot decide is no rule: who rang a doorbell (kernel or user), and when software gives slots
//! back, leave no trace at the device.
use std::fmt;

use serde::{Serialize, Serializer};

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Against the contract: hardware would stop, hang or move the wrong bytes.
    Error,
    /// Legal, or not to be told from something legal, but a known way to such an error.
    Suspicion,
}

impl Severity {
    /// Its name in every output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Suspicion => "suspicion",
        }
    }
}

macro_rules! rules {
    ($($rule:ident $severity:ident $name:literal $statement:literal)*) => {
        /// A rule. Its name never changes: scripts and CI filter by it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $(#[doc = $statement] $rule,)*
        }

        impl Rule {
            /// Every rule, errors first.
            pub const ALL: &[Self] = &[$(Self::$rule),*];

            /// Stable name; also the heading of its section in `docs/sanitizer.md`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$rule => $name,)* }
            }

            /// How sure its findings are.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$rule => Severity::$severity,)* }
            }

            /// What it demands.
            pub const fn statement(self) -> &'static str {
                match self { $(Self::$rule => $statement,)* }
            }
        }
    };
}

rules! {
    DoorbellZero Error "doorbell-zero"
        "A doorbell adds at least one descriptor."
    DoorbellBeyondRing Error "doorbell-beyond-ring"
        "A doorbell adds no more descriptors than the ring has."
    TailOverrun Error "tail-overrun"
        "The tail does not pass descriptors that the engine still has to do."
    DoorbellUninitialised Error "doorbell-uninitialised"
        "A queue is rung only once its ring is programmed."
    DoorbellAfterReset Error "doorbell-after-reset"
        "After a reset a queue is programmed again before it is rung."
    DoorbellDisabled Error "doorbell-disabled"
        "A queue is rung only while it and its engine are enabled."
    DoorbellBusMaster Error "doorbell-bus-master"
        "A queue is rung only while the function may master the bus."
    RingMisaligned Error "ring-misaligned"
        "Base and end of a ring are on a 256-byte boundary."
    CompletionRing Error "completion-ring"
        "No completion ring is provisioned: completion is the marker."
    RingId Error "ring-id"
        "A descriptor carries the ring id of its lap, which advances at each wrap."
    PacketChain Error "packet-chain"
        "A packet is FIRST, any number in between (CONCAT), LAST, within the limits that were programmed."
    RxShort Error "rx-short"
        "Where each packet has one buffer, the buffer is as long as the packet."
    AddressUnmapped Error "address-unmapped"
        "An address leads to host memory, HBM, a state buffer or registers."
    AddressStraddles Error "address-straddles"
        "All bytes of a buffer or ring lie where its first byte lies: not across the end of what is mapped."
    AddressNoHostBit Error "address-no-host-bit"
        "An address of host memory carries the host bit of the generation."
    AddressIommu Error "address-iommu"
        "Behind an IOMMU a device is given I/O virtual addresses, not guest-physical ones."
    WritesPendingRing Error "writes-pending-ring"
        "No descriptor writes into descriptors that are rung for and not done."
    MarkerNotLast Error "marker-not-last"
        "The marker is the last descriptor of its batch."
    MarkerShared Error "marker-shared"
        "Two batches that are outstanding at the same time have a marker each."
    MailboxCrc Error "mailbox-crc"
        "The CRC-32C of a mailbox request is right."
    MailboxSequence Error "mailbox-sequence"
        "The sequence number of a mailbox request is not 0 and not that of the request before."
    MailboxOverlap Error "mailbox-overlap"
        "Request and response of the mailbox are in memory of their own."
    DescriptorChanged Suspicion "descriptor-changed"
        "A descriptor stays as it is from its doorbell until it is done."
    TxBeforeRx Suspicion "tx-before-rx"
        "The buffers of a packet are rung for before the packet is."
    NoBarrier Suspicion "no-barrier"
        "A batch of the kernel's queues that writes device memory orders its marker behind the data."
    PollSlotNotCleared Suspicion "poll-slot-not-cleared"
        "The poll word is cleared before its batch is rung for."
    SlotsReusedEarly Suspicion "slots-reused-early"
        "The slots of a batch are used again only after its marker was written."
    RingResetPending Suspicion "ring-reset-pending"
        "A ring is reset or programmed anew only when nothing on it is pending, or to recover from an abort."
    UnmodelledRegister Suspicion "unmodelled-register"
        "Registers that are touched have a known meaning."
    SpinRegister Suspicion "spin-register"
        "A register is polled only while something is pending that can change it."
    SpinMarker Suspicion "spin-marker"
        "A marker is polled only while the batch that writes it is pending."
}

impl Rule {
    /// Where it is explained.
    pub fn anchor(self) -> String {
        format!("docs/sanitizer.md#{}", self.name())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_errors_come_first() {
        let names: std::collections::HashSet<_> =
            Rule::ALL.iter().map(|rule| rule.name()).collect();
        assert_eq!(names.len(), Rule::ALL.len());
        assert!(Rule::ALL.is_sorted_by_key(|rule| rule.severity() != Severity::Error));
    }
}

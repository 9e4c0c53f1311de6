//! Why a message is refused, and the errno that the client sees.
use rustix::io::Errno;

/// A command that is not carried out. The text is for the log, [`Refusal::errno`] for the wire.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The payload is shorter than the command's fixed part, or than the data it announces.
    #[error("payload of {got} bytes, {need} needed")]
    Short {
        /// Bytes needed.
        need: u64,
        /// Bytes present.
        got: u64,
    },
    /// A write whose payload is longer than announced: the count or the framing is wrong.
    #[error("{extra} bytes after the data")]
    Trailing {
        /// Bytes too many.
        extra: u64,
    },
    /// Larger than the negotiated or fixed limit.
    #[error("{what} of {got} exceeds the limit of {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        got: u64,
        /// The largest size accepted.
        limit: u64,
    },
    /// `argsz` has no room for the fixed part of the reply.
    #[error("argsz {argsz} is less than {need}")]
    Argsz {
        /// As sent.
        argsz: u32,
        /// The fixed part.
        need: u32,
    },
    /// A combination of flags without meaning.
    #[error("{what} flags {flags:#x} are not valid")]
    Flags {
        /// Whose flags.
        what: &'static str,
        /// As sent.
        flags: u32,
    },
    /// A field that makes no sense by itself.
    #[error("{0}")]
    Invalid(&'static str),
    /// An access outside the region, or to a region that does not exist.
    #[error("region {region}: {count} bytes at {offset:#x} are outside its {size:#x} bytes")]
    OutOfRegion {
        /// As sent.
        region: u32,
        /// As sent.
        offset: u64,
        /// As sent.
        count: u64,
        /// 0: no such region.
        size: u64,
    },
    /// A read of a write-only region or the reverse.
    #[error("region {region} may not be {verb}")]
    Access {
        /// As sent.
        region: u32,
        /// "read" or "written".
        verb: &'static str,
    },
    /// A region or interrupt index past the last.
    #[error("no {what} {index}")]
    NoSuchIndex {
        /// "region" or "interrupt index".
        what: &'static str,
        /// As sent.
        index: u32,
    },
    /// Anything before `VERSION`.
    #[error("sent before VERSION")]
    NotNegotiated,
    /// `VERSION` of another major version.
    #[error("major version {0} is not supported, only 0 is")]
    MajorVersion(u16),
    /// `VERSION` data that are not the JSON expected.
    #[error("VERSION capabilities: {0}")]
    Capabilities(String),
    /// A message that is neither command nor reply.
    #[error("message type {0} is neither command nor reply")]
    MessageType(u32),
    /// A command of the specification that this server does not offer.
    #[error("not supported by this device: {0}")]
    Unsupported(&'static str),
    /// `DEVICE_FEATURE` of a feature that the device lacks; all of them.
    #[error("no device feature {0}")]
    NoSuchFeature(u32),
    /// A number outside the specification.
    #[error("command {0} is not known")]
    UnknownCommand(u16),
    /// Descriptors were sent but not received: too many of them, or this process is at its limit.
    #[error(
        "descriptors sent with the message were lost (more than {limit} of them, or this process is out of descriptors: see ulimit -n)"
    )]
    LostDescriptors {
        /// The most accepted with one message.
        limit: usize,
    },
    /// The number of descriptors does not fit the command.
    #[error("{got} descriptors came with the message, {want} expected")]
    Descriptors {
        /// As received.
        got: usize,
        /// As the command needs.
        want: usize,
    },
    /// The function's own answer.
    #[error("the device answered {0}")]
    Function(Errno),
}

impl Refusal {
    /// The errno of the reply.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Short { .. }
            | Self::Trailing { .. }
            | Self::Argsz { .. }
            | Self::Flags { .. }
            | Self::Invalid(_)
            | Self::OutOfRegion { .. }
            | Self::NoSuchIndex { .. }
            | Self::Capabilities(_)
            | Self::MessageType(_)
            | Self::Descriptors { .. } => Errno::INVAL,
            Self::TooLarge { .. } => Errno::TOOBIG,
            Self::Access { .. } => Errno::ACCESS,
            Self::NotNegotiated => Errno::PROTO,
            Self::MajorVersion(_) => Errno::PROTONOSUPPORT,
            Self::Unsupported(_) => Errno::OPNOTSUPP,
            // What the kernel's VFIO answers.
            Self::NoSuchFeature(_) => Errno::NOTTY,
            Self::UnknownCommand(_) => Errno::NOSYS,
            Self::LostDescriptors { .. } => Errno::MFILE,
            Self::Function(errno) => *errno,
        }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Function(errno)
    }
}

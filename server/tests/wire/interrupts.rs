//! `SET_IRQS` in all its forms.
use std::os::fd::AsFd;

use neuron_vfio_user::vfio::codec::{Command, IrqData, IrqVerb, wire};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::mock::{Event, MSIX, MSIX_VECTORS};
use crate::peer::{Peer, Served};

const EINVAL: i32 = Errno::INVAL.raw_os_error();

fn set(index: u32, start: u32, count: u32, verb: IrqVerb, data: IrqData<'_>) -> Command<'_> {
    Command::SetIrqs {
        index,
        start,
        count,
        verb,
        data,
    }
}

fn last(served: &Served) -> Option<Event> {
    served.look(|mock| mock.events.last().cloned())
}

/// What QEMU does when a guest enables MSI-X, and when it disables it (qemu client).
#[test]
fn msix_as_qemu_enables_it() {
    let served = Served::new();
    let mut peer = served.peer();
    let attach = |start, count| set(MSIX, start, count, IrqVerb::Trigger, IrqData::Eventfd);
    assert_eq!(peer.call(&attach(0, 1)).errno(), 0);
    assert_eq!(
        last(&served),
        Some(Event::Eventfds {
            index: MSIX,
            start: 0,
            connected: vec![false]
        })
    );
    let fds: Vec<_> = (0..16)
        .map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap())
        .collect();
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    assert_eq!(peer.call_with_fds(&attach(16, 16), &borrowed).errno(), 0);
    assert_eq!(
        last(&served),
        Some(Event::Eventfds {
            index: MSIX,
            start: 16,
            connected: vec![true; 16]
        })
    );
    // Each descriptor arrived at its vector, and none can leak into a child process.
    served.look(|mock| {
        for (vector, fd) in mock.eventfds.iter().enumerate() {
            let fd = fd.as_ref().unwrap();
            assert!(
                rustix::io::fcntl_getfd(fd)
                    .unwrap()
                    .contains(rustix::io::FdFlags::CLOEXEC)
            );
            rustix::io::write(fd, &u64::try_from(vector + 1).unwrap().to_ne_bytes()).unwrap();
        }
    });
    for (vector, fd) in fds.iter().enumerate() {
        let mut count = [0; 8];
        rustix::io::read(fd, &mut count).unwrap();
        assert_eq!(
            u64::from_ne_bytes(count),
            u64::try_from(vector + 1).unwrap()
        );
    }
    assert_eq!(
        peer.call(&set(MSIX, 0, 0, IrqVerb::Trigger, IrqData::None))
            .errno(),
        0
    );
    assert_eq!(
        last(&served),
        Some(Event::Eventfds {
            index: MSIX,
            start: 0,
            connected: vec![]
        })
    );
}

#[test]
fn mask_unmask_and_trigger() {
    let served = Served::new();
    let mut peer = served.peer();
    let (index, start) = (0, 0);
    assert_eq!(
        peer.call(&set(0, 0, 1, IrqVerb::Mask, IrqData::None))
            .errno(),
        0
    );
    assert_eq!(
        last(&served),
        Some(Event::Mask {
            index,
            start,
            vectors: vec![true]
        })
    );
    assert_eq!(
        peer.call(&set(0, 0, 1, IrqVerb::Unmask, IrqData::Bool(&[1])))
            .errno(),
        0
    );
    assert_eq!(
        last(&served),
        Some(Event::Unmask {
            index,
            start,
            vectors: vec![true]
        })
    );
    assert_eq!(
        peer.call(&set(
            MSIX,
            3,
            4,
            IrqVerb::Trigger,
            IrqData::Bool(&[1, 0, 2, 0])
        ))
        .errno(),
        0
    );
    let vectors = vec![true, false, true, false];
    assert_eq!(
        last(&served),
        Some(Event::Trigger {
            index: MSIX,
            start: 3,
            vectors
        })
    );
    assert_eq!(
        peer.call(&set(MSIX, 0, 2, IrqVerb::Trigger, IrqData::None))
            .errno(),
        0
    );
    assert_eq!(
        last(&served),
        Some(Event::Trigger {
            index: MSIX,
            start: 0,
            vectors: vec![true; 2]
        })
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    let served = Served::new();
    let mut peer = served.peer();
    let refused = [
        set(
            MSIX,
            0,
            MSIX_VECTORS + 1,
            IrqVerb::Trigger,
            IrqData::Eventfd,
        ),
        set(MSIX, 1, MSIX_VECTORS, IrqVerb::Trigger, IrqData::None),
        set(MSIX, u32::MAX, 2, IrqVerb::Trigger, IrqData::None),
        set(MSIX, 0, u32::MAX, IrqVerb::Trigger, IrqData::None),
        set(MSIX, 0, 1, IrqVerb::Mask, IrqData::None),
        set(MSIX, 0, 0, IrqVerb::Trigger, IrqData::Eventfd),
        set(MSIX, 1, 0, IrqVerb::Trigger, IrqData::None),
        set(0, 0, 1, IrqVerb::Unmask, IrqData::Eventfd),
        set(1, 0, 1, IrqVerb::Trigger, IrqData::Eventfd),
        set(4, 0, 1, IrqVerb::Trigger, IrqData::Eventfd),
        set(5, 0, 1, IrqVerb::Trigger, IrqData::Eventfd),
    ];
    for command in refused {
        assert_eq!(peer.call(&command).errno(), EINVAL, "{command:?}");
    }
    // Flags: no action, two actions, no data type, two data types, an unknown bit; data shorter than the count.
    for flags in [0, 0x01, 0x20, 0x31, 0x23, 0x61, u32::MAX] {
        assert_eq!(raw(&mut peer, flags, 1, 4), EINVAL, "flags {flags:#x}");
    }
    assert_eq!(raw(&mut peer, 0x22, 5, 4), EINVAL);
    assert_eq!(raw(&mut peer, 0x22, 4, 4), 0);
    // Two descriptors for three vectors, and more descriptors than a message may have.
    let fds: Vec<_> = (0..20)
        .map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap())
        .collect();
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let three = set(MSIX, 0, 3, IrqVerb::Trigger, IrqData::Eventfd);
    assert_eq!(peer.call_with_fds(&three, &fds[..2]).errno(), EINVAL);
    let twenty = set(MSIX, 0, 20, IrqVerb::Trigger, IrqData::Eventfd);
    assert_eq!(
        peer.call_with_fds(&twenty, &fds).errno(),
        Errno::MFILE.raw_os_error()
    );
    assert!(served.look(|mock| {
        !mock
            .events
            .iter()
            .any(|event| matches!(event, Event::Eventfds { .. }))
    }));
}

fn raw(peer: &mut Peer, flags: u32, count: u32, data: usize) -> i32 {
    let template = set(
        MSIX,
        0,
        count,
        IrqVerb::Trigger,
        IrqData::Bool(&[1; 8][..data]),
    );
    let (_, mut bytes) = peer.encode(&template, false);
    bytes[20..24].copy_from_slice(&flags.to_le_bytes());
    peer.send_bytes(&bytes, &[]);
    let reply = peer.receive();
    assert_eq!(reply.command(), wire::command::DEVICE_SET_IRQS);
    reply.errno()
}

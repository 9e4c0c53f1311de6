//! Region descriptions, mappable regions, and the crate's client as an independent peer.
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use neuron_vfio_user::vfio::codec::{Command, MultiWrites, wire};
use neuron_vfio_user::vfio::{RegionMmap, SparseArea};
use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::mock::{BAR0, BAR0_SIZE, BAR2, BAR4, CONFIG, Mock};
use crate::peer::{Served, memfd};

fn mappable() -> (Arc<File>, Mock) {
    let file = Arc::new(File::from(memfd(BAR0_SIZE)));
    let areas = vec![
        SparseArea {
            offset: 0,
            size: 0x1000,
        },
        SparseArea {
            offset: 0x10_0000,
            size: 0x8000,
        },
    ];
    (
        file.clone(),
        Mock::default().with_mmap(RegionMmap { file, areas }),
    )
}

/// nutanix/libvfio-user#185, #619: argsz 0, 31, 32, needed - 1, needed.
#[test]
fn capabilities_come_only_when_they_fit() {
    let (_file, mock) = mappable();
    let served = Served::with(mock);
    let mut peer = served.peer();
    let needed = 32 + 16 + 2 * 16;
    for (argsz, errno, len) in [
        (0, 22, 0),
        (31, 22, 0),
        (32, 0, 32),
        (needed - 1, 0, 32),
        (needed, 0, 80),
    ] {
        let reply = peer.call(&Command::DeviceGetRegionInfo { argsz, index: 0 });
        assert_eq!(
            (reply.errno(), reply.payload.len()),
            (errno, len),
            "argsz {argsz}"
        );
        if errno != 0 {
            continue;
        }
        let info = wire::RegionInfo::read_from_prefix(&reply.payload)
            .unwrap()
            .0;
        assert_eq!(info.argsz.get(), needed);
        assert_eq!(info.size.get(), BAR0_SIZE);
        // QEMU gives up on the capability flag with an offset outside the reply (qemu client).
        let caps = u32::from(len == 80);
        assert_eq!(info.flags.get(), 0b111 | caps << 3);
        assert_eq!(info.cap_offset.get(), 32 * caps);
    }
}

#[test]
fn crate_client_maps_what_it_is_given() {
    let (file, mock) = mappable();
    let served = Served::with(mock);
    let client = vfio_user::Client::new(&served.path).unwrap();
    let region = client.region(BAR0).unwrap();
    let areas: Vec<_> = region
        .sparse_areas
        .iter()
        .map(|area| (area.offset, area.size))
        .collect();
    assert_eq!(areas, [(0, 0x1000), (0x10_0000, 0x8000)]);
    file.write_at(b"shared", 0x10_0000).unwrap();
    let theirs = region.file_offset.as_ref().unwrap();
    let mut text = [0; 6];
    theirs
        .file()
        .read_at(&mut text, theirs.start() + 0x10_0000)
        .unwrap();
    assert_eq!(&text, b"shared");
    assert!(client.region(BAR2).unwrap().file_offset.is_none());
    assert_eq!(client.region(CONFIG).unwrap().size, 4096);
}

#[test]
fn crate_client_drives_the_device() {
    let served = Served::new();
    let mut client = vfio_user::Client::new(&served.path).unwrap();
    let mut data = [0; 8];
    client.region_write(BAR0, 0x101, b"unaligned").unwrap();
    client.region_read(BAR0, 0x103, &mut data[..7]).unwrap();
    assert_eq!(&data[..7], b"aligned");
    let shared = memfd(0x4000);
    client
        .dma_map(0x1000, 0x10_0000, 0x3000, shared.as_raw_fd())
        .unwrap();
    assert_eq!(
        served.look(|mock| mock
            .maps
            .iter()
            .map(|map| (map.0, map.1))
            .collect::<Vec<_>>()),
        [(0x10_0000, 0x3000)]
    );
    client.dma_unmap(0x10_0000, 0x3000).unwrap();
    assert!(served.look(|mock| mock.maps.is_empty()));
    assert_eq!(client.get_irq_info(2).unwrap().count, 32);
    client
        .set_irqs(2, 0x24, 0, 1, &[shared.as_raw_fd()])
        .unwrap();
    assert_eq!(served.look(|mock| mock.eventfds.len()), 1);
    client.region_write(BAR2, 0, &[1, 0, 0, 0]).unwrap();
    client.reset().unwrap();
    client.region_read(BAR2, 0, &mut data).unwrap();
    assert_eq!(data, [0; 8]);
    client.shutdown().unwrap();
    served.wait_disconnected();
    assert_eq!(served.handle.status().unwrap().counters.refused, 0);
}

#[test]
fn every_size_and_alignment() {
    let served = Served::new();
    let mut peer = served.peer();
    let pattern: Vec<u8> = (0..200_u8).collect();
    for offset in 0..9_u64 {
        for len in (1..=17).chain([63, 64, 65, 128, 199]) {
            let data = &pattern[..len];
            assert_eq!(
                peer.call(&Command::RegionWrite {
                    region: BAR0,
                    offset,
                    data
                })
                .errno(),
                0
            );
            assert_eq!(peer.read(BAR0, offset, u32::try_from(len).unwrap()), data);
        }
    }
    let config = peer.read(CONFIG, 0, 4096);
    assert_eq!((config.len(), &config[..2]), (4096, &[0x0f, 0x1d][..]));
}

#[test]
fn access_rights_are_kept() {
    let served = Served::new();
    let mut peer = served.peer();
    let eacces = Errno::ACCESS.raw_os_error();
    assert_eq!(
        peer.call(&Command::RegionRead {
            region: BAR4,
            offset: 0,
            count: 4
        })
        .errno(),
        eacces
    );
    assert_eq!(
        peer.call(&Command::RegionWrite {
            region: BAR4,
            offset: 0,
            data: &[0; 4]
        })
        .errno(),
        0
    );
}

/// Not offered, but a client that sends it anyway is understood.
#[test]
fn multiple_writes() {
    let served = Served::new();
    let mut peer = served.peer();
    let mut payload = 4_u64.to_le_bytes().to_vec();
    for (offset, region, count, data) in [
        (0_u64, BAR0, 4_u32, 0x11_u64),
        (8, BAR0, 8, 0x22),
        (0, 99, 4, 0x33),
        (0, BAR2, 1, 0x44),
    ] {
        payload.extend(offset.to_le_bytes());
        payload.extend(region.to_le_bytes());
        payload.extend(count.to_le_bytes());
        payload.extend(data.to_le_bytes());
    }
    let command = Command::decode(wire::command::REGION_WRITE_MULTI, &payload).unwrap();
    assert!(matches!(
        command,
        Command::RegionWriteMulti(MultiWrites { .. })
    ));
    peer.post(&command);
    assert_eq!(
        peer.read(BAR0, 0, 16),
        [0x11, 0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(
        peer.read(BAR2, 0, 4),
        [0x44, 0, 0, 0],
        "a bad write stopped the good one after it"
    );
    // With a reply wanted, the bad one is reported.
    assert_eq!(peer.call(&command).errno(), 22);
}

#[test]
fn what_is_not_offered_is_refused() {
    let served = Served::new();
    let mut peer = served.peer();
    let number = |errno: Errno| errno.raw_os_error();
    let not_offered = number(Errno::OPNOTSUPP);
    let cases = [
        (wire::command::DEVICE_GET_REGION_IO_FDS, not_offered),
        (wire::command::DIRTY_PAGES, not_offered),
        (wire::command::MIG_DATA_READ, not_offered),
        (wire::command::MIG_DATA_WRITE, not_offered),
        (wire::command::DEVICE_FEATURE, number(Errno::NOTTY)),
        (wire::command::DMA_READ, number(Errno::INVAL)),
        (wire::command::DMA_WRITE, number(Errno::INVAL)),
        (wire::command::VERSION, number(Errno::INVAL)),
        (0, number(Errno::NOSYS)),
        (19, number(Errno::NOSYS)),
        (u16::MAX, number(Errno::NOSYS)),
    ];
    for (code, errno) in cases {
        let (_, mut bytes) = peer.encode(
            &Command::RegionRead {
                region: 0,
                offset: 0,
                count: 0,
            },
            false,
        );
        bytes[2..4].copy_from_slice(&code.to_le_bytes());
        peer.send_bytes(&bytes, &[]);
        let reply = peer.receive();
        assert_eq!((reply.command(), reply.errno()), (code, errno));
    }
    let dirty = Command::DmaUnmap(wire::DmaUnmap {
        argsz: 24.into(),
        flags: wire::unmap_flags::GET_DIRTY_BITMAP.into(),
        iova: 0.into(),
        size: 0x1000.into(),
    });
    assert_eq!(peer.call(&dirty).errno(), not_offered);
    peer.assert_silent();
    let mut rest = Vec::new();
    peer.stream
        .set_read_timeout(Some(std::time::Duration::from_millis(20)))
        .unwrap();
    assert!(peer.stream.read_to_end(&mut rest).is_err() && rest.is_empty());
}

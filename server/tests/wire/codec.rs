//! Property tests: whatever is encoded decodes to itself; whatever is decoded does not panic.
use neuron_vfio_user::vfio::codec::wire::{self, Header};
use neuron_vfio_user::vfio::codec::{
    Capabilities, Command, HEADER_SIZE, IrqData, IrqVerb, MAX_TRANSFER,
};
use proptest::prelude::*;
use zerocopy::FromBytes;

fn round_trip(command: &Command<'_>, id: u16, no_reply: bool) {
    let mut bytes = vec![0xee; 3];
    command.encode(id, no_reply, &mut bytes);
    let message = &bytes[3..];
    let header = Header::read_from_prefix(message).unwrap().0;
    assert_eq!(usize::try_from(header.size.get()).unwrap(), message.len());
    assert_eq!((header.id.get(), header.error.get()), (id, 0));
    assert_eq!(
        header.flags.get(),
        if no_reply { wire::flags::NO_REPLY } else { 0 }
    );
    let payload = &message[HEADER_SIZE..];
    assert_eq!(
        Command::decode(header.command.get(), payload).as_ref(),
        Ok(command)
    );
    // Every truncation is refused, except where the end of the data is the end of the message.
    if !matches!(
        command,
        Command::Version { .. } | Command::DeviceFeature { .. }
    ) {
        for end in 0..payload.len() {
            assert!(
                Command::decode(header.command.get(), &payload[..end]).is_err(),
                "{end} bytes of {command:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn commands_round_trip(
        id: u16, no_reply: bool, a: u32, b: u32, c: u64, d: u64, e: u64,
        data in prop::collection::vec(any::<u8>(), 0..300), which in 0..14, verb in 0_usize..3,
    ) {
        let argsz = a.max(64);
        let count = u32::try_from(data.len()).unwrap();
        let verb = [IrqVerb::Mask, IrqVerb::Unmask, IrqVerb::Trigger][verb];
        let command = match which {
            0 => Command::Version { major: id, minor: 3, data: &data },
            1 => Command::DmaMap(wire::DmaMap {
                argsz: argsz.into(), flags: b.into(), offset: c.into(), iova: d.into(), size: e.into(),
            }),
            2 => Command::DmaUnmap(wire::DmaUnmap {
                argsz: argsz.into(), flags: b.into(), iova: d.into(), size: e.into(),
            }),
            3 => Command::DeviceGetInfo { argsz },
            4 => Command::DeviceGetRegionInfo { argsz, index: b },
            5 => Command::DeviceGetIrqInfo { argsz, index: b },
            6 => Command::SetIrqs { index: a, start: b, count, verb, data: IrqData::Bool(&data) },
            7 => Command::SetIrqs { index: a, start: b, count: a, verb, data: IrqData::None },
            8 => Command::SetIrqs { index: a, start: b, count: a, verb, data: IrqData::Eventfd },
            9 => Command::RegionRead { region: a, offset: c, count: b % (MAX_TRANSFER + 1) },
            10 => Command::RegionWrite { region: a, offset: c, data: &data },
            11 => Command::DeviceFeature { argsz: a, flags: b, data: &data },
            12 => Command::DmaRead { iova: c, count: d % u64::from(MAX_TRANSFER + 1) },
            _ => Command::DmaWrite { iova: c, data: &data },
        };
        round_trip(&command, id, no_reply);
    }

    #[test]
    fn any_payload_decodes_or_is_refused(code in 0_u16..20, payload in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(command) = Command::decode(code, &payload) {
            prop_assert_eq!(command.code(), code);
            let mut bytes = Vec::new();
            command.encode(0, false, &mut bytes);
            prop_assert!(bytes.len() <= HEADER_SIZE + payload.len());
        }
    }

    #[test]
    fn multiple_writes_are_bounded(count: u64, payload in prop::collection::vec(any::<u8>(), 0..120)) {
        let mut bytes = count.to_le_bytes().to_vec();
        bytes.extend(&payload);
        match Command::decode(wire::command::REGION_WRITE_MULTI, &bytes) {
            Ok(Command::RegionWriteMulti(writes)) => {
                prop_assert_eq!(u64::try_from(writes.iter().count()).unwrap(), count);
                prop_assert!(count <= 5);
            }
            Ok(other) => prop_assert!(false, "{:?}", other),
            Err(_) => prop_assert!(count > 0),
        }
    }

    #[test]
    fn any_version_data_is_read_or_refused(data in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = Capabilities::decode(&data);
        let mut json = br#"{"capabilities":"#.to_vec();
        json.extend(&data);
        json.extend(b"}\0");
        let _ = Capabilities::decode(&json);
    }

    #[test]
    fn version_reply_fits(room in 0_usize..300) {
        let data = Capabilities::server_data(room);
        prop_assert!(data.len() <= room);
        if room >= 3 {
            prop_assert_eq!(data.last(), Some(&0));
            let capabilities = Capabilities::decode(&data).unwrap();
            prop_assert!(capabilities.max_msg_fds.is_none_or(|fds| fds == 16));
            prop_assert!(capabilities.limits().is_ok());
        }
    }
}

#[test]
fn longest_version_reply_fits_qemus_request() {
    let data = Capabilities::server_data(crate::peer::QEMU_VERSION.len());
    let all = Capabilities::decode(&data).unwrap();
    assert_eq!(
        all,
        Capabilities {
            max_msg_fds: Some(16),
            max_data_xfer_size: Some(1 << 20),
            max_dma_maps: Some(65535),
            pgsizes: Some(4096),
            write_multiple: None,
        }
    );
}

#[test]
fn lengths_that_lie_are_refused() {
    for (count, len) in [
        (0_u32, 1_usize),
        (3, 4),
        (5, 4),
        (u32::MAX, 4),
        (MAX_TRANSFER + 1, 4),
    ] {
        let mut payload = vec![0; 12];
        payload.extend(count.to_le_bytes());
        payload.extend(vec![0; len]);
        assert!(
            Command::decode(wire::command::REGION_WRITE, &payload).is_err(),
            "count {count}, {len} bytes"
        );
        let mut payload = vec![0; 8];
        payload.extend(u64::from(count).to_le_bytes());
        payload.extend(vec![0; len]);
        assert!(
            Command::decode(wire::command::DMA_WRITE, &payload).is_err(),
            "count {count}, {len} bytes"
        );
    }
}

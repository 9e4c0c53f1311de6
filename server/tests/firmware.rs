//! The firmware side as a driver meets it: what it reads, and both mailboxes with memory by file and by message.
mod rig;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::mailbox::data::{self, AvailableProfiles, PowerProfile};
use neuron_protocol::mailbox::{
    Command, RequestHeader, Response, ResponseHeader, Sequence, Status, build_request,
};
use neuron_protocol::registers::misc_ram;
use neuron_vfio_user::function::{Ecc, Firmware, HbmRepair};
use neuron_vfio_user::vfio::PciFunction;
use rig::{DATA, RESULT, Rig};
use zerocopy::{FromBytes, IntoBytes};

/// A driver of one mailbox.
struct Driver {
    rig: Rig,
    sequence: Sequence,
}

impl Driver {
    fn new(product: Product, api_version: u8, by_message: bool) -> Self {
        let firmware = Firmware {
            api_version,
            ..Firmware::default()
        };
        Self {
            rig: Rig::with_firmware(product, Platform::Silicon, firmware, by_message),
            sequence: Sequence::FIRST,
        }
    }

    fn read(&mut self, register: u32) -> u32 {
        self.rig.read(self.rig.generation.misc_ram + register)
    }

    fn write(&mut self, register: u32, value: u32) {
        self.rig
            .write(self.rig.generation.misc_ram + register, value);
    }

    /// Device-side address of a register of the window.
    fn address(&self, register: u32) -> u64 {
        let offset = u64::from(self.rig.generation.misc_ram + register);
        let windows = self.rig.generation.soc_windows.iter();
        let mut inside = windows.filter_map(|window| {
            let from = offset.checked_sub(window.bar_offset.into())?;
            (from < window.size).then_some(window.base + from)
        });
        inside.next().unwrap()
    }

    /// Contract §4.1: buffers in host memory. `None` if the sequence byte never came.
    fn legacy(&mut self, request: &[u8]) -> Option<(Status, Vec<u8>)> {
        self.rig.fill(DATA, request);
        self.rig.fill(RESULT, &[0, 0xee, 0xee, 0xee]);
        self.rig.ask_firmware(DATA, RESULT);
        self.rig.run();
        let bytes = self.rig.bytes(RESULT, 512);
        let response = Response::parse(&bytes).ok()?;
        (response.sequence == self.sequence.get())
            .then(|| (response.status, response.payload.to_vec()))
    }

    fn legacy_command(&mut self, command: u8, payload: &[u8]) -> Option<(Status, Vec<u8>)> {
        self.sequence = self.sequence.next();
        let request = self.request(command, payload);
        self.legacy(&request)
    }

    /// A request with a right CRC, whatever its command.
    fn request(&self, command: u8, payload: &[u8]) -> Vec<u8> {
        let mut request = vec![0; 2048];
        let len = build_request(&mut request, self.sequence, Command::Read, payload).unwrap();
        let mut header = RequestHeader::read_from_prefix(&request).unwrap().0;
        header.command = command;
        header.crc = header.checksum(payload).into();
        request[..8].copy_from_slice(header.as_bytes());
        request.truncate(len);
        request
    }

    /// Contract §4.2: header and payload in the window. `None` if the trigger was never cleared.
    fn registers(&mut self, request: &[u8]) -> Option<(Status, Vec<u8>)> {
        let (header, payload) = RequestHeader::read_from_prefix(request).unwrap();
        for (offset, chunk) in (misc_ram::DATA..).step_by(4).zip(payload.chunks(4)) {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write(offset, u32::from_le_bytes(word));
        }
        let [first, crc] = header.to_words();
        for (register, value) in [
            (misc_ram::REQUEST_HIGH, first),
            (misc_ram::REQUEST_LOW, crc),
            (misc_ram::RESPONSE_HIGH, 0),
            (misc_ram::RESPONSE_LOW, 0),
            (misc_ram::ACK, 1),
            (misc_ram::TRIGGER, 1),
        ] {
            self.write(register, value);
        }
        self.rig.run();
        if self.read(misc_ram::TRIGGER) != 0 {
            return None;
        }
        let response = ResponseHeader::from_word(self.read(misc_ram::REQUEST_HIGH));
        assert_eq!(response.sequence, self.sequence.get());
        let len = usize::from(response.size.get()) - 8;
        let mut bytes = Vec::new();
        for offset in (misc_ram::DATA..).step_by(4).take(len.div_ceil(4)) {
            bytes.extend(self.read(offset).to_le_bytes());
        }
        bytes.truncate(len);
        assert_eq!(
            self.read(misc_ram::REQUEST_LOW),
            response.register_checksum(&bytes)
        );
        Some((response.status.into(), bytes))
    }

    fn register_command(&mut self, command: u8, payload: &[u8]) -> Option<(Status, Vec<u8>)> {
        self.sequence = self.sequence.next();
        let request = self.request(command, payload);
        self.registers(&request)
    }
}

const READ: u8 = 1;
const POST: u8 = 2;
const SET_PROFILE: u8 = 3;
const GET_DATA: u8 = 4;
const SET_FEATURE: u8 = 5;

#[expect(
    clippy::unnecessary_wraps,
    reason = "what it is compared with is wrapped"
)]
fn ok(payload: &[u8]) -> Option<(Status, Vec<u8>)> {
    Some((Status::Ok, payload.to_vec()))
}

const FAILED: Option<(Status, Vec<u8>)> = Some((Status::Failed, Vec::new()));
const UNKNOWN: Option<(Status, Vec<u8>)> = Some((Status::UnknownCommand, Vec::new()));

#[test]
fn the_driver_reads_what_firmware_was_told_to_say() {
    let mut hbm_ecc = [Ecc::default(); 4];
    hbm_ecc[1] = Ecc {
        corrected: 3,
        uncorrected: 1,
    };
    let firmware = Firmware {
        api_version: 6,
        power: 3_500,
        sram_ecc: Ecc {
            corrected: 7,
            uncorrected: 0,
        },
        hbm_ecc,
        hbm_repair: HbmRepair::Failed,
        server_id: Some(9),
        rack_id: Some(2),
        health_status: 0x55,
        health_sequence: 0x1000,
        build: 77,
        reservation: 0x1_0000_0002,
    };
    let mut driver = Driver {
        rig: Rig::with_firmware(Product::Trn2, Platform::Silicon, firmware, false),
        sequence: Sequence::FIRST,
    };
    let expected = [
        (misc_ram::API_VERSION, 6),
        (misc_ram::SRAM_ECC, 7 << 16),
        (misc_ram::HBM_ECC, 0),
        (misc_ram::HBM_ECC + 4, 3 << 16 | 1),
        (misc_ram::HBM_REPAIR, 2),
        (misc_ram::SERVER_ID, 1 << 31 | 2 << 16 | 1 << 15 | 9),
        (misc_ram::HEALTH_STATUS, 0x55),
        (misc_ram::HEALTH_SEQUENCE, 0x1000),
        (misc_ram::FW_BUILD, 77),
        (misc_ram::RESERVATION_HIGH, 1),
        (misc_ram::RESERVATION_LOW, 2),
    ];
    for round in 0..2 {
        for (register, value) in expected {
            assert_eq!(driver.read(register), value, "{register:#x}, round {round}");
            // It is firmware's: a write is lost.
            driver.write(register, !value);
            assert_eq!(driver.read(register), value, "{register:#x} was written");
        }
        driver.rig.function.reset();
        driver
            .rig
            .function
            .region_write(7, 4, &6u16.to_le_bytes())
            .unwrap();
    }
}

/// Samples power as the metrics thread does, every 50 ms for two minutes (facts §5.5).
#[test]
fn power_samples_move_as_the_driver_needs_them() {
    for (api_version, moves) in [(2, false), (3, true), (7, true)] {
        let mut driver = Driver::new(Product::Trn2, api_version, false);
        for register in [misc_ram::POWER, misc_ram::POWER_DIE_1] {
            let (mut last, mut new, mut values) = (0, 0, Vec::new());
            for sample in 0..2_400 {
                driver.rig.function.tick(Duration::from_millis(50) * sample);
                let word = driver.read(register);
                assert!(word & 0xffff <= 10_000, "{word:#x}");
                if word >> 16 != last {
                    last = word >> 16;
                    new += 1;
                    values.push(word & 0xffff);
                }
            }
            values.sort_unstable();
            values.dedup();
            if moves {
                assert!(new >= 120, "{new} new samples in two minutes");
                assert!(values.len() > 10, "power stands still: {values:?}");
            } else {
                assert_eq!((new, driver.read(register)), (0, 0));
            }
        }
    }
}

#[test]
fn read_gives_one_word_per_address_in_both_forms() {
    for by_message in [false, true] {
        for product in Product::ALL {
            let mut driver = Driver::new(product, 7, by_message);
            let addresses: Vec<u8> = [
                driver.address(misc_ram::API_VERSION),
                driver.address(misc_ram::SERIAL_LOW),
                0x3,
            ]
            .iter()
            .flat_map(|address| address.to_le_bytes())
            .collect();
            let words = [7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(driver.legacy_command(READ, &addresses), ok(&words));
            assert_eq!(driver.register_command(READ, &addresses), ok(&words));
            // One hundred is the driver's limit.
            let many = |driver: &Driver, n| driver.address(0).to_le_bytes().repeat(n);
            let hundred = driver.legacy_command(READ, &many(&driver, 100));
            assert_eq!(hundred, ok(&[7, 0, 0, 0].repeat(100)));
            let too_many = many(&driver, 101);
            assert_eq!(driver.legacy_command(READ, &too_many), FAILED);
            assert_eq!(driver.legacy_command(READ, &[1; 7]), FAILED);
        }
    }
}

#[test]
fn profiles_data_and_features_from_version_7_on() {
    let mut driver = Driver::new(Product::Trn2, 7, false);
    let profile = |profile| PowerProfile {
        profile,
        ..PowerProfile::default()
    };
    let current = [data::POWER_PROFILE, 0, 0];
    assert_eq!(
        driver.register_command(GET_DATA, &current),
        ok(profile(0).as_bytes())
    );
    assert_eq!(
        driver.register_command(SET_PROFILE, profile(3).as_bytes()),
        ok(&[])
    );
    assert_eq!(
        driver.register_command(GET_DATA, &current),
        ok(profile(3).as_bytes())
    );
    // A device reset does not forget it, a power cycle does.
    driver.write(misc_ram::RESET, misc_ram::RESET_DEVICE);
    driver.write(misc_ram::TRIGGER, 1);
    assert_eq!(driver.read(misc_ram::RESET), 0);
    assert_eq!(
        driver.register_command(GET_DATA, &current),
        ok(profile(3).as_bytes())
    );

    let (status, all) = driver
        .register_command(GET_DATA, &[data::AVAILABLE_PROFILES, 0, 0])
        .unwrap();
    let all = AvailableProfiles::read_from_bytes(&all).unwrap();
    assert_eq!(status, Status::Ok);
    let bits: u32 = all.bitmap.iter().map(|byte| byte.count_ones()).sum();
    assert_eq!((u32::from(all.count), all.count > 3), (bits, true));
    assert_eq!(
        driver.register_command(SET_PROFILE, profile(all.count).as_bytes()),
        FAILED
    );
    // What every V3 driver from 2.27 on asks after a reset: no fast HBM.
    let fast = driver.register_command(GET_DATA, &[data::AVAILABLE_PROFILES, 5, 0]);
    assert_eq!(fast, ok(AvailableProfiles::default().as_bytes()));
    assert_eq!(driver.register_command(GET_DATA, &[0x10, 0]), UNKNOWN);
    assert_eq!(driver.register_command(GET_DATA, &[]), FAILED);

    assert_eq!(
        driver.register_command(SET_FEATURE, &1u32.to_le_bytes()),
        ok(&[])
    );
    assert_eq!(
        driver.register_command(SET_FEATURE, &2u32.to_le_bytes()),
        FAILED
    );

    driver.rig.function.reset();
    assert_eq!(
        driver.register_command(GET_DATA, &current),
        ok(profile(0).as_bytes())
    );
}

#[test]
fn older_firmware_knows_the_legacy_mailbox_alone() {
    for api_version in 0..=6 {
        let mut driver = Driver::new(Product::Inf2, api_version, false);
        for command in [SET_PROFILE, GET_DATA, SET_FEATURE] {
            assert_eq!(driver.legacy_command(command, &[0; 8]), UNKNOWN);
            assert_eq!(driver.register_command(command, &[0; 8]), None);
        }
        assert_eq!(driver.legacy_command(POST, b"\x01\x011"), ok(&[]));
    }
}

#[test]
fn unknown_commands_are_answered_in_both_forms() {
    for by_message in [false, true] {
        let mut driver = Driver::new(Product::Trn3, 7, by_message);
        for command in [0, 6, 255] {
            assert_eq!(driver.legacy_command(command, b"what"), UNKNOWN);
            assert_eq!(driver.register_command(command, b"what"), UNKNOWN);
        }
    }
}

#[test]
fn a_wrong_crc_has_no_answer_in_memory_and_a_bad_status_in_registers() {
    for by_message in [false, true] {
        let mut driver = Driver::new(Product::Trn2, 7, by_message);
        for broken in [0, 1, 2, 4, 9] {
            driver.sequence = driver.sequence.next();
            let mut request = driver.request(POST, b"\x01\x011");
            // Sequence, command, size, the CRC itself, payload.
            request[broken] ^= 1;
            let sequence = driver.sequence;
            driver.sequence = Sequence::new(request[0]).unwrap();
            assert_eq!(driver.legacy(&request), None, "byte {broken}, legacy");
            assert_eq!(
                driver.registers(&request),
                FAILED,
                "byte {broken}, registers"
            );
            driver.sequence = sequence;
            // The next try is a good one.
            assert_eq!(driver.legacy_command(POST, b"\x01\x011"), ok(&[]));
            assert_eq!(driver.register_command(POST, b"\x01\x011"), ok(&[]));
        }
    }
}

/// Where a test's log goes.
#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn posted_metrics_are_shown_in_the_log() {
    let text = Text::default();
    let writer = text.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let mut driver = Driver::new(Product::Trn1, 7, false);
        driver.legacy_command(POST, b"\x0c\x03i-0\x38\x01\n");
        driver.register_command(POST, b"\x01\x022a\0\0");
        // From a driver that puts them into the window alone.
        driver.write(misc_ram::DATA, u32::from_le_bytes(*b"\x05\x02xy"));
        driver.write(misc_ram::DATA + 4, 0);
        driver.legacy_command(POST, b"");
        driver.legacy_command(POST, b"\x09\xff");
    });
    let text = String::from_utf8(text.0.lock().unwrap().clone()).unwrap();
    for expected in [
        r"INFO neuron_vfio_user::function::requests: metrics posted: 12=i-0 56=\n",
        "metrics posted: 1=2a\n",
        "metrics posted: 5=xy\n",
        "metric 9 says 255 bytes, 0 are left",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

#[test]
fn posts_are_taken_up_to_the_windows_size() {
    for by_message in [false, true] {
        let mut driver = Driver::new(Product::Trn1, 7, by_message);
        let post = [7, 126].into_iter().chain([b'x'; 126]).collect::<Vec<_>>();
        assert_eq!(driver.legacy_command(POST, &post), ok(&[]));
        assert_eq!(driver.register_command(POST, &post), ok(&[]));
        // A metric longer than the post is named in the log and harmless.
        assert_eq!(driver.legacy_command(POST, b"\x01\xffx"), ok(&[]));
        assert_eq!(driver.legacy_command(POST, &[b'x'; 129]), FAILED);
    }
}

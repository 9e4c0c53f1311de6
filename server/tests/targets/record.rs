//! Recordings: as bytes of a stranger's, as entries behind good checks, and of the other targets' runs, which a replay must
//! find the same.
//!
//! The first byte picks; the rest is the recording, its entries, or the other target's input.
use std::io::Write;
use std::sync::{Arc, Mutex};

use neuron_vfio_user::function::Firmware;
use neuron_vfio_user::record::file::BlockWriter;
use neuron_vfio_user::record::{Header, Payload, Replay, ReplayError};

use super::{bench, descriptors, registers};

/// A file in memory that two can hold.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub fn run(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else {
        return;
    };
    match choice % 8 {
        0 => hostile(rest.to_vec()),
        1..=3 => {
            let header = Header {
                version: String::new(),
                product: ["trn1", "trn2", "trn3", "inf2"][usize::from(choice >> 6)].to_owned(),
                platform: "silicon".to_owned(),
                routing_id: 0,
                serial: 1,
                hbm: [32 << 30, 256 << 30, 256 << 30, 32 << 30][usize::from(choice >> 6)],
                firmware: Firmware::default(),
                payload: Payload::Full,
                timing: None,
                msix: false,
                adversary: None,
            };
            let mut writer = BlockWriter::new(Vec::new(), &header).unwrap();
            for block in rest.chunks(1 << 20) {
                writer.block(block).unwrap();
            }
            hostile(writer.into_inner());
        }
        4 | 5 => same(registers::run, *choice, rest),
        _ => same(descriptors::run, *choice, rest),
    }
}

/// Any result will do, in bounded time and memory.
fn hostile(file: Vec<u8>) {
    if let Ok(replay) = Replay::new(file) {
        // What is wrong has words.
        let _ = replay.run().map_err(|error| error.to_string());
    }
}

fn same(target: fn(&[u8]), choice: u8, input: &[u8]) {
    let payload = if choice & 0x10 == 0 {
        Payload::Full
    } else {
        Payload::None
    };
    let out = Shared::default();
    bench::record_next(out.clone(), payload);
    target(input);
    let file = out.take();
    let replay = Replay::new(file.clone()).unwrap();
    match replay.run() {
        Ok(outcome) => assert!(outcome.end.is_some()),
        // This client is no wire: some of its accesses lead nowhere.
        Err(ReplayError::Rule { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    // Recorded anew it is the same again.
    let again = Shared::default();
    if Replay::rewriting(file, again.clone())
        .unwrap()
        .run()
        .is_ok()
    {
        Replay::new(again.take()).unwrap().run().unwrap();
    }
}

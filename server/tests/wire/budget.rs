//! Serving a part of what has arrived.
use neuron_vfio_user::vfio::codec::Command;
use neuron_vfio_user::vfio::{HEAVY_COST, Inbox, MESSAGE_COST, Served, Session};

use crate::mock::{BAR2, Mock};
use crate::peer::QEMU_VERSION;

fn fill(inbox: &mut Inbox, bytes: &[u8]) {
    inbox.space()[..bytes.len()].copy_from_slice(bytes);
    inbox.filled(bytes.len(), [], false);
}

#[test]
fn a_budget_ends_between_messages_and_loses_none() {
    const WRITES: u64 = 100;
    let (mut mock, mut session, mut inbox) =
        (Mock::default(), Session::default(), Inbox::default());
    let mut bytes = Vec::new();
    let version = Command::Version {
        major: 0,
        minor: 0,
        data: QEMU_VERSION,
    };
    version.encode(1, false, &mut bytes);
    fill(&mut inbox, &bytes);
    session.serve(&mut mock, &mut inbox).unwrap();
    bytes.clear();
    for _ in 0..WRITES {
        Command::RegionWrite {
            region: BAR2,
            offset: 0,
            data: &[1, 0, 0, 0],
        }
        .encode(2, true, &mut bytes);
    }
    fill(&mut inbox, &bytes);
    let mut served = 0;
    loop {
        let mut budget = 7 * MESSAGE_COST;
        let why = session.serve_some(&mut mock, &mut inbox, &mut budget);
        let now = session.counters().posted_writes;
        match why.unwrap() {
            Served::Budget => assert_eq!((now - served, budget), (7, 0)),
            Served::All => break assert_eq!(budget, (7 - WRITES % 7) * MESSAGE_COST),
            Served::OutboxFull => panic!("nothing was answered"),
        }
        served = now;
    }
    assert_eq!(session.counters().posted_writes, WRITES);
}

#[test]
fn resets_and_maps_cost_more() {
    let (mut mock, mut session, mut inbox) =
        (Mock::default(), Session::default(), Inbox::default());
    let mut bytes = Vec::new();
    for _ in 0..10 {
        Command::DeviceReset.encode(1, true, &mut bytes);
    }
    fill(&mut inbox, &bytes);
    let mut budget = 3 * HEAVY_COST;
    let why = session.serve_some(&mut mock, &mut inbox, &mut budget);
    assert_eq!(why, Ok(Served::Budget));
    assert_eq!(session.counters().messages, 3);
}

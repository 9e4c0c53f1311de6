//! Mailbox messages of any content: round trips, and no damage goes unnoticed.
#![cfg(not(loom))]

use neuron_protocol::mailbox::{
    Command, MailboxError, Request, RequestHeader, Response, Sequence, Status, build_request,
    build_response,
};
use proptest::prelude::*;

fn sequences() -> impl Strategy<Value = Sequence> {
    (1..=255_u8).prop_map(|n| Sequence::new(n).unwrap())
}

proptest! {
    #[test]
    fn requests_round_trip(
        sequence in sequences(),
        command in prop::sample::select(&Command::ALL[..]),
        payload in prop::collection::vec(any::<u8>(), 0..400),
        slack in 0..64_usize,
    ) {
        let mut buffer = vec![0xa5; 8 + payload.len() + slack];
        let size = build_request(&mut buffer, sequence, command, &payload).unwrap();
        prop_assert_eq!(size, 8 + payload.len());
        let request = Request { sequence, command: command.number(), payload: &payload };
        prop_assert_eq!(Request::parse(&buffer), Ok(request));
        let (words, data) = buffer.split_at(8);
        let word = |at: usize| u32::from_le_bytes(words[at..at + 4].try_into().unwrap());
        let header = RequestHeader::from_words([word(0), word(4)]);
        prop_assert_eq!(Request::from_parts(header, data), Ok(request));
        if size > 8 {
            let short = build_request(&mut vec![0; size - 1], sequence, command, &payload);
            prop_assert_eq!(short, Err(MailboxError::TooLarge { size, available: size - 1 }));
        }
    }

    #[test]
    fn one_flipped_bit_is_always_seen(
        sequence in sequences(),
        payload in prop::collection::vec(any::<u8>(), 0..64),
        at in any::<prop::sample::Index>(),
        bit in 0..8_u8,
    ) {
        let mut buffer = vec![0; 8 + payload.len()];
        build_request(&mut buffer, sequence, Command::PostToCw, &payload).unwrap();
        let at = at.index(buffer.len());
        buffer[at] ^= 1_u8 << bit;
        prop_assert!(Request::parse(&buffer).is_err());
    }

    #[test]
    fn responses_round_trip(
        sequence in sequences(),
        status in any::<u8>(),
        payload in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut buffer = vec![0xa5; 512];
        let size = build_response(&mut buffer, sequence, Status::from(status), &payload).unwrap();
        prop_assert_eq!(size, 4 + payload.len());
        let response = Response::parse(&buffer).unwrap();
        prop_assert_eq!((response.sequence, u8::from(response.status)), (sequence.get(), status));
        prop_assert_eq!(response.payload, &payload[..]);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(request) = Request::parse(&bytes) {
            prop_assert!(request.payload.len() + 8 <= bytes.len());
        }
        if let Ok(response) = Response::parse(&bytes) {
            prop_assert!(response.payload.len() + 4 <= bytes.len());
        }
    }
}

#[test]
fn the_largest_request_fills_the_hosts_buffer() {
    let mut buffer = vec![0; 0x1_0010];
    let largest = vec![1; 0xffff - 8];
    let size = build_request(&mut buffer, Sequence::FIRST, Command::PostToCw, &largest).unwrap();
    assert_eq!(size, 0xffff);
    assert!(Request::parse(&buffer).is_ok());
    let more = vec![1; 0xffff - 7];
    let error = build_request(&mut buffer, Sequence::FIRST, Command::PostToCw, &more);
    assert_eq!(
        error,
        Err(MailboxError::TooLarge {
            size: 0x1_0000,
            available: 0xffff
        })
    );
}

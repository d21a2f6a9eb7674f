//! The migration protocol.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use amdahl_migrate::wire::{HEAD, Head, Message, PAYLOAD_MAX, seal};
use amdahl_migrate::{Arrival, Stream};
use amdahl_pager::{Backing, Mapping, PAGE};

/// Messages one after the other, as they are; and each with its head made right: read and written again they are the same, and a
/// destination that is told them all stops where something is wrong.
pub(crate) fn frames(bytes: &[u8]) {
    if let Some((head, payload)) = bytes.split_first_chunk::<HEAD>()
        && let Ok(head) = Head::of(head)
    {
        assert!(head.len <= PAYLOAD_MAX);
        if payload.len() >= head.len && head.check(&payload[..head.len]).is_ok() {
            let _ = Message::of(head.kind, &payload[..head.len]);
        }
    }
    let mut told = Vec::new();
    let mut rest = bytes;
    while let Some((head, after)) = rest.split_first_chunk::<HEAD>() {
        let kind = head[0];
        let len = u32::from_le_bytes(head[4..8].try_into().expect("4 bytes")) as usize;
        let (payload, after) = after.split_at(len.min(after.len()).min(PAYLOAD_MAX));
        rest = after;
        let mut frame = vec![0; HEAD];
        frame.extend_from_slice(payload);
        seal(kind, &mut frame);
        if let Ok(message) = Message::of(kind, payload) {
            let mut again = Vec::new();
            message.frame(&mut again);
            let is_reason = matches!(message, Message::Cancel(_) | Message::Refused(_));
            assert!(is_reason || again == frame);
            // With pages to fetch the destination would connect to somebody.
            if matches!(message, Message::Missing(_)) {
                continue;
            }
        }
        told.extend(frame);
    }
    let memory = Mapping::new(8 * PAGE, Backing::Small).expect("memory");
    let arrival = Arrival {
        state_bytes_max: 1000,
        ..Arrival::default()
    };
    // SAFETY: nobody else has the memory.
    let offer = unsafe { arrival.receive(&Arc::new(memory), Told(&told)) };
    if let Ok(offer) = offer {
        assert!(offer.state.len() <= 1000 && offer.missing_pages() == 0);
        offer.reject("that was all");
    }
}

/// A connection to somebody who says all at once, and does not listen.
struct Told<'a>(&'a [u8]);

impl Read for Told<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Told<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Told<'_> {
    fn set_timeout(&mut self, _: Duration) -> io::Result<()> {
        Ok(())
    }
}

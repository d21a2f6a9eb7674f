//! Cloud Hypervisor's words, as `amdahl pager offload` reads them.

#[path = "../../../bin/amdahl/src/pager/offload/described.rs"]
mod described;
#[allow(dead_code)] // The sender says more than it reads.
#[path = "../../../bin/amdahl/src/pager/offload/wire.rs"]
mod wire;

use amdahl_pager::PAGE;
use described::{Described, SLOTS_MAX, described};
use wire::{Asked, Command, HEAD, RANGE, asked, is_ok, range, request, response};

/// A `migration_config.json`, and a connection for page faults.
pub(crate) fn words(bytes: &[u8]) {
    if let Ok(slots) = described(bytes) {
        assert!((1..=SLOTS_MAX).contains(&slots.len()));
        for Described {
            gpa,
            size,
            file_offset,
            ..
        } in slots
        {
            assert!(size > 0 && size.is_multiple_of(PAGE as u64));
            for start in [gpa, file_offset] {
                assert!(start.is_multiple_of(PAGE as u64) && start + size <= 1 << 52);
            }
        }
    }
    let mut rest = bytes;
    while let Some((head, after)) = rest.split_first_chunk::<HEAD>() {
        rest = after;
        // Of the six bytes after the command nothing is asked.
        let is = |other: [u8; HEAD]| head[..2] == other[..2] && head[8..] == other[8..];
        assert_eq!(is_ok(head), is(response(true)));
        match asked(head) {
            Some(Asked::PageFault) => {
                assert!(is(request(Command::PageFault, RANGE as u64)));
                let Some((bytes, after)) = rest.split_first_chunk::<RANGE>() else {
                    return;
                };
                rest = after;
                let (gpa, len) = range(bytes);
                assert_eq!([gpa.to_le_bytes(), len.to_le_bytes()].concat(), bytes);
            }
            Some(Asked::Abandon) => assert!(is(request(Command::Abandon, 0))),
            None => {}
        }
    }
}

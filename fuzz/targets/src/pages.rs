//! The page protocol.

use amdahl_remote::wire::{
    ANSWER, AnswerHead, HELLO, READ_MAX, REQUEST, Request, Runs, WELCOME, Welcome, check_hello,
    seal, set_answer, set_of,
};

/// A frame of each kind, as it is and with its checksum made right, and what follows the head of an answer.
pub(crate) fn frames(bytes: &[u8]) {
    if let Some((hello, _)) = bytes.split_first_chunk::<HELLO>() {
        let _ = check_hello(hello);
    }
    for mut welcome in both::<WELCOME>(bytes) {
        if let Ok(read) = Welcome::of(&welcome) {
            // What has no meaning yet is not kept.
            welcome[10..16].fill(0);
            seal(&mut welcome);
            assert_eq!(read.bytes(), welcome);
        }
    }
    for mut request in both::<REQUEST>(bytes) {
        if let Ok(read) = Request::of(&request) {
            request[6..8].fill(0);
            seal(&mut request);
            assert_eq!(read.bytes(), request);
            assert!((1..=READ_MAX).contains(&read.len));
            assert!(read.answer_max() < 2 * READ_MAX);
        }
    }
    for mut head in both::<ANSWER>(bytes) {
        if let Ok(read) = AnswerHead::of(&head) {
            head[5..8].fill(0);
            seal(&mut head);
            assert_eq!(read.bytes(), head);
        }
    }
    if let Some((pages, payload)) = bytes.split_first_chunk::<8>() {
        let pages = u64::from_le_bytes(*pages);
        if let Ok(ranges) = set_of(payload, pages) {
            assert!(
                ranges
                    .iter()
                    .all(|range| !range.is_empty() && range.end <= pages)
            );
            assert_eq!(set_answer(0, &ranges)[ANSWER..], *payload);
        }
    }
    if let Some((len, payload)) = bytes.split_first_chunk::<4>() {
        let len = u32::from_le_bytes(*len) % READ_MAX + 1;
        if let Ok(runs) = Runs::of(payload, len) {
            runs.copy_to(&mut vec![0; len as usize]);
        }
    }
}

/// The first bytes, and the same with a right checksum.
fn both<const N: usize>(bytes: &[u8]) -> Vec<[u8; N]> {
    let Some((frame, _)) = bytes.split_first_chunk::<N>() else {
        return Vec::new();
    };
    let mut sealed = *frame;
    seal(&mut sealed);
    vec![*frame, sealed]
}

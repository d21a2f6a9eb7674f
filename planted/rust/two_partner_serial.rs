//! Two causes: one thread prepares alone, then a pair of channels is bound by the slow
//! side. With n = 2 the channel loses 29 % and the serial phase 18 %.
mod planted;
use planted::{another, begin, burn, tell};
use std::sync::atomic::AtomicI64;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Instant;

const LETTERS: i64 = 90;
const SERIAL: u64 = 150_000;

static TAKEN: AtomicI64 = AtomicI64::new(0);

#[inline(never)]
fn sort_the_whole_mail() {
    burn(SERIAL);
}

#[inline(never)]
fn push_through_the_slot(slot: &SyncSender<u32>) -> f64 {
    let since = Instant::now();
    slot.send(1).expect("the receiver waits for all");
    since.elapsed().as_secs_f64()
}

#[inline(never)]
fn stamp_a_letter() {
    burn(333);
}

#[inline(never)]
fn read_a_letter() {
    burn(3000);
}

fn main() {
    let n = begin();
    let since = Instant::now();
    sort_the_whole_mail();
    let serial = (n - 1) as f64 * since.elapsed().as_secs_f64();
    let mut waited = 0.0;
    if n == 1 {
        for _ in 0..LETTERS {
            stamp_a_letter();
            read_a_letter();
        }
    } else {
        let (slot, inside) = sync_channel(1);
        let clerks: Vec<_> = (1..n)
            .map(|_| {
                let slot = slot.clone();
                std::thread::spawn(move || {
                    let mut waited = 0.0;
                    while another(&TAKEN, LETTERS) {
                        stamp_a_letter();
                        waited += push_through_the_slot(&slot);
                    }
                    waited
                })
            })
            .collect();
        drop(slot);
        while inside.recv().is_ok() {
            read_a_letter();
        }
        waited = clerks
            .into_iter()
            .map(|thread| thread.join().expect("a thread"))
            .sum();
    }
    tell("partner", waited);
    tell("serial", serial);
}

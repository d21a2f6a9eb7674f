//! n - 1 senders fill a bounded channel; the one receiver needs three times as long per
//! parcel as they do, so that they wait in `send`.
mod planted;
use planted::{another, begin, burn, tell};
use std::sync::atomic::AtomicI64;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

const PARCELS: i64 = 200;

static TAKEN: AtomicI64 = AtomicI64::new(0);

#[inline(never)]
fn hand_over_a_parcel(counter: &SyncSender<u32>) -> f64 {
    let since = Instant::now();
    counter.send(1).expect("the receiver waits for all");
    since.elapsed().as_secs_f64()
}

#[inline(never)]
fn await_a_parcel(counter: &Receiver<u32>, waited: &mut f64) -> bool {
    let since = Instant::now();
    let more = counter.recv().is_ok();
    *waited += since.elapsed().as_secs_f64();
    more
}

#[inline(never)]
fn pack_a_parcel() {
    burn(700);
}

#[inline(never)]
fn deliver_a_parcel() {
    burn(2100);
}

fn main() {
    let n = begin();
    let mut waited = 0.0;
    if n == 1 {
        for _ in 0..PARCELS {
            pack_a_parcel();
            deliver_a_parcel();
        }
    } else {
        let (sender, receiver) = sync_channel(1);
        let packers: Vec<_> = (1..n)
            .map(|_| {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    let mut waited = 0.0;
                    while another(&TAKEN, PARCELS) {
                        pack_a_parcel();
                        waited += hand_over_a_parcel(&sender);
                    }
                    waited
                })
            })
            .collect();
        drop(sender);
        while await_a_parcel(&receiver, &mut waited) {
            deliver_a_parcel();
        }
        waited += packers
            .into_iter()
            .map(|thread| thread.join().expect("a thread"))
            .sum::<f64>();
    }
    tell("partner", waited);
}

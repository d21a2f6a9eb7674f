//! Threads that take faults off readers who have too many, and fetch in the background while there are none.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::queue::{Fault, Queue};
use super::{Outcome, serve};
use crate::inner::{Inner, Next, Trouble};
use crate::sys::clock::now_ns;

/// What a worker does until the pager stops. Faults come before the background, of which a block at a time is done.
pub(crate) fn run(inner: &Inner, handed: &Queue, number: usize) {
    let me = u64::MAX - number as u64;
    loop {
        // Before `stop` is looked at: who sets it makes another turn afterwards.
        let turn = handed.turn();
        if inner.stop.load(Ordering::SeqCst) {
            return;
        }
        let next = || match number < inner.ahead {
            true => inner.next_block(now_ns()),
            false => Next::Nothing,
        };
        let fault = handed.pop().or_else(|| match next() {
            Next::Pages(pages) => match inner.prefetch(pages.clone(), me) {
                // The reader has to read a message first.
                Err(Trouble::Changing) => handed.wait(turn, Duration::from_millis(1)),
                Err(why) => {
                    inner.block_failed(&pages, why);
                    None
                }
                Ok(()) => None,
            },
            Next::After(pause) => handed.wait(turn, pause),
            Next::Nothing => handed.wait(turn, Duration::MAX),
        });
        if let Some(fault) = fault {
            serve_handed(inner, fault);
        }
    }
}

/// Serves what waits in a queue, until it is empty.
pub(crate) fn drain(inner: &Inner, queue: &Queue) {
    while !inner.stop.load(Ordering::SeqCst) {
        let Some(fault) = queue.pop() else { return };
        serve_handed(inner, fault);
    }
}

fn serve_handed(inner: &Inner, fault: Fault) {
    if serve(inner, fault) == Outcome::Later {
        // Its thread faults again, and its reader, who reads messages, gets it.
        let page = fault.page..fault.page + 1;
        let shard = inner.shard(page.start);
        let _ = shard.uffd.wake(inner.space.addresses(&page));
    }
}

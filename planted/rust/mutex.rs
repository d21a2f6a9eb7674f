//! A `std::sync::Mutex` held for 3/4 of the work; the main thread only joins.
mod planted;
use planted::{another, begin, burn, tell};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

const OPS: i64 = 480;

static TAKEN: AtomicI64 = AtomicI64::new(0);

#[inline(never)]
fn lock_the_shared_map<'a>(map: &'a Mutex<u64>, waited: &mut f64) -> MutexGuard<'a, u64> {
    let since = Instant::now();
    let held = map.lock().expect("nobody panics");
    *waited += since.elapsed().as_secs_f64();
    held
}

#[inline(never)]
fn update_the_map(entries: &mut u64) {
    burn(900);
    *entries += 1;
}

#[inline(never)]
fn think_alone() {
    burn(300);
}

fn main() {
    let n = begin();
    let map = Arc::new(Mutex::new(0));
    let crew: Vec<_> = (0..n)
        .map(|_| {
            let map = Arc::clone(&map);
            std::thread::spawn(move || {
                let mut waited = 0.0;
                while another(&TAKEN, OPS) {
                    update_the_map(&mut lock_the_shared_map(&map, &mut waited));
                    think_alone();
                }
                waited
            })
        })
        .collect();
    tell(
        "lock-wait",
        crew.into_iter()
            .map(|thread| thread.join().expect("a thread"))
            .sum(),
    );
}

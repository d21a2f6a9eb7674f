//! All interleavings of a reader and a writer, by loom: `RUSTFLAGS="--cfg loom" cargo test -p amdahl-phantom-page --release --lib models`.

use loom::sync::Arc;
use loom::thread;

use crate::layout::{PAGE_BYTES, Page};
use crate::{Cpus, Snapshot, Source};

fn whole(n: u64) -> Snapshot {
    Snapshot {
        time_ns: n,
        ticks: n,
        tick_us: 1_000,
        window_us: 1_000,
        runnable: Cpus::from_bits(n as u32),
        phantom: Cpus::from_bits(n as u32),
        allowed: 1,
        ..Snapshot::default()
    }
}

/// What is read is one tick's, and not an older one than was read before.
#[test]
fn ticks_are_never_mixed() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let page = Arc::new(Page::from_bytes(&[0; PAGE_BYTES]));
        page.begin(1, Source::Bpf);
        page.publish(whole(1));
        let writer = {
            let page = page.clone();
            thread::spawn(move || page.publish(whole(2)))
        };
        let mut last = 1;
        for _ in 0..2 {
            if let Ok(read) = page.read() {
                assert_eq!(read, whole(read.ticks));
                assert!(read.ticks >= last);
                last = read.ticks;
            }
        }
        writer.join().unwrap();
        assert_eq!(page.read(), Ok(whole(2)));
    });
}

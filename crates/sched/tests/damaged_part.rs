//! The panic hook belongs to the process: this test has one for itself.

use std::sync::atomic::{AtomicU32, Ordering};

use amdahl_sched::event::Event;
use amdahl_sched::recording::{Meta, PartWriter, ReadError, read_part};
use amdahl_topology::Topology;

static TOLD: AtomicU32 = AtomicU32::new(0);

/// What a damaged part made the parquet crate assert was printed with a backtrace above the error
/// that was meant for the user.
#[test]
fn damage_is_an_error_and_no_message_besides() {
    std::panic::set_hook(Box::new(|_| {
        TOLD.fetch_add(1, Ordering::Relaxed);
    }));
    let mut writer = PartWriter::new(Meta {
        topology: Topology::synthetic("2 core").unwrap(),
        tick_ns: 4_000_000,
        begin: 0,
        is_everyone: true,
    });
    for ts in 0..20 {
        let (from, to) = (0, 1);
        writer.add(Event::Migrate {
            ts,
            tid: 7,
            from,
            to,
        });
    }
    let good = writer.write(Vec::new()).unwrap();
    let mut asserted = 0;
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0xff;
        let read = read_part(bad);
        asserted +=
            u32::from(matches!(read, Err(ReadError::Parquet(why)) if why == "it is damaged"));
    }
    assert!(asserted > 0, "the crate asserts nothing any more");
    assert_eq!(TOLD.load(Ordering::Relaxed), 0, "of {asserted}");
}

//! The panic hook belongs to the process: this test has one for itself.

use std::sync::atomic::{AtomicU32, Ordering};

use amdahl_report::samples;
use amdahl_report::schema::SampleRow;

static TOLD: AtomicU32 = AtomicU32::new(0);

/// What a damaged file made the parquet crate assert was printed with a backtrace above the error
/// that was meant for the user.
#[test]
fn damage_is_an_error_and_no_message_besides() {
    std::panic::set_hook(Box::new(|_| {
        TOLD.fetch_add(1, Ordering::Relaxed);
    }));
    let row = |count| SampleRow {
        count,
        symbol: format!("work{count}"),
        ..SampleRow::default()
    };
    let good = samples::write((0..20).map(row), Vec::new()).unwrap();
    let mut asserted = 0;
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0xff;
        let read = samples::read_from(bytes::Bytes::from(bad));
        asserted += u32::from(read == Err("it is damaged".to_owned()));
    }
    assert!(asserted > 0, "the crate asserts nothing any more");
    assert_eq!(TOLD.load(Ordering::Relaxed), 0, "of {asserted}");
}

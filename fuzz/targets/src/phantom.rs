//! Pages of estimates, and the texts of `/proc` that estimates are made of.

use amdahl_phantom::text;
use amdahl_phantom_page::{PAGE_BYTES, read_bytes};

/// A page that anybody may have written.
pub(crate) fn page(bytes: &[u8]) {
    let mut page = [0; PAGE_BYTES];
    let len = bytes.len().min(PAGE_BYTES);
    page[..len].copy_from_slice(&bytes[..len]);
    if let Ok(snapshot) = read_bytes(&page) {
        let most = f64::from(snapshot.allowed);
        assert!((1.0..=65_535.0).contains(&most));
        for figure in [snapshot.runnable, snapshot.idle, snapshot.running] {
            assert!(figure.to_f64() <= most && figure.round() <= snapshot.allowed);
        }
        assert!(snapshot.tick_us > 0 && snapshot.window_us > 0);
        let _ = (snapshot.is_stale(0), snapshot.is_stale(u64::MAX));
    }
}

/// Texts of `/proc`.
pub(crate) fn text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    assert!(text::cpu_ticks(&text).count() <= text.lines().count());
    let _ = (
        text::schedstat(&text),
        text::some_pressure(&text),
        text::runnable_threads(&text),
    );
    if let Some(stat) = text::stat(&text) {
        assert!(text.contains(&stat.name));
    }
}

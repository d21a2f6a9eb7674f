//! Loads a file lazily: `cargo run -p amdahl-pager --example lazy -- FILE`.

use std::path::PathBuf;
use std::sync::Arc;

use amdahl_pager::{Backing, FileSource, Mapping, PAGE, Pager};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args_os().nth(1).map(PathBuf::from);
    let file = file.map_or_else(std::env::current_exe, Ok)?;
    let source = FileSource::open(&file)?;
    let memory = Arc::new(Mapping::new(source.len() as usize, Backing::Huge)?);
    let pager = Pager::builder()
        .mapping(&memory, 0)
        .source(Arc::new(source))
        .start()?;

    // Nothing has been read until now; this brings what it touches.
    let mut bytes = [0; 16];
    for offset in (0..memory.len()).step_by(64 * PAGE) {
        memory.read(offset, &mut bytes);
    }
    let stats = pager.stats();
    println!(
        "{}: {} pages of {}, {} faults, {} fetched, {} zeros that were not read",
        file.display(),
        pager.pages() - pager.missing_pages(),
        pager.pages(),
        stats.faults,
        stats.pages,
        stats.zero_pages
    );
    if let Some(p99) = stats.latency_ns.quantile(0.99) {
        println!("99 of 100 faults took at most {} us", p99 / 1000);
    }
    let (_, missing) = pager.finish();
    println!("{missing} pages could not be had");
    Ok(())
}

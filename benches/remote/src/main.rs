//! Measures memory of other hosts beside TLS alone and beside what the link allows.

mod link;
mod postcopy;
mod tls;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_figures::{Figure, Random, Target, Unit, median};
use amdahl_pager::{MemorySource, Source, SourceError};
use amdahl_remote::{Connect, Credentials, Remote, Serve, Server};
use clap::Parser;
use postcopy::What;

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;
/// Bytes of the memory that is served.
const LEN: usize = 512 << 20;
/// What a page travels to the other side, and back.
const WAY: Duration = Duration::from_millis(10);
/// Bytes that the slow link passes on in a second.
const LINK: f64 = 64e6;

#[derive(Parser)]
#[command(
    about = "Measures memory of other hosts beside TLS alone and beside what the link allows",
    after_help = "\
Examples:
  amdahl-bench-remote            all figures
  amdahl-bench-remote 'TLS'      only those whose names contain one of the words"
)]
struct Args {
    /// Parts of names of figures; all without
    words: Vec<String>,
    /// Rounds of which each figure is the median
    #[arg(long, value_name = "N", default_value_t = 7)]
    rounds: usize,
    #[command(flatten)]
    output: amdahl_figures::Output,
}

fn main() -> ExitCode {
    match postcopy::serve_if_asked() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("amdahl-bench-remote: {error}");
            return ExitCode::FAILURE;
        }
    }
    let args = Args::parse();
    let mut figures = Vec::new();
    let mut add = |name: &str, target: Target, measure: &dyn Fn() -> Measured| {
        if !amdahl_figures::is_wanted(&args.words, name) {
            return;
        }
        let (value, versus) = match measure() {
            Ok((value, versus)) => (Ok(value), versus),
            Err(error) => (Err(error.to_string()), String::new()),
        };
        figures.push(Figure {
            name: name.into(),
            value,
            unit: Unit::Ratio,
            target,
            versus,
        });
    };
    add(
        "TLS on loopback, 1 stream: throughput",
        Target::AtLeast(0.7),
        &|| throughput(args.rounds, 1),
    );
    add(
        "TLS on loopback, 4 streams: throughput",
        Target::Stated,
        &|| throughput(args.rounds, 4),
    );
    add("20 ms away: random page, p50", Target::AtMost(1.1), &|| {
        random_pages(0.5)
    });
    add(
        "20 ms away: random page, p99, beside a full link",
        Target::Stated,
        &|| beside_a_full_link(0.99),
    );
    add(
        "20 ms away, 64 MB/s: throughput",
        Target::AtLeast(0.9),
        &full_link,
    );
    for (name, what) in [
        ("post-copy side by side with QEMU: total time", What::Total),
        (
            "post-copy side by side with QEMU: random fault, p50",
            What::Median,
        ),
        (
            "post-copy side by side with QEMU: random fault, p99",
            What::Slowest,
        ),
        (
            "post-copy side by side with QEMU: all random faults together",
            What::Lost,
        ),
    ] {
        add(name, Target::AtMost(1.0), &|| {
            postcopy::by_qemu(what, args.rounds.min(5))
        });
    }
    for (name, what) in [
        (
            "lazy restore side by side with CRIU: total time",
            What::Total,
        ),
        (
            "lazy restore side by side with CRIU: random fault, p50",
            What::Median,
        ),
        (
            "lazy restore side by side with CRIU: random fault, p99",
            What::Slowest,
        ),
        (
            "lazy restore side by side with CRIU: all random faults together",
            What::Lost,
        ),
    ] {
        add(name, Target::AtMost(1.0), &|| {
            postcopy::by_criu(what, args.rounds.min(5))
        });
    }
    let done = args.output.finish("remote", &figures);
    for figure in &figures {
        eprintln!("{}: {}", figure.name, figure.versus);
    }
    args.output.exit_code("amdahl-bench-remote", done)
}

/// The value, and what it was compared with.
type Measured = Result<(f64, String), Box<dyn std::error::Error>>;

fn memory() -> Arc<[u8]> {
    // No zero page, nothing that repeats.
    let mut random = Random(1);
    let mut memory = vec![0; LEN];
    for word in memory.chunks_exact_mut(8) {
        word.copy_from_slice(&random.number().to_le_bytes());
    }
    memory.into()
}

fn serve(memory: &Arc<[u8]>, credentials: Option<&Credentials>) -> Serve {
    let source = Arc::new(MemorySource::of_bytes(memory.clone()));
    Serve {
        credentials: credentials.cloned(),
        ..Serve::new(source, memory.len() as u64, *b"amdahl-bench-mem")
    }
}

/// Reads the first `bytes`, by so many threads, a huge page each.
fn read_ahead(remote: &Remote, bytes: usize, threads: usize) -> Result<(), SourceError> {
    let next = AtomicUsize::new(0);
    let read = || {
        let mut into = vec![0; BLOCK];
        loop {
            let at = next.fetch_add(BLOCK, Ordering::Relaxed);
            if at >= bytes {
                return Ok(());
            }
            remote.read_ahead(at as u64, &mut into)?;
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        let results = threads
            .into_iter()
            .map(|thread| thread.join().expect("reads do not panic"));
        results.collect()
    })
}

fn throughput(rounds: usize, streams: usize) -> Measured {
    let folder = tempfile::tempdir()?;
    let credentials = tls::credentials(folder.path(), "127.0.0.1")?;
    let memory = memory();
    let server = Server::start("127.0.0.1:0", serve(&memory, Some(&credentials)))?;
    let (mut ratios, mut alone, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let seconds = tls::one_stream(&credentials, &memory)?;
        let remote = Remote::connect(Connect {
            credentials: Some(credentials.clone()),
            streams,
            ..Connect::new(server.address().to_string())
        })?;
        let begun = Instant::now();
        read_ahead(&remote, LEN, 4)?;
        let took = begun.elapsed().as_secs_f64();
        ratios.push(seconds / took);
        alone.push(LEN as f64 / 1e6 / seconds);
        ours.push(LEN as f64 / 1e6 / took);
    }
    let versus = format!(
        "bytes a second of memory, {:.0} MB/s / of one TLS connection that does nothing else, {:.0} MB/s; medians of {rounds} rounds",
        median(ours),
        median(alone)
    );
    Ok((median(ratios), versus))
}

/// Random pages from one thread, in units of the way there and back.
fn latencies(remote: &Remote, count: usize) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let mut random = Random(2);
    let mut all = Vec::new();
    for _ in 0..count {
        let page = random.below(remote.len() / PAGE as u64);
        let begun = Instant::now();
        remote.read(page * PAGE as u64, &mut [0; PAGE])?;
        all.push(begun.elapsed().as_secs_f64() / (2.0 * WAY.as_secs_f64()));
    }
    all.sort_by(f64::total_cmp);
    Ok(all)
}

/// Memory behind a long link, by TLS.
struct Far {
    remote: Remote,
    _server: Server,
    _link: (link::Side, link::Side),
}

fn far(link: f64) -> Result<Far, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let (near, far) = link::new(WAY, link)?;
    let address = format!("{}:7000", far.address());
    let credentials = tls::credentials(folder.path(), &far.address().to_string())?;
    let what = serve(&memory(), Some(&credentials));
    let at = address.clone();
    let server = far.run(move || Server::start(&at, what))?;
    let connect = Connect {
        credentials: Some(credentials),
        ..Connect::new(address)
    };
    Ok(Far {
        remote: near.run(|| Remote::connect(connect))?,
        _server: server,
        _link: (near, far),
    })
}

fn random_pages(quantile: f64) -> Measured {
    let far = far(f64::INFINITY)?;
    let remote = &far.remote;
    let all = latencies(remote, 200)?;
    let value = all[(quantile * all.len() as f64) as usize];
    Ok((
        value,
        "time of a random page / one round trip of 20 ms, of 200 pages, by TLS between two network namespaces".into(),
    ))
}

fn beside_a_full_link(quantile: f64) -> Measured {
    let far = far(LINK)?;
    let remote = &far.remote;
    let is_done = AtomicBool::new(false);
    let all = thread::scope(|scope| {
        for thread in 0..4 {
            let is_done = &is_done;
            scope.spawn(move || {
                let mut into = vec![0; BLOCK];
                let mut block = thread;
                while !is_done.load(Ordering::Relaxed) {
                    let at = (block * BLOCK % LEN) as u64;
                    remote
                        .read_ahead(at, &mut into)
                        .expect("the background reads");
                    block += 4;
                }
            });
        }
        let all = latencies(remote, 200);
        is_done.store(true, Ordering::Relaxed);
        all
    })?;
    let value = all[(quantile * all.len() as f64) as usize];
    Ok((value, "time of a random page / one round trip of 20 ms, while the background fills a link of 64 MB/s".into()))
}

fn full_link() -> Measured {
    let far = far(LINK)?;
    let remote = &far.remote;
    let begun = Instant::now();
    let bytes = 128 << 20;
    read_ahead(remote, bytes, 4)?;
    let rate = bytes as f64 / begun.elapsed().as_secs_f64();
    Ok((
        rate / LINK,
        "bytes a second of memory, by TLS between two network namespaces / of the link, with a round trip of 20 ms".into(),
    ))
}

//! `amdahl pager migrate`: memory that threads write moves to another amdahl.

mod demo;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use amdahl_migrate::{
    Arrival, Departed, Departure, DepartureStats, Error, Limits, Round, Stream, tls_accept,
    tls_connect,
};
use amdahl_pager::{Backing, Mapping, PAGE};
use serde_json::json;

use crate::cli::migrate::{PagerMigrate, Way};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::screen;

use demo::{Demo, Settings, Stopped};

/// Moves memory, to us or from us.
pub fn main(args: &PagerMigrate) -> Result<u8, Failure> {
    let memory = Mapping::new(args.memory, Backing::Small)
        .map_err(|error| Failure::machine(error.to_string()))?;
    let memory = Arc::new(memory);
    match (&args.to, &args.listen) {
        (Some(way), _) => depart(args, way, memory),
        (None, Some(way)) => arrive(args, way, memory),
        (None, None) => Err(Failure::usage("--to or --listen is needed".to_owned())),
    }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Unavailable(why) => Failure::machine(why),
        Error::Config(_) => Failure::usage(error.to_string()),
        error => Failure::result(error.to_string()),
    }
}

fn at(way: &str, error: std::io::Error) -> Failure {
    Failure::result(format!("{way}: {error}"))
}

/// A connection, the address that pages are served at, and the one that they are fetched from.
struct Connection {
    stream: Box<dyn Stream>,
    here: String,
    there: String,
}

fn unix(stream: UnixStream) -> Connection {
    Connection {
        stream: Box::new(stream),
        here: "127.0.0.1:0".to_owned(),
        there: "127.0.0.1".to_owned(),
    }
}

fn tcp(args: &PagerMigrate, socket: TcpStream, is_client: bool) -> Result<Connection, Failure> {
    let addresses = socket
        .local_addr()
        .and_then(|here| Ok((here.ip(), socket.peer_addr()?.ip())));
    let (here, there) = addresses.map_err(|error| at("the connection", error))?;
    let name = args
        .tls
        .tls_name
        .clone()
        .unwrap_or_else(|| there.to_string());
    let stream: Box<dyn Stream> = match args.tls.credentials() {
        // The memory of a VM goes this way.
        None if !there.is_loopback() => {
            return Err(Failure::usage(format!(
                "{there} is another host: give --tls-certificate, --tls-key and --tls-authorities"
            )));
        }
        None => Box::new(socket),
        Some(credentials) if is_client => {
            Box::new(tls_connect(socket, &credentials, &name).map_err(failure)?)
        }
        Some(credentials) => Box::new(tls_accept(socket, &credentials).map_err(failure)?),
    };
    Ok(Connection {
        stream,
        here: std::net::SocketAddr::new(here, 0).to_string(),
        there: there.to_string(),
    })
}

/// A line for who watches.
fn tell(is_quiet: bool, line: &str) {
    if !is_quiet {
        let _ = writeln!(anstream::stderr(), "{line}");
    }
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn round(round: &Round) -> String {
    format!(
        "{} pages in {}, {} written meanwhile",
        round.pages,
        millis(round.took),
        round.dirty_pages
    )
}

fn depart(args: &PagerMigrate, way: &Way, memory: Arc<Mapping>) -> Result<u8, Failure> {
    let connection = match way {
        Way::Unix(path) => {
            let name = path.display().to_string();
            unix(UnixStream::connect(path).map_err(|error| at(&name, error))?)
        }
        Way::Tcp(address) => {
            let socket = TcpStream::connect(address).map_err(|error| at(address, error))?;
            tcp(args, socket, true)?
        }
    };
    let settings = Settings {
        threads: args.threads,
        write_rate: args.write_rate,
    };
    let mut demo = Demo::new(Stopped::new(memory.clone(), settings));
    let quiet = args.quiet;
    let departure = Departure {
        limits: Limits {
            downtime_max: Duration::from_millis(args.downtime),
            rounds_max: args.rounds,
            post_copy: !args.no_post_copy,
            throttle: args.auto_converge,
        },
        timeout: Duration::from_secs(args.timeout),
        listen: connection.here,
        credentials: args.tls.credentials(),
        progress: Some(Arc::new(move |now| tell(quiet, &round(now)))),
        ..Departure::default()
    };
    // SAFETY: the demonstration's threads alone write to the memory, and none does while they are paused or after they have left.
    let departed = unsafe { departure.run(&memory, connection.stream, &mut demo) };
    let mut departed = match departed {
        Ok(departed) => departed,
        Err(error) => {
            // They have gone on here.
            let kept = match demo.end() {
                Ok(()) => "the threads went on here, on their own memory".to_owned(),
                Err(page) => format!("page {page} is wrong here: please report this"),
            };
            let mut failure = failure(error);
            failure.message = format!("{}; {kept}", failure.message);
            return Err(failure);
        }
    };
    let waited = departed.wait(|missing| tell(quiet, &format!("{missing} pages to be fetched")));
    if let Err(error) = waited {
        // It may run there, and need what is here.
        keep_serving(&departed, quiet, &error, Duration::from_secs(args.timeout));
        return Err(failure(error));
    }
    let stats = departed.stats();
    let text = match args.json {
        true => left_json(stats),
        false => left_text(stats),
    };
    screen::print(&text)
}

/// Goes on serving pages until it is interrupted, or nobody has been connected for so long.
fn keep_serving<S: Stream>(departed: &Departed<S>, quiet: bool, why: &Error, alone: Duration) {
    if departed.stats().left_pages == 0 {
        return;
    }
    let interrupt = Interrupt::catch();
    tell(
        quiet,
        &format!(
            "{why}; pages are served until nobody has been connected for {} s, or Ctrl-C",
            alone.as_secs()
        ),
    );
    let mut seen = Instant::now();
    while !interrupt.asked() && seen.elapsed() < alone {
        if departed.connections() > 0 {
            seen = Instant::now();
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn left_json(stats: &DepartureStats) -> String {
    let rounds: Vec<_> = stats
        .rounds
        .iter()
        .map(|round| {
            json!({
                "pages": round.pages,
                "bytes": round.bytes,
                "took_ns": round.took.as_nanos() as u64,
                "dirty_pages": round.dirty_pages,
            })
        })
        .collect();
    let document = json!({
        "format": "amdahl.pager.migrate/1",
        "side": "source",
        "rounds": rounds,
        "sent_bytes": stats.sent_bytes,
        "dirty_pages_per_s": stats.dirty_pages_per_second(),
        "paused_pages": stats.paused_pages,
        "left_pages": stats.left_pages,
        "throttle_percent": stats.throttle_percent,
        "downtime_estimate_ns": stats.downtime_estimate.as_nanos().min(u128::from(u64::MAX)) as u64,
        "downtime_ns": stats.downtime.as_nanos() as u64,
    });
    format!("{document:#}\n")
}

fn left_text(stats: &DepartureStats) -> String {
    let mut text = format!(
        "moved: {} rounds, {} bytes, {:.0} pages a second written during the last\n",
        stats.rounds.len(),
        stats.sent_bytes,
        stats.dirty_pages_per_second()
    );
    text += &format!(
        "stood still for {} ({} expected); {} pages sent then, {} left to be fetched\n",
        millis(stats.downtime),
        millis(stats.downtime_estimate),
        stats.paused_pages,
        stats.left_pages
    );
    if stats.throttle_percent > 0 {
        text += &format!("slowed down by up to {} %\n", stats.throttle_percent);
    }
    text
}

/// A socket's file, which goes with it.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn accept(args: &PagerMigrate, way: &Way) -> Result<Connection, Failure> {
    let waiting = |where_: &str| tell(args.quiet, &format!("waiting at {where_}"));
    match way {
        Way::Unix(path) => {
            let name = path.display().to_string();
            let listener = UnixListener::bind(path).map_err(|error| match error.kind() {
                std::io::ErrorKind::AddrInUse => Failure::result(format!(
                    "{name} is there already: remove it if nobody listens at it"
                )),
                _ => at(&name, error),
            })?;
            let file = SocketFile(path.clone());
            waiting(&format!("unix:{name}"));
            let (stream, _) = listener.accept().map_err(|error| at(&name, error))?;
            drop(file);
            Ok(unix(stream))
        }
        Way::Tcp(address) => {
            let listener = TcpListener::bind(address).map_err(|error| at(address, error))?;
            let bound = listener.local_addr().map_err(|error| at(address, error))?;
            if args.tls.tls_certificate.is_none() && !bound.ip().is_loopback() {
                return Err(Failure::usage(format!(
                    "{bound} can be reached by other hosts: give --tls-certificate, --tls-key and --tls-authorities, or listen at 127.0.0.1"
                )));
            }
            waiting(&format!("tcp:{bound}"));
            let (socket, _) = listener.accept().map_err(|error| at(address, error))?;
            tcp(args, socket, false)
        }
    }
}

fn arrive(args: &PagerMigrate, way: &Way, memory: Arc<Mapping>) -> Result<u8, Failure> {
    let connection = accept(args, way)?;
    let arrival = Arrival {
        timeout: Duration::from_secs(args.timeout),
        // How often each page was written.
        state_bytes_max: (args.memory / PAGE * 4) as u64 + (1 << 20),
        host: connection.there,
        name: args.tls.tls_name.clone(),
        credentials: args.tls.credentials(),
        ..Arrival::default()
    };
    // SAFETY: nobody else has the memory.
    let offer = unsafe { arrival.receive(&memory, connection.stream) }.map_err(failure)?;
    let stopped = match Stopped::of_state(memory, &offer.state) {
        Ok(stopped) => stopped,
        Err(why) => {
            offer.reject(why);
            return Err(Failure::result(why.to_owned()));
        }
    };
    let mut landed = offer.accept().map_err(failure)?;
    let mut demo = Demo::new(stopped);
    let missing = landed.missing_pages;
    tell(
        args.quiet,
        &format!("the threads run here; {missing} pages are missing"),
    );
    let finished = landed.finish(|now| tell(args.quiet, &format!("{now} pages to be fetched")));
    finished.map_err(failure)?;
    if let Err(page) = demo.end() {
        return Err(Failure::result(format!(
            "page {page} is wrong: please report this"
        )));
    }
    let stats = landed.stats();
    let faults = stats.as_ref().map_or(0, |stats| stats.faults);
    let quantile = |of| {
        stats
            .as_ref()
            .and_then(|stats| stats.latency_ns.quantile(of))
    };
    let pages = args.memory / PAGE;
    let text = match args.json {
        true => {
            let document = json!({
                "format": "amdahl.pager.migrate/1",
                "side": "destination",
                "pages": pages,
                "missing_pages": missing,
                "faults": faults,
                "fault_ns_p50": quantile(0.5),
                "fault_ns_p99": quantile(0.99),
            });
            format!("{document:#}\n")
        }
        false => format!(
            "arrived: all {pages} pages are right; {missing} were fetched after the switch-over, {faults} faults\n"
        ),
    };
    screen::print(&text)
}

//! `amdahl pager serve --listen tcp:ADDRESS`: the memory for other hosts, by the page protocol.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use amdahl_remote::{Error, Serve, Server, ServerStats};
use serde_json::{Value, json};

use super::listen::notify;
use super::memory::Memory;
use super::tell::{FORMAT, Line, Teller};
use super::{TICK, allow_descriptors};
use crate::cli::serve::PagerServe;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::pager::image::DAMAGED;
use crate::pager::meter::size;

/// Serves until it is told to end.
pub fn main(args: &PagerServe, address: &str) -> Result<u8, Failure> {
    let for_vms = [
        ("--fill", args.fill.is_some()),
        ("--record-working-set", args.record_working_set.is_some()),
        ("--control", args.control.is_some()),
        ("--share", args.share),
        ("--budget", args.budget.is_some()),
    ];
    if let Some((name, _)) = for_vms.iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::usage(format!(
            "{name} is for VMs (--listen unix:PATH): what other hosts want they ask for"
        )));
    }
    let interrupt = Interrupt::catch();
    let cache = usize::try_from(args.memory).unwrap_or(usize::MAX);
    let memory = Memory::open(args, cache)?;
    let serve = Serve {
        credentials: args.tls.credentials(),
        working_set: memory.working_set.as_slice().into(),
        ..Serve::new(Arc::clone(&memory.source), memory.bytes, memory.identity)
    };
    // A socket and a bell each.
    allow_descriptors(2 * serve.connections_max as u64)?;
    let server = Server::start(address, serve).map_err(failure)?;
    let teller = Teller::new(args.json, args.quiet);
    let checked = match args.tls.tls_certificate {
        Some(_) => "to those whom --tls-authorities vouches for",
        None => "without TLS, to programs of this host",
    };
    teller.tell(&Line::new(
        "listening",
        format!(
            "serving {} ({}, {}{}) {checked} at tcp:{}",
            args.image.display(),
            memory.kind,
            size(memory.bytes),
            memory.working_set_text(),
            server.address()
        ),
        json!({
            "format": FORMAT,
            "listen": format!("tcp:{}", server.address()),
            "image": args.image.to_string_lossy(),
            "kind": memory.kind,
            "memory_bytes": memory.bytes,
            "working_set_pages": memory.working_set_pages(),
            "is_tls": args.tls.tls_certificate.is_some(),
        }),
    ));
    notify("READY=1");
    let (mut told, mut before) = (Instant::now(), ServerStats::default());
    let mut is_damaged = false;
    let every = Duration::from_secs(args.progress);
    while !interrupt.asked() {
        thread::sleep(TICK);
        let now = server.stats();
        if !every.is_zero() && told.elapsed() >= every && now != before {
            told = Instant::now();
            before = now;
            teller.tell(&Line::new("progress", text(&now), fields(&now)));
        }
        let trouble =
            |text, why| teller.tell(&Line::trouble("trouble", text, json!({ "why": why })));
        if let Some((why, is_damage)) = memory.take_failure() {
            is_damaged |= is_damage;
            trouble(format!("a page could not be read: {why}"), why);
        }
        for why in [server.take_trouble(), memory.take_trouble()]
            .into_iter()
            .flatten()
        {
            trouble(why.clone(), why);
        }
    }
    notify("STOPPING=1");
    let stats = server.stats();
    drop(server);
    teller.tell(&Line::new("end", text(&stats), fields(&stats)));
    Ok(match (stats.refused, is_damaged) {
        (_, true) => DAMAGED,
        (0, _) => 0,
        _ => 1,
    })
}

/// With what to do about it.
pub fn failure(error: Error) -> Failure {
    match error {
        Error::Open(_) => Failure::usage(format!(
            "{error}: give --tls-certificate, --tls-key and --tls-authorities, or listen at 127.0.0.1"
        )),
        Error::Credentials { .. } | Error::Tls(_) => Failure::usage(error.to_string()),
        _ => Failure::result(error.to_string()),
    }
}

fn text(stats: &ServerStats) -> String {
    format!(
        "{} connections; {} requests answered, {} of them refused; {} sent; {} connections failed",
        stats.connections,
        stats.requests,
        stats.refused,
        size(stats.bytes),
        stats.failed
    )
}

fn fields(stats: &ServerStats) -> Value {
    json!({
        "connections": stats.connections,
        "requests": stats.requests,
        "refused": stats.refused,
        "sent_bytes": stats.bytes,
        "failed": stats.failed,
    })
}

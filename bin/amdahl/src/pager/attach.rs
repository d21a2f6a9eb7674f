//! `amdahl pager attach`: memory of a program that knows nothing of it is handed over to `pager serve`.

use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use amdahl_attach::maps::{self, Map, Place};
use amdahl_attach::{Error, attach_in_parts};
use amdahl_pager::handoff::{Owner, send};
use serde_json::json;

use crate::cli::attach::PagerAttach;
use crate::failure::Failure;
use crate::screen;

pub fn main(args: &PagerAttach) -> Result<u8, Failure> {
    let to = args.to.display();
    // Before anything is given up.
    let connect = |_| {
        UnixStream::connect(&args.to)
            .map_err(|error| Failure::result(format!("{to}: {error}: who is to serve the memory?")))
    };
    let streams = (0..args.parts)
        .map(connect)
        .collect::<Result<Vec<UnixStream>, Failure>>()?;
    let all = maps::of(args.pid).map_err(failure)?;
    let mut places: Vec<Place> = Vec::new();
    for (name, offset) in &args.map {
        let found = maps::places(&all, name, *offset);
        if found.is_empty() {
            return Err(Failure::result(format!(
                "process {} has no writable memory {name:?}; its largest are {}",
                args.pid,
                largest(&all)
            )));
        }
        for place in found {
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
    let parts = attach_in_parts(args.pid, &places, streams.len()).map_err(failure)?;
    let mut unserved = Vec::new();
    for (part, stream) in parts.iter().zip(&streams) {
        if let Err(error) = send(stream, &part.regions, part.descriptor.as_fd()) {
            let is_deadly =
                Owner::new(&part.descriptor, &part.regions).is_ok_and(|owner| owner.poison());
            unserved.push((error, is_deadly));
        }
    }
    if let Some((error, _)) = unserved.first() {
        let fate = match unserved.iter().all(|(_, is_deadly)| *is_deadly) {
            true => "it is stopped (SIGBUS) where it touches that",
            false => "it waits for ever where it touches that",
        };
        return Err(Failure::result(format!(
            "{to}: {error}: nobody serves {} of {} parts of the memory of process {}, which it has no more; {fate}: end it",
            unserved.len(),
            parts.len(),
            args.pid
        )));
    }
    let all_regions = || {
        let numbered = parts.iter().enumerate();
        numbered
            .flat_map(|(part, attached)| attached.regions.iter().map(move |region| (part, region)))
    };
    let mut text = String::new();
    if args.json {
        let regions: Vec<_> = all_regions()
            .map(|(part, region)| {
                json!({
                    "part": part,
                    "address": region.start,
                    "bytes": region.len,
                    "image_offset": region.source_offset,
                    "page_bytes": region.page_bytes,
                })
            })
            .collect();
        let document = json!({
            "format": "amdahl.pager.attach/1",
            "pid": args.pid,
            "regions": regions,
        });
        text = format!("{document:#}\n");
    } else {
        for (_, region) in all_regions() {
            let _ = writeln!(
                text,
                "process {}: {} bytes at {:#x} arrive on demand, from byte {} of the image on",
                args.pid, region.len, region.start, region.source_offset
            );
        }
    }
    screen::print(&text)
}

fn failure(error: Error) -> Failure {
    match error {
        Error::NoUserfault { .. } | Error::Refused { .. } | Error::Unavailable(_) => {
            Failure::machine(error.to_string())
        }
        error => Failure::result(error.to_string()),
    }
}

/// So that the user need not look for them.
fn largest(all: &[Map]) -> String {
    let mut writable: Vec<&Map> = all.iter().filter(|map| map.is_writable).collect();
    writable.sort_by_key(|map| std::cmp::Reverse(map.range.len()));
    let told = writable.iter().take(4).map(|map| {
        let name = if map.name.is_empty() {
            "without a name"
        } else {
            &map.name
        };
        format!(
            "{:#x} ({} KiB, {name})",
            map.range.start,
            map.range.len() >> 10
        )
    });
    told.collect::<Vec<_>>().join(", ")
}

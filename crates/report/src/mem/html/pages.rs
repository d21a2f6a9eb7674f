//! Huge pages, free memory and page faults.

use maud::{Markup, html};

use super::{place, process, size, table};
use crate::html::figure::{count, foreign, share, time};
use crate::mem::schema::{MappingReport, MemResult};
use crate::number::bytes;

pub(super) fn huge(result: &MemResult) -> Markup {
    let huge = &result.huge;
    html! {
        @if huge.size_bytes > 0 {
            p { "A huge page here is " (size("huge.size_bytes", huge.size_bytes))
                ". Anonymous memory gets them " b { (foreign(&huge.anonymous)) }
                ", shared memory " b { (foreign(&huge.shmem)) } "." }
        }
        (obstacles(result))
        (mappings(result))
        (processes(result))
        (sizes(result))
    }
}

fn processes(result: &MemResult) -> Markup {
    let rows: Vec<Vec<Markup>> = result
        .processes
        .iter()
        .enumerate()
        .map(|(i, p)| {
            let at = |field: &str| format!("processes.{i}.{field}");
            vec![
                process(&p.name, p.pid),
                size(&at("resident_bytes"), p.resident_bytes),
                size(&at("huge_bytes"), p.huge_bytes),
                size(&at("obstructed_bytes"), p.obstructed_bytes),
                count(&at("mappings"), p.mappings),
            ]
        })
        .collect();
    let titles = [
        ("Process", false),
        ("In memory", true),
        ("In huge pages", true),
        ("Could be", true),
        ("Mappings", true),
    ];
    table("Processes", &titles, &rows)
}

fn obstacles(result: &MemResult) -> Markup {
    let rows: Vec<Vec<Markup>> = result
        .huge
        .obstacles
        .iter()
        .enumerate()
        .map(|(i, o)| {
            let at = |field: &str| format!("huge.obstacles.{i}.{field}");
            vec![
                html! { b { (foreign(&o.id)) } br; (foreign(&o.text)) },
                size(&at("bytes"), o.bytes),
                count(&at("mappings"), o.mappings),
                html! { @if o.huge_pages > 0 {
                    (count(&at("huge_pages"), o.huge_pages)) " for " (count(&at("pages"), o.pages))
                } },
                foreign(&o.remedy),
            ]
        })
        .collect();
    let titles = [
        ("In the way", false),
        ("Bytes", true),
        ("Mappings", true),
        ("Huge pages for small ones", true),
        ("What would help", false),
    ];
    table("What keeps memory in small pages", &titles, &rows)
}

fn mappings(result: &MemResult) -> Markup {
    let rows: Vec<Vec<Markup>> = result
        .huge
        .mappings
        .iter()
        .enumerate()
        .map(|(i, m)| mapping(&format!("huge.mappings.{i}"), m))
        .collect();
    let titles = [
        ("Mapping", false),
        ("Process", false),
        ("Size", true),
        ("In memory", true),
        ("In huge pages", true),
        ("Page sizes", false),
        ("In the way", false),
    ];
    html! {
        (table("Mappings, those with most memory in small pages first", &titles, &rows))
        @if result.huge.mappings_left_out > 0 {
            p { (count("huge.mappings_left_out", result.huge.mappings_left_out)) " small mappings are not listed." }
        }
    }
}

fn mapping(at: &str, m: &MappingReport) -> Vec<Markup> {
    let list = |entries: Vec<String>| html! { (foreign(&entries.join(", "))) };
    let sizes = m.sizes.iter().take(16);
    let sizes = sizes.map(|(&page, &all)| format!("{} in {}", bytes(all), bytes(page)));
    let obstacles = m.obstacles.iter().take(16);
    let obstacles = obstacles.map(|(id, amount)| format!("{id} {}", bytes(*amount)));
    let name = if m.name.is_empty() {
        &m.backing
    } else {
        &m.name
    };
    vec![
        html! { (foreign(name)) br; span.place { (foreign(&m.start)) } },
        process(&m.process, m.pid),
        size(&format!("{at}.bytes"), m.bytes),
        size(&format!("{at}.resident_bytes"), m.resident_bytes),
        size(&format!("{at}.huge_bytes"), m.huge_bytes),
        list(sizes.collect()),
        list(obstacles.collect()),
    ]
}

fn sizes(result: &MemResult) -> Markup {
    if result.huge.sizes.is_empty() {
        return html! {};
    }
    let rows: Vec<Vec<Markup>> = result
        .huge
        .sizes
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let number = |field: &str, value: Option<u64>| {
                value.map_or(html! {}, |v| count(&format!("huge.sizes.{i}.{field}"), v))
            };
            vec![
                size(&format!("huge.sizes.{i}.bytes"), s.bytes),
                foreign(&s.anonymous),
                foreign(&s.shmem),
                number("in_use", s.in_use),
                number("given", s.given),
                number("refused", s.refused),
            ]
        })
        .collect();
    let titles = [
        ("Page", true),
        ("Anonymous", false),
        ("Shared", false),
        ("In use", true),
        ("Given since boot", true),
        ("Refused since boot", true),
    ];
    table("Sizes of large pages, on the whole machine", &titles, &rows)
}

pub(super) fn free(result: &MemResult) -> Markup {
    let huge = &result.huge;
    let rows: Vec<Vec<Markup>> = huge
        .free
        .iter()
        .enumerate()
        .map(|(i, zone)| {
            let at = format!("huge.free.{i}");
            vec![
                html! { (zone.node) " " (foreign(&zone.name)) },
                size(&format!("{at}.free_bytes"), zone.free_bytes),
                count(&format!("{at}.huge_pages"), zone.huge_pages),
                share(&format!("{at}.unusable"), zone.unusable),
                zone.fragmentation
                    .map_or(html! {}, |f| share(&format!("{at}.fragmentation"), f)),
            ]
        })
        .collect();
    let titles = [
        ("Node and zone", false),
        ("Free", true),
        ("Huge pages that could be given", true),
        ("In smaller pieces", true),
        ("Refused for being in pieces", true),
    ];
    html! {
        p { "The kernel hands out memory in pieces of whole powers of two. Where much is free but no \
             piece is large enough, memory is fragmented." }
        (table("Free memory by zone", &titles, &rows))
        @if let Some(movable) = huge.movable {
            p { "Of the blocks of a huge page's size " (share("huge.movable", movable))
                " hold only pages that can be moved; in the others the kernel's own pages stand in the way." }
        }
        @if let (Some(given), Some(refused)) = (huge.given, huge.refused) {
            p { "While it was watched, " (count("huge.given", given)) " huge pages were given at faults and "
                (count("huge.refused", refused)) " refused on the whole machine." }
        }
    }
}

pub(super) fn faults(result: &MemResult) -> Markup {
    let faults = &result.faults;
    let timed = |path: String, seconds: f64| {
        if faults.is_timed {
            time(&path, seconds)
        } else {
            html! {}
        }
    };
    let kinds: Vec<Vec<Markup>> = faults
        .kinds
        .iter()
        .enumerate()
        .map(|(i, k)| {
            let at = |field: &str| format!("faults.kinds.{i}.{field}");
            vec![
                foreign(&k.kind),
                count(&at("count"), k.count),
                timed(at("seconds"), k.seconds),
                timed(at("max_s"), k.max_s),
            ]
        })
        .collect();
    let sites: Vec<Vec<Markup>> = faults
        .sites
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let at = |field: &str| format!("faults.sites.{i}.{field}");
            vec![
                place(&s.code, &s.syscall),
                foreign(&s.kind),
                count(&at("count"), s.count),
                timed(at("seconds"), s.seconds),
                timed(at("max_s"), s.max_s),
                foreign(&s.object),
                process(&s.process, s.pid),
            ]
        })
        .collect();
    let titles = [
        ("Kind", false),
        ("Count", true),
        ("Time", true),
        ("Longest", true),
    ];
    let site_titles = [
        ("Where", false),
        ("Kind", false),
        ("Count", true),
        ("Time", true),
        ("Longest", true),
        ("Mapping", false),
        ("Process", false),
    ];
    html! {
        (table("Page faults by kind", &titles, &kinds))
        @if let Some(all) = faults.accounted {
            p { "The kernel counted " (count("faults.accounted", all)) " for the same processes; "
                (count("faults.count", faults.count)) " were seen." }
        }
        (table("Page faults by code", &site_titles, &sites))
    }
}

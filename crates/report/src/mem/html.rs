//! The result as one HTML page, by the rules of [`crate::html`].

mod lock;
mod pages;

use maud::{Markup, html};

use super::headline::sentences;
use super::schema::{Code, MemResult};
use crate::html::figure::{code, count, figure, foreign, share, time};
use crate::html::flame;
use crate::html::page::{self, Page, Section};
use crate::number::{bytes, significant};
use crate::plain::command_line;
use crate::schema::SampleRow;
use crate::terminal::machine_line;

/// Rows of a table; the rest is in `result.json`.
const ROWS: usize = 200;

/// The page of `result`; `rows` are the stacks of faults and waits, whose `cause` is the kind.
pub fn render(result: &MemResult, rows: &[SampleRow]) -> String {
    let mut sentences = sentences(result).into_iter();
    let headline = sentences.next();
    let headline = headline.unwrap_or_else(|| "Nothing was seen.".into());
    Page {
        window: "Amdahl memory",
        view: "memory",
        style: "",
        headline: html! { (headline) },
        lede: sentences.map(|sentence| html! { (sentence) }).collect(),
        target: &command_line(&result.command),
        facts: notices(result),
        sections: sections(result, rows),
        made: "measured",
        started: &result.started,
        amdahl_version: &result.amdahl_version,
    }
    .render()
}

fn sections(result: &MemResult, rows: &[SampleRow]) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut add = |id, title, is_there: bool, body: &dyn Fn() -> Markup| {
        if is_there {
            sections.push(Section::new(id, title, title, body()));
        }
    };
    let huge = &result.huge;
    let has_huge = !huge.obstacles.is_empty() || !huge.mappings.is_empty();
    add("huge", "Huge pages", has_huge, &|| pages::huge(result));
    add("free", "Free memory", !huge.free.is_empty(), &|| {
        pages::free(result)
    });
    let has_faults = !result.faults.kinds.is_empty();
    add("faults", "Page faults", has_faults, &|| {
        pages::faults(result)
    });
    let lock = &result.mmap_lock;
    let has_lock = !lock.waits.is_empty() || !lock.holds.is_empty();
    add("mmap-lock", "Address-space lock", has_lock, &|| {
        lock::draw(result)
    });
    add("flames", "Flame graph", !rows.is_empty(), &|| {
        let caption =
            "Time in page faults and in waits for the address-space lock, by kind and call stack.";
        flame::of_all("off", "Faults and waits", caption, "µs", rows)
    });
    add("tlb", "TLB", result.tlb.is_some(), &|| tlb(result));
    add("numa", "Nodes", result.numa.is_some(), &|| numa(result));
    add("vmalloc", "vmalloc", result.vmalloc.is_some(), &|| {
        vmalloc(result)
    });
    add("method", "How it was measured", true, &|| method(result));
    sections
}

/// Bytes.
fn size(path: &str, value: u64) -> Markup {
    figure(path, value as f64, &bytes(value))
}

/// A table that scrolls sideways on narrow screens.
fn table(label: &str, titles: &[(&str, bool)], rows: &[Vec<Markup>]) -> Markup {
    let class = |number: bool| if number { "num" } else { "" };
    html! {
        h3 { (label) }
        div.scroll role="region" aria-label=(label) tabindex="0" {
            table {
                thead { tr { @for &(title, number) in titles {
                    th class=(class(number)) scope="col" { (title) }
                } } }
                tbody { @for row in rows.iter().take(ROWS) {
                    tr { @for (cell, &(_, number)) in row.iter().zip(titles) {
                        td class=(class(number)) { (cell) }
                    } }
                } }
            }
        }
        @if rows.len() > ROWS { p { "And " (rows.len() - ROWS) " more in " code { "result.json" } "." } }
    }
}

/// A place in the code with its stack behind a fold.
fn place(at: &Code, syscall: &str) -> Markup {
    let symbol = if at.symbol.is_empty() {
        "(unknown function)"
    } else {
        &at.symbol
    };
    let head = html! {
        (code(symbol))
        @if !syscall.is_empty() { " in " (code(syscall)) }
        @if let Some(file) = &at.file {
            " " span.place { (foreign(file)) @if let Some(line) = at.line { ":" (line) } }
        }
    };
    if at.stack.is_empty() {
        return head;
    }
    html! {
        details {
            summary { (head) }
            ol.frames { @for frame in &at.stack { li { (code(frame)) } } }
            @if !at.module.is_empty() { p.place { (foreign(&at.module)) } }
        }
    }
}

fn process(name: &str, pid: u32) -> Markup {
    html! { (foreign(name)) " [" (pid) "]" }
}

fn notices(result: &MemResult) -> Markup {
    let lost = result.faults.lost;
    let mut items = Vec::new();
    if lost > 0 {
        items.push(html! {
            b { "lost" } " " (count("faults.lost", lost)) " events were lost: counts are too low."
        });
    }
    items.extend(result.warnings.iter().map(page::warning));
    page::notices(&items)
}

fn tlb(result: &MemResult) -> Markup {
    let Some(tlb) = &result.tlb else {
        return html! {};
    };
    let row = |name: &str, at: &str, misses: Option<f64>, per: Option<f64>| {
        let cell = |field: String, value: Option<f64>| match value {
            Some(value) => figure(&field, value, &significant(value)),
            None => html! { "not counted" },
        };
        vec![
            html! { (name) },
            cell(format!("tlb.{at}_misses"), misses),
            cell(format!("tlb.{at}_per_thousand"), per),
        ]
    };
    let rows = [
        row("data", "data", tlb.data_misses, tlb.data_per_thousand),
        row(
            "instructions",
            "instruction",
            tlb.instruction_misses,
            tlb.instruction_per_thousand,
        ),
    ];
    let titles = [
        ("Side", false),
        ("Misses", true),
        ("Per thousand instructions", true),
    ];
    html! {
        (table("Misses in user code", &titles, &rows))
        @if tlb.counted < 0.99 {
            p { "Counters took turns: scaled from " (share("tlb.counted", tlb.counted)) " of the time." }
        }
    }
}

fn numa(result: &MemResult) -> Markup {
    let Some(numa) = &result.numa else {
        return html! {};
    };
    let rows: Vec<Vec<Markup>> = numa
        .nodes
        .iter()
        .enumerate()
        .map(|(i, node)| {
            let at = format!("numa.nodes.{i}");
            vec![
                html! { (node.node) },
                size(&format!("{at}.bytes"), node.bytes),
                count(&format!("{at}.touched"), node.touched),
            ]
        })
        .collect();
    let titles = [
        ("Node", false),
        ("Memory", true),
        ("Small pages used first", true),
    ];
    html! {
        (table("Memory and first uses by node", &titles, &rows))
        @if let Some(remote) = numa.remote {
            p { "If threads run where they used memory first, and all use all memory alike, " (share("numa.remote", remote))
                " of the accesses go to another node." }
        }
    }
}

fn vmalloc(result: &MemResult) -> Markup {
    let Some(all) = &result.vmalloc else {
        return html! {};
    };
    let rows: Vec<Vec<Markup>> = all
        .sites
        .iter()
        .enumerate()
        .map(|(i, site)| {
            let at = format!("vmalloc.sites.{i}");
            vec![
                if site.pid == 0 {
                    html! { "others" }
                } else {
                    process(&site.process, site.pid)
                },
                code(&site.syscall),
                count(&format!("{at}.count"), site.count),
                size(&format!("{at}.bytes"), site.bytes),
                size(&format!("{at}.max_bytes"), site.max_bytes),
            ]
        })
        .collect();
    let titles = [
        ("Process", false),
        ("System call", false),
        ("Ranges", true),
        ("Bytes", true),
        ("Largest", true),
    ];
    html! {
        p { "On the whole machine the kernel allocated " (count("vmalloc.allocs", all.allocs))
            " address ranges of " (size("vmalloc.bytes", all.bytes)) " for itself and gave back "
            (count("vmalloc.frees", all.frees)) "; " (count("vmalloc.failed", all.failed)) " were refused. "
            (count("vmalloc.purges", all.purges)) " times all CPUs were interrupted to forget "
            (count("vmalloc.purged", all.purged)) " of them." }
        @if !rows.is_empty() { (table("Who allocated", &titles, &rows)) }
    }
}

fn method(result: &MemResult) -> Markup {
    html! {
        (page::sources(&result.sources))
        dl.method {
            dt { "Machine" } dd { (foreign(&machine_line(&result.machine))) }
            dt { "Watched for" } dd { (time("duration_s", result.duration_s)) }
        }
    }
}

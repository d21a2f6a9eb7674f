//! A result of `amdahl sched` as one HTML page: no script, no network, nothing outside the file.

use maud::{Markup, PreEscaped, html};

use super::schema::{Latency, SchedResult};
use super::terminal::{REASONS, chain_words, headline, migration_words, short};
use super::{picture, timelines};
use crate::html::figure::{count, figure, foreign, number};
use crate::html::page::{self, Page, Section};
use crate::number::percent;
use crate::plain::command_line;
use crate::terminal::machine_line;

/// Threads, CPUs and pairs on the page; the rest is in `result.json`.
const ROWS: usize = 200;
const CHAINS: usize = 10;

const OWN_STYLE: &str = "\
.picture svg { display: block; min-width: 46rem; width: 100%; height: auto; }\
.picture text { font: 12px var(--sans); fill: var(--soft); }\
.picture .paper { fill: var(--raised); }\
.swatches { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: .8rem 0 0; padding: 0; list-style: none; font-size: .8125rem; color: var(--soft); }\
.picture .swatches svg { display: inline-block; min-width: 0; width: .9em; height: .9em; margin-right: .4em; vertical-align: -.08em; }\
.hist { font-size: .875rem; } .hist svg { display: block; width: 100%; height: .9rem; } .hist td:last-child { width: 60%; }\
.hist rect { fill: var(--measured); }";

/// A duration with its path and exact value.
fn time(path: &str, value: f64) -> Markup {
    figure(path, value, &short(value))
}

/// The page.
pub fn render(result: &SchedResult) -> String {
    let (first, second) = headline(result);
    let has_lede = !second.is_empty();
    Page {
        window: "Amdahl sched",
        view: "scheduling",
        style: OWN_STYLE,
        headline: html! { (first) },
        lede: has_lede.then(|| html! { (second) }).into_iter().collect(),
        target: &command_line(&result.command),
        facts: html! { (facts(result)) (notices(result)) },
        sections: sections(result),
        made: "recorded",
        started: &result.started,
        amdahl_version: &result.amdahl_version,
    }
    .render()
}

fn sections(result: &SchedResult) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut add = |id, title, body| sections.push(Section::new(id, title, title, body));
    if let Some(drawn) = result
        .picture
        .as_ref()
        .filter(|picture| !picture.cpus.is_empty())
    {
        add("picture", "Threads on CPUs", picture_of(drawn));
    }
    if let Some(drawn) = result
        .timelines
        .as_ref()
        .filter(|timelines| !timelines.threads.is_empty())
    {
        add("timelines", "Threads over time", timelines_of(drawn));
    }
    if result.wake_latency.count + result.slices.count > 0 {
        add("latency", "Run queue latency", latencies(result));
    }
    if result.wasted.total_s() > 0.0 {
        add("wasted", "Wasted CPU time", wasted(result));
    }
    if !result.cpus.is_empty() {
        add("cpus", "CPUs", cpus(result));
    }
    if !result.threads.is_empty() {
        add("threads", "Threads", threads(result));
    }
    if !result.guests.is_empty() {
        add("guests", "CPUs of guests", guests(result));
    }
    if !result.wakers.is_empty() {
        add("wakers", "Who wakes whom", wakers(result));
    }
    if !result.chains.is_empty() {
        add("chains", "Longest wake-up chains", chains(result));
    }
    add("method", "How it was recorded", method(result));
    sections
}

fn facts(result: &SchedResult) -> Markup {
    let totals = &result.totals;
    let per_s = totals.switches as f64 / result.wall_s.max(1e-9);
    html! {
        dl.facts {
            div { dt { "Recorded" } dd { (time("wall_s", result.wall_s)) } }
            @if result.has_events() {
                div { dt { "Switches" } dd { (count("totals.switches", totals.switches)) } }
                div { dt { "Switches per s" } dd { (format!("{per_s:.0}")) } }
                div { dt { "Wake-up latency, p99" } dd { (time("wake_latency.p99_s", result.wake_latency.p99_s)) } }
                div { dt { "Migrations" } dd { (count("totals.migrations", totals.migrations)) } }
            }
            @if totals.events_lost > 0 {
                div { dt { "Events lost" } dd { (count("totals.events_lost", totals.events_lost)) } }
            }
        }
    }
}

fn notices(result: &SchedResult) -> Markup {
    let items: Vec<Markup> = result.warnings.iter().map(page::warning).collect();
    page::notices(&items)
}

fn picture_of(drawn: &super::schema::Picture) -> Markup {
    html! {
        figure.picture {
            div.scroll role="region" aria-label="Threads on CPUs over time" tabindex="0" {
                // Built from numbers and escaped names.
                (PreEscaped(picture::element(drawn)))
            }
            ul.swatches { @for key in picture::keys(drawn) {
                li {
                    svg viewBox="0 0 1 1" aria-hidden="true" { rect width="1" height="1" fill=(key.color) {} }
                    (foreign(&key.label))
                }
            } }
            figcaption {
                "A row is a CPU, a column " (time("picture.column_s", drawn.column_s))
                ". The colour is the thread that ran longest in it, the paler the more of it was idle."
            }
        }
    }
}

fn timelines_of(drawn: &super::schema::Timelines) -> Markup {
    html! {
        figure.picture {
            div.scroll role="region" aria-label="Threads over time" tabindex="0" {
                // Built from numbers and escaped names.
                (PreEscaped(timelines::element(drawn)))
            }
            ul.swatches { @for (label, square) in timelines::keys() {
                li {
                    svg viewBox="0 0 12 12" aria-hidden="true" { (PreEscaped(square)) }
                    (label)
                }
            } }
            figcaption {
                "A lane is a thread, the one that ran most at the top, a column " (time("timelines.column_s", drawn.column_s))
                ". What a lane is filled with from the bottom is the share of the column in which the thread did it; a thin line is \
                 sleep. Where there is nothing the thread was not seen yet, or had ended."
                @if drawn.elsewhere > 0 {
                    " " (count("timelines.elsewhere", drawn.elsewhere)) " more threads, which ran less, have no lane."
                }
            }
        }
    }
}

fn row_of(path: &str, name: &str, latency: &Latency) -> Markup {
    html! {
        tr {
            th scope="row" { (name) }
            td.num { (count(&format!("{path}.count"), latency.count)) }
            @for (field, value) in [
                ("mean_s", latency.mean_s), ("p50_s", latency.p50_s), ("p90_s", latency.p90_s),
                ("p99_s", latency.p99_s), ("max_s", latency.max_s),
            ] { td.num { (time(&format!("{path}.{field}"), value)) } }
        }
    }
}

fn latencies(result: &SchedResult) -> Markup {
    html! {
        div.scroll role="region" aria-label="Table of latencies" tabindex="0" {
            table {
                caption { "From runnable to running; quantiles are at most 1/16 too large" }
                thead { tr {
                    th scope="col" { "" } th.num scope="col" { "Count" } th.num scope="col" { "Mean" }
                    th.num scope="col" { "p50" } th.num scope="col" { "p90" } th.num scope="col" { "p99" }
                    th.num scope="col" { "Maximum" }
                } }
                tbody {
                    (row_of("wake_latency", "After a wake-up", &result.wake_latency))
                    (row_of("preempt_latency", "After a preemption", &result.preempt_latency))
                    (row_of("slices", "Time slice", &result.slices))
                }
            }
        }
        h3 { "Latency after wake-ups" }
        (histogram("wake_latency", &result.wake_latency))
    }
}

fn histogram(path: &str, latency: &Latency) -> Markup {
    let most = latency
        .histogram
        .iter()
        .map(|row| row.1)
        .max()
        .unwrap_or(1)
        .max(1);
    html! {
        table.hist {
            thead { tr { th.num scope="col" { "Up to" } th.num scope="col" { "Count" } th scope="col" { "" } } }
            tbody { @for (i, &(upper_s, n)) in latency.histogram.iter().enumerate() {
                tr {
                    td.num { (time(&format!("{path}.histogram.{i}.0"), upper_s)) }
                    td.num { (count(&format!("{path}.histogram.{i}.1"), n)) }
                    td { svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true" {
                        rect width=(format!("{:.2}", n as f64 * 100.0 / most as f64)) height="1" {}
                    } }
                }
            } }
        }
    }
}

fn wasted(result: &SchedResult) -> Markup {
    let wasted = &result.wasted;
    html! {
        table {
            caption { "A CPU idled while a thread waited in the queue of another" }
            tbody { @for ((name, why), (id, sum)) in REASONS.into_iter().zip(wasted.by_reason()) {
                tr {
                    th scope="row" { (name) }
                    td.num { (time(&format!("wasted.{id}_s"), sum)) }
                    td { (why) }
                }
            }
            @if wasted.brief_s > 0.0 { tr {
                th scope="row" { "brief" }
                td.num { (time("wasted.brief_s", wasted.brief_s)) }
                td { "of it in turns shorter than " (time("wasted.brief_limit_s", wasted.brief_limit_s)) }
            } } }
        }
        h3 { "Pairs of CPUs" }
        div.scroll role="region" aria-label="Pairs of CPUs" tabindex="0" {
            table {
                thead { tr {
                    th.num scope="col" { "Idle CPU" } th.num scope="col" { "Busy CPU" } th scope="col" { "Why" }
                    th.num scope="col" { "Time" } th.num scope="col" { "Stretches" } th.num scope="col" { "Longest" }
                } }
                tbody { @for (i, pair) in wasted.pairs.iter().take(ROWS).enumerate() {
                    @let at = format!("wasted.pairs.{i}");
                    tr {
                        td.num { (count(&format!("{at}.idle_cpu"), pair.idle_cpu.into())) }
                        td.num { (count(&format!("{at}.busy_cpu"), pair.busy_cpu.into())) }
                        td { (foreign(&pair.reason)) }
                        td.num { (time(&format!("{at}.total_s"), pair.total_s)) }
                        td.num { (count(&format!("{at}.stretches"), pair.stretches)) }
                        td.num { (time(&format!("{at}.longest_s"), pair.longest_s)) }
                    }
                } }
            }
        }
        (left_out(wasted.pairs.len()))
    }
}

fn left_out(all: usize) -> Markup {
    html! { @if all > ROWS { p.noise { "and " (all - ROWS) " more in result.json" } } }
}

fn cpus(result: &SchedResult) -> Markup {
    let wall = result.wall_s.max(1e-9);
    html! {
        div.scroll role="region" aria-label="Table of CPUs" tabindex="0" {
            table {
                thead { tr {
                    th.num scope="col" { "CPU" } th.num scope="col" { "Busy" } th.num scope="col" { "Ran" }
                    th.num scope="col" { "Wasted idle" } th.num scope="col" { "Overloaded" }
                    th.num scope="col" { "Queue" } th.num scope="col" { "Most" } th.num scope="col" { "Switches" }
                    th.num scope="col" { "Preemptions" } th.num scope="col" { "p99 wait" }
                } }
                tbody { @for (i, cpu) in result.cpus.iter().take(512).enumerate() {
                    @let at = format!("cpus.{i}");
                    tr {
                        th.num scope="row" { (count(&format!("{at}.cpu"), cpu.cpu.into())) }
                        td.num { (percent(cpu.run_s / wall)) }
                        td.num { (time(&format!("{at}.run_s"), cpu.run_s)) }
                        td.num { (time(&format!("{at}.idle_wasted_s"), cpu.idle_wasted_s)) }
                        td.num { (time(&format!("{at}.overloaded_s"), cpu.overloaded_s)) }
                        td.num { (number(&format!("{at}.queue_mean"), cpu.queue_mean)) }
                        td.num { (count(&format!("{at}.queue_max"), cpu.queue_max)) }
                        td.num { (count(&format!("{at}.switches"), cpu.switches)) }
                        td.num { (count(&format!("{at}.preemptions"), cpu.preemptions)) }
                        td.num { (time(&format!("{at}.latency.p99_s"), cpu.latency.p99_s)) }
                    }
                } }
            }
        }
    }
}

fn threads(result: &SchedResult) -> Markup {
    html! {
        div.scroll role="region" aria-label="Table of threads" tabindex="0" {
            table {
                thead { tr {
                    th scope="col" { "Thread" } th.num scope="col" { "tid" } th.num scope="col" { "Ran" }
                    th.num scope="col" { "Waited" } th.num scope="col" { "Wake p99" } th.num scope="col" { "Wake max" }
                    th.num scope="col" { "Slice" } th.num scope="col" { "Preempted" } th.num scope="col" { "Slept" }
                    th.num scope="col" { "Asleep" } th.num scope="col" { "Uninterruptibly" } th.num scope="col" { "Moved" }
                } }
                tbody { @for (i, thread) in result.threads.iter().take(ROWS).enumerate() {
                    @let at = format!("threads.{i}");
                    tr {
                        th scope="row" { (foreign(&thread.name)) }
                        td.num {
                            @if thread.tid == 0 { (count(&format!("{at}.threads"), thread.threads)) " gone" }
                            @else { (count(&format!("{at}.tid"), thread.tid.into())) }
                        }
                        td.num { (time(&format!("{at}.run_s"), thread.run_s)) }
                        td.num { (time(&format!("{at}.wait_s"), thread.wait_s)) }
                        td.num { (time(&format!("{at}.wake_latency.p99_s"), thread.wake_latency.p99_s)) }
                        td.num { (time(&format!("{at}.wake_latency.max_s"), thread.wake_latency.max_s)) }
                        td.num { (time(&format!("{at}.slices.mean_s"), thread.slices.mean_s)) }
                        td.num { (count(&format!("{at}.preempted"), thread.preempted)) }
                        td.num { (count(&format!("{at}.blocked"), thread.blocked)) }
                        td.num { (time(&format!("{at}.sleep_s"), thread.sleep_s)) }
                        td.num { (time(&format!("{at}.uninterruptible_s"), thread.uninterruptible_s)) }
                        td.num { (thread.migrations.total()) }
                    }
                } }
            }
        }
        (left_out(result.threads.len() + result.threads_elsewhere.threads as usize))
    }
}

fn guests(result: &SchedResult) -> Markup {
    html! {
        div.scroll role="region" aria-label="Table of guest CPUs" tabindex="0" {
            table {
                caption {
                    "Phantom time: the guest believes its CPU to run, but the thread waits in a run queue here, or is blocked in the \
                     host (it sleeps uninterruptibly; a CPU that the guest has halted does not)"
                }
                thead { tr {
                    th scope="col" { "Guest" } th.num scope="col" { "Process" } th.num scope="col" { "CPU" }
                    th.num scope="col" { "Ran" } th.num scope="col" { "In run queues" } th.num scope="col" { "p99" }
                    th.num scope="col" { "Longest" } th.num scope="col" { "Preempted" }
                    th.num scope="col" { "Blocked in the host" } th.num scope="col" { "Longest" }
                } }
                tbody { @for (i, guest) in result.guests.iter().take(ROWS).enumerate() {
                    @let at = format!("guests.{i}");
                    tr {
                        th scope="row" { (foreign(&guest.vmm)) }
                        td.num { (count(&format!("{at}.pid"), guest.pid.into())) }
                        td.num {
                            @if let Some(cpu) = guest.guest_cpu { (count(&format!("{at}.guest_cpu"), cpu.into())) }
                            @else { "not known" }
                        }
                        td.num { (time(&format!("{at}.run_s"), guest.run_s)) }
                        td.num { (time(&format!("{at}.phantom_s"), guest.phantom_s)) }
                        td.num { (time(&format!("{at}.phantom_p99_s"), guest.phantom_p99_s)) }
                        td.num { (time(&format!("{at}.phantom_max_s"), guest.phantom_max_s)) }
                        td.num { (count(&format!("{at}.preempted"), guest.preempted)) }
                        td.num { (time(&format!("{at}.blocked_s"), guest.blocked_s)) }
                        td.num { (time(&format!("{at}.blocked_max_s"), guest.blocked_max_s)) }
                    }
                } }
            }
        }
        (left_out(result.guests.len()))
    }
}

fn wakers(result: &SchedResult) -> Markup {
    html! {
        div.scroll role="region" aria-label="Table of wake-ups" tabindex="0" {
            table {
                thead { tr {
                    th scope="col" { "Waker" } th scope="col" { "Woken" } th.num scope="col" { "Count" }
                    th.num scope="col" { "Latency" } th.num scope="col" { "Maximum" } th.num scope="col" { "To another LLC" }
                } }
                tbody { @for (i, row) in result.wakers.iter().take(ROWS).enumerate() {
                    @let at = format!("wakers.{i}");
                    tr {
                        td { (foreign(&row.waker)) } td { (foreign(&row.woken)) }
                        td.num { (count(&format!("{at}.count"), row.count)) }
                        td.num { (time(&format!("{at}.latency_mean_s"), row.latency_mean_s)) }
                        td.num { (time(&format!("{at}.latency_max_s"), row.latency_max_s)) }
                        td.num { (count(&format!("{at}.to_other_llc"), row.to_other_llc)) }
                    }
                } }
            }
        }
        (left_out(result.wakers.len()))
    }
}

fn chains(result: &SchedResult) -> Markup {
    html! {
        ol.stacks { @for (i, chain) in result.chains.iter().take(CHAINS).enumerate() {
            li { b { (time(&format!("chains.{i}.total_s"), chain.total_s)) } " " (foreign(&chain_words(chain))) }
        } }
    }
}

fn method(result: &SchedResult) -> Markup {
    let wall = result.wall_s.max(1e-9);
    html! {
        (page::sources(&result.sources))
        dl.method {
            dt { "Machine" } dd { (foreign(&machine_line(&result.machine))) }
            @if result.migrations.total() > 0 { dt { "Migrations" } dd { (migration_words(&result.migrations)) } }
            @if !result.steal.is_empty() {
                dt { "Taken by the hypervisor" }
                dd { @for (i, cpu) in result.steal.iter().take(ROWS).enumerate() {
                    "CPU " (cpu.cpu) ": " (time(&format!("steal.{i}.steal_s"), cpu.steal_s))
                    " (" (percent(cpu.steal_s / wall)) ") "
                } }
            }
            dt { "Events" }
            dd { (count("totals.events", result.totals.events)) " recorded, "
                (count("totals.events_lost", result.totals.events_lost)) " lost, "
                @if result.totals.events_refused > 0 {
                    (count("totals.events_refused", result.totals.events_refused)) " left out (too many CPUs or threads), "
                }
                (count("totals.switches_mended", result.totals.switches_mended)) " switches not seen and bridged" }
            @if let Some(recording) = &result.recording {
                dt { "On disk" }
                dd { (count("recording.bytes", recording.bytes)) " bytes for "
                    (count("recording.events", recording.events)) " events, "
                    (count("recording.events_dropped", recording.events_dropped)) " older ones dropped" }
            }
        }
    }
}

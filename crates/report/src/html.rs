//! A result as one HTML page: no script, no network, nothing outside the file.
//!
//! Every number of `result.json` that the page shows carries `data-figure`, its path there, and
//! `data-value`, its exact value. All text from outside is escaped and freed of control
//! characters; the page forbids itself scripts, images, forms and connections.

mod causes;
mod chart;
pub(crate) mod figure;
pub(crate) mod flame;
pub(crate) mod page;
mod stack;

use maud::{Markup, html};

use crate::headline::headline;
use crate::number::{estimate, factor_digits, seconds};
use crate::plain::command_line;
use crate::point::PointId;
use crate::schema::{Fit, SampleRow, ScaleResult};
use crate::terminal::{cost_of, machine_line, model_names, words};
use figure::{code, count, factor, figure, foreign, number, place, range, sentence, share, time};
use page::{Page, Section};

/// Name for the file.
pub const REPORT_FILE: &str = "report.html";

/// The report of `result`; `rows` give the flame graphs of the point that the causes are about.
pub fn render(result: &ScaleResult, rows: &[SampleRow]) -> String {
    let line = headline(result);
    let has_lede = !line.loss.is_empty();
    Page {
        window: "Amdahl",
        view: "speedup stack",
        style: &stack::style_rules(),
        headline: sentence(&line.speedup),
        lede: has_lede.then(|| sentence(&line.loss)).into_iter().collect(),
        target: &command_line(&result.command),
        facts: html! { (facts(result)) (notices(result)) },
        sections: sections(result, rows),
        made: "measured",
        started: &result.started,
        amdahl_version: &result.amdahl_version,
    }
    .render()
}

fn sections(result: &ScaleResult, rows: &[SampleRow]) -> Vec<Section> {
    let main = result.main_point().map(|(_, point)| PointId::from(point));
    let on = main.map_or(String::new(), |id| format!(" on {}", id.joined()));
    let mut sections = Vec::new();
    let mut add =
        |id, short, title: String, body| sections.push(Section::new(id, short, title, body));
    if main.is_some() {
        let title = if result.has_speedup() {
            "Speedup"
        } else {
            "Runs"
        };
        add(
            "speedup",
            title,
            title.to_owned(),
            html! { (chart::draw(result)) (runs(result)) },
        );
    }
    if result.points.iter().any(|p| !p.stack.is_empty()) {
        add(
            "stack",
            "Stack",
            "Where the CPU time goes".to_owned(),
            stack::draw(result),
        );
    }
    if !result.causes.is_empty() {
        add(
            "causes",
            "Causes",
            format!("What costs{on}"),
            causes::draw(result),
        );
    }
    if !result.profile.is_empty() {
        let than = result.points.first().map(PointId::from);
        let than = than.map_or(String::new(), |id| format!(" against {}", id.joined()));
        add(
            "profile",
            "Profile",
            format!("User code{on}{than}"),
            profile(result),
        );
    }
    if let Some(id) = flame::shown(rows, main) {
        add(
            "flames",
            "Flame graphs",
            format!("Code on {}", id.joined()),
            flame::draw(rows, id),
        );
    }
    if model_names(result).next().is_some() || !result.models.note.is_empty() {
        add("models", "Models", "Models".to_owned(), models(result));
    }
    add(
        "method",
        "Method",
        "How it was measured".to_owned(),
        method(result),
    );
    sections
}

/// The numbers that a reader looks for first.
fn facts(result: &ScaleResult) -> Markup {
    let Some((i, main)) = result.main_point() else {
        return html! {};
    };
    let at = format!("points.{i}");
    html! {
        dl.facts {
            div { dt { "Wall time on " (PointId::from(main).joined()) }
                dd { (time(&format!("{at}.wall_s.median"), main.wall_s.median)) } }
            @if result.has_speedup() {
                div { dt { "Speedup" } dd { (factor(&format!("{at}.speedup"), main.speedup)) } }
                div { dt { "Efficiency" } dd { (share(&format!("{at}.efficiency"), main.efficiency)) } }
            }
            @if let Some(&work) = main.stack.get("work") {
                div { dt { "Useful work" } dd { (share(&format!("{at}.stack.work"), work)) } }
            }
            @if let Some(&part) = main.stack.get("unexplained") {
                div { dt { "Unexplained" } dd { (share(&format!("{at}.stack.unexplained"), part)) } }
            }
        }
    }
}

/// What limits the trust in the numbers.
fn notices(result: &ScaleResult) -> Markup {
    let mut items = Vec::new();
    if result.partial {
        items.push(page::interrupted());
    }
    items.extend(result.warnings.iter().map(page::warning));
    items.extend(result.failures.iter().enumerate().map(|(i, failure)| {
        html! {
            b { "failed" } " run " (count(&format!("failures.{i}.run"), u64::from(failure.run)))
            " on " (place(&format!("failures.{i}"), failure.into())) ": "
            (foreign(&failure.what))
        }
    }));
    page::notices(&items)
}

fn runs(result: &ScaleResult) -> Markup {
    let has_speedup = result.has_speedup();
    let has_rate = result.points.iter().any(|p| p.rate.is_some());
    html! {
        div.scroll role="region" aria-label="Table of runs" tabindex="0" {
            table.runs {
                caption { "Runs without the probe, where there are any" }
                thead { tr {
                    th.num scope="col" { "CPUs" }
                    th.num scope="col" { "Wall time" }
                    @if has_speedup {
                        th.num scope="col" { "Speedup" }
                        th.num scope="col" { "Efficiency" }
                    }
                    th.num scope="col" { "Spread of time" }
                    @if has_speedup { th.num scope="col" { "Range of speedup" } }
                    th.num scope="col" { "Runs" }
                    @if has_rate { th.num scope="col" { "Rate per s" } }
                } }
                tbody {
                    @for (i, p) in result.points.iter().enumerate() {
                        @let at = format!("points.{i}");
                        tr {
                            th.num scope="row" { (stack::point_label(i, p)) }
                            td.num { (time(&format!("{at}.wall_s.median"), p.wall_s.median)) }
                            @if has_speedup {
                                td.num { (factor(&format!("{at}.speedup"), p.speedup)) }
                                td.num { (share(&format!("{at}.efficiency"), p.efficiency)) }
                            }
                            td.num.noise {
                                (figure(&format!("{at}.wall_s.min"), p.wall_s.min, &seconds(p.wall_s.min)))
                                " to "
                                (figure(&format!("{at}.wall_s.max"), p.wall_s.max, &seconds(p.wall_s.max)))
                            }
                            @if has_speedup {
                                td.num.noise { (range(&format!("{at}.speedup_range"), p.speedup_range, factor_digits)) }
                            }
                            td.num { (p.wall_s.runs.len()) }
                            @if has_rate { td.num {
                                @if let Some(rate) = &p.rate {
                                    (number(&format!("{at}.rate.median"), rate.median))
                                }
                            } }
                        }
                    }
                }
            }
        }
    }
}

/// The differential profile.
fn profile(result: &ScaleResult) -> Markup {
    let has_counts = result
        .profile
        .iter()
        .any(|e| e.instructions_ratio.is_some());
    html! {
        div.scroll role="region" aria-label="Table of functions" tabindex="0" {
            table.profile {
                caption {
                    "Functions whose user time changes most for the same work. Growth is divided \
                     into more instructions and slower ones, in percent of the capacity."
                }
                thead { tr {
                    th scope="col" { "Function" }
                    th.num scope="col" { "User time" }
                    th.num scope="col" { "Before" }
                    th.num scope="col" { "More instructions" }
                    th.num scope="col" { "Slower ones" }
                    @if has_counts { th.num scope="col" { "Instructions" } }
                    th.num scope="col" { "Time of each" }
                } }
                tbody {
                    @for (i, entry) in result.profile.iter().enumerate() {
                        @let at = format!("profile.{i}");
                        tr {
                            th scope="row" { (code(&entry.symbol)) }
                            td.num { (time(&format!("{at}.user_s"), entry.user_s)) }
                            td.num { (time(&format!("{at}.base_user_s"), entry.base_user_s)) }
                            td.num { (share(&format!("{at}.extra_work"), entry.extra_work)) }
                            td.num { (share(&format!("{at}.slow_work"), entry.slow_work)) }
                            @if has_counts { td.num {
                                @match entry.instructions_ratio {
                                    Some(ratio) => (factor(&format!("{at}.instructions_ratio"), ratio)),
                                    None => "unknown",
                                }
                            } }
                            td.num {
                                @match entry.slowdown {
                                    Some(ratio) => (factor(&format!("{at}.slowdown"), ratio)),
                                    None => "unknown",
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn models(result: &ScaleResult) -> Markup {
    let path = |name: &str| {
        if name.starts_with("Amdahl") {
            "models.amdahl"
        } else {
            "models.usl"
        }
    };
    html! {
        div.models {
            @for (name, fit) in model_names(result) { (model(name, path(name), fit)) }
        }
        @if !result.models.note.is_empty() { p { (foreign(&result.models.note)) } }
    }
}

fn model(name: &str, path: &str, fit: &Fit) -> Markup {
    html! {
        table.model {
            caption { (name) }
            thead { tr {
                th scope="col" { "Parameter" }
                th.num scope="col" { "Estimate" }
                th.num scope="col" { "95 % interval" }
            } }
            tbody {
                @for (key, &value) in &fit.parameters {
                    tr {
                        th scope="row" { (words(key)) }
                        td.num { (figure(&format!("{path}.parameters.{key}"), value, &estimate(value))) }
                        td.num.noise {
                            @match fit.confidence.get(key) {
                                Some(&pair) => (range(&format!("{path}.confidence.{key}"), pair, estimate)),
                                None => "unknown",
                            }
                        }
                    }
                }
            }
            tfoot { tr { td colspan="3" {
                "Fitted to " (count(&format!("{path}.points"), u64::from(fit.points))) " points, typical error "
                (share(&format!("{path}.relative_rmse"), fit.relative_rmse))
            } } }
        }
    }
}

fn method(result: &ScaleResult) -> Markup {
    let lost = result
        .points
        .iter()
        .enumerate()
        .filter(|(_, p)| p.events_lost > 0);
    let settings = &result.settings;
    html! {
        (page::sources(&result.sources))
        dl.method {
            dt { "Machine" } dd { (foreign(&machine_line(&result.machine))) }
            dt { "Runs" }
            dd {
                (count("settings.runs", u64::from(settings.runs))) " with and "
                (count("settings.bare_runs", u64::from(settings.bare_runs)))
                " without the probe per CPU count"
            }
            @if !settings.confinement.is_empty() {
                dt { "Confinement" } dd { (foreign(&settings.confinement)) }
            }
            @if !settings.env.is_empty() {
                dt { "Environment" }
                dd { @for (name, value) in &settings.env { (code(&format!("{name}={value}"))) " " } }
            }
            @if let Some(cost) = &result.probe_cost {
                dt { "Cost of the probe" }
                dd {
                    (figure("probe_cost.wall_ratio", cost.wall_ratio, &format!("{:.3}×", cost.wall_ratio)))
                    " the " (cost_of(settings)) ", " (range("probe_cost.range", cost.range, |r| format!("{r:.3}")))
                    " over " (count("probe_cost.pairs", u64::from(cost.pairs))) " pairs of runs"
                }
            }
            @for (i, point) in lost {
                dt { "Lost events" }
                dd { (count(&format!("points.{i}.events_lost"), point.events_lost)) " of "
                    (count(&format!("points.{i}.events"), point.events)) " on " (PointId::from(point).joined()) }
            }
        }
    }
}

//! A result as text for a terminal.

mod comparison;
pub(crate) mod page;
pub(crate) mod sources;
mod stack;
pub(crate) mod table;

use crate::headline::{self, WORTH_BLAMING, headline};
use crate::number::{estimate, factor_digits, percent, seconds, significant};
use crate::palette::look_of;
use crate::plain::{command_line, elide};
use crate::point::{PointId, count};
use crate::schema::{CauseReport, Fit, Machine, ScaleResult, Settings, Site, Spread};

pub use comparison::render_comparison;
use page::{Page, bold, dim, text};
use table::Column;

/// What the terminal can show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Emit ANSI colours and weights.
    pub color: bool,
    /// Characters beyond ASCII.
    pub unicode: bool,
}

/// Sites shown per cause; the rest is in the HTML report.
const SITES: usize = 3;

/// The whole result, at most `width` columns wide (clamped to 40..=200). Foreign text in it is
/// free of control characters, so that a hostile result cannot steer the terminal.
pub fn render(result: &ScaleResult, width: usize, style: Style) -> String {
    let mut page = Page::new(width, style);
    let line = headline(result);
    page.paragraph(0, 0, &[bold(headline::sentence(&line.speedup))]);
    if !line.loss.is_empty() {
        page.paragraph(0, 0, &[text(headline::sentence(&line.loss))]);
    }
    page.blank();
    page.paragraph(
        0,
        2,
        &[dim(elide(
            &command_line(&result.command),
            400,
            page.ellipsis(),
        ))],
    );
    page.paragraph(0, 2, &[dim(machine_line(&result.machine))]);
    if result.partial {
        page.paragraph(
            0,
            0,
            &[bold("Interrupted: this is what was measured until then.")],
        );
    }
    runs(&mut page, result);
    stack::draw(&mut page, result);
    causes(&mut page, result);
    profile(&mut page, result);
    models(&mut page, result);
    measuring(&mut page, result);
    notices(&mut page, result);
    page.finish()
}

/// The machine in one line; also used by the HTML report.
pub(crate) fn machine_line(machine: &Machine) -> String {
    let mut parts = Vec::new();
    for part in [&machine.cpu_model, &machine.topology] {
        if !part.is_empty() {
            parts.push(part.clone());
        }
    }
    if machine.cpus_online > 0 {
        parts.push(format!(
            "{} of {} allowed",
            machine.cpus_allowed,
            count(machine.cpus_online, "CPU")
        ));
    }
    if let Some(quota) = machine.quota_cpus {
        parts.push(format!("quota of {} CPUs", significant(quota)));
    }
    if !machine.kernel.is_empty() {
        parts.push(format!("Linux\u{a0}{}", machine.kernel));
    }
    if machine.is_virtual {
        parts.push("virtual machine".to_owned());
    }
    parts.join(", ")
}

fn runs(page: &mut Page, result: &ScaleResult) {
    if result.points.is_empty() {
        return;
    }
    page.heading("Runs");
    let columns = [
        Column::new("CPUs", true, 0),
        Column::new("wall", true, 0),
        Column::new("min..max", false, 3),
        Column::new("runs", true, 5),
        Column::new("speedup", true, 0),
        Column::new("(range)", false, 4),
        Column::new("efficiency", true, 1),
        Column::new("rate/s", true, 2),
    ];
    // Speedup needs something to compare with; empty columns are left out.
    let compared = |text: String| {
        if result.has_speedup() {
            text
        } else {
            String::new()
        }
    };
    let rows: Vec<Vec<String>> = result
        .points
        .iter()
        .map(|p| {
            vec![
                PointId::from(p).brief(),
                seconds(p.wall_s.median),
                span(&p.wall_s, seconds),
                p.wall_s.runs.len().to_string(),
                compared(format!("{}×", factor_digits(p.speedup))),
                if !result.has_speedup() || p.speedup_range == [0.0; 2] {
                    String::new()
                } else {
                    p.speedup_range.map(factor_digits).join("..")
                },
                compared(percent(p.efficiency)),
                p.rate
                    .as_ref()
                    .map_or(String::new(), |rate| significant(rate.median)),
            ]
        })
        .collect();
    table::draw(page, &columns, &rows);
}

/// `12.30..12.60 s`, the unit once where both have the same.
fn span(spread: &Spread, show: fn(f64) -> String) -> String {
    let (low, high) = (show(spread.min), show(spread.max));
    match (low.split_once('\u{a0}'), high.split_once('\u{a0}')) {
        (Some((digits, a)), Some((_, b))) if a == b => format!("{digits}..{high}"),
        _ => format!("{low}..{high}"),
    }
}

fn causes(page: &mut Page, result: &ScaleResult) {
    let (Some((_, main)), false) = (result.main_point(), result.causes.is_empty()) else {
        return;
    };
    page.heading(&format!("What costs on {}", PointId::from(main).joined()));
    let (large, small): (Vec<_>, Vec<_>) = result
        .causes
        .iter()
        .partition(|cause| cause.fraction >= WORTH_BLAMING / 2.0);
    for cause in &large {
        let look = look_of(&cause.id);
        let mut head = vec![
            stack::swatch(look),
            text(" "),
            bold(&cause.id),
            bold(format!("\u{a0}{}", percent(cause.fraction))),
        ];
        if let Some([low, high]) = main.stack_range.get(&cause.id) {
            head.push(dim(format!(
                " ({} to {} over the runs)",
                percent(*low),
                percent(*high)
            )));
        }
        page.paragraph(0, 2, &head);
        page.paragraph(2, 2, &[text(sentence(cause))]);
        for site in cause.sites.iter().take(SITES) {
            show_site(page, site);
        }
        if cause.sites.len() > SITES {
            page.paragraph(
                4,
                4,
                &[dim(format!(
                    "and {} more places",
                    cause.sites.len() - SITES
                ))],
            );
        }
    }
    if !small.is_empty() {
        let list: Vec<String> = small
            .iter()
            .map(|c| format!("{}\u{a0}{}", c.id, percent(c.fraction)))
            .collect();
        page.paragraph(0, 2, &[dim(format!("Small: {}.", list.join(", ")))]);
    }
}

/// Functions shown of the differential profile; the rest is in the HTML report.
const FUNCTIONS: usize = 5;

/// User code against one CPU, where its growth is worth a look.
fn profile(page: &mut Page, result: &ScaleResult) {
    let (Some(first), Some((_, main))) = (result.points.first(), result.main_point()) else {
        return;
    };
    let grown = |id: &str| main.stack.get(id).copied().unwrap_or(0.0);
    if result.profile.is_empty() || grown("extra-work") + grown("slow-work") < WORTH_BLAMING {
        return;
    }
    page.heading(&format!(
        "User code on {} against {}",
        PointId::from(main).joined(),
        PointId::from(first).joined()
    ));
    let columns = [
        Column::new("user time", true, 2),
        Column::new("before", true, 3),
        Column::new("change", true, 0),
        Column::new("instructions", true, 0),
        Column::new("time each", true, 0),
        Column::new("function", false, 0),
    ];
    let ratio = |ratio: Option<f64>| {
        ratio.map_or(String::new(), |ratio| format!("{}×", factor_digits(ratio)))
    };
    let rows: Vec<Vec<String>> = result
        .profile
        .iter()
        .take(FUNCTIONS)
        .map(|entry| {
            let change = entry.extra_work + entry.slow_work;
            let sign = if change > 0.0 { "+" } else { "" };
            vec![
                seconds(entry.user_s),
                seconds(entry.base_user_s),
                format!("{sign}{}", percent(change)),
                ratio(entry.instructions_ratio),
                ratio(entry.slowdown),
                elide(
                    &entry.symbol,
                    page.width.saturating_sub(48),
                    page.ellipsis(),
                ),
            ]
        })
        .collect();
    table::draw(page, &columns, &rows);
}

/// The cause's line, or what its id means.
pub(crate) fn sentence(cause: &CauseReport) -> String {
    if cause.text.is_empty() {
        look_of(&cause.id).title.to_owned()
    } else {
        cause.text.clone()
    }
}

fn show_site(page: &mut Page, site: &Site) {
    let share = percent(site.fraction);
    let hang = 4 + 8;
    let pad = 7_usize.saturating_sub(page.columns(&share));
    let indent = 4 + pad;
    let room = page.width - hang;
    let symbol = if site.symbol.is_empty() {
        "(unknown function)"
    } else {
        &site.symbol
    };
    // No-break spaces keep a C++ or Rust name in one piece, whose middle may give way.
    let symbol = elide(&symbol.replace(' ', "\u{a0}"), room, page.ellipsis());
    let mut head = vec![text(format!("{share} ")), bold(symbol)];
    if let Some(file) = &site.file {
        let line = site.line.map_or(String::new(), |line| format!(":{line}"));
        let kept = room.saturating_sub(line.len());
        head.push(text(format!(
            " {}{line}",
            elide(&file.replace(' ', "\u{a0}"), kept, page.ellipsis())
        )));
    }
    page.paragraph(indent, hang, &head);
    let mut details = site_details(site);
    if let Some(module) = details.last_mut().filter(|_| !site.module.is_empty()) {
        // The folder of a program or library is in the other outputs.
        *module = site
            .module
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
    }
    if !details.is_empty() {
        page.paragraph(hang, hang, &[dim(details.join(" · "))]);
    }
}

/// Who, on what, from where; also used by the HTML report.
pub(crate) fn site_details(site: &Site) -> Vec<String> {
    let mut details = Vec::new();
    match (site.thread.as_str(), site.process.as_str()) {
        ("", "") => {}
        ("", process) => details.push(format!("process {process}")),
        (thread, process) if process.is_empty() || process == thread => {
            details.push(format!("thread {thread}"));
        }
        (thread, process) => details.push(format!("thread {thread} of {process}")),
    }
    if !site.object.is_empty() {
        details.push(site.object.clone());
    }
    if !site.module.is_empty() {
        details.push(site.module.clone());
    }
    details
}

fn models(page: &mut Page, result: &ScaleResult) {
    let models = &result.models;
    if models.amdahl.is_none() && models.usl.is_none() && models.note.is_empty() {
        return;
    }
    page.heading("Models");
    for (name, fit) in model_names(result) {
        page.paragraph(0, 2, &[bold(name), text(": "), text(fit_line(fit))]);
    }
    if !models.note.is_empty() {
        page.paragraph(0, 2, &[text(&models.note)]);
    }
}

/// The fitted models with their names.
pub(crate) fn model_names(result: &ScaleResult) -> impl Iterator<Item = (&'static str, &Fit)> {
    let models = &result.models;
    [
        ("Amdahl's law", &models.amdahl),
        ("Universal Scalability Law", &models.usl),
    ]
    .into_iter()
    .filter_map(|(name, fit)| fit.as_ref().map(|fit| (name, fit)))
}

fn fit_line(fit: &Fit) -> String {
    let mut parts: Vec<String> = fit
        .parameters
        .iter()
        .map(|(name, &value)| {
            let value = estimate(value);
            match fit.confidence.get(name) {
                Some(interval) => {
                    let [low, high] = interval.map(estimate);
                    format!(
                        "{} {value} (95\u{a0}% interval {low} to {high})",
                        words(name)
                    )
                }
                None => format!("{} {value}", words(name)),
            }
        })
        .collect();
    parts.push(format!("{} points", fit.points));
    parts.push(format!("typical error {}", percent(fit.relative_rmse)));
    parts.join(", ")
}

/// `serial_fraction` as a reader says it.
pub(crate) fn words(name: &str) -> String {
    name.replace('_', " ").replace("cpus", "CPUs")
}

fn measuring(page: &mut Page, result: &ScaleResult) {
    let lost: u64 = result
        .points
        .iter()
        .fold(0, |sum, p| sum.saturating_add(p.events_lost));
    if result.sources.is_empty() && result.probe_cost.is_none() && lost == 0 {
        return;
    }
    page.heading("How it was measured");
    let means = sources::means(&result.sources);
    if !means.is_empty() {
        page.paragraph(0, 2, &[text(means + ".")]);
    }
    if let Some(cost) = &result.probe_cost {
        let [low, high] = cost.range.map(|r| format!("{r:.3}"));
        page.paragraph(
            0,
            2,
            &[text(format!(
                "Cost of the probe: {:.3} times the {} ({low} to {high} over {} pairs).",
                cost.wall_ratio,
                cost_of(&result.settings),
                cost.pairs
            ))],
        );
    }
    if lost > 0 {
        page.paragraph(0, 2, &[bold(format!("The probe lost {lost} events."))]);
    }
    sources::missing(page, &result.sources);
}

/// What the cost of the probe is a ratio of.
pub(crate) fn cost_of(settings: &Settings) -> &'static str {
    match settings.speedup_of.as_str() {
        "rate" => "time for the same work",
        _ => "wall time",
    }
}

fn notices(page: &mut Page, result: &ScaleResult) {
    if !result.warnings.is_empty() {
        page.heading("Warnings");
        sources::warnings(page, &result.warnings);
    }
    if !result.failures.is_empty() {
        page.heading("Failed runs");
        for failure in &result.failures {
            let head = format!(
                "run {} on {}: ",
                failure.run,
                PointId::from(failure).joined()
            );
            page.paragraph(0, 2, &[text(head), text(&failure.what)]);
        }
    }
}

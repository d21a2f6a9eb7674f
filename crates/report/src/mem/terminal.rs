//! The result as text for a terminal.

use super::headline::sentences;
use super::schema::{Code, FaultSite, LockRow, LockStranger, MappingReport, MemResult, Zone};
use crate::locks::lines::callers;
use crate::number::{bytes, percent, seconds, significant};
use crate::plain::{command_line, elide};
use crate::terminal::page::{Page, bold, dim, text};
use crate::terminal::sources;
use crate::terminal::table::{self, Column};
use crate::terminal::{Style, machine_line};

/// Rows of a table; the rest is in the other outputs.
const ROWS: usize = 10;

/// The whole result, at most `width` columns wide (clamped to 40..=200). Foreign text in it is
/// free of control characters.
pub fn render(result: &MemResult, width: usize, style: Style) -> String {
    let mut page = Page::new(width, style);
    for sentence in sentences(result) {
        page.paragraph(0, 0, &[bold(sentence)]);
    }
    page.blank();
    let command = elide(&command_line(&result.command), 400, page.ellipsis());
    page.paragraph(0, 2, &[dim(command)]);
    page.paragraph(0, 2, &[dim(machine_line(&result.machine))]);
    obstacles(&mut page, result);
    mappings(&mut page, result);
    sizes(&mut page, result);
    free(&mut page, result);
    faults(&mut page, result);
    lock(&mut page, result);
    tlb(&mut page, result);
    numa(&mut page, result);
    vmalloc(&mut page, result);
    measuring(&mut page, result);
    page.finish()
}

fn plural(count: u64, what: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{count} {what}{end}")
}

fn left(title: &'static str, expendable: u8) -> Column {
    Column::new(title, false, expendable)
}

fn right(title: &'static str, expendable: u8) -> Column {
    Column::new(title, true, expendable)
}

/// What stays of a name, so that a table fits.
fn name(page: &Page, name: &str, used: usize) -> String {
    let room = page.width.saturating_sub(used).max(12);
    elide(&name.replace(' ', "\u{a0}"), room, page.ellipsis())
}

fn obstacles(page: &mut Page, result: &MemResult) {
    let obstacles = &result.huge.obstacles;
    if obstacles.is_empty() {
        return;
    }
    page.heading("What keeps memory in small pages");
    for obstacle in obstacles.iter().take(ROWS) {
        let size = bytes(obstacle.bytes);
        let head = format!(" {size} in {}. ", plural(obstacle.mappings, "mapping"));
        page.paragraph(
            0,
            2,
            &[bold(&obstacle.id), text(head), text(&obstacle.text)],
        );
        if obstacle.huge_pages > 0 {
            let gain = format!(
                "Gain: {} for {} small ones and as many faults at filling. ",
                plural(obstacle.huge_pages, "huge page"),
                obstacle.pages
            );
            page.paragraph(2, 2, &[dim(gain), dim(&obstacle.remedy)]);
        }
    }
}

fn mappings(page: &mut Page, result: &MemResult) {
    let all = &result.huge.mappings;
    if all.is_empty() {
        return;
    }
    page.heading("Mappings with most memory in small pages");
    let columns = [
        right("resident", 0),
        right("huge", 0),
        left("other pages", 5),
        right("size", 3),
        right("pid", 2),
        left("process", 4),
        left("in the way", 0),
        left("mapping", 0),
    ];
    let small = result.huge.page_bytes;
    let huge = result.huge.size_bytes;
    let large = |m: &MappingReport| large(m, |size| size > small && size != huge);
    let rows = all.iter().take(ROWS);
    let rows: Vec<Vec<String>> = rows.map(|m| mapping(page, m, large(m))).collect();
    table::draw(page, &columns, &rows);
    let more =
        (all.len().saturating_sub(ROWS) as u64).saturating_add(result.huge.mappings_left_out);
    if more > 0 {
        page.paragraph(0, 0, &[dim(format!("and {more} more mappings"))]);
    }
}

/// Sizes of pages that `is_told`, those with most memory first, with the share of the memory that is in them.
fn large(m: &MappingReport, is_told: impl Fn(u64) -> bool) -> String {
    let all = m
        .sizes
        .values()
        .fold(0, |sum: u64, &more| sum.saturating_add(more));
    let sizes = m
        .sizes
        .iter()
        .filter(|(size, bytes)| is_told(**size) && **bytes > 0);
    let mut sizes: Vec<(u64, u64)> = sizes.map(|(&size, &bytes)| (bytes, size)).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let told = sizes.iter().take(2).map(|&(amount, size)| {
        let share = percent(amount as f64 / all as f64);
        format!("{} {share}", bytes(size)).replace(' ', "\u{a0}")
    });
    told.collect::<Vec<_>>().join(", ")
}

fn mapping(page: &Page, m: &MappingReport, large: String) -> Vec<String> {
    let label = if m.name.is_empty() {
        format!("{} {}", m.backing, m.start)
    } else {
        m.name.clone()
    };
    let share = if m.resident_bytes == 0 {
        String::new()
    } else {
        percent(m.huge_bytes as f64 / m.resident_bytes as f64)
    };
    vec![
        bytes(m.resident_bytes),
        share,
        large,
        bytes(m.bytes),
        m.pid.to_string(),
        name(page, &m.process, 64),
        name(page, m.obstacles.first().map_or("", |(id, _)| id), 62),
        name(page, &label, 54),
    ]
}

fn sizes(page: &mut Page, result: &MemResult) {
    let mut by_size = std::collections::BTreeMap::<u64, u64>::new();
    for (&size, &amount) in result.huge.mappings.iter().flat_map(|m| &m.sizes) {
        let sum = by_size.entry(size).or_default();
        *sum = sum.saturating_add(amount);
    }
    let in_use = |size: u64| by_size.get(&size).map_or(String::new(), |&b| bytes(b));
    let columns = [
        right("page", 0),
        right("here", 0),
        left("anonymous", 0),
        left("shared", 1),
        right("given", 2),
        right("refused", 0),
    ];
    let count = |count: Option<u64>| count.map_or(String::new(), |count| count.to_string());
    let rows: Vec<Vec<String>> = result
        .huge
        .sizes
        .iter()
        .map(|size| {
            vec![
                bytes(size.bytes),
                in_use(size.bytes),
                name(page, &size.anonymous, 60),
                name(page, &size.shmem, 60),
                count(size.given),
                count(size.refused),
            ]
        })
        .collect();
    if !rows.is_empty() {
        page.heading("Large pages: switches, and pages given since boot on the whole machine");
        table::draw(page, &columns, &rows);
    }
}

fn free(page: &mut Page, result: &MemResult) {
    if result.huge.free.is_empty() {
        return;
    }
    page.heading("Free memory in pieces large enough");
    let columns = [
        right("node", 0),
        left("zone", 0),
        right("free", 0),
        right("huge pages", 0),
        right("in smaller pieces", 0),
    ];
    let row = |page: &Page, zone: &Zone| {
        vec![
            zone.node.to_string(),
            name(page, &zone.name, 60),
            bytes(zone.free_bytes),
            zone.huge_pages.to_string(),
            percent(zone.unusable),
        ]
    };
    let zones = result.huge.free.iter().take(4 * ROWS);
    let rows: Vec<_> = zones.map(|zone| row(page, zone)).collect();
    table::draw(page, &columns, &rows);
    let huge = &result.huge;
    let mut notes = Vec::new();
    if let Some(movable) = huge.movable {
        let stuck = percent(1.0 - movable);
        notes.push(format!(
            "{stuck} of all blocks hold pages of the kernel, which cannot be moved: no huge page can be made there."
        ));
    }
    if let (Some(given), Some(refused)) = (huge.given, huge.refused) {
        notes.push(format!(
            "Meanwhile {given} huge pages were given at faults and {refused} refused on the whole machine."
        ));
    }
    if !notes.is_empty() {
        page.paragraph(0, 0, &[dim(notes.join(" "))]);
    }
}

fn faults(page: &mut Page, result: &MemResult) {
    let faults = &result.faults;
    if faults.kinds.is_empty() {
        return;
    }
    page.heading("Page faults");
    let time = |s: f64| {
        if faults.is_timed {
            seconds(s)
        } else {
            String::new()
        }
    };
    let mean = |s: f64, count: u64| time(s / count.max(1) as f64);
    let columns = [
        left("kind", 0),
        right("count", 0),
        right("total", 0),
        right("mean", 2),
        right("max", 1),
    ];
    let kinds = faults.kinds.iter().map(|k| {
        let (total, mean) = (time(k.seconds), mean(k.seconds, k.count));
        vec![
            name(page, &k.kind, 60),
            k.count.to_string(),
            total,
            mean,
            time(k.max_s),
        ]
    });
    let rows: Vec<_> = kinds.collect();
    table::draw(page, &columns, &rows);
    if let Some(all) = faults.accounted.filter(|&all| all > faults.count) {
        let unseen = all - faults.count;
        let note = format!(
            "The kernel counted {all}: {unseen} more on its own behalf (populate, pinning), before or after."
        );
        page.paragraph(0, 0, &[dim(note)]);
    }
    if faults.sites.is_empty() {
        return;
    }
    page.blank();
    let columns = [
        right("count", 0),
        right("total", 0),
        right("max", 3),
        left("kind", 0),
        left("object", 2),
        left("where", 0),
    ];
    let sites = faults.sites.iter().take(ROWS).map(|s| {
        vec![
            s.count.to_string(),
            time(s.seconds),
            time(s.max_s),
            name(page, &s.kind, 66),
            name(page, s.object.rsplit('/').next().unwrap_or_default(), 64),
            name(page, &place(&s.code, &s.syscall), 48),
        ]
    });
    let rows: Vec<_> = sites.collect();
    let note = |s: &FaultSite| {
        let has_callers = s.code.stack.len() > 1;
        has_callers.then(|| callers(&s.code.stack, page.ellipsis()))
    };
    let notes: Vec<Option<String>> = faults.sites.iter().take(ROWS).map(note).collect();
    table::draw_noted(page, &columns, &rows, &notes);
}

/// Function and line of a place, with the system call in which it was.
pub(super) fn place(code: &Code, syscall: &str) -> String {
    let symbol = if code.symbol.is_empty() {
        "(unknown function)"
    } else {
        &code.symbol
    };
    let mut place = symbol.to_owned();
    if !syscall.is_empty() {
        place = format!("{place} in {syscall}");
    }
    if let Some(file) = &code.file {
        let file = file.rsplit('/').next().unwrap_or_default();
        place = format!("{place} {file}");
        if let Some(line) = code.line {
            place = format!("{place}:{line}");
        }
    }
    place
}

fn lock(page: &mut Page, result: &MemResult) {
    let lock = &result.mmap_lock;
    let columns = [
        left("operation", 0),
        left("mode", 0),
        right("times", 0),
        right("total", 0),
        right("mean", 2),
        right("p99", 1),
        right("max", 0),
    ];
    let row = |page: &Page, row: &LockRow| {
        vec![
            name(page, &row.operation, 60),
            name(page, &row.mode, 70),
            row.count.to_string(),
            seconds(row.seconds),
            seconds(row.seconds / row.count.max(1) as f64),
            row.p99_s.map_or(String::new(), seconds),
            seconds(row.max_s),
        ]
    };
    for (title, rows) in [
        ("Waits for the address-space lock (mmap_lock)", &lock.waits),
        ("How long it was held", &lock.holds),
    ] {
        if !rows.is_empty() {
            page.heading(title);
            let rows: Vec<_> = rows.iter().map(|r| row(page, r)).collect();
            table::draw(page, &columns, &rows);
        }
    }
    if !lock.strangers.is_empty() {
        page.heading("Holds and waits of others than who is watched");
        let columns = [
            left("by", 0),
            left("operation", 0),
            left("mode", 1),
            right("holds", 2),
            right("held", 0),
            right("max", 3),
            right("waits", 2),
            right("waited", 0),
            right("max", 3),
            left("whose lock", 0),
        ];
        let figures = |count: u64, total: f64, max: f64| {
            let of = |figure: String| if count > 0 { figure } else { String::new() };
            [of(count.to_string()), of(seconds(total)), of(seconds(max))]
        };
        let row = |s: &LockStranger| {
            let who = [
                name(page, &s.process, 60),
                name(page, &s.operation, 60),
                name(page, &s.mode, 70),
            ];
            let holds = figures(s.count, s.seconds, s.max_s);
            let waits = figures(s.waits, s.waited_s, s.waited_max_s);
            let whose = [name(page, &whose(s), 60)];
            let cells = who.into_iter().chain(holds).chain(waits).chain(whose);
            cells.collect::<Vec<String>>()
        };
        let rows: Vec<_> = lock.strangers.iter().take(ROWS).map(row).collect();
        table::draw(page, &columns, &rows);
    }
    for site in lock.sites.iter().take(ROWS / 2) {
        let head = format!("{} in {} waits of ", seconds(site.seconds), site.count);
        let tail = format!(" of {} [{}]", site.process, site.pid);
        let place = place(&site.code, "");
        page.paragraph(
            2,
            4,
            &[
                text(head),
                bold(&site.operation),
                text(tail),
                dim(format!(" {place}")),
            ],
        );
    }
}

/// Process whose lock a stranger held or waited for; what was folded is of several.
pub(super) fn whose(stranger: &LockStranger) -> String {
    match stranger.of_pid {
        0 => String::new(),
        pid => format!("{} [{pid}]", stranger.of_process),
    }
}

fn tlb(page: &mut Page, result: &MemResult) {
    let Some(tlb) = &result.tlb else { return };
    page.heading("TLB misses per thousand instructions of user code");
    let side = |misses: Option<f64>| misses.map_or("not counted".to_owned(), significant);
    let line = format!(
        "Data side: {}. Instruction side: {}.",
        side(tlb.data_per_thousand),
        side(tlb.instruction_per_thousand)
    );
    page.paragraph(0, 2, &[text(line)]);
    if tlb.counted < 0.99 {
        let note = format!(
            "Counters took turns: scaled from {} of the time.",
            percent(tlb.counted)
        );
        page.paragraph(0, 2, &[dim(note)]);
    }
}

fn numa(page: &mut Page, result: &MemResult) {
    let Some(numa) = &result.numa else { return };
    page.heading("Placement on nodes");
    if let [only] = numa.nodes.as_slice() {
        let line = format!(
            "All {} are on the one node there is memory on.",
            bytes(only.bytes)
        );
        page.paragraph(0, 0, &[text(line)]);
        return;
    }
    let columns = [right("node", 0), right("memory", 0), right("first used", 0)];
    let nodes = numa.nodes.iter().map(|node| {
        vec![
            node.node.to_string(),
            bytes(node.bytes),
            bytes(node.touched.saturating_mul(result.huge.page_bytes)),
        ]
    });
    let rows: Vec<_> = nodes.collect();
    table::draw(page, &columns, &rows);
    if let Some(remote) = numa.remote {
        let line = format!(
            "If threads run where they used memory first, and all use all memory alike, {} of the accesses go to another node.",
            percent(remote)
        );
        page.paragraph(0, 0, &[text(line)]);
    }
}

fn vmalloc(page: &mut Page, result: &MemResult) {
    let Some(all) = result
        .vmalloc
        .as_ref()
        .filter(|all| all.allocs > 0 || all.purges > 0)
    else {
        return;
    };
    page.heading("Address ranges of the kernel (vmalloc), whole machine");
    let line = format!(
        "{} ranges of {} allocated, {} given back, {} refused. {} times all CPUs were interrupted to forget {} of them; at most {} waited for that.",
        all.allocs,
        bytes(all.bytes),
        all.frees,
        all.failed,
        all.purges,
        all.purged,
        bytes(all.lazy_bytes_max)
    );
    page.paragraph(0, 0, &[text(line)]);
    for site in all.sites.iter().take(ROWS / 2) {
        let who = if site.pid == 0 {
            "others".to_owned()
        } else {
            format!("{} [{}]", site.process, site.pid)
        };
        let of = if site.syscall.is_empty() { "" } else { " in " };
        let line = format!(
            "{} in {} ranges: {who}{of}{}",
            bytes(site.bytes),
            site.count,
            site.syscall
        );
        page.paragraph(2, 4, &[text(line)]);
    }
}

fn measuring(page: &mut Page, result: &MemResult) {
    page.heading("How it was measured");
    let whole = result.sources.iter().filter(|s| !sources::lacks(s));
    let means = sources::means(whole);
    let mut line = format!("For {}", seconds(result.duration_s));
    if !means.is_empty() {
        line = format!("{line}: {means}");
    }
    page.paragraph(0, 2, &[text(line + ".")]);
    let lost = result.faults.lost;
    if lost > 0 {
        page.paragraph(
            0,
            2,
            &[bold(format!(
                "{lost} events were lost: counts are too low."
            ))],
        );
    }
    sources::missing(page, &result.sources);
    sources::warnings(page, &result.warnings);
}

//! Mappings and what of them is in huge pages.

use amdahl_report::mem::schema::{HugePages, MappingReport, MemResult};
use amdahl_report::plain::plain;

use crate::grid::{Cell, Column, Grid, Row};
use crate::layout::bytes_text;

pub static COLUMNS: &[Column] = &[
    Column::text("process", 9, 2, "whose"),
    Column::text(
        "mapping",
        14,
        0,
        "a file, a name, or the kind of memory and its address",
    ),
    Column::text("in the way", 12, 1, "what keeps most of it in small pages"),
    Column::figure("small", 7, 1, "memory in small pages"),
    Column::figure("huge", 7, 3, "memory in huge pages"),
    Column::figure("huge%", 6, 0, "share of its memory that is in huge pages"),
    Column::figure("size", 7, 5, "of its range of addresses"),
];

fn label(mapping: &MappingReport) -> String {
    if mapping.name.is_empty() {
        format!("{} {}", mapping.backing, mapping.start)
    } else {
        mapping.name.clone()
    }
}

fn process(mapping: &MappingReport) -> String {
    format!("{} [{}]", mapping.process, mapping.pid)
}

fn huge(mapping: &MappingReport) -> u64 {
    mapping.huge_bytes.min(mapping.resident_bytes)
}

fn share(mapping: &MappingReport) -> Option<f64> {
    let all = mapping.resident_bytes;
    (all > 0).then(|| huge(mapping) as f64 / all as f64)
}

pub fn grid(result: &MemResult) -> Grid {
    let rows = result.huge.mappings.iter().enumerate();
    let rows = rows.map(|(index, mapping)| Row {
        key: format!("{}|{}|{}", mapping.pid, mapping.start, mapping.name),
        cells: vec![
            Cell::text(&process(mapping)),
            Cell::text(&label(mapping)),
            Cell::text(mapping.obstacles.first().map_or("", |(id, _)| id)),
            Cell::Bytes(mapping.resident_bytes - huge(mapping)),
            Cell::Bytes(huge(mapping)),
            share(mapping).map_or(Cell::Unknown, Cell::Share),
            Cell::Bytes(mapping.bytes),
        ],
        index,
        is_faint: false,
    });
    Grid {
        columns: COLUMNS,
        rows: rows.collect(),
    }
}

pub fn detail(result: &MemResult, index: usize) -> Vec<(usize, String)> {
    let huge_pages = &result.huge;
    let Some(mapping) = huge_pages.mappings.get(index) else {
        return Vec::new();
    };
    let advised = if mapping.is_advised {
        ", advised (MADV_HUGEPAGE)"
    } else {
        ""
    };
    let mut lines = vec![
        (0, label(mapping)),
        (0, format!("of {}", process(mapping))),
        (
            0,
            format!(
                "{} from address {}: {}{advised}",
                bytes_text(mapping.bytes),
                mapping.start,
                mapping.backing
            ),
        ),
        (0, String::new()),
        (
            0,
            format!(
                "{} in memory, {} of it in huge pages",
                bytes_text(mapping.resident_bytes),
                bytes_text(huge(mapping))
            ),
        ),
    ];
    let sizes = mapping.sizes.iter();
    lines.extend(sizes.map(|(&size, &bytes)| {
        let text = format!("{} in pages of {}", bytes_text(bytes), bytes_text(size));
        (2, text)
    }));
    obstacles(mapping, huge_pages, &mut lines);
    if mapping.gain_pages > 0 {
        let text = format!(
            "Huge pages would replace {} small ones.",
            mapping.gain_pages
        );
        lines.push((0, text));
    }
    lines
        .into_iter()
        .map(|(indent, text)| (indent, plain(&text)))
        .collect()
}

fn obstacles(mapping: &MappingReport, huge: &HugePages, lines: &mut Vec<(usize, String)>) {
    if mapping.obstacles.is_empty() {
        return;
    }
    lines.push((0, String::new()));
    lines.push((0, "What keeps it in small pages:".to_owned()));
    for (id, bytes) in &mapping.obstacles {
        let known = huge.obstacles.iter().find(|known| known.id == *id);
        let text = known.map_or("", |known| &known.text);
        lines.push((2, format!("{} {id}. {text}", bytes_text(*bytes))));
        if let Some(known) = known.filter(|known| !known.remedy.is_empty()) {
            lines.push((4, known.remedy.clone()));
        }
    }
}

//! What an image may say beside the memory.

use crate::layer::Layer;
use crate::layout::{PAGE_BYTES, SECTION_ENTRY_BYTES, u32_at, u64_at};
use crate::{Error, Result};

/// Most runs of a working set.
pub const WORKING_SET_RUNS_MAX: usize = 1 << 20;
/// Most guest regions.
pub const REGIONS_MAX: usize = 4096;
/// Most bytes of metadata.
pub const METADATA_BYTES_MAX: usize = 1 << 20;

const WORKING_SET: u32 = 1;
const REGIONS: u32 = 2;
const METADATA: u32 = 3;

/// Pages one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRun {
    /// The first one.
    pub first: u64,
    /// How many, at least one.
    pub count: u64,
}

/// A part of the guest's physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Guest physical address of its first byte.
    pub guest_address: u64,
    /// Where that is in the memory of the image.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A section as the table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub kind: u32,
    crc: u32,
    offset: u64,
    pub len: u64,
}

/// The table of sections.
pub(crate) fn table(layer: &Layer) -> Result<Vec<Section>> {
    let header = &layer.header;
    let (offset, count) = (header.sections_offset(), header.sections as usize);
    // At most 64, by the check of the header.
    let mut bytes = vec![0; count * SECTION_ENTRY_BYTES];
    layer.read(&mut bytes, offset)?;
    if crc32c::crc32c(&bytes) != header.sections_crc {
        return Err(layer.damaged(offset, "checksum of the table of sections"));
    }
    let first = offset + bytes.len() as u64;
    let section = |entry: &[u8]| {
        let section = Section {
            kind: u32_at(entry, 0),
            crc: u32_at(entry, 4),
            offset: u64_at(entry, 8),
            len: u64_at(entry, 16),
        };
        let end = section.offset.checked_add(section.len);
        let inside = section.offset >= first && end.is_some_and(|end| end <= header.file_bytes);
        inside.then_some(section)
    };
    let sections: Option<Vec<Section>> = bytes
        .chunks_exact(SECTION_ENTRY_BYTES)
        .map(section)
        .collect();
    sections.ok_or_else(|| layer.damaged(offset, "place of a section"))
}

fn content(layer: &Layer, kind: u32, len_max: usize) -> Result<(Vec<u8>, u64)> {
    let sections = table(layer)?;
    let Some(section) = sections.iter().find(|section| section.kind == kind) else {
        return Ok((Vec::new(), 0));
    };
    if section.len > len_max as u64 {
        return Err(layer.damaged(section.offset, "length of a section"));
    }
    let mut bytes = vec![0; section.len as usize];
    layer.read(&mut bytes, section.offset)?;
    match crc32c::crc32c(&bytes) == section.crc {
        true => Ok((bytes, section.offset)),
        false => Err(layer.damaged(section.offset, "checksum of a section")),
    }
}

/// Checks the content of every section that is known, and the checksum of the others.
pub(crate) fn check(layer: &Layer) -> Result<()> {
    working_set(layer)?;
    regions(layer)?;
    metadata(layer)?;
    let mut part = vec![0; 1 << 16];
    for section in table(layer)? {
        let (mut crc, mut at) = (0, 0);
        while at < section.len {
            let len = (section.len - at).min(part.len() as u64) as usize;
            layer.read(&mut part[..len], section.offset + at)?;
            crc = crc32c::crc32c_append(crc, &part[..len]);
            at += len as u64;
        }
        if crc != section.crc {
            return Err(layer.damaged(section.offset, "checksum of a section"));
        }
    }
    Ok(())
}

pub(crate) fn working_set(layer: &Layer) -> Result<Vec<PageRun>> {
    let (bytes, offset) = content(layer, WORKING_SET, WORKING_SET_RUNS_MAX * 16)?;
    let run = |entry: &[u8]| PageRun {
        first: u64_at(entry, 0),
        count: u64_at(entry, 8),
    };
    let runs: Vec<PageRun> = bytes.chunks_exact(16).map(run).collect();
    match bytes.len().is_multiple_of(16) && check_runs(&runs, layer.header.pages()).is_ok() {
        true => Ok(runs),
        false => Err(layer.damaged(offset, "working set")),
    }
}

pub(crate) fn regions(layer: &Layer) -> Result<Vec<Region>> {
    let (bytes, offset) = content(layer, REGIONS, REGIONS_MAX * 24)?;
    let region = |entry: &[u8]| Region {
        guest_address: u64_at(entry, 0),
        offset: u64_at(entry, 8),
        len: u64_at(entry, 16),
    };
    let regions: Vec<Region> = bytes.chunks_exact(24).map(region).collect();
    let good = check_regions(&regions, layer.header.memory_bytes).is_ok();
    match bytes.len().is_multiple_of(24) && good {
        true => Ok(regions),
        false => Err(layer.damaged(offset, "guest region")),
    }
}

pub(crate) fn metadata(layer: &Layer) -> Result<Vec<u8>> {
    Ok(content(layer, METADATA, METADATA_BYTES_MAX)?.0)
}

/// What a writer adds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Additions {
    pub working_set: Vec<PageRun>,
    pub regions: Vec<Region>,
    pub metadata: Vec<u8>,
}

impl Additions {
    pub fn check(&self, memory_bytes: u64) -> Result<()> {
        check_runs(&self.working_set, memory_bytes / PAGE_BYTES as u64)?;
        check_regions(&self.regions, memory_bytes)?;
        match self.metadata.len() <= METADATA_BYTES_MAX {
            true => Ok(()),
            false => Err(Error::input(format!(
                "metadata may have {METADATA_BYTES_MAX} bytes"
            ))),
        }
    }

    /// The table and the contents behind it, how many sections these are, and the checksum of the table.
    pub fn encode(&self, offset: u64) -> (Vec<u8>, u32, u32) {
        let numbers = |numbers: &mut dyn Iterator<Item = u64>| -> Vec<u8> {
            numbers.flat_map(u64::to_le_bytes).collect()
        };
        let runs = &mut self
            .working_set
            .iter()
            .flat_map(|run| [run.first, run.count]);
        let regions = &mut self
            .regions
            .iter()
            .flat_map(|region| [region.guest_address, region.offset, region.len]);
        let sections = [
            (WORKING_SET, numbers(runs)),
            (REGIONS, numbers(regions)),
            (METADATA, self.metadata.clone()),
        ];
        let sections = sections.iter().filter(|(_, content)| !content.is_empty());
        let count = sections.clone().count();
        let (mut table, mut contents) = (Vec::new(), Vec::new());
        for (kind, content) in sections {
            let at = offset + (count * SECTION_ENTRY_BYTES + contents.len()) as u64;
            table.extend(kind.to_le_bytes());
            table.extend(crc32c::crc32c(content).to_le_bytes());
            table.extend(at.to_le_bytes());
            table.extend((content.len() as u64).to_le_bytes());
            table.extend([0; 8]);
            contents.extend(content);
            contents.resize(contents.len().next_multiple_of(8), 0);
        }
        let crc = crc32c::crc32c(&table);
        table.extend(contents);
        (table, count as u32, crc)
    }
}

fn check_runs(runs: &[PageRun], pages: u64) -> Result<()> {
    if runs.len() > WORKING_SET_RUNS_MAX {
        return Err(Error::input(format!(
            "a working set may have {WORKING_SET_RUNS_MAX} runs of pages"
        )));
    }
    let mut room = pages;
    for run in runs {
        let end = run.first.checked_add(run.count);
        if run.count == 0 || end.is_none_or(|end| end > pages) {
            return Err(Error::input(format!(
                "working set: {} pages from page {} on are not in a memory of {pages} pages",
                run.count, run.first
            )));
        }
        // A reader makes a list of all.
        room = room.checked_sub(run.count).ok_or_else(|| {
            Error::input(format!(
                "working set: more pages than the {pages} of the memory: some are named twice"
            ))
        })?;
    }
    Ok(())
}

fn check_regions(regions: &[Region], memory_bytes: u64) -> Result<()> {
    if regions.len() > REGIONS_MAX {
        return Err(Error::input(format!(
            "an image may have {REGIONS_MAX} guest regions"
        )));
    }
    for region in regions {
        let end = region.offset.checked_add(region.len);
        if region.guest_address.checked_add(region.len).is_none()
            || end.is_none_or(|end| end > memory_bytes)
        {
            return Err(Error::input(format!(
                "guest region of {} bytes at offset {} is not in a memory of {memory_bytes} bytes",
                region.len, region.offset
            )));
        }
    }
    Ok(())
}

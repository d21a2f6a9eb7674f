//! What every result of `amdahl mem` must satisfy, whoever wrote it.

use crate::check::{
    Checked, FRAMES_MAX, ITEMS_MAX, SITES_MAX, at_most, bad, fraction, positive, short,
};
use crate::schema::Machine;

use super::schema::{Code, HugePages, LockRow, MappingReport, MemResult, Numa, Tlb};

/// Checks a result.
pub(super) fn check(result: &MemResult) -> Checked {
    short("amdahl_version", &result.amdahl_version)?;
    short("started", &result.started)?;
    positive("duration_s", result.duration_s)?;
    texts("command", result.command.iter())?;
    machine(&result.machine)?;
    at_most("sources", result.sources.len(), ITEMS_MAX)?;
    for (i, source) in result.sources.iter().enumerate() {
        let all = [&source.what, &source.how, &source.missing, &source.remedy];
        texts(&format!("sources.{i}"), all)?;
    }
    at_most("warnings", result.warnings.len(), ITEMS_MAX)?;
    for (i, warning) in result.warnings.iter().enumerate() {
        texts(&format!("warnings.{i}"), [&warning.code, &warning.text])?;
    }
    at_most("processes", result.processes.len(), SITES_MAX)?;
    texts("processes", result.processes.iter().map(|p| &p.name))?;
    huge(&result.huge)?;
    faults(result)?;
    lock(result)?;
    result.tlb.as_ref().map_or(Ok(()), tlb)?;
    result.numa.as_ref().map_or(Ok(()), numa)?;
    if let Some(vmalloc) = &result.vmalloc {
        at_most("vmalloc.sites", vmalloc.sites.len(), SITES_MAX)?;
        let sites = vmalloc.sites.iter();
        texts(
            "vmalloc.sites",
            sites.flat_map(|s| [&s.process, &s.syscall]),
        )?;
    }
    Ok(())
}

fn texts<'a>(at: &str, texts: impl IntoIterator<Item = &'a String>) -> Checked {
    for (i, text) in texts.into_iter().enumerate() {
        if i > ITEMS_MAX {
            return at_most(at, i, ITEMS_MAX);
        }
        short(&format!("{at}.{i}"), text)?;
    }
    Ok(())
}

fn machine(machine: &Machine) -> Checked {
    short("machine.kernel", &machine.kernel)?;
    short("machine.cpu_model", &machine.cpu_model)?;
    short("machine.topology", &machine.topology)?;
    positive("machine.quota_cpus", machine.quota_cpus.unwrap_or(0.0))
}

fn huge(huge: &HugePages) -> Checked {
    texts("huge", [&huge.anonymous, &huge.shmem, &huge.defrag])?;
    at_most("huge.sizes", huge.sizes.len(), SITES_MAX)?;
    texts(
        "huge.sizes",
        huge.sizes.iter().flat_map(|s| [&s.anonymous, &s.shmem]),
    )?;
    at_most("huge.pools", huge.pools.len(), SITES_MAX)?;
    at_most("huge.free", huge.free.len(), ITEMS_MAX)?;
    for (i, zone) in huge.free.iter().enumerate() {
        let at = format!("huge.free.{i}");
        short(&at, &zone.name)?;
        fraction(&format!("{at}.unusable"), zone.unusable)?;
        fraction(
            &format!("{at}.fragmentation"),
            zone.fragmentation.unwrap_or(0.0),
        )?;
    }
    fraction("huge.movable", huge.movable.unwrap_or(0.0))?;
    at_most("huge.obstacles", huge.obstacles.len(), SITES_MAX)?;
    for (i, obstacle) in huge.obstacles.iter().enumerate() {
        let all = [&obstacle.id, &obstacle.text, &obstacle.remedy];
        texts(&format!("huge.obstacles.{i}"), all)?;
    }
    at_most("huge.mappings", huge.mappings.len(), ITEMS_MAX)?;
    for (i, m) in huge.mappings.iter().enumerate() {
        mapping(&format!("huge.mappings.{i}"), m)?;
    }
    Ok(())
}

fn mapping(at: &str, mapping: &MappingReport) -> Checked {
    let all = [
        &mapping.process,
        &mapping.start,
        &mapping.name,
        &mapping.backing,
    ];
    texts(at, all)?;
    at_most(&format!("{at}.sizes"), mapping.sizes.len(), SITES_MAX)?;
    at_most(&format!("{at}.nodes"), mapping.nodes.len(), ITEMS_MAX)?;
    at_most(&format!("{at}.touched"), mapping.touched.len(), ITEMS_MAX)?;
    at_most(
        &format!("{at}.obstacles"),
        mapping.obstacles.len(),
        SITES_MAX,
    )?;
    texts(at, mapping.obstacles.iter().map(|(id, _)| id))?;
    if mapping.huge_bytes > mapping.resident_bytes {
        return bad(
            format!("{at}.huge_bytes"),
            format!("is {}, more than resident_bytes", mapping.huge_bytes),
        );
    }
    Ok(())
}

fn faults(result: &MemResult) -> Checked {
    let faults = &result.faults;
    positive("faults.seconds", faults.seconds)?;
    at_most("faults.kinds", faults.kinds.len(), SITES_MAX)?;
    for (i, kind) in faults.kinds.iter().enumerate() {
        let at = format!("faults.kinds.{i}");
        short(&at, &kind.kind)?;
        times(&at, kind.seconds, kind.max_s)?;
    }
    at_most("faults.sites", faults.sites.len(), SITES_MAX)?;
    for (i, site) in faults.sites.iter().enumerate() {
        let at = format!("faults.sites.{i}");
        texts(
            &at,
            [&site.kind, &site.process, &site.object, &site.syscall],
        )?;
        times(&at, site.seconds, site.max_s)?;
        code(&at, &site.code)?;
    }
    Ok(())
}

fn lock(result: &MemResult) -> Checked {
    let lock = &result.mmap_lock;
    rows("mmap_lock.waits", &lock.waits)?;
    rows("mmap_lock.holds", &lock.holds)?;
    at_most("mmap_lock.strangers", lock.strangers.len(), SITES_MAX)?;
    for (i, row) in lock.strangers.iter().enumerate() {
        let at = format!("mmap_lock.strangers.{i}");
        texts(
            &at,
            [&row.operation, &row.mode, &row.process, &row.of_process],
        )?;
        times(&at, row.seconds, row.max_s)?;
        times(&format!("{at}.waits"), row.waited_s, row.waited_max_s)?;
    }
    at_most("mmap_lock.sites", lock.sites.len(), SITES_MAX)?;
    for (i, site) in lock.sites.iter().enumerate() {
        let at = format!("mmap_lock.sites.{i}");
        texts(&at, [&site.operation, &site.mode, &site.process])?;
        times(&at, site.seconds, site.max_s)?;
        code(&at, &site.code)?;
    }
    Ok(())
}

fn rows(at: &str, rows: &[LockRow]) -> Checked {
    at_most(at, rows.len(), SITES_MAX)?;
    for (i, row) in rows.iter().enumerate() {
        let at = format!("{at}.{i}");
        texts(&at, [&row.operation, &row.mode])?;
        times(&at, row.seconds, row.max_s)?;
        positive(&format!("{at}.p99_s"), row.p99_s.unwrap_or(0.0))?;
    }
    Ok(())
}

fn times(at: &str, seconds: f64, max_s: f64) -> Checked {
    positive(&format!("{at}.seconds"), seconds)?;
    positive(&format!("{at}.max_s"), max_s)?;
    // A hair for the rounding of sums.
    if max_s > seconds * (1.0 + 1e-9) + 1e-9 {
        return bad(
            format!("{at}.max_s"),
            format!("is {max_s}, more than all together"),
        );
    }
    Ok(())
}

fn code(at: &str, code: &Code) -> Checked {
    texts(at, [&code.symbol, &code.module])?;
    short(
        &format!("{at}.code.file"),
        code.file.as_deref().unwrap_or_default(),
    )?;
    at_most(&format!("{at}.code.stack"), code.stack.len(), FRAMES_MAX)?;
    texts(at, &code.stack)
}

fn tlb(tlb: &Tlb) -> Checked {
    for (field, value) in [
        ("instructions", Some(tlb.instructions)),
        ("data_misses", tlb.data_misses),
        ("instruction_misses", tlb.instruction_misses),
        ("data_per_thousand", tlb.data_per_thousand),
        ("instruction_per_thousand", tlb.instruction_per_thousand),
    ] {
        positive(&format!("tlb.{field}"), value.unwrap_or(0.0))?;
    }
    fraction("tlb.counted", tlb.counted)
}

fn numa(numa: &Numa) -> Checked {
    at_most("numa.nodes", numa.nodes.len(), ITEMS_MAX)?;
    fraction("numa.remote", numa.remote.unwrap_or(0.0))?;
    fraction("numa.concentration", numa.concentration)
}

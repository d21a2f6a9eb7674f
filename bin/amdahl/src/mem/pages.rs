//! What was seen of processes, and the kernel's settings, as part of the result.

use std::collections::BTreeMap;
use std::path::Path;

use amdahl_mem::buddy::Zone as FreeZone;
use amdahl_mem::first_touch::{self, Touches};
use amdahl_mem::huge::{Facts, Obstacle, Verdict, judge};
use amdahl_mem::mapping::Backing;
use amdahl_mem::policy::{Policy, When};
use amdahl_mem::read;
use amdahl_mem::smaps::{Flags, Mapping};
use amdahl_report::mem::schema::{
    Coverage, HugePages, MappingReport, MemResult, Node, Numa, ObstacleReport, PageSize, Pool,
    ProcessMemory, Zone,
};
use amdahl_report::schema::Notice;

use super::look::{Looked, Seen};

/// Counters of `/proc/vmstat`: huge pages given at faults, and refused.
const GIVEN: &str = "thp_fault_alloc";
const REFUSED: &str = "thp_fault_fallback";
/// The same: faults by which the kernel learns which node uses a page.
const HINTS: &str = "numa_hint_faults";
/// Mappings that are listed.
const MAPPINGS_MAX: usize = 200;

/// Settings and free memory of the machine, at the beginning or at the end.
pub struct Machine {
    policy: Policy,
    zones: Vec<FreeZone>,
    blocks: BlockUse,
    vmstat: BTreeMap<String, u64>,
}

/// What blocks of memory are used for. The kernel counts free pieces one by one to tell it, while nobody of a zone gets
/// memory: it is read rarely.
#[derive(Clone)]
pub struct BlockUse {
    movable: Option<f64>,
    /// Why it is not known.
    refused: Option<String>,
}

impl BlockUse {
    /// As it is now.
    pub fn now() -> BlockUse {
        let (types, refused) = match read::block_types(Path::new("/proc")) {
            Ok(types) => (types, None),
            Err(error) => (None, Some(error.to_string())),
        };
        BlockUse {
            movable: types.map(|types| types.movable as f64 / types.all as f64),
            refused,
        }
    }
}

impl Machine {
    /// As it is now.
    pub fn now() -> Machine {
        Machine::with(BlockUse::now())
    }

    /// As it is now, but for the use of blocks.
    pub fn with(blocks: BlockUse) -> Machine {
        let (sys, proc) = (Path::new("/sys"), Path::new("/proc"));
        Machine {
            policy: read::policy(sys),
            zones: read::zones(proc).unwrap_or_default(),
            blocks,
            vmstat: read::vmstat(proc),
        }
    }

    /// Why it is not known what blocks are used for, if that is so.
    pub fn no_block_types(&self) -> Option<&str> {
        self.blocks.refused.as_deref()
    }

    /// How much a counter has grown.
    fn since(&self, before: &Machine, counter: &str) -> Option<u64> {
        let count = |machine: &Machine| machine.vmstat.get(counter).copied();
        Some(count(self)?.saturating_sub(count(before)?))
    }

    /// Adds what a reader of faults since `before` must know. Without times nobody tells what a fault did.
    pub fn warn_of_hints(&self, before: &Machine, result: &mut MemResult) {
        if result.faults.is_timed {
            result.warnings.extend(self.hints_since(before));
        }
    }

    /// To tell hints apart takes page tables, which a fault does not show.
    fn hints_since(&self, before: &Machine) -> Option<Notice> {
        let hints = self.since(before, HINTS).filter(|&hints| hints > 0)?;
        Some(Notice {
            code: "numa-hint-faults".to_owned(),
            text: format!(
                "{hints} page faults on this machine were made by the kernel to learn which node uses a page (NUMA \
                 balancing). Those of the watched processes are among first-touch, shmem, file-minor and copy-on-write, \
                 which may be too high by up to so many; where one moved its page, first uses by node have it again. Measure \
                 without: sysctl kernel.numa_balancing=0."
            ),
        })
    }

    /// Blocks that are free are of no use below 16 MiB: the kernel keeps those for devices.
    fn free_blocks(&self) -> Option<u64> {
        let usable = self.zones.iter().filter(|zone| zone.name != "DMA");
        let blocks = usable.map(|zone| zone.blocks(self.policy.huge_order()));
        (!self.zones.is_empty()).then(|| blocks.sum())
    }
}

/// The parts of the result that come from looking.
pub struct Pages {
    /// Huge pages.
    pub huge: HugePages,
    /// Processes.
    pub processes: Vec<ProcessMemory>,
    /// Nodes.
    pub numa: Option<Numa>,
}

struct Judged<'a> {
    pid: u32,
    seen: &'a Seen,
    at: usize,
    backing: Backing,
    verdict: Verdict,
}

/// Judges all that was seen.
pub fn pages(before: &Machine, after: &Machine, looked: &Looked, touches: &Touches) -> Pages {
    let refused = after.since(before, REFUSED);
    let policy = &after.policy;
    let mut judged = Vec::new();
    for (&pid, seen) in &looked.seen {
        for (at, mapping) in seen.process.mappings.iter().enumerate() {
            let tmpfs = &seen.process.tmpfs;
            let backing = mapping.backing(|device| tmpfs.contains_key(&device));
            let facts = Facts {
                policy,
                backing,
                is_disabled: seen.process.is_disabled,
                mount: tmpfs.get(&mapping.device).copied().flatten(),
                free_blocks: after.free_blocks(),
                refused: refused.unwrap_or(0),
            };
            let verdict = judge(mapping, &facts);
            judged.push(Judged {
                pid,
                seen,
                at,
                backing,
                verdict,
            });
        }
    }
    let huge = HugePages {
        given: after.since(before, GIVEN),
        refused,
        ..settings(after)
    };
    Pages {
        processes: processes(looked, &judged),
        numa: numa(looked, touches),
        huge: mappings(huge, policy, judged, touches),
    }
}

fn word(when: Option<When>) -> String {
    when.map_or(String::new(), |when| when.id().to_owned())
}

fn settings(machine: &Machine) -> HugePages {
    let policy = &machine.policy;
    let sizes = policy.sizes.iter().map(|size| PageSize {
        bytes: size.bytes,
        anonymous: word(size.anonymous),
        shmem: word(size.shmem),
        given: size.given,
        refused: size.refused,
        in_use: size.in_use,
    });
    let order = policy.huge_order();
    let free = machine.zones.iter().filter(|zone| zone.pages() > 0);
    let free = free.map(|zone| Zone {
        node: zone.node,
        name: zone.name.clone(),
        free_bytes: zone.pages().saturating_mul(policy.page),
        huge_pages: zone.blocks(order),
        unusable: zone.unusable(order),
        fragmentation: zone.fragmentation(order),
    });
    let pools = read::pools(Path::new("/sys")).into_iter();
    HugePages {
        size_bytes: policy.huge.unwrap_or(0),
        page_bytes: policy.page,
        anonymous: word(policy.anonymous_huge()),
        shmem: word(policy.shmem_huge()),
        defrag: policy.defrag.clone(),
        sizes: sizes.collect(),
        pools: pools
            .map(|(bytes, pages, free)| Pool { bytes, pages, free })
            .collect(),
        free: free.collect(),
        movable: machine.blocks.movable,
        machine: coverage(),
        ..HugePages::default()
    }
}

fn coverage() -> Option<Coverage> {
    let now = read::coverage(Path::new("/proc"))?;
    Some(Coverage {
        anonymous_bytes: now.anonymous,
        anonymous_huge_bytes: now.anonymous_huge,
        shmem_bytes: now.shmem,
        shmem_huge_bytes: now.shmem_huge,
    })
}

/// Huge pages as far as no process has to be looked at: of the whole machine, which had given and refused as
/// many as `before` tells.
pub fn of_the_machine(before: &Machine, after: &Machine) -> HugePages {
    HugePages {
        given: after.since(before, GIVEN),
        refused: after.since(before, REFUSED),
        ..settings(after)
    }
}

fn processes(looked: &Looked, judged: &[Judged<'_>]) -> Vec<ProcessMemory> {
    let of = |pid: u32, seen: &Seen| {
        let mappings = &seen.process.mappings;
        let sum = |of: fn(&Mapping) -> u64| mappings.iter().map(of).fold(0, u64::saturating_add);
        let could = judged.iter().filter(|judged| judged.pid == pid);
        let could = could.flat_map(|judged| &judged.verdict.obstacles);
        let could = could.filter(|o| o.obstacle.is_removable() && o.obstacle != Obstacle::Edges);
        ProcessMemory {
            pid,
            name: seen.process.name.clone(),
            resident_bytes: sum(Mapping::in_memory),
            huge_bytes: sum(|m| m.huge().min(m.in_memory())),
            obstructed_bytes: could.map(|o| o.bytes).fold(0, u64::saturating_add),
            mappings: mappings.len() as u64,
        }
    };
    let mut all: Vec<_> = looked
        .seen
        .iter()
        .map(|(&pid, seen)| of(pid, seen))
        .collect();
    all.sort_by_key(|process| std::cmp::Reverse(process.resident_bytes));
    all
}

fn mappings(
    mut huge: HugePages,
    policy: &Policy,
    mut judged: Vec<Judged<'_>>,
    touches: &Touches,
) -> HugePages {
    let mut by_obstacle: BTreeMap<Obstacle, ObstacleReport> = BTreeMap::new();
    for judged in &judged {
        for (i, obstructed) in judged.verdict.obstacles.iter().enumerate() {
            let obstacle = obstructed.obstacle;
            let report = by_obstacle
                .entry(obstacle)
                .or_insert_with(|| ObstacleReport {
                    id: obstacle.id().to_owned(),
                    text: obstacle.text(policy),
                    remedy: obstacle.remedy(policy),
                    ..ObstacleReport::default()
                });
            report.bytes = report.bytes.saturating_add(obstructed.bytes);
            report.mappings += 1;
            // The gain is of the inner ranges, whose obstacle comes first.
            let gain = if i == 0 {
                judged.verdict.gain
            } else {
                Default::default()
            };
            report.huge_pages = report.huge_pages.saturating_add(gain.huge_pages);
            report.pages = report.pages.saturating_add(gain.pages);
        }
    }
    huge.obstacles = by_obstacle.into_values().collect();
    huge.obstacles
        .sort_by_key(|report| std::cmp::Reverse(report.bytes));
    judged.sort_by_key(|judged| std::cmp::Reverse(judged.verdict.small));
    let worth = |judged: &&Judged<'_>| judged.seen.process.mappings[judged.at].in_memory() > 0;
    let listed = judged.iter().filter(worth).take(MAPPINGS_MAX);
    huge.mappings = listed.map(|judged| mapping(judged, touches)).collect();
    huge.mappings_left_out = (judged.len() - huge.mappings.len()) as u64;
    huge
}

fn mapping(judged: &Judged<'_>, touches: &Touches) -> MappingReport {
    let Judged {
        pid,
        seen,
        at,
        backing,
        verdict,
    } = judged;
    let mapping = &seen.process.mappings[*at];
    let placements = seen.process.placements.iter();
    let nodes = placements.filter(|placement| placement.start == mapping.start);
    let obstacles = verdict.obstacles.iter();
    let sizes = seen.sizes.get(*at).cloned().flatten().unwrap_or_default();
    MappingReport {
        pid: *pid,
        process: seen.process.name.clone(),
        start: format!("{:x}", mapping.start),
        bytes: mapping.bytes(),
        name: mapping.name.clone(),
        backing: backing.id().to_owned(),
        is_advised: mapping.flags.any(&[Flags::ADVISED]),
        resident_bytes: mapping.in_memory(),
        huge_bytes: mapping.huge().min(mapping.in_memory()),
        sizes_seen_bytes: sizes.seen,
        sizes: sizes.bytes,
        nodes: nodes
            .flat_map(|placement| placement.bytes.clone())
            .collect(),
        touched: touches.within(*pid, mapping.start..mapping.end),
        obstacles: obstacles
            .map(|o| (o.obstacle.id().to_owned(), o.bytes))
            .collect(),
        gain_pages: verdict.gain.pages,
        gain_table_bytes: verdict.gain.table_bytes,
    }
}

fn numa(looked: &Looked, touches: &Touches) -> Option<Numa> {
    let placements = looked
        .seen
        .values()
        .flat_map(|seen| &seen.process.placements);
    // Where threads ran is taken from where they used memory first.
    let ran: BTreeMap<u32, f64> = touches
        .by_node()
        .iter()
        .map(|(&node, &count)| (node, count as f64))
        .collect();
    let locality = first_touch::locality(placements, &ran);
    if locality.bytes.is_empty() {
        return None;
    }
    let mut nodes: BTreeMap<u32, Node> = BTreeMap::new();
    for (&node, &bytes) in &locality.bytes {
        nodes.insert(
            node,
            Node {
                node,
                bytes,
                ..Node::default()
            },
        );
    }
    for (&node, &count) in touches.by_node() {
        let entry = nodes.entry(node).or_insert_with(|| Node {
            node,
            ..Node::default()
        });
        entry.touched = count;
    }
    Some(Numa {
        nodes: nodes.into_values().collect(),
        remote: locality.remote,
        concentration: locality.concentration,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hints to NUMA balancing were told as first uses, and nothing was said of it.
    #[test]
    fn hint_faults_are_told_where_there_were_any() {
        let machine = |hints: Option<u64>| {
            let mut machine = Machine::now();
            machine.vmstat.remove(HINTS);
            machine.vmstat.extend(hints.map(|n| (HINTS.to_owned(), n)));
            machine
        };
        let told = |before, after| machine(after).hints_since(&machine(before));
        assert_eq!(told(Some(7), Some(7)), None);
        // Of a kernel without NUMA.
        assert_eq!(told(None, None), None);
        let notice = told(Some(7), Some(12)).expect("five more");
        assert_eq!(notice.code, "numa-hint-faults");
        assert!(notice.text.starts_with("5 page faults"), "{notice:?}");
        assert!(notice.text.contains("kernel.numa_balancing=0"));
    }
}

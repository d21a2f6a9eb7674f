//! Why a mapping is not in huge pages, and what it would gain.
//!
//! The order of the questions is that of the kernel (`__thp_vma_allowable_orders` in
//! mm/huge_memory.c, then `shmem_allowable_huge_orders`, then khugepaged), so that the obstacle
//! told is the first one met: who removes it meets the next.

mod obstacle;

use crate::mapping::Backing;
use crate::policy::{Policy, When};
use crate::smaps::{Flags, Mapping};

pub use obstacle::Obstacle;

/// What matters for a mapping besides itself.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Settings of the kernel.
    pub policy: &'a Policy,
    /// What is behind the mapping.
    pub backing: Backing,
    /// Its process has huge pages switched off (`prctl(PR_SET_THP_DISABLE)`).
    pub is_disabled: bool,
    /// Option `huge=` of the tmpfs that its file is on, if it is on a mounted one.
    pub mount: Option<When>,
    /// Free blocks of the size of a huge page on the whole machine; `None` if unknown.
    pub free_blocks: Option<u64>,
    /// Huge pages refused at faults, machine-wide, while this was watched.
    pub refused: u64,
}

/// Part of a mapping's memory and what keeps it in small pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Obstructed {
    /// What is in the way.
    pub obstacle: Obstacle,
    /// Bytes in memory in small pages because of it; of mappings that are in memory only in part,
    /// an upper limit.
    pub bytes: u64,
}

/// What huge pages would change, if what is in the way were removed: an upper limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gain {
    /// Small pages that they would replace: entries of page tables and TLB, and page faults for
    /// filling the memory once.
    pub pages: u64,
    /// Huge pages instead.
    pub huge_pages: u64,
    /// Bytes of page tables that would not be needed.
    pub table_bytes: u64,
}

/// What is known about a mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Bytes of the mapping in whole, aligned ranges of the size of a huge page.
    pub aligned: u64,
    /// Bytes in memory in small pages.
    pub small: u64,
    /// Why, in the order of the address range: inside the aligned ranges, then outside.
    pub obstacles: Vec<Obstructed>,
    /// What could be gained.
    pub gain: Gain,
}

/// Judges a mapping. Constant time.
pub fn judge(mapping: &Mapping, facts: &Facts<'_>) -> Verdict {
    let huge = facts.policy.huge_bytes().max(1);
    let has_huge = mapping.huge();
    let in_thp = has_huge.saturating_sub(mapping.hugetlb);
    let small = mapping.resident.saturating_sub(in_thp);
    let aligned = aligned(mapping, facts.backing, huge);
    let mut verdict = Verdict {
        aligned,
        small,
        ..Verdict::default()
    };
    if small == 0 || facts.backing == Backing::Hugetlb {
        return verdict;
    }
    let inside = small.min(aligned.saturating_sub(in_thp));
    if inside > 0 {
        let obstacle = inside_obstacle(mapping, facts, inside, aligned - in_thp);
        verdict.obstacles.push(Obstructed {
            obstacle,
            bytes: inside,
        });
        if obstacle.is_removable() {
            verdict.gain = gain(inside, facts.policy.small(), huge);
        }
    }
    if small > inside {
        let obstacle = if aligned > 0 {
            Obstacle::Edges
        } else if facts.backing == Backing::Special {
            Obstacle::Special
        } else if mapping.bytes() < huge {
            Obstacle::TooSmall
        } else {
            Obstacle::NotAligned
        };
        let bytes = small - inside;
        verdict.obstacles.push(Obstructed { obstacle, bytes });
    }
    verdict
}

/// Bytes in whole ranges of `huge` bytes. Pages of files must be aligned in the file as well.
fn aligned(mapping: &Mapping, backing: Backing, huge: u64) -> u64 {
    let of_file = matches!(backing, Backing::File | Backing::Shmem);
    if of_file
        && !mapping
            .start
            .wrapping_sub(mapping.offset)
            .is_multiple_of(huge)
    {
        return 0;
    }
    let first = mapping.start.div_ceil(huge);
    let last = mapping.end / huge;
    last.saturating_sub(first).saturating_mul(huge)
}

fn gain(bytes: u64, page: u64, huge: u64) -> Gain {
    let huge_pages = bytes.div_ceil(huge);
    Gain {
        pages: bytes / page,
        huge_pages,
        // Each huge page replaces a last-level table, which is one small page.
        table_bytes: huge_pages.saturating_mul(page),
    }
}

fn inside_obstacle(mapping: &Mapping, facts: &Facts<'_>, inside: u64, room: u64) -> Obstacle {
    let policy = facts.policy;
    let flags = mapping.flags;
    if policy.huge.is_none() {
        return Obstacle::NoSupport;
    }
    let special = [Flags::PFN_MAP, Flags::IO, Flags::MIXED, Flags::FIXED_SIZE];
    if facts.backing == Backing::Special || flags.any(&special) {
        return Obstacle::Special;
    }
    if facts.is_disabled {
        return Obstacle::ProcessDisabled;
    }
    if flags.any(&[Flags::REFUSED]) {
        return Obstacle::MappingDisabled;
    }
    let is_advised = flags.any(&[Flags::ADVISED]);
    let refused = match facts.backing {
        Backing::Shmem => shmem_obstacle(facts.mount.or(policy.shmem_huge()), policy, is_advised),
        Backing::File => file_obstacle(mapping),
        _ => match policy.anonymous_huge() {
            Some(When::Always) | None => None,
            Some(When::Madvise) => (!is_advised).then_some(Obstacle::NotAdvised),
            Some(_) => Some(Obstacle::PolicyNever),
        },
    };
    refused.unwrap_or_else(|| allowed_obstacle(mapping, facts, inside, room))
}

fn shmem_obstacle(when: Option<When>, policy: &Policy, is_advised: bool) -> Option<Obstacle> {
    let when = match policy.shmem {
        // Meant for tests and emergencies: they overrule mounts.
        Some(overruling @ (When::Deny | When::Force)) => Some(overruling),
        _ => when,
    };
    match when? {
        When::Always | When::Force | When::WithinSize => None,
        When::Madvise if is_advised => None,
        When::Madvise => Some(Obstacle::ShmemNotAdvised),
        When::Never | When::Deny => Some(Obstacle::ShmemPolicy),
    }
}

fn file_obstacle(mapping: &Mapping) -> Option<Obstacle> {
    if mapping.anonymous > mapping.resident / 2 {
        // Its own copies of pages of a file: the kernel never puts those into huge pages.
        return Some(Obstacle::FileCopy);
    }
    (mapping.is_eligible != Some(true)).then_some(Obstacle::File)
}

/// The kernel would give huge pages and has not.
fn allowed_obstacle(mapping: &Mapping, facts: &Facts<'_>, inside: u64, room: u64) -> Obstacle {
    let to_user = [
        Flags::MISSING_TO_USER,
        Flags::WRITES_TO_USER,
        Flags::MINOR_TO_USER,
    ];
    if mapping.flags.any(&to_user) {
        return Obstacle::Userfaultfd;
    }
    if facts.free_blocks == Some(0) || facts.refused > 0 {
        return Obstacle::Fragmented;
    }
    if mapping.merged > inside / 2 {
        return Obstacle::Merged;
    }
    if mapping.swapped > inside {
        return Obstacle::Swapped;
    }
    let ranges = room / facts.policy.huge_bytes().max(1);
    let missing = room.saturating_sub(inside) / facts.policy.small();
    match facts.policy.missing_max {
        // On average: which pages are missing is not in smaps.
        Some(max) if missing > max.saturating_mul(ranges) => Obstacle::Sparse,
        _ => Obstacle::NotCollapsed,
    }
}

#[cfg(test)]
mod tests;

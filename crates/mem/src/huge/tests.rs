//! Each obstacle by a mapping that has it.

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const HUGE: u64 = 2 * MIB;

fn policy() -> Policy {
    Policy {
        huge: Some(HUGE),
        page: 4096,
        anonymous: Some(When::Always),
        shmem: Some(When::Always),
        missing_max: Some(511),
        ..Policy::default()
    }
}

fn facts(policy: &Policy, backing: Backing) -> Facts<'_> {
    Facts {
        policy,
        backing,
        is_disabled: false,
        mount: None,
        free_blocks: Some(7),
        refused: 0,
    }
}

fn mapping(start: u64, bytes: u64) -> Mapping {
    Mapping {
        start,
        end: start + bytes,
        resident: bytes,
        anonymous: bytes,
        page: 4096,
        ..Mapping::default()
    }
}

fn found(mapping: &Mapping, facts: &Facts<'_>) -> Vec<(Obstacle, u64)> {
    let verdict = judge(mapping, facts);
    verdict
        .obstacles
        .iter()
        .map(|o| (o.obstacle, o.bytes))
        .collect()
}

#[test]
fn places_in_the_address_space() {
    let policy = policy();
    let facts = facts(&policy, Backing::Anonymous);
    assert_eq!(
        found(&mapping(HUGE, MIB), &facts),
        [(Obstacle::TooSmall, MIB)]
    );
    let shifted = mapping(HUGE + 4096, 3 * MIB);
    assert_eq!(found(&shifted, &facts), [(Obstacle::NotAligned, 3 * MIB)]);
    let mut edges = mapping(HUGE + MIB, 4 * MIB);
    edges.huge_anonymous = HUGE;
    assert_eq!(found(&edges, &facts), [(Obstacle::Edges, HUGE)]);
    let mut whole = mapping(HUGE, 4 * MIB);
    assert_eq!(found(&whole, &facts), [(Obstacle::NotCollapsed, 4 * MIB)]);
    whole.huge_anonymous = 4 * MIB;
    assert_eq!(found(&whole, &facts), []);
}

#[test]
fn offsets_of_files_count() {
    let policy = policy();
    let facts = facts(&policy, Backing::Shmem);
    let mut shmem = mapping(HUGE, 4 * MIB);
    shmem.offset = 4096;
    assert_eq!(found(&shmem, &facts), [(Obstacle::NotAligned, 4 * MIB)]);
    shmem.start += 4096;
    shmem.end += 4096;
    let obstacles = found(&shmem, &facts);
    assert_eq!(
        obstacles,
        [(Obstacle::NotCollapsed, HUGE), (Obstacle::Edges, HUGE)]
    );
}

#[test]
fn switches() {
    let mut policy = policy();
    let whole = mapping(HUGE, HUGE);
    let flagged = |flags| Mapping {
        flags,
        ..whole.clone()
    };
    let first =
        |policy: &Policy, mapping: &Mapping, backing| found(mapping, &facts(policy, backing))[0].0;
    let anonymous = Backing::Anonymous;
    assert_eq!(
        first(&policy, &flagged(Flags::REFUSED), anonymous),
        Obstacle::MappingDisabled
    );
    assert_eq!(
        first(&policy, &flagged(Flags::PFN_MAP), anonymous),
        Obstacle::Special
    );
    assert_eq!(
        first(&policy, &flagged(Flags::MISSING_TO_USER), anonymous),
        Obstacle::Userfaultfd
    );
    let disabled = Facts {
        is_disabled: true,
        ..facts(&policy, anonymous)
    };
    assert_eq!(found(&whole, &disabled)[0].0, Obstacle::ProcessDisabled);
    let fragmented = Facts {
        free_blocks: Some(0),
        ..facts(&policy, anonymous)
    };
    assert_eq!(found(&whole, &fragmented)[0].0, Obstacle::Fragmented);
    policy.anonymous = Some(When::Madvise);
    assert_eq!(first(&policy, &whole, anonymous), Obstacle::NotAdvised);
    assert_eq!(
        first(&policy, &flagged(Flags::ADVISED), anonymous),
        Obstacle::NotCollapsed
    );
    policy.anonymous = Some(When::Never);
    assert_eq!(
        first(&policy, &flagged(Flags::ADVISED), anonymous),
        Obstacle::PolicyNever
    );
    policy.shmem = Some(When::Madvise);
    assert_eq!(
        first(&policy, &whole, Backing::Shmem),
        Obstacle::ShmemNotAdvised
    );
    policy.shmem = Some(When::Never);
    assert_eq!(
        first(&policy, &whole, Backing::Shmem),
        Obstacle::ShmemPolicy
    );
    let mounted = Facts {
        mount: Some(When::Always),
        ..facts(&policy, Backing::Shmem)
    };
    assert_eq!(found(&whole, &mounted)[0].0, Obstacle::NotCollapsed);
    policy.shmem = Some(When::Deny);
    let mounted = Facts {
        mount: Some(When::Always),
        ..facts(&policy, Backing::Shmem)
    };
    assert_eq!(found(&whole, &mounted)[0].0, Obstacle::ShmemPolicy);
    policy.huge = None;
    assert_eq!(first(&policy, &whole, anonymous), Obstacle::NoSupport);
}

#[test]
fn files() {
    let policy = policy();
    let facts = facts(&policy, Backing::File);
    let mut file = mapping(HUGE, HUGE);
    assert_eq!(found(&file, &facts)[0].0, Obstacle::FileCopy);
    file.anonymous = 0;
    assert_eq!(found(&file, &facts)[0].0, Obstacle::File);
    file.is_eligible = Some(true);
    assert_eq!(found(&file, &facts)[0].0, Obstacle::NotCollapsed);
}

#[test]
fn khugepaged_passes_over_sparse_ranges() {
    let mut policy = policy();
    let mut sparse = mapping(HUGE, 4 * MIB);
    sparse.resident = MIB;
    let facts_of = |policy: &Policy| found(&sparse, &facts(policy, Backing::Anonymous))[0].0;
    assert_eq!(facts_of(&policy), Obstacle::NotCollapsed);
    policy.missing_max = Some(100);
    assert_eq!(facts_of(&policy), Obstacle::Sparse);
}

#[test]
fn gains_are_counted_in_pages() {
    let policy = policy();
    let verdict = judge(&mapping(HUGE, 4 * MIB), &facts(&policy, Backing::Anonymous));
    assert_eq!(
        verdict.gain,
        Gain {
            pages: 1024,
            huge_pages: 2,
            table_bytes: 8192
        }
    );
}

proptest! {
    #[test]
    fn every_small_page_has_one_reason(
        start in 0u64..1 << 40,
        bytes in 0u64..1 << 34,
        resident in any::<u64>(),
        huge in any::<u64>(),
        hugetlb in any::<u64>(),
        offset in any::<u64>(),
        backing in 0usize..6,
        page in any::<u64>(),
        pmd in proptest::option::of(any::<u64>()),
    ) {
        let backing = [Backing::Anonymous, Backing::Stack, Backing::Shmem, Backing::File,
            Backing::Hugetlb, Backing::Special][backing];
        let policy = Policy { huge: pmd, page, ..policy() };
        let mapping = Mapping {
            offset, resident, hugetlb, huge_anonymous: huge, ..mapping(start, bytes)
        };
        let verdict = judge(&mapping, &facts(&policy, backing));
        let told: u128 = verdict.obstacles.iter().map(|o| u128::from(o.bytes)).sum();
        if backing != Backing::Hugetlb {
            prop_assert_eq!(told, u128::from(verdict.small));
        }
        for obstructed in &verdict.obstacles {
            let _ = (obstructed.obstacle.text(&policy), obstructed.obstacle.remedy(&policy));
        }
    }
}

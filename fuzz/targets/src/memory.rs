//! What tells of memory: mappings, placement, free pieces, and results of `amdahl mem`.

use std::path::PathBuf;

use amdahl_mem::huge::{Facts, judge};
use amdahl_mem::mapping::Backing;
use amdahl_mem::policy::{Policy, When};
use amdahl_mem::{buddy, numa_maps, smaps};

use crate::markup::assert_markup;

/// `/proc/PID/smaps`, each mapping of which is judged.
pub(crate) fn smaps(bytes: &[u8]) {
    let policy = Policy {
        huge: Some(2 << 20),
        page: 4096,
        anonymous: Some(When::Madvise),
        ..Policy::default()
    };
    for mapping in smaps::parse(bytes) {
        assert!(mapping.start <= mapping.end);
        let backing = mapping.backing(|device| device.0 == 0);
        let facts = Facts {
            policy: &policy,
            backing,
            is_disabled: false,
            mount: None,
            free_blocks: None,
            refused: 0,
        };
        let verdict = judge(&mapping, &facts);
        let told: u128 = verdict.obstacles.iter().map(|o| u128::from(o.bytes)).sum();
        if backing != Backing::Hugetlb {
            assert_eq!(told, u128::from(verdict.small), "each page has one reason");
        }
    }
}

/// `/proc/PID/numa_maps`, `/proc/buddyinfo` and `/proc/pagetypeinfo`.
pub(crate) fn memory_text(bytes: &[u8]) {
    for placement in numa_maps::parse(bytes) {
        assert!(!placement.bytes.is_empty());
    }
    for zone in buddy::parse(bytes) {
        for order in 0..40 {
            assert!((0.0..=1.0).contains(&zone.unusable(order)));
            assert!(zone.pages_from(order) <= zone.pages());
        }
    }
    if let Some(types) = buddy::block_types(bytes) {
        assert!(types.movable <= types.all);
    }
}

/// `result.json` of `amdahl mem`: what is read can be shown and written again.
pub(crate) fn mem_result(bytes: &[u8]) {
    use amdahl_report::{mem, terminal::Style};
    let Ok(result) = mem::parse(bytes, PathBuf::from("fuzz")) else {
        return;
    };
    assert_markup(&mem::html::render(&result, &[]));
    for width in [40, 80, 200] {
        mem::terminal::render(&result, width, Style::default());
    }
    mem::csv::render(&result);
    mem::to_json(&result).expect("what was read is valid");
}

//! The map and the layout.

use amdahl_range_alloc::{AllocError, LayoutError, RangeAlloc, Request};

fn arena() -> RangeAlloc {
    let mut arena = RangeAlloc::new(0x1000..0x5000).unwrap();
    arena.alloc(&Request::new(0x1000)).unwrap();
    arena.alloc_at(0x2800, 0x100).unwrap();
    arena.alloc_at(0x4ff0, 0x10).unwrap();
    arena.free_lazy(0x2800).unwrap();
    arena
}

#[test]
fn a_map_shows_what_is_where() {
    let short = format!("{}", arena());
    let lines: Vec<&str> = short.lines().collect();
    assert_eq!(
        lines[0],
        "0x1000..0x5000: 4112 of 16384 units in 2 allocations, largest gap 9968, 256 freed lazily"
    );
    assert_eq!(lines[1].len(), 66);
    assert!(lines[1].starts_with("|@@@@@@@@@@@@@@@@ "));
    assert!(lines[1].ends_with(" .|"), "{}", lines[1]);
    let long = format!("{:#}", arena());
    assert!(long.contains("busy  4096\n"));
    assert!(long.contains("lazy  256\n"));
    assert_eq!(long.lines().count(), 2 + 5);
}

#[test]
fn a_map_of_all_numbers_does_not_overflow() {
    let mut arena = RangeAlloc::new(0..u64::MAX).unwrap();
    arena.alloc_at(u64::MAX - 1, 1).unwrap();
    assert!(format!("{arena:#?} {arena:#}").contains("busy  1\n"));
    assert!(format!("{}", RangeAlloc::new(7..10).unwrap()).contains("|   |"));
}

#[test]
fn a_layout_is_read_as_it_was_written() {
    let text = arena().layout().to_string();
    let again: RangeAlloc = text.parse().unwrap();
    assert!(again.iter().eq(arena().iter()));
    assert_eq!(again.layout().to_string(), text);
    let spaced = text.replace('\n', "  # said\n\n");
    assert!(
        spaced
            .parse::<RangeAlloc>()
            .unwrap()
            .iter()
            .eq(arena().iter())
    );
}

#[test]
fn a_damaged_layout_is_told_with_its_line() {
    let error = |text: &str| text.parse::<RangeAlloc>().unwrap_err();
    assert_eq!(error(""), LayoutError::Short);
    assert_eq!(error("amdahl-range-alloc 2\n"), LayoutError::Line(1));
    let head = "amdahl-range-alloc 1\narena 0 16 granule 1\n";
    assert_eq!(error(&format!("{head}busy 1")), LayoutError::Line(3));
    assert_eq!(error(&format!("{head}busy 1 0x1g")), LayoutError::Line(3));
    assert_eq!(
        error(&format!("{head}busy 0 4\n\nbusy 3 4")),
        LayoutError::Block {
            line: 5,
            error: AllocError::Occupied { by: 0..4 }
        }
    );
    assert!(matches!(
        error("amdahl-range-alloc 1\narena 5 5 granule 1"),
        LayoutError::Arena(_)
    ));
}

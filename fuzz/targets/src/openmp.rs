//! The variables of the OpenMP runtime: whoever starts a program writes them.

use amdahl_openmp::display;
use amdahl_openmp::env::Settings;
use amdahl_openmp::icv::{Globals, SUPPORTED_ACTIVE_LEVELS};
use amdahl_openmp::places::{CpuSet, PlaceList, Spec, Topology};

/// Lines of `NAME=value`. What they mean on a machine with holes in its CPU numbers must hold together.
pub(crate) fn environment(bytes: &[u8]) {
    let pairs = bytes.split(|&byte| byte == b'\n').filter_map(|line| {
        let equals = line.iter().position(|&byte| byte == b'=')?;
        Some((&line[..equals], &line[equals + 1..]))
    });
    let variables = pairs.clone().count();
    let (settings, mut said) = Settings::read(pairs, false);
    let allowed: CpuSet = [0, 1, 2, 5, 8, 9, 64, 65, 200].into_iter().collect();
    let (globals, more) = Globals::new(settings, &allowed, Topology::default);
    said.extend(more);
    // One for a value that is not understood; two where places are, and say why they are none.
    assert!(said.len() <= 2 * variables + 1, "{said:?}");

    let icv = &globals.initial;
    assert!(icv.nthreads >= 1 && i32::try_from(icv.nthreads).is_ok());
    assert!(icv.max_active_levels <= SUPPORTED_ACTIVE_LEVELS);
    assert!(icv.schedule.chunk >= icv.schedule.kind.default_chunk());
    assert!(icv.default_device >= 0 && globals.max_task_priority >= 0);
    if let Some(places) = &globals.places {
        whole(places, &allowed);
    }
    for is_verbose in [false, true] {
        let shown = display::environment(&globals, is_verbose);
        assert!(shown.starts_with(b"\nOPENMP DISPLAY ENVIRONMENT BEGIN\n"));
        assert!(shown.ends_with(b"OPENMP DISPLAY ENVIRONMENT END\n"));
    }
    // Whatever the format says: counted as long as it is, and kept as far as asked.
    let place = display::Place::default();
    let whole = display::capture(&globals.affinity_format(), &place, 1 << 16);
    let cut = display::capture(&globals.affinity_format(), &place, 7);
    match (whole, cut) {
        (Ok(whole), Ok(cut)) => {
            assert_eq!(whole.len, cut.len);
            assert_eq!(cut.bytes, whole.bytes[..whole.bytes.len().min(7)]);
        }
        (Err(whole), Err(cut)) => assert_eq!(whole, cut),
        other => panic!("{other:?}"),
    }
}

/// What places must be, however they were written; printed and read again they are the same.
fn whole(places: &PlaceList, allowed: &CpuSet) {
    assert!(!places.is_empty() && places.len() <= CpuSet::MAX_PARSED + 1);
    for place in 0..places.len() {
        let cpus = places.get(place).expect("one of them");
        assert!(!cpus.is_empty() && cpus.iter().all(|cpu| allowed.contains(cpu)));
    }
    let text = places.to_string();
    let spec = Spec::places(text.as_bytes()).expect("well-formed");
    let again = PlaceList::resolve(&spec, allowed, Topology::default);
    assert_eq!(again, Ok((places.clone(), 0)));
}

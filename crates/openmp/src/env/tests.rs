use proptest::prelude::*;

use super::*;
use crate::icv::ScheduleKind;

fn read(variables: &[(&str, &str)]) -> (Settings, Vec<String>) {
    let pairs = variables
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    Settings::read(pairs, false)
}

fn plain(name: &str, value: &str) -> Device {
    let (settings, said) = read(&[(name, value)]);
    assert_eq!(said, [""; 0], "{name}={value}");
    settings.plain
}

#[test]
fn schedules() {
    let schedule = |value| plain("OMP_SCHEDULE", value).schedule.expect("one");
    for (value, kind, is_monotonic, chunk) in [
        ("static", ScheduleKind::Static, true, 0),
        (" STATIC , 4 ", ScheduleKind::Static, true, 4),
        ("static,0", ScheduleKind::Static, true, 0),
        ("nonmonotonic : static", ScheduleKind::Static, false, 0),
        ("dynamic", ScheduleKind::Dynamic, false, 1),
        ("dynamic,0", ScheduleKind::Dynamic, false, 1),
        ("monotonic:dynamic,3", ScheduleKind::Dynamic, true, 3),
        ("guided,2147483647", ScheduleKind::Guided, false, i32::MAX),
        ("auto", ScheduleKind::Auto, false, 1),
    ] {
        let expected = Schedule {
            kind,
            is_monotonic,
            chunk,
        };
        assert_eq!(schedule(value), expected, "{value}");
    }
    for (value, said) in [
        ("", "Unknown value for environment variable OMP_SCHEDULE"),
        (
            "monotonic,static",
            "Unknown value for environment variable OMP_SCHEDULE",
        ),
        (
            "static;4",
            "Unknown value for environment variable OMP_SCHEDULE",
        ),
        (
            "static,",
            "Invalid value for chunk size in environment variable OMP_SCHEDULE",
        ),
        (
            "static,x",
            "Invalid value for chunk size in environment variable OMP_SCHEDULE",
        ),
        (
            "static,4 x",
            "Invalid value for chunk size in environment variable OMP_SCHEDULE",
        ),
        (
            "dynamic,2147483648",
            "Invalid value for chunk size in environment variable OMP_SCHEDULE",
        ),
        (
            "dynamic,-5",
            "Invalid value for chunk size in environment variable OMP_SCHEDULE",
        ),
    ] {
        let (settings, heard) = read(&[("OMP_SCHEDULE", value)]);
        assert_eq!(heard, [said], "{value:?}");
        assert_eq!(settings.plain.schedule, None);
    }
}

#[test]
fn lists_of_numbers_and_policies() {
    assert_eq!(
        plain("OMP_NUM_THREADS", " 4 , 3,2 ").num_threads,
        Some(vec![4, 3, 2])
    );
    let policies = vec![
        ProcBind::Spread,
        ProcBind::Primary,
        ProcBind::Primary,
        ProcBind::Close,
    ];
    assert_eq!(
        plain("OMP_PROC_BIND", "spread, Master ,primary,CLOSE").proc_bind,
        Some(policies)
    );
    assert_eq!(
        plain("OMP_PROC_BIND", "TRUE").proc_bind,
        Some(vec![ProcBind::True])
    );
    for (name, value) in [
        ("OMP_NUM_THREADS", ""),
        ("OMP_NUM_THREADS", "0"),
        ("OMP_NUM_THREADS", "2,0"),
        ("OMP_NUM_THREADS", "-1"),
        ("OMP_NUM_THREADS", "2,"),
        ("OMP_NUM_THREADS", "2 3"),
        ("OMP_NUM_THREADS", "18446744073709551616"),
        ("OMP_PROC_BIND", "true,close"),
        ("OMP_PROC_BIND", "close,true"),
        ("OMP_PROC_BIND", "close,"),
        ("OMP_PROC_BIND", "closed"),
        ("OMP_PROC_BIND", ""),
    ] {
        let (settings, said) = read(&[(name, value)]);
        assert_eq!(
            said,
            [format!("Invalid value for environment variable {name}")],
            "{value:?}"
        );
        assert_eq!(settings.plain, Device::default());
    }
}

#[test]
fn sizes_and_counts() {
    for (value, bytes) in [
        ("512", 512 << 10),
        ("1B", 1),
        ("64 k", 64 << 10),
        ("2M ", 2 << 20),
        (" 1 G", 1 << 30),
        ("0", 0),
    ] {
        assert_eq!(
            plain("OMP_STACKSIZE", value).stack_bytes,
            Some(bytes),
            "{value}"
        );
    }
    for (value, count) in [
        ("0", 0),
        ("5k", 5000),
        ("5 M", 5_000_000),
        ("5g", 5_000_000_000),
        ("5t", 5_000_000_000_000),
        ("infinity ", u64::MAX),
        ("INFINITE", u64::MAX),
        ("18446744073709551615t", u64::MAX),
    ] {
        let (settings, said) = read(&[("GOMP_SPINCOUNT", value)]);
        assert_eq!(
            (settings.spin_count, said.len()),
            (Some(count), 0),
            "{value}"
        );
    }
    for (name, value) in [
        ("OMP_STACKSIZE", "x"),
        ("OMP_STACKSIZE", "1t"),
        ("OMP_STACKSIZE", "1kB"),
        ("OMP_STACKSIZE", "18014398509481984"),
        ("GOMP_SPINCOUNT", "infinitely"),
        ("GOMP_SPINCOUNT", "k"),
        ("OMP_THREAD_LIMIT", "0"),
        ("OMP_MAX_ACTIVE_LEVELS", "-1"),
        ("OMP_NUM_TEAMS", "0"),
        ("OMP_NUM_TEAMS", "2147483648"),
        ("OMP_DEFAULT_DEVICE", "-2"),
        ("OMP_MAX_TASK_PRIORITY", "9999999999"),
        ("OMP_DYNAMIC", "yes"),
        ("OMP_DYNAMIC", "true false"),
        ("OMP_CANCELLATION", ""),
        ("OMP_WAIT_POLICY", "activepassive"),
        ("OMP_TARGET_OFFLOAD", "enabled"),
        ("OMP_DISPLAY_ENV", "1"),
        ("OMP_DISPLAY_AFFINITY", "2"),
        ("OMP_PLACES", "core"),
        ("GOMP_CPU_AFFINITY", "0-"),
        ("OMP_NESTED", "maybe"),
        ("AMDAHL_OMP_DYNAMIC", "auto"),
        ("AMDAHL_OMP_THREADS", "0"),
        ("AMDAHL_OMP_THREADS", "4,2"),
    ] {
        let (settings, said) = read(&[(name, value)]);
        assert_eq!(
            said,
            [format!("Invalid value for environment variable {name}")],
            "{value:?}"
        );
        assert_eq!(settings, Settings::default());
    }
}

#[test]
fn suffixes_name_devices() {
    let (settings, said) = read(&[
        ("OMP_NUM_TEAMS_ALL", "3"),
        ("OMP_NUM_TEAMS_DEV", "4"),
        ("OMP_NUM_TEAMS_DEV_0", "5"),
        ("OMP_NUM_TEAMS_DEV_2147483647", "6"),
        ("OMP_DYNAMIC", "false"),
        ("OMP_DYNAMIC_ALL", "true"),
    ]);
    assert_eq!(said, [""; 0]);
    assert_eq!(
        settings.host().num_teams,
        Some(3),
        "_ALL is for the host too"
    );
    assert_eq!(
        settings.host().dynamic,
        Some(false),
        "the name alone goes first"
    );
    assert_eq!(settings.devices.num_teams, Some(4));
    let numbers: Vec<_> = settings
        .numbered
        .into_iter()
        .map(|(n, d)| (n, d.num_teams))
        .collect();
    assert_eq!(numbers, [(0, Some(5)), (i32::MAX.unsigned_abs(), Some(6))]);
}

#[test]
fn suffixes_that_there_are_not() {
    for (name, said) in [
        (
            "OMP_NUM_TEAMS_DEV_01",
            "Invalid device number in OMP_NUM_TEAMS_DEV_01",
        ),
        (
            "OMP_NUM_TEAMS_DEV_",
            "Invalid device number in OMP_NUM_TEAMS_DEV_",
        ),
        (
            "OMP_NUM_TEAMS_DEV_x",
            "Invalid device number in OMP_NUM_TEAMS_DEV_x",
        ),
        (
            "OMP_NUM_TEAMS_DEV_2147483648",
            "Invalid device number in OMP_NUM_TEAMS_DEV_2147483648",
        ),
        (
            "OMP_NUM_TEAMS_HOST",
            "Invalid environment variable in OMP_NUM_TEAMS_HOST",
        ),
    ] {
        let (settings, heard) = read(&[(name, "3")]);
        assert_eq!(heard, [said]);
        assert_eq!(settings, Settings::default());
    }
    let (_, said) = read(&[("OMP_NUM_TEAMS_DEV", "x")]);
    assert_eq!(
        said,
        ["Invalid value for environment variable OMP_NUM_TEAMS_DEV"]
    );
}

#[test]
fn allocators_with_and_without_traits() {
    use crate::alloc::{key, value};
    let allocator = |value| read(&[("OMP_ALLOCATOR", value)]).0.allocator;
    let predefined = |handle| Some(DefaultAllocator::Predefined(handle));
    assert_eq!(allocator("omp_default_mem_alloc"), predefined(1));
    assert_eq!(allocator(" OMP_THREAD_MEM_ALLOC "), predefined(8));
    assert_eq!(allocator("omp_low_lat_mem_space"), predefined(5));
    assert_eq!(allocator("ompx_gnu_pinned_mem_alloc"), predefined(200));
    let text = "omp_large_cap_mem_space:alignment=16,pinned=false,fallback=null_fb,partition=nearest,access=cgroup,\
                pool_size=100,sync_hint=serialized";
    let traits = [
        (key::ALIGNMENT, 16),
        (key::PINNED, value::FALSE),
        (key::FALLBACK, value::NULL_FB),
        (key::PARTITION, 16),
        (key::ACCESS, value::CGROUP),
        (key::POOL_SIZE, 100),
        (key::SYNC_HINT, 5),
    ];
    let traits = traits.map(|(key, value)| Trait { key, value }).to_vec();
    let expected = DefaultAllocator::Traits(1, traits, text.into());
    assert_eq!(allocator(text), Some(expected));
    for text in [
        "",
        "omp_null_allocator",
        "omp_default_mem_allocator",
        "omp_default_mem_alloc:pinned=true",
        "omp_default_mem_space:",
        "omp_default_mem_space:pinned",
        "omp_default_mem_space:pinned=maybe",
        "omp_default_mem_space:alignment=0",
        "omp_default_mem_space:alignment=8,",
        "omp_default_mem_space:alignment=8;",
        "omp_default_mem_space:fb_data=1",
    ] {
        let (settings, said) = read(&[("OMP_ALLOCATOR", text)]);
        assert_eq!(settings.allocator, None, "{text:?}");
        assert_eq!(said.len(), 1, "{text:?}");
    }
}

#[test]
fn the_first_of_a_name_counts() {
    let (settings, _) = read(&[("OMP_DYNAMIC", "true"), ("OMP_DYNAMIC", "false")]);
    assert_eq!(settings.plain.dynamic, Some(true));
}

#[test]
fn what_is_not_needed_is_not_read() {
    // GCC's runtime says nothing of these either.
    for variables in [
        [("OMP_MAX_ACTIVE_LEVELS", "2"), ("OMP_NESTED", "nonsense")],
        [("OMP_STACKSIZE", "64"), ("GOMP_STACKSIZE", "nonsense")],
    ] {
        assert_eq!(read(&variables).1, [""; 0]);
    }
}

#[test]
fn a_program_with_more_rights_takes_nobodys_page() {
    let variables: [(&[u8], &[u8]); 1] = [(b"AMDAHL_PHANTOM", b"/tmp/page")];
    assert_eq!(Settings::read(variables, true).0.own.phantom, None);
    assert!(Settings::read(variables, false).0.own.phantom.is_some());
}

proptest! {
    /// Whatever the bytes are: an answer, and one message at most for each variable.
    #[test]
    fn any_bytes_are_read(value in prop::collection::vec(any::<u8>(), 0..40), which in 0_usize..SCOPED.len()) {
        let name = SCOPED[which].0.as_bytes();
        let (_, said) = Settings::read([(name, &value[..])], false);
        prop_assert!(said.len() <= 1);
    }

    /// What was read and is written comes back.
    #[test]
    fn lists_come_back(numbers in prop::collection::vec(1_u64..1 << 40, 1..9)) {
        let text = numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" , ");
        prop_assert_eq!(plain("OMP_NUM_THREADS", &text).num_threads, Some(numbers));
    }
}

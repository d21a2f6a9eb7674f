//! `OMP_DISPLAY_ENV` and `omp_display_env`: the form of GCC 13 and later, with the scope of each variable.

use std::sync::atomic::Ordering::Relaxed;

use crate::alloc;
use crate::env::{DefaultAllocator, Device};
use crate::icv::{Globals, ProcBind, Schedule, ScheduleKind, TargetOffload, WaitPolicy};

/// The lines, to be written in one piece. `is_verbose` adds GCC's own variables, then those of this runtime.
pub fn environment(globals: &Globals, is_verbose: bool) -> Vec<u8> {
    let mut lines = Lines {
        host: effective(globals),
        globals,
        bytes: b"\nOPENMP DISPLAY ENVIRONMENT BEGIN\n  _OPENMP = '201511'\n".to_vec(),
    };
    lines.scoped("OMP_DYNAMIC", |device| device.dynamic.map(boolean));
    lines.host("OMP_NESTED", boolean(globals.initial.max_active_levels > 1));
    lines.scoped("OMP_NUM_THREADS", |device| {
        device
            .num_threads
            .as_deref()
            .map(|list| joined(list, u64::to_string))
    });
    lines.scoped("OMP_SCHEDULE", |device| device.schedule.map(schedule));
    lines.scoped("OMP_PROC_BIND", |device| {
        device
            .proc_bind
            .as_deref()
            .map(|list| joined(list, |&policy| proc_bind(policy).to_owned()))
    });
    let places = globals.places.as_ref().map(ToString::to_string);
    lines.host("OMP_PLACES", places.unwrap_or_default());
    lines.scoped("OMP_STACKSIZE", |device| text(device.stack_bytes));
    lines.scoped("OMP_WAIT_POLICY", |device| {
        device.wait_policy.map(|policy| match policy {
            WaitPolicy::Active => "ACTIVE".to_owned(),
            WaitPolicy::Passive => "PASSIVE".to_owned(),
        })
    });
    lines.scoped("OMP_THREAD_LIMIT", |device| text(device.thread_limit));
    lines.scoped("OMP_MAX_ACTIVE_LEVELS", |device| {
        text(device.max_active_levels)
    });
    lines.scoped("OMP_NUM_TEAMS", |device| text(device.num_teams));
    lines.scoped("OMP_TEAMS_THREAD_LIMIT", |device| {
        text(device.teams_thread_limit)
    });
    lines.all("OMP_CANCELLATION", boolean(globals.cancellation));
    lines.all("OMP_DEFAULT_DEVICE", globals.initial.default_device);
    lines.all("OMP_MAX_TASK_PRIORITY", globals.max_task_priority);
    lines.all("OMP_DISPLAY_AFFINITY", boolean(globals.display_affinity));
    lines.add("host", "OMP_AFFINITY_FORMAT", &globals.affinity_format());
    lines.add("host", "OMP_ALLOCATOR", &allocator(globals));
    lines.all(
        "OMP_TARGET_OFFLOAD",
        match globals.target_offload {
            TargetOffload::Default => "DEFAULT",
            TargetOffload::Mandatory => "MANDATORY",
            TargetOffload::Disabled => "DISABLED",
        },
    );
    if is_verbose {
        lines.host("GOMP_CPU_AFFINITY", "");
        lines.host(
            "GOMP_STACKSIZE",
            globals.settings.stack_bytes().unwrap_or(0),
        );
        lines.host("GOMP_SPINCOUNT", globals.spin_count);
        let dynamic = globals.own.dynamic.map(boolean);
        lines.host("AMDAHL_OMP_DYNAMIC", dynamic.unwrap_or_default());
        lines.host("AMDAHL_OMP_STATS", boolean(globals.own.stats));
        lines.host(
            "AMDAHL_OMP_THREADS",
            text(globals.own.threads).unwrap_or_default(),
        );
        let page = globals.own.phantom.as_deref().unwrap_or_default();
        lines.add("host", "AMDAHL_PHANTOM", page);
    }
    lines
        .bytes
        .extend_from_slice(b"OPENMP DISPLAY ENVIRONMENT END\n");
    lines.bytes
}

/// What counts on the host, whoever said it.
fn effective(globals: &Globals) -> Device {
    let (given, icv) = (globals.settings.host(), &globals.initial);
    Device {
        dynamic: Some(icv.dynamic),
        num_threads: given
            .num_threads
            .or_else(|| Some(vec![icv.nthreads.into()])),
        schedule: Some(icv.schedule),
        proc_bind: given.proc_bind.or_else(|| Some(vec![icv.bind])),
        stack_bytes: Some(globals.settings.stack_bytes().unwrap_or(0)),
        wait_policy: Some(globals.wait_policy.unwrap_or(WaitPolicy::Passive)),
        thread_limit: Some(icv.thread_limit.into()),
        max_active_levels: Some(icv.max_active_levels.into()),
        num_teams: Some(globals.num_teams.load(Relaxed)),
        teams_thread_limit: Some(globals.teams_thread_limit.load(Relaxed)),
        default_device: Some(icv.default_device),
    }
}

struct Lines<'a> {
    host: Device,
    globals: &'a Globals,
    bytes: Vec<u8>,
}

impl Lines<'_> {
    fn add(&mut self, scope: &str, name: &str, value: &[u8]) {
        self.bytes
            .extend_from_slice(format!("  [{scope}] {name} = '").as_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"'\n");
    }

    fn host(&mut self, name: &str, value: impl ToString) {
        self.add("host", name, value.to_string().as_bytes());
    }

    fn all(&mut self, name: &str, value: impl ToString) {
        self.add("all", name, value.to_string().as_bytes());
    }

    /// The host's value, and what was given for other scopes.
    fn scoped(&mut self, name: &str, of: fn(&Device) -> Option<String>) {
        let settings = &self.globals.settings;
        let mut found = vec![
            ("host".to_owned(), of(&self.host)),
            ("all".to_owned(), of(&settings.all)),
            ("device".to_owned(), of(&settings.devices)),
        ];
        let numbered = settings.numbered.iter();
        found.extend(numbered.map(|(number, device)| (number.to_string(), of(device))));
        for (scope, value) in found {
            if let Some(value) = value {
                self.add(&scope, name, value.as_bytes());
            }
        }
    }
}

fn boolean(value: bool) -> String {
    if value { "TRUE" } else { "FALSE" }.to_owned()
}

fn text(value: Option<impl ToString>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn joined<T>(list: &[T], text: impl Fn(&T) -> String) -> String {
    list.iter().map(text).collect::<Vec<_>>().join(",")
}

fn schedule(schedule: Schedule) -> String {
    let kind = match schedule.kind {
        ScheduleKind::Static => "STATIC",
        ScheduleKind::Dynamic => "DYNAMIC",
        ScheduleKind::Guided => "GUIDED",
        ScheduleKind::Auto => "AUTO",
    };
    // Static schedules are monotonic and the others are not, where nobody says otherwise.
    let modifier = match (schedule.kind, schedule.is_monotonic) {
        (ScheduleKind::Static, false) => "NONMONOTONIC:",
        (ScheduleKind::Static, true) | (_, false) => "",
        (_, true) => "MONOTONIC:",
    };
    let has_chunk =
        schedule.kind != ScheduleKind::Auto && schedule.chunk != schedule.kind.default_chunk();
    match has_chunk {
        true => format!("{modifier}{kind},{}", schedule.chunk),
        false => format!("{modifier}{kind}"),
    }
}

fn proc_bind(policy: ProcBind) -> &'static str {
    match policy {
        ProcBind::False => "FALSE",
        ProcBind::True => "TRUE",
        ProcBind::Primary => "MASTER",
        ProcBind::Close => "CLOSE",
        ProcBind::Spread => "SPREAD",
    }
}

fn allocator(globals: &Globals) -> Vec<u8> {
    match (
        globals.default_allocator.handle(),
        &globals.settings.allocator,
    ) {
        (alloc::GNU_PINNED_MEM_ALLOC, _) => b"ompx_gnu_pinned_mem_alloc".to_vec(),
        (handle, _) if handle <= alloc::PREDEFINED_LAST => {
            alloc::PREDEFINED[handle].as_bytes().to_vec()
        }
        (_, Some(DefaultAllocator::Traits(_, _, text))) => text.clone(),
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Settings;
    use crate::places::Topology;

    fn shown(variables: &[(&str, &str)], is_verbose: bool) -> String {
        let pairs = variables
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let (settings, _) = Settings::read(pairs, false);
        let (globals, _) = Globals::new(settings, &"0-1".parse().unwrap(), Topology::default);
        String::from_utf8(environment(&globals, is_verbose)).expect("text")
    }

    /// Word by word what GCC 13 to 15 print on a machine of two CPUs.
    #[test]
    fn the_lines_of_gccs_runtime() {
        let expected = "
OPENMP DISPLAY ENVIRONMENT BEGIN
  _OPENMP = '201511'
  [host] OMP_DYNAMIC = 'FALSE'
  [host] OMP_NESTED = 'FALSE'
  [host] OMP_NUM_THREADS = '2'
  [host] OMP_SCHEDULE = 'DYNAMIC'
  [host] OMP_PROC_BIND = 'FALSE'
  [host] OMP_PLACES = ''
  [host] OMP_STACKSIZE = '0'
  [host] OMP_WAIT_POLICY = 'PASSIVE'
  [host] OMP_THREAD_LIMIT = '4294967295'
  [host] OMP_MAX_ACTIVE_LEVELS = '1'
  [host] OMP_NUM_TEAMS = '0'
  [host] OMP_TEAMS_THREAD_LIMIT = '0'
  [all] OMP_CANCELLATION = 'FALSE'
  [all] OMP_DEFAULT_DEVICE = '0'
  [all] OMP_MAX_TASK_PRIORITY = '0'
  [all] OMP_DISPLAY_AFFINITY = 'FALSE'
  [host] OMP_AFFINITY_FORMAT = 'level %L thread %i affinity %A'
  [host] OMP_ALLOCATOR = 'omp_default_mem_alloc'
  [all] OMP_TARGET_OFFLOAD = 'DEFAULT'
OPENMP DISPLAY ENVIRONMENT END
";
        assert_eq!(shown(&[], false), expected);
    }

    #[test]
    fn scopes_in_their_order() {
        let variables = [
            ("OMP_NUM_THREADS", "4,3,2"),
            ("OMP_NUM_THREADS_ALL", "45,46,47"),
            ("OMP_NUM_THREADS_DEV", "42,43,44"),
            ("OMP_NUM_THREADS_DEV_24", "14,13,12"),
            ("OMP_SCHEDULE_DEV", "guided,1"),
            ("OMP_STACKSIZE_DEV_24", "44"),
        ];
        let shown = shown(&variables, false);
        let threads = "  [host] OMP_NUM_THREADS = '4,3,2'\n  [all] OMP_NUM_THREADS = '45,46,47'\n  [device] \
                       OMP_NUM_THREADS = '42,43,44'\n  [24] OMP_NUM_THREADS = '14,13,12'\n";
        assert!(shown.contains(threads), "{shown}");
        assert!(
            shown.contains("  [device] OMP_SCHEDULE = 'GUIDED'\n"),
            "{shown}"
        );
        assert!(
            shown.contains("  [24] OMP_STACKSIZE = '45056'\n"),
            "{shown}"
        );
    }

    #[test]
    fn values_as_gccs_runtime_writes_them() {
        for (name, value, expected) in [
            ("OMP_SCHEDULE", "static", "STATIC"),
            (
                "OMP_SCHEDULE",
                "nonmonotonic:static,3",
                "NONMONOTONIC:STATIC,3",
            ),
            ("OMP_SCHEDULE", "monotonic:dynamic,2", "MONOTONIC:DYNAMIC,2"),
            ("OMP_SCHEDULE", "nonmonotonic:guided", "GUIDED"),
            ("OMP_SCHEDULE", "auto,7", "AUTO"),
            (
                "OMP_PROC_BIND",
                "spread,primary,close",
                "SPREAD,MASTER,CLOSE",
            ),
            ("OMP_PROC_BIND", "true", "TRUE"),
            ("OMP_NUM_THREADS", "4294967296", "4294967296"),
            ("OMP_PLACES", "{1},{0:2}", "{1},{0:2}"),
            ("OMP_AFFINITY_FORMAT", "%n'%", "%n'%"),
            (
                "OMP_ALLOCATOR",
                "omp_low_lat_mem_space",
                "omp_low_lat_mem_alloc",
            ),
            (
                "OMP_ALLOCATOR",
                " omp_default_mem_space:alignment=8",
                "omp_default_mem_space:alignment=8",
            ),
            ("OMP_TARGET_OFFLOAD", "Mandatory", "MANDATORY"),
        ] {
            let line = format!("] {name} = '{expected}'\n");
            let shown = shown(&[(name, value)], false);
            assert!(shown.contains(&line), "{line} not in {shown}");
        }
    }

    #[test]
    fn verbose_adds_ours_last() {
        let shown = shown(
            &[
                ("AMDAHL_OMP_STATS", "true"),
                ("AMDAHL_OMP_THREADS", "1"),
                ("AMDAHL_PHANTOM", "/run/page"),
            ],
            true,
        );
        let last = "  [host] GOMP_SPINCOUNT = '300000'\n  [host] AMDAHL_OMP_DYNAMIC = ''\n  [host] AMDAHL_OMP_STATS = \
                    'TRUE'\n  [host] AMDAHL_OMP_THREADS = '1'\n  [host] AMDAHL_PHANTOM = '/run/page'\nOPENMP DISPLAY ENVIRONMENT END\n";
        assert!(shown.ends_with(last), "{shown}");
        // What counts, whoever said it.
        assert!(
            shown.contains("  [host] OMP_NUM_THREADS = '1'\n"),
            "{shown}"
        );
    }
}

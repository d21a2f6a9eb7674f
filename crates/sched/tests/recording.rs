//! What is recorded is read again, and what is damaged is refused.

use amdahl_sched::event::{Event, Off, Waker};
use amdahl_sched::recording::{FolderReader, FolderWriter, Meta, PartWriter, Window, read_part};
use amdahl_topology::Topology;
use proptest::prelude::*;

fn meta() -> Meta {
    Meta {
        topology: Topology::synthetic("2 node x 1 llc x 2 core x 2 thread").unwrap(),
        tick_ns: 4_000_000,
        begin: 5,
        is_everyone: true,
    }
}

fn samples() -> Vec<Event> {
    let blocked = |in_iowait, uninterruptible| Off::Blocked {
        in_iowait,
        uninterruptible,
    };
    let offs = [
        Off::Preempted,
        Off::Yielded,
        Off::Exited,
        blocked(false, false),
        blocked(true, false),
        blocked(false, true),
        blocked(true, true),
    ];
    let switches = offs.into_iter().enumerate().map(|(i, off)| Event::Switch {
        ts: 100 + i as u64,
        cpu: 3,
        prev: 7,
        off,
        next: 0,
    });
    let mut events: Vec<Event> = switches.collect();
    for waker in [Waker::Thread(9), Waker::Timer, Waker::Interrupt] {
        events.push(Event::Waking {
            ts: 200,
            tid: 7,
            waker,
            cpu: 1,
            last_cpu: 4_000_000_000,
        });
    }
    events.extend([
        Event::Migrate {
            ts: 300,
            tid: 7,
            from: 1,
            to: 2,
        },
        Event::Fork {
            ts: 301,
            parent: 7,
            child: 8,
            pid: 8,
            cpu: 2,
        },
        Event::Thread {
            ts: 302,
            tid: 8,
            pid: 8,
            is_kernel: true,
            name: "kw\u{1b}ö".into(),
        },
        Event::Allowed {
            ts: 303,
            tid: 8,
            cpus: None,
        },
        Event::Allowed {
            ts: 303,
            tid: 7,
            cpus: Some("1,5-300".parse().unwrap()),
        },
        Event::Lost {
            ts: 304,
            cpu: 1,
            count: 12,
        },
    ]);
    events
}

#[test]
fn every_kind_of_event_comes_back() {
    let mut writer = PartWriter::new(meta());
    for event in samples() {
        writer.add(event);
    }
    let part = read_part(writer.write(Vec::new()).unwrap()).unwrap();
    assert_eq!(part.meta, meta());
    assert_eq!(part.events, samples());
}

#[test]
fn each_part_names_its_threads() {
    let mut writer = PartWriter::new(meta());
    let name = Event::Thread {
        ts: 1,
        tid: 7,
        pid: 6,
        is_kernel: false,
        name: "seven".into(),
    };
    let switch = |ts| Event::Switch {
        ts,
        cpu: 0,
        prev: 0,
        off: Off::Preempted,
        next: 7,
    };
    writer.add(name.clone());
    writer.add(switch(2));
    read_part(writer.write(Vec::new()).unwrap()).unwrap();
    writer.add(switch(50));
    let second = read_part(writer.write(Vec::new()).unwrap()).unwrap();
    let named = Event::Thread {
        ts: 50,
        tid: 7,
        pid: 6,
        is_kernel: false,
        name: "seven".into(),
    };
    assert_eq!(second.events, [named, switch(50)]);
}

#[test]
fn the_oldest_parts_give_way() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = FolderWriter::new(folder.path(), meta(), 6_000);
    // A part every five seconds.
    for i in 0..40u64 {
        let ts = i * 3_000_000_000;
        writer
            .add(Event::Lost {
                ts,
                cpu: i as u32,
                count: i,
            })
            .unwrap();
    }
    let kept = writer.finish().unwrap();
    assert!(kept.bytes <= 6_000 && kept.events_dropped > 0, "{kept:?}");
    assert_eq!(kept.events + kept.events_dropped, 40);
    let parts: Vec<_> = FolderReader::open(folder.path())
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let events: Vec<Event> = parts.into_iter().flat_map(|part| part.events).collect();
    assert_eq!(events.len() as u64, kept.events);
    assert_eq!(events.first().map(Event::ts), kept.since);
    assert!(events.windows(2).all(|pair| pair[0].ts() < pair[1].ts()));
}

#[test]
fn a_window_has_what_happened_in_it_and_who_was_there_before() {
    const SECOND: u64 = 1_000_000_000;
    let folder = tempfile::tempdir().unwrap();
    let mut writer = FolderWriter::new(folder.path(), meta(), u64::MAX);
    let thread = |ts| Event::Thread {
        ts,
        tid: 7,
        pid: 7,
        is_kernel: false,
        name: "early".into(),
    };
    let lost = |second: u64| Event::Lost {
        ts: 100 * SECOND + second * SECOND,
        cpu: 0,
        count: second,
    };
    writer.begin_at(100 * SECOND);
    writer.add(thread(100 * SECOND)).unwrap();
    for second in 1..30 {
        writer.add(lost(second)).unwrap();
    }
    writer.finish().unwrap();
    let within = |from, to| {
        let parts = FolderReader::open(folder.path()).unwrap();
        let parts = parts.within(Window::new(from, to)).map(Result::unwrap);
        parts.flat_map(|part| part.events).collect::<Vec<Event>>()
    };
    assert_eq!(within(0, u64::MAX).len(), 30);
    // Across parts, which are of five seconds.
    let found = within(4 * SECOND, 13 * SECOND);
    assert_eq!(found[0], thread(104 * SECOND));
    let rest: Vec<Event> = (4..=13).map(lost).collect();
    assert_eq!(found[1..], rest);
    // Nothing happened any more: only who was there is known.
    assert!(
        within(40 * SECOND, 41 * SECOND)
            .iter()
            .all(|event| *event == thread(140 * SECOND))
    );
    // The parts after it are not read.
    let last = folder.path().join("000005.parquet");
    std::fs::write(last, "damaged").unwrap();
    assert_eq!(within(SECOND, 2 * SECOND).len(), 3);
    // Times count from the beginning, kept or not.
    std::fs::remove_file(folder.path().join("000001.parquet")).unwrap();
    assert_eq!(within(8 * SECOND, 9 * SECOND), [lost(8), lost(9)]);
}

#[test]
fn files_that_are_none_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(FolderReader::open(folder.path()).is_err());
    assert!(FolderReader::open(&folder.path().join("nothing")).is_err());
    for bytes in [
        &b""[..],
        b"PAR1",
        b"PAR1\0\0\0\0\xff\xff\xff\xffPAR1",
        &[0; 4096],
    ] {
        assert!(read_part(bytes.to_vec()).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn damaged_parts_never_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut writer = PartWriter::new(meta());
        for event in samples() {
            writer.add(event);
        }
        let mut bytes = writer.write(Vec::new()).unwrap();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(part) = read_part(bytes) {
            prop_assert!(part.events.len() <= 1 << 20);
        }
    }
}

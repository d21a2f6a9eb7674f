//! What is on the screen after which keys, on terminals of several sizes.

mod scheduling;

use std::sync::Arc;
use std::time::Duration;

use amdahl_report::locks::schema::{CodeSite, LockRow, LocksResult, Owner};
use amdahl_report::mem::schema::{self as mem, FaultKind, FaultSite, MemResult};
use amdahl_report::sched::schema::{
    CpuEntry, GuestEntry, SchedResult, ThreadEntry, Totals, Wasted, WastedPair,
};
use amdahl_report::schema::{Notice, Source};
use amdahl_report::terminal::Style;
use amdahl_top::{By, Data, Filter, Key, Screen, Shape, Snapshot, Tab, Wish, draw, text};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

const PLAIN: Style = Style {
    color: false,
    unicode: false,
};

fn row(what: &str, symbol: &str, times: u64, total_s: f64) -> LockRow {
    LockRow {
        what: what.to_owned(),
        class: "lock".to_owned(),
        site: CodeSite {
            symbol: symbol.to_owned(),
            file: Some("/src/queue.c".to_owned()),
            line: Some(77),
            ..CodeSite::default()
        },
        times,
        total_s,
        max_s: total_s / 2.0,
        mean_s: total_s / times as f64,
        stack: vec!["futex_wait".to_owned(), symbol.to_owned()],
        owners: vec![Owner {
            thread: "holder".to_owned(),
            times,
            seconds: total_s,
            ..Owner::default()
        }],
        ..LockRow::default()
    }
}

fn snapshot(data: Data) -> Arc<Snapshot> {
    Arc::new(Snapshot {
        data,
        seconds: 12.0,
        own_cpu: Some(0.011),
        lost: 0,
        is_cut: false,
    })
}

fn locks(rows: Vec<LockRow>) -> Arc<Snapshot> {
    snapshot(Data::Locks(LocksResult {
        by: "site".to_owned(),
        rows,
        ..LocksResult::default()
    }))
}

fn usual() -> Arc<Snapshot> {
    locks(vec![
        row("mutex", "often", 900, 1.0),
        row("rwsem (write)", "long", 3, 9.0),
        row("spinlock", "seldom", 2, 0.5),
    ])
}

fn screen() -> Screen {
    let mut screen = Screen::new(PLAIN, "the system", Tab::Locks, Duration::from_secs(1));
    screen.take(usual());
    screen
}

fn lines(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(screen, frame)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let cells = buffer.content().chunks(usize::from(width));
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect();
    cells.map(line).collect()
}

/// Functions in the order of their rows.
fn order(screen: &mut Screen) -> Vec<String> {
    let lines = lines(screen, 80, 24);
    let known = ["often", "long", "seldom"];
    let found = lines.iter().filter_map(|line| {
        let of_row = |name: &&&str| line.contains(&format!("{name} queue.c"));
        known.iter().find(of_row).map(|name| (*name).to_owned())
    });
    found.collect()
}

fn press(screen: &mut Screen, keys: &str) {
    for c in keys.chars() {
        screen.key(match c {
            '\n' => Key::Enter,
            '\u{1b}' => Key::Escape,
            c => Key::Char(c),
        });
    }
}

#[test]
fn the_longest_waits_come_first_on_80_by_24() {
    let mut screen = screen();
    assert_eq!(order(&mut screen), ["long", "often", "seldom"]);
    let lines = lines(&mut screen, 80, 24);
    assert!(lines[0].starts_with("amdahl top  1 locks  2 sched  3 mem  the system"));
    assert!(lines[0].ends_with("every 1s"));
    assert!(lines[2].contains("needs 1.1% of one CPU"), "{}", lines[2]);
    for title in ["what", "where", "times", "total", "max", "mean", "p99"] {
        assert!(lines[3].contains(title), "{title}: {}", lines[3]);
    }
    assert!(lines[23].contains("?:help  q:quit"));
}

#[test]
fn any_column_sorts() {
    let mut screen = screen();
    press(&mut screen, "<");
    assert_eq!(order(&mut screen), ["often", "long", "seldom"]);
    press(&mut screen, "i");
    assert_eq!(order(&mut screen), ["seldom", "long", "often"]);
    // The first column is a text: it rises.
    press(&mut screen, "<<");
    assert_eq!(order(&mut screen), ["often", "long", "seldom"]);
}

#[test]
fn a_filter_is_a_regular_expression_or_stands_for_itself() {
    let mut screen = screen();
    press(&mut screen, "/^SPIN|often\n");
    assert_eq!(order(&mut screen), ["often", "seldom"]);
    press(&mut screen, "\u{1b}/(write\n");
    assert_eq!(order(&mut screen), ["long"]);
    press(&mut screen, "\u{1b}");
    assert_eq!(order(&mut screen).len(), 3);
    press(&mut screen, "/nothing has this\n");
    assert!(lines(&mut screen, 80, 24)[4].starts_with("No row has this text."));
}

#[test]
fn a_held_screen_stays_until_it_is_let_go() {
    let mut screen = screen();
    press(&mut screen, " ");
    screen.take(locks(vec![row("mutex", "seldom", 1, 1.0)]));
    assert_eq!(order(&mut screen).len(), 3);
    assert!(lines(&mut screen, 80, 24)[0].ends_with("PAUSED"));
    press(&mut screen, " ");
    assert_eq!(order(&mut screen), ["seldom"]);
}

#[test]
fn the_selected_row_stays_selected_when_others_overtake_it() {
    let mut screen = screen();
    screen.key(Key::Down);
    screen.take(locks(vec![
        row("mutex", "often", 900, 0.1),
        row("rwsem (write)", "long", 3, 9.0),
        row("spinlock", "seldom", 2, 0.5),
    ]));
    press(&mut screen, "\n");
    let lines = lines(&mut screen, 80, 24);
    assert!(lines[3].starts_with("mutex (lock)"), "{lines:#?}");
    for expected in ["in often, /src/queue.c:77", "holder", "futex_wait"] {
        assert!(
            lines.iter().any(|line| line.contains(expected)),
            "{expected}"
        );
    }
    press(&mut screen, "\u{1b}");
    assert_eq!(order(&mut screen), ["long", "seldom", "often"]);
}

#[test]
fn keys_ask_for_what_the_screen_cannot_do() {
    let mut screen = screen();
    for (key, wish) in [
        (Key::Char('g'), Wish::GroupBy(By::Thread)),
        (Key::Char('+'), Wish::Interval(Duration::from_secs(2))),
        (Key::Char('r'), Wish::Reset),
        (Key::Char('3'), Wish::Show(Tab::Mem, By::Site)),
        (Key::BackTab, Wish::Show(Tab::Sched, By::Thread)),
        (Key::Char('1'), Wish::Show(Tab::Locks, By::Thread)),
        (Key::Ctrl('c'), Wish::Quit),
        (Key::Char('q'), Wish::Quit),
    ] {
        assert_eq!(screen.key(key), Some(wish), "{key:?}");
    }
}

#[test]
fn what_comes_late_from_a_tab_that_was_left_is_not_shown() {
    let mut screen = screen();
    press(&mut screen, "3");
    screen.take(usual());
    assert!(order(&mut screen).is_empty());
}

#[test]
fn forty_columns_have_what_matters_most() {
    let mut screen = screen();
    let lines = lines(&mut screen, 40, 10);
    for expected in ["1 locks", "rwsem", "long", "9.00s", "?:help"] {
        assert!(
            lines.iter().any(|line| line.contains(expected)),
            "{expected}: {lines:#?}"
        );
    }
}

#[test]
fn what_is_missing_is_named_with_its_remedy() {
    let mut screen = screen();
    screen.take(snapshot(Data::Locks(LocksResult {
        sources: vec![Source {
            what: "kernel locks".to_owned(),
            how: "missing".to_owned(),
            missing: "Not told.".to_owned(),
            remedy: "be root".to_owned(),
        }],
        ..LocksResult::default()
    })));
    assert!(lines(&mut screen, 80, 24)[2].contains("see ?"));
    press(&mut screen, "?");
    let lines = lines(&mut screen, 80, 60);
    assert!(
        lines
            .iter()
            .any(|line| line.contains("Not told. To get it: be root"))
    );
}

#[test]
fn what_was_lost_is_told_on_each_tab_with_its_remedy() {
    let warnings = vec![Notice {
        code: "memory".to_owned(),
        text: "Give more with --memory.".to_owned(),
    }];
    for (tab, data, expected) in [
        (
            Tab::Locks,
            Data::Locks(LocksResult {
                stacks_lost: 3,
                ..LocksResult::default()
            }),
            "It lost 3 stacks",
        ),
        (
            Tab::Sched,
            Data::Sched(SchedResult {
                warnings: warnings.clone(),
                ..SchedResult::default()
            }),
            "Give more with --memory.",
        ),
        (
            Tab::Mem,
            Data::Mem(MemResult {
                warnings,
                ..MemResult::default()
            }),
            "Give more with --memory.",
        ),
    ] {
        let mut screen = Screen::new(PLAIN, "the system", tab, Duration::from_secs(1));
        let snapshot = snapshot(data);
        screen.take(snapshot.clone());
        assert!(lines(&mut screen, 80, 24)[2].contains("see ?"));
        press(&mut screen, "?");
        let help = lines(&mut screen, 80, 60);
        assert!(help.iter().any(|line| line.contains(expected)), "{help:#?}");
        let script = text(&snapshot, Shape::default(), &Filter::new(""), 20, 80, PLAIN);
        assert!(script.contains(expected), "{script}");
    }
}

#[test]
fn the_same_table_is_there_for_scripts() {
    let text = text(
        &usual(),
        Shape::default(),
        &Filter::new("long"),
        20,
        80,
        PLAIN,
    );
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("locks: 12.0s counted, needs 1.1% of one CPU"));
    assert!(lines[3].starts_with("rwsem (write)"), "{text}");
    assert_eq!(lines.len(), 4);
}

fn data() -> impl Strategy<Value = Arc<Snapshot>> {
    let name = "\\PC{0,12}|[\u{0}-\u{1f}\u{9b}\u{202e}a日]{0,12}";
    let figure = prop_oneof![Just(0.0), Just(f64::NAN), Just(f64::INFINITY), -1e12..1e12];
    (0..3, name, figure, any::<u64>()).prop_map(|(tab, name, figure, count)| {
        snapshot(match tab {
            0 => Data::Locks(LocksResult {
                rows: vec![row(&name, &name, count.max(1), figure); 30],
                ..LocksResult::default()
            }),
            1 => Data::Sched(SchedResult {
                threads: vec![
                    ThreadEntry {
                        name: name.clone(),
                        threads: count,
                        run_s: figure,
                        ..ThreadEntry::default()
                    };
                    30
                ],
                totals: Totals {
                    switches: count,
                    ..Totals::default()
                },
                cpus: vec![
                    CpuEntry {
                        cpu: 7,
                        run_s: figure,
                        idle_wasted_s: figure,
                        queue_mean: figure,
                        ..CpuEntry::default()
                    };
                    30
                ],
                wasted: Wasted {
                    affinity_s: figure,
                    transient_s: figure,
                    pairs: vec![
                        WastedPair {
                            idle_cpu: 7,
                            busy_cpu: 7,
                            reason: name.clone(),
                            total_s: figure,
                            ..WastedPair::default()
                        };
                        3
                    ],
                    ..Wasted::default()
                },
                guests: vec![
                    GuestEntry {
                        vmm: name.clone(),
                        phantom_s: figure,
                        preempted: count,
                        ..GuestEntry::default()
                    };
                    30
                ],
                ..SchedResult::default()
            }),
            _ => {
                let mut result = MemResult::default();
                result.faults.kinds = vec![FaultKind {
                    kind: name.clone(),
                    count,
                    ..FaultKind::default()
                }];
                result.faults.sites = vec![
                    FaultSite {
                        kind: name.clone(),
                        count,
                        seconds: figure,
                        process: name.clone(),
                        object: name.clone(),
                        ..FaultSite::default()
                    };
                    30
                ];
                result.huge.mappings = vec![
                    mem::MappingReport {
                        process: name.clone(),
                        name: name.clone(),
                        resident_bytes: count,
                        huge_bytes: u64::MAX,
                        obstacles: vec![(name, count)],
                        ..mem::MappingReport::default()
                    };
                    30
                ];
                Data::Mem(result)
            }
        })
    })
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![
        prop::sample::select(
            "123grio<>/?+- kjhq("
                .chars()
                .map(Key::Char)
                .collect::<Vec<_>>()
        ),
        prop::sample::select(vec![
            Key::Up,
            Key::Down,
            Key::Left,
            Key::Right,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::Enter,
            Key::Escape,
            Key::Backspace,
            Key::Tab,
            Key::BackTab,
        ]),
        any::<char>().prop_map(Key::Char),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_panics_and_nothing_steers_the_terminal(
        steps in prop::collection::vec((key(), data()), 1..24),
        width in 1..120_u16,
        height in 1..40_u16,
    ) {
        let mut screen = screen();
        for (key, data) in steps {
            let _ = screen.key(key);
            screen.take(data);
            for line in lines(&mut screen, width, height) {
                prop_assert!(line.is_ascii(), "{line:?}");
                prop_assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
            }
        }
    }
}

/// A live view of memory told of faults and waits alone.
#[test]
fn memory_is_told_with_holds_huge_pages_and_misses_of_the_tlb() {
    let mut screen = Screen::new(PLAIN, "the system", Tab::Mem, Duration::from_secs(1));
    let hold = mem::LockRow {
        operation: "munmap".to_owned(),
        mode: "write".to_owned(),
        count: 7,
        seconds: 0.25,
        max_s: 0.125,
        p99_s: None,
    };
    let result = MemResult {
        faults: mem::Faults {
            count: 40,
            is_timed: true,
            ..mem::Faults::default()
        },
        mmap_lock: mem::MmapLock {
            has_holds: true,
            holds: vec![hold],
            ..mem::MmapLock::default()
        },
        huge: mem::HugePages {
            refused: Some(3),
            machine: Some(mem::Coverage {
                anonymous_bytes: 400,
                anonymous_huge_bytes: 100,
                ..mem::Coverage::default()
            }),
            ..mem::HugePages::default()
        },
        tlb: Some(mem::Tlb {
            data_per_thousand: Some(1.5),
            ..mem::Tlb::default()
        }),
        ..MemResult::default()
    };
    screen.take(snapshot(Data::Mem(result)));
    for by in [By::Site, By::Kind] {
        screen.group_by(by);
        let text = lines(&mut screen, 160, 24).join("\n");
        let row = text.lines().find(|line| line.contains("mmap_lock held"));
        let row = row.unwrap_or_else(|| panic!("{text}"));
        assert!(
            row.contains("munmap") && row.contains('7') && row.contains("125ms"),
            "{row}"
        );
        assert!(!row.contains("unknown"), "{row}");
        assert!(
            text.contains("25 % of anonymous memory in huge pages (3 refused)"),
            "{text}"
        );
        assert!(
            text.contains("1.50 TLB misses for data per 1000 instructions"),
            "{text}"
        );
    }
}

#[test]
fn who_released_a_lock_stands_beside_it_when_asked_for() {
    let owner = |thread: &str| Owner {
        thread: thread.to_owned(),
        site: CodeSite {
            symbol: "let_go".to_owned(),
            ..CodeSite::default()
        },
        times: 3,
        seconds: 0.5,
        ..Owner::default()
    };
    let wanted = LockRow {
        owners: vec![owner("keeper"), owner("another")],
        ..row("futex", "want_it", 3, 1.0)
    };
    let held = LockRow {
        owners: vec![owner("mapper")],
        ..row("mmap_lock (write)", "map_it", 2, 0.25)
    };
    let found = snapshot(Data::Locks(LocksResult {
        rows: vec![wanted],
        holds: vec![held],
        ..LocksResult::default()
    }));
    let mut screen = Screen::new(PLAIN, "the system", Tab::Locks, Duration::from_secs(1));
    screen.take(found.clone());
    let before = lines(&mut screen, 80, 24).join("\n");
    assert!(
        !before.contains("released by") && !before.contains("held"),
        "{before}"
    );
    assert_eq!(screen.key(Key::Char('o')), None);
    let after = lines(&mut screen, 80, 24);
    assert!(
        after.iter().any(|line| line.contains("released by")),
        "{after:?}"
    );
    // The smallest terminal that is usable has who, where and how long.
    let has = |what: &str, who: &str| {
        let line = after.iter().find(|line| line.contains(what));
        line.is_some_and(|line| line.contains(who))
    };
    assert!(has("futex", "keeper"), "{after:?}");
    assert!(has("held", "mapper"), "{after:?}");
    // The details of what was held are its own.
    let _ = screen.key(Key::Down);
    let _ = screen.key(Key::Enter);
    let detail = lines(&mut screen, 80, 24).join("\n");
    assert!(
        detail.contains("Who held it:") && detail.contains("mapper in let_go"),
        "{detail}"
    );
    let _ = screen.key(Key::Escape);
    let _ = screen.key(Key::Char('o'));
    let again = lines(&mut screen, 80, 24).join("\n");
    assert!(!again.contains("released by"), "{again}");
    let shape = Shape {
        owners: true,
        ..Shape::default()
    };
    let text = text(&found, shape, &Filter::default(), 20, 120, PLAIN);
    assert!(text.contains("keeper in let_go"), "{text}");
}

#[test]
fn mappings_are_told_with_their_huge_pages_and_what_is_in_the_way() {
    let mapping = |start: &str, name: &str, huge: u64| mem::MappingReport {
        pid: 42,
        process: "base".to_owned(),
        start: start.to_owned(),
        bytes: 64 << 20,
        name: name.to_owned(),
        backing: "anonymous".to_owned(),
        resident_bytes: 48 << 20,
        huge_bytes: huge,
        obstacles: vec![("not-advised".to_owned(), (48 << 20) - huge)],
        ..mem::MappingReport::default()
    };
    let result = MemResult {
        huge: mem::HugePages {
            mappings: vec![mapping("7f00", "", 36 << 20), mapping("8f00", "[heap]", 0)],
            obstacles: vec![mem::ObstacleReport {
                id: "not-advised".to_owned(),
                text: "Nobody asked.".to_owned(),
                remedy: "call madvise".to_owned(),
                ..mem::ObstacleReport::default()
            }],
            ..mem::HugePages::default()
        },
        ..MemResult::default()
    };
    let mut screen = Screen::new(PLAIN, "the system", Tab::Mem, Duration::from_secs(1));
    screen.take(snapshot(Data::Mem(result)));
    screen.group_by(By::Mapping);
    let shown = lines(&mut screen, 80, 24);
    let at = |what: &str| {
        let found = shown.iter().position(|line| line.contains(what));
        found.unwrap_or_else(|| panic!("{what} in {shown:?}"))
    };
    assert!(at("smallv") < at("[heap]"));
    assert!(
        at("[heap]") < at("anonymous 7f00"),
        "most small pages first"
    );
    let line = &shown[at("anonymous 7f00")];
    assert!(
        line.contains("75%") && line.contains("12.0M") && line.contains("not-advised"),
        "{line}"
    );
    assert!(shown[at("[heap]")].contains("0%"));
    let _ = screen.key(Key::Enter);
    let detail = lines(&mut screen, 80, 24).join("\n");
    assert!(
        detail.contains("48.0M not-advised. Nobody asked."),
        "{detail}"
    );
    assert!(detail.contains("call madvise"), "{detail}");
}

/// Lower bounds looked as exact as what was recorded.
#[test]
fn figures_that_only_samples_tell_have_a_mark() {
    let polled = LockRow {
        at_least: true,
        ..row("futex", "open_the_vault", 40, 2.0)
    };
    let rows = vec![row("pthread mutex", "lock", 30, 1.0), polled];
    let shown = |style| {
        let shape = Shape::default();
        text(
            &locks(rows.clone()),
            shape,
            &Filter::default(),
            9,
            100,
            style,
        )
    };
    let plain = shown(PLAIN);
    let line = |what: &str, of: &str| {
        let line = of.lines().find(|line| line.contains(what));
        line.unwrap_or_else(|| panic!("{of}")).to_owned()
    };
    let polled = line("open_the_vault", &plain);
    assert!(
        polled.contains(" >40 ") && polled.contains(">2.00s"),
        "{polled}"
    );
    assert!(!line("mutex", &plain).contains('>'), "{plain}");
    let unicode = shown(Style {
        color: false,
        unicode: true,
    });
    assert!(
        line("open_the_vault", &unicode).contains(" ≥40 "),
        "{unicode}"
    );
}

//! A result of `amdahl sched` on the terminal, on the page, and from damaged files.

use amdahl_report::sched::schema::{
    ChainEntry, ChainLink, CpuEntry, GuestEntry, Latency, Picture, PictureCpu, PictureThread,
    SCHEMA, SchedResult, ThreadEntry, Totals, WakerEntry, Wasted, WastedPair,
};
use amdahl_report::sched::{html, load, terminal, to_json};
use amdahl_report::schema::{Notice, Source};
use amdahl_report::terminal::Style;

const HOSTILE: &str = "\u{1b}[31m<script>alert(1)</script>\u{202e}";

fn latency() -> Latency {
    Latency {
        count: 12_345,
        total_s: 1.5,
        mean_s: 0.000_12,
        p50_s: 0.000_05,
        p90_s: 0.000_4,
        p99_s: 0.004,
        max_s: 0.25,
        histogram: vec![(0.000_065_536, 9_000), (0.268, 3_345)],
    }
}

fn result(cpus: u32, name: &str) -> SchedResult {
    SchedResult {
        schema: SCHEMA.to_owned(),
        command: vec![name.to_owned()],
        wall_s: 4.0,
        sources: vec![Source {
            what: name.to_owned(),
            how: "bpf".to_owned(),
            missing: "much".to_owned(),
            remedy: name.to_owned(),
        }],
        totals: Totals {
            switches: 1_000_000,
            preemptions: 9,
            wakeups: 5,
            events: 10,
            events_lost: 3,
            ..Totals::default()
        },
        wake_latency: latency(),
        preempt_latency: latency(),
        slices: latency(),
        wasted: Wasted {
            affinity_s: 0.5,
            balancing_s: 0.25,
            pairs: vec![WastedPair {
                idle_cpu: 511,
                busy_cpu: 3,
                reason: name.to_owned(),
                total_s: 0.5,
                stretches: 4,
                longest_s: 0.4,
            }],
            ..Wasted::default()
        },
        cpus: (0..cpus)
            .map(|cpu| CpuEntry {
                cpu,
                run_s: 3.0,
                queue_mean: 1.5,
                latency: latency(),
                ..CpuEntry::default()
            })
            .collect(),
        threads: (0..30)
            .map(|tid| ThreadEntry {
                tid,
                pid: 1,
                name: name.to_owned(),
                threads: 1,
                run_s: 1.0,
                wake_latency: latency(),
                ..ThreadEntry::default()
            })
            .collect(),
        wakers: vec![WakerEntry {
            waker: name.to_owned(),
            woken: name.to_owned(),
            count: 7,
            ..WakerEntry::default()
        }],
        chains: vec![ChainEntry {
            total_s: 0.1,
            began_by: "timer".to_owned(),
            links: vec![
                ChainLink {
                    tid: 4,
                    name: name.to_owned(),
                    ..ChainLink::default()
                };
                20
            ],
            ..ChainEntry::default()
        }],
        guests: vec![GuestEntry {
            vmm: name.to_owned(),
            pid: 4,
            run_s: 1.0,
            phantom_s: 0.25,
            ..GuestEntry::default()
        }],
        picture: Some(Picture {
            column_s: 0.004,
            columns: 1000,
            threads: vec![PictureThread {
                tid: 4,
                name: name.to_owned(),
            }],
            cpus: (0..cpus)
                .map(|cpu| PictureCpu {
                    cpu,
                    runs: vec![[500, 1, 16], [500, 1, 3]],
                })
                .collect(),
        }),
        warnings: vec![Notice {
            code: name.to_owned(),
            text: name.to_owned(),
        }],
        ..SchedResult::default()
    }
}

#[test]
fn the_terminal_keeps_its_width_at_2_and_at_512_cpus() {
    for cpus in [2, 512] {
        for width in [60, 80, 120] {
            let text = terminal::render(
                &result(cpus, "worker"),
                width,
                Style {
                    color: false,
                    unicode: true,
                },
            );
            let longest = text
                .lines()
                .map(|line| line.chars().count())
                .max()
                .unwrap_or(0);
            assert!(longest <= width, "{longest} on {width}\n{text}");
            assert!(text.lines().count() < 140, "{text}");
        }
    }
}

#[test]
fn foreign_text_steers_nothing() {
    let result = result(2, HOSTILE);
    let text = terminal::render(&result, 80, Style::default());
    assert!(!text.chars().any(|c| c.is_control() && c != '\n') && !text.contains('\u{202e}'));
    let page = html::render(&result);
    assert!(!page.contains("<script") && !page.contains('\u{1b}') && !page.contains('\u{202e}'));
}

#[test]
fn every_figure_of_the_page_is_in_the_result() {
    let result = result(2, "worker");
    let json: serde_json::Value = serde_json::from_str(&to_json(&result).unwrap()).unwrap();
    let page = html::render(&result);
    let mut figures = 0;
    for part in page.split("data-figure=\"").skip(1) {
        let (path, rest) = part.split_once('"').unwrap();
        let value = rest
            .split_once("data-value=\"")
            .unwrap()
            .1
            .split_once('"')
            .unwrap()
            .0;
        let found = path
            .split('.')
            .fold(&json, |at, key| match key.parse::<usize>() {
                Ok(index) if at.is_array() => &at[index],
                _ => &at[key],
            });
        assert_eq!(found.as_f64(), value.parse().ok(), "{path}");
        figures += 1;
    }
    assert!(figures > 100);
}

#[test]
fn what_is_saved_is_read_again() {
    let result = result(2, "worker");
    let json = to_json(&result).unwrap();
    assert_eq!(load::parse(json.as_bytes(), "x".into()).unwrap(), result);
}

#[test]
fn figures_that_cannot_be_are_refused() {
    let spoil: [fn(&mut SchedResult); 6] = [
        |r| r.wall_s = -1.0,
        |r| r.wall_s = f64::NAN,
        |r| r.threads[3].wake_latency.p99_s = 1e30,
        |r| r.picture.as_mut().unwrap().cpus[0].runs.push([1, 0, 0]),
        |r| r.picture.as_mut().unwrap().cpus[0].runs[0][1] = 2,
        |r| r.schema = "amdahl.sched/2".to_owned(),
    ];
    for spoil in spoil {
        let mut result = result(2, "worker");
        spoil(&mut result);
        assert!(to_json(&result).is_err());
    }
}

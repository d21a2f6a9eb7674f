//! Whatever a result holds, what is shown of it is safe and in shape.

mod fixture;
mod markup;

use std::collections::BTreeMap;

use amdahl_report::compare::compare;
use amdahl_report::load::load;
use amdahl_report::save::save;
use amdahl_report::schema::*;
use amdahl_report::terminal::{Style, render, render_comparison};
use amdahl_report::{headline, html};
use markup::assert_markup;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use unicode_width::UnicodeWidthStr;

/// Text with a marker that must never reach a page unescaped, among any characters at all.
fn foreign() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => any::<String>(),
        2 => proptest::sample::select(&fixture::HOSTILE[..]).prop_map(String::from),
        1 => "[a-zA-Z_:<>&]{0,200}",
        1 => Just(String::new()),
    ]
}

fn figure() -> impl Strategy<Value = f64> {
    prop_oneof![3 => 0.0..100.0, 1 => 0.0..1e17, 1 => 0.0..1e-12, 1 => Just(0.0)]
}

fn fraction() -> impl Strategy<Value = f64> {
    prop_oneof![0.0..=1.0, Just(0.0), Just(1.0)]
}

prop_compose! {
    fn range()(a in figure(), b in figure()) -> [f64; 2] { [a.min(b), a.max(b)] }
}

prop_compose! {
    fn spread()(runs in vec(figure(), 1..8)) -> Spread { fixture::spread(&runs) }
}

fn cause_id() -> impl Strategy<Value = String> {
    let known = [
        "work",
        "lock-wait",
        "serial",
        "slow-work",
        "io",
        "unexplained",
        "user-spin",
    ];
    prop_oneof![4 => proptest::sample::select(known.to_vec()).prop_map(String::from), 1 => "[a-z0-9-]{1,64}"]
}

prop_compose! {
    fn stack()(mut parts in btree_map(cause_id(), 0.001..1.0, 0..8)) -> BTreeMap<String, f64> {
        let sum: f64 = parts.values().sum();
        parts.values_mut().for_each(|part| *part /= sum);
        parts
    }
}

prop_compose! {
    fn point()(
        counts in (1..=65_536_u32, any::<u32>(), any::<u64>(), any::<u64>()),
        times in (spread(), spread(), option::of(spread())),
        figures in (figure(), figure(), figure(), figure(), figure(), option::of(figure())),
        speedup_range in range(),
        stack in stack(),
        recorded in option::of(fraction()),
    ) -> Point {
        let stack_range = stack.iter().map(|(id, part)| (id.clone(), [part * 0.5, *part])).collect();
        Point {
            cpus: counts.0,
            threads: counts.1,
            cpu_list: vec![counts.1],
            wall_s: times.0,
            probed_wall_s: times.1,
            speedup: figures.0,
            speedup_range,
            efficiency: figures.1,
            capacity_s: figures.2,
            stack,
            stack_range,
            user_s: figures.3,
            system_s: figures.4,
            instructions: figures.5,
            rate: times.2,
            events_lost: counts.2,
            events: counts.3,
            analysis_s: figures.4,
            recorded,
        }
    }
}

prop_compose! {
    fn site()(
        texts in (foreign(), option::of(foreign()), foreign(), foreign(), foreign(), foreign()),
        stack in vec(foreign(), 0..4),
        line in option::of(any::<u32>()),
        fraction in fraction(),
        seconds in figure(),
    ) -> Site {
        Site {
            symbol: texts.0,
            file: texts.1,
            line,
            module: texts.2,
            stack,
            fraction,
            seconds,
            process: texts.3,
            thread: texts.4,
            object: texts.5,
        }
    }
}

prop_compose! {
    fn cause()(id in cause_id(), fraction in fraction(), text in foreign(), sites in vec(site(), 0..5)) -> CauseReport {
        CauseReport { id, fraction, text, sites }
    }
}

prop_compose! {
    fn profile_entry()(
        symbol in foreign(),
        module in foreign(),
        seconds in (figure(), figure()),
        change in (-2.0..2.0_f64, -2.0..2.0_f64),
        ratios in (option::of(figure()), option::of(figure())),
    ) -> ProfileEntry {
        ProfileEntry {
            symbol,
            module,
            user_s: seconds.0,
            base_user_s: seconds.1,
            extra_work: change.0,
            slow_work: change.1,
            instructions_ratio: ratios.0,
            slowdown: ratios.1,
        }
    }
}

prop_compose! {
    fn fit()(confidence in btree_map("[a-z_]{1,20}", range(), 0..3), relative_rmse in figure(), points in any::<u32>()) -> Fit {
        let parameters = confidence.iter().map(|(name, pair)| (name.clone(), -pair[1])).collect();
        Fit { parameters, confidence, relative_rmse, points }
    }
}

prop_compose! {
    fn result()(
        texts in vec(foreign(), 10),
        command in vec(foreign(), 0..5),
        env in btree_map(foreign(), foreign(), 0..3),
        mut points in vec(point(), 0..5),
        causes in vec(cause(), 0..4),
        profile in vec(profile_entry(), 0..4),
        models in (option::of(fit()), option::of(fit())),
        cost in option::of((figure(), range(), any::<u32>())),
        quota_cpus in option::of(figure()),
        counts in any::<[u32; 4]>(),
        speedup_of in prop_oneof![proptest::sample::select(vec!["wall", "rate", "none"]).prop_map(String::from), foreign()],
        flags in any::<[bool; 2]>(),
    ) -> ScaleResult {
        points.sort_by_key(|p| p.cpus);
        let causes_point = (counts[0] as usize).checked_rem(points.len()).map(|at| at as u32);
        let causes_point = causes_point.filter(|_| flags[1]);
        let text = |i: usize| texts[i].clone();
        ScaleResult {
            schema: SCHEMA.to_owned(),
            amdahl_version: text(0),
            command,
            started: text(1),
            machine: Machine {
                kernel: text(2),
                cpu_model: text(3),
                cpus_online: counts[0],
                cpus_allowed: counts[1],
                quota_cpus,
                topology: text(4),
                is_virtual: flags[0],
            },
            settings: Settings { runs: counts[2], bare_runs: counts[3], confinement: text(5), env, speedup_of },
            sources: vec![Source { what: text(7), how: text(8), missing: text(9), remedy: text(0) }],
            points,
            causes_point,
            causes,
            profile,
            models: Models { amdahl: models.0, usl: models.1, note: text(1) },
            probe_cost: cost.map(|(wall_ratio, range, pairs)| ProbeCost { wall_ratio, range, pairs }),
            warnings: vec![Notice { code: text(2), text: text(3) }],
            failures: vec![RunFailure { cpus: counts[0], threads: counts[2], run: counts[1], what: text(4) }],
            partial: flags[1],
        }
    }
}

fn row() -> impl Strategy<Value = SampleRow> {
    let cause = prop_oneof![cause_id(), foreign()];
    (
        vec(foreign(), 0..6),
        cause,
        any::<u64>(),
        1..3_u32,
        0..4_u32,
    )
        .prop_map(|(frames, cause, charged_ns, cpus, threads)| SampleRow {
            cpus,
            threads,
            cause,
            charged_ns,
            stack: frames.join(";"),
            ..SampleRow::default()
        })
}

/// Text of a terminal page without its colours.
fn without_colours(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        out.push_str(before);
        let (code, after) = after.split_once('m').expect("a whole colour code");
        assert!(
            code.starts_with('[') && code[1..].chars().all(|c| c.is_ascii_digit() || c == ';'),
            "{code:?}"
        );
        rest = after;
    }
    out + rest
}

fn assert_in_shape(page: &str, width: usize) {
    for line in page.lines() {
        let line = without_colours(line);
        assert!(!line.contains(char::is_control), "{line:?}");
        assert!(line.width() <= width, "{} columns: {line:?}", line.width());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn saved_results_are_loaded_to_the_last_bit(result in result()) {
        let place = tempfile::tempdir().unwrap();
        save(&result, place.path()).unwrap();
        prop_assert_eq!(load(place.path()).unwrap(), result);
    }

    #[test]
    fn terminal_lines_are_never_too_wide(result in result(), other in result(), width in 0..260_usize, color: bool, unicode: bool) {
        let style = Style { color, unicode };
        let most = width.clamp(40, 200);
        assert_in_shape(&render(&result, width, style), most);
        assert_in_shape(&render_comparison(&compare(&result, &other), width, style), most);
        prop_assert!(!headline::text(&result).contains(char::is_control));
    }

    #[test]
    fn pages_are_well_formed_whatever_they_show(result in result(), rows in vec(row(), 0..12)) {
        assert_markup(&html::render(&result, &rows));
    }

    #[test]
    fn garbage_is_refused_without_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = amdahl_report::load::parse(&bytes, "x".into());
    }
}

#[test]
fn the_hostile_fixture_is_well_formed() {
    assert_markup(&html::render(&fixture::hostile(), &fixture::hostile_rows()));
}

#[test]
fn who_took_time_is_not_waited_for() {
    let mut result = fixture::sweep();
    for (id, words) in [("lock-wait", "Waits for"), ("stolen", "Taken by")] {
        id.clone_into(&mut result.causes[0].id);
        result.causes.truncate(1);
        result.causes[0].sites[0].object = "make [7]".to_owned();
        let page = html::render(&result, &[]);
        assert!(page.contains(&format!("<dt>{words}</dt>")), "{id}");
    }
}

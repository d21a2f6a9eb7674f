//! A run against the same work on one CPU.

use std::sync::Arc;

use amdahl_speedup::cause::Cause;
use amdahl_speedup::event::{CallStack, StackId};
use amdahl_speedup::partition::{Activity, RunPartition};
use amdahl_speedup::progress::Progress;
use amdahl_speedup::stack::{Function, Measured, ToldBy, function_id, speedup_stack, user_growth};

const S: f64 = 1e9;

/// User seconds and instructions by function, on `cpus` CPUs of which the rest was serial.
fn measured(cpus: f64, wall_s: f64, user: &[(&str, f64, f64)]) -> Measured {
    let by = |pick: fn(&(&str, f64, f64)) -> f64| {
        let of = user.iter().map(|row| (function_id(row.0), pick(row)));
        of.collect::<Vec<(Function, f64)>>().into_iter().collect()
    };
    let user_ns: f64 = user.iter().map(|row| row.1 * S).sum();
    let instructions: f64 = user.iter().map(|row| row.2).sum();
    Measured {
        capacity_ns: cpus * wall_s * S,
        on_ns: [(Activity::User, user_ns)].into_iter().collect(),
        off_ns: [(Cause::Serial, cpus * wall_s * S - user_ns)]
            .into_iter()
            .collect(),
        user_ns: by(|row| row.1 * S),
        user_instructions: by(|row| row.2),
        instructions: (instructions > 0.0).then_some(instructions),
        work: 1.0,
        ..Measured::default()
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

#[test]
fn counters_tell_more_instructions_from_slower_ones_function_by_function() {
    let base = measured(1.0, 4.0, &[("table", 2.0, 2e9), ("parse", 2.0, 4e9)]);
    // `table` runs the same instructions at half the speed, `parse` half as many again.
    let run = measured(4.0, 2.0, &[("table", 4.0, 2e9), ("parse", 3.0, 6e9)]);
    let (stack, growth) = speedup_stack(&run, Some(&base));
    assert_eq!(growth.told_by, ToldBy::Instructions);
    let table = growth.functions[&function_id("table")];
    assert!(
        near(table.extra_ns, 0.0) && near(table.slow_ns, 2.0 * S),
        "{table:?}"
    );
    assert_eq!(
        (table.instructions_ratio, table.slowdown),
        (Some(1.0), Some(2.0))
    );
    let parse = growth.functions[&function_id("parse")];
    assert!(
        near(parse.extra_ns, S) && near(parse.slow_ns, 0.0),
        "{parse:?}"
    );
    assert_eq!(
        (parse.instructions_ratio, parse.slowdown),
        (Some(1.5), Some(1.0))
    );
    // In total the mean speed of one CPU counts: 8 instead of 6 instructions.
    assert!(near(growth.extra_ns, 2.0 / 6.0 * 4.0 * S), "{growth:?}");
    assert!(near(growth.extra_ns + growth.slow_ns, 3.0 * S));
    assert!(near(stack.get(Cause::Work), 0.5));
    assert!(near(stack.get(Cause::Serial), 0.125));
    assert!(near(stack.fractions.values().sum(), 1.0));
}

#[test]
fn without_counters_new_code_is_extra_and_known_code_is_slow() {
    let base = measured(1.0, 4.0, &[("table", 4.0, 0.0)]);
    let run = measured(2.0, 4.0, &[("table", 5.0, 0.0), ("merge", 1.0, 0.0)]);
    let growth = user_growth(&run, &base, 1.0);
    assert_eq!(growth.told_by, ToldBy::Nothing);
    assert!(
        near(growth.slow_ns, S) && near(growth.extra_ns, S),
        "{growth:?}"
    );
    assert_eq!(growth.functions[&function_id("merge")].slowdown, None);
}

#[test]
fn work_that_only_one_cpu_does_is_less_work() {
    let base = measured(1.0, 4.0, &[("sum", 2.0, 0.0), ("sort", 2.0, 0.0)]);
    let run = measured(2.0, 2.0, &[("sum", 2.0, 0.0), ("psort", 2.0, 0.0)]);
    let (stack, growth) = speedup_stack(&run, Some(&base));
    assert!(
        near(growth.extra_ns, 0.0) && near(growth.slow_ns, 0.0),
        "{growth:?}"
    );
    assert!(near(
        growth.functions[&function_id("sort")].extra_ns,
        -2.0 * S
    ));
    assert!(near(stack.get(Cause::Work), 1.0));
}

#[test]
fn twice_the_work_may_take_twice_the_time() {
    let base = measured(1.0, 4.0, &[("serve", 4.0, 4e9)]);
    let mut run = measured(2.0, 4.0, &[("serve", 8.0, 8e9)]);
    run.work = 2.0;
    let (stack, growth) = speedup_stack(&run, Some(&base));
    assert!(near(growth.extra_ns + growth.slow_ns, 0.0), "{growth:?}");
    assert!(near(stack.get(Cause::Work), 1.0));
}

#[test]
fn with_nothing_to_compare_with_all_of_it_is_work() {
    let run = measured(2.0, 4.0, &[("serve", 6.0, 0.0)]);
    let (stack, growth) = speedup_stack(&run, None);
    assert!(growth.functions.is_empty());
    assert!(near(stack.get(Cause::Work), 0.75) && near(stack.get(Cause::Serial), 0.25));
}

/// Samples of instructions go on in a gap at the end of a run, for which nothing else stands.
#[test]
fn instructions_count_as_far_as_the_run_is_accounted_for() {
    let stack = |in_spin_loop| {
        Arc::new(CallStack {
            in_spin_loop,
            ..CallStack::default()
        })
    };
    let stacks = vec![stack(false), stack(true)];
    let run = RunPartition {
        to: 1_000,
        missing_ns: 250.0,
        cpus: 1,
        instructions: [((1, StackId(0)), 800), ((1, StackId(1)), 400)]
            .into_iter()
            .collect(),
        ..RunPartition::default()
    };
    let all = 1_200.0 * run.accounted();
    let measured = Measured::new(&run, &stacks, 0.0, Some(all), Progress::default());
    assert_eq!(measured.user_instructions[&function_id("")], 600.0);
    assert_eq!(measured.instructions, Some(600.0));
    // Standing for the whole run it is what was sampled.
    let whole = measured.scaled(1.0 / run.accounted());
    assert_eq!(whole.instructions, Some(800.0));
    assert_eq!(whole.capacity_ns, 1_000.0);
}

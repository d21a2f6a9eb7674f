//! The laws find what was planted, say how sure they are, and refuse what they cannot say.

use amdahl_speedup::model::{AmdahlFit, NoModel, Observation, Peak, UslFit, fit_amdahl, fit_usl};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};
use statrs::distribution::{ContinuousCDF, Normal};

/// Time on n CPUs of a program that takes 10 s on one.
fn law_s(cpus: u32, contention: f64, coherence: f64) -> f64 {
    let n = f64::from(cpus);
    10.0 * (1.0 + (n - 1.0) * (contention + coherence * n)) / n
}

/// Runs that scatter by a factor.
struct Machine {
    rng: TestRng,
    /// Standard deviation of the logarithm of a time.
    noise: f64,
}

impl Machine {
    fn new(seed: u8, noise: f64) -> Machine {
        Machine {
            rng: TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]),
            noise,
        }
    }

    fn normal(&mut self) -> f64 {
        let uniform: f64 = (0.5 + (self.rng.next_u32() as f64)) / 2f64.powi(32);
        Normal::standard().inverse_cdf(uniform)
    }

    fn measure(
        &mut self,
        counts: &[u32],
        runs: usize,
        law: impl Fn(u32) -> f64,
    ) -> Vec<Observation> {
        let observe = |&cpus: &u32| Observation {
            cpus,
            wall_s: (0..runs)
                .map(|_| law(cpus) * (self.noise * self.normal()).exp())
                .collect(),
        };
        counts.iter().map(observe).collect()
    }
}

fn exact(counts: &[u32], law: impl Fn(u32) -> f64) -> Vec<Observation> {
    counts
        .iter()
        .map(|&cpus| Observation {
            cpus,
            wall_s: vec![law(cpus)],
        })
        .collect()
}

#[test]
fn exact_times_give_the_planted_parameters() {
    for contention in [0.0, 0.01, 0.3, 1.0] {
        let fit = fit_amdahl(&exact(&[1, 2, 4], |n| law_s(n, contention, 0.0))).expect("a fit");
        assert!((fit.serial_fraction - contention).abs() < 1e-7, "{fit:?}");
        assert!((fit.one_cpu_s - 10.0).abs() < 1e-6 && fit.relative_rmse < 1e-7 && fit.points == 3);
        for coherence in [0.0, 1e-4, 0.02] {
            let runs = exact(&[1, 2, 4, 8, 16, 32], |n| law_s(n, contention, coherence));
            let fit = fit_usl(&runs).expect("a fit");
            assert!((fit.contention - contention).abs() < 1e-6, "{fit:?}");
            assert!((fit.coherence - coherence).abs() < 1e-7, "{fit:?}");
            assert!((fit.speedup(32.0) - 10.0 / law_s(32, contention, coherence)).abs() < 1e-4);
        }
    }
}

#[test]
fn the_run_on_one_cpu_is_not_needed() {
    let fit = fit_amdahl(&exact(&[16, 2, 4, 8], |n| law_s(n, 0.2, 0.0))).expect("a fit");
    assert!((fit.serial_fraction - 0.2).abs() < 1e-6 && (fit.one_cpu_s - 10.0).abs() < 1e-5);
    assert!((fit.speedup(1.0) - 1.0).abs() < 1e-9);
}

#[test]
fn order_and_grouping_do_not_matter() {
    let together = Machine::new(1, 0.02).measure(&[1, 2, 4, 8], 3, |n| law_s(n, 0.1, 0.0));
    let mut apart: Vec<Observation> = together
        .iter()
        .flat_map(|o| {
            o.wall_s.iter().map(|&s| Observation {
                cpus: o.cpus,
                wall_s: vec![s],
            })
        })
        .collect();
    apart.reverse();
    apart.push(Observation {
        cpus: 64,
        wall_s: Vec::new(),
    });
    let (a, b) = (
        fit_amdahl(&together).expect("a fit"),
        fit_amdahl(&apart).expect("a fit"),
    );
    assert!((a.serial_fraction - b.serial_fraction).abs() < 1e-9 && a.points == b.points);
}

/// Fraction of `repetitions` in which `covers` holds for the fit; `None` are left out.
fn coverage(repetitions: usize, mut covers: impl FnMut() -> Option<bool>) -> f64 {
    let told: Vec<bool> = (0..repetitions).filter_map(|_| covers()).collect();
    assert!(
        told.len() * 10 > repetitions * 9,
        "refused {} times",
        repetitions - told.len()
    );
    told.iter().filter(|covered| **covered).count() as f64 / told.len() as f64
}

fn holds([low, high]: [f64; 2], value: f64) -> bool {
    low <= value && value <= high
}

#[test]
fn the_serial_fraction_is_in_its_interval_95_times_in_100() {
    for (seed, serial, noise, counts, runs) in [
        (1, 0.05, 0.02, &[1, 2, 4, 8][..], 5),
        (2, 0.3, 0.05, &[1, 2, 4, 8, 16], 3),
        (3, 0.02, 0.01, &[1, 2, 3, 4, 6, 8], 1),
        (4, 0.0, 0.02, &[1, 2, 4], 5),
        (5, 0.9, 0.03, &[2, 4, 8, 16], 3),
    ] {
        let mut machine = Machine::new(seed, noise);
        let covered = coverage(1000, || {
            let fit = fit_amdahl(&machine.measure(counts, runs, |n| law_s(n, serial, 0.0))).ok()?;
            Some(holds(fit.serial_fraction_ci, serial))
        });
        // Two standard deviations of 1,000 trials are 1.4 points.
        assert!(
            (0.93..=0.985).contains(&covered),
            "{covered} for s = {serial}, seed {seed}"
        );
    }
}

#[test]
fn contention_and_coherence_are_in_their_intervals_95_times_in_100() {
    for (seed, contention, coherence, noise, counts, runs) in [
        (6, 0.05, 1e-3, 0.02, &[1, 2, 4, 8, 16, 32][..], 5),
        (7, 0.1, 5e-3, 0.01, &[1, 2, 4, 8, 16], 3),
        (8, 0.02, 2e-4, 0.02, &[1, 2, 4, 8, 16, 32, 64, 128], 1),
        (13, 0.05, 5e-3, 0.01, &[1, 2, 4, 8], 5),
        (14, 0.2, 0.02, 0.02, &[1, 2, 4, 8], 3),
    ] {
        let mut machine = Machine::new(seed, noise);
        let mut both = [0; 2];
        let mut told = 0;
        let _ = coverage(1000, || {
            let runs = machine.measure(counts, runs, |n| law_s(n, contention, coherence));
            let fit = fit_usl(&runs).ok()?;
            told += 1;
            both[0] += usize::from(holds(fit.contention_ci, contention));
            both[1] += usize::from(holds(fit.coherence_ci, coherence));
            Some(true)
        });
        for covered in both.map(|covered| f64::from(covered as u32) / f64::from(told)) {
            assert!((0.93..=0.985).contains(&covered), "{covered}, seed {seed}");
        }
    }
}

#[test]
fn intervals_shrink_with_more_runs() {
    let width = |runs| {
        let mut machine = Machine::new(9, 0.03);
        let widths = (0..50).map(|_| {
            let fit = fit_amdahl(&machine.measure(&[1, 2, 4, 8], runs, |n| law_s(n, 0.2, 0.0)));
            let [low, high] = fit.expect("a fit").serial_fraction_ci;
            high - low
        });
        widths.sum::<f64>()
    };
    assert!(width(20) < 0.6 * width(5));
}

#[test]
fn a_law_that_does_not_fit_widens_its_interval() {
    // Repeatable, but no law: 4 CPUs are no better than 3.
    let steps = |n: u32| {
        if n == 4 {
            law_s(3, 0.1, 0.0)
        } else {
            law_s(n, 0.1, 0.0)
        }
    };
    let width = |law: &dyn Fn(u32) -> f64| {
        let runs = Machine::new(10, 0.002).measure(&[1, 2, 3, 4, 6, 8, 12, 16], 5, law);
        let [low, high] = fit_amdahl(&runs).expect("a fit").serial_fraction_ci;
        high - low
    };
    assert!(width(&steps) > 10.0 * width(&|n| law_s(n, 0.1, 0.0)));
}

#[test]
fn a_peak_is_told_where_it_was_measured() {
    let counts = [1, 2, 4, 8, 16, 32];
    let runs = Machine::new(11, 0.01).measure(&counts, 5, |n| law_s(n, 0.05, 0.005));
    let Peak::At { cpus } = fit_usl(&runs).expect("a fit").peak else {
        panic!("a peak at sqrt(0.95 / 0.005) = 13.8");
    };
    assert!((12.0..16.0).contains(&cpus), "{cpus}");
    // At 310 CPUs: 16 measured ones cannot tell.
    let runs = exact(&[1, 2, 4, 8, 16], |n| law_s(n, 0.04, 1e-5));
    let fit = fit_usl(&runs).expect("a fit");
    assert_eq!(fit.peak, Peak::NotWithin { cpus: 32 });
    assert_eq!(fit.peak.to_string(), "no peak within 32 CPUs");
    // Without coherence there is none.
    let fit = fit_usl(&exact(&[1, 2, 4, 8, 16], |n| law_s(n, 0.2, 0.0))).expect("a fit");
    assert_eq!(fit.peak, Peak::NotWithin { cpus: 32 });
    // It only becomes slower.
    let fit = fit_usl(&exact(&[1, 2, 3, 4, 5], |n| law_s(n, 1.1, 0.01))).expect("a fit");
    assert_eq!(fit.peak, Peak::At { cpus: 1.0 });
}

#[test]
fn a_perfect_program_has_no_serial_part() {
    let runs = Machine::new(12, 0.01).measure(&[1, 2, 4, 8], 5, |n| law_s(n, 0.0, 0.0));
    let fit = fit_amdahl(&runs).expect("a fit");
    assert!(
        fit.serial_fraction < 0.01 && fit.serial_fraction_ci[0] == 0.0,
        "{fit:?}"
    );
}

#[test]
fn too_few_points_are_refused() {
    let runs = exact(&[1, 2, 4, 8], |n| law_s(n, 0.1, 0.0));
    assert_eq!(
        fit_amdahl(&runs[..2]),
        Err(NoModel::TooFewPoints { have: 2, need: 3 })
    );
    assert_eq!(
        fit_usl(&runs[1..]),
        Err(NoModel::TooFewPoints { have: 3, need: 4 })
    );
    assert_eq!(
        fit_amdahl(&[]),
        Err(NoModel::TooFewPoints { have: 0, need: 3 })
    );
    let text = NoModel::TooFewPoints { have: 2, need: 3 }.to_string();
    assert!(
        text.contains("2 CPU counts") && text.contains("--cpus"),
        "{text}"
    );
}

#[test]
fn superlinear_speedup_is_named() {
    let runs = exact(&[1, 2, 4, 8, 16], |n| 10.0 / f64::from(n).powf(1.2));
    let is_named = |result: NoModel| match result {
        NoModel::Superlinear {
            cpus: 16,
            base_cpus: 1,
            speedup,
        } => (speedup - 27.86).abs() < 0.01,
        _ => false,
    };
    assert!(fit_amdahl(&runs).is_err_and(is_named));
    assert!(fit_usl(&runs).is_err_and(is_named));
}

#[test]
fn becoming_slower_is_nothing_for_amdahl() {
    let runs = exact(&[1, 2, 4, 8], |n| 10.0 + f64::from(n));
    assert_eq!(fit_amdahl(&runs), Err(NoModel::Retrograde));
}

#[test]
fn noise_without_a_law_is_refused() {
    let mut refused = 0;
    for seed in 0..100 {
        let runs = Machine::new(seed, 0.5).measure(&[1, 2, 4, 8, 16], 3, |n| law_s(n, 0.1, 0.0));
        refused += u32::from(fit_usl(&runs).is_err());
    }
    assert!(refused > 60, "{refused}");
}

#[test]
fn a_time_that_is_none_is_named() {
    for wall_s in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-310] {
        let mut runs = exact(&[1, 2, 4, 8, 16], |n| law_s(n, 0.1, 0.0));
        runs[1].wall_s.push(wall_s);
        assert!(matches!(
            fit_amdahl(&runs),
            Err(NoModel::BadObservation { cpus: 2, .. })
        ));
        assert!(matches!(
            fit_usl(&runs),
            Err(NoModel::BadObservation { cpus: 2, .. })
        ));
    }
    let mut runs = exact(&[1, 2, 4, 8, 16], |n| law_s(n, 0.1, 0.0));
    runs[0].cpus = 0;
    assert!(matches!(
        fit_amdahl(&runs),
        Err(NoModel::BadObservation { cpus: 0, .. })
    ));
}

fn is_sane_amdahl(fit: &AmdahlFit) -> bool {
    let [low, high] = fit.serial_fraction_ci;
    0.0 <= low
        && low <= fit.serial_fraction
        && fit.serial_fraction <= high
        && high <= 1.0
        && fit.one_cpu_s > 0.0
        && fit.relative_rmse.is_finite()
}

fn is_sane_usl(fit: &UslFit) -> bool {
    let holds = |[low, high]: [f64; 2], value: f64| {
        0.0 <= low && low <= value && value <= high && high.is_finite()
    };
    holds(fit.contention_ci, fit.contention)
        && holds(fit.coherence_ci, fit.coherence)
        && fit.one_cpu_s > 0.0
        && match fit.peak {
            Peak::At { cpus } => cpus >= 1.0 && cpus.is_finite(),
            Peak::NotWithin { cpus } => cpus >= 2,
        }
}

proptest! {
    #[test]
    fn planted_parameters_are_recovered_under_noise(
        seed in any::<u8>(),
        contention in 0.0..0.4f64,
        coherence in 0.0..0.01f64,
    ) {
        let counts = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];
        let mut machine = Machine::new(seed, 0.005);
        let fit = fit_amdahl(&machine.measure(&counts, 5, |n| law_s(n, contention, 0.0))).expect("a fit");
        prop_assert!((fit.serial_fraction - contention).abs() < 0.01, "{fit:?}");
        let fit = fit_usl(&machine.measure(&counts, 5, |n| law_s(n, contention, coherence))).expect("a fit");
        prop_assert!((fit.contention - contention).abs() < 0.04, "{fit:?}");
        prop_assert!((fit.coherence - coherence).abs() < 0.003, "{fit:?}");
    }

    #[test]
    fn any_input_gives_a_sane_fit_or_a_reason(
        observations in prop::collection::vec(
            (
                prop_oneof![0u32..20, any::<u32>()],
                prop::collection::vec(prop_oneof![0.1..10.0f64, any::<f64>(), Just(1.0)], 0..4),
            ),
            0..10,
        ),
    ) {
        let observations: Vec<Observation> = observations
            .into_iter()
            .map(|(cpus, wall_s)| Observation { cpus, wall_s })
            .collect();
        match fit_amdahl(&observations) {
            Ok(fit) => prop_assert!(is_sane_amdahl(&fit), "{fit:?}"),
            Err(reason) => prop_assert!(!reason.to_string().is_empty()),
        }
        if let Ok(fit) = fit_usl(&observations) {
            prop_assert!(is_sane_usl(&fit), "{fit:?}");
        }
    }

    #[test]
    fn any_positive_times_give_a_sane_fit_or_a_reason(
        times in prop::collection::vec(prop::collection::vec(1e-6..1e6f64, 1..4), 3..9),
        spread in 1u32..9,
    ) {
        let observations: Vec<Observation> = times
            .into_iter()
            .zip((1..).step_by(spread as usize))
            .map(|(wall_s, cpus)| Observation { cpus, wall_s })
            .collect();
        if let Ok(fit) = fit_amdahl(&observations) {
            prop_assert!(is_sane_amdahl(&fit), "{fit:?}");
        }
        if let Ok(fit) = fit_usl(&observations) {
            prop_assert!(is_sane_usl(&fit), "{fit:?}");
        }
    }
}

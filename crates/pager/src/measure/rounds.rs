//! Modes side by side: each round runs all of them, so that what a machine does meanwhile hits all alike.

use std::ops::ControlFlow;

use super::{Content, Mode, Order, run};
use crate::{BLOCK, Error};

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Modes beside each other.
    pub modes: Vec<Mode>,
    /// Numbers of touching threads.
    pub faulters: Vec<usize>,
    /// Bytes of a sequential run, at least a huge page for each thread; 0: no sequential runs.
    pub sequential_bytes: usize,
    /// Bytes of a random run; 0: no random runs.
    pub random_bytes: usize,
    /// How often each is measured.
    pub rounds: usize,
}

impl Plan {
    /// Runs in all, without those that only warm up.
    pub fn runs(&self) -> usize {
        let orders = usize::from(self.sequential_bytes > 0) + usize::from(self.random_bytes > 0);
        self.modes.len() * self.faulters.len() * self.rounds * orders
    }

    /// Bytes of content that its runs need.
    pub fn content_bytes(&self) -> usize {
        let most = self.faulters.iter().max().copied().unwrap_or(1).max(1);
        self.sequential_bytes
            .max(self.random_bytes)
            .max(most * BLOCK)
    }
}

/// What one mode did with one number of threads.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The mode.
    pub mode: Mode,
    /// Touching threads.
    pub faulters: usize,
    /// Of sequential runs, by round: megabytes (10^6) a second.
    pub mb_per_s: Vec<f64>,
    /// Of sequential runs, by round: megabytes (10^6) for each second of CPU time.
    pub mb_per_cpu_s: Vec<f64>,
    /// Of random runs, by round: half of the faults took no longer. Touches of pages that were there already do not count.
    pub p50_ns: Vec<f64>,
    /// Of random runs, by round: 99 of 100 faults took no longer.
    pub p99_ns: Vec<f64>,
    /// Why there is nothing.
    pub skipped: Option<String>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// For each number of threads, the modes.
    pub cells: Vec<Cell>,
    /// All runs were made.
    pub is_complete: bool,
}

impl Findings {
    /// One of the cells.
    pub fn cell(&self, mode: Mode, faulters: usize) -> Option<&Cell> {
        self.cells
            .iter()
            .find(|cell| cell.mode == mode && cell.faulters == faulters)
    }

    /// The median over the rounds of what `one` has by what `other` has in the same round.
    pub fn ratio(
        &self,
        faulters: usize,
        one: Mode,
        other: Mode,
        figure: impl Fn(&Cell) -> &[f64],
    ) -> Option<f64> {
        let (one, other) = (self.cell(one, faulters)?, self.cell(other, faulters)?);
        let ratios: Vec<f64> = figure(one)
            .iter()
            .zip(figure(other))
            .map(|(one, other)| one / other)
            .collect();
        median(&ratios)
    }
}

/// The value in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len().checked_sub(1)? / 2;
    Some(match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle] + sorted[middle + 1]) / 2.0,
    })
}

/// Measures. `progress` is told how many runs are done, of how many; it may end it, with what was found until then.
///
/// # Errors
/// There is no memory for the content. A mode that is not possible is [skipped](Cell::skipped).
pub fn measure(
    plan: &Plan,
    mut progress: impl FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Findings, Error> {
    let content = Content::new(plan.content_bytes())?;
    let mut findings = Findings::default();
    for &faulters in &plan.faulters {
        for &mode in &plan.modes {
            findings.cells.push(Cell {
                mode,
                faulters,
                mb_per_s: Vec::new(),
                mb_per_cpu_s: Vec::new(),
                p50_ns: Vec::new(),
                p99_ns: Vec::new(),
                skipped: None,
            });
        }
    }
    // The machine, if it is a virtual one, gets memory for its memory now, and not in somebody's run.
    let _ = run(
        Mode::FirstTouch,
        Order::Sequential,
        1,
        content.bytes(),
        &content,
        false,
    );
    let mut done = 0;
    for _ in 0..plan.rounds {
        for cell in &mut findings.cells {
            for order in [Order::Sequential, Order::Random] {
                let (bytes, is_timed) = match order {
                    Order::Sequential => (plan.sequential_bytes, false),
                    Order::Random => (plan.random_bytes, true),
                };
                if bytes == 0 {
                    continue;
                }
                if progress(done, plan.runs()).is_break() {
                    return Ok(findings);
                }
                done += 1;
                // Nothing arrives at single touches there.
                let is_bulk = matches!(cell.mode, Mode::CopyHuge | Mode::Memcpy);
                if cell.skipped.is_some() || (order == Order::Random && is_bulk) {
                    continue;
                }
                match run(cell.mode, order, cell.faulters, bytes, &content, is_timed) {
                    Ok(sample) if is_timed => {
                        cell.p50_ns
                            .extend(sample.quantile_ns(0.5).map(|ns| ns as f64));
                        cell.p99_ns
                            .extend(sample.quantile_ns(0.99).map(|ns| ns as f64));
                    }
                    Ok(sample) => {
                        cell.mb_per_s.push(sample.mb_per_s());
                        cell.mb_per_cpu_s.push(sample.mb_per_cpu_s());
                    }
                    Err(error) => cell.skipped = Some(error.to_string()),
                }
            }
        }
    }
    findings.is_complete = true;
    Ok(findings)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            modes: vec![Mode::Plain, Mode::Inline, Mode::Memcpy],
            faulters: vec![1, 2],
            sequential_bytes: 4 << 20,
            random_bytes: 4 << 20,
            rounds: 2,
        }
    }

    #[test]
    fn every_round_has_every_mode() {
        let mut told = 0;
        let findings = measure(&plan(), |done, of| {
            assert_eq!((done, of), (told, 24));
            told += 1;
            ControlFlow::Continue(())
        });
        let findings = findings.unwrap();
        assert!(findings.is_complete);
        assert_eq!((findings.cells.len(), told), (6, 24));
        for cell in findings.cells {
            match cell.skipped {
                Some(why) => println!("SKIPPED: {}: {why}", cell.mode),
                None => {
                    assert_eq!((cell.mb_per_s.len(), cell.mb_per_cpu_s.len()), (2, 2));
                    let random = if cell.mode == Mode::Memcpy { 0 } else { 2 };
                    assert_eq!((cell.p50_ns.len(), cell.p99_ns.len()), (random, random));
                }
            }
        }
    }

    #[test]
    fn who_interrupts_gets_what_was_found() {
        let mut left = 3;
        let findings = measure(&plan(), |_, _| {
            left -= 1;
            match left {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        assert!(!findings.unwrap().is_complete);
    }

    #[test]
    fn ratios_are_those_of_rounds() {
        let cell = |mode, mb_per_s: [f64; 3]| Cell {
            mode,
            faulters: 1,
            mb_per_s: mb_per_s.to_vec(),
            mb_per_cpu_s: Vec::new(),
            p50_ns: Vec::new(),
            p99_ns: Vec::new(),
            skipped: None,
        };
        let findings = Findings {
            cells: vec![
                cell(Mode::Inline, [10.0, 40.0, 90.0]),
                cell(Mode::Plain, [1.0, 2.0, 3.0]),
            ],
            is_complete: true,
        };
        let ratio = |one, other| findings.ratio(1, one, other, |cell| &cell.mb_per_s);
        assert_eq!(ratio(Mode::Inline, Mode::Plain), Some(20.0));
        assert_eq!(ratio(Mode::Inline, Mode::Floor), None);
        assert_eq!(median(&[1.0, 4.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}

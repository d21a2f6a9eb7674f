//! Chooses constants so that their rows agree.

use crate::Result;
use crate::page::{Constant, Page};
use crate::study::{RowSpec, Source, Study};

/// Good enough.
const NEAR: f64 = 0.003;

const STEPS: u32 = 6;

/// One constant after the other, in the order of the pages, twice: a later one may move an earlier one's row.
pub fn fit(study: &mut Study, pages: &[Page]) -> Result<()> {
    for _ in 0..2 {
        for page in pages {
            for constant in &page.constants {
                solve(study, page, constant)
                    .map_err(|error| format!("{}: {}: {error}", page.file, constant.name))?;
            }
        }
    }
    Ok(())
}

/// How far the row is from what it shall be, relative to it, with that value of the constant.
fn off(study: &mut Study, page: &Page, constant: &Constant, value: f64) -> Result<f64> {
    study.constants.insert(constant.name.clone(), value);
    let rows = study.rows(page)?;
    let at = rows
        .iter()
        .position(|row| row.name == constant.fitted_on)
        .ok_or_else(|| format!("no row is called `{}`", constant.fitted_on))?;
    let published = rows[at]
        .published
        .ok_or("its row has no published figure")?;
    let row = rows[at].clone();
    // With what it is computed from, numbered anew.
    let two = |a: usize, b: usize| vec![rows[a].clone(), rows[b].clone()];
    let (mut needed, source) = match row.source {
        Source::Ratio(a, b) => (two(a, b), Source::Ratio(0, 1)),
        Source::Gain(a, b) => (two(a, b), Source::Gain(0, 1)),
        run => (vec![], run),
    };
    needed.push(RowSpec { source, ..row });
    study.simulate(&needed)?;
    let simulated = study.values(&needed)[needed.len() - 1];
    Ok(simulated / published - 1.0)
}

/// By secants.
fn solve(study: &mut Study, page: &Page, constant: &Constant) -> Result<()> {
    let mut a = study
        .constants
        .get(&constant.name)
        .copied()
        .unwrap_or(constant.start[0]);
    let mut off_a = off(study, page, constant, a)?;
    let (mut best, mut least) = (a, off_a.abs());
    let mut b = if a == constant.start[1] {
        constant.start[0]
    } else {
        constant.start[1]
    };
    for _ in 0..STEPS {
        if least <= NEAR {
            break;
        }
        let off_b = off(study, page, constant, b)?;
        if off_b.abs() < least {
            (best, least) = (b, off_b.abs());
        }
        if off_a == off_b {
            break;
        }
        let next = (b - off_b * (b - a) / (off_b - off_a)).max(0.0);
        // Whole nanoseconds: what changes less changes nothing.
        (a, off_a, b) = (b, off_b, next.round());
        if a == b {
            break;
        }
    }
    eprintln!(
        "{} = {best} ({}: {:+.1} %)",
        constant.name,
        constant.fitted_on,
        least * 100.0
    );
    study.constants.insert(constant.name.clone(), best);
    Ok(())
}

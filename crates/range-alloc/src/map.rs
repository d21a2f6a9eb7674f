//! The arena as a map that one can read.

use core::fmt::{self, Display, Formatter};
use core::ops::Range;

use crate::arena::RangeAlloc;
use crate::iter::State;

/// Cells of the strip.
const CELLS: u64 = 64;

/// `{}` is a line of figures and a strip of 64 cells, each for as many addresses: ` ` is free, `.` up to a third
/// allocated, `+` up to two thirds, `#` more, `@` all of it. `{:#}` adds a line for each segment.
impl Display for RangeAlloc {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let stats = self.stats();
        let Range { start, end } = self.range;
        write!(
            out,
            "{start:#x}..{end:#x}: {} of {} units in {} allocations, largest gap {}",
            stats.busy_units, stats.units, stats.allocations, stats.largest_free
        )?;
        if stats.lazy_units != 0 {
            write!(out, ", {} freed lazily", stats.lazy_units)?;
        }
        writeln!(out)?;
        write!(out, "|")?;
        for share in self.strip() {
            let cell = match share {
                _ if share == 0.0 => ' ',
                _ if share <= 1.0 / 3.0 => '.',
                _ if share <= 2.0 / 3.0 => '+',
                _ if share < 1.0 => '#',
                _ => '@',
            };
            write!(out, "{cell}")?;
        }
        writeln!(out, "|")?;
        if out.alternate() {
            self.lines(out)?;
        }
        Ok(())
    }
}

impl RangeAlloc {
    fn lines(&self, out: &mut Formatter<'_>) -> fmt::Result {
        for segment in self {
            let Range { start, end } = segment.range;
            let state = match segment.state {
                State::Busy => "busy",
                State::Lazy => "lazy",
                State::Free => "free",
            };
            writeln!(out, "{start:#18x}..{end:#018x}  {state}  {}", end - start)?;
        }
        Ok(())
    }

    /// How much of each cell is not free.
    fn strip(&self) -> impl Iterator<Item = f64> + '_ {
        let Range { start, end } = self.range;
        let cells = CELLS.min(end - start);
        let at = move |cell: u64| {
            let units = u128::from(end - start) * u128::from(cell) / u128::from(cells);
            start + units as u64
        };
        (0..cells).map(move |cell| {
            let (lo, hi) = (at(cell), at(cell + 1));
            let segments = self
                .iter_from(lo)
                .take_while(|segment| segment.range.start < hi);
            let busy = segments.filter(|segment| segment.state != State::Free);
            let units: u64 = busy
                .map(|busy| busy.range.end.min(hi) - busy.range.start.max(lo))
                .sum();
            units as f64 / (hi - lo) as f64
        })
    }
}

impl fmt::Debug for RangeAlloc {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.debug_struct("RangeAlloc")
            .field("range", &self.range)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

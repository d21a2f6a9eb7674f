//! The layout as text, for other programs and for a second look.
//!
//! ```text
//! amdahl-range-alloc 1
//! arena 0x1000 0x100000 granule 0x1
//! busy 0x1000 0x30
//! lazy 0x2000 0x100
//! ```
//!
//! Starts and sizes, in the order of addresses; gaps are what is left. Blank lines and what
//! follows a `#` mean nothing.

use core::error::Error;
use core::fmt::{self, Display, Formatter};
use core::str::FromStr;

use crate::arena::RangeAlloc;
use crate::error::{AllocError, ArenaError};
use crate::iter::State;

const HEAD: &str = "amdahl-range-alloc 1";

/// An arena's layout as text, from [`RangeAlloc::layout`].
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a>(&'a RangeAlloc);

impl Display for Layout<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let arena = self.0;
        let (start, end) = (arena.range.start, arena.range.end);
        writeln!(out, "{HEAD}")?;
        writeln!(
            out,
            "arena {start:#x} {end:#x} granule {:#x}",
            arena.granule
        )?;
        for segment in arena {
            let word = match segment.state {
                State::Busy => "busy",
                State::Lazy => "lazy",
                State::Free => continue,
            };
            let size = segment.range.end - segment.range.start;
            writeln!(out, "{word} {:#x} {size:#x}", segment.range.start)?;
        }
        Ok(())
    }
}

/// Why a text is no layout.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutError {
    /// A line is not of this format, or a number is not one of 64 bits; counted from 1.
    Line(usize),
    /// There cannot be such an arena.
    Arena(ArenaError),
    /// A line's allocation is not possible.
    Block {
        /// Counted from 1.
        line: usize,
        /// Why.
        error: AllocError,
    },
    /// The text ends before the line of the arena.
    Short,
}

impl Display for LayoutError {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            LayoutError::Line(line) => write!(out, "line {line} is not of a layout"),
            LayoutError::Arena(error) => error.fmt(out),
            LayoutError::Block { line, error } => write!(out, "line {line}: {error}"),
            LayoutError::Short => out.write_str("the text ends before the line of the arena"),
        }
    }
}

impl Error for LayoutError {}

impl RangeAlloc {
    /// The layout as text, which [`RangeAlloc::from_str`] reads.
    pub fn layout(&self) -> Layout<'_> {
        Layout(self)
    }
}

fn number(word: Option<&str>) -> Option<u64> {
    let word = word?;
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

impl FromStr for RangeAlloc {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let lines = text
            .lines()
            .zip(1..)
            .map(|(line, number)| (line.split('#').next().unwrap_or(""), number));
        let mut lines = lines.filter(|(line, _)| !line.trim().is_empty());
        let (head, line) = lines.next().ok_or(LayoutError::Short)?;
        if head.trim() != HEAD {
            return Err(LayoutError::Line(line));
        }
        let (head, line) = lines.next().ok_or(LayoutError::Short)?;
        let mut arena = read_arena(head)
            .ok_or(LayoutError::Line(line))?
            .map_err(LayoutError::Arena)?;
        for (text, line) in lines {
            let (is_lazy, start, size) = read_block(text).ok_or(LayoutError::Line(line))?;
            let placed = arena.alloc_at(start, size);
            placed.map_err(|error| LayoutError::Block { line, error })?;
            if is_lazy {
                arena.free_lazy(start).expect("it was just allocated");
            }
        }
        Ok(arena)
    }
}

fn read_arena(line: &str) -> Option<Result<RangeAlloc, ArenaError>> {
    let mut words = line.split_whitespace();
    let is_arena = words.next()? == "arena";
    let (start, end) = (number(words.next())?, number(words.next())?);
    let is_granule = words.next()? == "granule";
    let granule = number(words.next())?;
    let is_all = is_arena && is_granule && words.next().is_none();
    is_all.then(|| RangeAlloc::with_granule(start..end, granule))
}

fn read_block(line: &str) -> Option<(bool, u64, u64)> {
    let mut words = line.split_whitespace();
    let is_lazy = match words.next()? {
        "busy" => false,
        "lazy" => true,
        _ => return None,
    };
    let (start, size) = (number(words.next())?, number(words.next())?);
    words.next().is_none().then_some((is_lazy, start, size))
}

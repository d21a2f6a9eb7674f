//! Bits of CPUs that many CPUs set and clear.

mod iter;
mod word;

use std::fmt;
use std::ops::Range;

use amdahl_topology::CpuSet;

pub use iter::{Iter, Within};
pub use word::{Dense, Sparse, Word};

use crate::memory::{self, OutOfMemory};
use crate::sync::Ordering;

/// Bits of CPUs of which only `k` are used in each cache line, so that CPUs that set and clear
/// their own bit hardly share lines, and a search still skips `k` CPUs at a load.
///
/// After the sparse mask of S. Sistare's patches "steal tasks to improve CPU utilization"
/// (linux-kernel, 2018), which uses eight bits a line.
pub type SparseMask = Mask<Sparse>;

/// Bits of CPUs packed 64 to a word: for masks that are read much and written rarely.
pub type CpuMask = Mask<Dense>;

/// A set of CPU numbers below a bound, as bits that any thread sets, clears and reads.
///
/// The bound is chosen at run time; the mask never grows. Two spacings: [`SparseMask`] and [`CpuMask`].
///
/// # Ordering
/// [`set`](Mask::set) and [`clear`](Mask::clear) are atomic read-modify-writes with acquire and
/// release ordering, whether or not they change the bit; everything that reads is an acquire. So
/// what a CPU wrote before it set its bit is seen by whoever finds the bit. A search is not a
/// snapshot: a bit that stays as it is during the search is reported as it is; one that
/// changes meanwhile may be reported either way.
pub struct Mask<W> {
    words: Box<[W]>,
    cpus: u32,
    /// Log2 of the bits used in a word.
    shift: u32,
}

/// Why a mask does not take what it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MaskError {
    /// A mask for no CPU.
    #[error("a mask needs at least one CPU")]
    NoCpus,
    /// Bits in a line that are not a power of two up to 64.
    #[error("{bits_per_line} bits in a line: must be 1, 2, 4, 8, 16, 32 or 64")]
    BitsPerLine {
        /// As given.
        bits_per_line: u32,
    },
    /// A CPU that the mask was not made for.
    #[error("CPU {cpu} in a mask of CPUs below {cpus}")]
    OutOfRange {
        /// As given.
        cpu: u32,
        /// The mask's bound.
        cpus: u32,
    },
    /// No memory for a mask of so many CPUs.
    #[error(
        "no memory for a mask of CPUs below {cpus}, {bytes} bytes: take the machine's number of CPUs, or more bits in a line"
    )]
    OutOfMemory {
        /// The bound that was asked for.
        cpus: u32,
        /// What it would have taken.
        bytes: u64,
    },
}

impl SparseMask {
    /// The bits a line of Sistare's patch: a scan touches an eighth of the lines that a byte
    /// for each CPU would, and at most eight CPUs write to one line.
    pub const BITS_PER_LINE: u32 = 8;

    /// An empty mask of the CPUs below `cpus`, with [`Self::BITS_PER_LINE`]; 8 bytes a CPU.
    ///
    /// # Errors
    /// [`MaskError::NoCpus`], [`MaskError::OutOfMemory`].
    pub fn new(cpus: u32) -> Result<Self, MaskError> {
        Self::with_bits_per_line(cpus, Self::BITS_PER_LINE)
    }

    /// An empty mask of the CPUs below `cpus` with `bits_per_line` used bits in each line of 64
    /// bytes. With few bits writers share no line; with many a search loads fewer lines.
    ///
    /// # Errors
    /// [`MaskError::NoCpus`]; [`MaskError::BitsPerLine`] unless it is a power of two up to 64; [`MaskError::OutOfMemory`].
    pub fn with_bits_per_line(cpus: u32, bits_per_line: u32) -> Result<Self, MaskError> {
        if !bits_per_line.is_power_of_two() || bits_per_line > u64::BITS {
            return Err(MaskError::BitsPerLine { bits_per_line });
        }
        Self::with_shift(cpus, bits_per_line.ilog2())
    }
}

impl CpuMask {
    /// An empty mask of the CPUs below `cpus`; a bit a CPU.
    ///
    /// # Errors
    /// [`MaskError::NoCpus`], [`MaskError::OutOfMemory`].
    pub fn new(cpus: u32) -> Result<Self, MaskError> {
        Self::with_shift(cpus, u64::BITS.ilog2())
    }
}

impl<W: Word> Mask<W> {
    fn with_shift(cpus: u32, shift: u32) -> Result<Self, MaskError> {
        if cpus == 0 {
            return Err(MaskError::NoCpus);
        }
        // A word more than that fits into 32 bits, for the bound does not lie beyond them.
        let words = ((cpus - 1) as usize >> shift) + 1;
        let no_memory = |OutOfMemory { bytes }| MaskError::OutOfMemory { cpus, bytes };
        Ok(Mask {
            words: memory::filled(words, W::default).map_err(no_memory)?,
            cpus,
            shift,
        })
    }

    /// The bound: CPUs are numbered below it.
    pub fn cpus(&self) -> u32 {
        self.cpus
    }

    /// How many CPUs have their bits in one word, and for a [`SparseMask`] in one line.
    pub fn bits_per_word(&self) -> u32 {
        1 << self.shift
    }

    fn position(&self, cpu: u32) -> Result<(&W, u64), MaskError> {
        if cpu >= self.cpus {
            return Err(MaskError::OutOfRange {
                cpu,
                cpus: self.cpus,
            });
        }
        let bit = cpu & (self.bits_per_word() - 1);
        Ok((&self.words[(cpu >> self.shift) as usize], 1 << bit))
    }

    /// Sets the bit of `cpu`; whether it was set before. Where most bits are set already and no
    /// ordering is wanted, [`test`](Self::test) first: it leaves the line shared.
    ///
    /// # Errors
    /// [`MaskError::OutOfRange`].
    #[inline]
    pub fn set(&self, cpu: u32) -> Result<bool, MaskError> {
        let (word, bit) = self.position(cpu)?;
        // Release: pairs with the Acquire of every read. Acquire: whoever sets a bit that another
        // is about to clear is either seen by it or sees what it did before.
        Ok(word.bits().fetch_or(bit, Ordering::AcqRel) & bit != 0)
    }

    /// Clears the bit of `cpu`; whether it was set before.
    ///
    /// # Errors
    /// [`MaskError::OutOfRange`].
    #[inline]
    pub fn clear(&self, cpu: u32) -> Result<bool, MaskError> {
        let (word, bit) = self.position(cpu)?;
        // As in `set`: of two threads of which one finds a bit set and the other clears it,
        // exactly one gets `true` from `clear`, and it sees what was written before the `set`.
        Ok(word.bits().fetch_and(!bit, Ordering::AcqRel) & bit != 0)
    }

    /// Whether the bit of `cpu` is set; not so for a CPU beyond the bound.
    #[inline]
    pub fn test(&self, cpu: u32) -> bool {
        self.position(cpu)
            .is_ok_and(|(word, bit)| word.bits().load(Ordering::Acquire) & bit != 0)
    }

    /// Clears all bits, a word at a time.
    pub fn clear_all(&self) {
        for word in &self.words {
            // A store would lose the edge to a `set` that it overwrites.
            word.bits().swap(0, Ordering::AcqRel);
        }
    }

    /// Whether no bit is set. O(words), which is O(CPUs / bits in a word).
    pub fn is_empty(&self) -> bool {
        self.words().all(|bits| bits == 0)
    }

    /// How many bits are set. O(words).
    pub fn count(&self) -> u32 {
        self.words().map(u64::count_ones).sum()
    }

    /// The lowest CPU whose bit is set. O(words).
    pub fn first(&self) -> Option<u32> {
        self.first_from(0)
    }

    /// The first CPU at or after `start` whose bit is set, and if there is none, the first
    /// of all. A `start` beyond the bound means 0. O(words), none of them loaded twice but the first.
    #[inline]
    pub fn first_from(&self, start: u32) -> Option<u32> {
        self.iter_from(start).next()
    }

    /// The CPUs whose bits are set, in rising order.
    pub fn iter(&self) -> Iter<'_, W> {
        self.iter_from(0)
    }

    /// The CPUs whose bits are set, from `start` up to the bound and then from 0 up to `start`.
    /// A `start` beyond the bound means 0. Each CPU is reported at most once.
    #[inline]
    pub fn iter_from(&self, start: u32) -> Iter<'_, W> {
        Iter::new(self, start)
    }

    /// The CPUs of `range` whose bits are set, in rising order; what is beyond the bound is not. Loads no word but
    /// those with bits of the range, each once: the search of one cache's CPUs among many.
    #[inline]
    pub fn iter_within(&self, range: Range<u32>) -> Within<'_, W> {
        Within::new(self, range)
    }

    /// Sets all bits that are set in `other`. Each word is changed at most once for each word of `other`, and not
    /// at all where there is nothing to set; `other` as a whole is not read at one instant.
    ///
    /// # Errors
    /// [`MaskError::OutOfRange`] if `other` has a bit set for a CPU at or beyond the bound. All bits below it are
    /// set nevertheless.
    pub fn union_with<V: Word>(&self, other: &Mask<V>) -> Result<(), MaskError> {
        let piece_bits = self.bits_per_word().min(other.bits_per_word());
        let piece = u64::MAX >> (u64::BITS - piece_bits);
        for (word, begin) in other.words().zip((0..).step_by(1 << other.shift)) {
            let mut rest = word;
            while rest != 0 {
                let skip = rest.trailing_zeros() & !(piece_bits - 1);
                let bits = rest >> skip & piece;
                rest &= !(piece << skip);
                self.set_bits(begin + skip, bits)?;
            }
        }
        Ok(())
    }

    /// Sets `bits`, of which bit 0 is the CPU `base`; all in one word of this mask, and not all zero.
    fn set_bits(&self, base: u32, bits: u64) -> Result<(), MaskError> {
        let fits = self.cpus.saturating_sub(base).min(u64::BITS);
        let inside = match fits {
            0 => 0,
            _ => bits & u64::MAX >> (u64::BITS - fits),
        };
        if inside != 0 {
            let (word, bit) = self.position(base)?;
            // As in `set`.
            word.bits().fetch_or(inside * bit, Ordering::AcqRel);
        }
        match bits & !inside {
            0 => Ok(()),
            outside => Err(MaskError::OutOfRange {
                cpu: base + outside.trailing_zeros(),
                cpus: self.cpus,
            }),
        }
    }

    /// The CPUs whose bits are set, as a set that one thread owns.
    pub fn to_cpu_set(&self) -> CpuSet {
        self.iter().collect()
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        // Acquire: pairs with the Release in `set`, `clear` and `set_bits`.
        self.words
            .iter()
            .map(|word| word.bits().load(Ordering::Acquire))
    }
}

impl<'a, W: Word> IntoIterator for &'a Mask<W> {
    type Item = u32;
    type IntoIter = Iter<'a, W>;

    fn into_iter(self) -> Iter<'a, W> {
        self.iter()
    }
}

/// The kernel's list format and the bound: `0-3,8 of 16`.
impl<W: Word> fmt::Debug for Mask<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.to_cpu_set(), self.cpus)
    }
}

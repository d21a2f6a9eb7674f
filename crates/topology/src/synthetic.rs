//! Builds machines that nobody here has, from a description.
//!
//! ```text
//! sum     = product { "+" product }
//! product = count level [ "@" capacity ] [ "x" ( product | "(" sum ")" ) ]
//! level   = "package" | "node" | "llc" | "core" | "thread"
//! ```

use std::fmt;
use std::iter::Peekable;
use std::str::{CharIndices, FromStr};

use crate::machine::Place;
use crate::{CpuSet, Topology};

/// A level of the machine, the outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Package, or socket.
    Package,
    /// NUMA node.
    Node,
    /// Last-level cache.
    Llc,
    /// Physical core.
    Core,
    /// Hardware thread.
    Thread,
}

/// Why a text does not describe a machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseTopologyError {
    /// Something else was expected.
    #[error("expected {expected} at `{found}` (byte {at} of the machine's description)")]
    Unexpected {
        /// What should be there.
        expected: &'static str,
        /// What is there, cut after 20 characters.
        found: String,
        /// Byte offset.
        at: usize,
    },
    /// A level within itself or within a smaller one.
    #[error(
        "a {inner} cannot be inside a {outer}: write package, node, llc, core, thread in this order"
    )]
    Order {
        /// What comes later.
        inner: Level,
        /// What comes before.
        outer: Level,
    },
    /// A sum of different levels.
    #[error("cannot add a {second} to a {first}: the parts of a sum must be of one level")]
    Sum {
        /// The first part.
        first: Level,
        /// One that differs.
        second: Level,
    },
    /// A count or capacity out of range.
    #[error("the number {number} of the machine's description is not within 1 to {max}")]
    Number {
        /// The digits, cut after 20 characters.
        number: String,
        /// The largest that is accepted.
        max: u32,
    },
    /// More CPUs than there can be.
    #[error("the description has more than {max} CPUs")]
    TooManyCpus {
        /// The most.
        max: u32,
    },
}

type Result<T> = std::result::Result<T, ParseTopologyError>;

const CPUS_MAX: u32 = CpuSet::MAX_PARSED + 1;

impl Topology {
    /// The machine that a text describes: `2 node x 2 llc x 8 core x 2 thread`.
    ///
    /// Levels stand in the order package (or socket), node, llc, core, thread;
    /// each may be left out and is 1 then, but for packages: without them each
    /// node is one. Plurals, capitals, `*` for `x`, and missing blanks are fine.
    /// `4 core@512` has half the capacity of the usual 1024. Unequal parts are
    /// added, in parentheses where they are inside something:
    /// `1 llc x (8 core x 2 thread + 8 core@600)`.
    ///
    /// CPUs are numbered as firmware usually does it: the first hardware threads
    /// of all cores, then the second ones. O(CPUs log CPUs).
    ///
    /// # Errors
    /// When the text has another form, or more than 65,536 CPUs.
    pub fn synthetic(description: &str) -> Result<Self> {
        let mut parser = Parser {
            chars: description.char_indices().peekable(),
            text: description,
        };
        let parts = parser.sum(None)?;
        parser.blanks();
        if parser.chars.peek().is_some() {
            return Err(parser.unexpected("`x`, `+` or the end"));
        }
        if total(&parts) > u64::from(CPUS_MAX) {
            return Err(ParseTopologyError::TooManyCpus { max: CPUS_MAX });
        }
        let mut builder = Builder::default();
        builder.build(&parts);
        let mut places = builder.places;
        places.sort_by_key(|&(thread, place)| (thread, place.core));
        let numbered = places
            .iter()
            .zip(0..)
            .map(|(&(_, place), id)| Place { id, ..place });
        Ok(Topology::from_places(numbered.collect()).expect("counts are at least 1"))
    }
}

impl FromStr for Topology {
    type Err = ParseTopologyError;

    fn from_str(description: &str) -> Result<Self> {
        Topology::synthetic(description)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Package => "package",
            Level::Node => "node",
            Level::Llc => "llc",
            Level::Core => "core",
            Level::Thread => "thread",
        })
    }
}

/// `count` times the same thing.
#[derive(Debug)]
struct Part {
    count: u32,
    level: Level,
    capacity: Option<u32>,
    inside: Vec<Part>,
}

fn total(parts: &[Part]) -> u64 {
    parts.iter().fold(0u64, |sum, part| {
        let inside = if part.inside.is_empty() {
            1
        } else {
            total(&part.inside)
        };
        sum.saturating_add(inside.saturating_mul(u64::from(part.count)))
    })
}

struct Parser<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
}

impl Parser<'_> {
    /// Recursion ends because each level must be smaller than the one around it.
    fn sum(&mut self, outer: Option<Level>) -> Result<Vec<Part>> {
        let mut parts = vec![self.product(outer)?];
        while self.accept(&['+']) {
            let part = self.product(outer)?;
            if part.level != parts[0].level {
                return Err(ParseTopologyError::Sum {
                    first: parts[0].level,
                    second: part.level,
                });
            }
            parts.push(part);
        }
        Ok(parts)
    }

    fn product(&mut self, outer: Option<Level>) -> Result<Part> {
        let count = self.number(CPUS_MAX, "a count")?;
        let level = self.level()?;
        if let Some(outer) = outer.filter(|&outer| level <= outer) {
            return Err(ParseTopologyError::Order {
                inner: level,
                outer,
            });
        }
        let capacity = match level == Level::Core && self.accept(&['@']) {
            true => Some(self.number(Topology::FULL_CAPACITY, "a capacity")?),
            false => None,
        };
        let inside = if !self.accept(&['x', 'X', '*', '×']) {
            Vec::new()
        } else if self.accept(&['(']) {
            let sum = self.sum(Some(level))?;
            if !self.accept(&[')']) {
                return Err(self.unexpected("`x`, `+` or `)`"));
            }
            sum
        } else {
            vec![self.product(Some(level))?]
        };
        Ok(Part {
            count,
            level,
            capacity,
            inside,
        })
    }

    fn level(&mut self) -> Result<Level> {
        self.blanks();
        let before = self.chars.clone();
        let word = self.word(char::is_alphabetic).to_lowercase();
        match word.as_str() {
            "package" | "packages" | "socket" | "sockets" => Ok(Level::Package),
            "node" | "nodes" => Ok(Level::Node),
            "llc" | "llcs" => Ok(Level::Llc),
            "core" | "cores" => Ok(Level::Core),
            "thread" | "threads" => Ok(Level::Thread),
            _ => {
                self.chars = before;
                Err(self.unexpected("package, node, llc, core or thread"))
            }
        }
    }

    fn number(&mut self, max: u32, expected: &'static str) -> Result<u32> {
        self.blanks();
        let digits = self.word(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return Err(self.unexpected(expected));
        }
        match digits.parse() {
            Ok(number) if (1..=max).contains(&number) => Ok(number),
            _ => Err(ParseTopologyError::Number {
                number: digits.chars().take(20).collect(),
                max,
            }),
        }
    }

    fn word(&mut self, belongs: fn(char) -> bool) -> String {
        std::iter::from_fn(|| self.chars.next_if(|&(_, c)| belongs(c)))
            .map(|(_, c)| c)
            .collect()
    }

    fn accept(&mut self, any_of: &[char]) -> bool {
        self.blanks();
        self.chars.next_if(|(_, c)| any_of.contains(c)).is_some()
    }

    fn blanks(&mut self) {
        while self.chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
    }

    fn unexpected(&mut self, expected: &'static str) -> ParseTopologyError {
        self.blanks();
        let at = self.chars.peek().map_or(self.text.len(), |&(at, _)| at);
        let found: String = self.text[at..].chars().take(20).collect();
        ParseTopologyError::Unexpected {
            expected,
            found: if found.is_empty() {
                "the end".into()
            } else {
                found
            },
            at,
        }
    }
}

/// Walks through the parts and remembers in which of each level it is.
#[derive(Default)]
struct Builder {
    packages: u32,
    nodes: u32,
    llcs: u32,
    cores: u32,
    threads: u32,
    /// The levels that are open, in their order: a new node ends the LLC, and so on.
    open: Vec<Level>,
    capacity: Option<u32>,
    /// Hardware thread index with the place, which has no number yet.
    places: Vec<(u32, Place)>,
}

impl Builder {
    fn build(&mut self, parts: &[Part]) {
        for part in parts {
            for _ in 0..part.count {
                self.enter(part.level);
                if part.level == Level::Core {
                    self.capacity = part.capacity;
                }
                match part.inside.is_empty() {
                    true => self.cpu(),
                    false => self.build(&part.inside),
                }
            }
        }
    }

    fn enter(&mut self, level: Level) {
        self.open.retain(|&open| open < level);
        // What was left out exists once; packages follow the nodes then.
        for between in [Level::Node, Level::Llc, Level::Core] {
            if between < level && !self.open.contains(&between) {
                self.begin(between);
            }
        }
        self.begin(level);
    }

    fn begin(&mut self, level: Level) {
        match level {
            Level::Package => self.packages += 1,
            Level::Node => {
                if !self.open.contains(&Level::Package) {
                    self.packages += 1;
                }
                self.nodes += 1;
            }
            Level::Llc => self.llcs += 1,
            Level::Core => {
                self.cores += 1;
                self.threads = 0;
                self.capacity = None;
            }
            Level::Thread => self.threads += 1,
        }
        self.open.push(level);
    }

    /// A CPU here.
    fn cpu(&mut self) {
        if !self.open.contains(&Level::Thread) {
            self.enter(Level::Thread);
        }
        let place = Place {
            id: 0,
            package: i64::from(self.packages),
            // Dense numbers of the kernel begin at 0.
            node: self.nodes - 1,
            llc: self.llcs,
            core: self.cores,
            capacity: self.capacity.unwrap_or(Topology::FULL_CAPACITY),
        };
        self.places.push((self.threads, place));
    }
}

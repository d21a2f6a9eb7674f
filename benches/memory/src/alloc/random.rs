//! The steady state: as many blocks live as wanted, one freed and one allocated in turn.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::rivals::{Allocator, Ask};

/// Xorshift: the same asks for everybody.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed << 32 | 0x9e37_79b9)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(limit)) >> 64) as u64
    }
}

/// What is asked for at random.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Sizes are 1 to this.
    pub size: u64,
    /// Alignments are 2^0 to 2^this.
    pub align: u64,
    /// One of so many asks is for a zone; 0: none.
    pub zoned: u64,
}

/// Sizes 1 to 64, alignments 1 to 256, a fifth in a zone.
pub const ISSUE: Mix = Mix {
    size: 64,
    align: 8,
    zoned: 5,
};

impl Mix {
    fn ask(&self, random: &mut Random, live: u64) -> Ask {
        let size = 1 + random.below(self.size);
        let align = 1 << random.below(self.align + 1);
        let zone = (self.zoned != 0 && random.below(self.zoned) == 0).then(|| {
            // A quarter of what is used, anywhere in it.
            let used = live * (self.size + 1) / 2;
            let from = random.below(used);
            from..from + used / 4 + 1024
        });
        Ask { size, align, zone }
    }
}

/// Far more than is ever used.
pub fn arena(live: u64) -> Range<u64> {
    0..live * 64 * 64 + (1 << 20)
}

/// An allocator with its live blocks.
pub struct Run<A> {
    pub allocator: A,
    pub live: Vec<(u64, u64)>,
    random: Random,
    pub wanted: u64,
    mix: Mix,
    /// Asks that could not be met.
    pub refused: u64,
    pub times: Times,
}

/// What operations took, in nanoseconds.
#[derive(Default)]
pub struct Times {
    pub alloc: Vec<f32>,
    pub free: Vec<f32>,
    /// One of each.
    pub turn: Vec<f32>,
}

impl Times {
    pub fn sort(&mut self) {
        for times in [&mut self.alloc, &mut self.free, &mut self.turn] {
            times.sort_unstable_by(f32::total_cmp);
        }
    }
}

impl<A: Allocator> Run<A> {
    pub fn new(allocator: A, wanted: u64, mix: &Mix) -> Self {
        Run {
            allocator,
            live: Vec::with_capacity(wanted as usize + 1),
            random: Random::new(7),
            wanted,
            mix: mix.clone(),
            refused: 0,
            times: Times::default(),
        }
    }

    /// With blocks that are allocated already.
    pub fn adopt(allocator: A, live: Vec<(u64, u64)>, mix: &Mix) -> Self {
        let wanted = live.len() as u64;
        Run {
            live,
            ..Run::new(allocator, wanted, mix)
        }
    }

    /// The layout, in the order of addresses.
    pub fn layout(&self) -> Vec<(u64, u64)> {
        let mut layout = self.live.clone();
        layout.sort_unstable();
        layout
    }

    fn alloc(&mut self, ask: &Ask) {
        let mut found = self.allocator.alloc(ask);
        if found.is_none() {
            self.refused += 1;
            let anywhere = Ask {
                align: 1,
                zone: None,
                ..ask.clone()
            };
            found = self.allocator.alloc(&anywhere);
        }
        self.live.extend(found.map(|start| (start, ask.size)));
    }

    /// Allocates until as many blocks are live as wanted, then lets holes come about.
    pub fn fill(&mut self, limit: Duration) {
        let begun = Instant::now();
        let late = |step: u64| step.is_multiple_of(4) && begun.elapsed() > limit;
        for step in 0..self.wanted {
            let ask = self.mix.ask(&mut self.random, self.wanted);
            self.alloc(&ask);
            if late(step) {
                break;
            }
        }
        // As many turns as let the holes come about, and no more than half a million.
        for step in 0..(2 * self.live.len() as u64).min(500_000) {
            self.turn();
            if late(step) {
                break;
            }
        }
    }

    fn victim(&mut self) -> (u64, u64) {
        let at = self.random.below(self.live.len() as u64) as usize;
        self.live.swap_remove(at)
    }

    fn turn(&mut self) {
        let (start, size) = self.victim();
        self.allocator.free(start, size);
        let ask = self.mix.ask(&mut self.random, self.wanted);
        self.alloc(&ask);
    }

    /// Times turns, as many as there is time for.
    pub fn measure(&mut self, clock: &Clock, turns: usize, limit: Duration) {
        let begun = Instant::now();
        for _ in 0..turns / 10 {
            self.turn();
            if begun.elapsed() > limit / 4 {
                break;
            }
        }
        let begun = Instant::now();
        for _ in 0..turns {
            let (start, size) = self.victim();
            let ask = self.mix.ask(&mut self.random, self.wanted);
            let from = clock.now();
            self.allocator.free(start, size);
            let between = clock.now();
            let found = self.allocator.alloc(&ask);
            let to = clock.now();
            self.times.free.push(clock.ns(from, between));
            self.times.alloc.push(clock.ns(between, to));
            self.times.turn.push(clock.ns(from, to));
            match found {
                Some(start) => self.live.push((start, ask.size)),
                None => self.alloc(&Ask {
                    align: 1,
                    zone: None,
                    ..ask
                }),
            }
            if begun.elapsed() > limit {
                break;
            }
        }
    }
}

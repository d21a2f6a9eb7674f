//! Parts of a recording whose adding up can wait.

use std::collections::VecDeque;

use amdahl_probe::bpf::Part;

/// Parts that are not added up yet: naming code takes CPU time that the watched program may want.
pub struct Later {
    parts: VecDeque<Part>,
    bytes: usize,
    /// So many may wait.
    bytes_max: usize,
}

impl Later {
    /// None yet.
    pub fn new(bytes_max: usize) -> Later {
        Later {
            parts: VecDeque::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Adds the newest one.
    pub fn push(&mut self, part: Part) {
        self.bytes += part.bytes();
        self.parts.push_back(part);
    }

    /// None may wait any longer.
    pub fn no_longer(&mut self) {
        self.bytes_max = 0;
    }

    /// The oldest one, if more wait than may.
    pub fn due(&mut self) -> Option<Part> {
        if self.bytes <= self.bytes_max && self.bytes_max > 0 {
            return None;
        }
        let part = self.parts.pop_front()?;
        self.bytes -= part.bytes();
        Some(part)
    }
}

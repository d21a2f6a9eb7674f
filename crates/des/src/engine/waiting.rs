//! Who waits for a lock, in order of arrival, and who of them still spins.

use std::collections::VecDeque;

/// One who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    /// Its place in the order.
    ticket: i64,
    pub id: u32,
    /// Whether it wants to share.
    pub is_shared: bool,
}

/// Who waits. Where some spin and some sleep the spinners have a line of their own, so that a release need not look at all
/// sleepers for one. It is short: who spins and may sleep has a CPU.
#[derive(Default)]
pub(crate) struct Waiting {
    line: VecDeque<Waiter>,
    /// In order as well.
    spinners: VecDeque<Waiter>,
    first: i64,
    last: i64,
}

impl Waiting {
    /// Who comes goes last, and first if it had its turn and somebody was faster.
    pub fn push(&mut self, id: u32, is_shared: bool, is_first: bool, is_spinner: bool) {
        let line = if is_spinner {
            &mut self.spinners
        } else {
            &mut self.line
        };
        let waiter = |ticket| Waiter {
            ticket,
            id,
            is_shared,
        };
        if is_first {
            self.first -= 1;
            line.push_front(waiter(self.first));
        } else {
            self.last += 1;
            line.push_back(waiter(self.last));
        }
    }

    /// All but those who were said to spin, in order.
    pub fn line(&self) -> &VecDeque<Waiter> {
        &self.line
    }

    /// Who was said to spin and has not given up, in order.
    pub fn spinners(&self) -> &VecDeque<Waiter> {
        &self.spinners
    }

    /// By its position in line.
    pub fn take(&mut self, at: usize) -> Waiter {
        self.line.remove(at).expect("it waits")
    }

    /// By its position among the spinners.
    pub fn take_spinner(&mut self, at: usize) -> Waiter {
        self.spinners.remove(at).expect("it spins")
    }

    /// The first of all. O(1).
    pub fn take_first(&mut self) -> Option<Waiter> {
        match (self.line.front(), self.spinners.front()) {
            (Some(sleeper), Some(spinner)) if spinner.ticket < sleeper.ticket => {
                self.spinners.pop_front()
            }
            (None, _) => self.spinners.pop_front(),
            _ => self.line.pop_front(),
        }
    }

    /// A spinner goes to sleep, in the place that it has by its arrival. O(spinners + log waiting), and a move of those
    /// who came after it.
    pub fn give_up(&mut self, id: u32) {
        let Some(at) = self.spinners.iter().position(|spinner| spinner.id == id) else {
            return;
        };
        let waiter = self.take_spinner(at);
        let before = self
            .line
            .partition_point(|other| other.ticket < waiter.ticket);
        self.line.insert(before, waiter);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against one list that is searched.
        #[test]
        fn the_order_is_that_of_one_list(steps in prop::collection::vec((0u32..6, 0u32..20), 1..200)) {
            let mut waiting = Waiting::default();
            let mut model: VecDeque<(u32, bool)> = VecDeque::new();
            for (id, (what, which)) in (0..).zip(steps) {
                match what {
                    0 => {
                        let first = waiting.take_first().map(|waiter| waiter.id);
                        prop_assert_eq!(first, model.pop_front().map(|(id, _)| id));
                    }
                    1 => {
                        let runs = |id: u32| id % 20 <= which;
                        let at = waiting.spinners().iter().position(|waiter| runs(waiter.id));
                        let taken = at.map(|at| waiting.take_spinner(at).id);
                        let at = model.iter().position(|&(id, spins)| spins && runs(id));
                        prop_assert_eq!(taken, at.and_then(|at| model.remove(at)).map(|(id, _)| id));
                    }
                    2 => {
                        let spinner = model.iter_mut().filter(|(_, spins)| *spins).nth(which as usize % 4);
                        if let Some((id, spins)) = spinner {
                            *spins = false;
                            waiting.give_up(*id);
                        }
                    }
                    3 => {
                        waiting.push(id, false, true, which % 2 == 0);
                        model.push_front((id, which % 2 == 0));
                    }
                    _ => {
                        waiting.push(id, false, false, which % 2 == 0);
                        model.push_back((id, which % 2 == 0));
                    }
                }
                let sleepers = model.iter().filter(|(_, spins)| !spins).map(|&(id, _)| id);
                let line = waiting.line().iter().map(|waiter| waiter.id);
                prop_assert_eq!(line.collect::<Vec<_>>(), sleepers.collect::<Vec<_>>());
            }
        }
    }
}

//! What waits for its turn: the urgent before the other, else in the order in which it came.

use std::collections::VecDeque;

/// Two lines.
pub struct Queue<T> {
    urgent: VecDeque<T>,
    other: VecDeque<T>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue {
            urgent: VecDeque::new(),
            other: VecDeque::new(),
        }
    }
}

impl<T> Queue<T> {
    fn line(&mut self, is_urgent: bool) -> &mut VecDeque<T> {
        match is_urgent {
            true => &mut self.urgent,
            false => &mut self.other,
        }
    }

    pub fn push(&mut self, is_urgent: bool, what: T) {
        self.line(is_urgent).push_back(what);
    }

    /// Before all of its line.
    pub fn push_front(&mut self, is_urgent: bool, what: T) {
        self.line(is_urgent).push_front(what);
    }

    pub fn pop(&mut self) -> Option<T> {
        self.pop_of(|_| true)
    }

    /// The next of the lines that are taken from; that is asked for with whether it is the urgent one.
    pub fn pop_of(&mut self, takes: impl Fn(bool) -> bool) -> Option<T> {
        let mut lines = [true, false].into_iter().filter(|&line| takes(line));
        lines.find_map(|line| self.line(line).pop_front())
    }

    /// Whether [`pop_of`](Queue::pop_of) would give something.
    pub fn has_of(&self, takes: impl Fn(bool) -> bool) -> bool {
        !self.urgent.is_empty() && takes(true) || !self.other.is_empty() && takes(false)
    }

    pub fn retain(&mut self, keeps: impl Fn(&T) -> bool) {
        self.urgent.retain(&keeps);
        self.other.retain(&keeps);
    }

    /// All, and nothing is left.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> + '_ {
        self.urgent.drain(..).chain(self.other.drain(..))
    }
}

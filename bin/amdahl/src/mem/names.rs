//! Names of processes: of those that live, and of those that are gone as long as a table tells of them.

use std::collections::{HashMap, HashSet};

/// Names that are held before those are looked for that nobody asks for any more.
const HELD_MAX: usize = 1 << 16;

/// Names by process.
#[derive(Default)]
pub struct Names {
    held: HashMap<u32, String>,
    /// Of these, processes whose first thread has ended, and strangers.
    gone: HashSet<u32>,
    /// How many are held before the next look.
    held_max: usize,
}

impl Names {
    /// What a process is called from now on.
    pub fn set(&mut self, pid: u32, name: String) {
        self.gone.remove(&pid);
        self.held.insert(pid, name);
    }

    /// Of a process that is not followed: it is asked for by the tables alone.
    pub fn set_of_stranger(&mut self, pid: u32, name: impl FnOnce() -> String) {
        self.held.entry(pid).or_insert_with(|| {
            self.gone.insert(pid);
            name()
        });
    }

    /// The process has ended.
    pub fn ended(&mut self, pid: u32) {
        if self.held.contains_key(&pid) {
            self.gone.insert(pid);
        }
    }

    /// What the process was called last.
    pub fn get(&self, pid: u32) -> Option<&str> {
        self.held.get(&pid).map(String::as_str)
    }

    /// Forgets those that are gone and not among `told`, if there are too many. Amortised constant time for each name.
    pub fn forget(&mut self, told: impl FnOnce() -> HashSet<u32>) {
        if self.held.len() <= self.held_max.max(HELD_MAX) {
            return;
        }
        let (told, gone) = (told(), &self.gone);
        self.held
            .retain(|pid, _| !gone.contains(pid) || told.contains(pid));
        let held = &self.held;
        self.gone.retain(|pid| held.contains_key(pid));
        self.held_max = 2 * self.held.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: u32 = 3 * HELD_MAX as u32;

    /// Every process that ever was kept its name.
    #[test]
    fn those_who_come_and_go_are_forgotten_and_no_others() {
        let mut names = Names::default();
        names.set(1, "lives".to_owned());
        for pid in 2..MANY {
            match pid % 2 {
                0 => names.set(pid, pid.to_string()),
                _ => names.set_of_stranger(pid, || pid.to_string()),
            }
            names.forget(|| HashSet::from([2, 3, pid]));
            assert_eq!(names.get(pid), Some(&*pid.to_string()));
            names.ended(pid);
            assert!(names.held.len() <= HELD_MAX + 1);
            assert!(names.gone.len() <= names.held.len());
        }
        assert_eq!(names.get(1), Some("lives"));
        assert_eq!((names.get(2), names.get(3)), (Some("2"), Some("3")));
        assert_eq!(names.get(4), None);
    }

    #[test]
    fn an_id_that_is_used_again_is_not_gone() {
        let mut names = Names::default();
        names.set(1, "first".to_owned());
        names.ended(1);
        names.set(1, "second".to_owned());
        names.set_of_stranger(1, || unreachable!("it has a name"));
        for pid in 2..MANY {
            names.set_of_stranger(pid, String::new);
            names.forget(HashSet::new);
        }
        assert_eq!(names.get(1), Some("second"));
    }

    /// A look must not come with every name where nothing can be forgotten.
    #[test]
    fn where_all_live_looks_are_rare() {
        let (mut names, mut looks) = (Names::default(), 0);
        for pid in 1..MANY {
            names.set(pid, String::new());
            names.forget(|| {
                looks += 1;
                HashSet::new()
            });
        }
        assert_eq!((names.held.len(), looks), (MANY as usize - 1, 2));
    }
}

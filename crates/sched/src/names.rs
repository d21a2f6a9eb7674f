//! Names of threads, each held once: many threads share one, and pairs of names are counted at each wake-up.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use rustc_hash::FxHashSet;

/// Names that are held before those are looked for that nobody uses any more.
const HELD_MAX: usize = 1 << 16;

/// A name of a [`Names`]. Two of one `Names` are equal exactly if their texts are, which their addresses tell.
#[derive(Clone, Debug)]
pub(crate) struct Name(Arc<str>);

impl Name {
    fn address(&self) -> *const u8 {
        self.0.as_ptr()
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        std::ptr::eq(self.address(), other.address())
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

/// All names in use, each once. An empty one has an address of its own as well.
#[derive(Debug, Default)]
pub(crate) struct Names {
    held: FxHashSet<Arc<str>>,
    /// How many are held before the next look.
    held_max: usize,
}

impl Names {
    /// The name of this text. O(length); amortised also where names come and go.
    pub fn get(&mut self, text: &str) -> Name {
        if let Some(held) = self.held.get(text) {
            return Name(Arc::clone(held));
        }
        if self.held.len() >= self.held_max.max(HELD_MAX) {
            self.held.retain(|held| Arc::strong_count(held) > 1);
            self.held_max = 2 * self.held.len();
        }
        let name: Arc<str> = Arc::from(text);
        self.held.insert(Arc::clone(&name));
        Name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_equal_if_their_texts_are_however_many_come_and_go() {
        let mut names = Names::default();
        let kept = names.get("kept");
        for i in 0..3 * HELD_MAX {
            let other = names.get(&i.to_string());
            assert!(other != kept && other == names.get(&i.to_string()));
        }
        assert!(names.get("kept") == kept && &*kept == "kept");
        assert!(names.held.len() <= HELD_MAX);
    }
}

//! Chains of waits: each different one is kept once, in bounded memory.

use rustc_hash::FxHashMap;

use crate::event::{Kind, LockId, Place};

/// One step of a chain of waits: what a holder waited for, and what the holder of that, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// Kind of lock.
    pub kind: Kind,
    /// Where its waiter waited.
    pub place: Place,
    /// The lock.
    pub lock: LockId,
    /// What its holder waited for.
    pub next: Option<LinkId>,
}

/// Number of a [`Link`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(u32);

/// Different chains and steps of them.
pub(crate) const LINKS: usize = 1 << 14;

/// All chains that anything tells of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chains {
    links: Vec<Link>,
    ids: FxHashMap<Link, LinkId>,
    /// Of `links`, those that nothing tells of.
    unused: Vec<LinkId>,
    /// Links that have no room before it is worth looking which may be forgotten.
    without_room: usize,
}

impl Chains {
    pub fn get(&self, id: LinkId) -> Option<&Link> {
        self.links.get(id.0 as usize)
    }

    /// All of them, and some that nothing tells of any more.
    pub fn links(&self) -> impl ExactSizeIterator<Item = &Link> {
        self.links.iter()
    }

    /// The chain that begins with `link`; none where there is no room for a new one, not even without those of which nothing is `told`.
    pub fn intern<I: Iterator<Item = LinkId>>(
        &mut self,
        link: Link,
        told: impl FnOnce() -> I,
    ) -> Option<LinkId> {
        if let Some(&id) = self.ids.get(&link) {
            return Some(id);
        }
        let id = match self.unused.pop() {
            Some(id) => id,
            None if self.links.len() < LINKS => {
                self.links.push(link);
                LinkId(self.links.len() as u32 - 1)
            }
            None => {
                self.forget(link.next, told);
                self.unused.pop()?
            }
        };
        self.links[id.0 as usize] = link;
        self.ids.insert(link, id);
        Some(id)
    }

    /// Makes room for steps of other chains: those that are not `told`. `new` is the chain that is being made, of which nothing
    /// tells yet.
    fn forget<I: Iterator<Item = LinkId>>(
        &mut self,
        new: Option<LinkId>,
        told: impl FnOnce() -> I,
    ) {
        if self.without_room > 0 {
            self.without_room -= 1;
            return;
        }
        let mut is_told = vec![false; self.links.len()];
        for id in told().chain(new) {
            let mut at = Some(id);
            while let Some(id) = at
                && !std::mem::replace(&mut is_told[id.0 as usize], true)
            {
                at = self.links[id.0 as usize].next;
            }
        }
        self.ids.retain(|_, id| is_told[id.0 as usize]);
        let ids = (0..self.links.len() as u32).map(LinkId);
        self.unused = ids.filter(|id| !is_told[id.0 as usize]).collect();
        if self.unused.len() < LINKS / 8 {
            self.without_room = LINKS / 8;
        }
    }

    #[cfg(test)]
    pub fn id_of(&self, link: &Link) -> LinkId {
        self.ids[link]
    }
}

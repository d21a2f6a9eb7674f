//! Wake-up chains: who was woken by whom, who had been woken by whom.
//!
//! A chain begins with an interrupt, or with a thread that was not seen to be woken, and ends where its last
//! thread goes to sleep. Two threads that wake each other for ever are one chain, which is cut after 64 links.

use std::sync::Arc;

use crate::event::{Ns, Tid, Waker};
use crate::names::Name;

/// A chain is cut after so many links.
const LINKS_MAX: u32 = 64;
/// Chains that are kept.
const KEPT: usize = 16;

/// One thread's part in a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The thread.
    pub tid: Tid,
    /// Its name.
    pub name: Box<str>,
    /// When it was woken.
    pub woken_at: Ns,
    /// For how long it waited to run.
    pub waited_ns: Ns,
    /// From then until it woke the next one, or slept.
    pub active_ns: Ns,
}

/// A sequence of threads of which each woke the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// What woke the first one.
    pub began_by: Option<Waker>,
    /// It goes further back than the links show.
    pub is_cut: bool,
    /// From the first to the last.
    pub links: Vec<Link>,
}

impl Chain {
    /// From the first wake-up until the last thread slept.
    pub fn ns(&self) -> Ns {
        match (self.links.first(), self.links.last()) {
            (Some(first), Some(last)) => {
                (last.woken_at + last.waited_ns + last.active_ns).saturating_sub(first.woken_at)
            }
            _ => 0,
        }
    }
}

/// A link that has woken another.
#[derive(Debug)]
struct Step {
    tid: Tid,
    name: Name,
    woken_at: Ns,
    ran_at: Ns,
    woke_at: Ns,
    before: Option<Arc<Step>>,
}

/// What a thread has done since it was last woken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Episode {
    woken_at: Ns,
    ran_at: Option<Ns>,
    /// Names the chain: equal for all that come of one beginning.
    root: u64,
    root_at: Ns,
    began_by: Option<Waker>,
    depth: u32,
    is_cut: bool,
    before: Option<Arc<Step>>,
}

impl Episode {
    /// The thread runs for the first time since it was woken.
    pub fn run(&mut self, now: Ns) {
        self.ran_at.get_or_insert(now);
    }
}

/// The end of a chain that is kept. Its links are written out only when somebody asks: a chain that grows
/// is kept anew with each link.
#[derive(Debug)]
struct Kept {
    ns: Ns,
    tid: Tid,
    name: Name,
    ran_at: Ns,
    ended_at: Ns,
    episode: Episode,
}

impl Kept {
    fn chain(&self) -> Chain {
        let mut links = vec![Link {
            tid: self.tid,
            name: (&*self.name).into(),
            woken_at: self.episode.woken_at,
            waited_ns: self.ran_at.saturating_sub(self.episode.woken_at),
            active_ns: self.ended_at.saturating_sub(self.ran_at),
        }];
        let mut before = self.episode.before.as_deref();
        while let Some(step) = before {
            links.push(Link {
                tid: step.tid,
                name: (&*step.name).into(),
                woken_at: step.woken_at,
                waited_ns: step.ran_at.saturating_sub(step.woken_at),
                active_ns: step.woke_at.saturating_sub(step.ran_at),
            });
            before = step.before.as_deref();
        }
        links.reverse();
        Chain {
            began_by: self.episode.began_by,
            is_cut: self.episode.is_cut,
            links,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Chains {
    roots: u64,
    /// The shortest first.
    kept: Vec<Kept>,
}

impl Chains {
    /// A thread is woken at `now`; `by` is the waker, its name and its own episode.
    pub fn woken(&mut self, now: Ns, waker: Waker, by: Option<(Tid, &Name, &Episode)>) -> Episode {
        let fresh = |chains: &mut Chains| {
            chains.roots += 1;
            Episode {
                woken_at: now,
                ran_at: None,
                root: chains.roots,
                root_at: now,
                began_by: Some(waker),
                depth: 0,
                is_cut: false,
                before: None,
            }
        };
        let Some((tid, name, episode)) = by else {
            return fresh(self);
        };
        // A thread that has not been seen to be woken begins a chain that nothing is known of.
        let Some(ran_at) = episode.ran_at.filter(|_| episode.root != 0) else {
            return fresh(self);
        };
        if episode.depth + 1 >= LINKS_MAX {
            let mut new = fresh(self);
            new.is_cut = true;
            return new;
        }
        let step = Step {
            tid,
            name: name.clone(),
            woken_at: episode.woken_at,
            ran_at,
            woke_at: now,
            before: episode.before.clone(),
        };
        Episode {
            woken_at: now,
            ran_at: None,
            root: episode.root,
            root_at: episode.root_at,
            began_by: episode.began_by,
            depth: episode.depth + 1,
            is_cut: episode.is_cut,
            before: Some(Arc::new(step)),
        }
    }

    /// The thread of this episode sleeps, or is gone.
    pub fn ended(&mut self, now: Ns, tid: Tid, name: &Name, episode: &Episode) {
        let (Some(ran_at), Some(_)) = (episode.ran_at, &episode.before) else {
            return;
        };
        let ns = now.saturating_sub(episode.root_at);
        let same = |kept: &Kept| kept.episode.root == episode.root;
        match self.kept.iter().position(same) {
            Some(i) if self.kept[i].ns >= ns => return,
            Some(i) => drop(self.kept.remove(i)),
            None if self.kept.len() < KEPT => {}
            None if self.kept[0].ns >= ns => return,
            None => drop(self.kept.remove(0)),
        }
        let kept = Kept {
            ns,
            tid,
            name: name.clone(),
            ran_at,
            ended_at: now,
            episode: episode.clone(),
        };
        let at = self.kept.partition_point(|kept| kept.ns < ns);
        self.kept.insert(at, kept);
    }

    /// The longest chains, longest first.
    pub fn longest(&self) -> Vec<Chain> {
        self.kept.iter().rev().map(Kept::chain).collect()
    }
}

//! Names of a table, which has a number for each of them.

use std::hash::Hash;

use amdahl_speedup::event::Tid;
use rustc_hash::FxHashMap;

use crate::event::{Kind, LockId, Place};
use crate::site::{Names, Site, What};
use crate::table::ThreadName;

/// Of a name in [`Named`].
pub(crate) type Id = u32;

/// Names that are equal, once each.
pub(crate) struct Distinct<T> {
    ids: FxHashMap<T, Id>,
    all: Vec<T>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Distinct {
            ids: FxHashMap::default(),
            all: Vec::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Distinct<T> {
    pub fn id(&mut self, name: T) -> Id {
        let all = &mut self.all;
        *self.ids.entry(name).or_insert_with_key(|name| {
            all.push(name.clone());
            (all.len() - 1) as Id
        })
    }

    pub fn name(&self, id: Id) -> &T {
        &self.all[id as usize]
    }
}

/// What a table is made with: names are made once for all cells of a place and compared by number.
pub(crate) struct Named<'a> {
    pub naming: Names<'a>,
    pub names: &'a dyn Fn(Tid) -> ThreadName,
    pub sites: Distinct<Site>,
    pub whats: Distinct<What>,
    by_place: FxHashMap<(Kind, Place), AtPlace>,
    own_by_place: FxHashMap<Place, Id>,
    by_lock: FxHashMap<(Kind, Place, LockId), Id>,
}

/// Names of a place, for waits of one kind.
#[derive(Clone, Copy)]
struct AtPlace {
    site: Id,
    /// If it is the same for all locks.
    what: Option<Id>,
}

impl<'a> Named<'a> {
    pub fn new(naming: Names<'a>, names: &'a dyn Fn(Tid) -> ThreadName) -> Named<'a> {
        Named {
            naming,
            names,
            sites: Distinct::default(),
            whats: Distinct::default(),
            by_place: FxHashMap::default(),
            own_by_place: FxHashMap::default(),
            by_lock: FxHashMap::default(),
        }
    }

    fn at(&mut self, kind: Kind, place: Place) -> AtPlace {
        let (naming, sites, whats) = (self.naming, &mut self.sites, &mut self.whats);
        let at = self.by_place.entry((kind, place));
        *at.or_insert_with(|| AtPlace {
            site: sites.id(naming.site(kind, place)),
            what: naming.what_of_all(kind, place).map(|what| whats.id(what)),
        })
    }

    pub fn what(&mut self, kind: Kind, place: Place, lock: LockId) -> Id {
        if let Some(what) = self.at(kind, place).what {
            return what;
        }
        let (naming, whats) = (self.naming, &mut self.whats);
        let at = self.by_lock.entry((kind, place, lock));
        *at.or_insert_with(|| whats.id(naming.what(kind, place, lock)))
    }

    pub fn site(&mut self, kind: Kind, place: Place) -> Id {
        self.at(kind, place).site
    }

    pub fn own_site(&mut self, place: Place) -> Id {
        let (naming, sites) = (self.naming, &mut self.sites);
        let at = self.own_by_place.entry(place);
        *at.or_insert_with(|| sites.id(naming.own_site(place)))
    }
}

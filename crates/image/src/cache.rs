//! Unpacked clusters, shared by threads and images, within a bound.
//!
//! A set has a few ways. Its lock guards which cluster each way is for and is held for nanoseconds; the content of a way has
//! a lock of its own, held while it is read from the file, so that threads that want one cluster unpack it once. Which cluster
//! a content is, is written beside the content: who finds another one there (the way was given away meanwhile) reads its own.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::Result;
use crate::layer::Layer;

const WAYS: usize = 4;

/// A cluster of a layer.
type Key = (u64, u64);

const NOTHING: Key = (u64::MAX, u64::MAX);

struct Content {
    key: Key,
    bytes: Vec<u8>,
}

struct Tags {
    keys: [Key; WAYS],
    used: [u32; WAYS],
    clock: u32,
}

struct Set {
    tags: Mutex<Tags>,
    ways: [RwLock<Content>; WAYS],
}

/// Unpacked clusters, within a bound of memory. Clones of the `Arc` around it may serve any number of images.
pub struct ClusterCache {
    sets: Box<[Set]>,
    reads: AtomicU64,
}

impl ClusterCache {
    /// Of about `bytes` of clusters of `cluster_bytes`, at least four of them. Memory is taken as it is used.
    pub fn new(bytes: usize, cluster_bytes: usize) -> ClusterCache {
        let sets = (bytes / cluster_bytes.max(1) / WAYS).max(1);
        let content = || {
            RwLock::new(Content {
                key: NOTHING,
                bytes: Vec::new(),
            })
        };
        let set = || Set {
            tags: Mutex::new(Tags {
                keys: [NOTHING; WAYS],
                used: [0; WAYS],
                clock: 0,
            }),
            ways: std::array::from_fn(|_| content()),
        };
        ClusterCache {
            sets: (0..sets).map(|_| set()).collect(),
            reads: AtomicU64::new(0),
        }
    }

    /// Clusters that were read and unpacked because they were not here.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    fn set(&self, key: Key) -> &Set {
        // Neighbours lie in different sets, layers do not lie on each other.
        let spread = key
            .1
            .wrapping_add(key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        &self.sets[(spread % self.sets.len() as u64) as usize]
    }

    /// The way that is for `key` from now on.
    fn way(set: &Set, key: Key) -> usize {
        let mut tags = set.tags.lock();
        tags.clock = tags.clock.wrapping_add(1);
        let clock = tags.clock;
        let found = tags.keys.iter().position(|have| *have == key);
        let way = found.unwrap_or_else(|| {
            // The one that was not used for longest, in a clock that wraps.
            let age = |way: &usize| clock.wrapping_sub(tags.used[*way]);
            (0..WAYS).max_by_key(age).unwrap_or(0)
        });
        tags.keys[way] = key;
        tags.used[way] = clock;
        way
    }

    /// Is somewhere near: nothing is promised, and nothing is read.
    pub(crate) fn has(&self, layer: &Layer, cluster: u64) -> bool {
        let key = (layer.key, cluster);
        self.set(key).tags.lock().keys.contains(&key)
    }

    /// Copies a part of a cluster, from byte `from` on.
    pub(crate) fn copy(
        &self,
        layer: &Layer,
        cluster: u64,
        from: usize,
        to: &mut [u8],
    ) -> Result<()> {
        let key = (layer.key, cluster);
        let set = self.set(key);
        let way = &set.ways[ClusterCache::way(set, key)];
        {
            let content = way.read();
            if content.key == key {
                to.copy_from_slice(&content.bytes[from..from + to.len()]);

                return Ok(());
            }
        }
        let mut content = way.write();
        if content.key != key {
            // Whatever goes wrong, what is there now is no cluster.
            content.key = NOTHING;
            let plain_bytes = layer.header.plain_bytes(cluster);
            content.bytes.resize(plain_bytes, 0);
            layer.read_cluster(cluster, &mut content.bytes)?;
            content.key = key;
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
        to.copy_from_slice(&content.bytes[from..from + to.len()]);
        Ok(())
    }
}

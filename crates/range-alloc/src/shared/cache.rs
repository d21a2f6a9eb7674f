//! What a slot with magazines does otherwise.
//!
//! A block in a magazine is free, but stands in the slot's tree as if it were allocated. So whoever looks at the tree for another reason
//! than to allocate a small block puts back into the tree's gaps what is in his way, and then finds what there would be without
//! magazines.

use core::ops::Range;

use super::content::Content;
use super::known::Known;
use super::magazine::Magazines;
use super::slot::Slot;
use crate::error::{AllocError, FreeError};
use crate::request::{Policy, Request};
use crate::tree::edit::{Emptied, Freed};

pub(super) struct Cache {
    pub magazines: Magazines,
    pub known: Known,
    /// Of blocks that are not in magazines.
    pub content: Content,
}

impl Cache {
    pub(super) fn bytes(&self) -> usize {
        self.magazines.bytes() + self.known.bytes() + self.content.bytes()
    }
}

impl Slot {
    /// Allocates from a magazine, else from the tree; gives up all that is in magazines before it refuses.
    #[inline]
    pub(super) fn alloc_cached(&mut self, request: &Request) -> Result<u64, AllocError> {
        let cache = self.cache.as_mut().expect("the caller has looked");
        debug_assert_eq!(
            request.policy,
            Policy::LowestAddress,
            "slots serve no other"
        );
        let wanted = self.arena.wanted(request)?;
        if let Some(start) = cache.magazines.take(&wanted) {
            self.spare -= cache.content.add(&(start..start + wanted.size));
            cache.known.note(start, wanted.size);
            return Ok(start);
        }
        let mut filled = self.arena.fill(request);
        if let Err(AllocError::NoSpace { .. }) = filled
            && self.put_back()
        {
            filled = self.arena.fill(request);
        }
        let filled = filled?;
        self.has_filled(&filled);
        let Range { start, end } = filled.block;
        let cache = self.cache.as_mut().expect("as before");
        if end - start <= cache.magazines.largest() {
            cache.known.note(start, end - start);
        }
        Ok(start)
    }

    /// Frees into a magazine, or into the tree what is large.
    #[inline]
    pub(super) fn free_cached(
        &mut self,
        start: u64,
        size: Option<u64>,
    ) -> Result<(u64, Option<Range<u64>>), FreeError> {
        let cache = self.cache.as_mut().expect("the caller has looked");
        let known = cache.known.take(start);
        let known = known.filter(|known| size.is_none_or(|size| size == *known));
        let block = if let Some(known) = known {
            start..start + known
        } else {
            let small = cache.magazines.largest();
            match self.arena.empty_large(start, size, small) {
                Ok(Freed::Emptied(Emptied { block, .. })) => {
                    return Ok((block.end - block.start, self.has_lost(&block)));
                }
                Ok(Freed::Left(block)) if !cache.magazines.has(&block) => block,
                // What the error names may be in a magazine.
                _ => {
                    self.put_back_at(start);
                    let emptied = self.arena.empty(start, size)?;
                    unreachable!("{:x?} was to be left or freed before", emptied.block);
                }
            }
        };
        if let Some(other) = cache.magazines.put(&block) {
            self.arena.free(other).expect("it was in a magazine");
        }
        Ok((block.end - block.start, self.has_lost(&block)))
    }

    pub(super) fn free_part_cached(
        &mut self,
        start: u64,
        size: u64,
    ) -> Result<Option<Range<u64>>, FreeError> {
        self.put_back_at(start);
        let whole = self.arena.lookup(start).map(|found| found.range);
        let Emptied { block: part, .. } = self.arena.empty_part(start, size)?;
        let whole = whole.expect("a part of it was freed");
        let cache = self.cache.as_mut().expect("the caller has looked");
        cache.known.take(whole.start);
        let content = &mut cache.content;
        self.spare += content.remove(&whole);
        for left in [whole.start..part.start, part.end..whole.end] {
            if !left.is_empty() {
                self.spare -= content.add(&left);
            }
        }
        let bare = content.bare(&whole);
        Ok((self.spare > 1 && !bare.is_empty()).then_some(bare))
    }

    /// A block is not allocated any more, and not freed lazily; answers with spans that there may be no use for.
    #[inline]
    pub(super) fn has_lost(&mut self, block: &Range<u64>) -> Option<Range<u64>> {
        let content = &mut self.cache.as_mut().expect("the caller has looked").content;
        let bare = content.remove(block);
        self.spare += bare;
        (bare > 0 && self.spare > 1).then(|| content.bare(block))
    }

    /// Whether a block that stands in the tree is in a magazine.
    pub(super) fn is_cached(&self, block: &Range<u64>) -> bool {
        let cache = self.cache.as_ref();
        cache.is_some_and(|cache| cache.magazines.has(block))
    }

    /// Puts all that is in magazines back; tells whether there was something.
    pub(super) fn put_back(&mut self) -> bool {
        self.put_back_in(&(0..u64::MAX))
    }

    /// The same of what touches a range.
    pub(super) fn put_back_in(&mut self, range: &Range<u64>) -> bool {
        let mut any = false;
        while let Some(start) = self
            .cache
            .as_mut()
            .and_then(|cache| cache.magazines.take_any(range))
        {
            self.arena.free(start).expect("it was in a magazine");
            any = true;
        }
        any
    }

    /// The same of the block that holds an address.
    pub(super) fn put_back_at(&mut self, address: u64) {
        if let Some(cache) = &mut self.cache
            && cache.magazines.units() > 0
            && let Some(found) = self.arena.lookup(address)
            && cache.magazines.take_out(&found.range)
        {
            self.arena
                .free(found.range.start)
                .expect("it was in a magazine");
        }
    }
}

//! Whole huge pages into their places: filled in staging and moved, or filled in the file of shared memory and mapped.

use std::ops::Range;
use std::slice;
use std::time::Duration;

use rustix::io::Errno;

use crate::fetch::{BLOCK_PAGES, STAGING_WAIT};
use crate::inner::{Inner, Shard, Trouble};
use crate::placing::put_content;
use crate::plan::in_flight::Flight;
use crate::staging::Block;
use crate::sys::clock::now_ns;
use crate::sys::uffd::Placed;
use crate::zeros::is_zero;
use crate::{BLOCK, PAGE};

impl Inner {
    /// A free block of staging, waiting at most so long. The time is not the source's.
    pub fn block(
        &self,
        flight: &mut Flight<'_>,
        at_most: Duration,
    ) -> Result<Option<Block<'_>>, Trouble> {
        if let Some(block) = self.staging.try_take() {
            return Ok(Some(block));
        }
        let since_ns = now_ns();
        let block = self.staging.take(at_most);
        if block.is_some() && !flight.put_off(now_ns().saturating_sub(since_ns)) {
            return Err(Trouble::GivenUp);
        }
        Ok(block)
    }

    /// Puts a block that is missing as a whole, and was claimed, into place as a huge page, where its region takes those; how many pages, or `None` if that is not
    /// possible now.
    pub fn whole_block(
        &self,
        shard: &Shard,
        flight: &mut Flight<'_>,
        pages: Range<usize>,
        offset: u64,
    ) -> Result<Option<usize>, Trouble> {
        let region = self.space.region(pages.start).1;
        if region.movable {
            return self.move_block(shard, flight, pages, offset);
        }
        let which = self
            .besides
            .binary_search_by_key(&region.start, |(start, _)| *start);
        let Some((start, memory)) = which.ok().and_then(|which| self.besides.get(which)) else {
            return Ok(None);
        };
        // Not read into the file at once: a fetch that was given up may still be read into.
        let mut staged = None;
        let from = match self.ask(|source| source.in_memory(offset, BLOCK))? {
            Some(from) => from,
            None => match self.staged(flight, offset)? {
                Some(block) => staged.insert(block).start().cast_const(),
                None => return Ok(None),
            },
        };
        self.place_block(shard, flight, pages, from, |to| {
            // SAFETY: it is all the fetch's own, which has been settled; the content is as long.
            let is_put = unsafe { memory.put_block(to.start - start, from) };
            is_put.then(|| shard.uffd.map(to))
        })
    }

    fn move_block(
        &self,
        shard: &Shard,
        flight: &mut Flight<'_>,
        pages: Range<usize>,
        offset: u64,
    ) -> Result<Option<usize>, Trouble> {
        let Some(block) = self.staged(flight, offset)? else {
            return Ok(None);
        };
        self.place_block(shard, flight, pages, block.start(), |to| {
            // SAFETY: the block is ours alone, of private anonymous memory.
            let moved = unsafe { shard.uffd.move_pages(to, block.start()) };
            (moved.bytes > 0 || moved.error == Some(Errno::EXIST)).then_some(moved)
        })
    }

    /// The content of a block in staging; `None` if there is no room there now.
    fn staged(&self, flight: &mut Flight<'_>, offset: u64) -> Result<Option<Block<'_>>, Trouble> {
        let Some(mut block) = self.block(flight, STAGING_WAIT)? else {
            return Ok(None);
        };
        self.read(flight, offset, block.bytes(BLOCK))?;
        Ok(Some(block))
    }

    /// Puts the content of a block, from `from` on, into place by `put_whole`; in small pages what that does not take, what others have taken a part of, and what is mostly
    /// zeros.
    fn place_block(
        &self,
        shard: &Shard,
        flight: &mut Flight<'_>,
        pages: Range<usize>,
        from: *const u8,
        mut put_whole: impl FnMut(Range<usize>) -> Option<Placed>,
    ) -> Result<Option<usize>, Trouble> {
        // SAFETY: by both callers: the source promises as many bytes, which nobody changes; or it is a block of staging that is ours alone.
        let content = |at: usize, len: usize| unsafe { slice::from_raw_parts(from.add(at), len) };
        let zeros = content(0, BLOCK).chunks(PAGE).filter(|page| is_zero(page));
        let is_mostly_zero = zeros.count() * 2 >= BLOCK_PAGES;
        let mut zeros = 0;
        let placed = self.place(shard, flight, pages, 1, |to, at| {
            if to.len() == BLOCK
                && !is_mostly_zero
                && let Some(placed) = put_whole(to.clone())
            {
                if placed.bytes == BLOCK {
                    self.tally.moved_blocks.add(1);
                }
                return placed;
            }
            let content = content(at, to.len());
            put_content(shard, to, content, 1, &mut zeros)
        })?;
        self.count_content(flight, placed.pages, zeros);
        Ok(Some(placed.on))
    }
}

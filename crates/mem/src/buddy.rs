//! Free memory by size of piece: `/proc/buddyinfo` and `/proc/pagetypeinfo`.
//!
//! The kernel hands out free memory in blocks of 2^order pages. A huge page of 2 MiB is a block of
//! order 9. There may be plenty of free memory and no such block: then it is fragmented.

use crate::text::{decimal, lines, words};

/// Orders that any kernel could have.
const ORDERS_MAX: usize = 32;

/// Free blocks of a zone of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// Node.
    pub node: u32,
    /// `DMA32`, `Normal`, `Movable`, ...
    pub name: String,
    /// Free blocks by order.
    pub free: Vec<u64>,
}

impl Zone {
    /// Free small pages.
    pub fn pages(&self) -> u64 {
        self.pages_from(0)
    }

    /// Free small pages in blocks of `order` or larger.
    pub fn pages_from(&self, order: usize) -> u64 {
        let blocks = self.free.iter().enumerate().skip(order);
        blocks.fold(0, |sum, (order, &blocks)| {
            let pages = blocks.saturating_mul(1_u64.checked_shl(order as u32).unwrap_or(u64::MAX));
            u64::saturating_add(sum, pages)
        })
    }

    /// Blocks of `order` that could be handed out without moving anything.
    pub fn blocks(&self, order: usize) -> u64 {
        self.pages_from(order) >> order.min(63)
    }

    /// Share of the free memory that is in pieces too small for `order`: the kernel's "unusable
    /// free space index", 0 to 1.
    pub fn unusable(&self, order: usize) -> f64 {
        match self.pages() {
            0 => 0.0,
            pages => (pages - self.pages_from(order)) as f64 / pages as f64,
        }
    }

    /// Why a request of `order` fails: near 0 for want of memory, near 1 because it is in pieces.
    /// `None` if it would not fail. The kernel's "fragmentation index"
    /// (`__fragmentation_index` in mm/vmstat.c), by which it decides whether moving pages helps.
    pub fn fragmentation(&self, order: usize) -> Option<f64> {
        if self.pages_from(order) > 0 {
            return None;
        }
        let blocks = self
            .free
            .iter()
            .fold(0_u64, |sum, &n| sum.saturating_add(n));
        if blocks == 0 {
            return Some(0.0);
        }
        let requested = 1_u64.checked_shl(order as u32).unwrap_or(u64::MAX) as f64;
        let index = 1.0 - (1.0 + self.pages() as f64 / requested) / blocks as f64;
        Some(index.clamp(0.0, 1.0))
    }
}

/// The zones in `/proc/buddyinfo`.
pub fn parse(text: &[u8]) -> Vec<Zone> {
    lines(text).filter_map(zone).collect()
}

/// `Node 0, zone   Normal      2    441     59 ...`
fn zone(line: &[u8]) -> Option<Zone> {
    let mut words = words(line);
    let (node, name) = node_and_zone(&mut words)?;
    let free = words.map_while(decimal).take(ORDERS_MAX).collect();
    Some(Zone { node, name, free })
}

fn node_and_zone<'a>(words: &mut impl Iterator<Item = &'a [u8]>) -> Option<(u32, String)> {
    if words.next()? != b"Node" {
        return None;
    }
    let node = words.next()?.strip_suffix(b",").and_then(decimal)?;
    if words.next()? != b"zone" {
        return None;
    }
    let name = words.next()?;
    let name = name.strip_suffix(b",").unwrap_or(name);
    Some((
        u32::try_from(node).ok()?,
        String::from_utf8_lossy(name).into_owned(),
    ))
}

/// What the blocks of the size of a huge page are used for, over all zones. Pages of the kernel
/// cannot be moved: a block with one of them never becomes a huge page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockTypes {
    /// All blocks.
    pub all: u64,
    /// Those whose pages can be moved.
    pub movable: u64,
}

/// The blocks in `/proc/pagetypeinfo`; `None` if it does not tell.
pub fn block_types(text: &[u8]) -> Option<BlockTypes> {
    let mut lines = lines(text);
    let titles = lines.find(|line| line.starts_with(b"Number of blocks type"))?;
    let movable = words(titles)
        .skip(4)
        .position(|title| title == b"Movable")?;
    let mut types = BlockTypes::default();
    for line in lines {
        let mut words = words(line);
        if node_and_zone(&mut words).is_none() {
            continue;
        }
        for (at, blocks) in words.map_while(decimal).enumerate().take(ORDERS_MAX) {
            types.all = types.all.saturating_add(blocks);
            if at == movable {
                types.movable = types.movable.saturating_add(blocks);
            }
        }
    }
    (types.all > 0).then_some(types)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUDDY: &[u8] = b"Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 \n\
Node 1, zone   Normal      2    441     59    119     44     24     11     14     16     38    438 \n";

    #[test]
    fn zones_are_read() {
        let zones = parse(BUDDY);
        assert_eq!(zones.len(), 2);
        assert_eq!((zones[1].node, zones[1].name.as_str()), (1, "Normal"));
        assert_eq!(zones[0].blocks(9), 1 + 3 * 2);
        assert_eq!(zones[0].pages(), 256 + 512 + 3 * 1024);
        assert_eq!(zones[0].fragmentation(9), None);
        let unusable = 256.0 / (256.0 + 512.0 + 3072.0);
        assert!((zones[0].unusable(9) - unusable).abs() < 1e-12);
    }

    #[test]
    fn fragmented_is_not_the_same_as_full() {
        let in_pieces = Zone {
            free: vec![100_000],
            ..Zone::default()
        };
        assert!(in_pieces.fragmentation(9).expect("fails") > 0.99);
        assert_eq!(in_pieces.unusable(9), 1.0);
        let full = Zone {
            free: vec![1, 0, 0],
            ..Zone::default()
        };
        assert!(full.fragmentation(9).expect("fails") < 0.01);
        assert_eq!(Zone::default().fragmentation(9), Some(0.0));
    }

    #[test]
    fn types_of_blocks_are_added_up() {
        let text = b"Page block order: 9\n\nNode    0, zone      DMA, type    Unmovable 0 0\n\n\
Number of blocks type     Unmovable      Movable  Reclaimable   HighAtomic      Isolate \n\
Node 0, zone      DMA            1            7            0            0            0 \n\
Node 0, zone   Normal           61         1226           57            0            0 \n";
        let types = block_types(text).expect("told");
        assert_eq!((types.all, types.movable), (1352, 1233));
        assert_eq!(block_types(b"Page block order: 9\n"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed(text in "(Node|zone|Number of blocks type|Movable|[ ,\n0-9]){0,60}", order in 0usize..80) {
            for zone in parse(text.as_bytes()) {
                let unusable = zone.unusable(order);
                prop_assert!((0.0..=1.0).contains(&unusable));
                let _ = (zone.fragmentation(order), zone.blocks(order));
            }
            let _ = block_types(text.as_bytes());
        }
    }
}

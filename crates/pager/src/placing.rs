//! How content gets into place.

use std::ops::Range;

use crate::PAGE;
use crate::inner::Shard;
use crate::sys::uffd::Placed;
use crate::zeros::first_run;

/// Puts content at `to`; pages that hold nothing but zeros take no memory, where the kernel can do that. How many these are is added to `zeros`. Calls for each
/// run of either kind, so at most as many as there are pages.
pub(crate) fn put_content(
    shard: &Shard,
    to: Range<usize>,
    content: &[u8],
    granule: usize,
    zeros: &mut usize,
) -> Placed {
    assert_eq!(to.len(), content.len());
    let mut done = 0;
    while done < content.len() {
        let rest = &content[done..];
        // There is no huge zero page to map.
        let (len, is_zero) = match granule {
            1 => first_run(rest),
            _ => (rest.len(), false),
        };
        let part = to.start + done..to.start + done + len;
        let placed = match is_zero {
            true => shard.uffd.zero(part),
            // SAFETY: the content is as long.
            false => unsafe { shard.uffd.copy(part, rest.as_ptr()) },
        };
        done += placed.bytes;
        if is_zero {
            *zeros += placed.bytes / PAGE;
        }
        if placed.bytes < len {
            return Placed {
                bytes: done,
                error: placed.error,
            };
        }
    }
    Placed {
        bytes: done,
        error: None,
    }
}

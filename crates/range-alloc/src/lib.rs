//! Allocator of address ranges: lowest address first, alignment, zones.

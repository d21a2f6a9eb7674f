//! Data spread over cache lines: distributed counters, sparse masks, hashed locks.

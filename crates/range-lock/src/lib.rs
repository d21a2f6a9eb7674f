//! Reader-writer locks over ranges.

//! Times waits in pthread primitives.

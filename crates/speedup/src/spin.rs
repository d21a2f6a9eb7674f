//! Whether a piece of machine code is a spin loop.

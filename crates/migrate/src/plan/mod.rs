//! The pure core: what both sides do about what happens. DESIGN.md has the tables.

pub(crate) mod converge;
pub(crate) mod destination;
pub(crate) mod source;

#[cfg(test)]
mod both;

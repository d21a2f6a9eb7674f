//! `range-alloc` beside other allocators of address ranges.

mod cases;
mod clock;
mod crates;
mod drift;
mod growth;
mod lazy;
mod magazines;
mod random;
mod red_black;
mod rivals;
mod steady;
mod threads;
mod traces;

pub use cases::figures as cases;
pub use clock::Clock;
pub use drift::figures as drift;
pub use growth::figures as growth;
pub use lazy::figures as lazy;
pub use magazines::figures as magazines;
pub use steady::figures as steady;
pub use threads::figures as threads;
pub use traces::figures as traces;

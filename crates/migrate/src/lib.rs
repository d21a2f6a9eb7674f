#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]

mod arrive;
mod depart;
pub mod door;
mod error;
mod link;
mod plan;
mod recovery;
mod session;
mod set;
mod sys;
mod way;
#[doc(hidden)]
pub mod wire;

pub use arrive::{Arrival, Landed, Offer};
pub use depart::{Departed, Departure, DepartureStats, Guest, TellRound};
pub use error::Error;
pub use link::{Stream, tls_accept, tls_connect};
pub use plan::converge::{Limits, Round};
pub use recovery::{Await, Outage, Redial, TellOutage};
pub use way::{Connection, Trust, Way};

/// Why writes cannot be followed here, and what to do; `None` if they can: see the README.
pub fn missing() -> Option<String> {
    sys::missing()
}

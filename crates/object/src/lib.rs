#![doc = include_str!("../README.md")]

mod error;
mod kept;
mod location;
mod object;
mod objects;

pub use error::{Error, Result};
pub use location::is_object;
pub use object::Object;
pub use objects::{Limits, Objects};

//! A VMM hands its memory over: a message on a Unix stream socket that says which memory is filled from which part of the source,
//! and its userfaultfd beside it. What Firecracker sends when it restores a snapshot with the memory backend `Uffd`.
//!
//! [`Message`] and [`parse`] are pure: they trust no byte, and what they allocate follows from the bytes that came. [`receive`] is the
//! edge: it waits no longer than it is told, and takes one descriptor that is a userfaultfd or nothing. [`Owner`] is what can be done for
//! the memory beside a [`Pager`](crate::Pager).
//!
//! Before that, a VMM that wants clean pages takes the file of them, which [`offer`] sends and [`take_offer`] receives, and hands over ([`hand_over`])
//! what it [has mapped](Offer::map) of it. Where some VMMs want them and some do not, those that do [ask] first. So does
//! a VMM that wants to begin when its working set is there.

mod clean;
mod layout;
mod message;
mod owner;
mod peer;
mod question;
mod receive;
mod send;

pub use clean::{Offer, OfferError, hand_over, offer, offer_in_spite, take_offer};
pub use layout::Layout;
pub use message::{MESSAGE_BYTES_MAX, Malformed, Message, REGIONS_MAX, Wrong, describe, parse};
pub use owner::Owner;
pub use peer::Peer;
pub use question::{Question, ask, question, tell_ready, wait_ready};
pub use receive::{HandedOverMemory, ReceiveError, examine, receive};
pub use send::{send, send_with};

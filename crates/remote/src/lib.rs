#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]

mod bell;
mod channel;
mod client;
mod connect;
mod error;
mod hurry;
mod meet;
mod outage;
mod queue;
mod resolve;
mod server;
mod tls;
#[doc(hidden)]
pub mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use client::{Remote, RemoteStats};
pub use connect::Connect;
pub use error::Error;
#[doc(hidden)]
pub use resolve::{connect, host_of};
pub use server::{Serve, Server, ServerStats};
pub use tls::Credentials;
pub use wire::{Identity, Secret};

/// Each change of what is locked here is one step, so it is right whoever panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes of what the map of a memory has a bit for.
const BLOCK: u64 = 2 << 20;
/// Bytes of answers that a connection may owe before it is asked for no more.
const OWED_MAX: usize = 4 << 20;

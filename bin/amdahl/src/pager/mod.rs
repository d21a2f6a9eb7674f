//! `amdahl pager`: memory images, and memory that arrives on demand.

mod attach;
pub mod bench;
mod demo_vm;
mod image;
mod meter;
mod migrate;
mod offload;
mod plot;
mod serve;
mod shelf;
mod stdio;

use crate::cli::pager::{Pager, PagerCommand};
use crate::failure::Failure;

pub use offload::guard::main as offload_guard;

/// Packs, unpacks, checks, tells, serves, attaches, moves, is moved or measures.
pub fn main(pager: &Pager) -> Result<u8, Failure> {
    match &pager.command {
        PagerCommand::Pack(args) => image::pack(args),
        PagerCommand::Unpack(args) => image::unpack(args),
        PagerCommand::Verify(args) => image::verify(args),
        PagerCommand::Info(args) => image::info(args),
        PagerCommand::Serve(args) => serve::main(args),
        PagerCommand::Attach(args) => attach::main(args),
        PagerCommand::Offload(args) => offload::main(args),
        PagerCommand::Migrate(args) => migrate::main(args),
        PagerCommand::DemoVm(args) => demo_vm::main(args),
        PagerCommand::Bench(args) => bench::main(args),
    }
}

//! `amdahl sched`: what the scheduler did.

mod decode;
pub mod facts;
mod follow;
mod guests;
pub mod live;
mod polled;
mod record;
mod show;
mod summary;
mod trace;

use crate::cli::{Sched, SchedCommand};
use crate::failure::Failure;
pub use show::is_without_result;

/// Records, or shows what was recorded.
pub fn main(sched: &Sched) -> Result<u8, Failure> {
    match &sched.command {
        SchedCommand::Record(args) => record::main(args),
        SchedCommand::Show(args) => show::main(args),
    }
}

/// `amdahl report` of a recording.
pub fn report(path: &std::path::Path, html: Option<&std::path::Path>) -> Result<u8, Failure> {
    show::main(&crate::cli::SchedShow {
        recording: path.to_owned(),
        json: false,
        csv: false,
        html: html.map(std::path::Path::to_owned),
        svg: None,
        timelines: None,
        trace: None,
        from: None,
        to: None,
    })
}

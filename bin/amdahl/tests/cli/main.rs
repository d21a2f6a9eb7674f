//! The tool as a user meets it: bad input, faults and what it leaves behind.
//!
//! Every test runs the real program. What this machine does not allow (root, BPF, a C compiler)
//! is printed as SKIPPED with the reason.

mod attaching;
mod budget;
#[path = "../../../../crates/report/tests/chrome_trace/mod.rs"]
mod chrome_trace;
mod command_line;
mod containers;
mod doctor;
mod ending;
mod environment;
mod failing;
mod foreign_results;
mod groups;
mod input;
mod limits;
mod locks;
mod measuring;
mod memory;
mod memory_images;
mod migrating;
#[path = "../../../../crates/remote/tests/common/mod.rs"]
mod mischief;
mod offloading;
mod openmp_programs;
mod ordinary_user;
mod output_folder;
mod pager_bench;
mod pages;
mod parquet;
mod phantom;
mod preload_library;
mod processes;
mod running;
mod scheduling;
mod serving;
mod simulating;
mod slurm;
mod tool;
mod traces;
mod workload;

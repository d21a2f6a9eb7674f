//! The command line of `amdahl pager` as typed.

use std::path::PathBuf;

use amdahl_image::{Compression, Region};
use clap::{Args, Subcommand};

use super::attach::{ATTACH_EXAMPLES, PagerAttach};
use super::migrate::{DEMO_VM_EXAMPLES, MIGRATE_EXAMPLES, PagerDemoVm, PagerMigrate};
use super::offload::{OFFLOAD_EXAMPLES, PagerOffload};
use super::serve::{PagerServe, SERVE_EXAMPLES};
use crate::pager::bench;

pub(super) const PAGER_EXAMPLES: &str = "\
Examples:
  amdahl pager pack vm.mem -o vm.ami
  amdahl pager info vm.ami
  amdahl pager verify vm.ami
  amdahl pager unpack vm.ami -o vm.mem
  amdahl pager serve --image vm.ami --listen unix:/run/pager.sock
  amdahl pager migrate --pid 4711 --to host:7000
  amdahl pager bench";

const PACK_EXAMPLES: &str = "\
Examples:
  amdahl pager pack vm.mem -o vm.ami
  amdahl pager pack vm-later.mem -o later.ami --base vm.ami
  amdahl pager pack vm.mem -o vm.ami --compress lz4 --cluster 64K
  amdahl pager pack vm.mem -o vm.ami --working-set first-pages.txt
  ssh host cat vm.mem | amdahl pager pack - -o vm.ami

The working set is a text file with a page number (of 4096 bytes) or a range such as 512-1023 a
line, in the order in which the pages are needed; # begins a comment.";

const UNPACK_EXAMPLES: &str = "\
Examples:
  amdahl pager unpack vm.ami -o vm.mem
  amdahl pager unpack later.ami -o vm.mem --base elsewhere/vm.ami
  amdahl pager unpack vm.ami -o - | sha256sum
  amdahl pager unpack s3://bucket/vm.ami -o vm.mem";

const VERIFY_EXAMPLES: &str = "\
Examples:
  amdahl pager verify vm.ami
  amdahl pager verify later.ami --base elsewhere/vm.ami --json
  amdahl pager verify s3://bucket/vm.ami";

const INFO_EXAMPLES: &str = "\
Examples:
  amdahl pager info vm.ami
  amdahl pager info later.ami --json
  amdahl pager info s3://bucket/vm.ami";

/// `amdahl pager`.
#[derive(Debug, Args)]
pub struct Pager {
    /// What to do
    #[command(subcommand)]
    pub command: PagerCommand,
}

/// What `amdahl pager` does.
#[derive(Debug, Subcommand)]
pub enum PagerCommand {
    /// Pack memory into an image: compressed, checked, without zero and duplicate pages
    #[command(after_help = PACK_EXAMPLES)]
    Pack(Box<PagerPack>),
    /// Unpack an image into a file with holes where the memory is zero
    #[command(after_help = UNPACK_EXAMPLES)]
    Unpack(PagerUnpack),
    /// Check all of an image and of its bases, and say which pages are damaged
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(PagerVerify),
    /// Tell what is in an image
    #[command(after_help = INFO_EXAMPLES)]
    Info(PagerInfo),
    /// Serve VMs whose memory is in an image: VMMs hand their userfaultfd over at a socket
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<PagerServe>),
    /// Have the memory of a program that knows nothing of it, such as QEMU, served by `pager serve`
    #[command(after_help = ATTACH_EXAMPLES)]
    Attach(PagerAttach),
    /// Restore a VM of Cloud Hypervisor whose memory arrives on demand
    #[command(after_help = OFFLOAD_EXAMPLES)]
    Offload(PagerOffload),
    /// Move a process's memory to another host while it runs, if it can be asked to; or try that out
    #[command(after_help = MIGRATE_EXAMPLES)]
    Migrate(Box<PagerMigrate>),
    /// Run a demonstration that can be moved: it writes its memory and knows what that has to hold
    #[command(name = "demo-vm", after_help = DEMO_VM_EXAMPLES)]
    DemoVm(Box<PagerDemoVm>),
    /// Measure how fast memory arrives on demand here, by each engine and number of threads
    #[command(after_help = bench::EXAMPLES)]
    Bench(bench::Args),
}

/// `amdahl pager pack`.
#[derive(Debug, Args)]
pub struct PagerPack {
    /// The memory: a file, a pipe, or - for standard input; a multiple of 4096 bytes
    #[arg(value_name = "MEM")]
    pub memory: PathBuf,
    /// The image; - for standard output
    #[arg(long, short, value_name = "IMG")]
    pub output: PathBuf,
    /// Store only pages that are not as in this image
    #[arg(long, value_name = "IMG")]
    pub base: Option<PathBuf>,
    /// zstd, zstd:LEVEL (-7 to 22), lz4 or none
    #[arg(
        long,
        value_name = "HOW",
        default_value = "zstd:1",
        allow_hyphen_values = true
    )]
    pub compress: Compression,
    /// Pages that are compressed together: 4K to 1M; larger packs better and costs more for one page
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = size)]
    pub cluster: usize,
    /// Threads [default: one for each CPU that may be used]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// Pages that are needed first: kept with the image, and first in it
    #[arg(long, value_name = "FILE")]
    pub working_set: Option<PathBuf>,
    /// Where a part of the memory is in the guest: ADDRESS:OFFSET:LENGTH in bytes, 0x for hexadecimal
    #[arg(long, value_name = "REGION", value_parser = region)]
    pub region: Vec<Region>,
    /// Anything that is to be kept with the image, up to 1 MiB
    #[arg(long, value_name = "FILE")]
    pub metadata: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// Neither progress nor result
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
}

/// Which image.
#[derive(Debug, Args)]
pub struct ImageFile {
    /// The image; s3://BUCKET/KEY for an object, - for standard input
    #[arg(value_name = "IMG")]
    pub image: PathBuf,
    /// Its base, or that of one of its bases, if it does not lie beside it
    #[arg(long, value_name = "IMG")]
    pub base: Vec<PathBuf>,
}

/// `amdahl pager unpack`.
#[derive(Debug, Args)]
pub struct PagerUnpack {
    /// Which
    #[command(flatten)]
    pub file: ImageFile,
    /// The memory; - for standard output
    #[arg(long, short, value_name = "MEM")]
    pub output: PathBuf,
    /// Threads [default: one for each CPU that may be used]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// No progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// `amdahl pager verify`.
#[derive(Debug, Args)]
pub struct PagerVerify {
    /// Which
    #[command(flatten)]
    pub file: ImageFile,
    /// Threads [default: one for each CPU that may be used]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// Print what was found as JSON
    #[arg(long)]
    pub json: bool,
    /// Neither progress nor what was found; the exit code tells
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
}

/// `amdahl pager info`.
#[derive(Debug, Args)]
pub struct PagerInfo {
    /// Which
    #[command(flatten)]
    pub file: ImageFile,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

/// Bytes, as in 65536, 64K, 1M, 2G or 1T.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let shifts = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let shift = text.chars().last().and_then(|unit| {
        shifts
            .iter()
            .find(|(name, _)| unit.eq_ignore_ascii_case(name))
    });
    let (digits, shift) = match shift {
        Some((_, shift)) => (&text[..text.len() - 1], *shift),
        None => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Of a cluster.
fn size(text: &str) -> Result<usize, String> {
    let bytes = bytes(text).and_then(|bytes| usize::try_from(bytes).ok());
    let fits = |bytes: &usize| bytes.is_power_of_two() && (4096..=1 << 20).contains(bytes);
    bytes
        .filter(fits)
        .ok_or_else(|| "a power of two from 4K to 1M, such as 16K, is needed".to_owned())
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn region(text: &str) -> Result<Region, String> {
    let mut parts = text.split(':').map(number);
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(Some(guest_address)), Some(Some(offset)), Some(Some(len)), None) => Ok(Region {
            guest_address,
            offset,
            len,
        }),
        _ => Err(
            "ADDRESS:OFFSET:LENGTH is needed, such as 0x100000000:0xc0000000:0x40000000".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_regions_are_read() {
        assert_eq!(
            (size("4096"), size("64K"), size("1M")),
            (Ok(4096), Ok(65536), Ok(1 << 20))
        );
        for wrong in ["", "K", "3K", "2M", "-4K", "99999999999999999999M"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        let expected = Region {
            guest_address: 1 << 32,
            offset: 4096,
            len: 8192,
        };
        assert_eq!(region("0x100000000:4096:0x2000"), Ok(expected));
        for wrong in ["", "1:2", "1:2:3:4", "a:b:c"] {
            assert!(region(wrong).is_err(), "{wrong}");
        }
    }
}

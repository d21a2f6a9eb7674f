//! Many VMs of one image, each a process of its own: what memory their clean pages take together.

use std::fmt::Display;
use std::fs;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::{Content, word_at};
use crate::handoff::{hand_over, offer, receive, take_offer};
use crate::sys::mapping::addresses_of;
use crate::{CleanPages, PAGE, Pager};

/// How long a process may take for a step.
const PATIENCE: Duration = Duration::from_secs(120);

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// Bytes that every process has read.
    pub image_bytes: u64,
    /// What all mappings of them together take: the proportional set sizes (PSS) of those of all processes, and of who fills them.
    pub pss_bytes: u64,
    /// Pages that the source was asked for.
    pub pages_fetched: u64,
}

/// A VM: its process, our end of its socket, its pager.
struct Vm {
    process: Child,
    stream: UnixStream,
    pager: Option<Pager>,
}

impl Drop for Vm {
    fn drop(&mut self) {
        // First, or it waits for the pager.
        let _ = self.process.kill();
        let _ = self.process.wait();
        self.pager = None;
    }
}

/// Has `count` processes read all of one image of `bytes` bytes, which this process serves. `vm` says how to start one, which calls
/// [`be_vm`] with the socket that is its standard input.
///
/// # Errors
/// What does not go.
pub fn share(
    count: usize,
    bytes: usize,
    vm: impl Fn() -> io::Result<Command>,
) -> io::Result<Copies> {
    let content = Content::new(bytes).map_err(failed)?;
    let bytes = content.bytes() as u64;
    let clean = CleanPages::new(Arc::new(content.source()), bytes).map_err(failed)?;
    let clean = Arc::new(clean);
    let mut vms = Vec::new();
    for _ in 0..count {
        let (stream, theirs) = UnixStream::pair()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let process = vm()?.stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
        let mut vm = Vm {
            process,
            stream,
            pager: None,
        };
        offer(&vm.stream, &clean)?;
        let memory = receive(&vm.stream, bytes, PATIENCE).map_err(failed)?;
        let pager = Pager::builder()
            .handed_over(memory.descriptor, &memory.regions)
            .clean(&clean)
            .workers(1)
            .start()
            .map_err(failed)?;
        vm.pager = Some(pager);
        vms.push(vm);
    }
    for vm in &mut vms {
        vm.stream.read_exact(&mut [0])?;
    }
    // All have read all: each says what it has.
    let mut pss_bytes = pss(&clean.addresses())?;
    for vm in &mut vms {
        vm.stream.write_all(&[0])?;
        let mut theirs = [0; 8];
        vm.stream.read_exact(&mut theirs)?;
        pss_bytes += u64::from_le_bytes(theirs);
    }
    Ok(Copies {
        image_bytes: bytes,
        pss_bytes,
        pages_fetched: clean.pages_fetched(),
    })
}

/// What a process of [`share`] does, until it is ended.
///
/// # Errors
/// What does not go.
///
/// # Panics
/// If a page does not hold its content.
pub fn be_vm(mut stream: UnixStream) -> io::Result<()> {
    let offer = take_offer(&stream, PATIENCE).map_err(failed)?;
    let len = usize::try_from(offer.bytes()).map_err(failed)?;
    let memory = offer.map(0, len).map_err(failed)?;
    let _kept = hand_over(&stream, &[&memory]).map_err(failed)?;
    for at in (0..len).step_by(PAGE) {
        // SAFETY: within the mapping.
        let found = unsafe { memory.as_ptr().add(at).cast::<u64>().read_volatile() };
        assert_eq!(found, word_at(at), "page at {at}");
    }
    stream.write_all(&[0])?;
    stream.read_exact(&mut [0])?;
    let start = memory.as_ptr().addr();
    stream.write_all(&pss(&(start..start + len))?.to_le_bytes())?;
    // Until the other end is closed: what is unmapped is nobody's share.
    stream.read_exact(&mut [0])
}

fn failed(error: impl Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// The proportional set size of mappings of this process.
fn pss(addresses: &Range<usize>) -> io::Result<u64> {
    let all = fs::read_to_string("/proc/self/smaps")?;
    Ok(pss_of(&all, addresses))
}

/// The same, of the text of `smaps`.
fn pss_of(smaps: &str, addresses: &Range<usize>) -> u64 {
    let (mut kib, mut is_within) = (0, false);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), second) = (words.next(), words.next()) else {
            continue;
        };
        if let Some(Range { start, end }) = addresses_of(first) {
            is_within = addresses.start as u64 <= start && end <= addresses.end as u64;
        } else if is_within && first == "Pss:" {
            kib += second.and_then(|kib| kib.parse().ok()).unwrap_or(0);
        }
    }
    kib * 1024
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::Support;

    const VM: &str = "PAGER_MEASURE_VM";

    #[test]
    fn a_vm() {
        if std::env::var_os(VM).is_some() {
            let stream = io::stdin().as_fd().try_clone_to_owned().unwrap();
            let _ = be_vm(UnixStream::from(stream));
        }
    }

    #[test]
    fn processes_have_one_copy_together() {
        let support = Support::probe();
        if !support.can_offer() {
            println!("SKIPPED: {support}");
            return;
        }
        let vm = || {
            let mut command = Command::new(std::env::current_exe()?);
            command
                .args(["--exact", "measure::many::tests::a_vm"])
                .env(VM, "1")
                .stdout(Stdio::null());
            Ok(command)
        };
        let copies = share(3, 4 << 20, vm).unwrap();
        assert_eq!(copies.pages_fetched, 1024);
        let all = copies.image_bytes;
        // A page has four who map it, and each share is rounded down by itself.
        assert!((all / 2..=all).contains(&copies.pss_bytes), "{copies:?}");
    }

    #[test]
    fn only_what_lies_within_counts() {
        let smaps = "1000-3000 rw-p 0 00:01 7 /memfd:amdahl-clean (deleted)\nRss: 8 kB\nPss: 5 kB\nPss_Dirty: 3 kB\n\
            3000-4000 rw-p 0 00:00 0\nPss: 4 kB\nVmFlags: rd wr\n5000-6000 r--p 0 00:00 0\nPss: 1 kB\n";
        assert_eq!(pss_of(smaps, &(0x1000..0x4000)), 9 << 10);
        assert_eq!(pss_of(smaps, &(0x1000..0x3fff)), 5 << 10);
        assert_eq!(pss_of("\nPss: x kB\nPss:", &(0..1)), 0);
    }
}

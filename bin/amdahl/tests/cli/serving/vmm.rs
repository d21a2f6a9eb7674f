//! The VMM of the tests: a process of its own, which is told what to do line by line.

use std::io::{BufRead, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use amdahl_pager::handoff::{Question, ask, wait_ready};
use linux_raw_sys::general as raw;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{Advice, MapFlags, ProtFlags, UserfaultfdFlags, madvise, mmap_anonymous};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{PAGE, PAGES};
use crate::tool::{Place, Running, skipped, until};

const API: Opcode = opcode::read_write::<raw::uffdio_api>(0xaa, raw::_UFFDIO_API as u8);
const REGISTER: Opcode =
    opcode::read_write::<raw::uffdio_register>(0xaa, raw::_UFFDIO_REGISTER as u8);

/// How the VMM is told what to be.
const VMM: &str = "SERVE_TEST_VMM";

pub fn uffd(features: u64) -> Result<OwnedFd, Errno> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: a new descriptor changes no memory.
    let fd = unsafe { rustix::mm::userfaultfd(flags) }?;
    let mut api = raw::uffdio_api {
        api: raw::UFFD_API.into(),
        features,
        ioctls: 0,
    };
    // SAFETY: the opcode takes this structure.
    unsafe { ioctl(&fd, Updater::<API, _>::new(&mut api)) }?;
    Ok(fd)
}

/// Faults on missing pages of memory of ours are told from now on.
fn register(fd: &OwnedFd, start: usize, len: usize) {
    let mut register = raw::uffdio_register {
        range: raw::uffdio_range {
            start: start as u64,
            len: len as u64,
        },
        mode: raw::UFFDIO_REGISTER_MODE_MISSING.into(),
        ioctls: 0,
    };
    // SAFETY: the opcode takes this structure; the memory is ours.
    unsafe { ioctl(fd, Updater::<REGISTER, _>::new(&mut register)) }.expect("registered");
}

/// A userfaultfd with memory of this process.
pub fn registered(start: usize, len: usize) -> OwnedFd {
    let fd = uffd(raw::UFFD_FEATURE_EVENT_REMOVE.into()).expect("a userfaultfd");
    register(&fd, start, len);
    fd
}

/// Whether there can be a VMM here; says so if not.
pub fn is_possible() -> bool {
    let may = uffd(raw::UFFD_FEATURE_EVENT_REMOVE.into());
    if let Err(error) = may {
        skipped(format_args!("no userfaultfd: {error}"));
    }
    may.is_ok()
}

pub fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let sent = sendmsg(
        stream,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::empty(),
    );
    assert_eq!(sent, Ok(bytes.len()));
}

struct Region {
    start: usize,
    pages: usize,
    first: usize,
}

impl Region {
    fn sum(&self, page: usize) -> u64 {
        let at = std::ptr::with_exposed_provenance(self.start + page * PAGE);
        // SAFETY: the page is of this region, which is mapped and never unmapped; nobody else writes to it.
        sum(self.first + page, unsafe {
            std::slice::from_raw_parts(at, PAGE)
        })
    }
}

/// Of a page's content and number, so that pages that are exchanged are noticed.
pub fn sum(page: usize, bytes: &[u8]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325 ^ page as u64;
    for word in bytes.chunks_exact(8) {
        let word = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
        sum = (sum ^ word).wrapping_mul(0x0100_0000_01b3);
    }
    sum
}

/// Touches all memory by some threads, each going its own way; the sum of all pages.
fn touch(regions: &[Region], threads: usize) -> u64 {
    let pages: Vec<(&Region, usize)> = regions
        .iter()
        .flat_map(|region| (0..region.pages).map(move |page| (region, page)))
        .collect();
    thread::scope(|scope| {
        let work = |nth: usize| {
            let mine = pages.iter().skip(nth).step_by(threads);
            let add =
                |sum: u64, (region, page): &(&Region, usize)| sum.wrapping_add(region.sum(*page));
            match nth % 2 {
                0 => mine.fold(0, add),
                _ => mine.rev().fold(0, add),
            }
        };
        let running: Vec<_> = (0..threads)
            .map(|nth| scope.spawn(move || work(nth)))
            .collect();
        let done = running
            .into_iter()
            .map(|thread| thread.join().expect("it touches"));
        done.fold(0, u64::wrapping_add)
    })
}

/// No test, but the VMM of the others, in a process of its own.
#[test]
fn process() {
    let Ok(text) = std::env::var(VMM) else { return };
    let told: Value = serde_json::from_str(&text).expect("JSON");
    if told["outlives_sigbus"] == true {
        extern "C" fn wait(_: libc::c_int) {
            loop {
                // SAFETY: may be called in a handler.
                unsafe { libc::pause() };
            }
        }
        // SAFETY: the handler makes one call, which it may.
        unsafe { libc::signal(libc::SIGBUS, wait as *const () as libc::sighandler_t) };
    }
    let number = |value: &Value| value.as_u64().expect("a number");
    let socket = told["socket"].as_str().expect("a path");
    let (mut regions, mut message) = (Vec::new(), Vec::new());
    if told["maps"] == true {
        regions = mapped(socket, &told["regions"]);
        return obey(&told, &regions);
    }
    let fd = uffd(number(&told["features"])).expect("a userfaultfd");
    for region in told["regions"].as_array().expect("a list") {
        let (pages, first) = (number(&region[0]) as usize, number(&region[1]) as usize);
        let (protection, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        );
        // SAFETY: new memory.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), pages * PAGE, protection, flags) };
        let start = at.expect("memory").expose_provenance();
        register(&fd, start, pages * PAGE);
        regions.push(Region {
            start,
            pages,
            first,
        });
        message.push(json!({
            "base_host_virt_addr": start, "size": pages * PAGE, "offset": first * PAGE,
            "page_size": PAGE, "page_size_kib": PAGE,
        }));
    }
    let stream = UnixStream::connect(socket).expect("connected");
    let waits = told["waits"] == true;
    if waits {
        ask(&stream, Question::WorkingSet).expect("asked");
    }
    send(
        &stream,
        Value::from(message).to_string().as_bytes(),
        &[fd.as_fd()],
    );
    if waits {
        wait_ready(&stream, std::time::Duration::from_secs(60)).expect("told");
    }
    // Kept open until the end, as Firecracker since 1.12 does, or not.
    let _stream = (told["keeps_socket"] == true).then_some(stream);
    obey(&told, &regions);
}

/// Memory that is mapped of the one copy that the daemon has for all.
fn mapped(socket: &str, regions: &Value) -> Vec<Region> {
    use amdahl_pager::handoff::{hand_over, take_offer};

    let stream = UnixStream::connect(socket).expect("connected");
    ask(&stream, Question::CleanPages).expect("asked");
    let offer = take_offer(&stream, std::time::Duration::from_secs(60)).expect("an offer");
    let regions = regions.as_array().expect("a list");
    let number = |value: &Value| value.as_u64().expect("a number") as usize;
    let mappings: Vec<_> = regions
        .iter()
        .map(|region| {
            let (pages, first) = (number(&region[0]), number(&region[1]));
            offer
                .map((first * PAGE) as u64, pages * PAGE)
                .expect("a mapping")
        })
        .collect();
    let all: Vec<_> = mappings.iter().collect();
    let fd = hand_over(&stream, &all).expect("handed over");
    let regions = mappings
        .iter()
        .zip(regions)
        .map(|(mapping, region)| Region {
            start: mapping.as_ptr().expose_provenance(),
            pages: number(&region[0]),
            first: number(&region[1]),
        });
    let regions = regions.collect();
    // Until the end of the process.
    std::mem::forget((mappings, fd, stream));
    regions
}

/// Pages that are there, by the kernel's word.
fn there(regions: &[Region]) -> usize {
    let there = regions.iter().map(|region| {
        let mut pages = vec![0u8; region.pages];
        let at = std::ptr::with_exposed_provenance_mut(region.start);
        // SAFETY: a byte for each page of memory of ours.
        let asked = unsafe { libc::mincore(at, region.pages * PAGE, pages.as_mut_ptr()) };
        assert_eq!(asked, 0);
        pages.iter().filter(|page| **page & 1 == 1).count()
    });
    there.sum()
}

/// KiB of memory that is this process's own.
fn own(regions: &[Region]) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("readable");
    let (mut sum, mut is_within) = (0, false);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().expect("a word");
        let hex = |text| usize::from_str_radix(text, 16).ok();
        if let Some((low, high)) = first.split_once('-')
            && let (Some(low), Some(high)) = (hex(low), hex(high))
        {
            let is_of =
                |region: &Region| region.start < high && low < region.start + region.pages * PAGE;
            is_within = regions.iter().any(is_of);
        } else if is_within && first == "Anonymous:" {
            sum += words
                .next()
                .expect("a word")
                .parse::<u64>()
                .expect("a number");
        }
    }
    sum
}

/// Does what it is told, line by line.
fn obey(told: &Value, regions: &[Region]) {
    let answer = |text: String| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n> {text}").expect("written");
        out.flush().expect("written");
    };
    answer("handed over".to_owned());
    let page = |number: usize| {
        let inside =
            |region: &&Region| (region.first..region.first + region.pages).contains(&number);
        let region = regions.iter().find(inside).expect("a page");
        (region, number - region.first)
    };
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        let argument = |nth: usize| words[nth].parse::<usize>().expect("a number");
        match words[0] {
            "touch" => answer(format!("touched {:x}", touch(regions, argument(1)))),
            "there" => answer(format!("{} pages", there(regions))),
            "own" => answer(format!("{} KiB", own(regions))),
            "write" => {
                let (region, page) = page(argument(1));
                let at: *mut u8 = std::ptr::with_exposed_provenance_mut(region.start + page * PAGE);
                // SAFETY: the page is ours.
                unsafe { at.write_bytes(0x5a, PAGE) };
                answer("written".to_owned());
            }
            "read" => {
                let (region, page) = page(argument(1));
                answer(format!("page {:x}", region.sum(page)));
            }
            "balloon" => {
                let (region, page) = page(argument(1));
                let at = std::ptr::with_exposed_provenance_mut(region.start + page * PAGE);
                // SAFETY: the pages are ours.
                let done = unsafe { madvise(at, argument(2) * PAGE, Advice::LinuxDontNeed) };
                done.expect("given up");
                answer("given up".to_owned());
            }
            // As the kernel reads for a system call: an error where a thread would get a signal.
            "peek" => {
                let (region, page) = page(argument(1));
                let at = std::ptr::with_exposed_provenance_mut(region.start + page * PAGE);
                let mut bytes = [0; PAGE];
                let local = libc::iovec {
                    iov_base: bytes.as_mut_ptr().cast(),
                    iov_len: PAGE,
                };
                let remote = libc::iovec {
                    iov_base: at,
                    iov_len: PAGE,
                };
                // SAFETY: writes into the buffer alone; the kernel checks the other address.
                let read =
                    unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
                answer(match read == PAGE as isize {
                    true => format!("page {:x}", sum(argument(1), &bytes)),
                    false => "lost".to_owned(),
                });
            }
            "storm" => {
                let expected = std::fs::read(told["file"].as_str().expect("a path"));
                let expected = std::sync::Arc::new(expected.expect("the memory"));
                let places: Vec<usize> = (0..PAGES)
                    .map(|number| {
                        let (region, page) = page(number);
                        region.start + page * PAGE
                    })
                    .collect();
                let places = std::sync::Arc::new(places);
                for nth in 0..3 {
                    let (places, expected) = (places.clone(), expected.clone());
                    let seed = argument(1) as u64;
                    thread::spawn(move || {
                        storm(
                            seed.wrapping_mul(3).wrapping_add(nth),
                            nth,
                            &places,
                            &expected,
                        )
                    });
                }
                answer("it storms".to_owned());
            }
            "how-much" => answer(format!("{}", STORMED.load(Ordering::SeqCst))),
            other => panic!("{other}"),
        }
    }
    std::process::exit(0);
}

/// What threads have checked.
static STORMED: AtomicU64 = AtomicU64::new(0);

/// Touches memory for ever, in the way that its number says, and ends the process where it is not what it must be. The lower half is read; the
/// upper is given up, is zero then, and keeps what is written there.
fn storm(seed: u64, nth: u64, places: &[usize], expected: &[u8]) {
    let half = PAGES / 2;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as usize % below
    };
    let at = |page: usize| -> *mut u8 { std::ptr::with_exposed_provenance_mut(places[page]) };
    let is = |page: usize, content: &[u8]| {
        // SAFETY: a page of ours; nobody writes to it but this thread.
        let found = unsafe { std::slice::from_raw_parts(at(page), PAGE) };
        if found != content {
            let is_zero = found.iter().all(|byte| *byte == 0);
            let is_images = found == &expected[page * PAGE..][..PAGE];
            eprintln!("page {page} is wrong: zero {is_zero}, the image's {is_images}");
            std::process::abort();
        }
    };
    let mut mine = std::collections::BTreeMap::new();
    loop {
        if nth < 2 {
            let page = next(half);
            is(page, &expected[page * PAGE..][..PAGE]);
        } else {
            let page = half + next(half - 4);
            let pages = 1 + next(4);
            // SAFETY: pages of ours, that only this thread uses; the first and last are in one region, or it is an error.
            let done = unsafe { madvise(at(page).cast(), pages * PAGE, Advice::LinuxDontNeed) };
            done.expect("given up");
            for page in page..page + pages {
                mine.remove(&page);
                is(page, &[0; PAGE]);
            }
            // SAFETY: as above.
            unsafe { at(page).write_bytes(page as u8, PAGE) };
            mine.insert(page, page as u8);
            let other = half + next(half);
            if let Some(byte) = mine.get(&other) {
                is(other, &[*byte; PAGE]);
            }
        }
        STORMED.fetch_add(1, Ordering::SeqCst);
        // So that there is something left to be faulted for when it matters.
        thread::sleep(std::time::Duration::from_micros(300));
    }
}

/// A VMM that runs.
pub struct Vmm(pub Running, usize);

impl Vmm {
    pub fn start(place: &Place, told: Value) -> Vmm {
        let mut all = json!({
            "socket": place.join("pager.sock"), "features": raw::UFFD_FEATURE_EVENT_REMOVE,
            "regions": [[PAGES, 0]], "keeps_socket": true,
        });
        let (Value::Object(all), Value::Object(told)) = (&mut all, told) else {
            panic!("objects");
        };
        all.extend(told);
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "serving::vmm::process", "--nocapture"]);
        let mut command = place.here(command);
        command
            .env(VMM, Value::from(all.clone()).to_string())
            .stdin(Stdio::piped());
        let mut vmm = Vmm(place.start(command), 0);
        vmm.answers("handed over");
        vmm
    }

    /// Of all memory, with two regions in another order in memory than in the image.
    pub fn whole(place: &Place) -> Vmm {
        let regions = json!([[PAGES - 1000, 1000], [1000, 0]]);
        Vmm::start(place, json!({ "regions": regions }))
    }

    pub fn answer(&mut self) -> String {
        let nth = self.1;
        self.1 += 1;
        let answer = || {
            let text = self.0.out_so_far();
            let mut lines = text
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            let answer = lines
                .by_ref()
                .filter_map(|line| line.strip_prefix("> "))
                .nth(nth)?;
            Some(answer.trim_end().to_owned())
        };
        until("an answer of the VMM", answer)
    }

    #[track_caller]
    pub fn answers(&mut self, expected: &str) {
        let answer = self.answer();
        assert_eq!(answer, expected, "{}", self.0.err_so_far());
    }

    #[track_caller]
    pub fn does(&mut self, what: &str, expected: &str) {
        self.0.say(what);
        self.answers(expected);
    }

    /// Of all memory, and told what that must be.
    pub fn stormy(place: &Place, seed: u64) -> Vmm {
        let told = json!({ "file": place.join("vm.mem") });
        let mut vmm = Vmm::start(place, told);
        vmm.does(&format!("storm {seed}"), "it storms");
        vmm
    }

    /// Waits until its threads have gone on by so much: none of them waits for ever, and nothing was wrong.
    pub fn goes_on(&mut self, by: u64) {
        let mut now = || {
            self.0.say("how-much");
            self.answer().parse::<u64>().expect("a number")
        };
        let before = now();
        until("the VM to go on", || (now() >= before + by).then_some(()));
    }

    /// Says something that it does not survive.
    pub fn dies_of(mut self, what: &str, signal: Signal) {
        self.0.say(what);
        let ran = self.0.ended();
        assert_eq!(ran.status.signal(), Some(signal.as_raw()), "{ran:?}");
    }
}

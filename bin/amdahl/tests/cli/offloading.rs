//! `amdahl pager offload`, met by a receiver that does what Cloud Hypervisor's documentation of its local migration says
//! (docs/snapshot_restore.md and vm-migration/src/protocol.rs of its repository).

use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::fs::SeekFrom;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::Signal;
use serde_json::json;

use super::tool::{HANGS_AFTER, Place, Running, skipped, until};

const PAGE: usize = 4096;
const OK: u16 = 1;

/// Slot 0 is at the beginning of its file, slot 5 further on.
const SLOTS: [(u32, u64, usize, u64); 2] = [(0, 0, 512, 0), (5, 1 << 32, 300, 8 * PAGE as u64)];

fn content(slot: u32, page: usize) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    if !page.is_multiple_of(5) {
        for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
            let value = (u64::from(slot) << 32 | page as u64) * 512 + at as u64 + 1;
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

fn memory(slot: u32, pages: usize) -> Vec<u8> {
    (0..pages).flat_map(|page| content(slot, page)).collect()
}

/// A snapshot; slot 5 is packed.
fn snapshot(place: &Place) -> Vec<u8> {
    let folder = place.join("snapshot");
    std::fs::create_dir(&folder).expect("a folder");
    let mappings = SLOTS.map(|(slot, gpa, pages, offset)| {
        json!({"slot": slot, "gpa": gpa, "size": pages * PAGE, "zone_id": "mem0", "virtio_mem": false, "file_offset": offset})
    });
    let config = json!({"vm_config": {}, "memory_manager_data": {"guest_ram_mappings": mappings}});
    let config = serde_json::to_vec(&config).expect("JSON");
    std::fs::write(folder.join("migration_config.json"), &config).expect("written");
    std::fs::write(folder.join("state.json"), b"{\"state\": 1}").expect("written");
    for (slot, _, pages, _) in SLOTS {
        std::fs::write(folder.join(format!("memory-{slot}")), memory(slot, pages))
            .expect("written");
    }
    place
        .amdahl([
            "pager",
            "pack",
            "snapshot/memory-5",
            "-o",
            "snapshot/memory-5.ami",
            "-q",
        ])
        .ends_with(0);
    std::fs::remove_file(folder.join("memory-5")).expect("it was there");
    config
}

/// The receiver's side.
struct Receiver {
    stream: UnixStream,
    faults: Option<UnixStream>,
    memfds: Vec<(u32, File)>,
    config: Vec<u8>,
    state: Vec<u8>,
    last: u16,
}

fn head(stream: &mut UnixStream) -> (u16, u64) {
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).expect("a request");
    assert_eq!(
        bytes[2..8],
        [0; 6],
        "version 0, and nothing else in the head"
    );
    let length = u64::from_le_bytes(bytes[8..].try_into().expect("8 bytes"));
    (u16::from_le_bytes([bytes[0], bytes[1]]), length)
}

fn answer(stream: &mut UnixStream, status: u16) {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&status.to_le_bytes());
    stream.write_all(&bytes).expect("it listens");
}

fn memfd(stream: &UnixStream) -> (u32, File) {
    let mut bytes = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let read = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::empty(),
    );
    assert_eq!(read.expect("a message").bytes, 4);
    let mut found: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            found.extend(descriptors);
        }
    }
    assert_eq!(found.len(), 1);
    (u32::from_le_bytes(bytes), File::from(found.remove(0)))
}

impl Receiver {
    fn accept(listener: &UnixListener) -> Receiver {
        let (stream, _) = listener.accept().expect("a connection");
        stream
            .set_read_timeout(Some(HANGS_AFTER))
            .expect("a timeout");
        Receiver {
            stream,
            faults: None,
            memfds: Vec::new(),
            config: Vec::new(),
            state: Vec::new(),
            last: 0,
        }
    }

    /// Up to the end of the migration; refuses what `refuses` names.
    fn receive(&mut self, listener: &UnixListener, refuses: u16) {
        let mut expected = 1;
        loop {
            let (command, length) = head(&mut self.stream);
            match command {
                1 => assert_eq!((expected, length), (1, 0)),
                7 => self.memfds.push(memfd(&self.stream)),
                2 | 3 => {
                    let mut payload = vec![0; length as usize];
                    self.stream.read_exact(&mut payload).expect("the payload");
                    if command == 2 {
                        self.config = payload;
                    } else {
                        // The connection for faults is there before the state is taken.
                        let (mut faults, _) = listener.accept().expect("a connection");
                        let mut role = [0; 2];
                        faults.read_exact(&mut role).expect("a role");
                        assert_eq!(role, [2, 0]);
                        faults
                            .set_read_timeout(Some(HANGS_AFTER))
                            .expect("a timeout");
                        self.faults = Some(faults);
                        self.state = payload;
                    }
                }
                5 | 8 => self.last = command,
                other => panic!("command {other}"),
            }
            expected = command;
            answer(&mut self.stream, if command == refuses { 2 } else { OK });
            if command == refuses || self.last > 0 {
                return;
            }
        }
    }

    /// Asks for a page, as the userfaultfd of a guest would have it; the status of the answer.
    fn fault(&mut self, gpa: u64, len: u64) -> u16 {
        let faults = self.faults.as_mut().expect("connected");
        let mut bytes = [0; 32];
        bytes[0] = 9;
        bytes[8] = 16;
        bytes[16..24].copy_from_slice(&gpa.to_le_bytes());
        bytes[24..].copy_from_slice(&len.to_le_bytes());
        faults.write_all(&bytes).expect("it listens");
        let mut answer = [0; 16];
        faults.read_exact(&mut answer).expect("an answer");
        // Shared memory: nothing follows.
        assert_eq!(answer[2..], [0; 14]);
        u16::from_le_bytes([answer[0], answer[1]])
    }

    fn page(&self, slot: usize, page: usize) -> [u8; PAGE] {
        let mut bytes = [0; PAGE];
        let offset = SLOTS[slot].3 + (page * PAGE) as u64;
        let read = self.memfds[slot].1.read_exact_at(&mut bytes, offset);
        read.expect("as long as it should be");
        bytes
    }

    /// Whether the page is in the file, zero or not.
    fn is_there(&self, slot: usize, page: usize) -> bool {
        let at = SLOTS[slot].3 + (page * PAGE) as u64;
        rustix::fs::seek(&self.memfds[slot].1, SeekFrom::Data(at)) == Ok(at)
    }
}

fn start(place: &Place, more: &[&str]) -> (Running, UnixListener) {
    let _ = std::fs::remove_file(place.join("ch.sock"));
    let listener = UnixListener::bind(place.join("ch.sock")).expect("a socket");
    let args = [
        "pager",
        "offload",
        "--snapshot",
        "snapshot",
        "--to",
        "unix:ch.sock",
    ];
    (place.start(place.tool(args.iter().chain(more))), listener)
}

fn is_possible() -> bool {
    use amdahl_pager::{Support, Way};
    let support = Support::probe();
    let is_possible = matches!(support.way, Some(Way::Device | Way::Call));
    if !is_possible {
        skipped(support);
    }
    is_possible
}

#[test]
fn a_vm_of_cloud_hypervisor_has_its_memory_when_it_asks() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let config = snapshot(&place);
    let (ours, listener) = start(&place, &["--no-fill"]);
    let mut vm = Receiver::accept(&listener);
    vm.receive(&listener, 0);
    assert_eq!(vm.last, 5, "it is resumed");
    assert_eq!(
        (&vm.config, &vm.state[..]),
        (&config, &b"{\"state\": 1}"[..])
    );
    let slots: Vec<u32> = vm.memfds.iter().map(|(slot, _)| *slot).collect();
    assert_eq!(slots, [0, 5]);
    for (nth, (slot, gpa, pages, _)) in SLOTS.into_iter().enumerate() {
        assert!(!vm.is_there(nth, 7), "nobody has asked");
        for page in [7, pages - 1, 100, 101] {
            assert_eq!(vm.fault(gpa + (page * PAGE) as u64, PAGE as u64), OK);
            assert!(vm.is_there(nth, page));
            assert_eq!(vm.page(nth, page), content(slot, page), "{slot} {page}");
        }
        // What the guest has written stays, and is not fetched again.
        let at = SLOTS[nth].3 + 200 * PAGE as u64;
        vm.memfds[nth]
            .1
            .write_all_at(&[9; PAGE], at)
            .expect("written");
        assert_eq!(vm.fault(gpa + (200 * PAGE) as u64, PAGE as u64), OK);
        assert_eq!(vm.page(nth, 200), [9; PAGE]);
        // A first one, which brings others along; not that one.
        assert_eq!(vm.fault(gpa, PAGE as u64), OK);
        assert_eq!(
            (vm.page(nth, 0), vm.page(nth, 200)),
            (content(slot, 0), [9; PAGE])
        );
        // Several at once.
        assert_eq!(vm.fault(gpa + (250 * PAGE) as u64, 8 * PAGE as u64), OK);
        assert_eq!(vm.page(nth, 257), content(slot, 257));
    }
    // No memory of the guest's.
    for (gpa, len) in [
        (512 << 12, 4096),
        (0, 0),
        (u64::MAX - 4095, 4096),
        (0, u64::MAX),
        (511 << 12, 8192),
    ] {
        assert_ne!(vm.fault(gpa, len), OK, "{gpa} {len}");
    }
    drop(vm);
    let ended = ours.ended().ends_with(1);
    assert!(
        ended
            .message()
            .contains("5 page faults could not be answered"),
        "{}",
        ended.err
    );
}

#[test]
fn it_is_filled_meanwhile_and_left_paused_if_that_is_wanted() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    snapshot(&place);
    let (ours, listener) = start(&place, &["--paused"]);
    let mut vm = Receiver::accept(&listener);
    vm.receive(&listener, 0);
    assert_eq!(vm.last, 8);
    for (nth, (slot, _, pages, _)) in SLOTS.into_iter().enumerate() {
        for page in 0..pages {
            until("the page", || vm.is_there(nth, page).then_some(()));
            assert_eq!(vm.page(nth, page), content(slot, page));
        }
    }
    drop(vm);
    ours.ended().ends_with(0);
}

/// Where the VMM of [`vmm`] listens.
const VMM: &str = "OFFLOAD_TEST_VMM";

/// No test, but a VMM in a process of its own, which may be killed.
#[test]
fn vmm() {
    let Ok(path) = std::env::var(VMM) else { return };
    let listener = UnixListener::bind(path).expect("a socket");
    println!("LISTENING");
    let mut vm = Receiver::accept(&listener);
    vm.receive(&listener, 0);
    assert_eq!(vm.fault(7 << 12, PAGE as u64), OK);
    assert_eq!(vm.page(0, 7), content(0, 7));
    println!("RESTORED");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    if line == "damage\n" {
        // Of no memory: as if it could not be read.
        let _ = vm.fault(512 << 12, PAGE as u64);
    }
    // The end, if it is that: it waits for nothing.
    let read = vm.faults.expect("connected").read(&mut [0; 16]);
    println!("READ {}", read.unwrap_or(0));
}

/// A VMM that has its memory from us by now.
fn restored(place: &Place, more: &[&str]) -> (Running, Running) {
    let _ = std::fs::remove_file(place.join("ch.sock"));
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "offloading::vmm", "--nocapture"]);
    let mut command = place.here(command);
    command
        .env(VMM, place.join("ch.sock"))
        .stdin(Stdio::piped());
    let vmm = place.start(command);
    let says = |process: &Running, word: &str| {
        until(word, || process.out_so_far().contains(word).then_some(()))
    };
    says(&vmm, "LISTENING");
    let args = ["pager", "offload", "--snapshot", "snapshot", "--to"];
    let args = args.iter().chain(&["unix:ch.sock"]).chain(more);
    let ours = place.start(place.tool(args));
    says(&vmm, "RESTORED");
    (ours, vmm)
}

/// It waited for pages that nobody would bring, unless it was one that looks at the end of its connection.
#[test]
fn a_vm_does_not_outlive_one_that_is_killed_if_that_is_wanted() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    snapshot(&place);
    let (ours, vmm) = restored(&place, &["--on-loss", "kill"]);
    ours.signal(Signal::KILL);
    let ran = vmm.ended();
    assert_eq!(ran.status.signal(), Some(libc::SIGKILL), "{ran:?}");
    // Said by another process, after it has done it.
    let said = "its VM, which needs it, is ended";
    until(said, || ours.err_so_far().contains(said).then_some(()));
    let _ = ours.ended();
    // It is killed for a page, too.
    let (ours, mut vmm) = restored(&place, &["--on-loss", "kill"]);
    vmm.say("damage");
    let ran = vmm.ended();
    assert_eq!(ran.status.signal(), Some(libc::SIGKILL), "{ran:?}");
    let ran = ours.ended().ends_with(1);
    assert!(
        ran.err.contains("1 page faults could not be answered"),
        "{}",
        ran.err
    );
    // Else it is told.
    let (ours, mut vmm) = restored(&place, &[]);
    vmm.say("end");
    ours.signal(Signal::KILL);
    let ran = vmm.ended().ends_with(0);
    assert!(ran.out.contains("READ 0"), "{}", ran.out);
    let _ = ours.ended();
}

#[test]
fn what_does_not_fit_or_is_refused_is_told() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    snapshot(&place);
    for refuses in [1, 7, 2, 3, 5] {
        let (ours, listener) = start(&place, &[]);
        let mut vm = Receiver::accept(&listener);
        vm.receive(&listener, refuses);
        let ended = ours.ended().ends_with(1);
        assert!(
            ended.message().contains("Cloud Hypervisor refuses"),
            "{}",
            ended.err
        );
        drop(vm);
    }
    let offload = |why: &str| {
        let args = [
            "pager",
            "offload",
            "--snapshot",
            "snapshot",
            "--to",
            "unix:nobody",
        ];
        let ended = place.amdahl(args).ends_with(1);
        assert!(ended.message().contains(why), "{why}: {}", ended.err);
    };
    offload("nobody");
    std::fs::write(place.join("snapshot/memory-0"), [0; 2 * PAGE]).expect("written");
    offload("are they of one snapshot?");
    std::fs::write(place.join("snapshot/migration_config.json"), "{}").expect("written");
    offload("the slots of memory are not found");
    std::fs::remove_file(place.join("snapshot/state.json")).expect("it was there");
    offload("state.json");
}

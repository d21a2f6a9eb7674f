//! `amdahl pager offload`: a VM of Cloud Hypervisor is restored, and its memory arrives on demand. We play the sender of a local migration, as its
//! documentation has it for offload daemons.

mod described;
pub mod guard;
mod slot;
mod wire;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use amdahl_pager::handoff::{Peer, send_with};
use amdahl_pager::{Background, Support, Way};

use crate::cli::offload::{OnLoss, PagerOffload};
use crate::failure::Failure;
use crate::pager::migrate::tell;
use described::described;
use guard::Guard;
use slot::{Filling, Slot};
use wire::{Asked, Command, HEAD, RANGE};

/// How long Cloud Hypervisor may take for a step: it makes a VM.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn main(args: &PagerOffload) -> Result<u8, Failure> {
    match Support::probe().way {
        Some(Way::Device | Way::Call) => {}
        _ => {
            return Err(Failure::machine(
                "this needs a userfaultfd that serves the kernel, too: root, setfacl -m u:USER:rw /dev/userfaultfd, or sysctl vm.unprivileged_userfaultfd=1".to_owned(),
            ));
        }
    }
    let read = |name: &str| {
        let path = args.snapshot.join(name);
        std::fs::read(&path)
            .map_err(|error| Failure::result(format!("{}: {error}", path.display())))
    };
    let (config, state) = (read("migration_config.json")?, read("state.json")?);
    let wrong = |why: String| Failure::result(format!("migration_config.json: {why}"));
    let filling = Filling {
        background: match args.no_fill {
            true => Background::Off,
            false => Background::Unlimited,
        },
        timeout: Duration::from_secs(args.read_timeout),
    };
    let slots: Result<Vec<Slot>, String> = described(&config)
        .map_err(wrong)?
        .into_iter()
        .map(|described| Slot::new(described, &args.snapshot, filling))
        .collect();
    let slots = slots.map_err(Failure::result)?;

    let connect = || UnixStream::connect(&args.to).map_err(|error| at(args, "connect", &error));
    let mut stream = connect()?;
    let vmm = match args.on_loss {
        OnLoss::Tell => None,
        OnLoss::Kill => Some(Peer::of(&stream).map_err(|error| at(args, "who it is", &error))?),
    };
    let limit = Some(PATIENCE);
    stream
        .set_read_timeout(limit)
        .and_then(|()| stream.set_write_timeout(limit))
        .map_err(|error| at(args, "a timeout", &error))?;
    step(args, &mut stream, Command::Start, &[], None)?;
    for slot in &slots {
        let number = slot.described.slot.to_le_bytes();
        step(args, &mut stream, Command::MemoryFd, &number, Some(slot))?;
    }
    let mut say =
        |command: Command, payload: &[u8]| step(args, &mut stream, command, payload, None);
    say(Command::Config, &config)?;
    // Faults come as soon as the state is taken.
    let mut faults = connect()?;
    faults
        .write_all(&wire::FAULT_ROLE)
        .map_err(|error| at(args, "the connection for page faults", &error))?;
    std::thread::scope(|scope| {
        let serving = std::thread::Builder::new()
            .name("offload-faults".to_owned())
            .spawn_scoped(scope, || serve(&faults, &slots, vmm.as_ref()));
        let serving = serving.map_err(|error| at(args, "a thread", &error))?;
        let last = match args.paused {
            true => Command::CompletePaused,
            false => Command::Complete,
        };
        let restored = say(Command::State, &state)
            // Before the VM runs, or it could be left alone.
            .and_then(|()| watched(vmm.as_ref()))
            .and_then(|guard| match say(last, &[]) {
                Ok(()) => Ok(guard),
                Err(failure) => {
                    guard.into_iter().for_each(Guard::over);
                    Err(failure)
                }
            });
        let guard = match restored {
            Ok(guard) => guard,
            Err(failure) => {
                let _ = faults.shutdown(std::net::Shutdown::Both);
                let _ = serving.join();
                return Err(failure);
            }
        };
        tell(args.quiet, "the VM is restored; its memory arrives");
        let served = serving.join().expect("it does not panic");
        guard.into_iter().for_each(Guard::over);
        let missing: usize = slots.iter().map(Slot::pages_missing).sum();
        tell(
            args.quiet,
            &format!(
                "{} page faults; {missing} pages were never needed",
                served.faults
            ),
        );
        match served.lost {
            0 => Ok(0),
            lost => Err(Failure::result(format!(
                "{lost} page faults could not be answered: the snapshot cannot be read, or is damaged"
            ))),
        }
    })
}

/// Has a process end the VM when we are killed, if that is wanted.
fn watched(vmm: Option<&Peer>) -> Result<Option<Guard>, Failure> {
    let guard = vmm.map(Guard::start).transpose();
    guard.map_err(|why| Failure::machine(format!("--on-loss kill: {why}")))
}

fn at(args: &PagerOffload, what: &str, error: &std::io::Error) -> Failure {
    Failure::result(format!("{}: {what}: {error}", args.to.display()))
}

/// Says something, with a memfd beside it if there is one, and hears that it is well.
fn step(
    args: &PagerOffload,
    stream: &mut UnixStream,
    command: Command,
    payload: &[u8],
    slot: Option<&Slot>,
) -> Result<(), Failure> {
    let name = format!("{command:?}");
    let mut answer = [0; HEAD];
    let said = stream
        .write_all(&wire::request(command, payload.len() as u64))
        .and_then(|()| match slot {
            Some(slot) => send_with(stream, payload, Some(slot.memfd())).map_err(Into::into),
            None => stream.write_all(payload),
        })
        .and_then(|()| stream.read_exact(&mut answer));
    said.map_err(|error| at(args, &name, &error))?;
    match wire::is_ok(&answer) {
        true => Ok(()),
        false => Err(Failure::result(format!(
            "{}: Cloud Hypervisor refuses {name}: its own messages say why",
            args.to.display()
        ))),
    }
}

/// What became of faults.
#[derive(Default)]
struct Served {
    faults: u64,
    lost: u64,
}

/// Answers page faults until the other side has gone, or says something else. A VMM that is given is killed when a page cannot be had.
fn serve(mut stream: &UnixStream, slots: &[Slot], vmm: Option<&Peer>) -> Served {
    /// Of a huge page; more is nobody's.
    const MOST: u64 = 1 << 30;
    let mut served = Served::default();
    let mut head = [0; HEAD];
    let mut bytes = [0; RANGE];
    while stream.read_exact(&mut head).is_ok() {
        let is_there = match wire::asked(&head) {
            Some(Asked::PageFault) if stream.read_exact(&mut bytes).is_ok() => {
                let (gpa, len) = wire::range(&bytes);
                served.faults += 1;
                let found = slots
                    .iter()
                    .find_map(|slot| Some((slot, slot.part(gpa, len)?)));
                len <= MOST && found.is_some_and(|(slot, part)| slot.bring(part))
            }
            Some(Asked::Abandon) => {
                let _ = stream.write_all(&wire::response(true));
                break;
            }
            _ => break,
        };
        served.lost += u64::from(!is_there);
        if let (false, Some(vmm)) = (is_there, vmm) {
            // Not answered: whoever waits for the page is never to go on.
            let _ = vmm.kill();
            break;
        }
        if stream.write_all(&wire::response(is_there)).is_err() {
            break;
        }
    }
    served
}

//! What a VMM asks for before it hands its memory over, at a socket where others hand over without asking.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::Malformed;
use super::receive::{ReceiveError, is_readable};
use super::send::send_with;

/// Bytes of a question, and of the answer to one.
const BYTES: usize = 8;
/// The answer to [`Question::WorkingSet`].
const READY: [u8; BYTES] = *b"AMDLWS\0\x01";

/// What is asked for, in 8 bytes: six letters, 0 and the version 1. No JSON begins with the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Question {
    /// The one copy of the clean pages (`AMDLCQ`): it is [offered](super::offer) at once.
    CleanPages,
    /// A word when the VM's working set is there (`AMDLWQ`): it is [told](tell_ready) after the memory was handed over.
    WorkingSet,
}

impl Question {
    const ALL: [Question; 2] = [Question::CleanPages, Question::WorkingSet];

    fn bytes(self) -> [u8; BYTES] {
        match self {
            Question::CleanPages => *b"AMDLCQ\0\x01",
            Question::WorkingSet => *b"AMDLWQ\0\x01",
        }
    }
}

/// Asks. Each question once, [`WorkingSet`](Question::WorkingSet) before [`CleanPages`](Question::CleanPages), which is answered at once.
///
/// # Errors
/// What the system says.
pub fn ask(stream: &UnixStream, question: Question) -> std::io::Result<()> {
    Ok(send_with(stream, &question.bytes(), None)?)
}

/// What the peer [asks](ask) for next, before it hands memory over; what it says else is left to be [received](super::receive), which is `None`. Returns after
/// `within` at the latest, whatever the peer does.
///
/// # Errors
/// [`ReceiveError`]: nothing came, or something that is neither.
pub fn question(stream: &UnixStream, within: Duration) -> Result<Option<Question>, ReceiveError> {
    let begun = Instant::now();
    // Looked at, and left there if it is no question: descriptors may come with it.
    let mut bytes = [0; BYTES];
    take(stream, &mut bytes[..1], RecvFlags::PEEK, begun, within)?;
    if !Question::ALL
        .iter()
        .any(|question| question.bytes()[0] == bytes[0])
    {
        return Ok(None);
    }
    take(stream, &mut bytes, RecvFlags::empty(), begun, within)?;
    let asked = Question::ALL
        .into_iter()
        .find(|question| question.bytes() == bytes);
    match asked {
        Some(question) => Ok(Some(question)),
        None => Err(Malformed::Foreign(bytes[0]).into()),
    }
}

/// Tells who has asked that its [working set](Question::WorkingSet) is there, or that there is nothing to wait for: 8 bytes, `AMDLWS`, 0 and the version 1.
///
/// # Errors
/// What the system says: it may be gone.
pub fn tell_ready(stream: &UnixStream) -> std::io::Result<()> {
    Ok(send_with(stream, &READY, None)?)
}

/// Waits for that. What it says is a matter of speed alone: after an error as well the VM may begin, and what is missing arrives when it is touched.
///
/// # Errors
/// [`ReceiveError`]: nothing came, or something else. Who serves may have been killed, or replaced by one that cannot know what was asked.
pub fn wait_ready(stream: &UnixStream, within: Duration) -> Result<(), ReceiveError> {
    let mut bytes = [0; BYTES];
    take(
        stream,
        &mut bytes,
        RecvFlags::empty(),
        Instant::now(),
        within,
    )?;
    match bytes == READY {
        true => Ok(()),
        false => Err(Malformed::Foreign(bytes[0]).into()),
    }
}

/// All bytes, or why they did not come in time. Descriptors that come with them are closed by the kernel.
fn take(
    stream: &UnixStream,
    into: &mut [u8],
    flags: RecvFlags,
    begun: Instant,
    within: Duration,
) -> Result<(), ReceiveError> {
    let system = |operation| move |errno| ReceiveError::System { operation, errno };
    let mut bytes = 0;
    while bytes < into.len() {
        let left = within.saturating_sub(begun.elapsed());
        if !is_readable(stream, left).map_err(system("poll"))? {
            return Err(ReceiveError::Silent { within, bytes });
        }
        match recv(stream, &mut into[bytes..], flags | RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(Errno::CONNRESET) => return Err(ReceiveError::Closed { bytes }),
            Ok((received, _)) => bytes += received,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(system("recv")(errno)),
        }
    }
    Ok(())
}

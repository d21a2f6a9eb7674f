//! Cloud Hypervisor's local migration, as far as a sender needs it: `vm-migration/src/protocol.rs` of its repository, version 0. Pure.

/// Bytes of a request and of a response.
pub const HEAD: usize = 16;
/// Bytes of what follows a page fault.
pub const RANGE: usize = 16;
/// What a connection for page faults begins with.
pub const FAULT_ROLE: [u8; 2] = 2_u16.to_le_bytes();

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    Start = 1,
    Config = 2,
    State = 3,
    Complete = 5,
    Abandon = 6,
    MemoryFd = 7,
    CompletePaused = 8,
    PageFault = 9,
}

/// A request, before its payload. The version is in the six bytes after the command, and is 0.
pub fn request(command: Command, length: u64) -> [u8; HEAD] {
    head(command as u16, length)
}

/// What is answered to a page fault: nothing follows, the page is in the shared memory.
pub fn response(is_there: bool) -> [u8; HEAD] {
    head(if is_there { 1 } else { 2 }, 0)
}

fn head(kind: u16, length: u64) -> [u8; HEAD] {
    let mut bytes = [0; HEAD];
    bytes[..2].copy_from_slice(&kind.to_le_bytes());
    bytes[8..].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

/// Whether a response says that all is well, and nothing follows it.
pub fn is_ok(bytes: &[u8; HEAD]) -> bool {
    bytes[..2] == [1, 0] && number(&bytes[8..]) == 0
}

/// A request on the connection for page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Of so many bytes of what follows.
    PageFault,
    Abandon,
}

/// What is asked, of bytes that anybody may have sent.
pub fn asked(bytes: &[u8; HEAD]) -> Option<Asked> {
    let command = u16::from_le_bytes([bytes[0], bytes[1]]);
    let length = number(&bytes[8..]);
    const FAULT: u16 = Command::PageFault as u16;
    const ABANDON: u16 = Command::Abandon as u16;
    match (command, length) {
        (FAULT, length) if length == RANGE as u64 => Some(Asked::PageFault),
        (ABANDON, 0) => Some(Asked::Abandon),
        _ => None,
    }
}

/// Where a page is in the guest, and its bytes.
pub fn range(bytes: &[u8; RANGE]) -> (u64, u64) {
    (number(&bytes[..8]), number(&bytes[8..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_and_nothing_else() {
        assert_eq!(
            request(Command::Start, 0),
            [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(
            request(Command::Config, 258)[..10],
            [2, 0, 0, 0, 0, 0, 0, 0, 2, 1]
        );
        assert!(is_ok(&response(true)));
        assert!(!is_ok(&response(false)));
        assert!(!is_ok(&head(1, 4096)));
        assert_eq!(
            asked(&request(Command::PageFault, 16)),
            Some(Asked::PageFault)
        );
        assert_eq!(asked(&request(Command::Abandon, 0)), Some(Asked::Abandon));
        for wrong in [
            request(Command::PageFault, 4096),
            request(Command::Start, 0),
            [0xff; HEAD],
        ] {
            assert_eq!(asked(&wrong), None);
        }
        let mut bytes = [0; RANGE];
        (bytes[1], bytes[9]) = (0x10, 0x10);
        assert_eq!(range(&bytes), (4096, 4096));
    }
}

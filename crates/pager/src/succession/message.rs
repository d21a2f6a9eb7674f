//! What two daemons say to each other: one JSON object a message, with descriptors beside some. Pure.

use serde::{Deserialize, Serialize};

use crate::handoff::{Malformed, parse};
use crate::{HandedOver, PAGE};

/// Bytes of a message at most: the regions of a VM are the most that is said.
pub const BYTES_MAX: usize = 160 << 10;
/// Descriptors beside a message at most.
pub const DESCRIPTORS_MAX: usize = 5;
/// The newest version that is spoken.
pub const VERSION: u32 = 2;
/// The oldest in which a VM that maps a file of clean pages can be told.
pub const MAPS_SINCE: u32 = 2;
/// The oldest.
pub const OLDEST: u32 = 1;
/// Of any text in a message.
const TEXT_MAX: usize = 4096;

/// Why something is no message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// It is too long.
    #[error("{0} bytes are too many")]
    TooLong(usize),
    /// It is no JSON of ours.
    #[error("it is no message of this protocol: {0}")]
    Json(String),
    /// It has other descriptors than it should.
    #[error("it comes with {came} descriptors instead of {expected}")]
    Descriptors {
        /// As many came.
        came: usize,
        /// As many should have.
        expected: &'static str,
    },
    /// A text is too long.
    #[error("a text in it is too long")]
    Text,
}

/// A region, by the names of the hand-off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Address of its first byte in the VMM.
    pub base_host_virt_addr: u64,
    /// Bytes.
    pub size: u64,
    /// Where in the image its content begins.
    pub offset: u64,
    /// Of its pages.
    pub page_size: u64,
}

/// A VM that is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// Counted from 1.
    pub number: u64,
    /// The process that connected.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
    /// What its owner asked the kernel for.
    pub features: Option<u64>,
    /// Its memory.
    pub regions: Vec<Region>,
    /// It maps a file of clean pages.
    #[serde(default, skip_serializing_if = "is_false")]
    pub maps: bool,
}

/// What was not said before there was more to say.
fn is_false(value: &bool) -> bool {
    !value
}

impl Vm {
    /// Its regions, for a source of so many bytes: checked as a VMM's are.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn regions(&self, source_bytes: u64) -> Result<Vec<HandedOver>, Malformed> {
        let text = serde_json::to_vec(&self.regions);
        parse(
            &text.map_err(|error| Malformed::Json(error.to_string()))?,
            source_bytes,
        )
    }
}

impl From<&HandedOver> for Region {
    fn from(region: &HandedOver) -> Region {
        Region {
            base_host_virt_addr: region.start as u64,
            size: region.len as u64,
            offset: region.source_offset,
            page_size: region.page_bytes as u64,
        }
    }
}

/// What is said. The first two lines are the same in all versions, and what is not known in them is passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Message {
    /// First: who stands by, or wants to take over.
    Hello {
        /// The oldest version that it speaks.
        oldest: u32,
        /// The newest.
        newest: u32,
        /// The version of the program.
        program: String,
        /// Of the memory that it has opened, in hexadecimal.
        identity: String,
        /// Of that memory.
        memory_bytes: u64,
        /// VMs that it can serve.
        max_vms: u32,
        /// It wants to take over now; else it stands by.
        replaces: bool,
    },
    /// The answer: no, and why.
    No {
        /// In words.
        why: String,
    },
    /// The answer: yes. With the socket that VMMs connect to, the control socket, and the arbiter.
    Welcome {
        /// The version that is spoken from now on.
        version: u32,
        /// Where VMMs connect, in words.
        listen: String,
        /// The file of that socket, and its numbers, if it is to be removed at the end.
        file: Option<SocketFile>,
        /// Where it is controlled.
        control: String,
        /// That socket's file.
        control_file: Option<SocketFile>,
        /// The number by which the arbiter knows it.
        member: u32,
    },
    /// It has locked its number.
    Entered,
    /// A VM, with its userfaultfd, its ledger, its connection, if it maps a file of clean pages [what that has](super::Filled), and, if there is one, its process.
    Vm(Vm),
    /// The VM is held: from now on it survives.
    Held {
        /// Which.
        number: u64,
    },
    /// A VM needs nobody any more.
    Ended {
        /// Which.
        number: u64,
    },
    /// All VMs of this moment have been told.
    Current {
        /// The number of the last VM that there was.
        last: u64,
    },
    /// Asks for the turn.
    Take,
    /// Gives it.
    Yours {
        /// The number of the last VM that there was.
        last: u64,
    },
    /// It serves.
    Mine,
    /// It is not given.
    Abort {
        /// In words.
        why: String,
    },
    /// No more VMs are taken: the sockets are of no use.
    Closing,
    /// It ends, and leaves nothing behind that somebody has to serve.
    Released,
}

/// A socket's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketFile {
    /// Its name.
    pub path: String,
    /// Its device.
    pub dev: u64,
    /// Its number there.
    pub ino: u64,
}

impl Message {
    /// Its bytes.
    ///
    /// # Errors
    /// [`Unreadable`]: whoever gets them would refuse them.
    pub fn encode(&self) -> Result<Vec<u8>, Unreadable> {
        let bytes =
            serde_json::to_vec(self).map_err(|error| Unreadable::Json(error.to_string()))?;
        Message::checked(self, bytes.len())?;
        Ok(bytes)
    }

    /// Of bytes that came whole, with so many descriptors.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn decode(bytes: &[u8], descriptors: usize) -> Result<Message, Unreadable> {
        if bytes.len() > BYTES_MAX {
            return Err(Unreadable::TooLong(bytes.len()));
        }
        let message: Message =
            serde_json::from_slice(bytes).map_err(|error| Unreadable::Json(error.to_string()))?;
        message.checked(bytes.len())?;
        let (fits, expected) = match &message {
            Message::Welcome { .. } => (descriptors == 3, "3"),
            Message::Vm(Vm { maps: false, .. }) => ((3..=4).contains(&descriptors), "3 or 4"),
            Message::Vm(_) => ((4..=5).contains(&descriptors), "4 or 5"),
            _ => (descriptors == 0, "0"),
        };
        match fits {
            true => Ok(message),
            false => Err(Unreadable::Descriptors {
                came: descriptors,
                expected,
            }),
        }
    }

    fn checked(&self, len: usize) -> Result<(), Unreadable> {
        if len > BYTES_MAX {
            return Err(Unreadable::TooLong(len));
        }
        let file = |file: &Option<SocketFile>| file.as_ref().map_or(0, |file| file.path.len());
        let longest = match self {
            Message::Hello {
                program, identity, ..
            } => program.len().max(identity.len()),
            Message::No { why } | Message::Abort { why } => why.len(),
            Message::Welcome {
                listen,
                file: socket,
                control,
                control_file,
                ..
            } => (listen.len().max(control.len()))
                .max(file(socket))
                .max(file(control_file)),
            _ => 0,
        };
        match longest <= TEXT_MAX {
            true => Ok(()),
            false => Err(Unreadable::Text),
        }
    }
}

/// The version that both speak, if there is one.
pub fn common_version(oldest: u32, newest: u32) -> Option<u32> {
    let version = newest.min(VERSION);
    (version >= oldest.max(OLDEST)).then_some(version)
}

/// Bytes of an identity as it is said.
pub fn identity(bytes: &[u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// A VM with as many regions as there may be can be said: each takes no more than this.
const _: () = assert!(crate::handoff::REGIONS_MAX * 150 + PAGE < BYTES_MAX);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn vm(regions: usize) -> Vm {
        let region = |nth: usize| Region {
            base_host_virt_addr: (1 << 55) + ((nth as u64) << 24),
            size: 1 << 23,
            offset: (1 << 55) + ((nth as u64) << 24),
            page_size: 4096,
        };
        Vm {
            number: u64::MAX,
            pid: Some(u32::MAX),
            uid: u32::MAX,
            features: Some(u64::MAX),
            regions: (0..regions).map(region).collect(),
            maps: false,
        }
    }

    fn mapping(regions: usize) -> Vm {
        Vm {
            maps: true,
            ..vm(regions)
        }
    }

    #[test]
    fn the_largest_vm_that_is_taken_can_be_said() {
        let largest = Message::Vm(mapping(crate::handoff::REGIONS_MAX));
        let bytes = largest.encode().unwrap();
        assert_eq!(Message::decode(&bytes, 5).unwrap(), largest);
        let regions = vm(crate::handoff::REGIONS_MAX).regions(1 << 56).unwrap();
        assert_eq!(regions.len(), crate::handoff::REGIONS_MAX);
    }

    #[test]
    fn regions_of_a_peer_are_checked_as_those_of_a_vmm() {
        let mut two = vm(2);
        two.regions[1].base_host_virt_addr = two.regions[0].base_host_virt_addr;
        assert!(two.regions(1 << 56).is_err());
        assert!(vm(1).regions(1 << 20).is_err());
        assert!(vm(0).regions(1 << 20).is_err());
    }

    #[test]
    fn a_message_has_the_descriptors_that_it_needs() {
        for (message, right, wrong) in [
            (Message::Take, vec![0], vec![1, 4]),
            (Message::Vm(vm(1)), vec![3, 4], vec![0, 2, 5]),
            (Message::Vm(mapping(1)), vec![4, 5], vec![0, 3, 6]),
        ] {
            let bytes = message.encode().unwrap();
            for descriptors in right {
                assert!(Message::decode(&bytes, descriptors).is_ok());
            }
            for descriptors in wrong {
                assert!(Message::decode(&bytes, descriptors).is_err());
            }
        }
    }

    /// So it was said in version 1, and always will be.
    #[test]
    fn the_first_words_are_understood_whatever_is_added() {
        let hello = br#"{"is":"hello","oldest":3,"newest":9,"program":"2.0","identity":"00","memory_bytes":4096,"max_vms":1,"replaces":true,"mood":[1]}"#;
        let Ok(Message::Hello { oldest, newest, .. }) = Message::decode(hello, 0) else {
            panic!("a hello");
        };
        assert_eq!(common_version(oldest, newest), None);
        assert_eq!(common_version(1, 9), Some(VERSION));
        assert_eq!(common_version(1, 1), Some(1));
        assert_eq!(common_version(0, 0), None);
        assert!(Message::decode(br#"{"is":"no","why":"later","more":0}"#, 0).is_ok());
    }

    /// In version 1 nothing was said of what a VM maps.
    #[test]
    fn a_vm_is_told_as_in_version_1_unless_it_maps_a_file() {
        let said = |vm: Vm| String::from_utf8(Message::Vm(vm).encode().unwrap()).unwrap();
        assert!(!said(vm(1)).contains("maps"));
        assert!(said(mapping(1)).contains("maps"));
        let old = br#"{"is":"vm","number":1,"pid":null,"uid":0,"features":null,"regions":[]}"#;
        let Ok(Message::Vm(vm)) = Message::decode(old, 3) else {
            panic!("a VM");
        };
        assert!(!vm.maps);
    }

    #[test]
    fn what_is_too_long_is_refused() {
        let why = "w".repeat(TEXT_MAX + 1);
        assert!(Message::No { why: why.clone() }.encode().is_err());
        let text = format!(r#"{{"is":"no","why":"{why}"}}"#);
        assert!(Message::decode(text.as_bytes(), 0).is_err());
        assert!(Message::decode(&vec![b' '; BYTES_MAX + 1], 0).is_err());
        assert_eq!(identity(&[0xab; 16]).len(), 32);
    }
}

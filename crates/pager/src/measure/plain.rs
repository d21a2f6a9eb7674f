//! The usual handler, with nothing that could be left out: what others are compared with.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::sys::support::Support;
use crate::sys::uffd::{Features, Message, Messages, Uffd};
use crate::{Backing, Error, Mapping, PAGE};

pub(super) struct Plain {
    reader: Option<JoinHandle<()>>,
    /// Touching it ends the reader.
    control: Mapping,
}

impl Plain {
    /// Fills `memory` from `content`, which is as long.
    pub fn start(memory: &Arc<Mapping>, content: *mut u8) -> Result<Plain, Error> {
        let support = Support::probe();
        let uffd = support
            .open(Features::NONE, false)
            .map_err(|_| Error::Unavailable(support.missing().join("; ")))?;
        let control = Mapping::new(PAGE, Backing::Small)?;
        let registered = Error::system("UFFDIO_REGISTER");
        for mapping in [&control, &**memory] {
            let start = mapping.as_ptr().expose_provenance();
            // SAFETY: new memory, which is read for what is put there.
            unsafe { uffd.register(start..start + mapping.len()) }.map_err(&registered)?;
        }
        let (start, content) = (memory.as_ptr().addr(), content.expose_provenance());
        let end = control.as_ptr().addr();
        let reader = thread::spawn(move || serve(&uffd, start, content, end));
        Ok(Plain {
            reader: Some(reader),
            control,
        })
    }
}

fn serve(uffd: &Uffd, start: usize, content: usize, end: usize) {
    let mut messages = Messages::<1>::new();
    while let Ok(mut read) = uffd.read(&mut messages) {
        let Some(Message::Fault { address, .. }) = read.next() else {
            continue;
        };
        if address == end {
            let _ = uffd.zero(address..address + PAGE);
            return;
        }
        let from = std::ptr::with_exposed_provenance(content + (address - start));
        // SAFETY: the content is as long as the memory.
        let _ = unsafe { uffd.copy(address..address + PAGE, from) };
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: our own page. Volatile: it is the fault that is wanted.
        unsafe { self.control.as_ptr().read_volatile() };
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

//! Why the tool ends, and with which exit code.

/// A message for the user and the exit code that goes with it.
#[derive(Debug)]
pub struct Failure {
    /// What, why and what to do.
    pub message: String,
    /// One of the documented codes.
    pub code: u8,
}

impl Failure {
    /// A result could not be written or read.
    pub fn result(message: String) -> Failure {
        Failure { message, code: 1 }
    }

    /// The command line is wrong.
    pub fn usage(message: String) -> Failure {
        Failure { message, code: 2 }
    }

    /// The program could not be started, or always failed.
    pub fn program(message: String) -> Failure {
        Failure { message, code: 3 }
    }

    /// The machine does not let us measure.
    pub fn machine(message: String) -> Failure {
        Failure { message, code: 6 }
    }
}

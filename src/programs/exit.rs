//! Exit statuses: for scripts and people; Slurm only logs them (slurm-facts 0 #8).

use std::process::ExitCode;

use crate::store::error::StoreError;

/// What a program says when it ends. The numbers are documented in README.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything asked for was done.
    Done,
    /// Done, but some nodes were set down or some instances could not be terminated.
    SomeFailed,
    /// The command line or the host list cannot be understood; nothing was touched.
    Usage,
    /// An outside system (EC2, slurmctld) did not answer in time; what is left is finished by the next program.
    TempFail,
    /// The configuration or the state folder cannot be used.
    Config,
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::SomeFailed => 1,
            Self::Usage => 2,
            Self::TempFail => 75,
            Self::Config => 78,
        }
    }
}

/// Why a story ends before it has begun, for the log and for the one who called.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) error: String,
    pub(crate) exit: Exit,
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        Self { error: crate::error::chain(&error), exit: Exit::from(&error) }
    }
}

impl From<&StoreError> for Exit {
    /// Somebody else's lock is gone sooner or later; everything else wants a person.
    fn from(error: &StoreError) -> Self {
        if error.is_temporary() { Self::TempFail } else { Self::Config }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

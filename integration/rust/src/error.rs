// SPDX-License-Identifier: GPL-2.0
//! What may go wrong with a call.

use crate::Progress;
use std::{error, fmt, io};

/// Why a call did not do all that it was to do.  None of it harms the guest: what is not
/// mapped ahead, its vCPUs fault on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The kernel's answer to `call`.  What it had done before is in `progress`.
    Kernel { call: &'static str, error: io::Error, progress: Progress },
    /// The kernel asked to be called again, but does not get on: so many times in a row.
    Stuck { call: &'static str, attempts: u32, error: io::Error, progress: Progress },
    /// The caller's own, found before the kernel was asked.
    Argument(&'static str),
}

impl Error {
    /// How far it came.
    pub fn progress(&self) -> Progress {
        match self {
            Error::Kernel { progress, .. } | Error::Stuck { progress, .. } => *progress,
            Error::Argument(_) => Progress::default(),
        }
    }

    /// The errno, if it was the kernel that refused.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Kernel { error, .. } | Error::Stuck { error, .. } => error.raw_os_error(),
            Error::Argument(_) => None,
        }
    }

    /// Whether the rest may well succeed later: the vCPUs have no CPUID yet, memory is short,
    /// or something is in the way.
    pub fn is_temporary(&self) -> bool {
        let known = [libc::ENXIO, libc::ENOMEM, libc::EINTR, libc::EAGAIN];
        self.errno().map_or(false, |errno| known.contains(&errno))
    }
}

/// What each errno of these calls says; see Documentation/virt/kvm/global_tdp.rst.
fn hint(errno: Option<i32>) -> &'static str {
    match errno {
        Some(libc::EOPNOTSUPP) => ": the VM has not got the feature",
        Some(libc::ENOENT) => ": there is no memslot",
        Some(libc::ENXIO) => ": give the first vCPU its CPUID before",
        Some(libc::ENOMEM) => ": no memory is free for page tables",
        Some(libc::EBUSY) => ": the VM has a vCPU",
        Some(libc::EIO) => ": the VM is another process's",
        _ => "",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hint = hint(self.errno());
        match self {
            Error::Kernel { call, error, progress } => {
                write!(f, "{} at {:#x}: {}{}", call, progress.gpa, error, hint)
            }
            Error::Stuck { call, attempts, error, progress } => write!(
                f,
                "{} at {:#x}: {} times in a row: {}",
                call, progress.gpa, attempts, error
            ),
            Error::Argument(what) => f.write_str(what),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Error::Kernel { error, .. } | Error::Stuck { error, .. } => Some(error),
            Error::Argument(_) => None,
        }
    }
}

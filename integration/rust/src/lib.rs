// SPDX-License-Identifier: GPL-2.0
//! Global TDP for VMMs: stage-2 page tables of a KVM guest, built ahead of its vCPUs.
//!
//! Anything that has the VM's file descriptor will do as a VM: a `VmFd` of kvm-ioctls, a
//! `File`, an `OwnedFd`.
//!
//! ```no_run
//! # fn restored(vm: &std::fs::File) -> Result<(), global_tdp::Error> {
//! use global_tdp::{enable, Features, Populate};
//!
//! // Before the first vCPU.  What the kernel has not got is left out.
//! let has = enable(vm, Features::POPULATE | Features::PAGE_CACHE)?;
//!
//! // Once memslots are set and the first vCPU has its CPUID.
//! if has.contains(Features::POPULATE) {
//!     let done = Populate::new(1 << 30, 64 << 20).page_cache(has).run(vm)?;
//!     println!("{} bytes are mapped, {} are absent", done.mapped, done.absent);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! On a kernel without it, [`enable`] returns [`Features::NONE`], nothing is populated, and
//! vCPUs fault as ever.  The same holds after any [`Error`].
//!
//! [`WorkingSet`] keeps what a guest touches, in which order, in a file beside its snapshot.

#![warn(missing_debug_implementations, unreachable_pub)]

pub mod abi;
pub mod bitmap;
mod calls;
mod error;
mod working_set;

pub use calls::{enable, probe, Features, Harvest, Populate, Progress};
pub use error::Error;
pub use working_set::{FormatError, Region, WorkingSet};

/// Of x86, in which this counts: those of the guest may be larger on the host.
pub const PAGE_SIZE: u64 = 4096;

// SPDX-License-Identifier: GPL-2.0
//! The ioctls.

use crate::abi;
use crate::bitmap::{words_for, WORD_SIZE};
use crate::{Error, PAGE_SIZE};
use std::ops::{BitAnd, BitOr, ControlFlow};
use std::os::unix::io::AsRawFd;
use std::{fmt, io, thread};

/// A set of what a kernel can do, or a VM has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(u64);

impl Features {
    /// Neither the capability nor any of it.
    pub const NONE: Features = Features(0);
    /// A thread of the kernel's watches memslots and memory that arrives.
    pub const FOLLOW: Features = Features(1 << 0);
    /// A fault maps what is present around it.
    pub const FAULT_AROUND: Features = Features(1 << 1);
    /// [`Populate`] works.
    pub const POPULATE: Features = Features(1 << 2);
    /// Faults map what the page cache holds, too, and [`Populate::page_cache`] works.
    pub const PAGE_CACHE: Features = Features(1 << 3);
    /// [`Harvest`] and [`Populate::only`] work.
    pub const HARVEST: Features = Features(1 << 4);

    /// Of what `KVM_CHECK_EXTENSION` returns.
    pub const fn from_bits(bits: u64) -> Self {
        Features(bits)
    }

    /// As `KVM_ENABLE_CAP` takes it.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Both, as `|`, for constants.
    #[must_use]
    pub const fn with(self, others: Features) -> Self {
        Features(self.0 | others.0)
    }

    /// Whether all of `others` are in it.
    pub const fn contains(self, others: Features) -> bool {
        self.0 & others.0 == others.0
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

impl BitAnd for Features {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Features(self.0 & other.0)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["follow", "fault-around", "populate", "page cache", "harvest"];
        let has = (0..64).filter(|bit| self.0 >> bit & 1 != 0);
        let words: Vec<String> = has
            .map(|bit| names.get(bit).map_or(format!("bit {}", bit), |name| name.to_string()))
            .collect();
        f.write_str(if words.is_empty() { "nothing" } else { "" })?;
        f.write_str(&words.join(", "))
    }
}

/// How far a call came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Where it would go on.
    pub gpa: u64,
    /// Bytes that are left.
    pub left: u64,
    /// Bytes that are mapped now, whoever has mapped them.  A call with a bitmap goes on with a
    /// whole word, of which pages may be counted again.
    pub mapped: u64,
    /// Bytes that are not, mostly as the host has not got them.
    pub absent: u64,
    /// Bytes that were found to be accessed.
    pub accessed: u64,
}

/// What the kernel can do, asked of `/dev/kvm` or, better, of the VM.  [`Features::NONE`] if
/// it does not know the capability, or can't have it here.
pub fn probe(fd: &impl AsRawFd) -> Result<Features, Error> {
    let cap = libc::c_ulong::from(abi::KVM_CAP_GLOBAL_TDP);
    // SAFETY: this one takes a number, and no pointer.
    let bits = unsafe { libc::ioctl(fd.as_raw_fd(), abi::KVM_CHECK_EXTENSION as _, cap) };
    match u64::try_from(bits) {
        Ok(bits) => Ok(Features(bits)),
        Err(_) => Err(refused("KVM_CHECK_EXTENSION")),
    }
}

/// Have a VM without vCPUs use what the kernel can do of `wanted`, and nothing else: what the
/// host's `kvm.global_tdp` has turned on is turned off, unless it is in `wanted`.  Returns what
/// the VM has.
pub fn enable(vm: &impl AsRawFd, wanted: Features) -> Result<Features, Error> {
    let can = probe(vm)?;
    if can == Features::NONE {
        return Ok(can);
    }
    let chosen = wanted & can;
    let mut cap = abi::EnableCap {
        cap: abi::KVM_CAP_GLOBAL_TDP,
        flags: 0,
        args: [chosen.0, 0, 0, 0],
        pad: [0; 64],
    };
    // SAFETY: the structure is the one that this ioctl takes.
    unsafe { ioctl(vm, abi::KVM_ENABLE_CAP, &mut cap) }.map(|()| chosen).map_err(|error| {
        Error::Kernel { call: "KVM_ENABLE_CAP", error, progress: Progress::default() }
    })
}

/// How often a call is made again that the kernel has told to be, with nothing done.
const ATTEMPTS: u32 = 100;

/// What to have mapped.
#[derive(Clone, Copy, Debug)]
pub struct Populate<'a> {
    gpa: u64,
    size: u64,
    as_id: u32,
    flags: u32,
    bitmap: Option<&'a [u64]>,
    step: u64,
    attempts: u32,
}

impl<'a> Populate<'a> {
    /// So many bytes from there on, as far as they are present.
    pub const fn new(gpa: u64, size: u64) -> Self {
        let (as_id, flags, bitmap) = (0, 0, None);
        Populate { gpa, size, as_id, flags, bitmap, step: !0, attempts: ATTEMPTS }
    }

    /// And what the page cache holds, if the VM `has` that.
    #[must_use]
    pub fn page_cache(mut self, has: Features) -> Self {
        if has.contains(Features::PAGE_CACHE) {
            self.flags |= abi::KVM_POPULATE_PAGE_CACHE;
        }
        self
    }

    /// Only pages whose bit is set; bit n is page n from `gpa`, which is to be a multiple of
    /// [`WORD_SIZE`].
    #[must_use]
    pub fn only(mut self, words: &'a [u64]) -> Self {
        self.bitmap = Some(words);
        self
    }

    /// In another address space: 1 is SMM's.
    #[must_use]
    pub fn address_space(mut self, as_id: u32) -> Self {
        self.as_id = as_id;
        self
    }

    /// In calls of so many bytes, rounded up to [`WORD_SIZE`].  Memslot updates never wait for
    /// a whole call; it is for the caller to hear how far it is, and to stop.
    #[must_use]
    pub fn step(mut self, bytes: u64) -> Self {
        self.step = words_for(bytes).max(1).saturating_mul(WORD_SIZE);
        self
    }

    /// How often to try again what the kernel says is in the way, 100 times by default.  That
    /// is counted anew with each page that is done.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Do it.
    pub fn run(&self, vm: &impl AsRawFd) -> Result<Progress, Error> {
        self.run_with(vm, |_| ControlFlow::Continue(()))
    }

    /// Do it, and hear of each call; [`ControlFlow::Break`] is the end of it, not an error.
    pub fn run_with(
        &self,
        vm: &impl AsRawFd,
        told: impl FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Progress, Error> {
        // SAFETY: drive() has seen that the bitmap, which is only read, is as long as the range.
        self.drive(told, |range| unsafe { ioctl(vm, abi::KVM_POPULATE_MEMORY, range) })
    }

    /// Have the kernel's own thread do it, some time soon; nothing is waited for.  It takes no
    /// bitmap and does not look at the page cache.
    pub fn hand_over(&self, vm: &impl AsRawFd) -> Result<Progress, Error> {
        if self.bitmap.is_some() || self.flags != 0 {
            return Err(Error::Argument(
                "the kernel's thread takes neither bitmap nor page cache",
            ));
        }
        let handed = Populate { flags: abi::KVM_POPULATE_ASYNC, ..*self };
        handed.run(vm)
    }

    fn drive(
        &self,
        mut told: impl FnMut(&Progress) -> ControlFlow<()>,
        mut call: impl FnMut(&mut abi::PopulateMemory) -> io::Result<()>,
    ) -> Result<Progress, Error> {
        let mut flags = self.flags;
        if let Some(words) = self.bitmap {
            check_bitmap(self.gpa, self.size, words)?;
            flags |= abi::KVM_POPULATE_BITMAP;
        }
        let mut progress = Progress { gpa: self.gpa, left: self.size, ..Progress::default() };
        loop {
            let mut range = abi::PopulateMemory {
                gpa: progress.gpa,
                size: progress.left.min(self.step),
                flags,
                as_id: self.as_id,
                bitmap: self.bitmap.map_or(0, |words| {
                    let done = (progress.gpa - self.gpa) / WORD_SIZE;
                    words[done as usize..].as_ptr() as u64
                }),
                ..Default::default()
            };
            again("KVM_POPULATE_MEMORY", self.attempts, &mut progress, |progress| {
                let (gpa, done) = (range.gpa, call(&mut range));
                let moved = range.gpa.saturating_sub(gpa).min(progress.left);
                progress.gpa = progress.gpa.saturating_add(moved);
                progress.left -= moved;
                // Of a call that has done nothing, these may be the last one's.
                if moved != 0 || done.is_ok() {
                    progress.mapped += range.mapped;
                    progress.absent += range.absent;
                }
                (done, moved != 0)
            })?;
            if told(&progress).is_break() || progress.left == 0 || range.size != 0 {
                return Ok(progress);
            }
        }
    }
}

/// Whose pages to tell of.
#[derive(Clone, Copy, Debug)]
pub struct Harvest {
    gpa: u64,
    size: u64,
    as_id: u32,
    attempts: u32,
}

impl Harvest {
    /// So many bytes from there on; `gpa` is to be a multiple of
    /// [`WORD_SIZE`](crate::bitmap::WORD_SIZE).
    pub const fn new(gpa: u64, size: u64) -> Self {
        Harvest { gpa, size, as_id: 0, attempts: ATTEMPTS }
    }

    /// In another address space: 1 is SMM's.
    #[must_use]
    pub fn address_space(mut self, as_id: u32) -> Self {
        self.as_id = as_id;
        self
    }

    /// As for [`Populate::attempts`].
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Put into `words` which pages were accessed since the last time, or since they were
    /// mapped: what [`Populate`] maps counts when a vCPU has accessed it.  Pages that the host
    /// has taken away or aged since are missing.  Those that are found are found once: after an
    /// error, too, `words` has what there was until then, and 0 for the rest.
    pub fn run(&self, vm: &impl AsRawFd, words: &mut Vec<u64>) -> Result<Progress, Error> {
        // SAFETY: drive() has made the bitmap as long as the range.
        self.drive(words, |range| unsafe { ioctl(vm, abi::KVM_HARVEST_ACCESSED, range) })
    }

    fn drive(
        &self,
        words: &mut Vec<u64>,
        mut call: impl FnMut(&mut abi::HarvestAccessed) -> io::Result<()>,
    ) -> Result<Progress, Error> {
        words.clear();
        check_range(self.gpa, self.size)?;
        words.resize(length(self.size)?, 0);
        let mut progress = Progress { gpa: self.gpa, left: self.size, ..Progress::default() };
        let mut range = abi::HarvestAccessed {
            gpa: self.gpa,
            size: self.size,
            as_id: self.as_id,
            bitmap: words.as_mut_ptr() as u64,
            ..Default::default()
        };
        again("KVM_HARVEST_ACCESSED", self.attempts, &mut progress, |progress| {
            let (gpa, done) = (range.gpa, call(&mut range));
            let moved = range.gpa.saturating_sub(gpa);
            progress.gpa = range.gpa;
            progress.left = range.size;
            if moved != 0 || done.is_ok() {
                progress.accessed += range.accessed;
            }
            (done, moved != 0)
        })?;
        Ok(progress)
    }
}

/// Call until it is done, or fails, or does not get on any more.  What is in the way may be
/// there to stay.
fn again(
    name: &'static str,
    attempts: u32,
    progress: &mut Progress,
    mut call: impl FnMut(&mut Progress) -> (io::Result<()>, bool),
) -> Result<(), Error> {
    let mut left = attempts;
    loop {
        let (done, moved) = call(progress);
        let error = match done {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
            return Err(Error::Kernel { call: name, error, progress: *progress });
        }
        if moved {
            left = attempts;
        } else if left == 0 {
            return Err(Error::Stuck { call: name, attempts, error, progress: *progress });
        } else {
            left -= 1;
            thread::yield_now();
        }
    }
}

fn check_range(gpa: u64, size: u64) -> Result<(), Error> {
    if gpa % WORD_SIZE != 0 || size % PAGE_SIZE != 0 {
        return Err(Error::Argument(
            "a range with a bitmap begins at a multiple of 256 KiB, and is of whole pages",
        ));
    }
    match gpa.checked_add(size) {
        Some(_) => Ok(()),
        None => Err(Error::Argument("the range overflows")),
    }
}

fn check_bitmap(gpa: u64, size: u64, words: &[u64]) -> Result<(), Error> {
    check_range(gpa, size)?;
    if words.len() < length(size)? {
        return Err(Error::Argument("the bitmap is shorter than the range"));
    }
    Ok(())
}

fn length(size: u64) -> Result<usize, Error> {
    usize::try_from(words_for(size)).map_err(|_| Error::Argument("the range is too large"))
}

fn refused(call: &'static str) -> Error {
    let (error, progress) = (io::Error::last_os_error(), Progress::default());
    Error::Kernel { call, error, progress }
}

/// # Safety
///
/// `number` is to take a `T`, and what that points to is to be the caller's.
unsafe fn ioctl<T>(fd: &impl AsRawFd, number: u32, arg: &mut T) -> io::Result<()> {
    if libc::ioctl(fd.as_raw_fd(), number as _, arg as *mut T) < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests;

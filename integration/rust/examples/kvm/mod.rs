// SPDX-License-Identifier: GPL-2.0
//! As much of a VMM as the example takes: one vCPU, 32 bits, no paging, two memslots.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::unix::fs::FileExt;
use std::os::unix::io::{AsRawFd, FromRawFd, RawFd};
use std::ptr::{null_mut, read_volatile};

pub const PAGE: u64 = 4096;
pub const MEM_GPA: u64 = 1 << 30;

/// What the snapshot has in the first bytes of each page, plus the number of the page.
pub const STAMP: u32 = 0x5700_0000;

const KVM_CREATE_VM: u32 = 0xae01;
const KVM_GET_VCPU_MMAP_SIZE: u32 = 0xae04;
const KVM_GET_SUPPORTED_CPUID: u32 = 0xc008_ae05;
const KVM_CREATE_VCPU: u32 = 0xae41;
const KVM_SET_USER_MEMORY_REGION: u32 = 0x4020_ae46;
const KVM_SET_TSS_ADDR: u32 = 0xae47;
const KVM_RUN: u32 = 0xae80;
const KVM_GET_REGS: u32 = 0x8090_ae81;
const KVM_SET_REGS: u32 = 0x4090_ae82;
const KVM_GET_SREGS: u32 = 0x8138_ae83;
const KVM_SET_SREGS: u32 = 0x4138_ae84;
const KVM_SET_CPUID2: u32 = 0x4008_ae90;
const KVM_GET_STATS_FD: u32 = 0xaece;

const KVM_EXIT_IO: u32 = 2;
const PORT_DONE: u16 = 0x10;

// What the guest does: %ecx times, look whether %ebx is at %esi, then add %edi and %ebp to these.
std::arch::global_asm!(
    ".pushsection .rodata",
    ".code32",
    "gtdp_guest:",
    "1: cmp dword ptr [esi], ebx",
    "jne 2f",
    "add esi, edi",
    "add ebx, ebp",
    "dec ecx",
    "jnz 1b",
    "out 0x10, al",
    "2: out 0x11, al",
    "gtdp_guest_end:",
    ".code64",
    ".popsection",
);

extern "C" {
    static gtdp_guest: u8;
    static gtdp_guest_end: u8;
}

#[repr(C)]
struct MemoryRegion {
    slot: u32,
    flags: u32,
    gpa: u64,
    size: u64,
    hva: u64,
}

#[repr(C)]
struct Regs {
    rax: u64,
    rbx: u64,
    rcx: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
    rsp: u64,
    rbp: u64,
    r8_to_r15: [u64; 8],
    rip: u64,
    rflags: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Segment {
    base: u64,
    limit: u32,
    selector: u16,
    kind: u8,
    present: u8,
    dpl: u8,
    db: u8,
    s: u8,
    l: u8,
    g: u8,
    avl: u8,
    unusable: u8,
    padding: u8,
}

#[repr(C)]
struct Sregs {
    segments: [Segment; 6],
    tr_and_ldt: [Segment; 2],
    gdt_and_idt: [u64; 4],
    cr0: u64,
    others: [u64; 10],
}

#[repr(C)]
struct Cpuid {
    number: u32,
    padding: u32,
    entries: [[u32; 10]; 256],
}

#[repr(C)]
struct StatsHeader {
    flags: u32,
    name_size: u32,
    number: u32,
    id_offset: u32,
    desc_offset: u32,
    data_offset: u32,
}

#[repr(C)]
struct StatsDesc {
    flags: u32,
    exponent: i16,
    size: u16,
    offset: u32,
    bucket_size: u32,
}

const _: () = assert!(size_of::<MemoryRegion>() == 32);
const _: () = assert!(size_of::<Regs>() == 144);
const _: () = assert!(size_of::<Sregs>() == 312);
const _: () = assert!(size_of::<StatsHeader>() == 24);
const _: () = assert!(size_of::<StatsDesc>() == 16);

/// # Safety
///
/// `arg` is to be what this ioctl takes.
unsafe fn ioctl(fd: &impl AsRawFd, number: u32, arg: libc::c_ulong) -> io::Result<RawFd> {
    loop {
        let r = libc::ioctl(fd.as_raw_fd(), number as _, arg);
        if r >= 0 {
            return Ok(r);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            let text = format!("ioctl {:#x}: {}", number, error);
            return Err(io::Error::new(error.kind(), text));
        }
    }
}

/// With what an ioctl reads or writes.
unsafe fn ioctl_with<T>(fd: &impl AsRawFd, number: u32, arg: &mut T) -> io::Result<RawFd> {
    ioctl(fd, number, arg as *mut T as libc::c_ulong)
}

/// With an ioctl that makes a file of its own.
unsafe fn made(fd: &impl AsRawFd, number: u32, arg: libc::c_ulong) -> io::Result<File> {
    Ok(File::from_raw_fd(ioctl(fd, number, arg)?))
}

/// Memory of this process, mapped until it is dropped.
pub struct Mapping {
    start: *mut u8,
    size: usize,
}

impl Mapping {
    fn new(size: usize, flags: libc::c_int, fd: RawFd) -> io::Result<Mapping> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the address is the kernel's to choose.
        match unsafe { libc::mmap(null_mut(), size, access, flags, fd, 0) } {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            start => Ok(Mapping { start: start.cast(), size }),
        }
    }

    /// A file of which nobody sees what is written, as VMMs map a snapshot.
    pub fn private(file: &File) -> io::Result<Mapping> {
        Mapping::new(file.metadata()?.len() as usize, libc::MAP_PRIVATE, file.as_raw_fd())
    }

    /// A page with the guest's program.
    fn program() -> io::Result<Mapping> {
        let page = Mapping::new(PAGE as usize, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        // SAFETY: the program is less than a page.
        unsafe {
            let (start, end): (*const u8, *const u8) = (&gtdp_guest, &gtdp_guest_end);
            page.start.copy_from(start, end as usize - start as usize);
        }
        Ok(page)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: a VM that has it is dropped before.
        unsafe { libc::munmap(self.start.cast(), self.size) };
    }
}

/// A VM, and its memory.  Fields are dropped in their order.
pub struct Vm {
    stats: File,
    fd: File,
    kvm: File,
    memory: Vec<(u64, Mapping)>,
}

impl AsRawFd for Vm {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Vm {
    /// Without a vCPU, or any memory.
    pub fn new() -> io::Result<Vm> {
        let kvm = OpenOptions::new().read(true).write(true).open("/dev/kvm")?;
        // SAFETY: these take numbers.
        unsafe {
            let fd = made(&kvm, KVM_CREATE_VM, 0)?;
            ioctl(&fd, KVM_SET_TSS_ADDR, 0xfffb_d000)?;
            let stats = made(&fd, KVM_GET_STATS_FD, 0)?;
            Ok(Vm { kvm, fd, stats, memory: vec![] })
        }
    }

    /// Give the guest its program and, at [`MEM_GPA`], its memory.
    pub fn set_memory(&mut self, memory: Mapping) -> io::Result<()> {
        self.memory = vec![(0, Mapping::program()?), (MEM_GPA, memory)];
        for (slot, (gpa, mapping)) in self.memory.iter().enumerate() {
            let mut region = MemoryRegion {
                slot: slot as u32,
                flags: 0,
                gpa: *gpa,
                size: mapping.size as u64,
                hva: mapping.start as u64,
            };
            // SAFETY: the structure is the one that this ioctl takes; the VM goes first.
            unsafe { ioctl_with(&self.fd, KVM_SET_USER_MEMORY_REGION, &mut region) }?;
        }
        Ok(())
    }

    /// A vCPU in protected mode, with flat segments.  It has its CPUID: some CPUs have page
    /// tables of four levels or five, and which a VM uses follows from that.
    pub fn vcpu(&self) -> io::Result<Vcpu> {
        // SAFETY: the structures are those of these ioctls, and all zeroes is a value of each.
        unsafe {
            let fd = made(&self.fd, KVM_CREATE_VCPU, 0)?;
            let mut cpuid: Box<Cpuid> = Box::new(zeroed());
            cpuid.number = 256;
            ioctl_with(&self.kvm, KVM_GET_SUPPORTED_CPUID, &mut *cpuid)?;
            ioctl_with(&fd, KVM_SET_CPUID2, &mut *cpuid)?;

            let mut sregs: Sregs = zeroed();
            ioctl_with(&fd, KVM_GET_SREGS, &mut sregs)?;
            let data =
                Segment { limit: !0, kind: 3, present: 1, db: 1, s: 1, g: 1, ..zeroed() };
            sregs.segments = [data; 6];
            sregs.segments[0].kind = 11;
            sregs.cr0 = 0x11;
            ioctl_with(&fd, KVM_SET_SREGS, &mut sregs)?;

            let size = ioctl(&self.kvm, KVM_GET_VCPU_MMAP_SIZE, 0)?;
            let run = Mapping::new(size as usize, libc::MAP_SHARED, fd.as_raw_fd())?;
            let stats = made(&fd, KVM_GET_STATS_FD, 0)?;
            Ok(Vcpu { fd, stats, run })
        }
    }

    /// Pages of 4 KiB that stage 2 maps.
    pub fn mapped(&self) -> io::Result<u64> {
        let huge = statistic(&self.stats, "pages_2m")?;
        Ok(statistic(&self.stats, "pages_4k")? + 512 * huge)
    }
}

/// The one vCPU.
pub struct Vcpu {
    fd: File,
    stats: File,
    run: Mapping,
}

impl Vcpu {
    /// Have the guest look at `count` pages, the first and then every `step`th.  Whatever it
    /// does not find as the snapshot has it is an error.
    pub fn look_at(&mut self, first: u64, count: u64, step: u64) -> io::Result<()> {
        // SAFETY: the structure is the one of these ioctls, and all zeroes is a value of it.
        unsafe {
            let mut regs: Regs = zeroed();
            regs.rflags = 2;
            regs.rbx = u64::from(STAMP) + first;
            regs.rcx = count;
            regs.rsi = MEM_GPA + first * PAGE;
            regs.rdi = step * PAGE;
            regs.rbp = step;
            ioctl_with(&self.fd, KVM_SET_REGS, &mut regs)?;
            ioctl(&self.fd, KVM_RUN, 0)?;
            ioctl_with(&self.fd, KVM_GET_REGS, &mut regs)?;
            // Of struct kvm_run.
            let reason: u32 = read_volatile(self.run.start.add(8).cast());
            let port: u16 = read_volatile(self.run.start.add(34).cast());
            if (reason, port) == (KVM_EXIT_IO, PORT_DONE) {
                return Ok(());
            }
            let page = regs.rsi.wrapping_sub(MEM_GPA) / PAGE;
            let text = format!("exit {}, the guest found page {} to be wrong", reason, page);
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        }
    }

    /// Stage-2 faults so far.
    pub fn faults(&self) -> io::Result<u64> {
        statistic(&self.stats, "pf_taken")
    }
}

/// One of KVM's binary statistics.
fn statistic(file: &File, name: &str) -> io::Result<u64> {
    // SAFETY: all zeroes is a value of these, and so is whatever the kernel says.
    let (head, mut desc): (StatsHeader, StatsDesc) = unsafe {
        let mut head: StatsHeader = zeroed();
        file.read_exact_at(bytes_of(&mut head), 0)?;
        (head, zeroed())
    };
    let mut text = vec![0; head.name_size as usize];
    for n in 0..head.number {
        let each = size_of::<StatsDesc>() as u64;
        let at = u64::from(head.desc_offset) + u64::from(n) * (each + text.len() as u64);
        // SAFETY: as above.
        file.read_exact_at(unsafe { bytes_of(&mut desc) }, at)?;
        file.read_exact_at(&mut text, at + each)?;
        let known = text.split_inclusive(|byte| *byte == 0).next().unwrap_or_default();
        if CStr::from_bytes_with_nul(known)
            .map_or(false, |known| known.to_bytes() == name.as_bytes())
        {
            let mut value = [0; 8];
            file.read_exact_at(
                &mut value,
                u64::from(head.data_offset) + u64::from(desc.offset),
            )?;
            return Ok(u64::from_ne_bytes(value));
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("KVM has no statistic {}", name)))
}

/// # Safety
///
/// Any bytes are to be a value of `T`.
unsafe fn bytes_of<T>(value: &mut T) -> &mut [u8] {
    std::slice::from_raw_parts_mut((value as *mut T).cast(), size_of::<T>())
}

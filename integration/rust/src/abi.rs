// SPDX-License-Identifier: GPL-2.0
//! What `<linux/kvm.h>` of the series has, by hand.  The compiler checks the sizes, and
//! `tests/header.rs` all the rest, against the header itself.

use std::mem::size_of;

/// Asked for by `KVM_CHECK_EXTENSION` and chosen from by `KVM_ENABLE_CAP`.
pub const KVM_CAP_GLOBAL_TDP: u32 = 0x6774_6470;

/// Flags of [`PopulateMemory`].
pub const KVM_POPULATE_ASYNC: u32 = 1 << 0;
pub const KVM_POPULATE_PAGE_CACHE: u32 = 1 << 1;
pub const KVM_POPULATE_BITMAP: u32 = 1 << 2;

pub const KVM_CHECK_EXTENSION: u32 = 0xae03;
pub const KVM_ENABLE_CAP: u32 = 0x4068_aea3;
pub const KVM_POPULATE_MEMORY: u32 = 0xc038_aef8;
pub const KVM_HARVEST_ACCESSED: u32 = 0xc040_aef9;

/// `struct kvm_enable_cap`, as old as KVM.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EnableCap {
    pub cap: u32,
    pub flags: u32,
    pub args: [u64; 4],
    pub pad: [u8; 64],
}

/// `struct kvm_populate_memory`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PopulateMemory {
    pub gpa: u64,
    pub size: u64,
    pub flags: u32,
    pub as_id: u32,
    pub mapped: u64,
    pub absent: u64,
    pub bitmap: u64,
    pub reserved: u64,
}

/// `struct kvm_harvest_accessed`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HarvestAccessed {
    pub gpa: u64,
    pub size: u64,
    pub flags: u32,
    pub as_id: u32,
    pub bitmap: u64,
    pub accessed: u64,
    pub reserved: [u64; 3],
}

// The size is a part of the number, too.
const _: () = assert!(KVM_ENABLE_CAP >> 16 & 0x3fff == size_of::<EnableCap>() as u32);
const _: () = assert!(KVM_POPULATE_MEMORY >> 16 & 0x3fff == size_of::<PopulateMemory>() as u32);
const _: () =
    assert!(KVM_HARVEST_ACCESSED >> 16 & 0x3fff == size_of::<HarvestAccessed>() as u32);
const _: () = assert!(size_of::<EnableCap>() == 104);
const _: () = assert!(size_of::<PopulateMemory>() == 56);
const _: () = assert!(size_of::<HarvestAccessed>() == 64);
